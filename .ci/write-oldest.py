"""Write .ci/oldest.txt: the oldest versions that pyproject.toml admits at run time, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / ".ci" / "oldest.txt"
HEAD = "# Written by `python .ci/write-oldest.py` from the lower bounds in pyproject.toml; installed by .ci/oldest.\n"


def constraints() -> str:
    """Return one line for each dependency, with its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"]
    found = [re.fullmatch(r"([\w.-]+)>=([\w.]+)", line) for line in lines]
    if None in found:
        raise SystemExit(f"not every dependency has the form NAME>=VERSION: {lines}")
    return HEAD + "".join(sorted(f"{match[1]}=={match[2]}\n" for match in found if match))


if __name__ == "__main__":
    TARGET.write_text(constraints(), encoding="utf-8")
