"""Detectors: what each computes on honest and crafted messages, and how alarms are counted."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fdaudit.models import Architecture, architecture
from fdaudit.result import Noticed
from fdaudit.spec.schema import ModelSpec
from fdaudit.twin.detectors import DETECTORS, ReceivedMessage
from fdaudit.twin.notice import _judged, refuse_unknown_detectors

from ..helpers.refusals import refused
from ..helpers.report_cases import figures_in


def measured(name: str, tensors: dict[str, Tensor], **seen: Any) -> float | None:
    return DETECTORS[name].measure(ReceivedMessage(tensors=tensors, **seen))


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def perceptron() -> Architecture:
    return architecture(ModelSpec(name="mlp", params={"widths": [16]}), (1, 8, 8), 10)


def test_equal_rows_are_a_share_of_the_layer_that_has_most() -> None:
    honest = {"a.weight": drawn(16, 64), "b.weight": drawn(10, 16, seed=2), "b.bias": drawn(10)}
    assert measured("equal-rows", honest) == 0.0
    scaled = honest["b.weight"].clone()
    scaled[3] = 2.0 * scaled[7]
    assert measured("equal-rows", {**honest, "b.weight": scaled}) == pytest.approx(2 / 10)
    assert measured("equal-rows", {"c.weight": torch.zeros(4, 64)}) == 0.0
    assert measured("equal-rows", {"b.bias": drawn(10)}) is None


def test_change_is_the_norm_since_the_last_message() -> None:
    model = {"w": drawn(3, 4), "count": torch.tensor(5)}
    assert measured("change", model) is None
    later = {"w": model["w"] + 0.5, "count": torch.tensor(6)}
    assert measured("change", later, before=model) == pytest.approx(0.5 * math.sqrt(12))
    assert measured("change", model, before=model) == 0.0


def test_silence_is_the_share_of_first_outputs_that_the_own_records_leave_at_zero() -> None:
    network = perceptron()
    records = drawn(20, 1, 8, 8).abs()
    module = network.build(torch.Generator().manual_seed(3))
    honest = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    bias = next(name for name in honest if name.endswith("bias"))
    value = measured("silence", honest, records=records, network=network)
    assert value is not None
    assert 0.0 < value < 0.9
    silent = {**honest, bias: torch.full_like(honest[bias], -1e4)}
    assert measured("silence", silent, records=records, network=network) == 1.0
    assert measured("silence", honest, network=network) is None
    assert measured("silence", honest, records=records) is None


def test_certainty_is_zero_for_uniform_answers_and_one_for_sure_ones() -> None:
    assert measured("certainty", {"values": torch.full((3, 4), 0.25)}) == pytest.approx(0.0)
    assert measured("certainty", {"values": torch.eye(4)}) == pytest.approx(1.0)
    assert measured("certainty", {"values": torch.zeros(3, 4)}) == pytest.approx(0.0)  # logits
    assert measured("certainty", {"values": torch.tensor([1, 2])}) is None
    assert measured("certainty", {"values": torch.zeros(2, 3, 4, 4)}) is None


def test_answers_are_compared_on_the_samples_that_both_name() -> None:
    own = {"index": torch.tensor([5, 3, 9]), "values": torch.eye(4)[[0, 1, 2]]}
    theirs = {"index": torch.tensor([3, 5, 8]), "values": torch.eye(4)[[1, 3, 2]]}
    assert measured("disagreement", theirs, answers=own) == pytest.approx(1 / 2)
    assert measured("other-classes", theirs, answers=own) == pytest.approx(1 / 2)
    classes = {"index": torch.tensor([3, 5, 8]), "values": torch.tensor([1, 3, 2])}
    assert measured("other-classes", classes, answers=own) == pytest.approx(1 / 2)
    in_order = {"values": torch.eye(4)[[0, 0, 0, 1]]}
    assert measured("other-classes", in_order, answers=own) == 0.0  # sample 3 alone
    apart = {"index": torch.tensor([1]), "values": torch.eye(4)[[0]]}
    assert measured("other-classes", apart, answers=own) is None
    assert measured("disagreement", theirs) is None


def test_repeats_are_samples_that_occur_twice_in_a_message_or_in_the_one_before() -> None:
    samples = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    assert measured("repeats", {"samples": samples}) == 0.0
    twice = samples.clone()
    twice[1] = twice[0] + 1e-4
    assert measured("repeats", {"samples": twice}) == pytest.approx(2 / 6)
    again = torch.cat([samples[:1], drawn(5, 1, 8, 8, seed=9)])
    assert measured("repeats", {"samples": again}, before={"samples": samples}) == pytest.approx(1 / 6)
    assert measured("repeats", {"index": torch.tensor([4, 7, 4, 1])}) == pytest.approx(2 / 4)


def test_nothing_new_are_values_that_are_alike_or_as_they_were() -> None:
    honest = {"w": drawn(4, 5), "b": drawn(5)}
    assert measured("nothing-new", honest) == pytest.approx(2 / 25), "each tensor has a commonest value"
    assert measured("nothing-new", {name: torch.zeros_like(t) for name, t in honest.items()}) == 1.0
    assert measured("nothing-new", honest, before=honest) == 1.0
    assert measured("nothing-new", honest, own=honest) == 1.0
    half = {**honest, "w": torch.cat([honest["w"][:2], drawn(2, 5, seed=7)])}
    assert measured("nothing-new", half, before=honest) in (15 / 25, 16 / 25)
    uniform = {"index": torch.arange(6), "values": torch.full((6, 10), 0.1)}
    assert measured("nothing-new", uniform) == 1.0


def test_an_outlier_is_measured_by_the_distances_of_the_others() -> None:
    """In the same way for models as for updates: what all of them share cancels."""
    start = drawn(4)
    others = [{"w": start + offset * torch.eye(4)[0]} for offset in (-2.0, -1.0, 1.0, 2.0)]
    far = {"w": start + 6.0 * torch.eye(4)[1]}
    assert measured("outlier", far, others=others) == pytest.approx(6.0, rel=1e-5)
    assert measured("outlier", {"w": start}, others=others) == pytest.approx(0.0, abs=1e-5)
    assert measured("outlier", far) is None
    assert measured("outlier", far, others=[far, far]) is None, "the others do not differ"
    assert measured("outlier", far, others=[{"v": start}, {"w": drawn(5)}, far]) is None


def test_few_clients_are_counted_by_the_fields_of_a_sum_or_by_votes() -> None:
    update = {"w": drawn(4)}
    assert measured("few-clients", update, fields={"clients": ["client/0", "client/2"]}) == 1 / 2
    assert measured("few-clients", update) is None
    votes = torch.tensor([[3.0, 1.0], [2.0, 1.0]])  # one client declines the second sample
    assert measured("few-clients", {"counts": votes}) == 1 / 4
    assert measured("few-clients", {"counts": torch.zeros(2, 3)}) is None


@pytest.mark.parametrize("name", DETECTORS)
def test_a_message_of_another_kind_has_no_value(name: str) -> None:
    assert measured(name, {"n": torch.tensor(3)}) is None


# -- alarms ----------------------------------------------------------------------------------------------------


def outcome(honest: list[float], crafted: list[float | None]) -> Noticed:
    bare = Noticed(
        party="server", deviation="d", kind="model_parameters", detector="change", of_crafted=len(crafted)
    )
    return _judged(bare, honest, crafted)


def test_the_first_half_gives_the_threshold_and_the_other_half_the_false_alarms() -> None:
    counted = outcome([1.0, 4.0, 2.0, 3.0, 4.0, 5.0, 1.0, 1.0, 9.0], [4.0, 4.5, None])
    assert (counted.learnt_on, counted.threshold) == (4, 4.0)
    assert (counted.alarms, counted.of_honest) == (2, 5)
    assert (counted.caught, counted.of_crafted) == (1, 3)


def test_too_few_honest_messages_give_a_reason_and_no_rate() -> None:
    few = outcome([1.0] * 7, [2.0])
    assert few.threshold is None
    assert figures_in(few.reason) == ["7", "8"]  # it has a value for 7 and needs 8
    blind = outcome([1.0] * 8, [None])
    assert blind.threshold is None
    assert "no crafted message" in blind.reason


def test_an_unknown_detector_of_a_card_is_refused() -> None:
    card = SimpleNamespace(detectors=("equal-row",))
    case: Any = SimpleNamespace(
        spec=SimpleNamespace(deviations=[SimpleNamespace(party="server", name="mine")]),
        deviants={"server": SimpleNamespace(deviation=SimpleNamespace(card=card))},
    )
    refused(lambda: refuse_unknown_detectors(case), "deviations.0.name", said="equal-rows")
