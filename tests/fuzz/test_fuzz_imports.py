"""Cards and truths with one wrong value: an import is refused by one clear error, or makes one whole run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from .fuzz_targets import targets
from .fuzzing import SEED, Target, _disturbed, _read

CASES = 220
_LARGE: tuple[Any, ...] = (
    *(
        [4096, 4096, 4096],
        [1, 4096, 4096],
        [3, 8, 8],
        [1, 8],
        [1, 8, 8, 8],
        10_000,
        10**6,
        10**9,
        1e-300,
        1e300,
    ),
    *("import:os:system", "import:no_such_module:Net", "import:torch.nn:Linear", "fedavg", "fedkd", "mlp"),
    *("resnet18", "encrypted", "api", "client", "server", "world", "client/0+server", "0" * 64),
)
"""Values that are of the right type for some field and wrong there."""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return targets(tmp_path_factory.mktemp("imports") / "templates")["foreign-card"]


def changed(value: Any, draws: random.Random) -> Any:
    """A document with one value of another kind, or with one that is only too large or named elsewhere."""
    if draws.random() < 0.5:
        return _disturbed(value, draws)
    key = draws.choice(sorted(value))
    inner = value[key]
    while isinstance(inner, dict | list) and inner and draws.random() < 0.6:
        value = inner
        key = draws.choice(sorted(value)) if isinstance(value, dict) else draws.randrange(len(value))
        inner = value[key]
    value[key] = draws.choice(_LARGE)
    return value


def card(folder: Path, draws: random.Random) -> None:
    path = folder / "card.yaml"
    value = yaml.safe_load(path.read_text())
    if draws.random() < 0.3:
        value["model"] = None  # so that no network contradicts the other fields
    changed(value, draws)
    try:
        path.write_text(yaml.safe_dump(value))
    except UnicodeError:
        path.write_bytes(b"\xff")


def lists(folder: Path, draws: random.Random) -> None:
    path = folder / "truth" / "records.json"
    value = json.loads(path.read_bytes())
    changed(value, draws)
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n")


def lines(folder: Path, draws: random.Random) -> None:
    path = folder / "truth" / "uses.jsonl"
    found = path.read_text().splitlines()
    at = draws.randrange(len(found))
    value = json.loads(found[at])
    changed(value, draws)
    found[at] = json.dumps(value, sort_keys=True, separators=(",", ":"))
    path.write_text("\n".join(found) + "\n")


def arrays(folder: Path, draws: random.Random) -> None:
    path = folder / "truth" / "records.npz"
    held = dict(np.load(path))
    name = draws.choice(("x", "y"))
    value = held[name]
    ways: dict[str, Callable[[], Any]] = {
        "nan": lambda: np.full(value.shape, np.nan),
        "inf": lambda: np.full(value.shape, np.inf, np.float32),
        "large": lambda: value * 255.0,
        "negative": lambda: value - 5,
        "bytes": lambda: value.astype(np.uint8),
        "text": lambda: value.astype("U1"),
        "complex": lambda: value.astype(np.complex64),
        "fewer": lambda: value[: len(value) // 2],
        "none": lambda: value[:0],
        "scalar": lambda: np.float32(1),
        "deep": lambda: value[..., None, None],
        "huge": lambda: np.full(len(value), 2**62),
        "half": lambda: value.astype(np.float16),
    }
    way = draws.choice(sorted(ways))
    held[name] = ways[way]()
    if name == "y" and draws.random() < 0.3:
        del held["x"]
    np.savez(path, **held)


@pytest.mark.thorough
@pytest.mark.parametrize("change", [card, lists, lines, arrays], ids=lambda f: f.__name__)
def test_a_wrong_value_is_one_error_or_a_whole_run(
    change: Callable[[Path, random.Random], None], foreign: Target, tmp_path: Path
) -> None:
    outcomes = set[str]()
    for number in range(CASES if change is card else CASES // 4):
        draws = random.Random(f"{SEED}/{change.__name__}/{number}")
        folder = tmp_path / "case"
        shutil.copytree(foreign.template, folder)
        change(folder, draws)
        outcome = _read(foreign, folder)
        assert outcome in ("refused", "same", "other"), f"{change.__name__} {number}: {outcome}"
        outcomes.add(outcome)
        shutil.rmtree(folder)
    assert {"refused"} < outcomes, "nothing was imported"
