"""Directories sent as lines: they arrive byte for byte, whole or not at all, and nowhere else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit import parcels
from fdaudit.errors import IntegrityError
from fdaudit.parcels import Arrival, pack

from .run_cases import tree

names = st.lists(st.sampled_from(["a", "b", ".tmp", "ä"]), min_size=1, max_size=3).map("/".join)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_what_is_sent_arrives(files: dict[str, bytes], chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parcels, "_CHUNK", chunk)
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


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="link"):
        list(pack(tmp_path / "run"))
