"""Findings of a red team, nine to thirteen: what files from a stranger do, or one that was killed left.

Each test states its finding, and works through files and commands that a user has. The others are in
`test_findings.py` and `test_findings_evidence.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from safetensors.torch import save

import fdaudit
from fdaudit.adversary.view import open_view
from fdaudit.data.files import read_npz
from fdaudit.data.folders import read_folder
from fdaudit.spec.schema import load_spec
from fdaudit.storage import cache
from fdaudit.storage.digests import canonical
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import Message
from fdaudit.transcript.transcript import read_messages

from ..fuzz.fuzzing import watched
from .findings_cases import command, error_of, home, is_one_line, recorded

SPARSE = 8 << 30

__all__ = ["home", "recorded"]


# -- 9: evidence for ε --------------------------------------------------------------------------------------------


class _Killed(BaseException):
    """The process was killed."""


@pytest.mark.thorough
def test_an_attack_that_dies_when_it_is_run_again_takes_no_evidence_with_it(tmp_path: Path) -> None:
    """9. A claimed ε must be checked by the same evidence after an attack was killed as before."""
    training = {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.2}
    spec = small_spec(
        attacks=[{"name": "loss-threshold"}],
        defenses=[{"at": "training", "name": "dp-sgd", "params": training}],
        withhold=["sample_count"],
    )
    run = fdaudit.run(spec, tmp_path / "run")
    before = run.result.plain()["checks"]
    assert before[0]["evidence"]
    real = os.replace

    def mortal(source: Any, target: Any, **more: Any) -> None:
        if "scores" in Path(target).parts:
            raise _Killed
        real(source, target, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", mortal)
        assert isinstance(error_of(lambda: fdaudit.attack("loss-threshold", run, "server")), _Killed)
    fdaudit.run(None, run.directory, resume=True)
    after = fdaudit.load(run.directory).result.plain()["checks"]
    assert after == before, f"the check of ε rests on {after[0]['evidence']} after a kill"


# -- 10: the cache ------------------------------------------------------------------------------------------------


def _ones() -> dict[str, torch.Tensor]:
    return {"x": torch.ones(1)}


def _forge(folder: Path) -> None:
    """Replaces what is kept by zeros, with every digest that can be made without a key."""
    planted = save({"x": torch.zeros(1)})
    digest = hashlib.sha256(planted)
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            path.write_bytes(planted)
        elif path.suffix == ".sha256":
            path.write_text(digest.hexdigest() + "\n")
        elif path.suffix != ".lock":
            path.write_bytes(digest.digest() + planted)


def test_a_result_that_was_planted_in_the_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10. A file that another user put into the cache must not decide a result."""
    monkeypatch.setenv("FDAUDIT_CACHE", str(tmp_path / "cache"))
    cache.remembered("d", _ones)
    _forge(tmp_path / "cache")
    found = cache.remembered("d", _ones)["x"]
    assert torch.equal(found, torch.ones(1)), f"the cache's {found.tolist()} stands for a result"


def test_a_link_in_the_cache_leads_to_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10. A temporary file of the cache must not be written through a link."""
    monkeypatch.setenv("FDAUDIT_CACHE", str(tmp_path / "cache"))
    cache.remembered("d", _ones)
    names = {p.name for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock"}
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "victim").write_text("precious")
    for name in names:
        (tmp_path / "cache" / f".{name}.tmp").symlink_to(tmp_path / "victim")
    error_of(lambda: cache.remembered("d", _ones))
    assert (tmp_path / "victim").read_bytes() == b"precious", "the cache overwrote another file"


def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10. The directory of the cache must be its user's alone."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("FDAUDIT_CACHE", str(tmp_path / "cache"))
    assert is_one_line(error_of(lambda: cache.remembered("d", _ones))), "a cache of mode 0777 is used"


# -- 11: exported views -------------------------------------------------------------------------------------------


def test_no_line_of_an_exported_view_may_change(home: Path) -> None:
    """11. A view of which any line was changed must not open."""
    log = home / "handout" / "view" / "messages.jsonl"
    lines = log.read_bytes().split(b"\n")[:-1]
    opened = []
    for number, line in enumerate(lines):
        value = json.loads(line)
        value |= {"round": value["round"] + 1} if "round" in value else {"line_sha256": "0" * 64}
        changed = [*lines[:number], canonical(value), *lines[number + 1 :], b""]
        log.write_bytes(b"\n".join(changed))
        if error_of(lambda: open_view(log.parent)) is None:
            opened.append(number)
    assert not opened, f"{len(opened)} of {len(lines)} changed lines are accepted"


def test_no_end_of_an_exported_view_may_be_cut_off(home: Path) -> None:
    """11. A view without its last message must not open."""
    log = home / "handout" / "view" / "messages.jsonl"
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([*lines[:-2], b""]))
    assert is_one_line(error_of(lambda: open_view(log.parent))), "a view without its end is accepted"


def test_the_card_of_an_exported_view_may_not_change(home: Path) -> None:
    """11. A view of which the card was changed must not open."""
    card = home / "handout" / "view" / "view.json"
    value = json.loads(card.read_bytes())
    value["hyperparameters"]["rounds"] += 1
    card.write_bytes(canonical(value))
    assert is_one_line(error_of(lambda: open_view(card.parent))), "a changed view.json is accepted"


@pytest.mark.parametrize("name", ["view.json", "messages.jsonl", "own-client-1.safetensors"])
def test_a_pipe_in_an_exported_view_makes_nobody_wait(name: str, home: Path) -> None:
    """11. A pipe in place of a file of a view must be refused."""
    path = home / "handout" / "view" / name
    path.unlink()
    os.mkfifo(path)

    def opened() -> None:
        with watched():
            open_view(path.parent)

    assert is_one_line(found := error_of(opened)), f"{name} as a pipe ends in {type(found).__name__}"


@pytest.mark.parametrize("number", ["Infinity", "1e999"])
def test_a_size_that_is_no_number_is_refused(number: str, home: Path) -> None:
    """11. Sizes in a view that are no numbers must be one error, not a traceback."""
    card = home / "handout" / "view" / "view.json"
    text = card.read_text().replace('"sizes":[]', f'"sizes":[{number}]')
    assert number in text
    card.write_text(text)
    found = error_of(lambda: open_view(card.parent))
    assert is_one_line(found), f"a size of {number} ends in {type(found).__name__}"


# -- 12: what lies between payloads -------------------------------------------------------------------------------


def test_payloads_of_a_view_leave_no_gap_for_hidden_ones(recorded: Path) -> None:
    """12. Where a view's payloads lie must not tell how long the hidden messages are."""
    view = recorded / "handout" / "view"
    ends, told = dict[str, int](), []
    for line in (view / "messages.jsonl").read_bytes().split(b"\n")[:-1]:
        if where := json.loads(line).get("payload"):
            end = ends.get(where["file"], 0)
            begin = where.get("offset", end)  # where none is stated they lie end to end
            told.append(begin - end)
            ends[where["file"]] = begin + where["length"]
    assert not any(told), f"gaps of {[gap for gap in told if gap]} bytes are hidden messages"
    assert ends == {name: (view / name).stat().st_size for name in ends}


# -- 13: exhaustion -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_sparse_file_is_refused_by_its_size(tmp_path: Path) -> None:
    """13. A file of eight gigabytes that takes no room must not take all memory."""
    path = tmp_path / "spec.yaml"
    with path.open("wb") as file:
        file.truncate(SPARSE)
    code, _, errors = command("run", path, "--out", tmp_path / "run", most_bytes=6 << 30)
    assert code == 2, f"8 GB of nothing end in {errors.splitlines()[-1]}"
    assert "8,589,934,592 bytes" in errors


def test_a_log_with_a_line_of_a_megabyte_is_refused(tmp_path: Path) -> None:
    """13. A log must not hold lines without an end: 600 of a megabyte took 1.2 GB."""
    line = Message(
        seq=0, round=0, step=0, sender="client/0", receivers=("server",), kind="logits", fields={"x": "x" * 10**6}
    ).to_line()  # fmt: skip
    (tmp_path / "messages.jsonl").write_bytes(line)
    assert is_one_line(error_of(lambda: list(read_messages(tmp_path)))), "a line of a megabyte is read"


class _Unpacked(BaseException):
    """More was unpacked than a test takes."""


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13. A file of three megabytes must not be unpacked to gigabytes."""
    count = 1_300_000
    text = repr({"descr": "|u1", "fortran_order": False, "shape": (count, 32, 32)}).ljust(117) + "\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
    labels = io.BytesIO()
    np.save(labels, np.zeros(count, dtype=np.uint8))
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_images.npy", head + bytes(100 << 20))
        archive.writestr("train_labels.npy", labels.getvalue())
    short, whole = (struct.pack("<L", len(head) + n) for n in (100 << 20, count * 1024))
    path.write_bytes(path.read_bytes().replace(short, whole))  # what the archive says of itself
    unpacked, real = 0, zipfile.ZipExtFile.read

    def counted(self: Any, n: int | None = -1) -> bytes:
        nonlocal unpacked
        data = real(self, n)
        unpacked += len(data)
        if unpacked > 10 << 20:
            raise _Unpacked
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    found = error_of(lambda: read_npz(path))
    assert is_one_line(found), f"{unpacked:,} bytes were unpacked, and more would have been"


def test_images_of_too_many_pixels_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13. Six small files must not be decoded to gigabytes of pixels."""
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        Image.new("1", (8000, 8000)).save(tmp_path / kind / "0.png")

    def decoded(self: Any) -> Any:
        raise _Unpacked

    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded)
    found = error_of(lambda: read_folder(tmp_path, 32))
    assert is_one_line(found), "an image of 64,000,000 pixels was decoded"


@pytest.mark.thorough
def test_a_spec_of_ninety_thousand_keys_takes_a_moment(tmp_path: Path) -> None:
    """13. Reading a document must not take the square of its length."""
    path = tmp_path / "spec.yaml"
    path.write_text("".join(f"k{n}: 0\n" for n in range(90_000)))

    def stop(*_: object) -> None:
        raise _Unpacked

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 15)  # of this process's own work, however busy the machine is
    try:
        found = error_of(lambda: load_spec(path))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert is_one_line(found), f"90,000 keys end in {type(found).__name__}"


def test_a_number_of_sixty_thousand_bits_is_one_error(tmp_path: Path) -> None:
    """13. A number that is too long to be shown must be one error, not a traceback."""
    path = tmp_path / "spec.yaml"
    path.write_text("threads: 0x" + "f" * 15_000)
    found = error_of(lambda: load_spec(path))
    assert is_one_line(found), f"a number of 60,000 bits ends in {type(found).__name__}"


def _lines_read(out: Path, clients: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how often each line of a record is parsed when the run is concluded again."""
    spec = small_spec(clients=clients, splits__candidates=0, protocol__params__rounds=1)
    spec["dataset"]["limit"] = 400
    fdaudit.run(spec, out)
    parsed, real = [0], Message.from_line.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Message], line: bytes) -> Message:
        parsed[0] += 1
        return real(cls, line)

    with monkeypatch.context() as patch:
        patch.setattr(Message, "from_line", classmethod(counted))
        fdaudit.run(None, out, resume=True)
    return parsed[0] / len((out / "transcript" / "messages.jsonl").read_bytes().split(b"\n")[:-1])


def test_each_line_of_a_log_is_read_as_often_whatever_the_number_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13. The log must not be read again for every party: that is the square of the number of clients."""
    few, many = (_lines_read(tmp_path / str(n), n, monkeypatch) for n in (2, 12))
    assert many <= few, f"each line is parsed {few:g} times with 2 clients, {many:g} times with 12"
