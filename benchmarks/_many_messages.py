"""Very many small messages in a process without PyTorch: prints messages a second, and resident size in KiB twice."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fdaudit.recording.recorder import Recorder

FEW, MANY, EACH = 1_000, 100_000, 1_000
"""Messages at which memory is measured, and messages in a round."""
STATUS = Path("/proc/self/status")


def resident() -> float:
    """Return this process's resident size in KiB; nan where Linux's /proc is missing."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((float(line.split()[1]) for line in lines if line.startswith("VmRSS")), math.nan)


def main() -> None:
    values: dict[str, Any] = {"index": np.arange(4), "values": np.ones((4, 10), dtype=np.float32)}
    few = math.nan
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with Recorder(
            Path(folder) / "record", ["server", "client/0"], truth=Path(folder) / "truth"
        ) as record:
            for number in range(MANY):
                if number % EACH == 0:
                    record.round(number // EACH)
                if number == FEW:
                    few = resident()
                record.send("client/0", "server", "logits", values, ["data"], [number])
            many = resident()
        took = time.perf_counter() - start
    print(MANY / took, few, many)


if __name__ == "__main__":
    main()
