"""What a large federation costs, predicted from small ones and checked by the largest that fits here.

FedAvg with every message on disk, networks of two wide layers on 64 inputs, five steps of 16 records a client and
round, one thread. Each point is a process of its own; its time is that of the rounds after the first, its memory the
highest of the process. Time and memory are fitted on small points by non-negative least squares:

    seconds a round = a clients·steps + b clients·steps·parameters + c bytes on disk
    memory          = d + e clients·parameters + f parameters

Then the large point is predicted, run, and compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from _pairs import table

STEPS, BATCH = 5, 16
SMALL = [(c, p) for c in (4, 8, 16) for p in (1_000_000, 2_000_000, 4_000_000)]
ROUNDS = 4
LARGE = (24, 10_000_000)


@dataclass(frozen=True)
class Point:
    """One federation: its size, and what it cost."""

    clients: int
    parameters: int
    seconds: float
    """A round."""
    disk: float
    """Bytes of transcript, a round."""
    memory: float
    """Bytes, at most."""


def run(clients: int, parameters: int, where: str | None) -> Point:
    """In a process of its own: a federation of so many clients, and networks of about so many parameters."""
    from fdaudit.plan import make_plan
    from fdaudit.simulation import federate
    from fdaudit.spec import load_spec
    from fdaudit.vault import Secrets, Vault

    width = round((-74 + (74**2 + 4 * parameters) ** 0.5) / 2)
    spec = {
        "fdaudit": 1,
        "clients": clients,
        "threads": 1,
        "device": "cpu",
        "dataset": {"name": "digits"},
        "splits": {"test": 0.05, "proxy": 0, "auxiliary": 0, "candidates": 2},
        "model": {"name": "mlp", "params": {"widths": [width, width]}},
        "protocol": {
            "name": "fedavg",
            "params": {"rounds": ROUNDS, "local_steps": STEPS, "batch_size": BATCH, "lr": 0.01},
        },
        "evaluate_every": 1000,
        "references": [],
        "attacks": [],
    }
    plan = make_plan(load_spec(spec), 1)
    plan.execution.begin()
    counted = sum(t.numel() for t in plan.initial().values())
    with tempfile.TemporaryDirectory(dir=where) as folder:
        run = Path(folder) / "run"
        run.mkdir()
        Vault(run / "vault").create(Secrets.draw(1))
        times = list[float]()
        federate(plan, run, lambda *_: times.append(time.perf_counter()))
        disk = sum(f.stat().st_size for f in (run / "transcript").rglob("*") if f.is_file())
    if len(times) != ROUNDS:
        raise SystemExit(f"{len(times)} rounds were told of, not {ROUNDS}")
    memory = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Point(clients, counted, (times[-1] - times[0]) / (ROUNDS - 1), disk / ROUNDS, memory)


def apart(clients: int, parameters: int, where: str | None) -> Point:
    """`run` in a process of its own."""
    command = [sys.executable, __file__, "--point", str(clients), str(parameters)]
    command += ["--where", where] if where else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Point(**json.loads(done.stdout.splitlines()[-1]))


def features(clients: float, parameters: float) -> tuple[list[float], list[float]]:
    """Of seconds a round, and of memory."""
    disk = 4 * (clients + 1) * parameters
    return [clients * STEPS, clients * STEPS * parameters, disk], [1.0, clients * parameters, parameters]


class Model:
    """What a federation of any size costs, from points of small ones."""

    def __init__(self, points: Sequence[Point]) -> None:
        both = [features(p.clients, p.parameters) for p in points]
        self.time = _fit([t for t, _ in both], [p.seconds for p in points])
        self.memory = _fit([m for _, m in both], [p.memory for p in points])

    def __call__(self, clients: float, parameters: float) -> Point:
        of_time, of_memory = features(clients, parameters)
        return Point(
            int(clients),
            int(parameters),
            float(np.dot(self.time, of_time)),
            4 * (clients + 1) * parameters,
            float(np.dot(self.memory, of_memory)),
        )


def _fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> np.ndarray:
    """Non-negative weights that make the relative errors small."""
    from scipy.optimize import nnls

    a, y = np.array(rows), np.array(values)
    scale = np.abs(a / y[:, None]).max(0)
    weights, _ = nnls(a / y[:, None] / scale, np.ones(len(y)))
    return np.asarray(weights / scale)


def line(what: str, point: Point) -> list[str]:
    """A row of the table."""
    size = [f"{point.clients}", f"{point.parameters:,}"]
    return [what, *size, f"{point.seconds:.3g}", f"{point.disk / 1e6:.4g}", f"{point.memory / 1e6:.4g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point", nargs=2, type=int, help="measure one federation and print it as JSON")
    parser.add_argument("--large", nargs=2, type=int, default=LARGE, help="clients and parameters to check")
    parser.add_argument(
        "--where", help="directory of the runs, /dev/shm for memory; default: temporary files"
    )
    options = parser.parse_args()
    if options.point:
        print(json.dumps(asdict(run(*options.point, options.where))))
        return
    small = [apart(*size, options.where) for size in SMALL]
    model = Model(small)
    measured = apart(*options.large, options.where)
    predicted = model(measured.clients, measured.parameters)
    heads = ("", "clients", "parameters", "seconds a round", "MB on disk a round", "MB of memory")
    rows = [line("measured", p) for p in small]
    rows += [line("predicted", predicted), line("measured", measured)]
    print(table(heads, rows))
    for name in ("seconds", "disk", "memory"):
        print(f"measured / predicted, {name}: {getattr(measured, name) / getattr(predicted, name):.3f}")
    a, b, c = model.time
    print(
        f"seconds a round = {a:.3g} clients·steps + {b:.3g} clients·steps·parameters + {c:.3g} bytes on disk"
    )
    d, e, f = model.memory
    print(f"bytes of memory = {d:.4g} + {e:.3g} clients·parameters + {f:.3g} parameters")
    print(table(heads, [line("predicted", model(1000, 10_000_000))]))


if __name__ == "__main__":
    main()
