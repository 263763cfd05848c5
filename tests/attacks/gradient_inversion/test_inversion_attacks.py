"""The three attacks on views: what they need, what they refuse, what they find, and that noise stops them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.analytic import (
    AnalyticConfig,
    AnalyticRecovery,
    candidates,
    recover_image,
)
from fdaudit.attacks.gradient_inversion.dlg import DLG, DLGConfig
from fdaudit.attacks.gradient_inversion.inverting import InvertingGradients, InvertingGradientsConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.models.normalization import first_linear
from fdaudit.types import AttackTask

from .gradient_inversion_cases import (
    MemoryView,
    digits,
    matched_psnr,
    mlp,
    one_thread,  # noqa: F401
    pooling_cnn,
    prior_baseline,
    psnr,
    strided_cnn,
    true_gradient,
    world,
)

ATTACKS = {
    "dlg": (DLG, DLGConfig(restarts=2, evaluations=150)),
    "inverting-gradients": (
        InvertingGradients,
        InvertingGradientsConfig(restarts=1, iterations=200, tv=1e-4),
    ),
    "analytic": (AnalyticRecovery, AnalyticConfig()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gradient", "model_update", "model_parameters"])
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_finds_single_images_in_every_kind_of_upload(name: str, kind: str) -> None:
    attack, config = ATTACKS[name]
    view, knowledge, task, data = world(mlp if name == "analytic" else strided_cnn, kind, (1, 1))
    cell = attack(config)
    assert cell.applicable(view, knowledge, task)
    guesses = cell.run(view, knowledge, task, torch.Generator().manual_seed(0))
    assert [guess.target for guess in guesses] == list(task.targets)
    for k, (guess, (x, y)) in enumerate(zip(guesses, data, strict=True)):
        score = psnr(guess.images, x).item()
        print(f"{name}, {kind}: {score:.1f} dB")
        assert score > 30
        assert guess.labels.tolist() == y.tolist()
        assert guess.messages == (2, 3 + k)
        assert guess.images.shape == (1, 1, 16, 16)
        assert 0 <= guess.images.min() <= guess.images.max() <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS)
def test_noise_that_drowns_the_gradient_stops_every_attack(name: str) -> None:
    attack, config = ATTACKS[name]
    view, knowledge, task, data = world(
        mlp if name == "analytic" else strided_cnn, "gradient", (1, 1), noise=10.0
    )
    ax, ay = knowledge.auxiliary
    for guess, (x, y) in zip(
        attack(config).run(view, knowledge, task, torch.Generator().manual_seed(0)), data, strict=True
    ):
        assert matched_psnr(guess.images[:1], x).item() < prior_baseline(x, y, ax, ay)


@pytest.mark.thorough
def test_dlg_finds_the_label_with_the_image() -> None:
    view, knowledge, task, data = world(strided_cnn, "gradient", (1,))
    cell = DLG(DLGConfig(labels="optimise", restarts=4, evaluations=300))
    (guess,) = cell.run(view, knowledge, task, torch.Generator().manual_seed(0))
    assert psnr(guess.images, data[0][0]).item() > 30
    assert guess.labels.tolist() == data[0][1].tolist()
    assert guess.evaluations <= 4 * 300


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS)
def test_a_guess_repeats_with_its_generator(name: str) -> None:
    attack, config = ATTACKS[name]
    view, knowledge, task, _ = world(mlp, "gradient", (2, 2))
    one, two = (
        attack(config).run(view, knowledge, task, torch.Generator().manual_seed(4))[0].images
        for _ in range(2)
    )
    assert torch.equal(one, two)


# -- what they refuse ---------------------------------------------------------------------------------------


def _reason(
    name: str, make: Any = strided_cnn, kind: str = "gradient", counts: Any = (1,), **public: Any
) -> str:
    attack, config = ATTACKS[name]
    view, knowledge, task, _ = world(make, kind, counts, **public)
    verdict = attack(config).applicable(view, knowledge, task)
    assert not verdict
    return verdict.reason


@pytest.mark.parametrize("name", ATTACKS)
def test_reasons_for_not_applying(name: str) -> None:
    make = mlp if name == "analytic" else strided_cnn
    assert "digests only" in _reason(name, make, keep=False)
    attack, config = ATTACKS[name]
    view, knowledge, task, _ = world(make, "gradient", (1,))
    assert "architecture" in attack(config).applicable(view, Knowledge(), task).reason
    assert "no victim" in attack(config).applicable(view, knowledge, AttackTask(targets=())).reason
    later = attack(config.model_copy(update={"round": 3})).applicable(view, knowledge, task)
    assert "round 3" in later.reason
    turns = tuple(replace(m, round=2) for m in view.messages)  # the victim has its turn in round 2
    assert attack(config).applicable(MemoryView(**{**vars(view), "messages": turns}), knowledge, task)
    alone = MemoryView(**{**vars(view), "messages": view.messages[-1:]})
    assert "started from" in attack(config).applicable(alone, knowledge, task).reason
    many = attack(config.model_copy(update={"max_images": 3}))
    view, knowledge, task, _ = world(make, "gradient", (4,))
    assert "max_images allows 3" in many.applicable(view, knowledge, task).reason


def test_reasons_of_single_attacks() -> None:
    assert "3 steps" in _reason("dlg", kind="model_update", local_steps=3)
    assert "not fully connected" in _reason("analytic", strided_cnn)
    assert "weight decay" in _reason("analytic", mlp, "model_update", weight_decay=0.1, local_steps=2)


def test_only_fit_victims_are_guessed_at() -> None:
    view, knowledge, _, _ = world(mlp, "gradient", (1,))
    task = AttackTask(targets=("client/0", "client/7"))
    for attack, config in ATTACKS.values():
        cell = attack(config)
        assert cell.applicable(view, knowledge, task)
        assert [g.target for g in cell.run(view, knowledge, task, torch.Generator().manual_seed(0))] == [
            "client/0"
        ]


# -- analytic recovery --------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), d=st.integers(1, 30), H=st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_one_input_is_exact_whenever_a_neuron_is_active(seed: int, d: int, H: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x, db = torch.rand(d, generator=g).double(), torch.randn(H, generator=g).double()
    torch.testing.assert_close(recover_image(db[:, None] * x, db), x)
    assert torch.equal(recover_image(torch.zeros(H, d), torch.zeros(H)), torch.zeros(d))


def test_a_batch_shows_inputs_that_neurons_agree_on_first() -> None:
    """Neurons with known activation: three for image 0, two for image 1, two that mix all three images."""
    x = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)).double()
    s = torch.tensor(
        [[1.0, 0, 0], [0.5, 0, 0], [-2, 0, 0], [0, 1, 0], [0, 3, 0], [1, 2, 3], [-1, 0.5, 1]]
    ).double()
    found = candidates(s @ x, s.sum(1))
    torch.testing.assert_close(found.inputs[:2], x[:2])
    assert found.support.tolist() == [3, 2, 1, 1]


def test_batches_give_up_the_images_that_own_a_neuron() -> None:
    x, y = digits()
    g = torch.Generator().manual_seed(0)
    module = mlp(16, g, width=512)
    rows = torch.randint(0, 1000, (4,), generator=g)
    gradient = true_gradient(module, x[rows], y[rows])
    name = first_linear(module, (1, 16, 16))
    found = candidates(gradient[f"{name}.weight"], gradient[f"{name}.bias"])
    with torch.no_grad():
        active = module[1](x[rows].flatten(1)) > 0
    alone = (active & (active.sum(0) == 1)).sum(
        1
    ) >= 2  # images that two neurons show and no other image touches
    scores = psnr(
        found.inputs[: int(alone.sum())].view(-1, 1, 16, 16)[
            torch.cdist(x[rows[alone]].flatten(1), found.inputs[: int(alone.sum())]).argmin(1)
        ],
        x[rows[alone]],
    )
    print(f"analytic, batch of 4, width 512: {int(alone.sum())} images own neurons, PSNR {scores.tolist()}")
    assert alone.any()
    assert (scores > 50).all()


def test_only_a_layer_that_sees_the_image_itself_counts_as_first() -> None:
    assert first_linear(mlp(16, torch.Generator().manual_seed(0)), (1, 16, 16)) == "1"
    assert first_linear(pooling_cnn(16, torch.Generator().manual_seed(0)), (1, 16, 16)) is None
    assert first_linear(nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)), (1, 2, 2)) is None
    assert first_linear(nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2)) is None
