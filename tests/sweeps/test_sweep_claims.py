"""Claims over a sweep: what a single run contradicts must survive a correction over all runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fdaudit.reports.curves.sweep_claims import contradictions
from fdaudit.reports.curves.sweep_rows import SweepRow, SweepRun
from scipy.stats import binom

from fdaudit.result import Check, Result

from ..helpers.report_cases import figures_in


def check(p: float | None, adversary: str = "server") -> Check:
    return Check(
        adversary=adversary,
        claimed=2.0,
        verdict="contradicted" if p is not None and p <= 0.05 else "consistent",
        reason="",
        confidence=0.95,
        p=p,
    )


def row(seed: int, *checks: Check, **changes: Any) -> SweepRow:
    result = Result.model_construct(checks=checks) if checks else None
    stated: dict[str, Any] = {"key": f"{seed:016x}", "protocol": "fedavg", "defence": "dp-sgd", "level": 2.0}
    return SweepRow(run=SweepRun(**{**stated, "seed": seed, "status": "done", "result": result, **changes}))


def test_a_contradiction_survives_only_if_it_is_strong() -> None:
    found = contradictions([row(0, check(0.03)), *(row(n, check(0.5)) for n in range(1, 20))])
    assert found.tested == 20
    (one,) = found.found
    assert one.p == pytest.approx(0.6)
    assert not one.survives
    (said,) = found.in_words()
    assert figures_in(said) == ["1", "20"]  # contradicted by the run alone, of those tested
    found = contradictions(
        [row(0, check(1e-6), check(0.9, "world")), *(row(n, check(0.5)) for n in range(1, 20))]
    )
    (one,) = found.found
    assert one.p == pytest.approx(2e-5)
    assert one.survives
    (said,) = found.in_words()
    assert said.startswith("Attacks contradict")
    for part in ("20 tested runs", "under dp-sgd, seed", "2.000 for the", "2e-05"):
        assert part in said
    found = contradictions([row(0, check(0.02)), row(1, check(None)), row(2, status="failed")])
    assert found.tested == 1
    assert found.found[0].survives
    assert list(contradictions([row(2, status="failed")]).in_words()) == []
    (said,) = contradictions([row(0, check(0.2))]).in_words()
    assert said.startswith("No attack contradicts")


def test_the_correction_is_holms_step_by_step() -> None:
    """By the book: ranked p-values times the number of hypotheses left, never falling."""
    values = [0.001, 0.012, 0.02, 0.04, 0.9]
    found = contradictions([row(n, check(p)) for n, p in enumerate(values)])
    expected = np.maximum.accumulate(np.array(values[:4]) * np.array([5, 4, 3, 2]))
    assert [c.p for c in found.found] == pytest.approx(list(expected))
    assert [c.survives for c in found.found] == [True, True, False, False]
    assert (
        contradictions([row(n, check(p)) for n, p in enumerate(reversed(values))]).found[0].p
        == found.found[0].p
    )


def test_in_sweeps_whose_claims_hold_hardly_any_contradiction_survives() -> None:
    rng, kept, alone = np.random.default_rng(4), 0, 0
    for _ in range(400):
        found = contradictions([row(n, check(float(p))) for n, p in enumerate(rng.random(30))])
        kept += any(c.survives for c in found.found)
        alone += bool(found.found)
    assert kept <= binom.ppf(0.999, 400, 0.05)
    assert alone > 200, "without the correction most honest sweeps would accuse somebody"
