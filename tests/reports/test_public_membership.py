"""That no public output tells who was a member, not even the author of every score that was judged."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fdaudit.reports.run.security import public_outcomes, render_report, report_json

from fdaudit.audit.published import PUBLISHED, publish_once
from fdaudit.errors import RunError
from fdaudit.metrics import score_membership
from fdaudit.metrics.membership import MembershipScore
from fdaudit.result import read

from ..helpers.public_attacker import by_curve, by_regression, drawn, listed, marked, numbers_of
from ..helpers.report_cases import FIXTURES, load
from ..helpers.results import figures_of

pytestmark = pytest.mark.usefixtures("forked_processes")

PAIRS, VICTIMS, QUESTIONS = 40, 2, 90


class Case(NamedTuple):
    """A result whose attacks' author asks for coins.

    `first` (coins,) says whether the first candidate of each pair is the member; `owned` are the scores of the attack
    with curves, by victim; `questions` (attacks, coins) how much sooner the others rank the first candidate.
    """

    raw: dict[str, Any]
    first: Any
    owned: dict[str, Any]
    questions: Any


def scored(scores: Any, first: Any, seed: int) -> MembershipScore:
    """Scores (2 n,), those of the first candidates before those of the second ones, against the coins (n,)."""
    member = np.concatenate([first, ~first])
    pair = np.tile(np.arange(len(first)), 2)
    return score_membership(scores, member, pair=pair, generator=np.random.default_rng(seed), fprs=(0.1,))


def plain(score: MembershipScore) -> list[dict[str, Any]]:
    return [vars(f) | {} for f in score.figures.values()]


def case(seed: int) -> Case:
    """An audit by one author: an attack with a curve a victim, and many others of random scores."""
    rng = np.random.default_rng(seed)
    coins = PAIRS * VICTIMS
    first = rng.random(coins) < 0.5
    raw = load()
    template = next(c for c in raw["cells"] if c["id"] == "world/loss-threshold")
    own = rng.permutation(2 * coins).astype(float)
    raw["cells"] = [cell_of(template, "owned", own, first, seed, curves=True)]
    asked = rng.random((QUESTIONS, 2 * coins))
    for i, scores in enumerate(asked):
        raw["cells"].append(cell_of(template, f"question-{i}", scores, first, seed))
    owned = {f"client/{k}": own.reshape(2, VICTIMS, PAIRS)[:, k].reshape(-1) for k in range(VICTIMS)}
    ranks = asked.argsort(1).argsort(1)
    return Case(raw, first, owned, ranks[:, :coins] - ranks[:, coins:].astype(float))


def cell_of(
    template: Any, name: str, scores: Any, first: Any, seed: int, *, curves: bool = False
) -> dict[str, Any]:
    cell: dict[str, Any] = copy.deepcopy(template)
    cell |= {"id": f"world/{name}", "attack": name, "figures": plain(scored(scores, first, seed))}
    cell["targets"] = []
    for k in range(VICTIMS):
        part = slice(k * PAIRS, (k + 1) * PAIRS)
        one = scored(scores.reshape(2, -1)[:, part].reshape(-1), first[part], seed)
        roc = {"fpr": one.roc.fpr.tolist(), "tpr": one.roc.tpr.tolist()} if curves else None
        target = {"target": f"client/{k}", "roc": roc, "figures": plain(one)}
        cell["targets"].append(target)
    return cell


def outputs(raw: dict[str, Any], *, public: bool) -> tuple[str, Any]:
    """The page and the document of a report."""
    timings = {"world/owned": 1.5}
    return (
        render_report(read(raw), FIXTURES, timings, public=public),
        json.loads(report_json(read(raw), timings, public=public)),
    )


def right_by_curves(made: Case, corners: list[Any]) -> float:
    """The share of coins that curves tell; where no curve fits, each is a guess."""
    right = []
    for k, scores in enumerate(made.owned.values()):
        truth = made.first[k * PAIRS : (k + 1) * PAIRS]
        found = [m for c in corners if (m := by_curve(c, scores)) is not None]
        shares = [float((m[:PAIRS] == truth).mean()) for m in found]
        right.append(max(shares, default=0.5))
    return sum(right) / VICTIMS


def right_by_numbers(made: Case, answers: list[dict[str, float]]) -> float:
    said = by_regression(answers, made.questions)
    return float(np.where(said == 0, 0.5, (said > 0) == made.first).mean())


@pytest.fixture(scope="module")
def made() -> Case:
    return case(1)


def told(made: Case, *, public: bool) -> dict[str, float]:
    """The share of coins that each way to read a report recovers."""
    page, document = outputs(made.raw, public=public)
    names = [f"question-{i}" for i in range(QUESTIONS)]
    return {
        "curves in the JSON": right_by_curves(made, list(listed(document, PAIRS))),
        "curves drawn on the page": right_by_curves(made, list(drawn(page, PAIRS))),
        "numbers in the JSON": right_by_numbers(made, [numbers_of(document, f"world/{n}") for n in names]),
        "numbers on the page": right_by_numbers(made, [marked(page, n) for n in names]),
    }


@pytest.mark.thorough
def test_the_auditors_report_tells_every_coin_in_each_way(made: Case) -> None:
    recovered = told(made, public=False)
    assert recovered == dict.fromkeys(recovered, 1.0)


def test_the_public_report_tells_no_coin(made: Case) -> None:
    recovered = told(made, public=True)
    assert recovered == dict.fromkeys(recovered, 0.5)


def leaking(raw: dict[str, Any], value: float) -> dict[str, Any]:
    """The fixture's result with another figure of its attack on membership, as other guesses would have it."""
    changed = copy.deepcopy(raw)
    cell = next(c for c in changed["cells"] if c["id"] == "world/loss-threshold")
    auc = figures_of(cell)["auc"]
    auc["value"] = value
    auc["low"], auc["p"] = 0.6, 1e-9
    return changed


def test_one_candidate_more_or_less_does_not_show_in_a_public_figure() -> None:
    """80 coins: one that falls otherwise moves an AUC by 1/40 at most."""
    pages = [outputs(leaking(load(), 0.6 + v), public=True) for v in (0.0, 1 / 6400, 1 / 80, -1 / 40)]
    assert [page == pages[0] for page in pages] == [True] * 4
    whole = [outputs(leaking(load(), 0.6 + v), public=False) for v in (0.0, 1 / 6400)]
    assert whole[0] != whole[1]


def test_a_public_figure_of_few_candidates_is_withheld() -> None:
    raw = leaking(load(), 0.6)
    for cell in raw["cells"]:
        for figure in cell["figures"]:
            figure["n"] = 79
    _, document = outputs(raw, public=True)
    figures = [f for c in document["result"]["cells"] if c["goal"] == "membership" for f in c["figures"]]
    assert [(f["name"], f["value"]) for f in figures] == [("auc", None)]


def test_many_guesses_from_outside_have_one_public_outcome() -> None:
    raw = load()
    template = next(c for c in raw["cells"] if c["id"] == "world/gap")
    before = {f["cell"] for f in outputs(raw, public=True)[1]["findings"]}
    for i in range(30):
        name = f"external-{i}"
        raw["cells"].append({**template, "id": f"world/{name}", "attack": name, "params": {"submission": i}})
    page, document = outputs(raw, public=True)
    assert {f["cell"] for f in document["findings"]} - before == {"world/external-guesses-membership"}
    assert len(document["findings"]) == len(before) + 1
    for text in (page, json.dumps(document)):
        assert "external-7" not in text
        assert "submission" not in text


def test_a_second_public_page_with_other_outcomes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    first, second = (public_outcomes(read(leaking(load(), auc))) for auc in (0.6, 0.8))
    assert first != second
    publish_once(tmp_path, first)
    publish_once(tmp_path, first)
    with pytest.raises(RunError, match="with other outcomes"):
        publish_once(tmp_path, second)
    (tmp_path / "vault" / PUBLISHED).unlink()
    publish_once(tmp_path, second)
