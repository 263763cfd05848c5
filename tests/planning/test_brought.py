"""The records that an auditor brings: what is read is what was written, and every defect is one clear error."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fdaudit.errors import DataError, FdauditError, IntegrityError
from fdaudit.planning.brought import BroughtRecords, read_records

from ..helpers.design_cases import CLIENTS, ROWS, SALT, SHARED, Change, arrays, committed, write_key


def read(folder: Path) -> BroughtRecords:
    return read_records(folder / "records.json", folder / "records.npz")


def refusal(folder: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read(folder)
    error = caught.value
    assert "\n" not in str(error)
    assert error.remedy.endswith(".")
    return error


def set_at(*path: Any, to: object) -> Change:
    """A change of the value at a path."""

    def change(value: dict[str, Any]) -> None:
        for name in path[:-1]:
            value = value[name]
        value[path[-1]] = to

    return change


def drop(*path: Any) -> Change:
    def change(value: dict[str, Any]) -> None:
        for name in path[:-1]:
            value = value[name]
        del value[path[-1]]

    return change


# -- what is read ---------------------------------------------------------------------------------------------------


def test_the_records_are_as_written(tmp_path: Path) -> None:
    found = read(write_key(tmp_path))
    held = arrays()
    assert found.x is not None
    assert found.x.dtype == torch.float32
    assert torch.equal(found.x, torch.from_numpy(held["x"]).unsqueeze(1) / 255)
    assert found.y.tolist() == held["y"].tolist()
    assert {party: own.to_json() for party, own in found.clients.items()} == CLIENTS
    assert {name: getattr(found, name).tolist() for name in SHARED} == SHARED
    for rows in (found.auxiliary, found.clients["client/0"].records, found.clients["client/1"].non_members):
        assert rows.dtype == torch.int64
    assert found.design is not None
    assert (found.design.kind, found.design.images, found.design.salt) == ("matched-pairs", True, SALT)
    assert found.design.commitment == committed(CLIENTS, **held)
    assert str(SALT) not in repr(found.design)


def test_without_coins_candidates_need_no_pairs_and_may_be_left_out(tmp_path: Path) -> None:
    def observed(value: dict[str, Any]) -> None:
        value["clients"]["client/0"] = {"records": [0, 1], "members": [0, 1], "non_members": [2]}
        value["clients"]["client/1"] = {"records": [3, 4]}
        for name in SHARED:
            del value[name]

    found = read(write_key(tmp_path, observed, coins=False))
    assert found.design is None
    assert found.clients["client/0"].non_members.tolist() == [2]
    assert len(found.clients["client/1"].members) == 0
    assert len(found.auxiliary) == len(found.public) == len(found.test) == 0


def test_labels_alone_are_read_and_images_added_later_are_not_covered(tmp_path: Path) -> None:
    held = arrays()
    folder = write_key(tmp_path, held={"y": held["y"]})
    found = read(folder)
    assert found.x is None
    assert found.design is not None
    assert not found.design.images
    np.savez(folder / "records.npz", **held)
    found = read(folder)
    assert found.x is not None
    assert found.design is not None
    assert not found.design.images


def test_pairs_of_multi_label_records_may_have_different_labels(tmp_path: Path) -> None:
    labels = np.eye(ROWS, 3, dtype=np.int64)
    labels[3:] = 1
    found = read(write_key(tmp_path, held={**arrays(), "y": labels}))
    assert found.y.shape == (ROWS, 3)
    assert (found.y[0] != found.y[2]).any()


# -- what a commitment binds ----------------------------------------------------------------------------------------


def exchange(value: dict[str, Any]) -> None:
    own = value["clients"]["client/0"]
    own["members"], own["non_members"] = own["non_members"], own["members"]


def renumber(value: dict[str, Any]) -> None:
    records = value["clients"]["client/0"]["records"]
    records[1], records[2] = records[2], records[1]


@pytest.mark.parametrize(
    "after",
    [
        exchange,
        renumber,
        drop("clients", "client/1"),
        drop("clients", "client/1", "records", 3),
        set_at("design", "salt", to="00" * 32),
        set_at("design", "commitment", to="0" * 64),
    ],
    ids=["coins", "numbering", "client", "record", "salt", "commitment"],
)
def test_a_change_after_the_commitment_is_found(after: Change, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="its commitment"):
        read(write_key(tmp_path, after=after))


def test_records_that_exchange_their_rows_are_found(tmp_path: Path) -> None:
    """Otherwise a member and its non-member could be exchanged although every list stays as it was."""
    held = arrays()
    folder = write_key(tmp_path)
    for name in ("x", "y"):
        changed = {**held, name: held[name].copy()}
        changed[name][[0, 2]] = changed[name][[2, 0]] if name == "x" else changed[name][[0, 2]] + 2
        np.savez(folder / "records.npz", **changed)
        with pytest.raises(IntegrityError, match="its commitment"):
            read(folder)


def test_images_that_a_commitment_covers_cannot_be_left_out(tmp_path: Path) -> None:
    folder = write_key(tmp_path)
    np.savez(folder / "records.npz", y=arrays()["y"])
    with pytest.raises(IntegrityError, match="its commitment"):
        read(folder)


def test_keys_that_are_no_plain_arrays_are_refused_whatever_their_byte_order(tmp_path: Path) -> None:
    folder, held = write_key(tmp_path), arrays()
    np.savez(folder / "records.npz", x=held["x"], y=held["y"].astype(">i8"))
    assert read(folder).y.tolist() == held["y"].tolist()
    write_key(tmp_path)
    np.savez(tmp_path / "records.npz", y=np.array([print] * ROWS, dtype=object))
    assert "pickle" in refusal(tmp_path).remedy
    path = write_key(tmp_path) / "records.json"
    path.write_text(path.read_text().replace('"test":', '"test":[],"test":'))
    assert "stands twice" in refusal(tmp_path).problem


# -- refusals -------------------------------------------------------------------------------------------------------

OWN = ("clients", "client/0")
REFUSED: dict[str, tuple[Change, str, str]] = {
    "schema": (set_at("schema", to="fdaudit-records/2"), "records.json: schema", "is not"),
    "no schema": (drop("schema"), "records.json", "lacks schema"),
    "no design": (drop("design"), "records.json", "lacks design"),
    "unknown": (set_at("extra", to=1), "records.json", "is no field"),
    "clients": (set_at("clients", to=[]), "records.json: clients", "names no clients"),
    "party": (set_at("clients", "server", to={"records": []}), "records.json: clients", "is no client"),
    "zeros": (set_at("clients", "client/01", to={"records": []}), "records.json: clients", "is no client"),
    "text": (set_at(*OWN, to="all"), "records.json: clients.client/0", "is no object"),
    "no records": (drop(*OWN, "records"), "records.json: clients.client/0", "lacks records"),
    "half": (drop(*OWN, "members"), "records.json: clients.client/0", "lacks members"),
    "own unknown": (set_at(*OWN, "seed", to=1), "records.json: clients.client/0", "is no field"),
    "no list": (set_at(*OWN, "records", to=3), "records.json: clients.client/0.records", "is no list"),
    "beyond": (
        set_at(*OWN, "records", 0, to=ROWS),
        "records.json: clients.client/0.records",
        "is no row of records.npz",
    ),
    "negative": (set_at("test", 0, to=-1), "records.json: test", "is no row"),
    "huge": (set_at("test", 0, to=10**400), "records.json: test", "is no row"),
    "true": (set_at("test", 0, to=True), "records.json: test", "is no row"),
    "fraction": (set_at("public", 0, to=1.0), "records.json: public", "is no row"),
    "twice": (set_at(*OWN, "records", 3, to=7), "records.json: clients.client/0.records", "stands twice"),
    "both": (
        set_at(*OWN, "non_members", to=[0]),
        "records.json: clients.client/0.members",
        "is a member and a non-member",
    ),
    "untrained": (
        set_at(*OWN, "members", to=[8]),
        "records.json: clients.client/0.members",
        "is not among the client's records",
    ),
    "two clients": (
        set_at("clients", "client/1", "records", 2, to=7),
        "records.json: clients.client/1",
        "stands in clients.client/0",
    ),
    "shared": (set_at("auxiliary", 0, to=5), "records.json: auxiliary", "stands in clients.client/0"),
    "left out": (set_at("test", 0, to=2), "records.json: test", "stands in clients.client/0"),
    "two lists": (set_at("test", 0, to=8), "records.json: test", "stands in auxiliary"),
    "unequal": (
        set_at(*OWN, "non_members", to=[2, 5]),
        "records.json: clients.client/0.members",
        "has 1 rows, and non_members has 2",
    ),
    "classes": (
        set_at(*OWN, "non_members", to=[5]),
        "records.json: clients.client/0, pair 0",
        "is a pair of classes 0 and 1",
    ),
    "not held": (
        set_at(*OWN, "records", to=[0, 5, 7]),
        "records.json: clients.client/0.non_members",
        "is not among the client's records",
    ),
    "kind": (set_at("design", "kind", to="bernoulli"), "records.json: design.kind", "is not 'matched-pairs'"),
    "design": (set_at("design", to=[]), "records.json: design", "is no object"),
    "short salt": (set_at("design", "salt", to="00" * 16), "records.json: design.salt", "is not 32 bytes"),
    "odd salt": (set_at("design", "salt", to=7), "records.json: design.salt", "is not 32 bytes"),
    "capitals": (
        set_at("design", "commitment", to="AB" * 32),
        "records.json: design.commitment",
        "is not 32 bytes",
    ),
    "design field": (set_at("design", "seed", to=1), "records.json: design", "is no field"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lists_that_cannot_be_true_are_refused(name: str, tmp_path: Path) -> None:
    after, field, problem = REFUSED[name]
    error = refusal(write_key(tmp_path, after=after))
    assert error.field == field
    assert problem in error.problem


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ({"x": arrays()["x"]}, "lacks y"),
        ({"y": np.arange(0)}, "has shape"),
        ({"y": np.arange(ROWS) / 2}, "has dtype"),
        ({"y": np.arange(ROWS) - 1}, "holds the class -1"),
        ({**arrays(), "y": np.zeros(ROWS - 1, np.int64)}, "14 images but 13 labels"),
        ({**arrays(), "x": np.full((ROWS, 4, 4), 2.0)}, "holds values in"),
        ({**arrays(), "x": np.full((ROWS, 4, 4), np.nan)}, "holds NaN"),
        ({**arrays(), "x": np.zeros((ROWS, 4, 4, 9), np.uint8)}, "has 9 channels"),
    ],
    ids=["no labels", "no rows", "fractions", "negative", "unequal", "range", "nan", "channels"],
)
def test_arrays_that_are_no_records_are_refused(held: dict[str, Any], problem: str, tmp_path: Path) -> None:
    error = refusal(write_key(tmp_path, held=held, coins=False))
    assert error.field == "records.npz"
    assert problem in error.problem


def _absent(path: Path) -> None:
    path.unlink()


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"schema": "fdaudit-records/1"}))


@pytest.mark.parametrize("change", [_absent, _linked, _folder, _pipe, _pickled])
@pytest.mark.parametrize("file", ["records.json", "records.npz"])
def test_files_that_are_no_files_are_refused(
    file: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    change(write_key(tmp_path) / file)
    assert refusal(tmp_path).field == file


@pytest.mark.parametrize(
    ("variable", "field"),
    [("FDAUDIT_MOST_JSON_BYTES", "records.json"), ("FDAUDIT_MOST_DATA_BYTES", "records.npz")],
)
def test_files_beyond_the_limits_are_refused(
    variable: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "100")
    error = refusal(write_key(tmp_path))
    assert error.field == field
    assert variable in error.problem


@pytest.mark.parametrize("odd", [None, True, -1, 1e308, "", "\ud800", [], {}, [[]], [None], {"": 1}, 2**70])
def test_an_odd_value_is_an_error_of_one_line(odd: Any, tmp_path: Path) -> None:
    text = (write_key(tmp_path) / "records.json").read_bytes()

    def places(value: Any) -> list[tuple[Any, ...]]:
        keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        return [(k, *below) for k in keys for below in [(), *places(value[k])] if k not in SHARED]

    for path in places(json.loads(text)):
        value = json.loads(text)
        set_at(*path, to=odd)(value)
        (tmp_path / "records.json").write_text(json.dumps(value))
        if path == ("design",) and odd is None:  # nobody claims coins then
            assert read(tmp_path).design is None
            continue
        with pytest.raises(FdauditError) as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value), path
