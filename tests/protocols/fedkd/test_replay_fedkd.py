"""Acceptance: the record alone, read with `json` and `safetensors`, gives back FedKD's range, grid and ensemble.

Nothing of fdaudit takes part in the reading. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest

from ...helpers.record_reader import Arrays, BrokenRecordError, read
from ...helpers.replays import breaks_without_each_message, read_alone, take_away
from ...helpers.run_cases import finished

# -- the reader: json and safetensors ---------------------------------------------------------------------------


def unpacked(tensors: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
    """The codes (n, C) of quantised logits and the floats that they stand for."""
    bits, *shape = (int(v) for v in tensors["values:layout"])
    lowest, step = (float(v) for v in tensors["values:grid"])
    count = math.prod(shape)
    if len(tensors["values:codes"]) != math.ceil(count * bits / 8):
        raise BrokenRecordError("codes of another length")
    planes = np.unpackbits(tensors["values:codes"], count=count * bits).reshape(count, bits)
    codes = (planes @ (1 << np.arange(bits)[::-1])).reshape(shape)
    return codes, (lowest + codes * step).astype(np.float32)


def only(
    record: list[tuple[dict[str, Any], Arrays]], kind: str, sender: str
) -> tuple[dict[str, Any], Arrays]:
    found = [(m, t) for m, t in record if m["kind"] == kind and m["sender"] == sender]
    if len(found) != 1:
        raise BrokenRecordError(f"{len(found)} messages of kind {kind} from {sender}")
    return found[0]


def replay(directory: Path, settings: dict[str, Any], clients: int) -> NDArray[Any]:
    """Checks a run against Gong et al. 2022, Eq. 1-4; returns ẑ as it was sent less what the record makes it.

    Raises:
        BrokenRecordError: a message is missing, unexpected, or not what the messages before it make it.
    """
    record, everybody = read(directory), [f"client/{k}" for k in range(clients)]
    S = settings["levels"]
    z = {k: logits(only(record, "logits", k)[1], S) for k in everybody}
    counts, ranges = {}, {}
    if settings["weights"] == "class-counts":
        counts = {k: only(record, "class_counts", k)[1]["counts"].astype(float) for k in everybody}
    if S is not None:
        ranges = {k: float(only(record, "logit_range", k)[1]["max_abs"]) for k in everybody}
        told, z_max = only(record, "logit_range", "aggregator")
        if float(z_max["max_abs"]) != max(ranges.values()) or set(told["receivers"]) != set(everybody):
            raise BrokenRecordError("z_max is not the largest range, or not told to everybody")
        for k in everybody:
            check_grid(only(record, "logits", k)[1], settings, float(z_max["max_abs"]))
    asked, label = only(record, "ensemble_labels", "aggregator")
    published, _ = only(record, "model_parameters", "server")
    if asked["receivers"] != ["server"] or published["receivers"] != ["world"]:
        raise BrokenRecordError("sent to somebody else")
    if len(record) != len(z) + len(counts) + len(ranges) + (S is not None) + 2:
        raise BrokenRecordError("messages that FedKD does not have")
    total = sum(counts.values()) if counts else None
    made = np.zeros(label["values"].shape)
    for k in everybody:
        plain = 1 / clients
        weight = (
            plain if total is None else np.where(total > 0, counts[k] / np.maximum(total, 1), plain)
        )  # Eq. 1
        made += weight * z[k].astype(np.float64)  # Eq. 2
    return np.asarray(label["values"] - made)


def logits(tensors: Arrays, levels: int | None) -> NDArray[Any]:
    values = tensors["values"] if levels is None else unpacked(tensors)[1]
    if "index" in tensors:
        raise BrokenRecordError("not every public sample was answered, in order")
    return values


def check_grid(tensors: Arrays, settings: dict[str, Any], z_max: float) -> None:
    """The grid is that of Eq. 4 or Eq. 3 for the z_max that was told, and no code lies outside of it."""
    S, codes = settings["levels"], unpacked(tensors)[0]
    if settings["grid"] == "eq4":
        lowest, step, points = math.ceil(-S / 2) * 2 * z_max / S, 2 * z_max / S, S + 1
    else:
        lowest, step, points = -z_max, 2 * z_max / (S - 1), S
    if not np.allclose(tensors["values:grid"], [lowest, step], rtol=1e-6) or codes.max() >= points:
        raise BrokenRecordError("another grid")


# -- the runs -------------------------------------------------------------------------------------------------

CLIENTS = 4


def recorded(directory: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    settings = {"levels": 200, "grid": "eq4", "weights": "class-counts", "gamma": None, **changes}
    run = finished(
        directory,
        clients=CLIENTS,
        dataset__limit=600,
        partition={"name": "dirichlet", "alpha": 0.5},  # unequal counts: weights matter
        splits={"test": 0.2, "proxy": 0.3, "auxiliary": 0.1, "candidates": 1},
        protocol={
            "name": "fedkd",
            "params": {"local_epochs": 5, "distill_rounds": 1, "distill_steps": 2, **settings},
        },
    )
    return run, settings


def worth(run: Path) -> float:
    """How far two float32 sums of logits may lie apart."""
    return 1e-5 * float(max(np.abs(t["values"]).max() for m, t in read(run / "transcript") if "values" in t))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"levels": 2, "grid": "eq3"},
        {"levels": None},
        pytest.param({"grid": "eq3"}, marks=pytest.mark.thorough),
        pytest.param({"levels": 7}, marks=pytest.mark.thorough),
        pytest.param({"weights": "uniform"}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_without_noise_the_ensemble_follows_from_logits_and_counts(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    run, settings = recorded(tmp_path / "run", **changes)
    residual = replay(run / "transcript", settings, CLIENTS)
    assert residual.shape == (180, 10)
    assert np.abs(residual).max() <= worth(run)


@pytest.mark.parametrize("gamma", [1.0, *(pytest.param(g, marks=pytest.mark.thorough) for g in (0.1, 10.0))])
def test_with_noise_what_is_left_over_is_laplace(gamma: float, tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", gamma=gamma)
    residual = replay(run / "transcript", settings, CLIENTS).ravel()
    assert len(residual) == 1800
    # The noise is another in every run: a false alarm once in a million, and twice the scale found out as surely.
    assert kstest(residual * gamma, "laplace").pvalue > 1e-6
    assert kstest(residual * gamma * 2, "laplace").pvalue < 1e-6, "another scale would be found out"


def test_with_noise_at_the_clients_what_they_send_is_off_the_grid_by_laplace(tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", gamma=2.0, noise_at="client", levels=20)
    record = read(run / "transcript")
    z_max = float(only(record, "logit_range", "aggregator")[1]["max_abs"])
    off = [
        t["values"] - np.round(t["values"] / z_max * 10) * z_max / 10
        for m, t in record
        if m["kind"] == "logits"
    ]
    assert np.abs(np.concatenate(off)).max() > 1e-3
    take_away(run / "transcript", "logit_range")  # of noised logits the floats are on record all the same
    residual = replay(run / "transcript", {**settings, "levels": None}, CLIENTS)
    assert np.abs(residual).max() <= worth(run)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"gamma": 1.0}, marks=pytest.mark.thorough),
        pytest.param({"levels": None, "weights": "uniform"}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_taking_any_one_message_away_breaks_it(changes: dict[str, Any], tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", **changes)
    record = run / "transcript"
    count = breaks_without_each_message(record, lambda: replay(record, settings, CLIENTS))
    assert count == {None: CLIENTS + 2}.get(settings["levels"], 3 * CLIENTS + 3)


def test_the_reader_tells_a_wrong_aggregation_from_the_right_one(tmp_path: Path) -> None:
    """Were the comparison too lenient, other settings would pass as well."""
    run, settings = recorded(tmp_path / "run")
    for change in ({"levels": 201}, {"grid": "eq3"}):
        with pytest.raises(BrokenRecordError):
            replay(run / "transcript", {**settings, **change}, CLIENTS)
    take_away(run / "transcript", "class_counts")
    plain = replay(run / "transcript", {**settings, "weights": "uniform"}, CLIENTS)
    assert np.abs(plain).max() > 1000 * worth(run)


def test_the_reader_uses_nothing_of_fdaudit(tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run")
    call = "abs(replay(Path(a[1]), json.loads(a[2]), int(a[3]))).max()"
    arguments = (str(run / "transcript"), json.dumps(settings), str(CLIENTS))
    residual = read_alone(__file__, "import math\nimport numpy as np", call, tmp_path, *arguments)
    assert float(residual) <= worth(run)
