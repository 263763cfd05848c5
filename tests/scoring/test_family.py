"""The family of a run: which figures it holds, how its level is shared, and that verdicts read it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from fdaudit.reports.judgement.verdict import judge_all
from fdaudit.reports.public import public

from fdaudit.metrics import Pairs, holm, reflip
from fdaudit.result import ByThemselves, Cell, Control, Controls, Family, Target, read
from fdaudit.rng import child_numpy
from fdaudit.scoring import family
from fdaudit.scoring.family import BY_COINS, LEVEL, family_of
from fdaudit.types import Figure

from ..helpers.report_cases import load

RUN: Any = SimpleNamespace(case=SimpleNamespace(seed=5))


def figure(name: str, p: float | None) -> Figure:
    return Figure(name=name, value=0.5, p=p)


def cell(
    name: str, goal: str, *figures: Figure, fooled: bool = False, status: Literal["run", "failed"] = "run"
) -> Cell:
    adversary, _, attack = name.partition("/")
    return Cell(
        protocol="fedavg",
        adversary=adversary,
        attack=attack,
        goal=goal,
        status=status,
        reason="stopped",
        controls=Controls(negative=Control(what="a model never trained", passed=not fooled)),
        figures=figures,
        targets=(Target(target="client/0", figures=figures[:1]),),
    )


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Pairs]]:
    rng = np.random.default_rng(1)
    made = {"server/rmia": {"client/0": Pairs(rng.random(30) + 0.2, rng.random(30))}}
    monkeypatch.setattr(family, "candidate_scores", lambda run, cells: made)
    monkeypatch.setattr(family, "reflip", lambda *a, **k: reflip(*a, **k, reflips=500))
    return made


RECONSTRUCTED = cell(
    "server/dlg", "reconstruction", figure("identification", 0.001), figure("psnr_worst", 0.5)
)
MEMBERSHIP = cell("server/rmia", "membership", figure("auc", 0.2))


def adjusted(found: Family) -> dict[tuple[str, str | None, str], float]:
    return {(row.cell, row.target, row.figure): row.p for row in found.adjusted}


def test_coins_and_own_tests_share_the_level(scores: Any) -> None:
    found = family_of(RUN, [MEMBERSHIP, RECONSTRUCTED])
    share = LEVEL * BY_COINS
    assert found.by_coins is not None
    assert found.by_themselves is not None
    assert found.by_coins.level + found.by_themselves.level == pytest.approx(LEVEL)
    alone = reflip(scores, child_numpy(5, "family"), level=share, reflips=500)
    told = adjusted(found)
    for key, p in alone.p.items():
        assert told[key] == pytest.approx(min(1.0, p / BY_COINS))
    first, second = holm([0.001, 0.001])
    assert told["server/dlg", None, "identification"] == pytest.approx(first / (1 - BY_COINS))
    assert told["server/dlg", "client/0", "identification"] == pytest.approx(second / (1 - BY_COINS))
    assert len(told) == len(alone.p) + 2
    floors = {k: row.floor for k, row in zip(told, found.adjusted, strict=True)}
    assert (
        floors["server/rmia", None, "auc"]
        == found.by_coins.floor
        == pytest.approx(alone.floors["server/rmia", None, "auc"])
    )


def test_one_kind_of_tests_has_the_whole_level_and_unkept_scores_stand_alone(scores: Any) -> None:
    found = family_of(RUN, [MEMBERSHIP])
    assert found.by_themselves is None
    assert found.by_coins is not None
    assert found.by_coins.level == LEVEL
    scores.clear()
    found = family_of(RUN, [RECONSTRUCTED])
    assert found.by_coins is None
    assert found.by_themselves == ByThemselves(level=LEVEL, tests=2)
    assert adjusted(found) == {
        ("server/dlg", None, "identification"): 0.002,
        ("server/dlg", "client/0", "identification"): 0.002,
    }
    assert family_of(RUN, []).adjusted == ()
    scores.clear()
    outside = cell("server/external-x", "membership", figure("auc", 0.01))
    assert adjusted(family_of(RUN, [outside]))["server/external-x", None, "auc"] == 0.02


@pytest.mark.parametrize("more", [{"fooled": True}, {"status": "failed"}])
def test_cells_on_which_no_verdict_rests_are_not_tested(scores: Any, more: dict[str, Any]) -> None:
    scores.clear()
    idle = cell("server/dlg", "reconstruction", figure("identification", 0.001), **more)
    assert family_of(RUN, [idle]).adjusted == ()


def test_verdicts_read_the_family_and_say_what_could_have_been_detected() -> None:
    """The family's p-value alone decides whether the same figures are a leak."""
    raw = load()
    raw["cells"] = [c for c in raw["cells"] if c["id"] == "world/loss-threshold"]
    (only,) = raw["cells"]
    for holder in (only, *only["targets"]):
        holder["figures"] = [f | {"p": 1e-3} for f in holder["figures"] if f["name"] == "auc"]

    def judged(p: float) -> Any:
        rows = [
            {"cell": only["id"], "target": t, "figure": "auc", "p": p, "floor": floor}
            for t, floor in ((None, 0.6212), *((t["target"], 0.7001) for t in only["targets"]))
        ]
        result = read(raw | {"family": {"level": 0.05, "adjusted": rows}})
        assert isinstance(result.family, Family)
        return judge_all(result)[0]

    shown = public(read(raw | {"family": {"level": 0.05, "adjusted": []}}))
    assert shown.family is None  # p-values follow from coins
    assert judged(0.049).level in ("leak", "partial")
    assert "(limit 0.05)" in judged(0.049).because
    quiet = judged(0.051)
    assert quiet.level == "possible"
    assert "p = 0.051" in quiet.because
    assert re.findall(r"0\.\d+", quiet.cautions[0]) == ["0.63", "0.71"]  # of all victims, and of one alone
