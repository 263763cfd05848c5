"""Directories sent as lines: they arrive byte for byte, whole or not at all, and nowhere else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.cluster import transfer
from fdaudit.cluster.transfer import Arrival, changes, pack, snapshot
from fdaudit.errors import IntegrityError

from ..helpers.run_cases import tree

names = st.lists(st.sampled_from(["a", "b", ".tmp", "ä"]), min_size=1, max_size=3).map("/".join)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_what_is_sent_arrives(files: dict[str, bytes], chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_CHUNK", chunk)
        source, target = Path(folder) / "source", Path(folder) / "target"
        (source / "empty").mkdir(parents=True)
        (source / "empty").chmod(0o700)
        for name, data in files.items():
            if not any((source / p).is_file() for p in Path(name).parents) and not (source / name).is_dir():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes(data)
        target.mkdir()
        (target / "before").write_text("goes")
        arrival = Arrival(Path(folder) / "staging", target)
        for line in pack(source):
            arrival.take(line)
            assert (target / "before").is_file(), "nothing is at its place before all has arrived"
        arrival.place()
        assert tree(target) == tree(source)
        modes = [
            {p.relative_to(d): p.stat().st_mode for d in [top] for p in top.rglob("*") if p.is_dir()}
            for top in (source, target)
        ]
        assert modes[0] == modes[1]
        assert not (Path(folder) / "staging").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b", 3, None])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_name_that_leads_elsewhere_is_refused(kind: str, name: Any, tmp_path: Path) -> None:
    arrival = Arrival(tmp_path / "in" / "staging", tmp_path / "in" / "target")
    with pytest.raises(IntegrityError):
        arrival.take({kind: name, "data": b"", "mode": 0o700})
    arrival.drop()
    assert [p.name for p in tmp_path.rglob("*")] == ["in"]


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(names, st.binary(max_size=40), max_size=6),
    st.dictionaries(names, st.binary(max_size=40), max_size=6),
)
def test_changes_that_are_sent_are_made_where_they_arrive(
    first: dict[str, bytes], then: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        for top in (source, target):
            _write(top, first)
        (target / "of its own").write_text("stays")
        before = snapshot(source)
        for path in sorted(source.rglob("*"), reverse=True):
            if path.relative_to(source).parts[0] not in {Path(n).parts[0] for n in then}:
                path.rmdir() if path.is_dir() else path.unlink()
        _write(source, then)
        (source / "private").mkdir(mode=0o700)
        (source / "private" / "new").write_bytes(b"1")
        arrival = Arrival(Path(folder) / "staging", target)
        for line in changes(source, before):
            arrival.take(line)
        assert not (target / "private").exists(), "nothing is at its place before all has arrived"
        arrival.merge()
        assert (target / "of its own").read_text() == "stays"
        (target / "of its own").unlink()
        assert tree(target) == tree(source)
        assert {p.relative_to(target) for p in target.rglob("*")} == {
            p.relative_to(source) for p in source.rglob("*")
        }
        assert (target / "private").stat().st_mode & 0o777 == 0o700
        assert not (Path(folder) / "staging").exists()


def _write(top: Path, files: dict[str, bytes]) -> None:
    top.mkdir(exist_ok=True)
    for name, data in files.items():
        if not any((top / p).is_file() for p in Path(name).parents) and not (top / name).is_dir():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(data)


def test_what_has_not_changed_is_not_sent(tmp_path: Path) -> None:
    _write(tmp_path, {"a": b"1", "b/ä": b"2"})
    before = snapshot(tmp_path)
    assert list(changes(tmp_path, before)) == []
    (tmp_path / "a").write_bytes(b"3")
    assert list(changes(tmp_path, before)) == [{"file": "a", "data": b"3"}]


@pytest.mark.parametrize("kind", ["file", "folder", "gone"])
def test_changes_where_none_are_expected_are_refused(kind: str, tmp_path: Path) -> None:
    arrival = Arrival(tmp_path / "staging", tmp_path / "run", below=("attacks", "vault/scores"))
    for name in ("attacks/a/b", "vault/scores/c"):
        arrival.take({kind: name, "data": b"", "mode": 0o755})
    for name in ("spec.yaml", "vault/secrets.json", "attacks2/a", "vault", "attacks/../spec.yaml"):
        with pytest.raises(IntegrityError):
            arrival.take({kind: name, "data": b"", "mode": 0o755})


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="link"):
        list(pack(tmp_path / "run"))
