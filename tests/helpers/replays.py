"""Records with something taken away or changed, and readers that run alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import save

from .record_reader import Arrays, BrokenRecordError, standing_alone


def breaks_without_each_message(transcript: Path, replay: Callable[[], object]) -> int:
    """Check that a replay misses every message that is taken away; return how many messages there are."""
    replay()
    log = transcript / "messages.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    for k in range(len(lines)):
        log.write_bytes(b"".join(lines[:k] + lines[k + 1 :]))
        with pytest.raises(BrokenRecordError):
            replay()
    return len(lines)


def take_away(transcript: Path, kind: str) -> None:
    """Take all messages of a kind out of a transcript."""
    log = transcript / "messages.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for line in lines if f'"kind":"{kind}"'.encode() not in line))


def overwrite(transcript: Path, message: dict[str, Any], tensors: Arrays) -> None:
    """Put other tensors of the same shapes in the place of a message's."""
    payload = save(tensors)
    assert len(payload) == message["payload"]["length"]
    with (transcript / message["payload"]["file"]).open("r+b") as file:
        file.seek(message["begins"])
        file.write(payload)


def read_alone(test: str, imports: str, call: str, folder: Path, *arguments: str) -> str:
    """Return what a test's reader prints in a process that can import neither fdaudit nor torch.

    Args:
        test: the test's file.
        imports: what its reader needs.
        call: what to print, from the command line `a`.
        folder: where the script is written.
        arguments: the command line.
    """
    script = folder / "reader.py"
    script.write_text(standing_alone(Path(test), imports, f"a = sys.argv\nprint({call})"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def states_its_settings(run: Path, settings: dict[str, Any]) -> bool:
    """Return whether the published spec has the settings that a reader needs."""
    stated = yaml.safe_load((run / "spec.yaml").read_text())["protocol"]["params"]
    return {**settings, **stated} == settings
