"""Class-level guesses in a run: scored against the victim's own records, with pictures, controls and reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fdaudit.attacks.model_inversion.priors import centres

from fdaudit.adversary.view import View
from fdaudit.audit.run import Run
from fdaudit.evaluation import controls as tried
from fdaudit.evaluation.controls import classes
from fdaudit.evaluation.stage import Stage
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.planning.simulated import simulated_case
from fdaudit.registry import loaded
from fdaudit.scoring.goals.scorer import CheckedTask
from fdaudit.scoring.guesses import check_guesses
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ...helpers.doubles import in_a_thread
from ...helpers.results import cell_of, figures_of
from ...helpers.run_cases import finished, known

pytestmark = pytest.mark.thorough

SMALL = {
    "queries": 60,
    "least_queries": 50,
    "rounds": 2,
    "generator_steps": 1,
    "surrogate_steps": 2,
    "width": 8,
    "batch": 8,
    "restarts": 1,
    "iterations": 2,
    "copies": 1,
}
CHANGES = {
    "partition": {"name": "by-class", "classes_per_client": 5},
    "adversaries": ["server", "world"],
    "attacks": [{"name": "ideal-hard", "params": SMALL}, {"name": "paired-logits"}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(finished(tmp_path_factory.mktemp("inversion") / "run", **CHANGES))


@pytest.mark.thorough
def test_classes_are_scored_against_the_victims_records_and_pictured(run: Run) -> None:
    found = cell_of(run, "world/ideal-hard")
    assert found["status"] in ("run", "inconclusive")  # two steps teach no surrogate
    figures = figures_of(found)
    assert figures["psnr_gain"]["value"] == pytest.approx(
        figures["psnr"]["value"] - figures["psnr_prior"]["value"], abs=1e-9
    )
    assert "class-level" in figures["psnr"]["note"]
    assert "guesses of classes" in figures["psnr"]["note"]
    assert figures["psnr"]["n"] == 5
    assert found["queries"]["spent"] == 120  # by two adversaries, who lack half of the classes each
    (target,) = found["targets"]
    assert target["messages"] == []
    assert len(target["images"]) == 5
    shown = [i["psnr"] for i in target["images"]]
    assert shown == sorted(shown, reverse=True)
    for image in target["images"]:
        assert image["true_label"] == image["guessed_label"]
        for kind in ("truth", "guess", "prior"):
            assert (run.directory / image[kind]).is_file()
    assert len({i["guess"] for i in target["images"]}) == 5


def test_what_does_not_apply_has_its_reason(run: Run) -> None:
    found = cell_of(run, "world/paired-logits")
    assert found["status"] == "not-applicable"
    assert "public samples" in found["reason"]


def test_a_server_with_parameters_in_view_needs_no_oracle(run: Run) -> None:
    assert cell_of(run, "server/ideal-hard")["queries"] is None
    assert {f["name"] for f in cell_of(run, "server/ideal-hard")["figures"]} >= {"psnr_gain", "ssim", "fid"}


def test_a_record_itself_has_the_ceilings_psnr(
    run: Run,
) -> None:
    stage = Stage(RunDirectory(run.directory, simulated_case(load_spec(small_spec(**CHANGES)), known(7))))
    x, y = stage.case.records("client/0")
    guess = Reconstruction(target="client/0", messages=(), images=x[:3], labels=y[:3])
    score = stage.run.scorer.of(guess).compared([guess])
    assert score.figures["psnr"].value == 100
    assert [r.truth for r in score.images] == [0, 1, 2]
    prior = stage.run.scorer.of(guess).prior_images(guess, score)
    assert prior.shape == x[:3].shape


def blind(view, knowledge, task, generator):
    """The prior itself: what is expected of a class before the model is looked at."""
    shown = centres(knowledge.auxiliary, knowledge.classes, (1, 8, 8))
    labels = torch.arange(knowledge.classes)
    return tuple(Reconstruction(target=t, messages=(), images=shown, labels=labels) for t in task.targets)


@pytest.mark.thorough
def test_the_positive_control_fails_for_an_attack_that_looks_at_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = simulated_case(
        load_spec(small_spec(**{**CHANGES, "dataset__limit": 300, "splits__auxiliary": 0.2})), known(7)
    )
    attack = next(a for a in case.attacks if a.name == "ideal-hard")
    monkeypatch.setattr(loaded(attack.target), "run", lambda self, *given: blind(*given))
    monkeypatch.setattr(classes, "_STEPS", 5)
    with in_a_thread():
        found = tried.controls(attack, case)
    assert not found["positive"].passed
    assert found["negative"].passed
    figures = {f.name: f for f in found["positive"].figures}
    assert abs(figures["psnr_gain"].value) < 0.5
    assert figures["evaluator_accuracy"].p > 0.05


@pytest.mark.parametrize(
    ("labels", "messages", "says"),
    [
        (torch.arange(3), (), "one class for each of 2 images"),
        (None, (), "names messages of"),
    ],
)
def test_guesses_that_cannot_be_scored_are_refused(run: Run, labels, messages, says: str) -> None:
    guess = Reconstruction(
        target="client/0", messages=messages, images=torch.zeros(2, 1, 8, 8), labels=labels
    )
    with pytest.raises(ValueError, match=says):
        check_guesses([guess], asked(run.view("server")))


def asked(view: View) -> CheckedTask:
    return CheckedTask(victims=["client/0"], candidates={}, view=view, classes=10)


def test_guesses_of_classes_and_of_messages_do_not_mix(run: Run) -> None:
    view = run.view("server")
    own = next(m.seq for m in view.messages if m.sender == "client/0")
    images = torch.zeros(1, 1, 8, 8)
    by_class = Reconstruction(target="client/0", messages=(), images=images, labels=torch.tensor([0]))
    by_message = Reconstruction(target="client/0", messages=(own,), images=images)
    check_guesses([by_class], asked(view))
    check_guesses([by_message], asked(view))
    for pair in ([by_class, by_message], [by_message, by_class]):
        with pytest.raises(ValueError, match="and of classes"):
            check_guesses(pair, asked(view))
    assert isinstance(run.directory, Path)
