"""Cost of a large federation, predicted from small ones and checked by the largest that fits here.

FedAvg with every message on disk, networks of two wide layers on 64 inputs, steps of 16 records, one thread. Each point
is a separate process. Its time is that of the rounds after the first, its memory the peak of the process. Time and
memory are fitted on small points by non-negative least squares:

    seconds a round = a clients·steps + b clients·steps·parameters + c clients·parameters
    memory          = d + e clients·parameters + f parameters

a and b are the cost of training, which workers share. c is the cost of a message (encoding, digesting,
writing, adding up), which the federation's own process pays. Then the large point is predicted, run, and compared. It
runs once more with digests alone on record. Finally a federation beyond any machine is priced.

Memory that a virtual machine's host has not yet provided is no part of the model: another process holds all free
memory and releases it as needed (`_owned_memory.py`; `--as-is` leaves it out).
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
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from _owned_memory import owned
from _pairs import table

BATCH, ROUNDS = 16, 4
SMALL = [(c, p, s) for c in (2, 4, 8) for p in (5_000_000, 7_000_000, 10_000_000) for s in (1, 5)]
"""Clients, parameters, steps. Networks are about as large as the one to predict: small ones stay in caches."""
LARGE = (40, 10_000_000, 5)
"""Takes 16 GB of memory with its record there."""
BEYOND = (1000, 10_000_000, 5)
BEYOND_ROUNDS = 1000
CORES = 16
"""Of a node."""


@dataclass(frozen=True)
class Point:
    """One federation: its size, and what it cost."""

    clients: int
    parameters: int
    steps: int
    seconds: float
    """A round."""
    disk: float
    """Bytes of transcript, a round."""
    memory: float
    """Bytes, at most."""


def run(clients: int, parameters: int, steps: int, record: str, where: str | None) -> Point:
    """Run a federation of so many clients, with networks of about so many parameters; call in a separate process."""
    from fdaudit.audit.simulation import federate
    from fdaudit.planning.simulated import simulated_case
    from fdaudit.scoring.run_directory import RunDirectory
    from fdaudit.spec.schema import load_spec
    from fdaudit.storage.vault import Secrets, Vault

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
            "params": {"rounds": ROUNDS, "local_steps": steps, "batch_size": BATCH, "lr": 0.01},
        },
        "record": record,
        "evaluate_every": 1000,
        "references": [],
        "attacks": [],
    }
    case = simulated_case(load_spec(spec), Secrets.draw(1))
    case.execution.begin()
    counted = sum(t.numel() for t in case.initial().values())
    with tempfile.TemporaryDirectory(dir=where) as folder:
        run = Path(folder) / "run"
        run.mkdir()
        Vault(run / "vault").create(case.secrets)
        times = list[float]()
        federate(RunDirectory(run, case), lambda *_: times.append(time.perf_counter()))
        disk = sum(f.stat().st_size for f in (run / "transcript").rglob("*") if f.is_file())
    if len(times) != ROUNDS:
        raise SystemExit(f"{len(times)} rounds were told of, not {ROUNDS}")
    memory = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Point(clients, counted, steps, (times[-1] - times[0]) / (ROUNDS - 1), disk / ROUNDS, memory)


def apart(size: tuple[int, int, int], where: str | None, record: str = "full") -> Point:
    """Call `run` in a separate process."""
    command = [sys.executable, __file__, "--point", *map(str, size), "--record", record]
    command += ["--where", where] if where else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Point(**json.loads(done.stdout.splitlines()[-1]))


def features(clients: float, parameters: float, steps: float) -> tuple[list[float], list[float]]:
    """Return the features of seconds a round, and of memory."""
    sent = clients * parameters
    return [clients * steps, sent * steps, sent], [1.0, sent, parameters]


class Model:
    """Cost of a federation of any size, from points of small ones."""

    def __init__(self, points: Sequence[Point]) -> None:
        both = [features(p.clients, p.parameters, p.steps) for p in points]
        self.time = _fit([t for t, _ in both], [p.seconds for p in points])
        self.memory = _fit([m for _, m in both], [p.memory for p in points])

    def __call__(self, clients: int, parameters: int, steps: int) -> Point:
        of_time, of_memory = features(clients, parameters, steps)
        return Point(
            clients,
            parameters,
            steps,
            float(np.dot(self.time, of_time)),
            4 * (clients + 1) * parameters,
            float(np.dot(self.memory, of_memory)),
        )

    def parts(self, clients: int, parameters: int, steps: int) -> tuple[float, float]:
        """Return seconds a round of training, on one thread, and of the federation's own process."""
        products = self.time * features(clients, parameters, steps)[0]
        return float(products[:2].sum()), float(products[2])


def _fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> np.ndarray:
    """Return non-negative weights that make the relative errors small."""
    from scipy.optimize import nnls

    a, y = np.array(rows), np.array(values)
    scale = np.abs(a / y[:, None]).max(0)
    weights, _ = nnls(a / y[:, None] / scale, np.ones(len(y)))
    return np.asarray(weights / scale)


def line(what: str, point: Point) -> list[str]:
    """Return a row of the table."""
    size = [f"{point.clients}", f"{point.parameters:,}", f"{point.steps}"]
    return [what, *size, f"{point.seconds:.3g}", f"{point.disk / 1e6:.4g}", f"{point.memory / 1e6:.4g}"]


def beyond(model: Model, digests: float, price: float) -> list[list[str]]:
    """Return rows of nodes, record, days and money for `BEYOND_ROUNDS` rounds of `BEYOND`.

    Args:
        model: the fit.
        digests: share of the federation's own process's work that remains with digests alone on record.
        price: of a node for an hour.
    """
    training, own = model.parts(*BEYOND)
    rows = []
    for nodes in (1, 10, 100):
        for record, left in (("full", own), ("digest", digests * own)):
            seconds = training / (nodes * CORES) + left
            hours = BEYOND_ROUNDS * seconds / 3600
            disk = BEYOND_ROUNDS * model(*BEYOND).disk / 1e12 if record == "full" else 0.0
            rows.append(
                [
                    str(nodes),
                    record,
                    f"{seconds:.3g}",
                    f"{left / seconds:.0%}",
                    f"{hours / 24:.3g}",
                    f"{disk:.3g}",
                    f"{price * nodes * hours:.0f}",
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--point", nargs=3, type=int, help="measure one federation and print it as JSON")
    parser.add_argument("--record", default="full", help="of that one: full or digest")
    parser.add_argument(
        "--large", nargs=3, type=int, default=LARGE, help="clients, parameters and steps to check"
    )
    parser.add_argument("--price", type=float, default=0.8, help=f"of a node of {CORES} cores for an hour")
    parser.add_argument(
        "--where", help="directory of the runs, /dev/shm for memory; default: temporary files"
    )
    parser.add_argument("--as-is", action="store_true", help="hold no memory beside")
    options = parser.parse_args()
    if options.point:
        print(json.dumps(asdict(run(*options.point, options.record, options.where))))
        return
    large = tuple(options.large)
    with nullcontext() if options.as_is else owned():
        small = [apart(size, options.where) for size in SMALL]
        measured, digests = apart(large, options.where), apart(large, options.where, "digest")
    model = Model(small)
    predicted = model(measured.clients, measured.parameters, measured.steps)
    heads = ("", "clients", "parameters", "steps", "seconds a round", "MB on disk a round", "MB of memory")
    rows = [line("measured", p) for p in small]
    rows += [line("predicted", predicted), line("measured", measured), line("with digests alone", digests)]
    print(table(heads, rows))
    for name in ("seconds", "disk", "memory"):
        print(f"measured / predicted, {name}: {getattr(measured, name) / getattr(predicted, name):.3f}")
    a, b, c = model.time
    print(
        f"seconds a round = {a:.3g} clients·steps + {b:.3g} clients·steps·parameters + {c:.3g} clients·parameters"
    )
    d, e, f = model.memory
    print(f"bytes of memory = {d:.4g} + {e:.3g} clients·parameters + {f:.3g} parameters")
    print(table(heads, [line("predicted", model(*BEYOND))]))
    training = model.parts(*large)[0]
    left = float(np.clip((digests.seconds - training) / (measured.seconds - training), 0, 1))
    print(f"with digests alone {left:.2f} of what the federation's own process does are left")
    heads = ("nodes", "record", "seconds a round", "own process", "days", "TB on disk", "price")
    print(table(heads, beyond(model, left, options.price)))


if __name__ == "__main__":
    main()
