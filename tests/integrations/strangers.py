"""The commands of the documentation, from a record to a report, as somebody types them who knows nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..helpers.cli_cases import Shell

QUICKSTARTS = Path(__file__).parent / "quickstarts"


class Stranger:
    """Audits a record with the documented lines only.

    Args:
        shell: the command line.
        monkeypatch: sets what a user exports.
    """

    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shell, self.home = shell, shell.home
        shutil.copytree(QUICKSTARTS, self.home / "quickstarts", ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setenv("FDAUDIT_TRUST_CODE", "1")
        monkeypatch.setenv("PYTHONPATH", str(self.home))
        monkeypatch.syspath_prepend(str(self.home))
        for name in [n for n in sys.modules if n.partition(".")[0] == "quickstarts"]:
            monkeypatch.delitem(sys.modules, name)  # of another user's directory
        self.record, self.truth = self.home / "RECORD", self.home / "TRUTH"

    def imported(self, **facts: Any) -> str:
        """Write a card, fill it in, and import the record; return what is printed."""
        self.shell.told("card", "new", self.record)
        path = self.record / "card.yaml"
        card = yaml.safe_load(path.read_text()) | {"name": "a quickstart", "asserted_by": "me"} | facts
        for entry in card["messages"]:
            entry["what"] = entry["what"].replace("FILL IN", "what the framework sends beside")
        assert "FILL IN" not in yaml.safe_dump(card), "the card asks for what a user was not told"
        path.write_text(yaml.safe_dump(card))
        (self.home / "audit.yaml").write_text("profile: quick\nthreads: 1\n")
        out, _ = self.shell.told(
            *("import", self.record, "--truth", self.truth, "--audit", "audit.yaml", "--out", "RUN")
        )
        return out

    def attacked(self, attack: str, adversary: str = "server") -> dict[str, Any]:
        """Attack the run and write the report; return the cell."""
        code, _, error = self.shell("attack", "RUN", attack, "--adversary", adversary)
        assert code in (0, 1), error
        self.shell.told("report", "RUN")
        assert (self.home / "RUN" / "report" / "index.html").stat().st_size > 10_000
        cells = json.loads((self.home / "RUN" / "result.json").read_bytes())["cells"]
        [cell] = [c for c in cells if (c["adversary"], c["attack"]) == (adversary, attack)]
        return dict(cell)

    def figures(self, cell: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each figure of a cell."""
        for figure in cell["figures"]:
            yield figure["name"], figure["value"]
