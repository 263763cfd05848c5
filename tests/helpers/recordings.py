"""What a record holds, read without the code that checks records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fdaudit.recording.record import check_record
from fdaudit.transcript.transcript import LOG, verify_transcript


def state(record: Path) -> dict[str, Any]:
    """Return what `record.json` says."""
    found: dict[str, Any] = json.loads((record / "record.json").read_bytes())
    return found


def closed_part(record: Path, copy: Path) -> list[str]:
    """Copy the part of a record that `record.json` names; return what the check of transcripts finds in it."""
    said = state(record)
    assert check_record(record).findings == ()
    shutil.copytree(record / "transcript", copy)
    kept = (copy / LOG).read_bytes().split(b"\n")[: said["messages"]]
    (copy / LOG).write_bytes(b"".join(line + b"\n" for line in kept))
    named = {json.loads(line)["payload"]["file"] for line in kept}
    for path in (copy / "payloads").iterdir():
        if f"payloads/{path.name}" not in named:
            path.unlink()
    return verify_transcript(copy, head=said["head"], count=said["messages"])
