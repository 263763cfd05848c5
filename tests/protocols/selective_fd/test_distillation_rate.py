"""Selective-FD's distillation has a rate of its own; `lr` by the number of clients takes the authors' early steps."""

from __future__ import annotations

import pytest
from fdaudit.protocols.selective_fd import SelectiveFDConfig
from torch.nn import functional as F

from fdaudit.testing.federation import SIZES, initial, public, records
from fdaudit.transcript.samples import sample_index

from ...helpers.by_hand import close, descended, tensors
from ...helpers.protocol_cases import run

PARAMS = {"selector": "none", "warm_up_steps": 0, "local_steps": 0, "distill_steps": 3, "lr": 0.5}


def test_without_a_rate_of_its_own_distillation_has_that_of_local_steps() -> None:
    assert SelectiveFDConfig(lr=0.3).distillation.lr == 0.3
    assert SelectiveFDConfig(lr=0.3, distill_lr=0.2).distillation.lr == 0.2


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_a_rate_by_the_number_of_clients_is_that_of_targets_divided_by_it(labels: str, tmp_path) -> None:
    ran = run(
        tmp_path / "a", "selective-fd", {**PARAMS, "labels": labels, "distill_lr": 0.5 / len(SIZES)}, rounds=1
    )
    (told,) = tensors(ran, "ensemble_labels")
    x, divided = public()[sample_index(told)], told["values"] / len(SIZES)

    def loss(module):
        return -(divided * F.log_softmax(module(x), 1)).sum(1).mean()

    for k in records():
        expected = descended(initial(k), loss, PARAMS["distill_steps"], PARAMS["lr"])
        close(ran.rounds[0].models[k], expected, rtol=1e-5, atol=1e-6)
