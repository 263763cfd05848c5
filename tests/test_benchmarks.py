"""What the benchmarks of rounds share still fits the code: they run by themselves, and seldom."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fdaudit.training.execution import Execution

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def fedavg(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`benchmarks/_fedavg.py` at a small size."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("_fedavg")
    for name, value in {"CLIENTS": 2, "STEPS": 2, "BATCH": 8}.items():
        monkeypatch.setattr(module, name, value)
    yield module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


def test_recorded_and_bare_rounds_of_fedavg_make_the_same_model(fedavg: Any, tmp_path: Path) -> None:
    execution = Execution.resolve(device="cpu", threads=1, convolutions=True)
    one = fedavg.recorded(tmp_path, fedavg.clients(), execution, rounds=2)
    bare = fedavg.Bare(fedavg.network(), fedavg.clients(), fedavg.memory_format(execution))
    start = {name: tensor.clone() for name, tensor in bare.parameters.items()}
    for _ in range(2):
        one()
        bare()
    for name, tensor in bare.parameters.items():
        assert not torch.equal(tensor, start[name])
        torch.testing.assert_close(one.parameters[name], tensor, rtol=1e-4, atol=1e-6)
    one.close()
    assert len(list((tmp_path / "transcript").rglob("*.shard"))) > 0
