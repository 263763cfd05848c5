"""Directories that are sent as names with bytes: they arrive byte for byte, and nowhere else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.cluster import transfer
from fdaudit.cluster.transfer import changes, snapshot, write_tree
from fdaudit.errors import IntegrityError

from ..helpers.run_cases import tree

names = st.lists(st.sampled_from(["a", "b", ".tmp", "ä"]), min_size=1, max_size=3).map("/".join)
contents = st.dictionaries(names, st.binary(max_size=40), max_size=6)


def write(top: Path, files: dict[str, bytes]) -> None:
    top.mkdir(exist_ok=True)
    for name, data in files.items():
        if not any((top / p).is_file() for p in Path(name).parents) and not (top / name).is_dir():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(data)


def modes(top: Path) -> dict[str, int]:
    return {p.relative_to(top).as_posix(): p.stat().st_mode for p in top.rglob("*") if p.is_dir()}


@settings(max_examples=50, deadline=None)
@given(contents, contents, st.integers(1, 50))
def test_a_directory_and_its_later_changes_arrive(
    first: dict[str, bytes], then: dict[str, bytes], batch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_BATCH", batch)
        source, target = Path(folder) / "source", Path(folder) / "target"
        write(source, first)
        target.mkdir()
        (target / "of its own").write_text("stays")
        for part in changes(source):
            write_tree(part, target)
        assert tree(target) == {**tree(source), "of its own": b"stays"}
        before = snapshot(source)
        for path in sorted(source.rglob("*"), reverse=True):
            if path.relative_to(source).parts[0] not in {Path(n).parts[0] for n in then}:
                path.rmdir() if path.is_dir() else path.unlink()
        write(source, then)
        (source / "private").mkdir(mode=0o700)
        (source / "private" / "new").write_bytes(b"1")
        for part in changes(source, before):
            write_tree(part, target)
        assert tree(target) == {**tree(source), "of its own": b"stays"}
        assert modes(target) == modes(source)


def test_what_has_not_changed_is_not_sent(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b/ä": b"2"})
    before = snapshot(tmp_path)
    assert list(changes(tmp_path, before)) == []
    (tmp_path / "a").write_bytes(b"3")
    (tmp_path / "b" / "ä").unlink()
    assert list(changes(tmp_path, before)) == [{"a": b"3", "b/ä": None}]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b", 3, None])
@pytest.mark.parametrize("content", [b"", 0o700, None])
def test_a_name_that_leads_out_is_refused_before_anything_is_written(
    name: Any, content: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "x").write_bytes(b"stays")
    with pytest.raises(IntegrityError):
        write_tree({"good": b"", name: content}, tmp_path / "in")
    assert tree(tmp_path) == {"x": b"stays"}


@pytest.mark.parametrize("content", [b"", 0o755, None])
def test_changes_are_refused_except_in_the_named_parts(content: Any, tmp_path: Path) -> None:
    below = ("attacks", "vault/scores")
    (tmp_path / "attacks").mkdir()
    write_tree({"attacks/a": content}, tmp_path, below)
    for name in ("spec.yaml", "vault/secrets.json", "attacks2/a", "vault", "attacks/../spec.yaml"):
        with pytest.raises(IntegrityError):
            write_tree({name: content}, tmp_path, below)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="link"):
        list(changes(tmp_path / "run"))
    (tmp_path / "x").write_bytes(b"stays")
    (tmp_path / "run" / "file").symlink_to(tmp_path / "x")
    write_tree({"file": b"new"}, tmp_path / "run")
    assert (tmp_path / "x").read_bytes() == b"stays"
