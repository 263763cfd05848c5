"""Transcripts: what is appended is what is read, and damage is found."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fdaudit.audit.simulation import _keep
from fdaudit.errors import IntegrityError
from fdaudit.spec.schema import RecordRounds, Spec
from fdaudit.storage.files import (
    decode,
    encode,
)
from fdaudit.transcript.messages import GENESIS
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, Transcript, read_messages, verify_transcript

from ..helpers.transcript_cases import (
    SECRET,
    draft,
    filled,
    named,
    same,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(named, max_size=4))
def test_what_is_appended_is_what_is_read_and_what_a_receiver_is_handed(
    contents: list[dict[str, Tensor]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        position, returned = filled(directory, contents)
        read = list(read_messages(directory))
        assert [m.seq for m in read] == [seq for seq, _ in returned]
        for values, message, (_, handed) in zip(contents, read, returned, strict=True):
            assert same(handed, values)
            assert same(decode(read_payload(directory, message)), values)
            assert message.bytes_on_wire == sum(t.nbytes for t in values.values())
        assert [m.seq for m in read] == list(range(len(contents)))
        assert position.seq == len(contents)
        assert position.offset == (directory / LOG).stat().st_size
        assert verify_transcript(directory, head=position.head, count=len(contents)) == []


def test_every_line_is_chained_to_the_line_before(tmp_path: Path) -> None:
    position, _ = filled(tmp_path, [{"a": torch.tensor(float(k))} for k in range(5)])
    lines = (tmp_path / LOG).read_bytes().split(b"\n")[:-1]
    previous = [json.loads(line)["previous"] for line in lines]
    digests = [hashlib.sha256(line).hexdigest() for line in lines]
    assert previous == [GENESIS, *digests[:-1]]
    assert position.head == digests[-1]


def test_salts_differ_by_message_and_by_secret(tmp_path: Path) -> None:
    contents = [{"a": torch.zeros(2)}] * 8
    filled(tmp_path / "a", contents)
    filled(tmp_path / "b", contents)
    with Transcript(tmp_path / "c", secret=b"another secret of many bytes....") as other:
        for k in range(8):
            other.append(draft(k), {"a": torch.zeros(2)})
    salts = {n: [m.salt for m in read_messages(tmp_path / n)] for n in "abc"}
    assert salts["a"] == salts["b"], "one secret, one run: equal bytes"
    assert len({*salts["a"], *salts["c"]}) == 16
    digests = {m.sha256 for n in "ac" for m in read_messages(tmp_path / n)}
    assert len(digests) == 16, "equal payloads must not show as equal digests"


def test_a_transcript_goes_on_where_it_was_left(tmp_path: Path) -> None:
    contents = [{"a": torch.tensor(float(k))} for k in range(6)]
    whole, _ = filled(tmp_path / "whole", contents)
    with Transcript(tmp_path / "parts", secret=SECRET) as first:
        for k in range(3):
            first.append(draft(k), contents[k])
        middle = first.sync()
        for k in range(3, 5):
            first.append(draft(k), {"a": torch.tensor(-1.0)})  # beyond the checkpoint: must vanish
    (tmp_path / "parts" / "payloads" / ".00000009.safetensors.tmp").write_bytes(b"half")
    with Transcript(tmp_path / "parts", secret=SECRET, start=middle) as second:
        for k in range(3, 6):
            second.append(draft(k), contents[k])
        assert second.sync() == whole
    for name in sorted(p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*.*")):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(list((tmp_path / "parts" / "payloads").iterdir())) == 6


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_log_that_does_not_reach_its_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    position, _ = filled(tmp_path, [{"a": torch.tensor(float(k))} for k in range(3)])
    log = tmp_path / LOG
    data = bytearray(log.read_bytes())
    if damage == "cut":
        log.write_bytes(data[:-1])
    elif damage == "changed":
        data[-20] ^= 1
        log.write_bytes(data)
    else:
        log.unlink()
    with pytest.raises(IntegrityError, match=r"messages\.jsonl"):
        Transcript(tmp_path, secret=SECRET, start=position)


def test_a_payload_is_on_disk_before_the_line_that_names_it(tmp_path: Path) -> None:
    log, seen = tmp_path / LOG, list[str]()
    with Transcript(tmp_path, secret=SECRET) as transcript:
        real = transcript._files._log

        class Watching:
            def write(self, line: memoryview) -> int:
                where = json.loads(bytes(line))["payload"]
                path = tmp_path / where["file"]
                assert path.stat().st_size == where["length"], "the payload is not whole under its final name"
                assert json.loads(bytes(line))["seq"] == log.read_bytes().count(b"\n")
                seen.append(where["file"])
                return real.write(line)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        transcript._files._log = Watching()  # type: ignore[assignment]
        for k in range(3):
            transcript.append(draft(k), {"a": torch.zeros(k)})
    assert seen == [f"payloads/round-{k:06d}.shard" for k in range(3)]


def test_a_line_written_in_part_is_an_error(tmp_path: Path) -> None:
    """A full disk lets a write return early without an error of its own; the next one fails."""
    with Transcript(tmp_path, secret=SECRET) as transcript:
        real = transcript._files._log

        class Full:
            def write(self, line: memoryview) -> int:
                if real.tell():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return int(real.write(line[:10]))

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        transcript._files._log = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match=rf"{os.strerror(errno.ENOSPC)}: .*{LOG}"):
            transcript.append(draft(), {"a": torch.zeros(1)})
    assert (tmp_path / LOG).stat().st_size == 10
    with Transcript(tmp_path, secret=SECRET) as transcript:
        assert transcript.position.seq == 0
    assert (tmp_path / LOG).stat().st_size == 0, "a line written in part is cut off"


def test_a_synced_transcript_is_durable_with_its_payloads_and_what_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = list[str](), os.fsync

    def noting(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are read from /proc")
    other = tmp_path / "other"
    other.touch()
    with Transcript(tmp_path / "t", secret=SECRET) as transcript:
        transcript.append(draft(), {"a": torch.zeros(1 << 18)})
        transcript.append(draft(), {"a": torch.zeros(2)})
        monkeypatch.setattr(os, "fsync", noting)
        transcript.sync([other])
        payloads = ["00000000.safetensors", "round-000000.shard"]
        assert sorted(synced) == sorted([*payloads, "payloads", "t", LOG, "other"])
        synced.clear()
        transcript.sync()
        assert sorted(synced) == sorted(["payloads", "t", LOG])


@pytest.mark.parametrize(
    ("record", "kept"),
    [("full", [0, 1, 2, 3]), ("digest", []), (RecordRounds(rounds=(1, 3)), [1, 3])],
    ids=["full", "digest", "rounds"],
)
def test_what_the_spec_says_is_kept_of_payloads(record: Any, kept: list[int], tmp_path: Path) -> None:
    class Plan:
        spec = Spec(record=record)

    contents = [{"a": torch.arange(float(k + 1))} for k in range(4)]
    position, returned = filled(tmp_path, contents, keep=_keep(Plan()))  # type: ignore[arg-type]
    read = list(read_messages(tmp_path))
    assert [m.seq for m in read if m.payload is not None] == kept
    assert sorted(p.name for p in (tmp_path / "payloads").iterdir()) == [f"round-{k:06d}.shard" for k in kept]
    for values, message, (_, handed) in zip(contents, read, returned, strict=True):
        assert same(handed, values), "a receiver is handed the payload whether or not it is kept"
        salted = bytes.fromhex(message.salt) + encode(values)
        assert message.sha256 == hashlib.sha256(salted).hexdigest(), "a digest binds what was not kept"
        if message.payload is None:
            with pytest.raises(IntegrityError, match="digest only"):
                read_payload(tmp_path, message)
    assert verify_transcript(tmp_path, head=position.head, count=4) == []


@pytest.mark.thorough
def test_memory_does_not_grow_with_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 messages of 8 KB: neither writing nor verifying holds more than names of them."""
    values = {"a": torch.zeros(2000)}
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: None
    )  # 1,000 of them take the disk's time, not memory
    position, _ = filled(tmp_path / "warm", [values])
    assert verify_transcript(tmp_path / "warm", head=position.head, count=1) == []

    def used() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        with Transcript(tmp_path / "t", secret=SECRET) as transcript:
            for k in range(100):  # whatever is made on first use
                transcript.append(draft(k), values)
            transcript.sync()
            grown, peak = list[int](), list[int]()
            for start in range(100, 1100, 250):
                before = used()
                tracemalloc.reset_peak()
                for k in range(start, start + 250):
                    transcript.append(draft(k), values)
                    if k % 50 == 49:
                        transcript.sync()
                peak.append(tracemalloc.get_traced_memory()[1] - before)
                grown.append(used() - before)
            head = transcript.position.head
        verified = list[int]()
        for _ in range(5):
            before = used()
            tracemalloc.reset_peak()
            assert verify_transcript(tmp_path / "t", head=head, count=1100) == []
            verified.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # The interpreter's table of interned strings, names of files among them, may be made anew meanwhile, which is 4 MB
    # and more in a large process: three of the four times 250 messages are free of it, and three of the verifications.
    assert sorted(grown)[2] < 100_000, f"{grown} bytes more are held after each 250 messages"
    assert sorted(peak)[2] < 500_000, f"{peak} bytes at most while 2 MB were written"
    assert sorted(verified)[2] < 1_000_000, f"{verified} bytes at most each time 8 MB were verified"
