"""Numbers that are small by themselves ask for no more together than their limit, whatever file holds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fdaudit.audit.guesses import guesses_and_digest
from fdaudit.data.folders import read_folder
from fdaudit.data.partition import class_table, partition
from fdaudit.errors import DataError, FdauditError, IntegrityError, SpecError, UsageError
from fdaudit.events import event_from_json
from fdaudit.importing.records import check, import_record
from fdaudit.isolation import schema
from fdaudit.isolation.frames import MalformedError
from fdaudit.isolation.schema import guesses_of
from fdaudit.limits import MOST_HISTORY, MOST_NETWORKS, MOST_PARTS, MOST_TABLE
from fdaudit.parallel import memory
from fdaudit.planning.brought import read_records
from fdaudit.recording.recorder import Recorder
from fdaudit.rng import SecretStream
from fdaudit.spec.card import load_card
from fdaudit.spec.schema import PartitionSpec
from fdaudit.storage.files import encode, load_json, load_tensors, parse_json

from .fuzz.fuzzing import bound_memory, watched
from .helpers.hostile_names import a_record, forge
from .helpers.refusals import refused

CARD: dict[str, Any] = {
    "name": "Acme",
    "asserted_by": "Acme's team",
    "classes": 2,
    "input_shape": [1, 2, 2],
    "protocol": {"name": "acme-avg"},
}
STEP = {
    "event": "Gaussian",
    "unit": "record",
    "relation": "add-or-remove",
    "covers": ["data"],
    "sensitivity": 1.0,
    "scale": 1.0,
}


def claim(*history: list[float]) -> dict[str, Any]:
    return {"source": "a page", "history": list(history)}


def steps(different: int, of: int = 1) -> list[list[float]]:
    return [[1.0 + n, 0.01, 10] for n in range(different) for _ in range(of)]


def attested(parts: int, count: int = 1) -> dict[str, Any]:
    event = {"event": "Composed", "parts": [{**STEP, "count": count}] * parts}
    return {"attested": [{"kind": "logits", "by": "us", "event": event}]}


CARDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "classes by clients": (
        {"clients": 100, "classes": 100_000},
        {"clients": 101, "classes": 100_000},
        r"classes: 100000 .*10,100,000 .*10,000,000",
    ),
    "values of an image": (
        {"input_shape": [1, 2500, 4000]},
        {"input_shape": [1, 2501, 4000]},
        r"input_shape: \[1, 2501, 4000\] .*10,004,000 .*10,000,000",
    ),
    "steps by records": (
        {"training": {"local_steps": 10_000, "batch_size": 1000}},
        {"training": {"local_steps": 10_000, "batch_size": 1001}},
        r"local_steps: 10000 .*10,010,000 .*10,000,000",
    ),
    "entries of a history": (
        {"claims": [claim(*steps(1, MOST_HISTORY))]},
        {"claims": [claim(*steps(1, MOST_HISTORY + 1))]},
        r"history: '1001 entries' has 1,001 entries, more than 1,000",
    ),
    "mechanisms of claims": (
        {"claims": [claim(*steps(MOST_PARTS // 2))] * 2},
        {"claims": [claim(*steps(MOST_PARTS // 2)), claim(*steps(MOST_PARTS // 2 + 1))]},
        r"claims: .*17 different steps in 2 claims, more than 16",
    ),
    "claims": (
        {"claims": [{"source": "x", "epsilon": 1.0}] * 100},
        {"claims": [{"source": "x", "epsilon": 1.0}] * 101},
        r"claims: '101 entries'",
    ),
    "parts of an event": (attested(MOST_PARTS), attested(MOST_PARTS + 1), r"at most 16 mechanisms"),
    "runs of a mechanism": (attested(1, 10**9), attested(1, 10**9 + 1), r"from 1 to 1,000,000,000"),
    "layers": (
        {"model": {"name": "mlp", "params": {"widths": [1] * 64}}},
        {"model": {"name": "mlp", "params": {"widths": [1] * 65}}},
        r"widths",
    ),
}


@pytest.mark.parametrize("what", CARDS)
def test_a_card_is_refused_above_a_product(what: str, tmp_path: Path) -> None:
    below, above, said = CARDS[what]
    load_card({**CARD, **below})
    record = a_record(tmp_path / "record")
    with pytest.raises(UsageError, match=said) as error:
        check(record, card={**CARD, **above})
    assert str(error.value).isprintable()


def test_a_record_s_parties_count_with_a_card_s_classes(tmp_path: Path) -> None:
    """140 kB of names, and one number, asked for 16.9 GB."""
    parties = ["server", *(f"client/{k}" for k in range(10_000))]
    with Recorder(tmp_path / "record", parties) as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", "acme/x", {"w": np.zeros(2)})
    for do in (
        lambda: check(tmp_path / "record", card={**CARD, "classes": 1001}),
        lambda: import_record(tmp_path / "record", tmp_path / "run", card={**CARD, "classes": 1001}),
    ):
        refused(do, "card.classes", said="1001 makes 10,010,000 entries")
    assert not (tmp_path / "run").exists()


def test_clients_have_few_different_networks(tmp_path: Path) -> None:
    count = MOST_NETWORKS + 1
    with Recorder(tmp_path / "record", ["server", *(f"client/{k}" for k in range(count))]) as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", "acme/x", {"w": np.zeros(2)})
    models = [{"name": "mlp", "params": {"widths": [k + 1]}} for k in range(count)]
    one = {"name": "mlp", "params": {"widths": [1]}}
    check(tmp_path / "record", card={**CARD, "model": one, "client_models": [one] * count})
    with pytest.raises(SpecError, match=f"more than {MOST_NETWORKS} different networks"):
        check(tmp_path / "record", card={**CARD, "model": one, "client_models": models})


def test_numbers_tables_and_tensors_have_an_end(tmp_path: Path) -> None:
    y = torch.zeros(4, dtype=torch.int64)
    assert class_table(y, [torch.arange(2)] * 4, 2).shape == (4, 2)
    many = MOST_TABLE // 2 + 1
    for act in (
        lambda: class_table(y, [torch.arange(2)] * 2, many),
        lambda: partition(y, 2, PartitionSpec(), SecretStream(bytes(32), "x"), many),
    ):
        refused(act, "classes", many, said=f"{2 * many:,} entries", kind=DataError)
    assert event_from_json(STEP)
    for field, value in (("scale", 1e-300), ("sensitivity", 1e300), ("count", 10**400)):
        with pytest.raises(IntegrityError, match=field):
            event_from_json({**STEP, field: value})
    record = a_record(tmp_path / "record")
    forge(record, {"tensors": {"w": {"dtype": "F32", "shape": [2**62] * 17}}})
    (finding, *_) = check(record, card=CARD)[0]
    assert "16 dimensions" in finding


# -- guesses ----------------------------------------------------------------------------------------------------------


def membership(scores: str = "t0") -> dict[str, Any]:
    return {
        "kind": "membership",
        "target": "client/0",
        "scores": scores,
        "generated": None,
        "note": "",
        "rehearsed": None,
    }


def copied(*tensors: str) -> dict[str, Any]:
    parameters = {f"p{n}": name for n, name in enumerate(tensors)}
    return {"kind": "model-extraction", "target": "client/0", "parameters": parameters, "answers": 0}


def test_guesses_are_no_more_than_parties_and_tensors_used_as_often() -> None:
    sent = {"t0": torch.zeros(2)}
    assert len(guesses_of([membership()] * 3, sent, 3)) == 3
    with pytest.raises(MalformedError, match=r" 4 guesses .* 3$"):
        guesses_of([membership()] * 4, sent, 3)
    assert guesses_of([copied(*["t0"] * 3)], sent, 3)
    with pytest.raises(MalformedError, match=r"'t0' .* 3 times"):
        guesses_of([copied(*["t0"] * 4)], sent, 3)
    first, second = guesses_of([membership()] * 2, {"t0": torch.zeros(9, dtype=torch.uint8)}, 2)
    assert first.scores.data_ptr() == second.scores.data_ptr()


def test_bytes_count_after_conversion_and_for_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MOST_BYTES", 1600)
    sent = {"t0": torch.zeros(100, dtype=torch.uint8), "long": torch.zeros(0, 10**9)}
    assert guesses_of([membership()] * 2, sent, 3)
    with pytest.raises(MalformedError, match=r" 2,400 bytes, .* 1,600"):
        guesses_of([membership()] * 3, sent, 3)
    with pytest.raises(MalformedError, match=" 4,000,000,000 bytes"):
        guesses_of([membership("long")], sent, 3)


def test_a_file_of_guesses_names_a_victim_and_a_file_once(tmp_path: Path) -> None:
    """One file of images that many guesses named was read and converted for each of them."""
    about = {"schema": "fdaudit-guesses/1", "name": "mine", "adversary": "server", "view": "0" * 64}
    one = {"target": "client/0", "messages": [1], "images": "a.safetensors"}
    for second, said in (
        ({"images": "b.safetensors"}, "one victim twice"),
        ({"target": "client/1"}, "one file twice"),
    ):
        text = json.dumps({**about, "reconstruction": [one, {**one, **second}]})
        (tmp_path / "guesses.json").write_text(text)
        with pytest.raises(UsageError, match=said):
            guesses_and_digest(tmp_path / "guesses.json")


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    memory.budget.cache_clear()
    monkeypatch.setenv(memory.VARIABLE, "0.01")
    yield
    memory.budget.cache_clear()


def test_needs_are_forecast_before_anything_is_built_or_read(little_memory: None, tmp_path: Path) -> None:
    memory.refuse_forecast("record", "R", 9_000_000)
    with pytest.raises(UsageError, match=r"^record: 'R' .* 0\.1 GB.*FDAUDIT_MEMORY"):
        memory.refuse_forecast("record", "R", 50_000_000)
    record = a_record(tmp_path / "record")
    with pytest.raises(UsageError, match=r"^card\.model\.name: 'mlp' .*FDAUDIT_MEMORY"):
        check(record, card={**CARD, "model": {"name": "mlp", "params": {"widths": [4000, 4000]}}})
    np.savez(tmp_path / "records.npz", x=np.zeros((2000, 32, 32), np.uint8), y=np.zeros(2000, np.uint8))
    (tmp_path / "records.json").write_text('{"clients":{},"design":null,"schema":"fdaudit-records/1"}')
    with pytest.raises(UsageError, match=r"^records\.npz: .*FDAUDIT_MEMORY"):
        read_records(tmp_path / "records.json", tmp_path / "records.npz")


def test_files_and_folders_are_forecast(little_memory: None, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("[" + "[]," * 200_000 + "0]")
    with pytest.raises(UsageError, match=r"^file: .*result\.json' .*FDAUDIT_MEMORY"):
        load_json(tmp_path / "result.json")
    (tmp_path / "model.safetensors").write_bytes(encode({"w": torch.zeros(2_000_000)}))
    with pytest.raises(UsageError, match=r"^file: .*model\.safetensors' .*FDAUDIT_MEMORY"):
        load_tensors(tmp_path / "model.safetensors")
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        Image.new("L", (2000, 2000)).save(tmp_path / kind / "1.png")
    with pytest.raises(UsageError, match=r"^dataset\.name: .*FDAUDIT_MEMORY"):
        read_folder(tmp_path, None)


def test_an_archive_packs_no_desert(tmp_path: Path) -> None:
    """A small file that unpacks to a thousand times its size, and then becomes numbers of four bytes."""
    (tmp_path / "records.json").write_text('{"clients":{},"design":null,"schema":"fdaudit-records/1"}')
    arrays = {"x": np.zeros((100, 1024, 1024), np.uint8), "y": np.arange(100, dtype=np.uint8)}
    np.savez_compressed(tmp_path / "records.npz", **arrays)
    with pytest.raises(DataError, match=r"^records\.npz: .* 104,.*numpy\.savez"):
        read_records(tmp_path / "records.json", tmp_path / "records.npz")


# -- time -------------------------------------------------------------------------------------------------------------


class Counted(str):
    """A text that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_doubled_names_are_refused_in_linear_time() -> None:
    from fdaudit.storage.files import _named_once

    pairs = [(Counted(f"k{n}"), n) for n in range(20_000)]
    Counted.compared = 0
    with pytest.raises(ValueError, match="'k19999' stands twice"):
        _named_once([*pairs, (Counted("k19999"), 0)])
    assert Counted.compared < 100_000
    text = "{" + "".join(f'"k{n}":0,' for n in range(400_000)) + '"k399999":1}'
    with watched(300), pytest.raises(ValueError, match="stands twice"):
        parse_json(text)


ABOVE: dict[str, Callable[[Path], object]] = {
    "classes": lambda folder: test_a_record_s_parties_count_with_a_card_s_classes(folder),
    "model": lambda folder: check(
        a_record(folder / "record"),
        card={**CARD, "model": {"name": "mlp", "params": {"widths": [30_000, 30_000]}}},
    ),
    "image": lambda folder: check(a_record(folder / "record"), card={**CARD, "input_shape": [4096] * 3}),
    "archive": lambda folder: test_an_archive_packs_no_desert(folder),
}


def main() -> None:
    """Read one hostile file in bounded memory."""
    check(a_record(Path(sys.argv[2]) / "first"), card=CARD)  # so that libraries are loaded
    bound_memory()
    with suppress(FdauditError):
        ABOVE[sys.argv[1]](Path(sys.argv[2]))


@pytest.mark.thorough
@pytest.mark.parametrize("what", ABOVE)
def test_a_product_above_its_limit_takes_no_memory(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_products", what, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    main()
