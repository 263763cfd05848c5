"""Guesses with one odd value anywhere are refused in one error before anything is written, or scored whole."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fdaudit
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.testing.specs import small_spec

from ..helpers.run_cases import tree

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    1e308,
    2**70,
    "",
    "0.1",
    "client/9",
    "../x",
    "\x00",
    [],
    {},
    [[]],
    {"a": 1},
    "x" * 500,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("mutated")
    params = {"rounds": 1, "batch_size": 2, "local_steps": 1, "upload": "gradient"}
    run = fdaudit.run(small_spec(victims=2, protocol={"name": "fedavg", "params": params}), home / "run")
    fdaudit.export_view(run, "server", home / "handout")
    return home


def valid(home: Path, goal: str) -> dict[str, Any]:
    card = json.loads((home / "handout" / "card.json").read_text())
    value = {
        "schema": "fdaudit-guesses/1",
        "name": "mine",
        "adversary": "server",
        "view": card["view_sha256"],
        "source": "a paper",
        "assumes": ["luck"],
    }
    if goal == "label_distribution":
        return {**value, goal: [{"target": k, "distribution": [0.1] * 10} for k in card["victims"]]}
    run = fdaudit.load(home / "run")
    seq = next(m.seq for m in run.view("server").messages if (m.sender, m.kind) == ("client/0", "gradient"))
    save_file({"images": torch.zeros(1, 1, 8, 8)}, home / "images.safetensors")
    return {**value, goal: [{"target": "client/0", "messages": [seq], "images": "images.safetensors"}]}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value, one item of a list standing for the others."""
    if path:
        yield path
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:1] if isinstance(value, list) else ())
    )
    for key, below in items:
        yield from places(below, (*path, key))


def changed(value: dict[str, Any], path: tuple[Any, ...], to: Any) -> dict[str, Any]:
    made = copy.deepcopy(value)
    node: Any = made
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = to
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("goal", ["label_distribution", "reconstruction"])
def test_one_odd_value_is_refused_before_anything_is_written(goal: str, made: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(made, tmp_path / "home"))
    run, good = fdaudit.load(home / "run"), valid(home, goal)
    before, refused, path = tree(home / "run"), list[str](), home / "guesses.json"
    for place in places(good):
        for odd in ODD:
            path.write_text(json.dumps(changed(good, place, odd)))
            try:
                cell = fdaudit.score(run, path)
            except (UsageError, IntegrityError) as error:
                refused.append(str(error))
            else:
                assert cell.id in {c["id"] for c in fdaudit.load(home / "run").result.plain()["cells"]}
                shutil.rmtree(home / "run")
                shutil.copytree(made / "run", home / "run")
                run = fdaudit.load(home / "run")
            assert tree(home / "run") == before, (place, odd)
    assert len(refused) > 100
    assert {len(said.splitlines()) for said in refused} == {1}
