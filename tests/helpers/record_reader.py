"""A transcript read by `json` and `safetensors` alone: what the tests that replay a record share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

Arrays = dict[str, NDArray[Any]]
Record = list[tuple[dict[str, Any], Arrays]]


class BrokenRecordError(Exception):
    """The record does not give back what was sent."""


def read(directory: Path) -> Record:
    """Every message of a transcript with its tensors, in the order of the log; a silence has none.

    Where its payload `begins` in its file is noted in the message; payloads whose lines were taken away are left out.
    """
    found, ends = [], dict[str, int]()
    for line in (directory / "messages.jsonl").read_text(encoding="ascii").splitlines():
        message = json.loads(line)
        where = message["payload"]
        data = (directory / where["file"]).read_bytes()
        begins = ends.get(where["file"], 0)
        starts = _starts(data, begins, where["length"])
        message["begins"] = next((at for at in starts if _is_at(data, at, message)), begins)
        ends[where["file"]] = message["begins"] + where["length"]
        payload = data[message["begins"] : ends[where["file"]]]
        found.append((message, load(payload) if message["tensors"] else {}))
    return found


def samples(tensors: Arrays) -> NDArray[Any]:
    """The samples that a message's rows are about: its index, or the first n in order."""
    rows = tensors["values"] if "values" in tensors else tensors["counts"]
    return tensors["index"] if "index" in tensors else np.arange(len(rows))


def _starts(data: bytes, at: int, wanted: int) -> Iterator[int]:
    """Where payloads begin, from one of them on, until `wanted` bytes no longer fit.

    A header says how long itself and its tensors are.
    """
    while at + wanted <= len(data):
        yield at
        length = int.from_bytes(data[at : at + 8], "little")
        header = json.loads(data[at + 8 : at + 8 + length])
        at += 8 + length + max((t["data_offsets"][1] for t in header.values()), default=0)


def _is_at(data: bytes, at: int, message: dict[str, Any]) -> bool:
    payload = data[at : at + message["payload"]["length"]]
    return hashlib.sha256(bytes.fromhex(message["salt"]) + payload).hexdigest() == message["sha256"]


def standing_alone(test: Path, imports: str, call: str) -> str:
    """A script of this module and a test's reader, for a process that can import neither fdaudit nor torch.

    Args:
        test: the test's file; its reader goes from the line `# -- the reader` to the line `# -- the runs`.
        imports: what the reader needs.
        call: what to run.
    """
    future = "from __future__ import annotations\n"
    here, source = (p.read_text(encoding="utf-8").replace(future, "") for p in (Path(__file__), test))
    reader = source[source.index("# -- the reader") : source.index("# -- the runs")]
    blocked = "import sys\nsys.modules['fdaudit'] = sys.modules['torch'] = None\n"
    return f"{future}{blocked}{here}\n{imports}\n{reader}\n{call}\n"
