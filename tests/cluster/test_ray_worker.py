"""What a worker of Ray's loads, and what it tells of progress."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fdaudit.cluster import worker


def test_of_quick_progress_a_burst_some_a_second_and_every_last_step_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(worker.time, "monotonic", lambda: now)

    def steps(what: str, of: int, seconds: float) -> Iterator[dict[str, Any]]:
        nonlocal now
        for step in range(1, of + 1):
            now += seconds
            yield {"tick": [what, step, of]}

    def lines() -> Iterator[dict[str, Any]]:
        yield from steps("quick", 1000, 0.001)
        yield {"cell": "x"}
        for _ in range(100):
            yield from steps("short", 1, 0.001)
        yield from steps("slow", 30, 0.2)
        yield {"status": "done"}

    told = list(worker._paced(lines()))
    quick = [line["tick"][1] for line in told if line.get("tick", [""])[0] == "quick"]
    assert quick[:10] == list(range(1, 11))
    assert len(quick) == pytest.approx(10 + 10 + 1, abs=1)
    assert quick[-1] == 1000
    assert quick == sorted(quick)
    rest = told[len(quick) :]
    assert rest == [
        {"cell": "x"},
        *[{"tick": ["short", 1, 1]}] * 100,
        *({"tick": ["slow", n, 30]} for n in range(1, 31)),
        {"status": "done"},
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["worker", "attack_worker"])
def test_a_worker_of_rays_does_not_load_pytorch(module: str) -> None:
    """It would before the process that runs the cell does: twice the time until the first begins."""
    code = f"import sys, fdaudit.cluster.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
