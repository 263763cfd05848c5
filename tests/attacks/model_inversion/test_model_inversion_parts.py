"""Parts of model inversion: priors, answers as probabilities, decoders, surrogates and the search for an image."""

from __future__ import annotations

import math

import pytest
import torch
from fdaudit.attacks.model_inversion.decoder import DecoderConfig, evidence, fit_decoder, sure_of
from fdaudit.attacks.model_inversion.inversion import InversionConfig, invert_classes
from fdaudit.attacks.model_inversion.priors import centres, composites, total_variation
from fdaudit.attacks.model_inversion.surrogate import SurrogateConfig, fit_surrogate, surrogate_of
from fdaudit.attacks.model_inversion.victims import as_probabilities
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from .inversion_cases import SHAPE, g

CPU = torch.device("cpu")


def test_centres_are_class_means_the_mean_of_all_or_black() -> None:
    x, y = torch.rand(4, *SHAPE, generator=g()), torch.tensor([0, 0, 2, 2])
    found = centres((x, y), 3, SHAPE)
    assert torch.allclose(found[0], x[:2].mean(0))
    assert torch.allclose(found[1], x.mean(0))
    assert torch.allclose(found[2], x[2:].mean(0))
    assert torch.equal(centres(None, 3, SHAPE), torch.zeros(3, *SHAPE))


@given(seed=st.integers(0, 2**31), n=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_composites_without_noise_lie_between_two_images(seed: int, n: int) -> None:
    x = torch.tensor([0.2, 0.7])[:, None, None, None].expand(2, *SHAPE)
    made = composites(x, n, 0.0, g(seed))
    assert made.shape == (n, *SHAPE)
    assert 0.2 - 1e-6 <= made.min() <= made.max() <= 0.7 + 1e-6


def test_total_variation_by_hand() -> None:
    x = torch.zeros(1, 1, 2, 2)
    x[0, 0, 0, 0] = 1  # one of two vertical differences is 1, and one of two horizontal ones
    assert total_variation(x).tolist() == [1.0]
    assert total_variation(torch.full((2, *SHAPE), 0.3)).tolist() == [0.0, 0.0]


@given(st.lists(st.floats(-10, 10) | st.floats(width=32), min_size=3, max_size=3))
@example([0.0, 0.0, 2.220446049250313e-16])
@example([3e38, 3e38, math.inf])
@settings(max_examples=200, deadline=None)
def test_whatever_is_answered_becomes_probabilities(row: list[float]) -> None:
    p = as_probabilities(torch.tensor([row]), 3)
    assert p.min() >= 0
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)


def test_probabilities_stay_and_classes_become_one_hot() -> None:
    p = torch.tensor([[0.2, 0.3, 0.5]])
    assert torch.allclose(as_probabilities(p, 3), p)
    assert as_probabilities(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert as_probabilities(torch.tensor([[float("nan")] * 3]), 3).tolist()[0] == pytest.approx([1 / 3] * 3)


def test_evidence_and_sure_answers() -> None:
    found = evidence(torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]), 6.0)
    assert torch.allclose(found[0], torch.tensor([4.0, -2.0, -2.0]))
    assert torch.allclose(found[1], torch.zeros(3), atol=1e-6)
    sure = sure_of(found, 1.0)
    assert torch.allclose(sure[0], found[0])
    assert torch.allclose(sure.sum(1), torch.zeros(3), atol=1e-6)


def test_a_decoder_learns_a_linear_map() -> None:
    answers = torch.randn(200, 2, generator=g())
    images = (0.5 + 0.1 * answers[:, :1, None, None] * torch.ones(1, *SHAPE)).clamp(0, 1)
    config = DecoderConfig(steps=300, width=16, weight_decay=0.0)
    invert = fit_decoder(answers, images, config, g(1), CPU)
    shown = invert(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert shown[0].mean() == pytest.approx(0.6, abs=0.03)
    assert shown[1].mean() == pytest.approx(0.4, abs=0.03)


def test_inversion_of_a_linear_model_meets_its_optimum() -> None:
    """With weights w on pixel 0 alone and l2 the gradient vanishes where 2 l2/d (x - c) = -dCE/dx; others stay."""
    weight = torch.zeros(2, 64)
    weight[0, 0], weight[1, 0] = 1.0, -1.0

    def model(x: Tensor) -> Tensor:
        return x.flatten(1) @ weight.T

    config = InversionConfig(restarts=2, iterations=400, tv=0.0, l2=64.0, smoothing=0.0, copies=1, lr=0.02)
    images, _ = invert_classes(model, torch.full((2, *SHAPE), 0.5), torch.arange(2), config, g())
    pixel = images.flatten(1)
    x = float(pixel[0, 0])
    slope = 2 / (1 + torch.tensor(2 * x).exp())  # -d/dx of CE(softmax(x, -x), 0)
    assert 2 * (x - 0.5) == pytest.approx(float(slope), abs=0.02)
    assert pixel[:, 1:].sub(0.5).abs().max() < 0.02
    assert pixel[1, 0] < 0.5


def test_a_surrogate_learns_the_answers_and_asks_each_image_once() -> None:
    rows: list[Tensor] = []

    def ask(x: Tensor) -> Tensor:
        rows.append(x)
        bright = (x.flatten(1).mean(1) > 0.5).long()
        return torch.nn.functional.one_hot(bright, 2).float()

    config = SurrogateConfig(rounds=4, generator_steps=2, surrogate_steps=60, width=16, batch=32)
    model = surrogate_of(fit_surrogate(ask, 402, SHAPE, 2, config, g(), CPU), SHAPE, 2, config, CPU)
    asked = torch.cat(rows)
    assert len(asked) == 402
    assert len(asked.unique(dim=0)) == 402
    probe = torch.cat([torch.full((1, *SHAPE), v) for v in (0.1, 0.9)])
    assert model(probe).argmax(1).tolist() == [0, 1]
