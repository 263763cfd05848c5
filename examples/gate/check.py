"""Check what the page on a gate for releases says of its two runs."""

from __future__ import annotations

import fdaudit

release, defended = fdaudit.load("runs/release"), fdaudit.load("runs/defended")
gates = {run: {g.name: g.passed for g in run.result.gates} for run in (release, defended)}
assert gates[release] == {"reconstruction_gain_db": False, "membership_auc": False}
assert gates[defended] == {"reconstruction_gain_db": True, "membership_auc": True}


def auc(run, cell):
    """The AUC of a cell over all victims."""
    figures = next(c for c in run.result.cells if c.id == cell).figures
    return next(f.value for f in figures if f.name == "auc")


assert auc(release, "server/update-projection") > 0.85 > auc(release, "server/loss-threshold") + 0.2
assert auc(defended, "server/update-projection") < auc(release, "server/update-projection") - 0.1
assert release.ledger("server").epsilon == float("inf")
assert 3.5 < defended.ledger("server").epsilon <= 4
accuracy = defended.utility.groupby(["line", "round"])["accuracy"].mean().groupby("line").last()
assert accuracy["fedavg"] < accuracy["standalone"] < accuracy["centralized"]
