"""A table that a plain loop of PyTorch trained on: its record becomes a run whose rows are scored as rows."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fdaudit
from fdaudit.data.raw import as_vectors
from fdaudit.errors import DataError, SpecError
from fdaudit.importing.new_card import new_card
from fdaudit.recording.recorder import Recorder
from fdaudit.spec.card import Card, load_card

from ..helpers.results import figures_of

ROWS, CLIENTS = 90, 3
AGE, COLOURS = (40.0, 12.0), ("red", "green", "blue")
COLUMNS = [
    {"name": "age", "mean": AGE[0], "scale": AGE[1]},
    {"name": "visits"},
    {"name": "colour", "categories": list(COLOURS)},
]


def records() -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Vectors of three columns, their classes, and the cells that they stand for."""
    rng = np.random.default_rng(3)
    age = rng.integers(20, 80, ROWS).astype(float)
    visits = rng.poisson(1.0, ROWS).astype(float)
    colour = rng.integers(0, 3, ROWS)
    x = np.column_stack([(age - AGE[0]) / AGE[1], visits, np.eye(3)[colour]])
    y = (age + 10 * (colour == 0) > 50).astype(np.int64)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), np.column_stack([age, visits, colour])


def record_loop(folder: Path, batch: int = 1) -> None:
    """Write `record/` and `truth/` of two rounds of FedAvg in plain PyTorch, a step of one row each."""
    torch.manual_seed(1)
    x, y, _ = records()
    body = nn.Sequential(nn.Flatten(), nn.Linear(5, 16), nn.ReLU())
    model = nn.Sequential(OrderedDict(extractor=body, head=nn.Sequential(nn.Linear(16, 2))))
    server = {n: v.clone() for n, v in model.state_dict().items()}
    parties = ["server", "world", *(f"client/{k}" for k in range(CLIENTS))]
    held = {f"client/{k}": list(range(k, 60, CLIENTS)) for k in range(CLIENTS)}
    with Recorder(folder / "record", parties, truth=folder / "truth") as recorder:
        for t in range(2):
            recorder.round(t)
            sent = recorder.send("server", list(held), "model_parameters", server)
            for party, rows in held.items():
                model.load_state_dict({n: torch.from_numpy(a) for n, a in sent.items()})
                numbers = list(range(t * batch, (t + 1) * batch))
                chosen = [rows[n] for n in numbers]
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                update = {n: -0.1 * p.grad for n, p in model.named_parameters()}
                recorder.send(party, "server", "model_update", update, ["data", sent.seq], numbers)
                model.zero_grad()
                for n, v in server.items():
                    v += update[n] / CLIENTS
        recorder.send("server", "world", "model_parameters", server)
    np.savez(folder / "truth" / "records.npz", x=x.numpy(), y=y.numpy())
    lists = {
        "schema": "fdaudit-records/1",
        "design": None,
        "clients": {party: {"records": rows} for party, rows in held.items()},
        "auxiliary": list(range(60, ROWS)),
    }
    (folder / "truth" / "records.json").write_text(json.dumps(lists))


def card(**changes: Any) -> dict[str, Any]:
    return {
        "name": "a table",
        "asserted_by": "the tests",
        "task": "table",
        "classes": 2,
        "input_shape": [5],
        "columns": COLUMNS,
        "model": {"name": "mlp", "params": {"widths": [16]}},
        "protocol": {"name": "own-loop"},
        "training": {"lr": 0.1, "batch_size": 1, "local_steps": 1},
        **changes,
    }


AUDIT = {"profile": "quick", "victims": 2, "adversaries": ["server"]}


@pytest.mark.thorough
def test_rows_of_a_recorded_loop_are_recovered_and_shown(tmp_path: Path) -> None:
    record_loop(tmp_path)
    run = fdaudit.import_record(
        tmp_path / "record",
        tmp_path / "run",
        card=card(),
        truth=[tmp_path / "truth"],
        audit=AUDIT,
    )
    cell = fdaudit.attack("analytic", run).plain()
    assert (cell["status"], cell["goal"]) == ("run", "row-reconstruction"), cell["reason"]
    figures = figures_of(cell)
    assert figures["categories_right"]["value"] == 1
    assert figures["cells_right"]["value"] == 1
    assert figures["numbers_error"]["value"] < 1e-3
    *_, cells = records()
    (first,) = cell["targets"][0]["rows"]
    shown = [(c["column"], c["truth"], c["guess"]) for c in first["cells"]]
    age, visits, colour = cells[0]
    assert shown == [
        ("age", f"{age:g}", f"{age:g}"),
        ("visits", f"{visits:g}", f"{visits:g}"),
        ("colour", COLOURS[int(colour)], COLOURS[int(colour)]),
    ]
    of_images = fdaudit.attack("inverting-gradients", run)
    assert of_images.status == "not-applicable"
    assert "rows of a table" in of_images.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_shape": [1, 1, 5]}, "input_shape: .* is no length of a row's vector"),
        ({"input_shape": [0]}, "input_shape: .* is no length of a row's vector"),
        ({"input_shape": [1 << 20]}, "from 1 to 65,536"),
        ({"input_shape": [6]}, "columns: .* have 5 entries, and input_shape says 6"),
        ({"task": "single-label", "columns": []}, "Rows of a table need `task: table`"),
        ({"task": "single-label", "input_shape": [1, 1, 5]}, "columns: .* are given for images"),
        ({"columns": [{"name": "a", "categories": ["x"], "scale": 2.0}]}, "is given beside categories"),
    ],
)
def test_a_card_of_rows_has_one_length_that_its_columns_fill(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_card({**card(), **changes})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((4, 5), np.nan), "holds NaN, infinite or huge values"),
        (np.full((4, 5), 1e300), "holds NaN, infinite or huge values"),
        (np.zeros((4, 0)), r"has shape \(4, 0\)"),
        (np.full((4, 5), "1"), "has dtype <U1"),
    ],
)
def test_brought_rows_are_finite_numbers(x: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_vectors(x, "records.npz", "x")


def test_a_new_card_says_how_rows_are_described(tmp_path: Path) -> None:
    record_loop(tmp_path)
    path = new_card(tmp_path / "record", tmp_path / "card.yaml")
    assert "`task: table`" in path.read_text()
    assert "columns" in Card.model_fields
