"""What trials on random inputs show of networks as people write them, and that they are trained accordingly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import SpecError
from fdaudit.rng import child
from fdaudit.testing.federation import execution as plainest
from fdaudit.training.execution import Execution
from fdaudit.training.replicas import rehearsed
from fdaudit.training.trainer import Fit, Job, Trainer, draw_batches, parameters_of

from ..helpers.network_double import NetworkDouble

SHAPE, CLASSES = (1, 8, 8), 4


class Applied(nn.Module):
    """Layers with a pass of its own."""

    def __init__(self, forward: Callable[[nn.ModuleDict, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self._forward = nn.ModuleDict(layers), forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self.layers, x)


def dense(**more: nn.Module) -> dict[str, nn.Module]:
    return {"a": nn.Linear(64, 16), "out": nn.Linear(16, CLASSES), **more}


def plain(m: nn.ModuleDict, x: Tensor) -> Tensor:
    return m["out"](torch.relu(m["a"](x.flatten(1))))


def tied() -> nn.Module:
    layers = {"a": nn.Linear(64, 64), "b": nn.Linear(64, 64), "out": nn.Linear(64, CLASSES)}
    layers["b"].weight = layers["a"].weight
    return Applied(lambda m, x: m["out"](torch.tanh(m["b"](torch.tanh(m["a"](x.flatten(1)))))), **layers)


def tied_to_functional() -> nn.Module:
    def autoencoding(m: nn.ModuleDict, x: Tensor) -> Tensor:
        h = torch.tanh(m["a"](x.flatten(1)))
        return m["out"](torch.tanh(F.linear(F.linear(h, m["a"].weight.T), m["a"].weight)))

    return Applied(autoencoding, **dense())


def called_twice() -> nn.Module:
    layers = {"a": nn.Linear(64, 64), "out": nn.Linear(64, CLASSES)}
    return Applied(lambda m, x: m["out"](torch.tanh(m["a"](torch.tanh(m["a"](x.flatten(1)))))), **layers)


def attention(dropout: float) -> nn.Module:
    def attend(m: nn.ModuleDict, x: Tensor) -> Tensor:
        rows = x.flatten(1, 2)
        return m["out"](m["attend"](rows, rows, rows, need_weights=False)[0].mean(1))

    return Applied(
        attend,
        attend=nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True),
        out=nn.Linear(8, CLASSES),
    )


def viewed() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        h = m["conv"](x)
        return m["out"](h.view(-1, h.shape[1] * 36))

    return Applied(forward, conv=nn.Conv2d(1, 4, 3), out=nn.Linear(144, CLASSES))


def viewed_after_pooling() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["out"](F.max_pool2d(torch.relu(m["conv"](x)), 2).view(len(x), -1))

    return Applied(forward, conv=nn.Conv2d(1, 6, 5, padding=2), out=nn.Linear(96, CLASSES))


def viewed_by_group() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["out"](m["conv"](x).view(len(x), 2, 2 * 36).mean(1))

    return Applied(forward, conv=nn.Conv2d(1, 4, 3), out=nn.Linear(72, CLASSES))


def with_norm(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["out"](torch.relu(m["norm"](m["a"](x.flatten(1)))))

    return lambda: Applied(forward, **dense(norm=norm()))


def spectral() -> nn.Module:
    return Applied(plain, **{**dense(), "a": nn.utils.parametrizations.spectral_norm(nn.Linear(64, 16))})


def frozen(names: tuple[str, ...]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = Applied(plain, **dense())
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not name.endswith(names))
        return module

    return make


def drawing(draw: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Applied(lambda m, x: m["out"](draw(torch.relu(m["a"](x.flatten(1))))), **dense())


def recurrent() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["out"](m["rnn"](x[:, 0])[0][:, -1])

    return Applied(forward, rnn=nn.LSTM(8, 12, batch_first=True), out=nn.Linear(12, CLASSES))


SHARING = {"two layers": tied, "functional": tied_to_functional, "called twice": called_twice}
CONTIGUOUS = {
    "view": viewed,
    "view after pooling": viewed_after_pooling,
    "view by group": viewed_by_group,
}
DRAWING = {
    "functional dropout": drawing(lambda h: F.dropout(h, 0.3)),
    "noise": drawing(lambda h: h + 0.1 * torch.randn_like(h)),
    "attention dropout": lambda: attention(0.2),
    "alpha dropout": drawing(lambda h: F.alpha_dropout(h, 0.2, training=True)),
}
COUPLING = {
    "batch norm": with_norm(lambda: nn.BatchNorm1d(16)),
    "batch norm of an average": with_norm(lambda: nn.BatchNorm1d(16, momentum=None)),
    "no statistics": with_norm(lambda: nn.BatchNorm1d(16, track_running_stats=False)),
    "spectral norm": spectral,
}
ORDINARY = {
    "layer norm": with_norm(lambda: nn.LayerNorm(16)),
    "unused layer": lambda: Applied(plain, **dense(aux=nn.Linear(3, 3))),
    "unused parameter": lambda: Applied(plain, **dense(rest=nn.ParameterList([torch.ones(3)]))),
    "frozen layer": frozen(("a.weight", "a.bias")),
    "frozen weight": frozen(("out.weight",)),
    "attention": lambda: attention(0.0),
    "lstm": recurrent,
    **SHARING,
    **CONTIGUOUS,
}
ALL = {**DRAWING, **COUPLING, **ORDINARY}


def double(make: Callable[[], nn.Module]) -> NetworkDouble:
    return NetworkDouble(make, SHAPE)


@pytest.mark.parametrize("name", ALL)
def test_trials_tell_what_a_network_does(name: str) -> None:
    shown = rehearsed(double(ALL[name]))
    assert shown.random == (name in DRAWING)
    assert shown.coupled == (name in DRAWING or name in COUPLING)
    assert shown.coupled or not shown.keeps
    assert shown.contiguous_only == (name in CONTIGUOUS)
    assert shown.single == (name not in COUPLING or name == "spectral norm")
    assert shown.draws_answers == (name in DRAWING and name != "attention dropout")
    if name not in ORDINARY:
        assert not shown.stackable or name == "no statistics"


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
@pytest.mark.parametrize("name", ALL)
def test_every_network_is_trained_the_same_under_both_strategies(name: str, strategy: str) -> None:
    network, jobs = double(ALL[name]), []
    for k in range(2):
        g = child(3, "job", k)
        jobs.append(
            Job(
                party=f"client/{k}",
                parameters=parameters_of(network.build(child(4, "w", k))),
                x=torch.rand(12, *SHAPE, generator=g),
                targets=torch.randint(CLASSES, (12,), generator=g),
                batches=draw_batches(12, 5, steps=3, generator=g),
                seed=k,
            )
        )
    fit = Fit(lr=0.1)
    settings = Execution(device="cpu", threads=1, strategy=strategy, memory_format="contiguous")  # type: ignore[arg-type]
    trainer = Trainer(network, settings)
    for job, fitted in zip(jobs, trainer.fit(jobs, fit), strict=True):
        (alone,) = Trainer(network, settings).fit([job], fit)
        assert fitted.parameters.keys() == job.parameters.keys()
        for tensor, due in alone.parameters.items():
            torch.testing.assert_close(fitted.parameters[tensor], due, rtol=1e-4, atol=1e-5)
        assert any(not torch.equal(fitted.parameters[n], job.parameters[n]) for n in job.parameters)
    (gradient, _) = trainer.gradients(jobs, fit)
    assert set(gradient.parameters) == set(trainer._trainable)


class Heads(NamedTuple):
    """Answers of a network with an auxiliary head, as torchvision's GoogLeNet gives them in training."""

    logits: Tensor
    auxiliary: Tensor


def failing(m: nn.ModuleDict, x: Tensor) -> Tensor:
    return m["out"](m["a"](x.flatten(1)).reshape(3, -1))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "all frozen": (frozen(("weight", "bias")), "no parameter that can be trained"),
    "no parameters": (lambda: Applied(lambda _, x: x.flatten(1)[:, :CLASSES]), "no parameter"),
    "softmax": (lambda: Applied(lambda m, x: plain(m, x).softmax(1), **dense()), "returns probabilities"),
    "sigmoids of two": (
        lambda: Applied(lambda m, x: _two(plain(m, x)[:, 0].sigmoid()), **dense()),
        "returns probabilities",
    ),
    "normalised": (
        lambda: Applied(lambda m, x: F.normalize(plain(m, x).exp(), p=1, dim=1), **dense()),
        "returns probabilities",
    ),
    "only in evaluation": (lambda: Applied(_evaluated, **dense()), r"layer layers\.out: "),
    "without a graph": (
        lambda: Applied(lambda m, x: plain(m, x).detach(), **dense()),
        "does not require grad",
    ),
    "of other batches": (lambda: Applied(failing, **dense()), "cannot be trained on 4 records"),
    "auxiliary heads": (
        lambda: Applied(lambda m, x: Heads(plain(m, x), x), **dense()),
        "returns a Heads in training, not a tensor of logits",
    ),
}


def _two(p: Tensor) -> Tensor:
    return torch.stack([p, 1 - p], 1)


def _evaluated(m: nn.ModuleDict, x: Tensor) -> Tensor:
    return m["out"](x.flatten(1) if m.training else torch.relu(m["a"](x.flatten(1))))


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_cannot_be_trained_is_refused_in_one_line(name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(SpecError, match=said) as error:
        rehearsed(double(make))
    assert "\n" not in str(error.value)


def test_log_probabilities_are_logits() -> None:
    assert rehearsed(double(lambda: Applied(lambda m, x: plain(m, x).log_softmax(1), **dense()))).stackable


def test_a_counter_of_batches_begins_anew_with_every_job() -> None:
    """Without a momentum, BatchNorm weighs a batch by the number of those before it."""
    network = double(with_norm(lambda: nn.BatchNorm1d(16, momentum=None)))
    job = Job(
        party="c",
        parameters=parameters_of(network.build(child(1, "w"))),
        x=torch.rand(8, *SHAPE, generator=child(1, "x")),
        targets=torch.zeros(8, dtype=torch.int64),
        batches=[torch.arange(8)] * 2,
    )
    trainer = Trainer(network, plainest())
    first, second = (trainer.fit([job], Fit(lr=0.1))[0].parameters for _ in range(2))
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_equal_networks_are_tried_once() -> None:
    built = []

    def make() -> nn.Module:
        built.append(None)
        return Applied(plain, **dense())

    network = double(make)
    rehearsed(network)
    count = len(built)
    rehearsed(network)
    assert len(built) == count
