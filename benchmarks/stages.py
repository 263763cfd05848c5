"""Every stage of an audit at some sizes: processor seconds, memory, exponent of growth, and share in operators.

Federations are run as `fdaudit run` does them, records, checkpoints and evaluations included; attacks as cells, scoring
included and controls left out; one thread. An exponent of 1 means that twice the size takes twice the time; below 1,
part of the time does not depend on the size. The share in PyTorch's operators is that of the smallest size.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measured import Growth, in_operators, measured
from _pairs import table
from fdaudit.attacks.membership._ridge import regressed_rehearsed, regressed_sum
from sklearn.datasets import load_digits

import fdaudit.evaluation.controls.kept
from fdaudit.adversary.view import export_view, open_view, view_of
from fdaudit.api import report
from fdaudit.audit.pipeline import perform
from fdaudit.audit.run import Run
from fdaudit.audit.simulation import federate
from fdaudit.evaluation.stage import Stage
from fdaudit.isolation import attacker
from fdaudit.metrics import Pairs, reflip, score_membership, score_reconstruction
from fdaudit.parallel import malloc
from fdaudit.planning.attacks import plan_attack
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import load_spec
from fdaudit.storage import cache
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.messages import Message
from fdaudit.transcript.transcript import Transcript

SEED = 1
HEADS = ("stage", "grows with", "sizes", "seconds", "exponent", "operators", "MB")
STRIDED = {"name": "cnn-strided", "params": {"channels": [16, 32], "kernel": 3}}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"rounds": 4, "local_steps": 5, "batch_size": 16, "lr": 0.1},
    "fedkd": {"local_epochs": 5, "batch_size": 16, "distill_steps": 50},
    "selective-fd": {"rounds": 4, "local_steps": 5, "batch_size": 16},
    "fediod": {"rounds": 5, "batch_size": 16},
    "dafkd": {"rounds": 4, "local_epochs": 1, "batch_size": 16},
    "fedmd": {"rounds": 4, "batch_size": 16},
    "ds-fl": {"rounds": 4, "batch_size": 16},
    "feded": {"rounds": 4, "batch_size": 16},
    "feddf": {"rounds": 4, "batch_size": 16},
    "fkd": {"rounds": 4, "batch_size": 16},
    "pls": {"rounds": 4, "batch_size": 16},
}
ATTACKS: Sequence[tuple[str, str, str, str, Sequence[int]]] = (
    # attack, of which federation, against whose view, what grows, sizes
    ("dlg", "gradients", "server", "restarts", (1, 2, 4, 8)),
    ("inverting-gradients", "gradients", "server", "restarts", (1, 2, 4, 8)),
    ("analytic", "perceptron", "server", "victims", (1, 2, 4, 8)),
    ("ideal-soft", "fedavg", "server", "queries", (2000, 4000, 8000, 16000)),
    ("ideal-soft", "fedavg", "server", "rounds", (4, 8, 16, 32)),
    ("ideal-hard", "fedavg", "server", "queries", (2000, 4000, 8000, 16000)),
    ("ideal-hard", "fedavg", "server", "rounds", (4, 8, 16, 32)),
    ("inversion-network", "fedavg", "server", "queries", (1000, 2000, 4000, 8000)),
    ("inversion-network", "fedavg", "server", "steps", (150, 300, 600, 1200)),
    ("gmi", "fedavg", "server", "gan_steps", (50, 100, 200, 400)),
    ("gmi", "fedavg", "server", "restarts", (4, 8, 16, 32)),
    ("paired-logits", "fedkd", "aggregator", "steps", (100, 200, 400, 800)),
    ("gap", "fedavg", "server", "victims", (1, 2, 4, 8)),
    ("augmentation", "fedavg", "server", "victims", (1, 2, 4, 8)),
    ("boundary-distance", "fedavg", "server", "victims", (1, 2, 4, 8)),
    ("boundary-distance", "fedavg", "server", "queries", (250, 500, 1000, 2000)),
    ("noise-robustness", "fedavg", "server", "queries", (50, 100, 200, 400)),
    ("yoqo", "fedavg", "server", "shadows", (4, 8, 16, 32)),
    ("loss-threshold", "fedavg", "server", "victims", (1, 2, 4, 8)),
    ("calibrated-loss", "fedavg", "server", "shadows", (4, 8, 16, 32)),
    ("lira-online", "fedavg", "server", "shadows", (4, 8, 16, 32)),
    ("lira-offline", "fedavg", "server", "shadows", (4, 8, 16, 32)),
    ("rmia", "fedavg", "server", "shadows", (4, 8, 16, 32)),
    ("distillation-lira", "fedkd", "aggregator", "shadows", (4, 8, 16, 32)),
    ("co-op-lira", "fedkd", "aggregator", "distill_steps", (50, 100, 200, 400)),
    ("logan", "dafkd", "server", "victims", (1, 2, 4, 8)),
    ("generator-leakage", "dafkd", "server", "samples", (250, 500, 1000, 2000)),
    ("label-counts", "fedkd", "aggregator", "victims", (1, 2, 4, 8)),
    ("label-answers", "fedmd", "server", "shadows", (5, 10, 20, 40)),
    ("label-declined", "selective-fd", "server", "shadows", (5, 10, 20, 40)),
    ("label-updates", "fedavg", "server", "victims", (1, 2, 4, 8)),
)


def spec_of(protocol: str, params: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    """Digits among ten clients; what grows is changed."""
    return {
        "fdaudit": 1,
        "profile": "quick",
        "clients": 10,
        "threads": 1,
        "device": "cpu",
        "dataset": {"name": "digits", "limit": 1200},
        "splits": {"test": 0.1, "proxy": 0.2, "auxiliary": 0.1},
        "model": STRIDED,
        "victims": min(5, changed.get("clients", 10)),
        "adversaries": ["server"],
        "evaluate_every": 1000,
        "references": [],
        **changed,
        "protocol": {"name": protocol, "params": {**params, **changed.get("protocol", {})}},
    }


# -- federations --------------------------------------------------------------------------------------------------


def federation(
    protocol: str, params: Mapping[str, Any], **changed: Any
) -> Callable[[], Callable[[], object]]:
    case = simulated_case(load_spec(spec_of(protocol, params, **changed)), Secrets.draw(SEED))

    def make() -> Callable[[], object]:
        run = Path(tempfile.mkdtemp(dir=folder())) / "run"
        run.mkdir()
        Vault(run / "vault").create(case.secrets)
        return lambda: federate(RunDirectory(run, case), lambda *_: None)

    return make


def of_federations() -> Iterator[Growth]:
    for name, params in PROTOCOLS.items():
        made = {"clients": [(n, federation(name, params, clients=n)) for n in (2, 4, 8, 16)]}
        steps = "distill_steps" if name == "fedkd" else "rounds"
        made[steps] = [
            (k * params[steps], federation(name, {**params, steps: k * params[steps]})) for k in (1, 2, 4, 8)
        ]
        made["parameters"] = []
        for width in (4, 8, 16, 32):
            model = {"name": "cnn-strided", "params": {"channels": [width, 2 * width], "kernel": 3}}
            case = simulated_case(load_spec(spec_of(name, params, model=model)), Secrets.draw(SEED))
            count = sum(t.numel() for t in case.initial().values())
            made["parameters"].append((count, federation(name, params, model=model)))
        made["records"] = []
        for limit in (225, 450, 900, 1797):
            digits = {"name": "digits", "limit": limit}
            made["records"].append((limit, federation(name, params, clients=4, dataset=digits)))
        for axis, points in made.items():
            yield growth(f"{name}: federation", axis, points)


# -- attacks ------------------------------------------------------------------------------------------------------


def of_attacks() -> Iterator[Growth]:
    fdaudit.evaluation.controls.kept.controls = (
        lambda attack, case, setting: {}
    )  # they do not grow with a cell
    more = {
        "gradients": ("fedavg", {"rounds": 2, "upload": "gradient", "batch_size": 4, "lr": 0.1}, {}),
        "perceptron": (
            "fedavg",
            {"rounds": 2, "upload": "gradient", "batch_size": 4, "lr": 0.1},
            {"model": {"name": "mlp", "params": {"widths": [256]}}},
        ),
    }
    runs = dict[str, Path]()
    for name, which, adversary, axis, sizes in ATTACKS:
        if which not in runs:
            protocol, params, changed = more.get(which, (which, PROTOCOLS.get(which, {}), {}))
            runs[which] = folder() / which
            perform(spec_of(protocol, params, seed=SEED, attacks=[], **changed), runs[which])
        points = [(size, cell(runs[which], name, adversary, axis, size)) for size in sizes]
        yield growth(f"{name} against {which}", axis, points)


def cell(run: Path, name: str, adversary: str, axis: str, size: int) -> Callable[[], Callable[[], object]]:
    spec = load_spec(run / "spec.yaml")
    params = {} if axis == "victims" else {axis: size}
    if axis == "victims":
        spec = spec.model_copy(update={"victims": size})
    case = simulated_case(spec, Vault(run / "vault").secrets)
    attack = plan_attack(name, params, spec, "attack", (adversary,))

    def make() -> Callable[[], object]:
        cache._kept.clear()
        attacker.dismiss()  # it keeps the shadow models of the last cell
        attacker.stand_by()
        for ready in attacker._free:
            ready.missing()
        stage = Stage(RunDirectory(run, replace(case, execution=replace(case.execution, threads=1))))

        def work() -> None:
            with stage.adversary(adversary) as who:
                done = stage.cell(who, attack)
            if done.status != "run":
                raise SystemExit(f"{name} against {adversary}: {done.status}: {done.reason}")

        return work

    return make


# -- what all of them stand on ------------------------------------------------------------------------------------


def of_the_rest() -> Iterator[Growth]:
    yield growth(
        "transcript: write 20 messages", "bytes each", [(n, write(20, n)) for n in SIZES_OF_MESSAGES]
    )
    yield growth(
        "transcript: write 1 kB each", "messages", [(n, write(n, 1000)) for n in (100, 200, 400, 800)]
    )
    yield growth("view: export, open, read all", "messages", [(n, read(n)) for n in (100, 200, 400, 800)])
    yield growth("membership figures", "candidates", [(n, membership(n)) for n in (100, 200, 400, 800)])
    yield growth("reconstruction figures", "images of 28x28", [(n, images(n)) for n in (8, 16, 32, 64)])
    run = folder() / "gradients"
    names = ["gap", "loss-threshold", "label-updates", "noise-robustness"]
    perform(
        spec_of("fedavg", PROTOCOLS["fedavg"], seed=SEED, attacks=[{"name": n} for n in names]),
        folder() / "reported",
    )
    points = []
    for count in (1, 2, 3, 4):
        run = folder() / f"reported-{count}"
        wanted = [{"name": n} for n in names[:count]]
        perform(spec_of("fedavg", PROTOCOLS["fedavg"], seed=SEED, attacks=wanted), run)
        points.append((count, lambda run=run: lambda: report(Run(run))))
    yield growth("report", "cells", points)


# -- sizes of other people's federations ------------------------------------------------------------------------------


def of_wide_ranges() -> Iterator[Growth]:
    yield growth("membership figures", "candidates", [(n, membership(n)) for n in (200, 800, 3200, 12800)])
    yield growth("family of 10 cells", "candidates", [(2 * n, family(n)) for n in (100, 400, 1600)])
    points = [(n, federation("fedavg", {**PROTOCOLS["fedavg"], "rounds": n})) for n in (4, 16, 64)]
    yield growth("fedavg: federation", "rounds", points)
    fdaudit.evaluation.controls.kept.controls = lambda attack, case, setting: {}
    run = folder() / "shadowed"
    perform(spec_of("fedavg", PROTOCOLS["fedavg"], seed=SEED, attacks=[]), run)
    points = [(n, cell(run, "lira-offline", "server", "shadows", n)) for n in (4, 16, 64)]
    yield growth("lira-offline against fedavg", "shadows", points)
    for name, read in (("coins off a sum", summed), ("coins off a rehearsed release", rehearsed)):
        points = [(clients, read(clients)) for clients in (5, 20, 80, 200)]
        yield growth(f"{name}, 64 shadows a client, 500 answers", "clients", points)
    crowd = {
        "dataset": {"name": "digits"},
        "splits": {"test": 0.1, "proxy": 0.1, "auxiliary": 0.1, "candidates": 0},
        "attacks": [],
    }
    points = [(n, federation("fedavg", PROTOCOLS["fedavg"], clients=n, **crowd)) for n in (5, 20, 80, 200)]
    yield growth("fedavg: federation", "clients", points)
    points = []
    for widths in ([133], [256, 256], [1000, 900], [3100, 3100]):
        model = {"name": "mlp", "params": {"widths": widths}}
        made = federation("fedavg", PROTOCOLS["fedavg"], clients=4, model=model)
        sizes = zip([64, *widths], [*widths, 10], strict=True)
        points.append((sum(a * b + b for a, b in sizes), made))
    yield growth("fedavg: federation, perceptron", "parameters", points)
    points = []
    for side in (8, 28, 56, 112):
        dataset = {"name": f"npz:{enlarged(side).name}", "root": str(folder())}
        points.append((side**2, federation("fedavg", PROTOCOLS["fedavg"], clients=4, dataset=dataset)))
    yield growth("fedavg: federation, enlarged digits", "pixels", points)


def enlarged(side: int) -> Path:
    """Write 800 digits of so many pixels a side into a file."""
    digits = load_digits()
    small = torch.tensor(digits.images[:800, None] / 16, dtype=torch.float32)
    large = torch.nn.functional.interpolate(small, side, mode="bilinear").clamp(0, 1)[:, 0].numpy()
    path = folder() / f"digits-{side}.npz"
    np.savez(path, train_images=large, train_labels=digits.target[:800])
    return path


def shadows_of(clients: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Answers (64, 500) of each client's shadows, linear in their 8 coins, and these coins."""
    made = []
    for _ in range(clients):
        coins = torch.rand(64, 8).round() * 2 - 1
        made.append((coins @ torch.randn(8, 500) + 0.3 * torch.randn(64, 500), coins))
    return made


def summed(clients: int) -> Callable[[], Callable[[], object]]:
    shadows = shadows_of(clients)
    seen = torch.stack([answers[0] for answers, _ in shadows]).sum(0)
    return lambda: lambda: regressed_sum(shadows, seen)


def rehearsed(clients: int) -> Callable[[], Callable[[], object]]:
    shadows, residual = shadows_of(clients), torch.randn(24, 500)
    sums = torch.stack([answers[:24] for answers, _ in shadows]).sum(0) + residual
    return lambda: lambda: regressed_rehearsed(shadows, sums[0], residual, sums)


SIZES_OF_MESSAGES = (1_000, 10_000, 100_000, 1_000_000)


def write(messages: int, size: int, keep: list[Path] | None = None) -> Callable[[], Callable[[], object]]:
    tensors = {"w": torch.rand(size // 4)}

    def make() -> Callable[[], object]:
        where = Path(tempfile.mkdtemp(dir=folder()))
        if keep is not None:
            keep.append(where)

        def work() -> None:
            with Transcript(where, secret=bytes(32)) as transcript:
                for k in range(messages):
                    draft = Message(
                        seq=0,
                        round=k,
                        step=0,
                        sender="client/0",
                        receivers=("server",),
                        kind="gradient",
                        inputs=(),
                    )
                    transcript.append(draft, tensors)
                transcript.sync()

        return work

    return make


def read(messages: int) -> Callable[[], Callable[[], object]]:
    written = list[Path]()
    write(messages, 1000, written)()()

    def work() -> None:
        view = view_of(
            written[0],
            "server",
            parties=("server", "client/0"),
            hyperparameters={},
            transport="plain",
            own_data={},
        )
        target = Path(tempfile.mkdtemp(dir=folder())) / "view"
        export_view(view, target)
        opened = open_view(target)
        for message in opened.select():
            opened.tensors(message)

    return lambda: work


def membership(candidates: int) -> Callable[[], Callable[[], object]]:
    draws = np.random.default_rng(SEED)
    scores, member = draws.normal(size=candidates), np.arange(candidates) % 2 == 0
    pair = np.arange(candidates) // 2
    return lambda: lambda: score_membership(scores, member, generator=np.random.default_rng(SEED), pair=pair)


def family(coins: int) -> Callable[[], Callable[[], object]]:
    """Ten cells with scores of one victim's candidates, two for each coin."""
    draws = np.random.default_rng(SEED)
    cells = {
        f"server/{k}": {"client/0": Pairs(draws.normal(size=coins), draws.normal(size=coins))}
        for k in range(10)
    }
    return lambda: lambda: reflip(cells, np.random.default_rng(SEED), level=0.05)


def images(count: int) -> Callable[[], Callable[[], object]]:
    guess, truth, known = (torch.rand(n, 1, 28, 28) for n in (count, count, 200))
    return lambda: lambda: score_reconstruction(guess, truth, known, np.random.default_rng(SEED))


def growth(
    stage: str, axis: str, points: Sequence[tuple[float, Callable[[], Callable[[], object]]]]
) -> Growth:
    samples = tuple(measured(make) for _, make in points)
    return Growth(stage, axis, tuple(float(size) for size, _ in points), samples, in_operators(points[0][1]))


_FOLDER: list[tempfile.TemporaryDirectory[str]] = []


def folder() -> Path:
    if not _FOLDER:
        _FOLDER.append(tempfile.TemporaryDirectory(prefix="fdaudit-stages-"))
    return Path(_FOLDER[0].name)


GROUPS: Mapping[str, Callable[[], Iterator[Growth]]] = {
    "federations": of_federations,
    "attacks": of_attacks,
    "rest": of_the_rest,
    "wide": of_wide_ranges,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=GROUPS, action="append", help="federations, attacks, rest or wide")
    options = parser.parse_args()
    torch.set_num_threads(1)
    malloc.keep()  # as every run does
    rows = list[list[str]]()
    for name in options.only or GROUPS:
        for found in GROUPS[name]():
            rows.append(found.row())
            print("| " + " | ".join(rows[-1]) + " |", flush=True)
    print()
    print(table(HEADS, rows))
    for kept in _FOLDER:
        kept.cleanup()


if __name__ == "__main__":
    main()
