"""DP-SGD accepts a network only after trials: it keeps the records of a batch apart and remembers none."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fdaudit
from fdaudit.models import architecture
from fdaudit.models.generative import build_discriminator
from fdaudit.models.network import Network
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing.specs import small_spec
from fdaudit.training.private_step import unfit

from ..helpers.refusals import refused

SHAPE = (1, 8, 8)


class Changed(nn.Module):
    """A small network whose images are changed first, by `first(module, x)`."""

    def __init__(self, first: Any) -> None:
        super().__init__()
        self.inner, self.outer, self._first = nn.Linear(64, 6), nn.Linear(6, 3), first
        self.seen: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(self._first(self, x.flatten(1)))))


def remembering(module: Changed, x: Tensor) -> Tensor:
    before, module.seen = module.seen, 0.9 * module.seen + 0.1 * x.detach().mean(0)
    return x - before


def remembering_for_later(module: Changed, x: Tensor) -> Tensor:
    if module.training:
        module.seen = x.detach().mean(0)
        return x
    return x - module.seen


def attention(_: Changed, x: Tensor) -> Tensor:
    return x + (x @ x.T / 8).softmax(1) @ x


def by_hand(_: Changed, x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


MIXING: dict[str, Any] = {
    "centred": lambda _, x: x - x.mean(0),
    "centred-detached": lambda _, x: x - x.detach().mean(0),
    "largest": lambda _, x: x / x.max(),
    "size": lambda _, x: x / len(x),
    "size-detached": lambda m, x: F.dropout(x, 0.5, m.training) / len(x),
    "batch-norm": by_hand,
    "layer-norm-over-batch": lambda _, x: F.layer_norm(x.T, (len(x),)).T if len(x) > 1 else x,
    "sorted": lambda _, x: x.sort(0).values,
    "rolled": lambda _, x: x.roll(1, 0),
    "flipped": lambda _, x: x.flip(0),
    "summed": lambda _, x: x.cumsum(0),
    "shuffled": lambda _, x: x[torch.randperm(len(x))],
    "attention": attention,
    "python-noise": lambda _, x: x * random.random(),
    "weakly": lambda _, x: x + 1e-5 * x.mean(0),
    "after-dropout": lambda m, x: F.dropout(x, 0.5, m.training) - x.mean(0),
    "remembering": remembering,
    "remembering-for-later": remembering_for_later,
}


@pytest.mark.parametrize("how", MIXING)
def test_a_network_that_mixes_or_remembers_records_is_refused(how: str) -> None:
    found = unfit(Changed(MIXING[how]), SHAPE)
    assert found is not None
    assert "depends on" in found or "two passes" in found


class Buffered(nn.Module):
    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        self.register_buffer("total", torch.zeros(64), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.total += x.detach().flatten(1).sum(0).to(self.total)
        return self.net(x)


class Frozen(nn.Module):
    """Keeps statistics in a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        self.mean = nn.Parameter(torch.zeros(64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.data.lerp_(x.detach().flatten(1).mean(0).to(self.mean), 0.1)
        return self.net(x)


class Patches(nn.Module):
    """Every layer meets four rows a record: per-sample gradients would be clipped four times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 16)).reshape(len(x), 4, 3).mean(1)


def instance_norm(**settings: bool) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, **settings), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (instance_norm(track_running_stats=True, affine=False), "running"),
        (instance_norm(track_running_stats=True, affine=True), "running"),
        (Buffered(True), "buffer total"),
        (Buffered(False), "buffer total"),
        (Frozen(), "parameter mean"),
        (Patches(), "gradients of"),
    ],
    ids=["instance-norm", "affine-instance-norm", "buffer", "hidden-buffer", "parameter", "patches"],
)
def test_what_a_network_keeps_of_records_is_named(module: nn.Module, says: str) -> None:
    found = unfit(module, SHAPE)
    assert found is not None
    assert says in found


class Split(Network):
    """Looks harmless by its own forward; DaFKD trains its extractor and head by themselves."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__(extractor, nn.Linear(6, 3))
        self.flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flat(x))


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_the_parts_that_a_joint_training_uses_are_tried_by_themselves() -> None:
    assert unfit(Split(nn.Sequential(nn.Flatten(), nn.Linear(64, 6))), SHAPE) is None
    assert unfit(Split(nn.Sequential(nn.Flatten(), Centred(), nn.Linear(64, 6))), SHAPE) is not None


class Shared(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.first(x.flatten(1)))
        return self.last(torch.relu(self.again(torch.relu(self.again(z)))))


def conv(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *more, nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


HONEST: dict[str, Any] = {
    "group-norm": lambda: conv(nn.GroupNorm(2, 4)),
    "layer-norm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3)),
    "instance-norm": lambda: instance_norm(affine=True),
    "bare-instance-norm": lambda: instance_norm(affine=False),
    "dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 8), nn.Dropout(), nn.Linear(8, 3)
    ),
    "dropout2d": lambda: conv(nn.Dropout2d(0.5)),
    "alpha-dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.AlphaDropout(), nn.Linear(8, 3)
    ),
    "functional-dropout": lambda: Changed(lambda m, x: F.dropout(x, 0.5, m.training)),
    "noise": lambda: Changed(lambda m, x: x + 0.1 * torch.randn_like(x) if m.training else x),
    "softmax": lambda: Changed(lambda _, x: x.softmax(1)),
    "own-largest": lambda: Changed(lambda _, x: x / (1 + x.amax(1, keepdim=True))),
    "constant-buffer": lambda: nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(64, 3)),
    "shared": Shared,
}


class Scaled(nn.Module):
    """Normalises by public constants."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


@pytest.mark.thorough
@pytest.mark.parametrize("how", HONEST)
def test_an_honest_network_passes(how: str) -> None:
    assert unfit(HONEST[how](), SHAPE) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("mlp", 8),
        ("mlp-1024-1024", 8),
        ("cnn-strided", 16),
        ("lenet-dlg", 16),
        ("cnn-5-5", 28),
        ("resnet8", 16),
    ],
)
def test_networks_of_the_zoo_pass(name: str, side: int) -> None:
    made = architecture(ModelSpec(name=name), (1, side, side), 3)
    assert unfit(made.build(child(0, "w")), (1, side, side)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn-3-3", "cnn-5-3", "resnet18", "resnet34", "resnet50"])
def test_large_networks_of_the_zoo_pass(name: str) -> None:
    made = architecture(ModelSpec(name=name), (1, 32, 32), 3)
    assert unfit(made.build(child(0, "w")), (1, 32, 32)) is None


def test_fediods_discriminator_passes() -> None:
    assert unfit(build_discriminator(child(0, "d"), 4, SHAPE), SHAPE) is None


def test_trials_leave_the_global_randomness_as_it_was() -> None:
    module = HONEST["noise"]()
    state = torch.get_rng_state()
    unfit(module, SHAPE)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("where", ["model", "client_models"])
def test_an_imported_network_that_mixes_records_is_refused_by_its_field(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "a_network_that_mixes.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n"
        "    def __init__(self, classes):\n        super().__init__()\n"
        "        self.layer = nn.Linear(64, classes)\n\n"
        "    def forward(self, x):\n        x = x.flatten(1)\n        return self.layer(x - x.mean(0))\n"
    )
    mixing = {"name": "import:a_network_that_mixes:Net"}
    defence = {
        "at": "training",
        "name": "dp-sgd",
        "params": {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5},
    }
    spec = small_spec(defenses=[defence])
    if where == "model":
        spec["model"] = mixing
    else:
        spec |= {"protocol": {"name": "fedmd", "params": {"rounds": 1}}, "splits": {"proxy": 0.2}}
        spec["client_models"] = [spec["model"], mixing]
    field = "model.name" if where == "model" else "client_models.1.name"
    error = refused(lambda: fdaudit.run(spec, tmp_path / "run"), field)
    assert "depends on" in error.problem
