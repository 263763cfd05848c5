"""Networks as people write them, named in a spec: trained, or refused in one line before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.errors import SpecError

from ..helpers.doubles import spec

pytestmark = pytest.mark.usefixtures("trusting")

NETWORKS = """
import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, classes, input_shape, kind="batch"):
        super().__init__()
        norms = {"batch": nn.BatchNorm1d(144), "layer": nn.LayerNorm(144), "group": nn.GroupNorm(2, 144)}
        self.conv, self.norm, self.out = nn.Conv2d(input_shape[0], 4, 3), norms[kind], nn.Linear(144, classes)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x).flatten(1))))


class Viewed(Norm):
    def forward(self, x):
        return self.out(self.conv(x).view(-1, 144))


class Keeps(nn.Module):
    # It keeps a mean of its batches, or has constants only.

    def __init__(self, classes, kind):
        super().__init__()
        self.kind, self.out = kind, nn.Linear(64, classes)
        self.register_buffer("mean", torch.full((64,), 0.5))

    def forward(self, x):
        x = x.flatten(1)
        if self.kind == "moving" and self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        centred = x - (x.mean(0) if self.kind == "mixing" else self.mean)
        return self.out(torch.tanh(centred))


class Lazy(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.LazyConv2d(3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))


def convolutional(num_classes, width=5):
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, num_classes))


def annotated(**settings) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, settings["num_classes"]))


def shaped(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(classes))


def nothing(classes):
    return [classes]
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_networks", raising=False)


def audited(tmp_path: Path, name: str, params: dict[str, Any] | None = None, **training: Any) -> fdaudit.Run:
    protocol = {"name": "fedavg", "params": {"rounds": 1, "local_steps": 1, "batch_size": 4, **training}}
    model = {"name": f"import:their_networks:{name}", "params": params or {}}
    return fdaudit.run(spec(clients=2, attacks=[], model=model, protocol=protocol), tmp_path / "run")


@pytest.mark.parametrize("name", ["Viewed", "Lazy", "convolutional", "annotated", "shaped"])
def test_a_class_or_a_function_makes_the_network(name: str, tmp_path: Path) -> None:
    assert audited(tmp_path, name).case.execution.memory_format == (
        "channels_last" if name in ("Lazy", "convolutional") else "contiguous"
    )


def test_what_is_no_network_or_has_other_channels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="returns list"):
        audited(tmp_path, "nothing")
    model = {"name": "import:their_networks:Viewed"}
    with pytest.raises(SpecError, match="contiguous images only"):
        fdaudit.run(spec(attacks=[], model=model, memory_format="channels_last"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["moving", "mixing", "constant"])
def test_a_gradient_is_refused_only_if_training_changes_more_than_parameters(
    kind: str, tmp_path: Path
) -> None:
    if kind == "moving":
        with pytest.raises(SpecError, match=r"^protocol\.params\.upload: 'gradient' .*statistics"):
            audited(tmp_path, "Keeps", {"kind": kind}, upload="gradient")
        assert not (tmp_path / "run").exists()
        return
    run = audited(tmp_path, "Keeps", {"kind": kind}, upload="gradient")
    view = run.view("server")
    first, last = (view.tensors(view.select(kind="model_parameters")[i]) for i in (0, -1))
    assert first["mean"].equal(last["mean"])
    assert not first["out.weight"].equal(last["out.weight"])


@pytest.mark.parametrize("kind", ["batch", "layer", "group"])
@pytest.mark.parametrize("training", [{"batch_size": 1}, {"local_steps": None, "local_epochs": 1}])
def test_a_batch_of_one_is_refused_if_the_network_cannot_have_it(
    training: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    size = 4
    if "local_epochs" in training:
        records = len(audited(tmp_path / "a", "Norm", {"kind": "group"}).case.splits.clients[0].train)
        size = records - 1
        training = {**training, "batch_size": size}
    if kind != "batch":
        audited(tmp_path / "b", "Norm", {"kind": kind}, **training)
        return
    with pytest.raises(SpecError, match="on one record") as error:
        audited(tmp_path / "b", "Norm", {"kind": kind}, **training)
    assert error.value.field == "protocol.params.batch_size"
    assert not (tmp_path / "b" / "run").exists()
    if size > 4:
        better = int(error.value.remedy.rpartition(" ")[2].rstrip("."))
        audited(tmp_path / "b", "Norm", {"kind": kind}, **{**training, "batch_size": better})
