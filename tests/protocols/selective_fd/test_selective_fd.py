"""Selective-FD's parties by hand-computed cases: what is answered, averaged, dropped; what bad input does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.protocols import REGISTRY
from fdaudit.protocols.selective_fd import (
    BoundingBox,
    Selection,
    SelectiveFD,
    SelectiveFDConfig,
    confidence,
    energy,
    fit_density,
)
from fdaudit.protocols.selective_fd.parties import SelectiveFDClient, SelectiveFDServer
from torch import Tensor

from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.federation.protocol import PartyData
from fdaudit.rng import child
from fdaudit.testing.federation import records

from ...helpers.protocol_cases import run


def clusters(*centres: float, n: int = 30, seed: int = 0) -> PartyData:
    """n images of 1x2x2 around each centre, of classes 0, 1, ..."""
    x = torch.cat(
        [c + 0.03 * torch.randn(n, 1, 2, 2, generator=child(seed, "c", k)) for k, c in enumerate(centres)]
    )
    return PartyData(x.clamp(0, 1), torch.arange(len(centres)).repeat_interleave(n))


def selector(data: PartyData, **settings: Any) -> Any:
    return fit_density(
        data,
        Selection(**settings),
        represent=lambda x: x.flatten(1),
        box=BoundingBox.unit(4),
        seed=0,
        party="client/0",
    )


# -- selectors --------------------------------------------------------------------------------------------------


def test_a_density_accepts_the_share_of_its_own_that_the_quantile_leaves() -> None:
    data, fresh = clusters(0.2, n=400), clusters(0.2, n=400, seed=1)
    for tau in (0.0, 0.25, 0.6):
        share = float(
            selector(data, tau_client=tau, bandwidth=0.05).accepts(fresh.x.flatten(1)).float().mean()
        )
        assert share == pytest.approx(1 - tau, abs=0.08)


def test_it_accepts_what_any_class_accepts_and_declines_the_rest() -> None:
    known = selector(clusters(0.1, 0.9), bandwidth=0.1, tau_client=0.0)
    assert len(known.classes) == 2
    points = torch.tensor([0.1, 0.9, 0.5]).unsqueeze(1).expand(3, 4)
    assert known.accepts(points).tolist() == [True, True, False]


def test_one_estimate_for_both_classes_would_be_another() -> None:
    """Each class has its own threshold: a loose class does not open the tight one."""
    tight, loose = clusters(0.2, n=100), clusters(0.7, n=100)
    spread = 0.7 + 0.2 * (torch.rand(100, 1, 2, 2, generator=child(0, "s")) - 0.5)
    data = PartyData(torch.cat([tight.x, spread]), torch.cat([tight.y, loose.y + 1]))
    (a, b) = selector(data, bandwidth=0.05).classes
    assert a.threshold > 2 * b.threshold


def test_a_class_with_one_record_is_never_answered_for() -> None:
    one = PartyData(torch.full((1, 1, 2, 2), 0.3), torch.tensor([2]))
    known = selector(one)
    assert known.classes == ()
    assert not known.accepts(torch.full((3, 4), 0.3)).any()
    two = PartyData(torch.tensor([0.3, 0.31]).reshape(2, 1, 1, 1).expand(2, 1, 2, 2), torch.tensor([2, 2]))
    assert len(selector(two, validation=0.9).classes) == 1


def test_where_the_estimate_is_not_positive_nothing_is_accepted() -> None:
    """A bandwidth far too small leaves a threshold of nothing; that must not let everything in."""
    known = selector(clusters(0.2), bandwidth=1e-4)
    assert known.classes[0].threshold > 0
    assert not known.accepts(torch.rand(50, 4, generator=child(0, "u"))).any()


def test_twins_and_nystrom_and_features_are_no_obstacle() -> None:
    twins = PartyData(torch.full((8, 1, 2, 2), 0.5), torch.zeros(8, dtype=torch.int64))
    assert selector(twins).accepts(torch.full((1, 4), 0.5)).all()
    data = clusters(0.1, 0.9)
    exact, few = selector(data), selector(data, landmarks=30)
    points = data.x.flatten(1)
    assert float((exact.accepts(points) == few.accepts(points)).float().mean()) > 0.8
    box = BoundingBox.around(torch.tensor([[0.0, 5.0], [1.0, 3.0]]))
    drawn = box.uniform(1000, child(0, "b"))
    np.testing.assert_allclose(drawn.amin(0), [0, 3], atol=0.02)
    np.testing.assert_allclose(drawn.amax(0), [1, 5], atol=0.02)


def test_confidence_and_energy_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0], [np.log(3.0), 0.0]])
    np.testing.assert_allclose(confidence(z), [0.5, 0.75], rtol=1e-6)
    np.testing.assert_allclose(energy(z), [np.log(2), np.log(4)], rtol=1e-6)


# -- the client -------------------------------------------------------------------------------------------------


def client(data: PartyData | None = None, **settings: Any) -> SelectiveFDClient:
    public = torch.linspace(0, 1, 6).reshape(6, 1, 1, 1).expand(6, 1, 2, 2).contiguous()
    given = data or clusters(0.0, 1.0)
    return SelectiveFDClient(
        "client/0", given, {}, public=public, classes=3, settings=Selection(**settings), seed=0
    )


def logits(x: Tensor) -> Tensor:
    """Three classes; the first grows with darkness."""
    m = x.mean((1, 2, 3))
    return torch.stack([4 * (1 - m), 4 * m, torch.zeros_like(m)], 1)


def test_a_client_answers_for_what_it_accepts_alone() -> None:
    party = client(bandwidth=0.1, tau_client=0.0)
    party.prepare(lambda x: x.flatten(1), BoundingBox.unit(4))
    answer = party.answer(torch.tensor([5, 2, 0, 3]), logits, "hard")
    assert answer["index"].tolist() == [5, 0]
    assert answer["values"].tolist() == [1, 0]
    assert (answer["index"].dtype, answer["values"].dtype) == (torch.uint8, torch.uint8)
    soft = party.answer(torch.tensor([5, 2, 0, 3]), logits, "soft")
    np.testing.assert_allclose(soft["values"].sum(1), 1, rtol=1e-6)
    assert party.answer(torch.tensor([2, 3]), logits, "soft")["values"].shape == (0, 3)


@pytest.mark.parametrize("name", ["confidence", "energy"])
def test_a_selector_by_outputs_declines_below_the_quantile_of_its_validation(name: str) -> None:
    """The prediction of grey is the least sure; validation records are black or white."""
    party = client(selector=name, tau_client=0.0)
    party.prepare(lambda x: x.flatten(1), BoundingBox.unit(4))
    assert party.accepts is None
    answered = party.answer(torch.arange(6), logits, "hard")["index"].tolist()
    assert {0, 5} & set(answered)
    assert not {2, 3} & set(answered)


def test_indices_that_name_nothing_are_left_out() -> None:
    answer = client(selector="none").answer(torch.tensor([-1, 4, 9, 4, 1]), logits, "hard")
    assert answer["index"].tolist() == [4, 1]


def test_distillation_survives_noise_that_leaves_the_simplex() -> None:
    job = client().distil_job(
        0,
        {
            "index": torch.tensor([1, -3, 2]),
            "values": torch.tensor([[2.0, -1.0, 2.0], [1, 0, 0], [-1, -1, -1]]),
        },
        2,
    )
    assert job is not None
    np.testing.assert_allclose(job.targets, [[0.5, 0, 0.5], [0, 0, 0]])
    assert [b.tolist() for b in job.batches] == [[0, 1], [0, 1]]
    assert client().distil_job(0, {"index": torch.zeros(0), "values": torch.zeros(0, 3)}, 2) is None


# -- the server -------------------------------------------------------------------------------------------------


def test_the_mean_is_over_those_that_answered_and_what_is_ambiguous_is_dropped() -> None:
    """Samples 7, 3, 5 and 1 are asked about: agreed, split in two, answered once, answered by nobody."""
    asked = torch.tensor([7, 3, 5, 1])
    answers = [
        {"index": torch.tensor([7, 3]), "values": torch.tensor([[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]])},
        {"index": torch.tensor([3, 7, 5]), "values": torch.tensor([[0, 1.0, 0], [1, 0, 0], [0, 0.1, 0.9]])},
    ]
    server = SelectiveFDServer(samples=8, classes=3, tau=0.5, seed=0)
    made = server.aggregate(asked, answers)
    assert made["index"].tolist() == [7, 5]
    np.testing.assert_allclose(made["values"], [[0.9, 0.1, 0.0], [0, 0.1, 0.9]], rtol=1e-6)
    everything = SelectiveFDServer(samples=8, classes=3, tau=2.0, seed=0).aggregate(asked, answers)
    assert everything["index"].tolist() == [7, 3, 5]


@pytest.mark.parametrize("tau", [0.1, 0.7, 1.0, 1.3, 2.0])
def test_the_confidence_rule_is_the_l1_distance_of_the_paper(tau: float) -> None:
    h = torch.rand(200, 4, generator=child(0, "h")).square().softmax(1)
    kept = SelectiveFDServer(200, 4, tau, 0).aggregate(
        torch.arange(200), [{"index": torch.arange(200), "values": h}]
    )["index"]
    distance = [np.abs(row - np.eye(4)[row.argmax()]).sum() for row in h.double().numpy()]
    assert kept.tolist() == [i for i, d in enumerate(distance) if d <= tau]


def test_hard_labels_are_averaged_as_votes() -> None:
    answers = [
        {"index": torch.tensor([0]), "values": torch.tensor([v], dtype=torch.uint8)} for v in (2, 2, 0)
    ]
    made = SelectiveFDServer(1, 3, 2.0, 0).aggregate(torch.tensor([0]), answers)
    np.testing.assert_allclose(made["values"], [[1 / 3, 0, 2 / 3]], rtol=1e-6)


def test_what_was_not_asked_or_is_no_class_counts_for_nothing() -> None:
    answers = [
        {"index": torch.tensor([0, 2, 99, -4]), "values": torch.tensor([1, 1, 1, 1])},
        {"index": torch.tensor([0, 1]), "values": torch.tensor([200, 2])},
    ]
    made = SelectiveFDServer(4, 3, 2.0, 0).aggregate(torch.tensor([0, 1]), answers)
    assert made["index"].tolist() == [0, 1]
    np.testing.assert_allclose(made["values"], [[0, 1, 0], [0, 0, 1]])
    soft = [{"index": torch.tensor([0]), "values": torch.tensor([[torch.nan, 0, 1]])}]
    assert SelectiveFDServer(4, 3, 2.0, 0).aggregate(torch.tensor([0]), soft)["index"].tolist() == []


def test_the_server_asks_about_every_sample_once_at_most() -> None:
    server = SelectiveFDServer(50, 3, 2.0, 1)
    assert sorted(server.choose(0, 80).tolist()) == list(range(50))
    assert len(set(server.choose(1, 20).tolist())) == 20
    assert server.choose(1, 20).tolist() != server.choose(2, 20).tolist()


# -- the federation ---------------------------------------------------------------------------------------------


def test_a_class_that_no_client_holds_is_answered_by_nobody(tmp_path: Any) -> None:
    """Public images of three kinds, clients of two: the third never comes back, and the run goes on without it."""
    kinds = [torch.full((1, 8, 8), c) for c in (0.0, 1.0)]
    shared = torch.rand(3, 1, 8, 8, generator=child(0, "odd")) > 0.5
    public = torch.cat([torch.stack([kinds[0] + 0.01, kinds[1]]), shared[:1].float()])
    clients = {}
    for k in range(2):
        x = kinds[k].expand(20, 1, 8, 8) + 0.02 * torch.rand(20, 1, 8, 8, generator=child(0, "n", k))
        clients[f"client/{k}"] = PartyData(x.clamp(0, 1), torch.full((20,), k))
    accepted = [
        fit_density(
            d,
            Selection(tau_client=0.0),
            represent=lambda x: x.flatten(1),
            box=BoundingBox.unit(64),
            seed=0,
            party=k,
        ).accepts(public.flatten(1))
        for k, d in clients.items()
    ]
    assert [a.tolist() for a in accepted] == [[True, False, False], [False, True, False]]
    ran = run(tmp_path / "a", "selective-fd", {"warm_up_steps": 2}, clients=clients)
    assert len(ran.rounds) == 3


def test_declining_everything_is_on_record_and_leaves_the_clients_alone(tmp_path: Any) -> None:
    """One record a class: no estimate, so every answer is empty, and nobody distils."""
    lonely = {k: PartyData(d.x[:1], d.y[:1]) for k, d in records().items()}
    ran = run(tmp_path / "a", "selective-fd", {"local_steps": 0, "warm_up_steps": 0}, clients=lonely)
    answers = [m for m in ran.messages if m.kind == "hard_labels"]
    assert len(answers) == 3 * len(lonely)
    assert all(not len(ran.tensors(m)["index"]) for m in answers)
    for k, model in ran.rounds[-1].models.items():
        assert all(torch.equal(model[n], t) for n, t in ran.setting.initial[k].items())


def test_features_without_an_encoder_are_refused(tmp_path: Any) -> None:
    setting = run(tmp_path / "a", "selective-fd", {"warm_up_steps": 0}, stop_after=0).setting
    with pytest.raises(SpecError, match="feature extractor"):
        SelectiveFD(SelectiveFDConfig(space="features"), replace(setting, encode=None))


def test_the_ledger_is_told_of_an_encoder_that_no_message_brings() -> None:
    (said,) = SelectiveFDConfig(space="features").assumptions()
    assert "labelled auxiliary records" in said
    assert "no message" in said
    assert not SelectiveFDConfig().assumptions()
    assert not SelectiveFDConfig(space="features", selector="energy").assumptions()


def test_the_reference_line_takes_as_many_steps() -> None:
    cfg = SelectiveFDConfig(rounds=100, warm_up_steps=200, local_steps=1, distill_steps=10)
    standalone = REGISTRY.load("standalone")
    alone = validate(standalone.Config, cfg.alone())
    assert alone.rounds * alone.local_steps == 200 + 100 * 11
