"""The command that tosses the coins of an audit before another system trains its federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdaudit.cli.options import AsJson
from fdaudit.progress import show

if TYPE_CHECKING:
    from fdaudit.planning.design import MadeDesign

__all__ = ["design"]


def design(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A dataset as in a spec (digits, npz:FILE, folder:DIR), or a directory with client-0.npz, "
            "client-1.npz, … of arrays x and y: the records that each site has already.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A directory that does not exist yet.")],
    sites: Annotated[int | None, typer.Option(help="Number of sites that share a dataset.")] = None,
    fraction: Annotated[
        float,
        typer.Option(help="Share of each site's records that are candidates; half of them are left out."),
    ] = 0.5,
    auxiliary: Annotated[
        float | None, typer.Option(help="Share of a dataset for the attacks; no site gets it. [default: 0.1]")
    ] = None,
    public: Annotated[
        float | None, typer.Option(help="Share of a dataset that every party holds. [default: 0]")
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(help="Share of a dataset to measure accuracy. [default: 0.1, or its own test split]"),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="iid, by-class or dirichlet: how a dataset is shared out. [default: iid]"),
    ] = None,
    classes_per_client: Annotated[int | None, typer.Option(help="by-class: classes of each site.")] = None,
    alpha: Annotated[float | None, typer.Option(help="dirichlet: smaller is more uneven.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side to which a dataset's images are padded or resized.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Toss coins before the training: which records each site of your federation leaves out."""
    from fdaudit.config import validate
    from fdaudit.planning.design import DesignSpec, make_design

    settings: dict[str, Any] = {"sites": sites, "fraction": fraction, "image_size": image_size}
    settings |= {"auxiliary": auxiliary, "public": public, "test": test}
    if partition is not None or classes_per_client is not None or alpha is not None:
        settings["partition"] = {
            "name": partition or "iid", "classes_per_client": classes_per_client, "alpha": alpha
        }  # fmt: skip
    design = make_design(data, out, validate(DesignSpec, settings))
    if as_json:
        clients = dict[str, dict[str, int]]()
        for party, pairs in design.pairs.items():
            clients[party] = {"records": design.records[party], "pairs": pairs, "asked": design.asked[party]}
        value = {"design": str(out), "commitment": design.commitment, "clients": clients}
        show(json.dumps(value))
        return
    show(*_lines(design))


def _lines(made: MadeDesign) -> list[str]:
    """Return what was made, and what to do with each part of it."""
    lines = [f"{'site':<12} {'records':>8} {'pairs':>8} {'left out':>8}"]
    for party, pairs in made.pairs.items():
        line = f"{party:<12} {made.records[party]:>8} {pairs:>8} {pairs:>8}"
        fewer = made.asked[party] - pairs
        if fewer:
            line += f"  {fewer} fewer than asked: both records of a pair are of one class"
        lines.append(line)
    sites, files = made.directory / "sites", "client-K.json"
    if made.handed_records:
        files = "client-K.npz and client-K.json"
    lines += [
        "",
        f"commitment  {made.commitment}",
        f"publish     {made.directory / 'design.json'}, before the training begins",
        f"hand out    {sites}: {files} to site K, and to nobody else",
        f"keep        {made.directory / 'truth'}: the key, for `fdaudit import --truth`. It is not stored elsewhere",
    ]
    if made.public:
        lines.append(f"give all    {made.directory / 'public.npz'}: the public samples, to every party")
    if not made.images:
        lines.append("images      none: the key holds labels only")
    return lines
