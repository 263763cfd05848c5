"""Acceptance: the record alone, read with `json` and `safetensors`, gives back every aggregate of a FedAvg run.

Nothing of fdaudit takes part in the reading. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..helpers.mask_cases import write_masks
from ..helpers.record_reader import Arrays, BrokenRecordError, read
from ..helpers.replays import breaks_without_each_message, read_alone, states_its_settings, take_away
from ..helpers.run_cases import finished
from ..helpers.text_cases import text_federation

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

CLIENTS = 5
PLANS = {
    "all": {"weighting": "samples", "fraction": 1.0, "server_momentum": 0.0},
    "some": {"weighting": "samples", "fraction": 0.6, "server_momentum": 0.0},
    "some-alike": {"weighting": "uniform", "fraction": 0.6, "server_momentum": 0.9},
    "few": {"weighting": "samples", "fraction": 0.4, "server_momentum": 0.5},
}
CHANGES = {
    "weighting": ({"weighting": "uniform"}, "model_update"),
    "momentum": ({"server_momentum": 0.4}, "model_update"),
    "rate": ({"lr": 0.31}, "gradient"),
    "kind": ({"upload": "model_parameters"}, "model_update"),
}


def steps(upload: str) -> int:
    return 1 if upload == "gradient" else 3


def recorded(directory: Path, upload: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A run's transcript and settings; by default all clients take part, weighted by their counts."""
    settings = {"rounds": 4, "upload": upload, **PLANS["all"], **changes, "lr": 0.3, "batch_size": 8}
    settings["local_steps"] = steps(upload)
    run = finished(
        directory,
        clients=CLIENTS,
        dataset__limit=300,
        partition={"name": "dirichlet", "alpha": 1.0},  # unequal counts: weights matter
        splits__candidates=1,
        protocol__params=settings,
    )
    return run / "transcript", settings


@pytest.mark.thorough
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("upload", ["gradient", "model_update", "model_parameters"])
def test_every_aggregate_follows_from_the_recorded_uploads(upload: str, plan: str, tmp_path: Path) -> None:
    record, settings = recorded(tmp_path / "run", upload, **PLANS[plan])
    assert replay(record, settings, CLIENTS) == 4
    assert states_its_settings(record.parent, settings)


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["masks", "texts"])
@pytest.mark.parametrize(
    ("upload", "weighting", "momentum"),
    [("gradient", "samples", 0.0), ("model_update", "samples", 0.5), ("model_parameters", "uniform", 0.0)],
)
def test_every_aggregate_of_other_models_follows_from_the_recorded_uploads(
    upload: str, weighting: str, momentum: float, task: str, tmp_path: Path
) -> None:
    settings = {"rounds": 3, "upload": upload, "weighting": weighting, "fraction": 0.67}
    settings |= {"server_momentum": momentum, "local_steps": steps(upload)}
    if task == "masks":
        settings |= {"lr": 0.1, "batch_size": 4}
        sites = ("a", "a", "a", "b", "b", "c")  # unequal counts
        data = {"name": f"masks:{write_masks(tmp_path / 'discs.npz', 120, sites=sites)}"}
        given: dict[str, Any] = {"dataset": data, "partition": {"name": "by-site"}}
        given["model"] = {"name": "unet", "params": {"width": 8, "depth": 1}}
    else:
        settings |= {"lr": 0.3, "batch_size": 8}
        given = text_federation(tmp_path)
    given["splits"] = {"test": 0.2, "proxy": 0.1, "auxiliary": 0.1, "candidates": 1}
    protocol = {"name": "fedavg", "params": settings}
    run = finished(tmp_path / "run", clients=3, protocol=protocol, **given)
    assert replay(run / "transcript", settings, 3) == 3
    with pytest.raises(BrokenRecordError):
        replay(run / "transcript", {**settings, "server_momentum": 0.9}, 3)


@pytest.mark.parametrize(
    ("upload", "changes"),
    [
        ("gradient", {}),
        ("model_update", {"fraction": 0.6, "server_momentum": 0.5}),
        ("model_parameters", {"fraction": 0.6, "weighting": "uniform"}),
    ],
    ids=str,
)
def test_taking_any_one_message_away_breaks_it(upload: str, changes: dict[str, Any], tmp_path: Path) -> None:
    record, settings = recorded(tmp_path / "run", upload, **changes)
    assert breaks_without_each_message(record, lambda: replay(record, settings, CLIENTS)) >= 4 * 2 + 4


@pytest.mark.parametrize("name", CHANGES)
def test_the_reader_tells_a_wrong_aggregation_from_the_right_one(name: str, tmp_path: Path) -> None:
    """Were the comparison too lenient, other settings would pass as well."""
    change, upload = CHANGES[name]
    record, settings = recorded(tmp_path / "run", upload)
    log = record / "messages.jsonl"
    if name == "kind":  # read updates as if they were models
        log.write_bytes(log.read_bytes().replace(b'"kind":"model_update"', b'"kind":"model_parameters"'))
    if name == "weighting":  # only the averages can tell
        take_away(record, "sample_count")
    with pytest.raises(BrokenRecordError):
        replay(record, {**settings, **change}, CLIENTS)


def test_the_reader_uses_nothing_of_fdaudit(tmp_path: Path) -> None:
    record, settings = recorded(tmp_path / "run", "model_update", server_momentum=0.9)
    imports = "from itertools import pairwise\nimport numpy as np"
    call = "replay(Path(a[1]), json.loads(a[2]), int(a[3]))"
    arguments = (str(record), json.dumps(settings), str(CLIENTS))
    assert read_alone(__file__, imports, call, tmp_path, *arguments) == "4"
