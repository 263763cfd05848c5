"""Acceptance: the record alone, read with `json` and `safetensors`, gives back every aggregate of a FedAvg run.

Nothing of fdaudit takes part in the reading. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ..helpers.mask_cases import write_masks
from ..helpers.record_reader import Arrays, read, standing_alone
from ..helpers.run_cases import finished


class BrokenRecordError(Exception):
    """The record does not give back what was sent."""


# -- the reader: json and safetensors ---------------------------------------------------------------------------


def replay(directory: Path, settings: dict[str, Any], clients: int) -> int:
    """Checks a whole run against McMahan et al. 2017, Algorithm 1; returns how many aggregates were compared.

    Raises:
        BrokenRecordError: a message is missing, unexpected, or not what the messages before it make it.
    """
    record = read(directory)
    counts = {m["sender"]: int(t["n"]) for m, t in record if m["kind"] == "sample_count"}
    everybody = {f"client/{k}" for k in range(clients)}
    if settings["weighting"] == "samples" and set(counts) != everybody:
        raise BrokenRecordError(f"counts of {sorted(counts)}")
    sent = [(m, t) for m, t in record if m["sender"] == "server"]
    uploads = [(m, t) for m, t in record if m["kind"] == settings["upload"] and m["sender"] != "server"]
    if len(sent) + len(uploads) + len(counts) != len(record):
        raise BrokenRecordError("messages that FedAvg does not have")
    if [m["round"] for m, _ in sent] != [*range(settings["rounds"]), settings["rounds"] - 1]:
        raise BrokenRecordError("a broadcast is missing")
    velocity: Arrays = {}
    for t, ((asked, w), (_, stated)) in enumerate(pairwise(sent)):
        answers = {m["sender"]: tensors for m, tensors in uploads if m["round"] == t}
        if set(asked["receivers"]) != set(answers) or len(answers) < max(
            round(settings["fraction"] * clients), 1
        ):
            raise BrokenRecordError(f"round {t}: asked {asked['receivers']}, answered {sorted(answers)}")
        weights = {k: counts.get(k, 1) for k in answers}
        made = aggregate(w, answers, weights, settings, velocity)
        if set(made) != set(stated):
            raise BrokenRecordError(f"round {t}: other parameters")
        for name, values in made.items():
            if not np.allclose(values, stated[name], rtol=1e-5, atol=1e-6):
                raise BrokenRecordError(f"round {t}: {name} differs by {np.abs(values - stated[name]).max()}")
    last, _ = sent[-1]
    if set(last["receivers"]) != {*everybody, "world"}:
        raise BrokenRecordError("the final model was not published")
    return len(sent) - 1


def aggregate(
    w: Arrays, answers: dict[str, Arrays], weights: dict[str, int], settings: dict[str, Any], velocity: Arrays
) -> Arrays:
    """w_{t+1} in double precision: the weighted mean of what was uploaded, applied to w_t."""
    total, made = sum(weights.values()), {}
    for name, before in w.items():
        mean = sum(weights[k] / total * tensors[name].astype(np.float64) for k, tensors in answers.items())
        change = {
            "gradient": lambda mean=mean: -settings["lr"] * mean,
            "model_update": lambda mean=mean: mean,
            "model_parameters": lambda mean=mean, before=before: mean - before,
        }[settings["upload"]]()
        velocity[name] = settings["server_momentum"] * velocity.get(name, np.zeros_like(mean)) + change
        made[name] = before + velocity[name]
    return made


# -- the runs -------------------------------------------------------------------------------------------------

CASES = [
    pytest.param(upload, weighting, fraction, momentum, id=f"{upload}-{weighting}-C{fraction}-beta{momentum}")
    for upload in ("gradient", "model_update", "model_parameters")
    for weighting, fraction, momentum in (
        ("samples", 1.0, 0.0),
        ("samples", 0.6, 0.0),
        ("uniform", 0.6, 0.9),
        ("samples", 0.4, 0.5),
    )
]
CLIENTS = 5


def recorded(
    directory: Path, upload: str, weighting: str, fraction: float, momentum: float
) -> tuple[Path, dict[str, Any]]:
    settings = {
        "rounds": 4,
        "upload": upload,
        "weighting": weighting,
        "fraction": fraction,
        "server_momentum": momentum,
        "lr": 0.3,
        "batch_size": 8,
        "local_steps": 1 if upload == "gradient" else 3,
    }
    run = finished(
        directory,
        clients=CLIENTS,
        dataset__limit=300,
        partition={"name": "dirichlet", "alpha": 1.0},  # unequal counts: weights matter
        splits__candidates=1,
        protocol__params=settings,
    )
    return run, settings


@pytest.mark.thorough
@pytest.mark.parametrize(("upload", "weighting", "fraction", "momentum"), CASES)
def test_every_aggregate_follows_from_the_recorded_uploads(
    upload: str, weighting: str, fraction: float, momentum: float, tmp_path: Path
) -> None:
    run, settings = recorded(tmp_path / "run", upload, weighting, fraction, momentum)
    assert replay(run / "transcript", settings, CLIENTS) == 4
    stated = yaml.safe_load((run / "spec.yaml").read_text())["protocol"]["params"]
    assert {**settings, **stated} == settings, "the published spec has the settings that the reader needs"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("upload", "weighting", "momentum"),
    [("gradient", "samples", 0.0), ("model_update", "samples", 0.5), ("model_parameters", "uniform", 0.0)],
)
def test_every_aggregate_of_models_of_masks_follows_from_the_recorded_uploads(
    upload: str, weighting: str, momentum: float, tmp_path: Path
) -> None:
    settings = {"rounds": 3, "upload": upload, "weighting": weighting, "fraction": 0.67, "lr": 0.1}
    settings |= {
        "server_momentum": momentum,
        "batch_size": 4,
        "local_steps": 1 if upload == "gradient" else 3,
    }
    masks = write_masks(tmp_path / "discs.npz", 120, sites=("a", "a", "a", "b", "b", "c"))  # unequal counts
    run = finished(
        tmp_path / "run",
        clients=3,
        dataset={"name": f"masks:{masks}"},
        partition={"name": "by-site"},
        splits={"test": 0.2, "proxy": 0.1, "auxiliary": 0.1, "candidates": 1},
        model={"name": "unet", "params": {"width": 8, "depth": 1}},
        protocol={"name": "fedavg", "params": settings},
    )
    assert replay(run / "transcript", settings, 3) == 3
    with pytest.raises(BrokenRecordError):
        replay(run / "transcript", {**settings, "server_momentum": 0.9}, 3)


@pytest.mark.parametrize(
    ("upload", "weighting", "fraction", "momentum"),
    [
        ("gradient", "samples", 1.0, 0.0),
        ("model_update", "samples", 0.6, 0.5),
        ("model_parameters", "uniform", 0.6, 0.0),
    ],
)
def test_taking_any_one_message_away_breaks_it(
    upload: str, weighting: str, fraction: float, momentum: float, tmp_path: Path
) -> None:
    run, settings = recorded(tmp_path / "run", upload, weighting, fraction, momentum)
    lines = (run / "transcript" / "messages.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) >= 4 * 2 + 4
    for k in range(len(lines)):
        less = tmp_path / f"without-{k}"
        shutil.copytree(run / "transcript", less)
        (less / "messages.jsonl").write_bytes(b"".join(lines[:k] + lines[k + 1 :]))
        with pytest.raises(BrokenRecordError):
            replay(less, settings, CLIENTS)
        shutil.rmtree(less)


@pytest.mark.parametrize(
    ("change", "upload"),
    [
        ({"weighting": "uniform"}, "model_update"),
        ({"server_momentum": 0.4}, "model_update"),
        ({"lr": 0.31}, "gradient"),
        ({"upload": "model_parameters"}, "model_update"),
    ],
)
def test_the_reader_tells_a_wrong_aggregation_from_the_right_one(
    change: dict[str, Any], upload: str, tmp_path: Path
) -> None:
    """Were the comparison too lenient, other settings would pass as well."""
    run, settings = recorded(tmp_path / "run", upload, "samples", 1.0, 0.0)
    if "upload" in change:  # read updates as if they were models
        record = run / "transcript" / "messages.jsonl"
        record.write_bytes(
            record.read_bytes().replace(b'"kind":"model_update"', b'"kind":"model_parameters"')
        )
    if change.get("weighting") == "uniform":
        with pytest.raises(BrokenRecordError):
            replay_without_counts(run, settings)
        return
    with pytest.raises(BrokenRecordError):
        replay(run / "transcript", {**settings, **change}, CLIENTS)


def replay_without_counts(run: Path, settings: dict[str, Any]) -> None:
    record = run / "transcript" / "messages.jsonl"
    kept = [line for line in record.read_bytes().splitlines(keepends=True) if b'"sample_count"' not in line]
    record.write_bytes(b"".join(kept))
    replay(run / "transcript", {**settings, "weighting": "uniform"}, CLIENTS)


def test_the_reader_uses_nothing_of_fdaudit(tmp_path: Path) -> None:
    """The functions above, by themselves, in a process that cannot import fdaudit."""
    run, settings = recorded(tmp_path / "run", "model_update", "samples", 1.0, 0.9)
    script = tmp_path / "reader.py"
    script.write_text(
        standing_alone(
            Path(__file__),
            "from itertools import pairwise\nimport numpy as np",
            "print(replay(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])))",
        ),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script), str(run / "transcript"), json.dumps(settings), str(CLIENTS)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "4"), done.stderr
