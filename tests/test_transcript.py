"""Messages, storage and transcript: what is written can be read back, by anybody, and damage is found."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import string
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fdaudit.errors import IntegrityError
from fdaudit.events import Gaussian, Laplace, NoGuarantee
from fdaudit.messages import ALL, GENESIS, KINDS, Message, TensorInfo, canonical, role
from fdaudit.payloads import read_payload
from fdaudit.simulation import _keep
from fdaudit.spec import RecordRounds, Spec
from fdaudit.storage import (
    commitment,
    decode,
    encode,
    header,
    load_json,
    load_tensors,
    save_json,
    save_tensors,
    write_atomically,
)
from fdaudit.transcript import LOG, Position, Transcript, read_messages, verify_transcript

SECRET = b"a secret of thirty-two bytes...."
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)

# -- strategies -----------------------------------------------------------------------------------------------

texts = st.text(max_size=12)
counts = st.integers(0, 2**62)
hexes = st.binary(max_size=32).map(bytes.hex)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=6,
)
noise = st.fixed_dictionaries(
    {
        "sensitivity": st.floats(1e-6, 1e6),
        "scale": st.floats(1e-6, 1e6),
        "unit": st.sampled_from(["record", "client"]),
        "relation": st.sampled_from(["add-or-remove", "replace-one"]),
        "covers": st.sampled_from([("data",), ("messages",), ("data", "messages")]),
        "count": st.integers(1, 100),
    }
)
events = st.one_of(
    st.none(),
    st.text(min_size=1).filter(str.strip).map(lambda reason: NoGuarantee(reason=reason)),
    noise.map(lambda kwargs: Gaussian(**kwargs)),
    noise.map(lambda kwargs: Laplace(**kwargs)),
)
messages = st.builds(
    Message,
    seq=counts,
    round=counts,
    step=counts,
    sender=texts,
    receivers=st.lists(texts, max_size=3).map(tuple),
    kind=st.sampled_from(sorted(KINDS)),
    tensors=st.dictionaries(
        texts,
        st.builds(TensorInfo, dtype=texts, shape=st.lists(counts, max_size=4).map(tuple)),
        max_size=3,
    ),
    fields=st.dictionaries(texts, plain, max_size=3),
    inputs=st.just(ALL) | st.lists(counts | texts, max_size=4).map(tuple),
    defenses=st.lists(st.dictionaries(texts, plain, max_size=2), max_size=2).map(tuple),
    event=events,
    bytes_on_wire=counts,
    payload=st.none() | st.builds(lambda f, n: {"file": f, "offset": 0, "length": n}, texts, counts),
    salt=hexes,
    sha256=hexes,
    previous=hexes,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor of any dtype and of up to three dimensions, empty ones too, with every bit pattern."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = torch.empty(shape, dtype=dtype).numel()
    if dtype is torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=dtype).reshape(
            shape
        )
    width = torch.empty(0, dtype=dtype).element_size() * size
    raw = bytearray(draw(st.binary(min_size=width, max_size=width)))
    if not raw:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


named = st.dictionaries(
    st.text(string.ascii_letters + "./_é\n", min_size=1, max_size=8), tensors(), max_size=4
)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether names, dtypes, shapes and every bit agree: NaN equals itself here."""
    if a.keys() != b.keys():
        return False
    for name, x in a.items():
        y = b[name]
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        if (
            x.contiguous().reshape(-1).view(torch.uint8).tolist()
            != y.contiguous().reshape(-1).view(torch.uint8).tolist()
        ):
            return False
    return True


# -- messages -------------------------------------------------------------------------------------------------


@given(messages)
def test_a_line_gives_back_its_message(message: Message) -> None:
    line = message.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert Message.from_line(line[:-1]) == message


@given(messages, st.data())
def test_only_the_canonical_line_is_a_message(message: Message, data: st.DataObject) -> None:
    value = json.loads(message.to_line())
    other = data.draw(
        st.sampled_from(
            [
                json.dumps(value, sort_keys=True),  # spaces
                json.dumps(dict(reversed(value.items())), separators=(",", ":")),  # another order
                json.dumps({**value, "more": 1}, sort_keys=True, separators=(",", ":")),  # one field more
                json.dumps(
                    {k: v for k, v in value.items() if k != "salt"}, sort_keys=True, separators=(",", ":")
                ),
                json.dumps(value, sort_keys=True, separators=(",", ":"))[:-1] + ',"step":0}',  # a key twice
                json.dumps(value, sort_keys=True, separators=(",", ":")) + " ",
            ]
        )
    )
    with pytest.raises(IntegrityError):
        Message.from_line(other.encode())


@given(messages, st.data())
def test_a_field_of_another_type_is_damage_and_nothing_else(message: Message, data: st.DataObject) -> None:
    """Whatever stands in a field, canonical or not, the answer is a message or `IntegrityError`."""
    value = json.loads(message.to_line())
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = data.draw(plain)
    line = canonical(value)
    try:
        read = Message.from_line(line)
    except IntegrityError:
        return
    assert read.to_line() == line + b"\n"
    assert {type(n) for n in (read.seq, read.round, read.step, read.bytes_on_wire)} == {int}
    assert {type(t) for t in (read.sender, read.kind, read.salt, read.sha256, read.previous)} == {str}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_message(line: bytes) -> None:
    with pytest.raises(IntegrityError):
        Message.from_line(line)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"seq":' + b"9" * 5000 + b"}",
        b'{"seq":1e999}',
        b"null",
        b'"\\ud800"',
        b"\xff\xfe\x00",
        b"",
    ],
    ids=["nested", "huge", "infinite", "null", "surrogate", "utf-16", "empty"],
)
def test_hostile_lines_are_damage(line: bytes) -> None:
    with pytest.raises(IntegrityError):
        Message.from_line(line)


@given(plain)
def test_canonical_bytes_are_one_ascii_line_and_sorted(value: Any) -> None:
    data = canonical(value)
    assert data.isascii()
    assert b"\n" not in data
    assert canonical(json.loads(data)) == data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}, {1, 2}, object()])
def test_what_json_cannot_say_has_no_canonical_form(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical(value)


def test_the_role_of_a_party() -> None:
    assert [role(p) for p in ("client/3", "server", "world")] == ["client", "server", "world"]


# -- storage --------------------------------------------------------------------------------------------------


@given(named)
def test_tensors_come_back_bit_for_bit(values: dict[str, Tensor]) -> None:
    assert same(decode(encode(values)), values)


@given(named)
def test_equal_tensors_give_equal_bytes_whatever_their_order(values: dict[str, Tensor]) -> None:
    assert encode(values) == encode(dict(reversed(values.items())))
    assert encode(values) == encode({n: t.clone() for n, t in values.items()})


def test_strided_shared_and_overlapping_tensors_are_encoded_by_value() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    views = {
        "whole": base,
        "same": base,
        "permuted": base.permute(2, 0, 1),
        "row": base[0],
        "other row": base[1],
        "overlap": base.flatten()[3:9],
        "expanded": base[0, 0, :1].expand(5),
        "channels last": torch.arange(48.0).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    }
    assert same(decode(encode(views)), {n: t.contiguous() for n, t in views.items()})
    assert encode(views) == encode({n: t.contiguous().clone() for n, t in views.items()})


def test_a_decoded_tensor_shares_no_memory_with_another() -> None:
    payload = encode({"a": torch.zeros(4), "b": torch.zeros(4)})
    first, second = decode(payload), decode(payload)
    first["a"].fill_(7.0)
    assert second["a"].tolist() == first["b"].tolist() == [0.0] * 4
    assert decode(payload)["a"].tolist() == [0.0] * 4


@given(named)
def test_the_header_says_what_the_payload_holds(values: dict[str, Tensor]) -> None:
    assert {n: t.shape for n, t in header(encode(values)).items()} == {
        n: tuple(t.shape) for n, t in values.items()
    }


@given(named, st.data())
def test_cut_payloads_are_damage(values: dict[str, Tensor], data: st.DataObject) -> None:
    payload = encode(values)
    with pytest.raises(IntegrityError):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_no_payload(payload: bytes) -> None:
    for read in (decode, header):
        try:
            read(payload)
        except IntegrityError:
            continue
        assert json.loads(payload[8:]) in ({}, {"__metadata__": {}})  # an empty payload is one


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 50_000,
        b"[]",
        b"null",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32"}}',
        b'{"a": {"dtype": "F32", "shape": 3}}',
    ],
)
def test_hostile_headers_are_damage(text: bytes) -> None:
    with pytest.raises(IntegrityError):
        header(len(text).to_bytes(8, "little") + text)
    with pytest.raises(IntegrityError):
        header((1 << 60).to_bytes(8, "little") + text)


def _crashes(monkeypatch: pytest.MonkeyPatch, call: str, at: int) -> None:
    """Lets the `at`-th call of an `os` function raise, and every later one too: the process is gone."""
    real, seen = getattr(os, call), [0]

    def failing(*args: Any, **kwargs: Any) -> Any:
        seen[0] += 1
        if seen[0] > at:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("call", ["open", "fdopen", "fsync", "replace", "rename"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_file_is_the_old_or_the_new_one_never_half(
    call: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old, new = tmp_path / "file", b"old" * 1000, b"new" * 2000
    path.write_bytes(old)
    with monkeypatch.context() as patched:
        _crashes(patched, call, at)
        try:
            write_atomically(path, new)
            finished = True
        except KeyboardInterrupt:
            finished = False
    assert path.read_bytes() == new if finished else path.read_bytes() in (old, new)
    write_atomically(path, new)
    assert path.read_bytes() == new
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "a left-over of the crash stayed"


def test_the_final_name_never_holds_part_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the final name whenever something is made durable or renamed."""
    path, seen = tmp_path / "file", list[bytes | None]()
    for call in ("fsync", "replace", "rename"):
        real = getattr(os, call)

        def looking(*args: Any, real: Any = real, **kwargs: Any) -> Any:
            seen.append(path.read_bytes() if path.exists() else None)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, looking)
    write_atomically(path, b"x" * 100_000)
    assert set(seen) == {None, b"x" * 100_000}


def test_json_is_canonical_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save_json(path, {"b": 1, "a": "é"})
    assert path.read_bytes() == b'{"a":"\\u00e9","b":1}\n'
    for damage in (b"{", b"\xff", b"[" * 100_000, b""):
        path.write_bytes(damage)
        with pytest.raises(IntegrityError, match=r"a\.json"):
            load_json(path)


def test_saved_tensors_have_the_digest_that_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    digest = save_tensors(path, {"a": torch.ones(3)})
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_tensors(path, digest)["a"].tolist() == [1.0] * 3
    with pytest.raises(IntegrityError, match="digest"):
        load_tensors(path, "0" * 64)
    path.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        load_tensors(path)


@given(st.binary(min_size=16, max_size=32), st.binary(max_size=64), st.integers(0, 64))
def test_a_commitment_is_sha256_of_salt_and_parts(salt: bytes, data: bytes, cut: int) -> None:
    assert commitment(salt, data[:cut], data[cut:]) == hashlib.sha256(salt + data).hexdigest()


# -- transcript -----------------------------------------------------------------------------------------------


def draft(round: int = 0, step: int = 0, kind: str = "gradient") -> Message:
    return Message(
        seq=0, round=round, step=step, sender="client/0", receivers=("server",), kind=kind, inputs=("data",)
    )


def filled(directory: Path, contents: list[dict[str, Tensor]], **options: Any) -> tuple[Position, list[Any]]:
    returned = []
    with Transcript(directory, secret=SECRET, **options) as transcript:
        for number, values in enumerate(contents):
            returned.append(transcript.append(draft(number), values))
        return transcript.sync(), returned


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
        real = transcript._file

        class Watching:
            def write(self, line: bytes) -> int:
                where = json.loads(line)["payload"]
                path = tmp_path / where["file"]
                assert path.stat().st_size == where["length"], "the payload is not whole under its final name"
                assert json.loads(line)["seq"] == log.read_bytes().count(b"\n")
                seen.append(where["file"])
                return real.write(line)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        transcript._file = Watching()  # type: ignore[assignment]
        for k in range(3):
            transcript.append(draft(k), {"a": torch.zeros(k)})
    assert seen == [f"payloads/{k:08d}.safetensors" for k in range(3)]


def test_a_line_written_in_part_is_an_error(tmp_path: Path) -> None:
    """A full disk lets a write return early without an error of its own."""
    with Transcript(tmp_path, secret=SECRET) as transcript:
        real = transcript._file

        class Full:
            def write(self, line: bytes) -> int:
                return int(real.write(line[:10]))

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        transcript._file = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match="part of a line"):
            transcript.append(draft(), {"a": torch.zeros(1)})


def test_a_synced_transcript_was_made_durable_from_the_payloads_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads before their folder, both before the log: a line must never outlive its payload."""
    order, real = list[str](), os.fsync

    def noting(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are read from /proc")
    with Transcript(tmp_path / "t", secret=SECRET) as transcript:
        transcript.append(draft(), {"a": torch.zeros(1)})
        transcript.append(draft(), {"a": torch.zeros(2)})
        monkeypatch.setattr(os, "fsync", noting)
        transcript.sync()
    # The payloads are asked for side by side: either may be the first.
    assert sorted(order[:2]) == ["00000000.safetensors", "00000001.safetensors"]
    assert order[2:] == ["payloads", "t", LOG]


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
    assert sorted(p.name for p in (tmp_path / "payloads").iterdir()) == [f"{k:08d}.safetensors" for k in kept]
    for values, message, (_, handed) in zip(contents, read, returned, strict=True):
        assert same(handed, values), "a receiver is handed the payload whether or not it is kept"
        salted = bytes.fromhex(message.salt) + encode(values)
        assert message.sha256 == hashlib.sha256(salted).hexdigest(), "a digest binds what was not kept"
        if message.payload is None:
            with pytest.raises(IntegrityError, match="digest only"):
                read_payload(tmp_path, message)
    assert verify_transcript(tmp_path, head=position.head, count=4) == []


def test_memory_does_not_grow_with_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 messages of 8 KB: neither writing nor verifying holds more than names of them."""
    values = {"a": torch.zeros(2000)}
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: None
    )  # 2,000 of them take the disk's time, not memory
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
            for start in range(100, 2100, 500):
                before = used()
                tracemalloc.reset_peak()
                for k in range(start, start + 500):
                    transcript.append(draft(k), values)
                    if k % 100 == 99:
                        transcript.sync()
                peak.append(tracemalloc.get_traced_memory()[1] - before)
                grown.append(used() - before)
            head = transcript.position.head
        verified = list[int]()
        for _ in range(2):
            before = used()
            tracemalloc.reset_peak()
            assert verify_transcript(tmp_path / "t", head=head, count=2100) == []
            verified.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # The interpreter's table of interned strings may double once meanwhile, which is 4 MB and more in a large process:
    # three of the four times 500 messages are free of it, and one of the two verifications.
    assert sorted(grown)[2] < 50_000, f"{grown} bytes more are held after each 500 messages"
    assert sorted(peak)[2] < 1_000_000, f"{peak} bytes at most while 4 MB were written"
    assert min(verified) < 2_000_000, f"{verified} bytes at most while 16 MB were verified, twice"


# -- names and types that a line must not carry -----------------------------------------------------------------


def forged(directory: Path, **changes: Any) -> list[str]:
    """Findings on a transcript of one message whose line was edited, and whose head was rewritten to match."""
    filled(directory, [{"a": torch.zeros(2)}])
    value = json.loads((directory / LOG).read_bytes())
    line = canonical({**value, **changes})
    (directory / LOG).write_bytes(line + b"\n")
    return verify_transcript(directory, head=hashlib.sha256(line).hexdigest(), count=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": {"file": "../../etc/passwd", "offset": 0, "length": 10}},
        {"payload": {"file": "/etc/passwd", "offset": 0, "length": 10}},
        {"payload": {"file": "payloads/../messages.jsonl", "offset": 0, "length": 10}},
        {"payload": {"file": "payloads/00000000.safetensors\n", "offset": 0, "length": 10}},
        {"payload": {"file": "payloads/00000000.safetensors", "offset": 0, "length": 10**30}},
        {"payload": {"file": "payloads/00000000.safetensors", "offset": 0, "length": 10**15}},
        {"payload": {"file": "payloads/00000000.safetensors", "offset": -1, "length": 10}},
        {"payload": {"file": "payloads/00000000.safetensors", "offset": 10**30, "length": 1}},
        {"payload": {"file": ["x"], "offset": 0, "length": 1}},
        {"payload": []},
        {"payload": "payloads/00000000.safetensors"},
        {"payload": {}},
        {"payload": None},
        {"round": "x"},
        {"round": -1},
        {"step": None},
        {"seq": 5},
        {"seq": True},
        {"kind": ["gradient"]},
        {"kind": "not a kind"},
        {"receivers": [["server"]]},
        {"inputs": [0]},
        {"inputs": [-1]},
        {"inputs": ["everything"]},
        {"inputs": [[0]]},
        {"inputs": {"data": 1}},
        {"tensors": {}},
        {"tensors": {"a": {"dtype": "F32", "shape": [3]}}},
        {"tensors": {"a": {"dtype": ["F32"], "shape": [2]}}},
        {"salt": 7},
        {"salt": "zz"},
        {"sha256": ""},
        {"previous": "1" * 64},
        {"event": {"event": []}},
        {"event": {"event": "Gaussian", "scale": "much"}},
        {"defenses": ["noise"]},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_a_forged_line_is_a_finding_and_no_crash(changes: dict[str, Any], tmp_path: Path) -> None:
    """The forger may rewrite the head; what a line says must still be possible."""
    findings = forged(tmp_path, **changes)
    assert findings
    assert all("messages.jsonl" in f or "message 0" in f or "payloads/" in f for f in findings), findings


def test_a_forged_header_is_a_finding_and_no_crash(tmp_path: Path) -> None:
    for number, text in enumerate((b"[" * 50_000, b"{}", b'{"a":{"dtype":"F32","shape":[[2]]}}')):
        directory = tmp_path / str(number)
        filled(directory, [{"a": torch.zeros(2)}])
        payload = len(text).to_bytes(8, "little") + text
        (directory / "payloads" / "00000000.safetensors").write_bytes(payload)
        value = json.loads((directory / LOG).read_bytes())
        value["payload"]["length"] = len(payload)
        value["sha256"] = hashlib.sha256(bytes.fromhex(value["salt"]) + payload).hexdigest()
        line = canonical(value)
        (directory / LOG).write_bytes(line + b"\n")
        assert verify_transcript(directory, head=hashlib.sha256(line).hexdigest(), count=1)


def test_a_payload_that_is_no_plain_file_is_a_finding_and_not_read(tmp_path: Path) -> None:
    """Opening a named pipe would wait for ever, reading a device would never end."""
    for kind in ("pipe", "link", "device", "folder"):
        directory = tmp_path / kind
        position, _ = filled(directory, [{"a": torch.zeros(2)}])
        path = directory / "payloads" / "00000000.safetensors"
        if kind == "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        findings = verify_transcript(directory, head=position.head, count=1)
        assert any("00000000.safetensors" in f for f in findings), (kind, findings)


# -- a stranger -----------------------------------------------------------------------------------------------

STRANGER = """
import hashlib, json, sys
from pathlib import Path
from safetensors import safe_open

directory, previous, shapes = Path(sys.argv[1]), "0" * 64, []
for line in (directory / "messages.jsonl").read_bytes().split(b"\\n")[:-1]:
    message = json.loads(line)
    assert message["previous"] == previous
    previous = hashlib.sha256(line).hexdigest()
    payload = (directory / message["payload"]["file"]).read_bytes()
    assert hashlib.sha256(bytes.fromhex(message["salt"]) + payload).hexdigest() == message["sha256"]
    with safe_open(directory / message["payload"]["file"], "numpy") as tensors:
        shapes.append({name: list(tensors.get_tensor(name).shape) for name in tensors.keys()})
    assert shapes[-1] == {name: t["shape"] for name, t in message["tensors"].items()}
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"fdaudit", "torch", "pickle5"}, loaded
print(json.dumps({"head": previous, "shapes": shapes}))
"""


def test_a_stranger_reads_it_with_json_and_safetensors_alone(tmp_path: Path) -> None:
    position, _ = filled(
        tmp_path, [{"a": torch.zeros(2, 3), "b": torch.tensor(1)}, {}, {"c": torch.zeros(0)}]
    )
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "head": position.head,
        "shapes": [{"a": [2, 3], "b": []}, {}, {"c": [0]}],
    }
