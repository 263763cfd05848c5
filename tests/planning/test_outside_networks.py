"""Networks from torchvision and timm, named in a spec: run and attacked without a failed cell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fdaudit
from fdaudit.models import architecture
from fdaudit.rng import child_numpy
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.replicas import rehearsed

from ..helpers.doubles import spec

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("trusting")]

ATTACKS: dict[str, dict[str, Any]] = {
    "inverting-gradients": {"iterations": 3, "tune": False},
    "label-updates": {},
    "loss-threshold": {},
}


@pytest.mark.parametrize("name", ["squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5"])
def test_networks_of_torchvision_are_attacked(name: str, tmp_path: Path) -> None:
    images = child_numpy(1, "images").random((200, 32, 32, 3), dtype=np.float32)
    np.savez(tmp_path / "images.npz", train_images=images, train_labels=np.arange(200) % 4)
    run = fdaudit.run(
        spec(
            clients=2,
            victims=1,
            attacks=[],
            adversaries=["server"],
            dataset={"name": "npz:images.npz", "root": str(tmp_path)},
            model={"name": f"import:torchvision.models:{name}"},
            protocol={"name": "fedavg", "params": {"rounds": 1, "local_steps": 1, "batch_size": 4}},
        ),
        tmp_path / "run",
    )
    for attack, params in ATTACKS.items():
        cell = fdaudit.attack(attack, run, **params)
        assert cell.status != "failed", cell.reason


SMALL = [
    "test_vit",
    "test_vit3",
    "test_resnet",
    "test_efficientnet",
    "test_convnext",
    "test_mambaout",
    "test_nfnet",
]
MIX = {"test_resnet", "test_efficientnet"}


@pytest.mark.parametrize("name", SMALL)
def test_networks_of_timm_are_tried(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with BatchNorm couple the records of a batch, and can be trained on more than one record only."""
    pytest.importorskip("timm")
    (tmp_path / "of_timm.py").write_text(
        "import timm\n\n\ndef made(num_classes, name, sizes):\n"
        "    return timm.create_model(name, num_classes=num_classes, **sizes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "of_timm", raising=False)
    sizes = {"img_size": 32, "patch_size": 8} if "vit" in name else {}
    model = ModelSpec(name="import:of_timm:made", params={"name": name, "sizes": sizes})
    behavior = rehearsed(architecture(model, (3, 32, 32), 10))
    assert behavior.coupled == (name in MIX)
    assert behavior.single != (name in MIX)
    assert not behavior.random
