"""Checks of a claimed ε in whole runs: in the result, on the page, in the exit code."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.run.summary import summarise

import fdaudit
from fdaudit.accounting.ledger import Ledger
from fdaudit.errors import IntegrityError
from fdaudit.metrics import gdp_epsilon
from fdaudit.result import Evidence
from fdaudit.scoring.claims import check_claims, judge
from fdaudit.scoring.scoring import kept_scores
from fdaudit.testing.specs import small_spec

from ..helpers.command import Cli
from ..helpers.report_cases import Document
from ..helpers.results import cell_of
from ..helpers.run_cases import tree
from .check_cases import audited, without_noise

# -- the verdict ----------------------------------------------------------------------------------------------------


def ledger(epsilon: float = 2.0, **changes: Any) -> Ledger:
    stated = {
        "view": "server",
        "delta": 1e-5,
        "unit": "record",
        "relation": "add-or-remove",
        "victim": "client/0",
    }
    return Ledger(**{**stated, "epsilon": epsilon, **changes})


def shown(bound: float, power: float = 3.0, **more: float) -> Evidence:
    return Evidence(
        attack="a", on="canaries", design="coin-flips", coins=500, bound=bound, power=power, **more
    )


def test_bounds_contradict_claims_above_them_alone() -> None:
    assert judge(ledger(2.0), [shown(0.1), shown(2.01)], 0.95).verdict == "contradicted"
    found = judge(ledger(2.0), [shown(1.99), shown(0.0)], 0.95)
    assert (found.verdict, found.bound, found.power) == ("consistent", 1.99, 3.0)
    nothing = judge(ledger(float("inf")), [shown(3.0)], 0.95)
    assert (nothing.verdict, nothing.claimed) == ("nothing-claimed", None)
    assert judge(ledger(2.0, unit="client"), [shown(3.0)], 0.95).verdict == "contradicted"
    assert judge(ledger(2.0, victim=""), [shown(3.0)], 0.95).verdict == "not-checked"


def test_a_claim_that_no_attack_could_contradict_is_inconclusive_and_says_what_would_be_needed() -> None:
    found = judge(ledger(8.0, delta=1e-9), [shown(2.9)], 0.95)
    assert found.verdict == "inconclusive"
    assert found.needed == pytest.approx(8932, abs=30)
    assert f"{found.needed:,} perfect guesses" in found.reason
    assert "at most 3" in found.reason
    beyond = judge(ledger(8.0, delta=0.01), [shown(2.9)], 0.95)
    assert (beyond.needed, beyond.verdict) == (None, "inconclusive")
    assert "no number" in beyond.reason
    assert judge(ledger(8.0), [], 0.95).verdict == "inconclusive"


def test_a_claim_of_mu_falls_by_the_test_of_gaussian_dp_and_a_claim_of_epsilon_alone_does_not() -> None:
    seen = shown(1.0, mu=0.9, mu_power=1.5, gaussian=3.9)
    found = judge(ledger(2.0, gdp=0.5), [seen], 0.95)
    assert (found.verdict, found.mu, found.gdp) == ("contradicted", 0.9, 0.5)
    assert "the 0.5 claimed" in found.reason
    assert found.gaussian == pytest.approx(gdp_epsilon(0.9, 1e-5))
    assert judge(ledger(2.0), [seen], 0.95).verdict == "consistent"
    assert judge(ledger(2.0, gdp=0.9), [seen], 0.95).verdict == "consistent"


def test_a_claim_that_one_of_the_two_tests_could_have_contradicted_is_no_longer_inconclusive() -> None:
    enough = shown(1.0, mu=0.2, mu_power=1.2)
    assert judge(ledger(4.0, gdp=1.0), [shown(1.0, mu=0.2, mu_power=1.0)], 0.95).verdict == "inconclusive"
    found = judge(ledger(4.0, gdp=1.0), [enough], 0.95)
    assert found.verdict == "consistent"
    assert "up to 1.2" in found.reason
    assert judge(ledger(4.0), [enough], 0.95).verdict == "inconclusive"


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    with without_noise():
        return fdaudit.run(audited(3.5), tmp_path_factory.mktemp("broken") / "run")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return fdaudit.run(audited(3.5), tmp_path_factory.mktemp("honest") / "run")


def check(run: fdaudit.Run, view: str = "server") -> dict[str, Any]:
    (found,) = [c for c in run.result.plain()["checks"] if c["adversary"] == view]
    return dict(found)


def on(found: dict[str, Any], part: str) -> dict[str, Any]:
    (evidence,) = [e for e in found["evidence"] if e["on"] == part]
    return dict(evidence)


@pytest.mark.thorough
def test_noise_that_was_forgotten_is_found_out(broken: fdaudit.Run) -> None:
    found = check(broken)
    assert found["claimed"] == pytest.approx(broken.ledger("server").epsilon)
    assert 1.5 < found["claimed"] < 2.5
    assert found["verdict"] == "contradicted"
    assert found["bound"] > found["claimed"]
    assert found["confidence"] == pytest.approx(0.9875)  # one attack on pairs and on canaries, two tests
    assert on(found, "canaries")["coins"] == 500
    assert on(found, "candidates")["design"] == "matched-pairs"
    assert on(found, "candidates")["power"] < found["claimed"]


@pytest.mark.thorough
def test_with_its_noise_the_claim_stands(honest: fdaudit.Run) -> None:
    found = check(honest)
    assert found["verdict"] == "consistent"
    assert found["bound"] <= found["claimed"] < found["power"]
    assert check(honest, "world")["verdict"] == "inconclusive"  # nobody attacked it


def test_scores_lie_in_the_vault_and_nowhere_else(broken: fdaudit.Run) -> None:
    run = broken.directory
    assert kept_scores(run, "server/loss-threshold", "canaries")["client/0"].shape == (500,)
    assert kept_scores(run, "server/loss-threshold", "candidates")["client/0"].shape == (20,)
    text = (broken.directory / "result.json").read_text()
    scores = kept_scores(run, "server/loss-threshold", "canaries")["client/0"]
    assert not any(repr(float(s)) in text for s in scores)


def test_the_page_says_so(broken: fdaudit.Run, honest: fdaudit.Run, tmp_path: Path) -> None:
    page = fdaudit.report(broken, tmp_path / "broken.html").read_text(encoding="utf-8")
    text = Document(page).sections
    assert "Contradicted" in text["ledger"]
    assert "Attacks contradict" in text["summary"]
    assert "No ε" in text["summary"]
    assert "server: ε of" not in text["summary"]
    assert "is contradicted" in text["findings"]
    assert "Claim no ε" in text["findings"]
    assert "ε is" not in text["findings"].split("is contradicted")[0]
    page = fdaudit.report(honest, tmp_path / "honest.html").read_text(encoding="utf-8")
    text = Document(page).sections
    assert "Consistent" in text["ledger"]
    assert "Contradicted" not in text["ledger"]
    assert "ε of" in text["summary"]
    assert "contradicted it" in text["findings"]


def test_the_reasons_of_a_broken_claim_come_first(broken: fdaudit.Run) -> None:
    result = broken.result
    summary = summarise(result)
    assert summary.reasons[0].text.startswith("The ε of ")
    assert "claimed for" in summary.reasons[0].text
    assert any(a.do.startswith("Claim no ε") for a in summary.actions)


def test_a_contradicted_claim_ends_with_exit_code_1(
    broken: fdaudit.Run, honest: fdaudit.Run, cli: Cli
) -> None:
    code, _, err = cli("run", broken.directory / "spec.yaml", "--out", broken.directory, "--resume")
    assert code == 1
    assert "server is contradicted" in err
    code, _, err = cli("run", honest.directory / "spec.yaml", "--out", honest.directory, "--resume")
    assert code == 0
    assert "contradicted" not in err


def test_a_run_is_the_same_again_scores_and_checks_included(tmp_path: Path) -> None:
    asked = small_spec(
        canaries={"count": 12, "kind": "noise"}, attacks=[{"name": "loss-threshold"}], splits__auxiliary=0.2
    )
    first = fdaudit.run(asked, tmp_path / "a")
    again = fdaudit.run(asked, tmp_path / "b", seed_from=tmp_path / "a")
    assert tree(first.directory) == tree(again.directory)
    assert any("scores" in name for name in tree(first.directory))


def test_an_infinite_epsilon_has_nothing_to_check_and_canaries_are_scored_all_the_same(
    tmp_path: Path,
) -> None:
    asked = small_spec(
        canaries={"count": 12, "kind": "noise"}, attacks=[{"name": "loss-threshold"}], splits__auxiliary=0.2
    )
    run = fdaudit.run(asked, tmp_path / "run")
    assert {c["verdict"] for c in run.result.plain()["checks"]} == {"nothing-claimed"}
    cell = cell_of(run, "loss-threshold")
    assert cell["canaries"] == {"queries": None, "reason": ""}


def test_what_was_asked_about_canaries_is_logged(tmp_path: Path) -> None:
    asked = audited(
        3.5,
        adversaries=["world"],
        canaries={"count": 20, "kind": "noise"},
        protocol={"name": "fedavg", "params": {"rounds": 1, "local_steps": 1}},
    )
    run = fdaudit.run(asked, tmp_path / "run")
    cell = cell_of(run, "loss-threshold")
    assert cell["canaries"]["queries"]["spent"] == 20
    assert (run.directory / "attacks" / "world-loss-threshold-canaries" / "queries.jsonl").is_file()


def test_too_small_a_budget_leaves_canaries_unscored_with_a_reason(tmp_path: Path) -> None:
    asked = audited(
        3.5,
        adversaries=["world"],
        queries=30,
        protocol={"name": "fedavg", "params": {"rounds": 1, "local_steps": 1}},
    )
    run = fdaudit.run(asked, tmp_path / "run")
    cell = cell_of(run, "loss-threshold")
    assert cell["status"] != "failed"
    assert re.findall(r"\d+", cell["canaries"]["reason"]) == ["500", "30"]  # queries needed, and allowed
    assert [e["on"] for e in check(run, "world")["evidence"]] == ["candidates"]


def test_the_level_is_shared_by_what_the_spec_asks_for_and_coins_that_do_not_fit_are_left_out(
    tmp_path: Path,
) -> None:
    """Noise on the updates is stated for records that are replaced: coins of single canaries do not test that."""
    noise = {"kind": "model_update", "name": "gaussian-noise", "params": {"sigma": 4.0, "clip": 1.0}}
    changes: dict[str, Any] = {
        "defenses": [noise],
        "attacks": [{"name": "loss-threshold"}],
        "splits__auxiliary": 0.2,
        "protocol__params__weighting": "uniform",
    }
    coins = fdaudit.run(small_spec(**changes, canaries={"count": 12, "kind": "noise"}), tmp_path / "coins")
    found = check(coins)
    assert found["relation"] == "replace-one"
    assert [e["on"] for e in found["evidence"]] == ["candidates"]
    assert found["confidence"] == pytest.approx(0.975)
    paired = {"count": 6, "kind": "noise", "design": "matched-pairs"}
    pairs = fdaudit.run(small_spec(**changes, canaries=paired), tmp_path / "pairs")
    found = check(pairs)
    assert {(e["on"], e["coins"]) for e in found["evidence"]} == {("candidates", 4), ("canaries", 6)}
    assert found["confidence"] == pytest.approx(0.9875)


def test_an_attack_that_by_declaration_never_gets_what_it_needs_takes_no_part_of_the_level(
    tmp_path: Path,
) -> None:
    """FedAvg sends no class means and no generator; the attacks on them weaken no other."""
    changes: dict[str, Any] = {
        "defenses": [
            {"kind": "model_update", "name": "gaussian-noise", "params": {"sigma": 4.0, "clip": 1.0}}
        ],
        "splits__auxiliary": 0.2,
        "protocol__params__weighting": "uniform",
    }
    names = ("loss-threshold", "prototype-regression", "generator-leakage")
    run = fdaudit.run(small_spec(**changes, attacks=[{"name": name} for name in names]), tmp_path / "run")
    found = check(run)
    assert [e["attack"] for e in found["evidence"]] == ["loss-threshold"]
    assert found["confidence"] == pytest.approx(0.975)


def test_a_run_whose_scores_are_gone_or_another_outcome_s_is_refused(
    honest: fdaudit.Run, tmp_path: Path
) -> None:
    """Left out in silence, they would take what contradicts a claim with them."""
    copied = Path(shutil.copytree(honest.directory, tmp_path / "run"))
    run, ledger = fdaudit.load(copied).opened, honest.ledger("server")
    (path,) = (copied / "vault" / "scores" / "server-loss-threshold").iterdir()
    assert check_claims(run, [ledger])[0].evidence
    outcome = copied / "attacks" / "server-loss-threshold.json"
    outcome.write_text(outcome.read_text().replace('"source": "', '"source": "x', 1))
    with pytest.raises(IntegrityError, match="server/loss-threshold"):
        check_claims(run, [ledger])
    shutil.copy(honest.directory / "attacks" / outcome.name, outcome)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"vault .* server/loss-threshold"):
        check_claims(run, [ledger])
    fdaudit.attack("loss-threshold", fdaudit.load(copied), "server")
    (found,) = check_claims(run, [ledger])
    assert found.evidence == check_claims(replace(run, path=honest.directory), [ledger])[0].evidence
