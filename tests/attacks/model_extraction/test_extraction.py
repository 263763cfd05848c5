"""Model extraction in whole runs: copies from recorded answers, from oracles, and where there is nothing to copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.model_extraction.surrogate import ExtractionHard, ExtractionSoft
from fdaudit.reports.goals import RULES
from fdaudit.reports.goals.rule import RuleInput
from fdaudit.reports.judgement.verdict import judge_all

import fdaudit
from fdaudit.audit.red_team import export_view, score
from fdaudit.errors import UsageError
from fdaudit.evaluation.stage import Stage
from fdaudit.goals.model_extraction import Extraction
from fdaudit.isolation.frames import MalformedError, Tensors
from fdaudit.isolation.schema import guesses_of, packed_guesses
from fdaudit.scoring.goals.model_extraction import CopyScorer, check_copy
from fdaudit.scoring.goals.scorer import ScoringInputs
from fdaudit.storage.files import encode
from fdaudit.storage.vault import Vault
from fdaudit.testing.specs import small_spec
from fdaudit.training.trainer import parameters_of
from fdaudit.types import AttackTask, Figure

from ...helpers.results import cell_of, figures_of

SOFT, HARD = {"name": "extraction-soft"}, {"name": "extraction-hard"}


def distilled(directory: Path, **changes: Any) -> fdaudit.Run:
    """FedKD whose aggregator receives two clients' logits on public samples."""
    asked = {
        "dataset__limit": 600,
        "splits": {"test": 0.3, "proxy": 0.3, "auxiliary": 0.1, "candidates": 4},
        "model__params__widths": [16],
        "protocol": {
            "name": "fedkd",
            "params": {
                "local_epochs": 20,
                "distill_rounds": 1,
                "distill_steps": 20,
                "lr": 0.1,
                "gamma": None,
            },
        },
        "adversaries": ["aggregator", "client/0"],
        "attacks": [SOFT, HARD],
        **changes,
    }
    return fdaudit.run(small_spec(**asked), directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return distilled(tmp_path_factory.mktemp("extraction") / "run")


def figures(target: dict[str, Any]) -> dict[str, Any]:
    return figures_of(target)


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_answers_on_public_samples_give_a_copy_that_agrees_with_the_victims_model(run: fdaudit.Run) -> None:
    found = cell_of(run, "aggregator/extraction-soft")
    assert (found["status"], found["reason"]) == ("run", "")
    assert found["goal"] == "model-extraction"
    (target,) = found["targets"]
    shown = figures(target)
    assert target["target"] == "client/0"
    assert shown["agreement"]["value"] > 0.75
    assert shown["agreement_gain"]["p"] < 0.001
    assert shown["agreement"]["value"] > shown["agreement_baseline"]["value"]


def test_both_controls_pass_and_the_negative_one_gains_nothing(run: fdaudit.Run) -> None:
    controls = cell_of(run, "aggregator/extraction-soft")["controls"]
    assert controls["positive"]["passed"]
    assert controls["negative"]["passed"]
    assert figures(controls["positive"])["agreement_gain"]["value"] > 0.3
    assert figures(controls["negative"])["agreement_gain"]["value"] <= 0.1


def test_what_an_adversary_cannot_hear_it_cannot_copy(run: fdaudit.Run) -> None:
    assert "no hard_labels" in cell_of(run, "aggregator/extraction-hard")["reason"]
    assert "logits or soft_labels" in cell_of(run, "client/0/extraction-soft")["reason"]


def test_the_report_calls_it_a_leak(run: fdaudit.Run) -> None:
    (finding,) = [f for f in judge_all(run.result) if f.cell.id == "aggregator/extraction-soft"]
    assert finding.level in ("leak", "partial")
    assert "above the baseline" in finding.measured
    page = fdaudit.report(run, run.directory.parent / "page.html").read_text(encoding="utf-8")
    assert "copy a model" in page
    assert "model extraction" not in str(run.result.plain()["out_of_scope"])


def test_where_the_models_are_in_view_there_is_nothing_to_copy(tmp_path: Path) -> None:
    run = fdaudit.run(small_spec(attacks=[SOFT, HARD], adversaries=["server", "world"]), tmp_path / "run")
    reasons = {c["id"]: c["reason"] for c in run.result.plain()["cells"] if c["goal"] == "model-extraction"}
    assert "models themselves" in reasons["server/extraction-soft"]
    assert "in view itself" in reasons["world/extraction-hard"]
    assert all(c["status"] != "failed" for c in run.result.plain()["cells"])


@pytest.mark.thorough
@pytest.mark.parametrize(("attack", "labels"), [(SOFT, "soft"), (HARD, "hard")], ids=["soft", "hard"])
def test_clients_that_a_server_may_ask_are_copied_by_asking(
    tmp_path: Path, attack: dict[str, str], labels: str
) -> None:
    run = distilled(
        tmp_path / "run",
        protocol={"name": "selective-fd", "params": {"rounds": 10, "labels": labels}},
        adversaries=["server"],
        attacks=[{**attack, "params": {"steps": 800}}],
    )
    found = cell_of(run, f"server/{attack['name']}")
    assert found["status"] == "run", found["reason"]
    (target,) = found["targets"]
    assert target["target"] == "client/0"
    assert found["queries"]["spent"] > 100
    assert figures(target)["agreement"]["value"] > 0.7


# -- the attack alone -----------------------------------------------------------------------------------------------


def scorer_of(run: fdaudit.Run) -> CopyScorer:
    inputs = ScoringInputs(
        truth=run.opened.truth, run=run.directory, answering=run.opened.answering, encode=None
    )
    return CopyScorer(inputs)


def test_every_answer_over_time_is_used_and_the_same_seed_gives_the_same_copy(run: fdaudit.Run) -> None:
    stage = Stage(run.opened)
    attack = ExtractionSoft(ExtractionSoft.Config(steps=30))
    with stage.adversary("aggregator") as adversary:
        task, knowledge = AttackTask(targets=("client/0", "client/1")), stage.knowledge(adversary)
        made = [
            attack.run(adversary.view, knowledge, task, torch.Generator().manual_seed(3)) for _ in range(2)
        ]
    assert [g.target for g in made[0]] == ["client/0", "client/1"]
    assert [g.answers for g in made[0]] == [len(run.case.public)] * 2
    for one, two in zip(*made, strict=True):
        assert all(torch.equal(one.parameters[n], two.parameters[n]) for n in one.parameters)
    alone = scorer_of(run).score("x", made[0])[1]
    assert [t.target for t in alone] == ["client/0", "client/1"]


def test_nothing_is_copied_without_an_architecture(run: fdaudit.Run) -> None:
    from dataclasses import replace

    stage = Stage(run.opened)
    with stage.adversary("aggregator") as adversary:
        bare = replace(stage.knowledge(adversary), architecture=None)
        why = ExtractionHard(ExtractionHard.Config()).applicable(adversary.view, bare, AttackTask(targets=()))
    assert not why
    assert "architecture" in why.reason


# -- what crosses ---------------------------------------------------------------------------------------------------


def copy_of(run: fdaudit.Run, **changes: Any) -> Extraction:
    made = parameters_of(run.case.architecture.build(torch.Generator().manual_seed(0)))
    return Extraction(target="client/0", parameters={**made, **changes}, answers=5)


def test_a_copy_crosses_as_typed_bytes(run: fdaudit.Run) -> None:
    guess, tensors = copy_of(run), Tensors()
    (back,) = guesses_of(packed_guesses([guess], tensors), tensors.named, 1)
    assert isinstance(back, Extraction)
    assert (back.target, back.answers) == ("client/0", 5)
    assert all(torch.equal(back.parameters[n], t) for n, t in guess.parameters.items())


@pytest.mark.parametrize(
    "changes",
    [{"parameters": [1]}, {"answers": "5"}, {"answers": True}, {"target": 3}, {"parameters": {"a": "no"}}],
)
def test_a_malformed_copy_is_refused(run: fdaudit.Run, changes: dict[str, Any]) -> None:
    tensors = Tensors()
    (packed,) = packed_guesses([copy_of(run)], tensors)
    with pytest.raises(MalformedError):
        guesses_of([{**packed, **changes}], tensors.named, 1)


def test_a_copy_that_is_no_set_of_weights_is_refused(run: fdaudit.Run) -> None:
    network = parameters_of(run.case.architecture.build(torch.Generator()))
    name = next(iter(network))
    check_copy(copy_of(run), network)
    for bad in (
        {"another": torch.zeros(1)},
        {name: torch.zeros(3)},
        {name: torch.full_like(network[name], float("nan"))},
    ):
        with pytest.raises(ValueError, match=r"client/0"):
            check_copy(copy_of(run, **bad), network)
    twice = [copy_of(run), copy_of(run)]
    with pytest.raises(ValueError, match="one copy"):
        scorer_of(run).score("x", twice)


# -- from outside ---------------------------------------------------------------------------------------------------


def handed_back(run: fdaudit.Run, folder: Path, **changes: Any) -> Path:
    """A file of guesses that hands the victim's own model back."""
    weights = Vault(run.directory / "vault").load("models/client-0")
    (folder / "copy.safetensors").write_bytes(encode(weights))
    card = json.loads((folder / "handout" / "card.json").read_text())
    made = {
        "schema": "fdaudit-guesses/1",
        "name": "the-model-itself",
        "adversary": "aggregator",
        "view": card["view_sha256"],
        "model_extraction": [{"target": "client/0", "parameters": "copy.safetensors"}],
        **changes,
    }
    (folder / "guesses.json").write_text(json.dumps(made))
    return folder / "guesses.json"


def test_a_copy_from_outside_is_scored_by_the_same_rules(run: fdaudit.Run, tmp_path: Path) -> None:
    copied = fdaudit.load(Path(shutil.copytree(run.directory, tmp_path / "run")))
    export_view(copied, "aggregator", tmp_path / "handout")
    made = score(copied, handed_back(copied, tmp_path))
    assert (made.goal, made.status) == ("model-extraction", "run")
    assert made.targets[0].figures[0].value == 1.0
    with pytest.raises(UsageError, match="no file beside"):
        score(
            copied,
            handed_back(
                copied, tmp_path, model_extraction=[{"target": "client/0", "parameters": "a.safetensors"}]
            ),
        )
    (tmp_path / "wrong.safetensors").write_bytes(encode({"a": torch.zeros(2)}))
    wrong = [{"target": "client/0", "parameters": "wrong.safetensors"}]
    with pytest.raises(UsageError, match="differ in"):
        score(copied, handed_back(copied, tmp_path, model_extraction=wrong))


def test_no_copy_is_scored_once_candidates_are_out(run: fdaudit.Run, tmp_path: Path) -> None:
    """A copy could be trained on candidates, half of which trained the model."""
    copied = fdaudit.load(Path(shutil.copytree(run.directory, tmp_path / "run")))
    export_view(copied, "aggregator", tmp_path / "handout", challenges=True)
    for target in ("client/0", "server"):
        spoilt = [{"target": target, "parameters": "copy.safetensors"}]
        with pytest.raises(UsageError, match="handed out"):
            score(copied, handed_back(copied, tmp_path, model_extraction=spoilt))


# -- the rule -------------------------------------------------------------------------------------------------------


def shown(gain: float, p: float | None, agreement: float) -> RuleInput:
    return RuleInput(
        who="client/0",
        figures=[
            Figure(name="agreement", value=agreement),
            Figure(name="agreement_gain", value=gain, low=gain - 0.1, high=gain + 0.1, p=p),
        ],
    )


def test_the_rule_wants_a_gain_that_chance_does_not_explain() -> None:
    rule = RULES["model-extraction"]
    assert rule.signal(shown(0.2, 1e-4, 0.95))
    assert rule.strong(shown(0.2, 1e-4, 0.95))
    assert not rule.strong(shown(0.2, 1e-4, 0.89))
    assert not rule.signal(shown(0.2, 0.06, 0.95))
    assert not rule.signal(shown(0.2, None, 0.95))
    assert not rule.signal(shown(-0.2, 1e-9, 0.95))
