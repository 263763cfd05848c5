"""Writing beside computing: in order, bounded, and what goes wrong there is heard of here."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.recording import recorder
from fdaudit.storage.files import decode
from fdaudit.storage.writer import BackgroundWriter, InlineWriter, Writer
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import Transcript, read_messages

SECONDS = 60


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 100))
def test_everything_is_done_in_order(sizes: list[int], most: int) -> None:
    done, writer = list[int](), BackgroundWriter(most)
    for number, size in enumerate(sizes):
        writer.put(lambda n=number: done.append(n), size)  # type: ignore[misc]
    writer.drain()
    assert done == list(range(len(sizes)))
    writer.close()


def test_whoever_puts_too_much_waits_until_there_is_room() -> None:
    writer, goes_on, reached = BackgroundWriter(most=10), Event(), Event()
    writer.put(lambda: goes_on.wait(SECONDS), 4)
    writer.put(lambda: None, 6)

    def third() -> None:
        writer.put(lambda: None, 1)
        reached.set()

    Thread(target=third, daemon=True).start()
    assert not reached.wait(0.2), "an eleventh byte was let in"
    goes_on.set()
    assert reached.wait(SECONDS)
    writer.close()


def test_what_was_put_is_done_and_one_large_piece_is_let_in_alone() -> None:
    done, writer = list[int](), BackgroundWriter(most=1)
    writer.put(lambda: done.append(1), 100)
    writer.drain()
    assert done == [1]
    writer.close()
    done, writer = list[int](), BackgroundWriter()
    for number in range(100):
        writer.put(lambda n=number: done.append(n))  # type: ignore[misc]
    writer.close()
    assert len(done) == 100


def test_a_failure_is_raised_where_the_next_is_put_and_nothing_is_done_after_it() -> None:
    done, writer, begin = list[int](), BackgroundWriter(), Event()

    def fails() -> None:
        begin.wait(SECONDS)
        raise OSError(28, "no space left")

    writer.put(fails)
    writer.put(lambda: done.append(1))
    begin.set()
    with pytest.raises(OSError, match="no space left"):
        writer.drain()
    with pytest.raises(OSError, match="no space left"):
        writer.put(lambda: done.append(2))
    writer.close()
    assert done == []


@pytest.mark.parametrize("make", [BackgroundWriter, InlineWriter])
def test_work_that_puts_work_and_drains_has_it_done_at_once(make: type[Writer]) -> None:
    done, writer = list[str](), make()

    def outer() -> None:
        done.append("begins")
        writer.put(lambda: done.append("inner"))
        writer.drain()
        done.append("ends")

    writer.put(outer)
    writer.put(lambda: done.append("next"))
    writer.drain()
    writer.close()
    assert done == ["begins", "inner", "ends", "next"]


# -- a transcript that is written so ------------------------------------------------------------------------------


def draft(round: int) -> Message:
    return Message(
        seq=0,
        round=round,
        step=0,
        sender="client/0",
        receivers=("server",),
        kind="gradient",
        inputs=("data",),
    )


def tree(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_a_transcript_is_the_same_bytes_written_here_or_beside(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_SMALL", small)
    writers: dict[str, Writer] = {"here": InlineWriter(), "beside": BackgroundWriter(most=100)}
    for name, writer in writers.items():
        with Transcript(tmp_path / name, secret=bytes(32), writer=writer) as transcript:
            for k in range(20):
                assert transcript.seq == k
                assert transcript.append(draft(k // 5), {"a": torch.arange(float(k))})[0] == k
                if k % 5 == 4:
                    transcript.sync()
    assert tree(tmp_path / "here") == tree(tmp_path / "beside")


def test_what_is_on_record_is_what_was_sent_whatever_becomes_of_it_meanwhile(tmp_path: Path) -> None:
    writer, goes_on, sent = BackgroundWriter(), Event(), torch.zeros(1000)
    with Transcript(tmp_path, secret=bytes(32), writer=writer) as transcript:
        writer.put(lambda: goes_on.wait(SECONDS))
        _, handed = transcript.append(draft(0), {"a": sent})
        sent.fill_(1)
        handed["a"].fill_(2)
        goes_on.set()
    (message,) = read_messages(tmp_path)
    assert torch.equal(decode(read_payload(tmp_path, message))["a"], torch.zeros(1000))


def into_a_full_disk(directory: Path, monkeypatch: pytest.MonkeyPatch, then: Exception | None = None) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    with Transcript(directory, secret=bytes(32), writer=BackgroundWriter()) as transcript:
        monkeypatch.setattr(transcript._files, "write", full)
        transcript.append(draft(0), {"a": torch.zeros(1)})
        if then is not None:
            raise then


def test_a_disk_that_fails_ends_the_block_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="no space left"):
        into_a_full_disk(tmp_path, monkeypatch)


def test_an_error_of_the_block_is_not_hidden_by_one_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArithmeticError):
        into_a_full_disk(tmp_path, monkeypatch, then=ArithmeticError())
