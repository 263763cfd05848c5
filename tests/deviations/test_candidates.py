"""Deviations that ask about candidates: what is planted beside them, wrong tables, and what answers then tell."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.membership._answers import RecordedAnswers, Treatment
from fdaudit.attacks.membership.candidate_answers import CandidateAnswersConfig, _compared
from fdaudit.deviations._probes import probes_of
from fdaudit.deviations.crafted_consensus import CraftedConsensus, CraftedConsensusConfig
from fdaudit.deviations.planted_candidates import PlantedCandidates, PlantedCandidatesConfig
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError
from fdaudit.testing.federation import CLASSES, records
from fdaudit.transcript.messages import DEVIATION
from fdaudit.types import Challenge

from ..helpers.by_hand import sent
from ..helpers.protocol_cases import run
from ..helpers.refusals import refused
from .deviation_cases import attacked, check_resume, draft, party

CANDIDATES = {name: (data.x[:4], data.y[:4]) for name, data in records().items()}


def knowledge(public: int = 40) -> Knowledge:
    samples = torch.rand(public, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Knowledge(candidates=CANDIDATES, classes=CLASSES, public=samples if public else None)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Root-mean-square over the values of samples."""
    return (a - b).flatten(2).square().mean(2).sqrt()


# -- probes ------------------------------------------------------------------------------------------------------------


def drawn(kind: Any, count: int = 4, reach: float = 0.05) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates, their classes and their probes."""
    x = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    y = torch.arange(10) % CLASSES
    return x, y, probes_of(kind, x, y, count, reach, torch.Generator().manual_seed(3))


def test_neighbours_lie_at_the_reach_in_other_directions() -> None:
    x, _, probes = drawn("neighbours")
    torch.testing.assert_close(distance(probes, x[:, None]), torch.full((10, 4), 0.05))
    directions = torch.nn.functional.normalize((probes - x[:, None]).flatten(2), dim=2)
    cosines = directions @ directions.mT
    assert cosines.triu(1).abs().max() < 0.6


def test_gradients_are_pairs_on_both_sides_of_a_candidate() -> None:
    x, _, probes = drawn("gradients", count=5)
    torch.testing.assert_close(probes[:, 0] + probes[:, 1], 2 * x)
    torch.testing.assert_close(probes[:, 2] + probes[:, 3], 2 * x)
    torch.testing.assert_close(distance(probes, x[:, None]), torch.full((10, 5), 0.05))


@pytest.mark.parametrize("reach", [0.05, 9.0])
def test_the_boundary_is_approached_on_the_way_to_the_nearest_record_of_another_class(reach: float) -> None:
    """In equal steps, and never beyond half the way."""
    x, y, probes = drawn("boundary", reach=reach)
    apart = distance(x[:, None], x[None]).masked_fill(y[:, None] == y, 9.0)
    other = x[apart.argmin(1)]
    far = apart.amin(1).div(2).clamp_max(reach)
    steps = torch.arange(1, 5) / 4 * far[:, None]
    torch.testing.assert_close(distance(probes, x[:, None]), steps)
    torch.testing.assert_close(distance(probes, other[:, None]), apart.amin(1)[:, None] - steps)


@pytest.mark.parametrize("probes", ["neighbours", "boundary", "gradients"])
def test_candidates_are_planted_with_their_probes(probes: Any) -> None:
    """As many groups as there are places for; the request names them all."""
    knows = knowledge(40)
    planted = PlantedCandidates(PlantedCandidatesConfig(probes=probes, each=3), knows)
    assert len(planted.places) == 40
    assert knows.public is not None
    public, _ = planted.hands_out(knows.public.clone(), None)
    groups = public[planted.places].unflatten(0, (10, 4))
    every = torch.cat([x for x, _ in CANDIDATES.values()])
    assert all((every == x).flatten(1).all(1).any() for x in groups[:, 0])
    assert not any((every == x).flatten(1).all(1).any() for x in groups[:, 1:].flatten(0, 1))
    assert distance(groups[:, 1:], groups[:, :1]).max() <= 0.1 + 1e-6
    assert groups.min() >= 0
    assert groups.max() <= 1


def test_probes_that_leave_no_candidate_a_place_are_refused() -> None:
    config = PlantedCandidatesConfig(probes="neighbours", each=40)
    refused(lambda: PlantedCandidates(config, knowledge(40)), "deviations.params.each")


def test_records_of_whole_numbers_have_no_probes() -> None:
    texts = {"client/0": (torch.arange(12).view(2, 6), torch.arange(2))}
    knows = replace(knowledge(), candidates=texts, public=torch.zeros(9, 6, dtype=torch.int64))
    assert len(PlantedCandidates(PlantedCandidatesConfig(), knows).places) == 2
    with pytest.raises(SpecError, match="whole numbers"):
        PlantedCandidates(PlantedCandidatesConfig(probes="neighbours"), knows)


def test_generated_samples_are_replaced_in_the_rounds_asked_for_alone() -> None:
    """In the first steps, until every candidate has been shown."""
    planted = PlantedCandidates(PlantedCandidatesConfig(rounds=(4,)), knowledge(0))
    every = torch.cat([x for x, _ in CANDIDATES.values()])
    samples = torch.full((8, 1, 8, 8), 0.5)

    def shown(round: int, step: int) -> Tensor:
        honest = draft("generated_samples", {"samples": samples}, round, step)
        (sent,) = planted.sends(honest, torch.Generator())
        return sent.tensors["samples"]

    assert torch.equal(shown(3, 0), samples)
    asked = torch.cat([shown(4, 0), shown(4, 1)])[: len(every)]
    assert sorted(map(str, asked.tolist())) == sorted(map(str, every.tolist()))
    assert torch.equal(shown(4, 1)[len(every) - 8 :], samples[len(every) - 8 :])
    assert torch.equal(shown(4, 2), samples)


# -- what candidate-answers reads --------------------------------------------------------------------------------------


def answers(x: Tensor, values: Tensor, kind: str) -> RecordedAnswers:
    return RecordedAnswers(
        samples=torch.arange(len(x)), x=x, values=values, kind=kind, treatment=Treatment(kind=kind)
    )


@pytest.mark.parametrize(("kind", "reads"), [("hard_labels", True), ("soft_labels", False)])
def test_votes_on_probes_count_and_probabilities_of_them_do_not(kind: str, reads: bool) -> None:
    """The victim's answers for two candidates are equal; on the probes of the first it is right, as no other is."""
    x = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    challenge = Challenge(target="client/0", x=x, y=torch.zeros(2, dtype=torch.int64), pair=torch.arange(2))
    samples = torch.cat([x, x + 0.1, x - 0.1, torch.full((1, 1, 8, 8), 0.5)])
    right, wrong = torch.tensor([0.9, 0.1, 0.0]), torch.tensor([0.1, 0.9, 0.0])
    own = torch.stack([right, right, right, wrong, right, wrong, wrong])
    other = torch.stack([right, right, wrong, wrong, wrong, wrong, wrong])
    both = {name: answers(samples, values, kind) for name, values in (("client/0", own), ("client/1", other))}
    asked, scores = _compared(both, "client/0", challenge, CandidateAnswersConfig(reach=0.2))
    assert asked.all()
    assert bool(scores[0] > scores[1]) is reads
    assert scores[1] == 0
    for reach in (0.0, 0.05):
        config = CandidateAnswersConfig(reach=reach)
        assert not _compared(both, "client/0", challenge, config)[1].any()


def test_slopes_are_gradients_of_the_loss_whatever_its_curvature() -> None:
    """Two candidates whose loss a client has at slopes of 2 and 20, and other clients at 2 for both."""
    x, y, probes = drawn("gradients", count=8)
    x, y, probes = x[:2], torch.zeros(2, dtype=torch.int64), probes[:2]
    challenge = Challenge(target="client/0", x=x, y=y, pair=torch.arange(2))

    def client(slopes: tuple[float, float]) -> RecordedAnswers:
        losses = list[Tensor]()
        for one, around, slope in zip(x, probes, slopes, strict=True):
            steps = (torch.cat([one[None], around]) - one).flatten(1).double()
            losses.append(0.7 + slope * steps @ (steps[1] / steps[1].norm()) + 3 * steps.square().sum(1))
        p = torch.cat(losses).neg().exp()
        samples = torch.cat([x[:, None], probes], 1).flatten(0, 1)
        return answers(samples, torch.stack([p, 1 - p], 1), "soft_labels")

    both = {"client/0": client((2.0, 20.0)), "client/1": client((2.0, 2.0)), "client/2": client((2.0, 2.0))}
    config = CandidateAnswersConfig(reach=0.06, slopes=True)
    asked, scores = _compared(both, "client/0", challenge, config)
    assert asked.all()
    torch.testing.assert_close(scores.float(), torch.tensor([0.0, -math.log(10)]), atol=1e-3, rtol=0)


def test_candidates_without_probes_have_no_slopes() -> None:
    x, y, probes = drawn("gradients")
    challenge = Challenge(target="client/0", x=x, y=y, pair=torch.arange(10) // 2)
    shown = torch.cat([x, probes[:3].flatten(0, 1)])
    own = {"client/0": answers(shown, torch.full((len(shown), CLASSES), 1 / CLASSES), "soft_labels")}
    asked, _ = _compared(own, "client/0", challenge, CandidateAnswersConfig(reach=0.06, slopes=True))
    assert asked.tolist() == [True] * 3 + [False] * 7


# -- tables of the classes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["fkd", "pls"])
def test_every_row_of_a_crafted_table_teaches_another_class(protocol: str, tmp_path: Path) -> None:
    """In the rounds asked for; a resumed run sends the same."""

    def deviants() -> Any:
        crafted = CraftedConsensus(CraftedConsensusConfig(rounds=(1,)), knowledge(0))
        return {"server": party("server", crafted, protocol)}

    whole = check_resume(tmp_path, protocol, deviants, rounds=3)
    tables = sent(whole, "class_prototypes", "server")
    for message in tables:
        assert (DEVIATION in message.fields) == (message.round == 1)
        table = whole.tensors(message)["values"]
        if message.round == 1:
            assert torch.equal(table.sort(1).values, torch.eye(CLASSES)[-1].expand(CLASSES, -1))
            assert not table.diagonal().any()
    assert {m.round for m in tables} == {0, 1, 2}


def test_no_table_is_crafted_without_rounds() -> None:
    crafted = CraftedConsensus(CraftedConsensusConfig(rounds=()), knowledge(0))
    honest = draft("class_prototypes", {"values": torch.eye(CLASSES)})
    assert crafted.sends(honest, torch.Generator()) == (honest,)


@pytest.mark.thorough
def test_crafted_tables_of_hard_predictions_show_how_many_records_a_class_has(tmp_path: Path) -> None:
    """Clients that agree with every label tell nothing but which classes they hold."""

    def distances(name: str, **changes: Any) -> float:
        cell = attacked(
            tmp_path / name,
            "label-presence",
            dataset__limit=400,
            model__params__widths=[32],
            partition={"name": "dirichlet", "alpha": 5.0},
            protocol={"name": "fkd", "params": {"rounds": 8, "local_steps": 30, "share": "hard"}},
            **changes,
        )
        (mean,) = [f for f in cell.figures if f.name == "label_tv_mean"]
        assert mean.value is not None
        return mean.value

    crafted = distances("active", deviations=[{"party": "server", "name": "crafted-consensus"}])
    assert crafted < 0.01
    assert distances("honest") > crafted + 0.02


def test_each_client_can_be_taught_other_candidates_and_classes(tmp_path: Path) -> None:
    def taught(name: str, **settings: Any) -> list[tuple[tuple[str, ...], bytes]]:
        crafted = CraftedConsensus(CraftedConsensusConfig(share=0.5, **settings), knowledge())
        ran = run(tmp_path / name, "fedmd", rounds=1, deviants={"server": party("server", crafted, "fedmd")})
        labels = sent(ran, "ensemble_labels", "server")
        return [(m.receivers, ran.tensors(m)["values"].numpy().tobytes()) for m in labels]

    ((everybody, _),) = taught("all")
    alone = taught("each", each=True)
    assert [receivers for receivers, _ in alone] == [(one,) for one in everybody]
    assert len({values for _, values in alone}) == len(everybody) > 1
