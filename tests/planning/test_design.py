"""Coins before the training: fair, seen by the holder of the key only, and written whole or not at all."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdaudit.config import validate
from fdaudit.data import load_dataset
from fdaudit.errors import DataError, UsageError
from fdaudit.planning import design as module
from fdaudit.planning.brought import BroughtRecords, ClientRecords, read_records
from fdaudit.planning.design import DesignSpec, MadeDesign, make_design
from fdaudit.spec.schema import DatasetSpec
from fdaudit.storage.vault import Secrets
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import verify

from ..helpers.command import Cli
from ..helpers.refusals import refused
from ..helpers.run_cases import finished, known, stream, tree, write_spec

PARTITIONS: list[dict[str, Any]] = [
    {"name": "iid"},
    {"name": "by-class", "classes_per_client": 2},
    {"name": "dirichlet", "alpha": 0.3},
]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def make(data: object, out: Path, **fields: Any) -> MadeDesign:
    return make_design(str(data), out, validate(DesignSpec, fields))


def key(folder: Path) -> BroughtRecords:
    return read_records(folder / "truth" / "records.json", folder / "truth" / "records.npz")


def leave_out(folder: Path, k: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sites" / f"client-{k}.json").read_bytes())
    return found


def images(n: int, *, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)


def write_sites(folder: Path, *labels: Any, with_images: bool = True, **shared: Any) -> Path:
    """A directory with a file for each site, and those of records that no site holds."""
    folder.mkdir()
    named = {f"client-{k}": y for k, y in enumerate(labels)} | shared
    for seed, (name, y) in enumerate(named.items()):
        x = {"x": images(len(y), seed=seed)} if with_images else {}
        np.savez(folder / f"{name}.npz", y=np.asarray(y), **x)
    return folder


def within(heads: int, coins: int) -> bool:
    """Return False for counts that fair coins give twice in a billion times."""
    return abs(heads - coins / 2) < 6 * math.sqrt(coins) / 2


# -- what a design holds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: str(p["name"]))
def test_sites_and_key_are_of_the_same_records(partition: dict[str, Any], tmp_path: Path) -> None:
    made = make("digits", tmp_path / "D", sites=4, partition=partition, public=0.05)
    found = key(tmp_path / "D")
    assert found.x is not None
    digits = load_dataset(DatasetSpec(), stream(0))
    assert torch.equal(found.x, digits.x)
    assert torch.equal(found.y, digits.y)
    assert [len(t) for t in (found.auxiliary, found.public, found.test)] == [180, 90, 180]
    rows = [found.auxiliary, found.public, found.test]
    for k, (party, own) in enumerate(found.clients.items()):
        assert party == f"client/{k}"
        rows.append(own.records)
        told = leave_out(tmp_path / "D", k)
        assert told.keys() == {"schema", "party", "records", "leave_out", "commitment"}
        assert (told["party"], told["records"]) == (party, made.records[party])
        assert len(own.records) == made.records[party]
        assert own.records.tolist() != sorted(own.records.tolist())  # the dataset's order stays with the key
        assert told["commitment"] == made.commitment
        assert own.records[told["leave_out"]].sort().values.tolist() == own.non_members.sort().values.tolist()
        assert len(own.members) == len(own.non_members) == made.pairs[party]
        assert torch.equal(found.y[own.members], found.y[own.non_members])
        with np.load(tmp_path / "D" / "sites" / f"client-{k}.npz") as handed:
            assert np.array_equal(handed["x"], found.x[own.records, 0].numpy())
            assert np.array_equal(handed["y"], found.y[own.records].numpy())
    with np.load(tmp_path / "D" / "public.npz") as handed:  # message index i is row i of it
        assert np.array_equal(handed["x"], found.x[found.public, 0].numpy())
    together = torch.cat(rows)
    assert len(together.unique()) == len(together)
    assert (len(together) == len(digits.y)) == (partition["name"] != "by-class")


def test_clients_come_in_order_and_candidates_are_the_stated_share(tmp_path: Path) -> None:
    make("digits", tmp_path / "D", sites=12)
    assert list(key(tmp_path / "D").clients) == [f"client/{k}" for k in range(12)]
    labels = [0] * 7 + [1] * 5 + [2] * 8
    data = write_sites(tmp_path / "data", labels, labels, with_images=False)
    for fraction, asked, pairs in ((1.0, 10, 3 + 2 + 4), (0.5, 5, 5), (0.1, 1, 1)):
        made = make(data, tmp_path / f"D{fraction}", fraction=fraction)
        assert dict(made.asked) == {"client/0": asked, "client/1": asked}
        assert dict(made.pairs) == {"client/0": pairs, "client/1": pairs}


def test_what_is_published_names_no_record(tmp_path: Path) -> None:
    made = make("digits", tmp_path / "D", sites=2, fraction=0.25)
    assert json.loads((tmp_path / "D" / "design.json").read_bytes()) == {
        "schema": "fdaudit-design/1",
        "data": "digits",
        "sites": 2,
        "fraction": 0.25,
        "pairs": {"client/0": 89, "client/1": 89},
        "commitment": made.commitment,
    }
    design = key(tmp_path / "D").design
    assert design is not None
    assert (design.commitment, design.images) == (made.commitment, True)


def test_a_test_split_of_the_datasets_own_is_the_test_set(tmp_path: Path) -> None:
    held = {"train_images": images(40), "train_labels": np.arange(40) % 2}
    held |= {"test_images": images(6, seed=1), "test_labels": np.arange(6) % 2}
    np.savez(tmp_path / "d.npz", **held)
    make(f"npz:{tmp_path / 'd.npz'}", tmp_path / "D", sites=2, auxiliary=0)
    found = key(tmp_path / "D")
    assert found.x is not None
    assert found.test.tolist() == list(range(40, 46))
    assert torch.equal(found.x[found.test, 0], torch.from_numpy(held["test_images"]) / 255)
    assert sum(len(c.records) for c in found.clients.values()) == 40
    make(f"npz:{tmp_path / 'd.npz'}", tmp_path / "without", sites=2, test=0)
    found = key(tmp_path / "without")
    assert len(found.y) == 40
    assert len(found.test) == 0
    with pytest.raises(UsageError, match="own test split"):
        make(f"npz:{tmp_path / 'd.npz'}", tmp_path / "refused", sites=2, test=0.2)


def test_bytes_stay_bytes_and_no_folder_is_named(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "secret.npz", train_images=colours, train_labels=np.arange(40) % 2)
    make(f"npz:{tmp_path / 'secret.npz'}", tmp_path / "D", sites=2)
    with np.load(tmp_path / "D" / "truth" / "records.npz") as held:
        assert held["x"].dtype == np.uint8
        assert np.array_equal(held["x"], colours)
    assert json.loads((tmp_path / "D" / "design.json").read_bytes())["data"] == "npz:secret.npz"
    assert str(tmp_path).encode() not in b"".join(tree(tmp_path / "D").values())


def test_multi_label_records_are_paired(tmp_path: Path) -> None:
    make("digits-multilabel", tmp_path / "D", sites=2, fraction=0.2)
    found = key(tmp_path / "D")
    assert found.y.ndim == 2
    for own in found.clients.values():
        alike = (found.y[own.members] == found.y[own.non_members]).all(1)
        assert len(own.members) > 20
        assert alike.float().mean() > 0.9


def test_sites_with_records_of_their_own_are_handed_numbers_only(tmp_path: Path) -> None:
    labels = ([0, 1] * 10, [1, 0, 0] * 6)
    data = write_sites(tmp_path / "hospitals", *labels, auxiliary=[0, 1, 1], test=[1, 0])
    made = make(data, tmp_path / "D", sites=2, fraction=1.0)
    assert not made.handed_records
    handed = sorted(p.name for p in (tmp_path / "D" / "sites").iterdir())
    assert handed == [".gitignore", "client-0.json", "client-1.json"]
    found = key(tmp_path / "D")
    assert found.x is not None
    start = 0
    for k, y in enumerate(labels):
        own = found.clients[f"client/{k}"]
        assert own.records.tolist() == list(range(start, start + len(y)))  # the site's own order
        assert found.y[own.records].tolist() == y
        assert torch.equal(found.x[own.records, 0], torch.from_numpy(images(len(y), seed=k)) / 255)
        assert leave_out(tmp_path / "D", k)["leave_out"] == (own.non_members.sort().values - start).tolist()
        start += len(y)
    assert found.auxiliary.tolist() == [38, 39, 40]
    assert found.test.tolist() == [41, 42]
    assert len(found.public) == 0
    assert json.loads((tmp_path / "D" / "design.json").read_bytes())["data"] == "hospitals"


def test_labels_are_enough_and_images_can_be_added_to_the_key(tmp_path: Path) -> None:
    data = write_sites(tmp_path / "data", [0, 1] * 5, [0, 0, 1, 1], with_images=False)
    made = make(data, tmp_path / "D")
    assert not made.images
    found = key(tmp_path / "D")
    assert found.x is None
    np.savez(tmp_path / "D" / "truth" / "records.npz", x=images(14), y=found.y.numpy())
    found = key(tmp_path / "D")
    assert found.x is not None
    assert found.design is not None
    assert not found.design.images


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=30), min_size=1, max_size=4),
    fraction=st.floats(0.05, 1.0),
    with_images=st.booleans(),
)
def test_any_labels_give_a_key_that_can_be_read_or_one_refusal(
    labels: list[list[int]], fraction: float, with_images: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    data = write_sites(folder / "data", *labels, with_images=with_images)
    try:
        made = make(data, folder / "D", fraction=fraction)
    except DataError:
        assert not (folder / "D").exists()
        return
    for k, (party, own) in enumerate(key(folder / "D").clients.items()):
        assert 1 <= len(own.members) == made.pairs[party] <= fraction * len(labels[k]) / 2 + 1e-9
        assert len(leave_out(folder / "D", k)["leave_out"]) == len(own.members)


# -- the law of the coins -------------------------------------------------------------------------------------------

CLASSES, DESIGNS = 20, 150


@pytest.fixture(scope="module")
def tosses(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray[Any, Any]:
    """(designs, classes): whether the first of a class's two records is left out. All records are candidates."""
    folder = tmp_path_factory.mktemp("coins")
    data = write_sites(folder / "data", np.arange(2 * CLASSES) % CLASSES, with_images=False)
    found = np.zeros((DESIGNS, CLASSES), dtype=bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for i in range(DESIGNS):
            make(data, folder / f"D{i}", fraction=1.0)
            left = leave_out(folder / f"D{i}", 0)["leave_out"]
            assert len(left) == CLASSES
            assert sorted(n % CLASSES for n in left) == list(range(CLASSES))
            found[i, [n for n in left if n < CLASSES]] = True
    return found


def test_the_coins_of_designs_are_fair_and_independent(tosses: np.ndarray[Any, Any]) -> None:
    assert within(int(tosses.sum()), tosses.size)
    assert all(within(int(count), DESIGNS) for count in tosses.sum(0))
    between = tosses[:, :, None] == tosses[:, None, :]
    assert all(within(int(between[:, i, j].sum()), DESIGNS) for i in range(CLASSES) for j in range(i))
    assert within(int((tosses[1:] == tosses[:-1]).sum()), tosses[1:].size)
    assert len({row.tobytes() for row in tosses}) >= DESIGNS - 2  # two rows of 20 may be the same by chance


def test_positions_in_what_a_site_is_handed_and_in_the_key_tell_nothing_of_the_coins(tmp_path: Path) -> None:
    first_in_file = first_in_key = coins = 0
    for i in range(5):
        make("digits", tmp_path / f"D{i}", sites=2, fraction=0.8)
        for k, own in enumerate(key(tmp_path / f"D{i}").clients.values()):
            position = torch.zeros(1797, dtype=torch.int64)
            position[own.records] = torch.arange(len(own.records))
            first_in_file += int((position[own.non_members] < position[own.members]).sum())
            first_in_key += int((own.non_members < own.members).sum())
            coins += len(own.members)
            told = leave_out(tmp_path / f"D{i}", k)["leave_out"]
            assert told == sorted(told)
    assert coins > 2000
    assert within(first_in_file, coins)
    assert within(first_in_key, coins)


# -- what each party is handed --------------------------------------------------------------------------------------


@pytest.fixture
def _same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Secrets, "draw", lambda seed=None: known(1))
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))


@pytest.mark.usefixtures("_same_draws")
def test_a_site_is_handed_nothing_that_depends_on_other_sites_coins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commitment depends on them, and its salt hides them."""
    first = make("digits", tmp_path / "one", sites=3)
    toss = module._client

    def other_coins(party: str, *given: Any) -> ClientRecords:
        own = toss(party, *given)
        if party != "client/1":
            return own
        return ClientRecords(own.records, own.non_members, own.members)

    monkeypatch.setattr(module, "_client", other_coins)
    second = make("digits", tmp_path / "two", sites=3)
    assert first.commitment != second.commitment
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert one.keys() == two.keys()
    changed = {
        name
        for name in one
        if one[name].replace(first.commitment.encode(), second.commitment.encode()) != two[name]
    }
    assert changed == {"sites/client-1.json", "truth/records.json"}
    assert len(one["truth/records.json"]) == len(two["truth/records.json"])


def test_no_secret_is_kept_but_the_salt_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: drawn.append(urandom(n)) or drawn[-1])
    make("digits", tmp_path / "D", sites=2)
    secret, salt = (b for b in drawn if len(b) == 32)
    files = tree(tmp_path / "D")
    assert not [n for n, data in files.items() if secret in data or secret.hex().encode() in data]
    salted = [n for n, data in files.items() if salt in data or salt.hex().encode() in data]
    assert salted == ["truth/records.json"]


def test_only_the_owner_may_enter_and_git_takes_neither_coins_nor_key(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make("digits", tmp_path / "D", sites=2)
    finally:
        os.umask(before)
    modes = {p.relative_to(tmp_path).as_posix(): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    entered = {"D/design.json", "D/sites/.gitignore", "D/truth/.gitignore"}
    assert {n for n, mode in modes.items() if mode & 0o077} == entered
    assert modes["D"] == modes["D/sites"] == modes["D/truth"] == 0o700
    for folder in ("sites", "truth"):
        assert (tmp_path / "D" / folder / ".gitignore").read_text() == "*\n"


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fields", "field", "problem"),
    [
        ("digits", {}, "sites", "is missing"),
        ("digits", {"sites": 0}, "sites", "greater than or equal to 1"),
        ("digits", {"sites": 2, "fraction": 0.0}, "fraction", "greater than 0"),
        ("digits", {"sites": 2, "fraction": 1.01}, "fraction", "less than or equal to 1"),
        ("digits", {"sites": 2, "fraction": float("nan")}, "fraction", ""),
        ("digits", {"sites": 2, "fraction": 0.001}, "fraction", "gives no pair of client/0's 719 records"),
        ("digits", {"sites": 2, "auxiliary": 0.5, "test": 0.5}, "auxiliary", "leaves no records"),
        ("digits", {"sites": 2, "public": 0.0001}, "public", "gives no record out of 1797"),
        ("digits", {"sites": 2, "partition": {"name": "even"}}, "partition.name", "is not a valid choice"),
        ("digits", {"sites": 2, "partition": {"name": "dirichlet"}}, "partition.alpha", "is missing"),
        ("digits", {"sites": 900}, "partition.name", "fewer than 2"),
        ("digits", {"sites": 400, "fraction": 1.0}, "DATA", "no two records of one class"),
        ("dogits", {"sites": 2}, "DATA", "is no directory and no known dataset"),
        ("npz:nowhere.npz", {"sites": 2}, "DATA", "does not exist"),
        ("folder:nowhere", {"sites": 2}, "DATA", "does not exist"),
    ],
)
def test_an_unfit_option_is_refused_and_nothing_is_written(
    data: str, fields: dict[str, Any], field: str, problem: str, tmp_path: Path
) -> None:
    refused(lambda: make(data, tmp_path / "D", **fields), field, said=problem, kind=UsageError)
    assert list(tmp_path.iterdir()) == []


Y = [0, 1] * 4


@pytest.mark.parametrize(
    ("files", "fields", "field", "problem"),
    [
        ({"client-0": Y}, {"sites": 2}, "sites", "is not the number of files, 1"),
        ({"client-0": Y}, {"auxiliary": 0.1}, "auxiliary", "does not belong to sites"),
        ({"client-0": Y}, {"test": 0.0}, "test", "does not belong to sites"),
        ({"client-0": Y}, {"image_size": 8}, "image_size", "does not belong to sites"),
        ({"client-0": Y}, {"partition": {"name": "iid"}}, "partition", "does not belong to sites"),
        ({"client-0": Y, "client-2": Y}, {}, "DATA", "holds files of 2 sites and no client-1.npz"),
        ({"client-0": Y, "client-01": Y}, {}, "DATA", "is no site's file"),
        ({"client-0": Y, "records": Y}, {}, "DATA", "is no site's file"),
        ({"test": Y}, {}, "DATA", "holds no client-0.npz"),
        ({}, {}, "DATA", "holds no client-0.npz"),
        ({"client-0": [0] * 8}, {}, "DATA", "holds one class only"),
        ({"client-0": [0, 9]}, {}, "DATA", "past its record count"),
        ({"client-0": Y, "client-1": [0.5, 1]}, {}, "DATA", "has dtype float64"),
        ({"client-0": Y, "client-1": [0]}, {}, "fraction", "gives no pair of client/1's 1 records"),
        ({"client-0": Y, "client-1": [0, 1]}, {"fraction": 1.0}, "DATA", "client/1 no two records"),
        ({"client-0": Y, "client-1": np.eye(8, 3, dtype=int)}, {}, "DATA", "labels of 1 and of 3 columns"),
    ],
)
def test_unfit_files_of_sites_are_refused_and_nothing_is_written(
    files: dict[str, Any], fields: dict[str, Any], field: str, problem: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, y in files.items():
        np.savez(data / f"{name}.npz", x=images(len(y)), y=np.asarray(y))
    refused(lambda: make(data, tmp_path / "D", **fields), field, said=problem, kind=UsageError)
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"x": images(8)}, "lacks y"),
        ({"y": Y}, "has no images, and the first file has"),
        ({"x": images(7), "y": Y}, "7 images but 8 labels"),
        ({"x": images(8) / 255, "y": Y}, "has images float64 (4, 4), and client-0.npz uint8 (4, 4)"),
        ({"x": images(8)[:, :3], "y": Y}, "has images uint8 (3, 4), and client-0.npz uint8 (4, 4)"),
        ({"x": images(8) * 2.0, "y": Y}, "holds values in"),
        ({"x": np.array([print] * 8, dtype=object), "y": Y}, "is no readable npz file"),
    ],
    ids=["labels", "images", "count", "type", "shape", "range", "pickle"],
)
def test_sites_whose_arrays_do_not_fit_together_are_refused(
    second: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    data = write_sites(tmp_path / "data", Y)
    np.savez(data / "client-1.npz", **second)
    refused(lambda: make(data, tmp_path / "D"), "DATA", said=problem, kind=DataError)
    assert not (tmp_path / "D").exists()


def test_more_records_than_could_be_read_back_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDAUDIT_MOST_DATA_BYTES", "1000")
    data = write_sites(tmp_path / "data", Y, Y, Y, Y, Y, Y)
    for name in ("digits", str(data)):
        with pytest.raises(DataError, match="FDAUDIT_MOST_DATA_BYTES"):
            make(name, tmp_path / "D", sites=6)
    assert not (tmp_path / "D").exists()


def test_an_existing_directory_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "file", "link"):
        with pytest.raises(UsageError, match="exists already"):
            make("digits", tmp_path / name, sites=2)
    with pytest.raises(UsageError, match="cannot be made"):
        make("digits", tmp_path / "file" / "below", sites=2)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder", "link"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("last", [1, 3, 6])
def test_a_failure_while_writing_leaves_nothing(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == last:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        make("digits", tmp_path / "D", sites=2)
    assert list(tmp_path.iterdir()) == []


# -- which directories a run may be written to ---------------------------------------------------------------------


def test_an_occupied_directory_is_refused_and_left_untouched(tmp_path: Path, cli: Cli) -> None:
    spec = write_spec(tmp_path / "spec.yaml", small_spec())
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "dead").symlink_to("nowhere")
    occupied = finished(tmp_path / "run")
    before = tree(occupied, without=())
    for out, *more in (
        *((occupied,), (letters,), (letters, "--resume"), (tmp_path / "dead",)),
        *((tmp_path / "file",), (tmp_path / "file", "--resume"), (tmp_path / "file" / "below",)),
    ):
        code, _, err = cli("run", spec, "--out", out, "--no-report", *more)
        assert code == 2, (out, err)
        assert len(err.splitlines()) == 1, (out, err)
        assert repr(str(out)) in err
    assert tree(occupied, without=()) == before
    assert tree(letters, without=()) == {"letter.txt": b"dear"}
    assert (tmp_path / "file").read_text() == "a file"
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_directory_and_a_link_to_one_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert verify(finished(tmp_path / "link")) == []
    assert (tmp_path / "empty" / "manifest.json").is_file()
