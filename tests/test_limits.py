"""Limits: what is too large is one clear error before it takes memory or time, and what is used today is not."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import fdaudit
import fdaudit.data.folders
import fdaudit.transcript.log
from fdaudit import limits
from fdaudit.adversary.view import open_view
from fdaudit.api import load
from fdaudit.audit.guesses import guesses_and_digest
from fdaudit.audit.summary import conclude
from fdaudit.data import load_dataset
from fdaudit.errors import DataError, FdauditError, IntegrityError, RunError, SpecError, UsageError
from fdaudit.limits import FILE_LIMITS, Limit, open_file, read_file
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.card import load_card
from fdaudit.spec.schema import DatasetSpec, ModelSpec, load_spec
from fdaudit.storage.files import load_json, load_tensors
from fdaudit.sweeps.grid import load_grid
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.encoding import EvenGrid, packed, readable
from fdaudit.transcript.log import read_log
from fdaudit.transcript.messages import Message
from fdaudit.transcript.transcript import Transcript, read_messages, verify_transcript

from .fuzz.fuzzing import SPARSE, watched
from .helpers.run_cases import finished
from .helpers.sweep_cases import grid

ROOT = Path(__file__).parents[1]


def sparse(path: Path, begin: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(SPARSE)
    return path


def dataset(name: str, **fields: Any) -> Any:
    return load_dataset(DatasetSpec(name=name, **fields), child(0, "dataset"))


# -- files ----------------------------------------------------------------------------------------------------------


READERS: dict[str, Callable[[Path], object]] = {
    "spec.yaml": load_spec,
    "grid.yaml": load_grid,
    "guesses.json": guesses_and_digest,
    "cell.json": load_json,
    "own.safetensors": load_tensors,
    "data.npz": lambda path: dataset(f"npz:{path}"),
    "messages.jsonl": lambda path: list(read_messages(path.parent)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_eight_gigabytes_is_refused_by_its_size(name: str, tmp_path: Path) -> None:
    with pytest.raises(FdauditError, match=r"8,589,934,592 bytes .*FDAUDIT_MOST_\w+"):
        READERS[name](sparse(tmp_path / name))


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_and_nobody_waits(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with watched(), pytest.raises(FdauditError, match="no regular file"):
        READERS[name](tmp_path / name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vault/models/server.safetensors", "attacks/controls/loss-threshold.json"])
def test_a_pipe_in_a_finished_run_is_refused_and_nobody_waits(name: str, tmp_path: Path) -> None:
    spec = small_spec(attacks=[{"name": "loss-threshold"}])
    run = fdaudit.run(spec, tmp_path / "run").directory
    (run / name).unlink()
    os.mkfifo(run / name)

    def again() -> None:
        fdaudit.run(None, run, resume=True)
        fdaudit.run(spec, tmp_path / "next", seed_from=run)

    with watched(300), pytest.raises((FdauditError, OSError)) as refused:
        again()
    assert "no regular file" in str(refused.value)


def test_a_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit("FDAUDIT_MOST_WORDS", 3, "words")
    (tmp_path / "file").write_bytes(b"1234")
    with pytest.raises(OSError, match=r" 4 words, .* 3 .*FDAUDIT_MOST_WORDS"):
        open_file(tmp_path / "file", limit)
    monkeypatch.setenv("FDAUDIT_MOST_WORDS", "4")
    assert read_file(tmp_path / "file", limit) == b"1234"
    for wrong in ("", "-1", "1e9", "9" * 40, "\u0661"):
        monkeypatch.setenv("FDAUDIT_MOST_WORDS", wrong)
        with pytest.raises(UsageError, match="FDAUDIT_MOST_WORDS"):
            read_file(tmp_path / "file", limit)


def test_the_page_has_every_limit_as_it_is() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `(FDAUDIT_\w+)` \| ([\d,]+) \|", page, re.MULTILINE))
    assert stated == {limit.variable: f"{limit.default:,}" for limit in FILE_LIMITS}
    fixed = [getattr(limits, name) for name in limits.__all__ if name.startswith("MOST_")]
    assert all(f"{number:,}" in page for number in fixed)


# -- the record -----------------------------------------------------------------------------------------------------


def message(**fields: Any) -> Message:
    return Message(seq=0, round=0, step=0, sender="client/0", receivers=("server",), kind="logits", **fields)


@pytest.mark.thorough
def test_a_log_of_long_lines_is_refused_at_the_first(tmp_path: Path) -> None:
    with (tmp_path / "messages.jsonl").open("wb") as file:
        for seq in range(600):
            line = message(fields={"x": "x" * 1_000_000}).to_line()
            file.write(line.replace(b'"seq":0', b'"seq":%d' % seq))
    before = Message.from_line.__globals__["_parsed"].cache_info().currsize
    with pytest.raises(IntegrityError, match="one line"):
        list(read_messages(tmp_path))
    (finding, *_) = verify_transcript(tmp_path, head="", count=600)
    assert "one line" in finding
    assert Message.from_line.__globals__["_parsed"].cache_info().currsize == before, "none is kept"


@pytest.mark.parametrize("wrong", [{"round": 10**400}, {"bytes_on_wire": 2**63}, {"seq": -1}])
def test_counts_in_a_line_have_an_end(wrong: dict[str, int]) -> None:
    ((name, value),) = wrong.items()
    line = message().to_line()[:-1].replace(f'"{name}":0'.encode(), f'"{name}":{value}'.encode())
    with pytest.raises(IntegrityError, match=f"TypeError: {name} "):
        Message.from_line(line)


def test_what_nobody_could_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Transcript(tmp_path, secret=bytes(32)) as transcript:
        with pytest.raises(RunError, match="FDAUDIT_MOST_LINE_BYTES"):
            transcript.append(message(fields={"x": "x" * (1 << 18)}), {})
        monkeypatch.setenv("FDAUDIT_MOST_LOG_BYTES", "100")
        with pytest.raises(RunError, match="FDAUDIT_MOST_LOG_BYTES"):
            transcript.append(message(), {})
        monkeypatch.delenv("FDAUDIT_MOST_LOG_BYTES")
        monkeypatch.setenv("FDAUDIT_MOST_TENSOR_BYTES", "100")
        with pytest.raises(RunError, match="FDAUDIT_MOST_TENSOR_BYTES"):
            transcript.append(message(), {"x": torch.zeros(100)})


def test_unpacked_values_are_counted_before_they_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = packed("z", torch.zeros(4096, dtype=torch.int64), EvenGrid(0.0, 1.0, 2))
    assert readable(made)["z"].shape == (4096,)
    monkeypatch.setenv("FDAUDIT_MOST_TENSOR_BYTES", "1000")
    with pytest.raises(IntegrityError, match=r"'z' .* 16,384 bytes"):
        readable(made)


def test_values_are_the_same_in_however_many_parts_they_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randint(0, 200, (37, 11), generator=child(0, "codes"))
    made = packed("z", codes, EvenGrid(-1.5, 0.015, 200))
    whole = readable(made)["z"]
    monkeypatch.setattr("fdaudit.transcript.encoding._AT_ONCE", 8)
    assert torch.equal(readable(made)["z"], whole)
    assert torch.equal(whole, EvenGrid(-1.5, 0.015, 200).values(codes))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    home = tmp_path_factory.mktemp("parties")
    return {k: finished(home / str(k), clients=k, splits__candidates=0) for k in (2, 8)}


def test_a_log_is_parsed_once_however_many_parties_there_are(
    runs: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, real = list[Path](), fdaudit.transcript.log.read_messages
    monkeypatch.setattr(fdaudit.transcript.log, "read_messages", lambda path: read.append(path) or real(path))
    for run in runs.values():
        fdaudit.transcript.log._last.clear()
        opened = load(run).opened
        read.clear()
        conclude(opened)
        assert len(read) == 1


def test_a_log_that_changes_is_parsed_again(tmp_path: Path) -> None:
    with Transcript(tmp_path, secret=bytes(32)) as transcript:
        transcript.append(message(), {})
    assert len(read_log(tmp_path).messages) == 1
    assert read_log(tmp_path) is read_log(tmp_path)
    (tmp_path / "messages.jsonl").write_bytes(b"")
    assert read_log(tmp_path).messages == ()
    (tmp_path / "messages.jsonl").unlink()
    with pytest.raises(IntegrityError):
        read_log(tmp_path)


def test_a_view_is_what_a_scan_of_the_log_finds(runs: dict[int, Path]) -> None:
    run = load(runs[8])
    for name in ("server", "client/3", "world", "server+client/3", "client/1+client/2"):
        members = name.split("+")
        found = [m for m in read_messages(runs[8] / "transcript") if {*members} & {*m.parties()}]
        assert list(run.view(name).messages) == found
    heard = [m for m in read_messages(runs[8] / "transcript") if {*m.receivers} - {m.sender}]
    assert list(run.view("eavesdropper").messages) == heard


def test_an_exported_log_is_read_line_by_line(runs: dict[int, Path], tmp_path: Path) -> None:
    from fdaudit.audit.red_team import export_view

    view = export_view(load(runs[2]), "server", tmp_path / "out") / "view"
    with (view / "messages.jsonl").open("ab") as file:
        file.truncate(SPARSE)
    with pytest.raises(IntegrityError):
        open_view(view)


# -- YAML -----------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, text: str) -> str:
    (tmp_path / "spec.yaml").write_text(text)
    with watched(60), pytest.raises(SpecError) as error:
        load_spec(tmp_path / "spec.yaml")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.thorough
def test_ninety_thousand_keys_take_a_moment(tmp_path: Path) -> None:
    found = refused(tmp_path, "".join(f"k{n}: 0\n" for n in range(90_000)))
    assert "unknown key" in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("threads: 0x" + "f" * 15_000, "threads: .* whole number of 60,000 bits"),
        ("threads: 0x" + "f" * 500_000, "value of 500,002 characters"),
        ("seed: 1" + ":59" * 6000, "seed: .* whole number of"),
        ("seed: 1" + ":59" * 6000 + ".5", "is not YAML"),
        ("a: " + "[" * 300_000, "nested more than 64 deep|maximum nesting depth"),
        ("a: [" + "0," * 410_000 + "]", "holds more than 100,000 values"),
        ("".join("  " * n + f"{'k' * 500}:\n" for n in range(40)) + "  " * 40 + "x: 1", "unknown key"),
    ],
    ids=["bits", "characters", "sixties", "fractions of sixties", "depth", "values", "long path"],
)
def test_a_hostile_document_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    assert re.search(problem, refused(tmp_path, text))


def test_seeds_and_networks_are_bounded_before_they_are_used(tmp_path: Path) -> None:
    with watched(60), pytest.raises(SpecError, match=r"^sweep: 360000 "):
        load_grid(grid(seeds=list(range(90_000))))
    with pytest.raises(SpecError, match="8,594,980,874 parameters"):
        architecture(ModelSpec(name="mlp", params={"widths": [65536] * 3}), (1, 8, 8), 10)
    made = packed("z", torch.zeros(0, dtype=torch.int64), EvenGrid(0.0, 1.0, 2))
    made["z:layout"] = torch.tensor([1, 65536, 65536, 65536, 65536], dtype=torch.int32)
    with pytest.raises(IntegrityError, match="'z' is damaged"):
        readable(made)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clients", 10_001),
        ("queries", 10**9 + 1),
        ("evaluate_every", 10**12),
        ("splits__candidates", 10**7),
        ("protocol__params__rounds", 10**7),
        ("protocol__params__batch_size", 10**10),
        ("threads", 10**400),
    ],
)
def test_whole_numbers_have_an_end(field: str, value: int) -> None:
    from fdaudit.planning.simulated import simulated_case

    with pytest.raises(SpecError) as error:
        simulated_case(load_spec(small_spec(**{field: value})), 0)
    assert error.value.field == field.replace("__", ".")


# -- data -----------------------------------------------------------------------------------------------------------


def header(shape: tuple[int, ...]) -> bytes:
    """The header of an array of bytes in NumPy's format."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.thorough
def test_an_archive_that_unpacks_to_gigabytes_is_refused_by_its_list(tmp_path: Path) -> None:
    count = 1_300_000
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("train_images.npy", "w", force_zip64=True) as member:
            member.write(header((count, 32, 32)))
            for _ in range(count // 10_000):
                member.write(bytes(10_240_000))
        archive.writestr("train_labels.npy", header((count,)) + bytes(count))
    assert (tmp_path / "bomb.npz").stat().st_size < 3 << 20
    with pytest.raises(DataError, match="FDAUDIT_MOST_DATA_BYTES"):
        dataset(f"npz:{tmp_path / 'bomb.npz'}")


def test_archives_of_wrong_lengths_or_many_members_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("train_images.npy", header((10**9, 100, 100)) + bytes(100))
        archive.writestr("train_labels.npy", header((10,)) + bytes(10))
    with pytest.raises(DataError, match="train_images is shorter"):
        dataset(f"npz:{tmp_path / 'lies.npz'}")
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number:050d}", b"")
    with pytest.raises(DataError, match="too many members"):
        dataset(f"npz:{tmp_path / 'many.npz'}")
    pictures(tmp_path, 8000, 8000)
    with pytest.raises(DataError, match="64,000,000 pixels"):
        dataset(f"folder:{tmp_path}", image_size=32)


def png(path: Path, width: int, height: int) -> None:
    """A grey PNG without its pixels: its header is whole."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


def pictures(folder: Path, width: int, height: int) -> Path:
    for kind in ("a", "b"):
        (folder / kind).mkdir(parents=True)
        for number in range(3):
            png(folder / kind / f"{number}.png", width, height)
    return folder


def test_images_are_counted_together_before_one_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(tmp_path, 1000, 1000)
    monkeypatch.setenv("FDAUDIT_MOST_DATA_BYTES", "5000000")
    with pytest.raises(DataError, match=r" 6,000,000 bytes .*FDAUDIT_MOST_DATA_BYTES"):
        dataset(f"folder:{tmp_path}")


def test_large_images_are_fitted_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            Image.new("RGB", (1000, 1000), (number, 0, 0)).save(tmp_path / kind / f"{number}.png")
    folders, done = fdaudit.data.folders, list[str]()
    for name in ("_pixels", "fit"):
        real = getattr(folders, name)
        monkeypatch.setattr(folders, name, lambda *a, name=name, real=real: done.append(name) or real(*a))
    assert dataset(f"folder:{tmp_path}", image_size=8).x.shape == (6, 3, 8, 8)
    assert done == ["_pixels", "fit"] * 6


def test_torchvisions_files_are_looked_at_first(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    sparse(raw / "train-images-idx3-ubyte")
    with pytest.raises(DataError, match=r"^dataset\.root: .* 8,589,934,592 bytes"):
        dataset("mnist", root=str(tmp_path))


# -- what is used today ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_is_within_the_limits(path: Path) -> None:
    if "sweep" in path.name:
        load_grid(path)
    elif path.name == "card.yaml":
        load_card(path)
    else:
        load_spec(path)


@pytest.mark.parametrize("seed", [10**10, 2**63 - 1])
def test_seeds_may_be_as_large_as_ever(seed: int) -> None:
    assert load_spec(small_spec(seed=seed)).seed == seed
    assert load_grid(grid(seeds=[seed])).seeds == (seed,)
