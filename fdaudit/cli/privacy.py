"""The commands about ε: the cost of a run, and the noise that keeps a budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fdaudit.cli.options import AsJson, TrustCode
from fdaudit.errors import UsageError, nearest
from fdaudit.events import Relation, Unit
from fdaudit.progress import say, show

if TYPE_CHECKING:
    from fdaudit.accounting.ledger import Ledger
    from fdaudit.audit.joint_ledger import JointRuns
    from fdaudit.audit.run import Run
    from fdaudit.sweeps.chosen import ChosenRun

__all__ = ["calibrate", "ledger"]


def ledger(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="A run directory. Several: their joint cost.")
    ],
    adversary: Annotated[
        list[str] | None,
        typer.Option(help="The adversary; repeat for several. Default: the spec's and every server."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ; default: the spec's.")] = None,
    unit: Annotated[str | None, typer.Option(help="record or client; default: the spec's.")] = None,
    relation: Annotated[
        str | None, typer.Option(help="add-or-remove or replace-one; default: that of the run's events.")
    ] = None,
    both_relations: Annotated[
        bool,
        typer.Option(
            "--both-relations", help="State ε for records added or removed and for records replaced."
        ),
    ] = False,
    curve: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write ε at many δ, trade-off functions and loss distributions there."
        ),
    ] = None,
    chosen_from: Annotated[
        Path | None,
        typer.Option(
            metavar="SWEEP", help="The sweep from which this run was chosen by results: charge all."
        ),
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Print each adversary's ε for the worst-affected client, or why none can be claimed."""
    if both_relations and relation is not None:
        raise UsageError("relation", relation, "excludes --both-relations", "Give one of the two options.")
    from fdaudit.sweeps.chosen import ChosenRun

    terms: dict[str, Any] = {"unit": _one_of("unit", unit, Unit), "delta": delta}
    relations = [_one_of("relation", relation, Relation)]
    if both_relations:
        relations = list(get_args(Relation))
    opened: Run | JointRuns | ChosenRun
    opened = _opened(runs) if chosen_from is None else _chosen(runs, chosen_from, curve)
    ledgers = []
    for view in adversary or opened.views:
        ledgers += [opened.ledger(view, **terms, relation=one) for one in relations]
    files: list[str] = []
    if curve is not None and not isinstance(opened, ChosenRun):
        from fdaudit.audit.ledger_files import write_profiles

        profiles = []
        for entry in ledgers:
            profile = opened.profile(entry.view, delta=entry.delta, unit=entry.unit, relation=entry.relation)
            profiles.append(profile)
        files = list(map(str, write_profiles(profiles, curve, delta=ledgers[0].delta)))
    if as_json:
        entries = [_plain(entry) for entry in ledgers]
        show(json.dumps(entries if curve is None else {"ledger": entries, "files": files}))
        return
    _show_ledgers(ledgers, both_relations)
    lines = ["", *files] if files else []
    show(*lines)
    for warning in dict.fromkeys(chain.from_iterable(entry.warnings for entry in ledgers)):
        say(f"warning: {warning}")


def _plain(entry: Ledger) -> dict[str, Any]:
    """Return a ledger as a JSON object, a joint one with the share of each run."""
    from fdaudit.audit.joint_ledger import JointLedger

    value = entry.entry.plain()
    if isinstance(entry, JointLedger):
        value["runs"] = [asdict(share) for share in entry.runs]
    return value


def _opened(runs: list[Path]) -> Run | JointRuns:
    """Return the run, or several runs as one recipient holds them."""
    from fdaudit.api import load
    from fdaudit.audit.joint_ledger import joint

    loaded = [load(run) for run in runs]
    return loaded[0] if len(loaded) == 1 else joint(loaded)


def _chosen(runs: list[Path], sweep: Path, curve: Path | None) -> ChosenRun:
    """Return one run as one of the runs of a sweep."""
    from fdaudit.sweeps.chosen import ChosenRun

    if len(runs) > 1 or curve is not None:
        problem, remedy = "is about one run, without --curve", "Give the chosen run alone."
        raise UsageError("--chosen-from", str(sweep), problem, remedy)
    return ChosenRun(sweep, runs[0])


def _show_ledgers(ledgers: Sequence[Ledger], both_relations: bool) -> None:
    from fdaudit.accounting.accounts import rounded_up
    from fdaudit.audit.joint_ledger import JointLedger, Share
    from fdaudit.audit.ledgers import table

    if both_relations:
        relations = get_args(Relation)
        cells = {(entry.view, entry.relation): rounded_up(entry.epsilon) for entry in ledgers}
        units = {entry.view: entry.unit for entry in ledgers}
        lines = [f"{'adversary':<20} {relations[0]:>14} {relations[1]:>14}  unit"]
        for view, unit in units.items():
            both = " ".join(f"{cells[view, relation]:>14}" for relation in relations)
            lines.append(f"{view:<20} {both}  {unit}")
        show(*lines, "")
    show(*table(ledgers))
    shares = set[Share]()
    for entry in ledgers:
        if isinstance(entry, JointLedger):
            shares.update(entry.runs)
    if not shares:
        return
    show("", "Each run alone, for the worst records")
    for share in sorted(shares, key=repr):
        show(f"  {share.run:<20} {share.client or 'not in it':<13} {rounded_up(share.epsilon)}")


def calibrate(
    defence: Annotated[
        str, typer.Argument(help="dp-sgd, gnmax, sanitized-gradients, …; see --help of the options.")
    ],
    epsilon: Annotated[float, typer.Option(help="Target ε.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    releases: Annotated[int, typer.Option(help="Noised messages, or PATE queries.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps of DP-SGD, or of FedIOD's generator, in the run.")] = 1,
    samples: Annotated[int, typer.Option(help="Generated samples per step.")] = 1,
    sample_rate: Annotated[float, typer.Option(help="q of DP-SGD.")] = 1.0,
    sensitivity: Annotated[
        float, typer.Option(help="Sensitivity of a noised message: twice its clip.")
    ] = 1.0,
    answered: Annotated[int | None, typer.Option(help="Confident-GNMax: the cap on answers.")] = None,
    threshold_noise: Annotated[float, typer.Option(help="Confident-GNMax: σ1 over σ.")] = 2.0,
    drawn_from: Annotated[int, typer.Option(help="Number of clients from which each step draws one.")] = 1,
    bands: Annotated[str, typer.Option(help="DP-FTRL: coefficients of its Toeplitz matrix, as 1,0.5.")] = "1",
    separation: Annotated[int, typer.Option(help="DP-FTRL: least steps between two uses of a record.")] = 1,
    participations: Annotated[int, typer.Option(help="DP-FTRL: most uses of a record.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find the least noise with which a defence keeps a given number of uses within an ε."""
    from fdaudit.accounting.calibration import SHAPES, Shape, noise_for
    from fdaudit.config import validate

    if not 0 < delta < 1:
        raise UsageError("--delta", delta, "is no probability of failure", "Give a δ between 0 and 1.")
    uses = {
        "releases": releases, "steps": steps, "samples": samples, "sample_rate": sample_rate,
        "sensitivity": sensitivity, "answered": answered, "threshold_noise": threshold_noise, "drawn_from": drawn_from,
        "bands": _numbers(bands), "separation": separation, "participations": participations,
    }  # fmt: skip
    noise, reached = noise_for(defence, validate(Shape, uses), epsilon, delta)
    setting = SHAPES[defence][0]
    if as_json:
        answer = {"defence": defence, "setting": setting, "value": noise, "epsilon": reached, "delta": delta}
        show(json.dumps(answer | _assumed(defence, sensitivity)))
        return
    # Noise is rounded up. Its inverse is shown with more digits, so that it is not rounded up in turn.
    name, value = (setting[2:], f"{1 / noise:.8g}") if setting.startswith("1/") else (setting, f"{noise:.5g}")
    assumed = "".join(f", {what} = {number:g}" for what, number in _assumed(defence, sensitivity).items())
    show(f"{defence}: {name} = {value}, ε = {reached:.4g} at δ = {delta:g}{assumed}")


def _numbers(text: str) -> list[float]:
    """Return the numbers of a list with commas; refuse other text."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError("--bands", text, "is no list of numbers", "Write them as 1,0.5,0.25.") from None


def _assumed(defence: str, sensitivity: float) -> dict[str, float]:
    """Return what the noise on a message was calibrated for. Replacing all of a message moves it by twice its clip."""
    if defence == "gaussian-noise":
        return {"clip": sensitivity / 2, "sensitivity": sensitivity}
    return {"sensitivity": sensitivity} if defence == "laplace-noise" else {}


def _one_of(field: str, value: str | None, names: Any) -> Any:
    """Return a word of a closed list, or None; refuse other words."""
    words = get_args(names)
    if value is not None and value not in words:
        raise UsageError(field, value, "is not known", nearest(value, words))
    return value
