"""Storage: what is written can be read back bit for bit, by anybody, and damage is found."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fdaudit.errors import IntegrityError
from fdaudit.storage.files import (
    commitment,
    decode,
    encode,
    header,
    indented,
    load_json,
    load_tensors,
    save_json,
    save_json_together,
    write_atomically,
)

from ..helpers.transcript_cases import (
    named,
    same,
)


@given(named)
def test_tensors_come_back_and_give_equal_bytes_whatever_their_order(values: dict[str, Tensor]) -> None:
    assert same(decode(encode(values)), values)
    assert encode(values) == encode(dict(reversed(values.items())))
    assert encode(values) == encode({n: t.clone() for n, t in values.items()})
    assert {n: t.shape for n, t in header(encode(values)).items()} == {
        n: tuple(t.shape) for n, t in values.items()
    }


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


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]},
        {"dtype": "X1", "shape": [2], "data_offsets": [0, 8]},
    ],
)
def test_a_header_that_does_not_describe_its_bytes_is_damage(entry: dict[str, Any]) -> None:
    """What `header` accepts, `decode` accepts: a check that reads headers alone calls no payload intact wrongly."""
    text = json.dumps({"a": entry}).encode()
    payload = len(text).to_bytes(8, "little") + text + bytes(8)
    for read in (header, decode):
        with pytest.raises(IntegrityError):
            read(payload)


def _crashes(monkeypatch: pytest.MonkeyPatch, call: str, at: int) -> None:
    """Lets the `at`-th call of an `os` function raise, and every later one too: the process is gone."""
    real, calls = getattr(os, call), count()

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) >= at:
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


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("call", ["open", "fdopen", "fsync", "replace"])
def test_files_written_together_are_old_or_new_each_and_durable_before_they_have_their_names(
    call: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{n}.json" for n in range(3)]
    save_json(paths[0], "old")
    durable, fsync, replace = set[int](), os.fsync, os.replace

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        durable.add(os.fstat(descriptor).st_ino)

    def naming(source: Path, target: Path) -> None:
        assert source.stat().st_ino in durable
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", noting)
        patched.setattr(os, "replace", naming)
        _crashes(patched, call, at)
        try:
            save_json_together({p: ["new"] for p in paths}, indent=1)
            finished = True
        except KeyboardInterrupt:
            finished = False
    new = b'[\n "new"\n]\n'
    assert all(p.read_bytes() in (b'"old"\n', new) for p in paths if p.exists())
    assert not finished or (all(p.read_bytes() == new for p in paths) and tmp_path.stat().st_ino in durable)
    assert finished == (call in ("fdopen", "replace") and at == 3)
    save_json_together({p: ["new"] for p in paths}, indent=1)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {p.name: new for p in paths}


def test_json_is_canonical_finite_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save_json(path, {"b": 1, "a": "é"})
    assert path.read_bytes() == b'{"a":"\\u00e9","b":1}\n'
    for damage in (b"{", b"\xff", b"[" * 100_000, b""):
        path.write_bytes(damage)
        with pytest.raises(IntegrityError, match=r"a\.json"):
            load_json(path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        indented({"a": [{"b": float("nan")}]})


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda below: st.lists(below) | st.dictionaries(st.text(), below),
        max_leaves=20,
    ),
    st.integers(1, 3),
)
def test_indented_json_is_that_of_the_standard_library(value: Any, indent: int) -> None:
    assert indented(value, indent) == json.dumps(value, indent=indent, sort_keys=True)


def test_tensors_are_read_from_a_file_with_the_expected_digest_alone(tmp_path: Path) -> None:
    path, payload = tmp_path / "t.safetensors", encode({"a": torch.ones(3)})
    path.write_bytes(payload)
    digest = hashlib.sha256(payload).hexdigest()
    assert load_tensors(path, digest)["a"].tolist() == [1.0] * 3
    with pytest.raises(IntegrityError, match="digest"):
        load_tensors(path, "0" * 64)
    path.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        load_tensors(path)


@given(st.binary(min_size=16, max_size=32), st.binary(max_size=64), st.integers(0, 64))
def test_a_commitment_is_sha256_of_salt_and_parts(salt: bytes, data: bytes, cut: int) -> None:
    assert commitment(salt, data[:cut], data[cut:]) == hashlib.sha256(salt + data).hexdigest()
