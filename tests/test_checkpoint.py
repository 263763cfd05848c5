"""What a checkpoint names is on the disk before the checkpoint is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fdaudit

from .run_cases import tiny


def test_a_checkpoint_takes_its_place_once_all_that_it_names_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are read from /proc")
    synced, rounds, sync, replace = set[Path](), list[int](), os.fsync, os.replace

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def replacing(source: Path, target: Path) -> None:
        if Path(target).name == "round.json":
            stated = json.loads(Path(source).read_bytes())
            rounds.append(stated["round"])
            vault, transcript = Path(target).parent, Path(target).parent.parent / "transcript"
            assert {
                Path(source),
                vault / f"{stated['state']}.safetensors",
                vault / "state",
                *(vault / "truth").iterdir(),
                vault / "truth",
                *(transcript / "payloads").iterdir(),
                transcript / "payloads",
                transcript / "messages.jsonl",
                transcript,
            } <= synced
            # These change with the next round.
            synced.difference_update([path for path in synced if path.is_dir() or path.suffix == ".jsonl"])
            synced.discard(Path(source))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "replace", replacing)
    fdaudit.run(
        tiny(protocol__params={"rounds": 2, "batch_size": 16, "local_steps": 1}, references=[], attacks=[]),
        tmp_path.resolve() / "out",
    )
    assert rounds == [0, 1]
