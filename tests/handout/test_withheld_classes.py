"""Withheld classes in a run: what an attack is given, what its figures say, and in which setting its controls are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fdaudit.attacks.model_inversion.priors import centres

from fdaudit.audit.run import Run
from fdaudit.evaluation import controls as tried
from fdaudit.evaluation.stage import Stage
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import assumptions
from fdaudit.planning.simulated import simulated_case
from fdaudit.registry import loaded
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.doubles import in_a_thread
from ..helpers.run_cases import finished, known

CHANGES = {
    "dataset__limit": 400,
    "partition": {"name": "by-class", "classes_per_client": 5},
    "splits": {"test": 0.3, "proxy": 0.1, "auxiliary": 0.2, "candidates": 4},
    "adversaries": ["server", "client/1"],
    "attacks": [{"name": "ideal-hard"}],
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A finished run that was not attacked yet."""
    run = Run(finished(tmp_path_factory.mktemp("withheld") / "run", **{**CHANGES, "attacks": []}))
    return Stage(RunDirectory(run.directory, simulated_case(load_spec(small_spec(**CHANGES)), known(7))))


def attack_of(stage: Stage):
    return next(a for a in stage.case.attacks if a.name == "ideal-hard")


def shown(targets, images) -> tuple[Reconstruction, ...]:
    labels = torch.arange(len(images))
    return tuple(Reconstruction(target=t, messages=(), images=images, labels=labels) for t in targets)


def class_means(stage: Stage) -> torch.Tensor:
    x, y = stage.case.dataset.x, stage.case.dataset.y
    return torch.stack([x[y == c].mean(0) for c in range(10)])


@pytest.mark.thorough
@pytest.mark.parametrize("adversary", ["server", "client/1"])
def test_an_attack_is_given_no_image_of_the_classes_that_it_lacks(
    stage: Stage, adversary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(self, view, knowledge, task, generator):
        seen.append((view, knowledge))
        return shown(task.targets, centres(knowledge.auxiliary, 10, (1, 8, 8)))

    monkeypatch.setattr(loaded(attack_of(stage).target), "run", run)
    monkeypatch.setattr("fdaudit.evaluation.stage.kept_controls", lambda *_: {})
    with in_a_thread(), stage.adversary(adversary) as given:
        cell = stage.cell(given, attack_of(stage))
        assert bool(given.view.own_data) == (adversary == "client/1")
    assert cell.status == "run", cell.reason
    assert len(seen) == 2
    lacked = [one.lacks for one in assumptions(stage.case, attack_of(stage).card)]
    for (view, knowledge), lacks in zip(seen, lacked, strict=True):
        assert not set(knowledge.auxiliary[1].tolist()) & set(lacks)
        assert torch.equal(knowledge.encode.auxiliary[1], knowledge.auxiliary[1])
        assert view.own_data == {}
        assert knowledge.public is None
        assert knowledge.rehearse is None
    # An attack that looks at nothing is not flagged.
    figures = {f.name: f for f in cell.figures}
    assert figures["evaluator_accuracy"].p > 0.05
    assert figures["psnr_gain"].value < 0.5


@pytest.mark.thorough
def test_an_attack_that_shows_the_classes_is_recognised(stage: Stage) -> None:
    assumed = assumptions(stage.case, attack_of(stage).card)
    figures, targets = stage.run.scorer.score(
        "server/test", shown(["client/0", "client/1"], class_means(stage)), assumed
    )
    found = {f.name: f for f in figures}
    assert found["evaluator_accuracy"].value > 0.8
    assert found["evaluator_accuracy"].p < 0.001
    assert found["evaluator_prior"].value <= 0.3
    assert found["psnr_gain"].low > 1
    assert found["labelled_frechet"].value < found["labelled_frechet_prior"].value
    own = {f.name: f for f in targets[0].figures}
    assert own["evaluator_accuracy"].p is None  # one test a cell
    assert "labelled_frechet" not in own


def test_the_same_pictures_are_nothing_new_to_who_holds_the_classes(stage: Stage) -> None:
    (same,) = assumptions(
        replace(stage.case, spec=load_spec(small_spec(auxiliary__inversion="same"))), attack_of(stage).card
    )
    figures, _ = stage.run.scorer.score(
        "server/test", shown(["client/0", "client/1"], class_means(stage)), [same]
    )
    found = {f.name: f for f in figures}
    assert found["evaluator_accuracy"].p is None
    assert found["evaluator_prior"].value > 0.8
    assert found["psnr_gain"].value < 1


def test_the_evaluator_is_fitted_to_test_records_and_no_network_of_the_run(stage: Stage) -> None:
    case = stage.case
    x, y = case.evaluator.records
    assert len(y) == len(case.test[1])
    assert case.evaluator.architecture.name not in {n.name for n in case.networks.distinct}
    for used in (case.auxiliary[0], case.public, *(case.records(k)[0] for k in case.clients)):
        assert not (torch.cdist(x.flatten(1), used.flatten(1)) == 0).any()
    mine = (
        torch.cat([case.records(k)[0] for k in case.clients]),
        torch.cat([case.records(k)[1] for k in case.clients]),
    )
    assert float((case.evaluator.classify(mine[0]) == mine[1]).float().mean()) > 0.8
    assert case.evaluator.features(mine[0]).shape[0] == len(mine[1])


@pytest.mark.parametrize(
    ("protocol", "adversary", "setting"),
    [("fedavg", "server", ""), ("fedavg", "world", ""), ("selective-fd", "server", "answers")],
)
def test_a_control_is_tried_as_the_adversary_gets_its_answers(
    protocol: str, adversary: str, setting: str
) -> None:
    params = {} if protocol == "selective-fd" else {"rounds": 2}
    changes = {**CHANGES, "protocol": {"name": protocol, "params": params}, "adversaries": [adversary]}
    case = simulated_case(load_spec(small_spec(**changes)), known(7))
    attack = next(a for a in case.attacks if a.name == "ideal-hard")
    assert tried.setting_of(attack, case, adversary) == setting
    digests = {tried.depends_on(attack, case, s) for s in ("", "answers")}
    assert len(digests) == 2
    other = next(a for a in case.attacks if a.name == "lira-online")
    assert tried.setting_of(other, case, adversary) == ""


def test_a_control_lacks_what_the_run_lacks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the setting `same` an attack that shows class means has nothing to add, so its control fails."""
    case = replace(stage.case, spec=load_spec(small_spec(**{**CHANGES, "auxiliary__inversion": "same"})))
    means = class_means(stage)

    def run(self, view, knowledge, task, generator):
        return shown(task.targets, means)

    monkeypatch.setattr(loaded(attack_of(stage).target), "run", run)
    with in_a_thread():
        lacking, holding = (tried.controls(attack_of(stage), p) for p in (stage.case, case))
    assert lacking["positive"].passed
    assert not lacking["negative"].passed  # it shows them whatever the model: it measures nothing
    assert not holding["positive"].passed
