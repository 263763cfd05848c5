"""What a card says of a client's loss and clipping is what PyTorch computes, and inversion simulates it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.gradients import GradientMap
from fdaudit.attacks.gradient_inversion.updates import ClientSteps, UpdateMap
from fdaudit.protocols._fedavg_settings import FedAvgConfig
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.models import architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import SINGLE_LABEL
from fdaudit.training.execution import Execution
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import rate_in
from fdaudit.training.trainer import Fit, Job, Trainer, parameters_of

CLASSES = 4
WEIGHTS = (0.5, 1.0, 2.0, 3.0)
LOSSES = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"class_weights": WEIGHTS},
    "summed": {"reduction": "sum"},
    "smoothed and weighted": {"label_smoothing": 0.3, "class_weights": WEIGHTS},
    "summed and weighted": {"class_weights": WEIGHTS, "reduction": "sum", "label_smoothing": 0.2},
}
CLIPS = {"none": {}, "norm": {"norm": 0.3}, "wide norm": {"norm": 1e3}, "value": {"value": 0.02}}


def own(loss: dict[str, object], z: Tensor, y: Tensor) -> Tensor:
    weights = loss.get("class_weights")
    return F.cross_entropy(
        z,
        y,
        weight=None if weights is None else torch.tensor(weights),
        label_smoothing=loss.get("label_smoothing", 0.0),
        reduction=loss.get("reduction", "mean"),
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def records() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.rand(5, 1, 3, 3, generator=g), torch.randint(CLASSES, (5,), generator=g)


@pytest.mark.parametrize("name", LOSSES)
def test_targets_give_the_loss_of_pytorch(name: str) -> None:
    (_, y), z = records(), torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(2))
    step = ClientStep.of({"loss": LOSSES[name]})
    assert step.plain == (name == "plain")
    torch.testing.assert_close(F.cross_entropy(z, step.targets(y, CLASSES)), own(LOSSES[name], z, y))
    sure = F.one_hot(y, CLASSES).float()
    torch.testing.assert_close(step.targets(sure, CLASSES), step.targets(y, CLASSES))


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("loss", LOSSES)
def test_inversion_simulates_the_stated_step(loss: str, clip: str) -> None:
    module, (x, y), rule = network(), records(), CLIPS[clip]
    step = ClientStep.of({"loss": LOSSES[loss], "clip": rule})
    start = {n: t.detach().clone() for n, t in module.named_parameters()}
    two = (x[None].repeat(2, 1, 1, 1, 1), y[None].repeat(2, 1))
    for strategy in ("folded", "loop", "vmap"):
        simulated = GradientMap(module, start, strategy, step=step)
        v = simulated(*two)
        dot, square = simulated.products(*two, v.detach())
        torch.testing.assert_close(dot, square)
        torch.testing.assert_close(v[0], one_step(module, loss, rule, x, y))
    training = ClientSteps(lr=0.1, batches=((0, 1, 2), (3, 4)), step=step)
    update = UpdateMap(module, start, training)(*two)[0]
    expected = trained(module, loss, rule, x, y, training)
    torch.testing.assert_close(update, expected)


def clip_in_place(module: nn.Module, rule: dict[str, float]) -> None:
    if "norm" in rule:
        nn.utils.clip_grad_norm_(module.parameters(), rule["norm"])
    if "value" in rule:
        nn.utils.clip_grad_value_(module.parameters(), rule["value"])


def one_step(module: nn.Module, loss: str, rule: dict[str, float], x: Tensor, y: Tensor) -> Tensor:
    module.zero_grad()
    own(LOSSES[loss], module(x), y).backward()
    clip_in_place(module, rule)
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def trained(
    module: nn.Module, loss: str, rule: dict[str, float], x: Tensor, y: Tensor, training: ClientSteps
) -> Tensor:
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    optimizer = torch.optim.SGD(module.parameters(), lr=training.lr)
    for batch in training.batches:
        one_step(module, loss, rule, x[list(batch)], y[list(batch)])
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]) - before


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"lr": 0.1}, [0.1, 0.1, 0.1]),
        ({"lr": 0.1, "lr_decay": 0.5}, [0.1, 0.05, 0.025]),
        ({"lr": [0.3, 0.2]}, [0.3, 0.2, None]),
        ({}, [None, None, None]),
    ],
)
def test_a_rate_may_change_with_the_rounds(settings: dict[str, object], rates: list[float | None]) -> None:
    assert [rate_in(settings, number) for number in range(3)] == pytest.approx(rates)


def focal(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    likelihood = F.log_softmax(model(x), 1).gather(1, y[:, None])[:, 0]
    return -((1 - likelihood.exp()) ** 2 * likelihood).mean()


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - F.one_hot(y, CLASSES)).square().sum()


def smoothed_twice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, label_smoothing=0.2) + F.cross_entropy(model(1 - x), y)


OWN = {"focal": focal, "squares": squares, "smoothed twice": smoothed_twice}


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("name", OWN)
def test_inversion_simulates_a_loss_of_the_users_own(
    name: str, micro: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdaudit.training.objectives.named_loss", lambda _: OWN[name])
    module, (x, y) = network(), records()
    step = ClientStep(function="import:own:loss", micro_batch=micro)
    start = {n: t.detach().clone() for n, t in module.named_parameters()}
    seen = x[None].clone().requires_grad_()
    v = GradientMap(module, start, step=step)(seen, y[None])
    parts = zip(x.split(micro or len(x)), y.split(micro or len(x)), strict=True)
    loss = torch.stack([OWN[name](module, *part) for part in parts]).mean()
    expected = torch.autograd.grad(loss, list(module.parameters()))
    torch.testing.assert_close(v[0], torch.cat([g.flatten() for g in expected]))
    assert torch.autograd.grad(v.square().sum(), seen)[0].any()
    update = UpdateMap(module, start, ClientSteps(lr=0.1, batches=(tuple(range(len(x))),), step=step))(
        x[None], y[None]
    )
    torch.testing.assert_close(update[0], -0.1 * v[0].detach())


@pytest.mark.parametrize("name", ["focal", "squares"])
def test_losses_of_single_records_are_those_of_batches_of_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdaudit.training.objectives.named_loss", lambda _: OWN[name])
    module, (x, y) = network(), records()
    found = ClientStep(function="import:own:loss").losses(module(x).detach(), x, y)
    alone = [OWN[name](module, x[i : i + 1], y[i : i + 1]).detach() for i in range(len(x))]
    torch.testing.assert_close(found, torch.stack(alone))


@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_accumulated_targets_give_the_mean_loss_of_the_batches(name: str, micro: int) -> None:
    (_, y), z = records(), torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(2))
    step = ClientStep.of({"loss": LOSSES[name], "micro_batch": micro})
    parts = [own(LOSSES[name], *part) for part in zip(z.split(micro), y.split(micro), strict=True)]
    torch.testing.assert_close(F.cross_entropy(z, step.targets(y, CLASSES)), torch.stack(parts).mean())


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_training_core_takes_the_steps_of_pytorch(loss: str, clip: str, strategy: Any) -> None:
    network = architecture(ModelSpec(name="mlp", params={"widths": [8]}), (1, 3, 3), CLASSES)
    module = network.build(torch.Generator().manual_seed(3))
    start = parameters_of(module)
    g = torch.Generator().manual_seed(4)
    x, y = torch.rand(12, 1, 3, 3, generator=g), torch.randint(CLASSES, (12,), generator=g)
    batches = tuple(torch.randperm(12, generator=g)[:5] for _ in range(3))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    gradients = list[Tensor]()
    for batch in batches:
        optimizer.zero_grad()
        own(LOSSES[loss], module(x[batch]), y[batch]).backward()
        if "norm" in CLIPS[clip]:
            nn.utils.clip_grad_norm_(module.parameters(), CLIPS[clip]["norm"])
        if "value" in CLIPS[clip]:
            nn.utils.clip_grad_value_(module.parameters(), CLIPS[clip]["value"])
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
        optimizer.step()
    step = ClientStep.of({"loss": LOSSES[loss], "clip": CLIPS[clip]})
    execution = Execution(device="cpu", threads=1, strategy=strategy, memory_format="contiguous")
    trainer = Trainer(network, execution)
    jobs = [Job(party=p, parameters=start, x=x, targets=y, batches=batches) for p in ("a", "b")]
    fit = Fit(lr=0.1, momentum=0.5, step=step)
    for fitted in trainer.fit(jobs, fit):
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(fitted.parameters[name], tensor)
    sent = trainer.gradients(jobs, fit)[0].parameters
    torch.testing.assert_close(
        torch.cat([sent[n].flatten() for n, _ in module.named_parameters()]), gradients[0]
    )


def test_updates_of_weighted_classes_are_simulated_for_many_guesses_at_once() -> None:
    module, (x, y) = network(), records()
    step = ClientStep.of({"loss": LOSSES["smoothed and weighted"], "clip": {"norm": 0.3}})
    steps = ClientSteps(lr=0.1, batches=((0, 1), (2, 3, 4)), step=step, mu=0.5)
    start = {n: p.detach() for n, p in module.named_parameters()}
    stacked = UpdateMap(module, start, steps, strategy="vmap")(x.expand(4, *x.shape), y.expand(4, -1))
    alone = UpdateMap(module, start, steps, strategy="loop")(x[None], y[None])
    torch.testing.assert_close(stacked, alone.expand(4, -1))


def test_a_rule_on_records_gradients_refuses_a_stated_step() -> None:
    config = validate(FedAvgConfig, {"loss": {"label_smoothing": 0.2}, "local_steps": 1})
    with pytest.raises(SpecError, match="defence of training"):
        config.refuse_unused(CLASSES, SINGLE_LABEL, defended=True)
    weighted = validate(FedAvgConfig, {"loss": {"class_weights": [1, 2, 3]}})
    with pytest.raises(SpecError, match=r"class_weights: .* 3 "):
        weighted.refuse_unused(CLASSES, SINGLE_LABEL, defended=False)
