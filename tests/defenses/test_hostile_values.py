"""Sensitivities hold for any values: a hostile model or sample can make a client's values huge, infinite or NaN."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from fdaudit.defenses.clipped import DPFedAvg, DPFedAvgConfig, SanitizedGradients, SanitizedGradientsConfig
from fdaudit.defenses.dp_sgd import DPSGD, DPSGDConfig
from fdaudit.defenses.noise import GaussianNoise, GaussianNoiseConfig, LaplaceNoise, LaplaceNoiseConfig
from torch import Tensor

from fdaudit.events import Gaussian, Laplace
from fdaudit.rng import SecretStream

HOSTILE = (0.0, 1e-320, -1.0, 1e38, -1e200, 1.7e308, math.inf, -math.inf, math.nan)
DEFENCES: dict[str, tuple[Any, str, int]] = {
    "dp-fedavg": (DPFedAvg(DPFedAvgConfig(clip=2.0, sigma=1.0)), "model_update", 2),
    "gaussian, whole message": (
        GaussianNoise(GaussianNoiseConfig(clip=2.0, sigma=1.0)),
        "class_prototypes",
        2,
    ),
    "gaussian, each value": (GaussianNoise(GaussianNoiseConfig(bound=2.0, sigma=1.0)), "class_prototypes", 2),
    "laplace": (LaplaceNoise(LaplaceNoiseConfig(clip=2.0, gamma=1.0)), "class_prototypes", 1),
}
"""By name: the defence, a kind, and the norm of its sensitivity."""


def messages() -> list[Tensor]:
    """Every pair of hostile values, and a message of ordinary ones."""
    pairs = [torch.tensor(pair, dtype=torch.float64) for pair in itertools.product(HOSTILE, repeat=2)]
    return [*pairs, torch.tensor([3.0, -4.0], dtype=torch.float64)]


@pytest.mark.parametrize("name", DEFENCES)
def test_any_two_messages_are_no_further_apart_than_the_sensitivity(name: str) -> None:
    """Under one and the same noise, what is sent differs by the clipped values alone."""
    defence, kind, order = DEFENCES[name]
    released = [defence.release(kind, {"values": m}, SecretStream(bytes(32), "test")) for m in messages()]
    sent = torch.stack([one.tensors["values"] for one in released])
    (event,) = {one.event for one in released}
    assert isinstance(event, Gaussian | Laplace)
    assert bool(torch.isfinite(sent).all())
    assert event.trusts == ()
    farthest = float(torch.cdist(sent, sent, p=order).max())
    assert farthest <= event.sensitivity * (1 + 1e-9)
    assert farthest >= event.sensitivity * 0.9, "it is reached, so a wider clip would show"


def test_gradients_at_hostile_samples_move_by_no_more_than_the_sensitivity_each() -> None:
    defence = SanitizedGradients(SanitizedGradientsConfig(clip=2.0, sigma=1.0))
    rows = torch.stack(messages()).reshape(-1, 1, 1, 2)
    released = defence.release("sample_gradients", {"values": rows}, SecretStream(bytes(32), "test"))
    silent = defence.release(
        "sample_gradients", {"values": 0 * torch.ones_like(rows)}, SecretStream(bytes(32), "test")
    )
    clipped = (released.tensors["values"] - silent.tensors["values"]).flatten(1)
    assert bool(torch.isfinite(clipped).all())
    assert float(clipped.norm(dim=1).max()) == pytest.approx(2.0)
    assert isinstance(released.event, Gaussian)
    assert released.event.sensitivity == 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_record_moves_a_sum_of_gradients_further_than_the_clip(dtype: torch.dtype) -> None:
    rule = DPSGD(DPSGDConfig(clip=2.0, noise_multiplier=1.0, sample_rate=1.0), 4)
    honest = {"w": torch.tensor([[0.5, 0.5]], dtype=dtype)}
    alone = rule.clipped(honest)["w"]
    for hostile in messages():
        both = rule.clipped({"w": torch.cat([honest["w"], hostile.to(dtype)[None]])})["w"]
        assert bool(torch.isfinite(both).all())
        assert float((both - alone).norm()) <= 2.0 * (1 + 1e-9)
