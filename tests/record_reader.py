"""A transcript read by `json` and `safetensors` alone: what the tests that replay a record share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load

Arrays = dict[str, NDArray[Any]]
Record = list[tuple[dict[str, Any], Arrays]]


def read(directory: Path) -> Record:
    """Every message of a transcript with its tensors, in the order of the log; a silence has none."""
    found = []
    for line in (directory / "messages.jsonl").read_text(encoding="ascii").splitlines():
        message = json.loads(line)
        where = message["payload"]
        with (directory / where["file"]).open("rb") as file:
            file.seek(where["offset"])
            found.append((message, load(file.read(where["length"])) if message["tensors"] else {}))
    return found


def standing_alone(test: Path, imports: str, call: str) -> str:
    """A script of this module and a test's reader, for a process that can import neither fdaudit nor torch.

    Args:
        test: the test's file; its reader goes from `BrokenRecordError` to the line `# -- the runs`.
        imports: what the reader needs.
        call: what to run.
    """
    future = "from __future__ import annotations\n"
    here, source = (p.read_text(encoding="utf-8").replace(future, "") for p in (Path(__file__), test))
    reader = source[source.index("class BrokenRecordError") : source.index("# -- the runs")]
    blocked = "import sys\nsys.modules['fdaudit'] = sys.modules['torch'] = None\n"
    return f"{future}{blocked}{here}\n{imports}\n{reader}\n{call}\n"
