"""Claims about identification: what pictures say of ranks, and what a rate and its interval then must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .recompute_claims import Path
from .recompute_figures import CellClaims

GALLERY = 100
"""Records of a gallery at most, the true one aside."""


def claim_identification(cell: CellClaims) -> None:
    """Claim ranks and galleries of pictures, and the figures over them, of every victim and of all together."""
    n, kept = 0, cell.evidence.cell_file(cell.cell["id"])
    for k, target in enumerate(cell.cell["targets"]):
        ranks = []
        for j, image in enumerate(target["images"]):
            where = (*cell.path, "targets", k, "images", j)
            if image.get("rank") is not None:
                cell.claims.limited((*where, "rank"), 1, image["gallery"])
                cell.claims.limited((*where, "gallery"), 2, 1 + GALLERY)
                ranks.append(image["rank"])
        n += len(ranks)
        path = (*cell.path, "targets", k)
        cell.exact(cell.at(path, target["figures"], "identification"), ranks.count(1), len(ranks))
        where = cell.at(path, target["figures"], "identification_rank")
        cell.claims.equal((*where, "value"), float(np.median(ranks)))
        cell.claims.equal((*where, "n"), len(ranks))
        _luck(cell, path, target["figures"], kept["targets"][k]["figures"], len(ranks))
    figures = cell.cell["figures"]
    where = cell.at(cell.path, figures, "identification")
    rate = next(f["value"] for f in figures if f["name"] == "identification")
    cell.exact(where, round(rate * n), n)
    where = cell.at(cell.path, figures, "identification_rank")
    cell.claims.limited(
        (*where, "value"), _named(kept["figures"], "identification_rank")["value"], mark="rank"
    )
    cell.claims.equal((*where, "n"), n)
    _luck(cell, cell.path, figures, kept["figures"], n)


def _named(figures: Sequence[Any], name: str) -> Any:
    (found,) = [f for f in figures if f["name"] == name]
    return found


def _luck(cell: CellClaims, path: Path, figures: Sequence[Any], kept: Sequence[Any], n: int) -> None:
    """What rests on draws, as the cell's file has it: the p-value and the rate by chance."""
    p = _named(kept, "identification")["p"]
    cell.claims.limited((*cell.at(path, figures, "identification"), "p"), p)
    where = cell.at(path, figures, "identification_chance")
    cell.claims.limited((*where, "value"), _named(kept, "identification_chance")["value"], mark="chance")
    cell.claims.equal((*where, "n"), n)
