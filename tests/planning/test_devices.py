"""The device that a spec without one trains on."""

from __future__ import annotations

import pytest
import torch

from fdaudit.federation.networks import Networks
from fdaudit.models import Architecture, architecture
from fdaudit.planning.simulated import execution_of
from fdaudit.spec.schema import ModelSpec, Spec


def networks(*names: str) -> Networks:
    shared, *own = (architecture(ModelSpec(name=name), (1, 28, 28), 10) for name in names)
    return Networks(shared, tuple(own))


@pytest.mark.parametrize(
    ("names", "gpu", "device"),
    [
        (("mlp",), True, "cpu"),
        (("mlp-1024-1024",), True, "cuda"),
        (("mlp", "mlp", "mlp-1024-1024"), True, "cuda"),
        (("mlp-1024-1024",), False, "cpu"),
    ],
    ids=["small", "large", "one of them is large", "no GPU"],
)
def test_a_gpu_trains_networks_that_are_large_enough(
    names: tuple[str, ...], gpu: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpu))
    assert execution_of(Spec(), networks(*names)).device == device


def test_a_gpu_trains_a_small_network_where_the_spec_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert execution_of(Spec(device="cuda"), networks("mlp")).device == "cuda"


def test_no_network_is_tried_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(network: Architecture) -> int:
        raise AssertionError("a pass was made")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Architecture, "work", property(refuse))
    assert execution_of(Spec(threads=1), networks("mlp")).device == "cpu"
