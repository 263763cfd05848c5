"""Simulated local training against PyTorch's optimiser and fdaudit's own training core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.analytic import AnalyticConfig, AnalyticRecovery
from fdaudit.attacks.gradient_inversion.composition import labels_behind
from fdaudit.attacks.gradient_inversion.dlg import DLG, DLGConfig
from fdaudit.attacks.gradient_inversion.gradients import Strategy, flatten
from fdaudit.attacks.gradient_inversion.inverting import (
    InvertingGradients,
    InvertingGradientsConfig,
    invert_gradients,
)
from fdaudit.attacks.gradient_inversion.readings import find_readings
from fdaudit.attacks.gradient_inversion.training_mode import network
from fdaudit.attacks.gradient_inversion.updates import ClientSteps, UpdateMap, gradient_of_update, schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import UsageError
from fdaudit.training.trainer import draw_batches
from fdaudit.types import AttackTask

from .gradient_inversion_cases import (
    MemoryArchitecture,
    MemoryView,
    digits,
    dlg_lenet,
    matched_psnr,
    mlp,
    one_thread,  # noqa: F401
    psnr,
    strided_cnn,
    tensors,
    true_gradient,
    view_of_messages,
)


def _client(module: nn.Module, x: Tensor, y: Tensor, training: ClientSteps) -> dict[str, Tensor]:
    """A client's update by PyTorch's optimiser; the module is changed."""
    start = tensors(module)
    optimiser: torch.optim.Optimizer
    if training.optimizer == "sgd":
        optimiser = torch.optim.SGD(
            module.parameters(), training.lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
    else:
        kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
        optimiser = kind(module.parameters(), training.lr, weight_decay=training.weight_decay)
    for batch in training.batches:
        loss = F.cross_entropy(module(x[list(batch)]), y[list(batch)])
        away = sum((p - start[n]).square().sum() for n, p in module.named_parameters())
        optimiser.zero_grad()
        (loss + training.mu / 2 * away).backward()
        optimiser.step()
    return {n: p.detach() - start[n] for n, p in module.named_parameters()}


@pytest.mark.parametrize("strategy", ["loop", "vmap", None])
@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"mu": 0.5},
        {"momentum": 0.5, "mu": 0.1},
        {"optimizer": "adam"},
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1},
    ],
)
def test_true_images_give_the_clients_own_update(strategy: Strategy | None, terms: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(0)
    batches = ((4, 0, 1, 3, 2),) if strategy is None else ((0, 1), (2, 3), (4,), (0, 1))
    training = ClientSteps(lr=0.1, batches=batches, **terms)
    x, y = torch.rand(3, 5, 1, 16, 16, generator=g).double(), torch.randint(0, 10, (3, 5), generator=g)
    module = dlg_lenet(16, g).double()
    start = tensors(module)
    simulate = UpdateMap(module, start, training, strategy)
    found = simulate(x, y)
    for r in range(3):
        module.load_state_dict(start)
        torch.testing.assert_close(found[r], flatten(_client(module, x[r], y[r], training), simulate.names))


def test_strategies_agree_on_derivatives() -> None:
    g = torch.Generator().manual_seed(1)
    module = mlp(4, g).double()
    training = ClientSteps(lr=0.5, batches=((0, 1), (2,)))
    x, y = torch.rand(2, 3, 1, 4, 4, generator=g).double(), torch.randint(0, 10, (2, 3), generator=g)
    derivatives = []
    for strategy in ("loop", "vmap"):
        v = x.clone().requires_grad_()
        update = UpdateMap(module, tensors(module), training, strategy)(v, y)
        derivatives.append(torch.autograd.grad(update.square().sum(), v)[0])
    torch.testing.assert_close(*derivatives)


@pytest.mark.parametrize("terms", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"mu": 0.5}])
def test_one_step_updates_are_gradients(terms: dict[str, float]) -> None:
    g = torch.Generator().manual_seed(2)
    module = strided_cnn(16, g).double()
    x, y = torch.rand(3, 1, 16, 16, generator=g).double(), torch.tensor([1, 2, 3])
    start, gradient = tensors(module), true_gradient(module, x, y)
    training = ClientSteps(lr=0.3, batches=((0, 1, 2),), **terms)
    found = gradient_of_update(_client(module, x, y, training), start, training)
    for name, expected in gradient.items():
        torch.testing.assert_close(found[name], expected)


@given(
    n=st.integers(1, 40),
    size=st.integers(1, 16),
    length=st.integers(1, 6),
    by_epochs=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_schedules_have_the_batches_of_the_training_core(
    n: int, size: int, length: int, by_epochs: bool
) -> None:
    kind = {"epochs": length} if by_epochs else {"steps": length}
    ours = schedule(n, size, **kind)
    theirs = draw_batches(n, size, generator=torch.Generator().manual_seed(0), **kind)
    assert [len(b) for b in ours] == [len(b) for b in theirs]
    # Images are numbered without a gap, and no more of them appear than the client can have used.
    used = sorted({i for b in ours for i in b})
    assert used == list(range(len(used)))
    assert len(used) <= len({int(i) for b in theirs for i in b}) or not by_epochs
    assert len(used) <= n


def test_schedules_without_a_count_never_repeat_a_record() -> None:
    assert schedule(None, 2, steps=3) == ((0, 1), (2, 3), (4, 5))
    assert schedule(5, 2, epochs=1) == ((0, 1), (2, 3), (4,))
    assert ClientSteps(lr=1.0, batches=schedule(None, 2, steps=3)).images == 6
    with pytest.raises(UsageError, match=r"^n: None "):
        schedule(None, 2, epochs=1)
    with pytest.raises(UsageError, match=r"^steps: None "):
        schedule(3, 2)


@pytest.mark.thorough
def test_inverts_three_local_steps() -> None:
    """Positive control of the multi-step path, with the gradient at the start model as what it must beat."""
    x, y = digits()
    g = torch.Generator().manual_seed(3)
    module = strided_cnn(16, g)
    start, training = tensors(module), ClientSteps(lr=0.1, batches=((0,), (1,), (2,)))
    x, y = x[[0, 1, 2]], y[[0, 1, 2]]
    update = _client(module, x, y, training)
    config = InvertingGradientsConfig(restarts=4, iterations=300, tv=1e-4)
    found = invert_gradients(
        module, start, [update], y[None], shape=(1, 16, 16), config=config, generator=g, training=training
    )
    score = matched_psnr(found.images[0], x).mean()
    print(f"three local steps: {score:.1f} dB, objective {found.objective.item():.1e}")
    assert score > 30


def _adam_view(
    optimizer: str, n: int, lr: float, steps: int = 1, weight_decay: float = 0.0
) -> tuple[MemoryView, Knowledge, Tensor, Tensor]:
    """Return a view of one client's update by Adam from n digits, what is known, and the digits."""
    x, y = digits()
    module = strided_cnn(16, torch.Generator().manual_seed(2))
    start = tensors(module)
    batches = (tuple(range(n)),) * steps
    training = ClientSteps(lr=lr, batches=batches, optimizer=optimizer, weight_decay=weight_decay)  # type: ignore[arg-type]
    messages = [
        ("client/0", ("server",), "sample_count", {"n": torch.tensor(n)}),
        ("server", ("client/0",), "model_parameters", start),
        ("client/0", ("server",), "model_update", _client(module, x[:n], y[:n], training)),
    ]
    public = {"lr": lr, "batch_size": n, "local_steps": steps, "weight_decay": weight_decay}
    view = view_of_messages(messages, optimizer=optimizer, **public)
    auxiliary = x[1000:1200], y[1000:1200]
    knowledge = Knowledge(architecture=MemoryArchitecture(strided_cnn), auxiliary=auxiliary)
    return view, knowledge, x[:n], y[:n]


@pytest.mark.parametrize(("optimizer", "decay"), [("adam", 0.0), ("adamw", 0.1)])
def test_the_first_step_of_adam_shows_the_label_and_the_sign_of_every_entry(
    optimizer: str, decay: float
) -> None:
    view, knowledge, x, y = _adam_view(optimizer, 1, 1e-3, weight_decay=decay)
    (upload,) = find_readings(view, "client/0", 0, 64)
    assert upload.training.optimizer == optimizer
    labels = labels_behind(upload, network(knowledge), 1, x, knowledge.auxiliary)
    assert labels.tolist() == y.tolist()
    exact, smooth = (
        UpdateMap(network(knowledge), upload.start, upload.training, smoothing=k)(x[None], y[None])[0]
        for k in (0.0, 0.1)
    )
    target = flatten(upload.sent, UpdateMap(network(knowledge), upload.start, upload.training).names)
    torch.testing.assert_close(exact, target, rtol=1e-2, atol=2e-7)
    assert 0.9 < float(F.cosine_similarity(smooth.detach(), target, dim=0)) < 1


def test_attacks_on_sums_of_gradients_refuse_updates_of_adam() -> None:
    view, knowledge, _, _ = _adam_view("adam", 1, 1e-3)
    task = AttackTask(targets=("client/0",))
    for attack in (DLG(DLGConfig()), AnalyticRecovery(AnalyticConfig())):
        assert not attack.applicable(view, knowledge, task)
    assert "Adam" in DLG(DLGConfig()).applicable(view, knowledge, task).reason


@pytest.mark.thorough
@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 1), ("adamw", 1), ("adam", 3)])
def test_inverts_uploads_of_adam(optimizer: str, steps: int) -> None:
    view, knowledge, x, _ = _adam_view(optimizer, 1, 1e-3, steps, weight_decay=0.01)
    config = InvertingGradientsConfig(restarts=1, iterations=300, tune=False)
    cell, task = InvertingGradients(config), AttackTask(targets=("client/0",))
    assert cell.applicable(view, knowledge, task)
    (guess,) = cell.run(view, knowledge, task, torch.Generator().manual_seed(0))
    score = float(psnr(guess.images, x))
    print(f"{optimizer}, {steps} steps: {score:.1f} dB")
    assert score > 25
