"""Whether a CUDA device agrees with the CPU, and how fast an audit is on it, beside the CPU of the same machine.

    PYTHONPATH=benchmarks python benchmarks/accelerator.py --out FOLDER                        # at most 8 minutes
    PYTHONPATH=benchmarks python benchmarks/accelerator.py --out FOLDER --device cpu --small   # a rehearsal

The parts:
  agreement  training, shadow models, gradient inversion and the boundary attack, on the device and on the CPU from the
             same draws, within the bounds below;
  steps      milliseconds of a training step by the network's operations. Where the device overtakes the CPU,
             `fdaudit.training.execution` should set its threshold;
  waits      how often the host waits for the device in training and in gradient inversion;
  runs       whole commands: the five quickstart protocols with fewer adversaries, and FedAvg with a ResNet-18.

FOLDER gets `rows.csv`, a line as soon as each figure is known, `machine.json`, and the output of every command. A part
that fails has a line of its own. So has a run for which too little time was left. The exit code is 1 if a part failed
or a bound did not hold.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml
from fdaudit.attacks._shadows import Recipe, shadow_models
from fdaudit.attacks.gradient_inversion.engine import Matched, match_adam, match_lbfgs
from fdaudit.attacks.gradient_inversion.gradients import GradientMap, Strategy
from fdaudit.attacks.label_only.hopskipjump import Schedule, boundary_distances
from torch import Tensor

import fdaudit
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.models import Architecture, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Fitted, Job, Parameters, Trainer, draw_batches, parameters_of

CLASSES = 10
NETWORKS = {  # from the quickstart's to one that a GPU is bought for
    "cnn-strided 8x8": ("cnn-strided", (1, 8, 8), {"channels": [16, 32], "kernel": 3}),
    "cnn-5-5 28x28": ("cnn-5-5", (1, 28, 28), {}),
    "lenet-dlg 32x32": ("lenet-dlg", (3, 32, 32), {}),
    "resnet8 32x32": ("resnet8", (3, 32, 32), {}),
    "resnet18 32x32": ("resnet18", (3, 32, 32), {}),
}
FITS = {"sgd": Fit(lr=0.05, momentum=0.9), "adam": Fit(lr=1e-3, optimizer="adam")}

MOST_APART = 0.05
"""Distance of two trained models, over the distance that training went."""
MOST_OTHER = 0.05
"""Share of images that two models class differently; also a difference of objectives, and of distances."""
WAITED = "called a synchronizing CUDA operation"
"""PyTorch's warning if the host waits."""
MOST_GRADIENT, MOST_DERIVATIVE = 1e-3, 1e-2
"""Relative difference of two gradients, and of their derivatives in the images."""


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        part: of the benchmark.
        what: what was measured.
        device: where.
        value: the figure, if there is one.
        unit: of the figure.
        bound: its largest allowed value.
        note: why there is no figure, or what it rests on.
    """

    part: str
    what: str
    device: str
    value: float | None
    unit: str = ""
    bound: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the figure is at most its bound; also where it has none."""
        return self.bound is None or (self.value is not None and self.value <= self.bound)


@dataclass(frozen=True)
class Setting:
    """What was asked for, and where commands and their output go."""

    device: str
    small: bool
    out: Path
    until: float

    @property
    def names(self) -> list[str]:
        """Return the networks that are tried."""
        return [name for name in NETWORKS if not self.small or "resnet" not in name]

    def steps(self, many: int) -> int:
        """Return the number of steps of one measurement."""
        return 3 if self.small else many


# -- what is trained ----------------------------------------------------------------------------------------------


def network_of(name: str) -> Architecture:
    model, shape, params = NETWORKS[name]
    return architecture(ModelSpec(name=model, params=params), shape, CLASSES)


def trainer_on(device: str, network: Architecture, strategy: str = "auto") -> Trainer:
    execution = Execution.resolve(device=device, threads=1, strategy=strategy, convolutions=True, work=0.0)
    execution.begin()
    return Trainer(network, execution)


def jobs_of(network: Architecture, clients: int, steps: int, batch: int = 32) -> list[Job]:
    start, jobs = parameters_of(network.build(child(1, "start"))), []
    for k in range(clients):
        draws = child(1, "client", k)
        x = torch.rand(200, *network.input_shape, generator=draws)
        y = torch.randint(CLASSES, (len(x),), generator=draws)
        batches = draw_batches(len(x), batch, steps=steps, generator=draws)
        jobs.append(Job(party=f"client/{k}", parameters=start, x=x, targets=y, batches=batches))
    return jobs


def vector(parameters: Parameters) -> Tensor:
    return torch.cat([t.detach().cpu().flatten().double() for _, t in sorted(parameters.items())])


def apart(one: Fitted, other: Fitted, start: Parameters) -> float:
    gap = (vector(one.parameters) - vector(other.parameters)).norm()
    return float(gap / (vector(other.parameters) - vector(start)).norm())


def relative(one: Tensor, other: Tensor) -> float:
    return float((one.cpu() - other.cpu()).norm() / other.norm())


# -- agreement ----------------------------------------------------------------------------------------------------


def training_agrees(setting: Setting) -> Iterator[Row]:
    """Compare three clients' models after the same steps, by both strategies, and two trainings on the device."""
    for name in setting.names:
        network = network_of(name)
        jobs = jobs_of(network, clients=3, steps=setting.steps(20))
        for rule, fit in FITS.items():
            expected = trainer_on("cpu", network, "loop").fit(jobs, fit)
            for strategy in ("loop", "stacked"):
                trainer = trainer_on(setting.device, network, strategy)
                first, again = trainer.fit(jobs, fit), trainer.fit(jobs, fit)
                what = f"training, {name}, {rule}, {strategy}"
                gaps = [
                    apart(*three) for three in zip(first, expected, [j.parameters for j in jobs], strict=True)
                ]
                yield Row("agreement", what, setting.device, max(gaps), "of the way", MOST_APART)
                changed = sum(
                    not torch.equal(vector(a.parameters), vector(b.parameters))
                    for a, b in zip(first, again, strict=True)
                )
                yield Row("agreement", f"{what}, twice", setting.device, changed, "models with other bits", 0)


def shadows_agree(setting: Setting) -> Iterator[Row]:
    """Compare the classes that shadow models of the same draws give to random images."""
    network = network_of("cnn-strided 8x8")
    draws = child(1, "shadows")
    x = torch.rand(160, *network.input_shape, generator=draws)
    y = torch.randint(CLASSES, (len(x),), generator=draws)
    inside = torch.rand(8 if setting.small else 64, len(x), generator=draws) < 0.5
    images = torch.rand(500, *network.input_shape, generator=draws)
    recipe = Recipe(fit=Fit(lr=0.1), batch_size=8, steps=setting.steps(100))
    classes = []
    for device in (setting.device, "cpu"):
        trainer = trainer_on(device, network)
        knowledge = Knowledge(architecture=network, train=trainer, classes=CLASSES)
        began = time.perf_counter()
        models = shadow_models(knowledge, x, y, inside, recipe=recipe)
        yield Row("agreement", f"{len(inside)} shadow models", device, time.perf_counter() - began, "s")
        classes.append(torch.stack([trainer.predict(model, images).argmax(1) for model in models]))
    other = float((classes[0] != classes[1]).double().mean())
    yield Row("agreement", "shadow models' classes", setting.device, other, "share that differs", MOST_OTHER)


def inversion_agrees(setting: Setting) -> Iterator[Row]:
    """Compare simulated gradients and their derivatives by every strategy, and what both optimisers reach."""
    for name in setting.names:
        network, draws = network_of(name), child(1, "inversion")
        guesses = torch.rand(4, 2, *network.input_shape, generator=draws)
        labels = torch.randint(CLASSES, (4, 2), generator=draws)
        target = torch.rand(1, 2, *network.input_shape, generator=draws)
        expected: list[Tensor] = []
        for device, strategy in [("cpu", "loop"), *((setting.device, s) for s in ("loop", "vmap", "folded"))]:
            simulate = map_on(device, network, strategy)  # type: ignore[arg-type]
            x, y = guesses.to(device).requires_grad_(), labels.to(device)
            gradient = simulate(x, y)
            (slope,) = torch.autograd.grad((gradient - 0.01).square().sum(), x)
            if not expected:
                expected = [gradient.detach(), slope]
                continue
            what = f"{name}, {strategy}"
            yield Row(
                "agreement",
                f"gradient, {what}",
                device,
                relative(gradient.detach(), expected[0]),
                "",
                MOST_GRADIENT,
            )
            yield Row(
                "agreement",
                f"its derivative, {what}",
                device,
                relative(slope, expected[1]),
                "",
                MOST_DERIVATIVE,
            )
        for rule, match in (("Adam", adam_of), ("L-BFGS", lbfgs_of)):
            reached = []
            for device in (setting.device, "cpu"):
                simulate = map_on(device, network)
                sent = simulate(target.to(device), labels[:1].to(device)).detach().expand(4, -1)
                began = time.perf_counter()
                matched = match(simulate, sent, guesses.to(device), labels.to(device), setting.steps(30))
                reached.append(matched.objective.cpu())
                seconds = time.perf_counter() - began
                yield Row(
                    "agreement",
                    f"{rule}, {name}",
                    device,
                    1e3 * seconds / setting.steps(30),
                    "ms an iteration",
                )
            other = float((reached[0] - reached[1]).abs().median())
            yield Row("agreement", f"{rule}'s objective, {name}", setting.device, other, "", MOST_OTHER)


def map_on(device: str, network: Architecture, strategy: Strategy | None = None) -> GradientMap:
    module = network.build(child(1, "network")).to(device)
    return GradientMap(module, dict(module.named_parameters()), strategy)


def adam_of(simulate: GradientMap, sent: Tensor, x: Tensor, y: Tensor, steps: int) -> Matched:
    return match_adam(simulate, sent, x, y, iterations=steps, lr=0.1, tv=1e-3)


def lbfgs_of(simulate: GradientMap, sent: Tensor, x: Tensor, y: Tensor, steps: int) -> Matched:
    return match_lbfgs(simulate, sent, x, y, evaluations=steps)


def boundary_agrees(setting: Setting) -> Iterator[Row]:
    """Compare the boundary attack's median distance, and its rate of queries."""
    network = network_of("cnn-5-5 28x28")
    parameters = parameters_of(network.build(child(1, "network")))
    draws = child(1, "boundary")
    x = torch.rand(8 if setting.small else 60, *network.input_shape, generator=draws)
    starts = torch.rand(100, *network.input_shape, generator=draws)
    schedule = Schedule(queries=60 if setting.small else 400, directions=20)
    distances = []
    for device in (setting.device, "cpu"):
        trainer, queries = trainer_on(device, network), [0]

        def ask(images: Tensor, trainer: Trainer = trainer, queries: list[int] = queries) -> Tensor:
            queries[0] += len(images)
            return trainer.predict(parameters, images).argmax(1)

        began = time.perf_counter()
        found = boundary_distances(ask, x, ask(x), starts, ask(starts), schedule, child(1, "directions"))
        rate = queries[0] / (time.perf_counter() - began)
        yield Row("agreement", "boundary attack", device, rate, "queries a second")
        distances.append(found.distance[found.started])
    both = [float(d.median()) if len(d) else 0.0 for d in distances]
    other = abs(both[0] - both[1]) / max(both[1], 1e-12)
    yield Row("agreement", "boundary attack's median distance", setting.device, other, "relative", MOST_OTHER)


# -- speed --------------------------------------------------------------------------------------------------------


def step_times(setting: Setting) -> Iterator[Row]:
    """Time a step of one client, and of ten, on the device and on one thread of the CPU."""
    for name in setting.names:
        network = network_of(name)
        note = f"{network.work:,} operations of a forward pass"
        for device, strategy, clients in (
            (setting.device, "loop", 1),
            (setting.device, "stacked", 10),
            ("cpu", "loop", 1),
        ):
            steps = setting.steps(3 if device == "cpu" else 30)
            trainer, jobs = trainer_on(device, network, strategy), jobs_of(network, clients, steps)
            trainer.fit(jobs, FITS["sgd"])  # ends by reading the losses, so the device's work is done too
            began = time.perf_counter()
            trainer.fit(jobs, FITS["sgd"])
            each = 1e3 * (time.perf_counter() - began) / (steps * clients)
            yield Row(
                "steps",
                f"{name}, {strategy}, {clients} clients",
                device,
                each,
                "ms a client's step",
                note=note,
            )


def waits(setting: Setting) -> Iterator[Row]:
    """Count how often the host waits for the device."""
    if not setting.device.startswith("cuda"):
        yield Row("waits", "of the host", setting.device, None, note="not counted: only CUDA says so")
        return
    network = network_of("cnn-5-5 28x28")
    simulate = map_on(setting.device, network)
    x = torch.rand(4, 1, *network.input_shape, device=setting.device)
    y = torch.zeros(4, 1, dtype=torch.long, device=setting.device)
    sent = simulate(x.flip(-1), y).detach()
    works: dict[str, Callable[[], object]] = {
        "Adam, 20 iterations": lambda: adam_of(simulate, sent, x, y, 20),
        "L-BFGS, 20 evaluations": lambda: lbfgs_of(simulate, sent, x, y, 20),
    }
    for strategy, clients in (("loop", 1), ("stacked", 10)):
        trainer, jobs = trainer_on(setting.device, network, strategy), jobs_of(network, clients, 20)
        works[f"training, {strategy}, {clients} clients x 20 steps"] = lambda t=trainer, j=jobs: t.fit(
            j, FITS["sgd"]
        )
    for what, work in works.items():
        work()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                work()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        count = sum(WAITED in str(warning.message) for warning in said)
        yield Row("waits", what, setting.device, count, "waits")


# -- whole commands -----------------------------------------------------------------------------------------------

PROTOCOLS = ("fedavg", "fedkd", "selective-fd", "fediod", "dafkd")
FEW_ATTACKS = ("loss-threshold", "rmia", "label-updates")
RESNET_ATTACKS = ("loss-threshold", "label-updates", "boundary-distance")
"""None trains shadow models: these would take the CPU half an hour."""
LEAST_SECONDS = 20.0
"""Seconds without which no run begins."""


def specs(setting: Setting) -> dict[str, dict[str, Any]]:
    """Return the runs' specs: the quickstart's with two adversaries, and ten clients with a ResNet-18."""
    found = {}
    quickstart = Path(fdaudit.__file__).parent / "quickstart"
    for name in PROTOCOLS:
        spec = yaml.safe_load((quickstart / f"{name}.yaml").read_text(encoding="utf-8"))
        spec |= {"seed": 1, "victims": 2, "adversaries": ["server", "world"], "references": []}
        if setting.small:
            short = {"rounds", "local_epochs", "warm_up_steps", "steps_per_round", "distill_steps"}
            params = spec["protocol"]["params"]
            params |= dict.fromkeys(short & params.keys(), 2)
            spec |= {"adversaries": ["server"], "attacks": [{"name": attack} for attack in FEW_ATTACKS]}
        found[name] = spec
    found["resnet"] = {
        "fdaudit": 1,
        "profile": "quick",
        "seed": 1,
        "clients": 2 if setting.small else 5,
        "dataset": {"name": "digits", "limit": 400},
        "model": {"name": "resnet8" if setting.small else "resnet18"},
        "protocol": {
            "name": "fedavg",
            "params": {"rounds": 1, "local_steps": setting.steps(10), "batch_size": 16},
        },
        "references": [],
        "adversaries": ["server"],
        "victims": 1,
        "splits": {"candidates": 10},
        "attacks": [{"name": attack} for attack in RESNET_ATTACKS],
    }
    return found


def run_times(setting: Setting) -> Iterator[Row]:
    """Run every spec on the device and on the CPU, with as many threads as `fdaudit` takes by itself."""
    for name, spec in specs(setting).items():
        for device in dict.fromkeys((setting.device, "cpu")):
            label = f"{name}-{device.replace(':', '-')}"
            left = setting.until - time.monotonic()
            if left < LEAST_SECONDS:
                yield Row("runs", name, device, None, note="not run: too little time was left")
                continue
            yield from one_run(setting, name, {**spec, "device": device}, label, left)


def one_run(setting: Setting, name: str, spec: dict[str, Any], label: str, left: float) -> Iterator[Row]:
    run, device = setting.out / label, spec["device"]
    kept = setting.out / f"{label}.yaml"
    kept.write_text(yaml.safe_dump(spec), encoding="utf-8")
    command = [sys.executable, "-m", "fdaudit", "run", str(kept), "--out", str(run), "--no-report"]
    began = time.perf_counter()
    with (setting.out / f"{label}.log").open("wb") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, timeout=left).returncode
        except subprocess.TimeoutExpired:
            yield Row("runs", name, device, None, note="stopped: the time was spent")
            return
    seconds = time.perf_counter() - began
    if code:
        yield Row("runs", name, device, float(code), "exit code", 0, f"see {label}.log")
        return
    yield Row("runs", name, device, seconds, "s")
    timings = json.loads((run / "timings.json").read_bytes())
    yield Row("runs", f"{name}: federation", device, timings["federation"], "s")
    cells = [json.loads(path.read_bytes()) for path in sorted((run / "attacks").glob("*.json"))]
    reasons = "; ".join(
        f"{c['adversary']}/{c['attack']}: {c['reason'][:200]}" for c in cells if c["status"] == "failed"
    )
    failed = sum(cell["status"] == "failed" for cell in cells)
    yield Row("runs", f"{name}: cells", device, failed, f"failed of {len(cells)}", 0, reasons)


# -- the whole ----------------------------------------------------------------------------------------------------

PARTS: Sequence[Callable[[Setting], Iterator[Row]]] = (
    training_agrees,
    shadows_agree,
    inversion_agrees,
    boundary_agrees,
    step_times,
    waits,
    run_times,
)


def machine(device: str) -> dict[str, Any]:
    """Return what the figures depend on."""
    facts: dict[str, Any] = {"torch": torch.__version__, "cores": os.cpu_count(), "device": device}
    if device.startswith("cuda"):
        facts |= {
            "gpu": torch.cuda.get_device_name(device),
            "capability": torch.cuda.get_device_capability(device),
            "free_and_total_bytes": torch.cuda.mem_get_info(device),
            "cuda": torch.version.cuda,
        }
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("accelerator"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--small", action="store_true", help="few steps, small networks: does the benchmark itself work?"
    )
    parser.add_argument("--seconds", type=float, default=460.0)
    names = [part.__name__ for part in PARTS]
    parser.add_argument(
        "--parts", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names)
    )
    asked = parser.parse_args()
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print("There is no CUDA device here: nothing was measured.")
        return
    asked.out.mkdir(parents=True)
    setting = Setting(asked.device, asked.small, asked.out.resolve(), time.monotonic() + asked.seconds)
    facts = json.dumps(machine(asked.device), indent=1)
    (asked.out / "machine.json").write_text(facts + "\n", encoding="utf-8")
    wrong = 0
    with (asked.out / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(f.name for f in fields(Row)), "holds"])
        for part in PARTS:
            for row in rows_of(part, setting) if part.__name__ in asked.parts else ():
                writer.writerow([*astuple(row), row.holds])
                file.flush()
                print(
                    f"{row.part}: {row.what} on {row.device}: {row.value} {row.unit} {row.note}".rstrip(),
                    flush=True,
                )
                wrong += not row.holds
    sys.exit(min(wrong, 1))


def rows_of(part: Callable[[Setting], Iterator[Row]], setting: Setting) -> Iterator[Row]:
    """Yield the rows of a part. An error ends the part with a row of its own, whose bound does not hold."""
    if time.monotonic() > setting.until:
        yield Row(part.__name__, "all", setting.device, None, note="not run: the time was spent")
        return
    try:
        yield from part(setting)
    except Exception as error:
        traceback.print_exc()
        yield Row(
            part.__name__, "error", setting.device, 1, "errors", 0, f"{type(error).__name__}: {error}"[:300]
        )


if __name__ == "__main__":
    main()
