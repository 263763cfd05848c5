"""What commands share: options, and the help that lists the commands by purpose, each with its whole sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fdaudit.progress import answer, show
from fdaudit.spec.trust import trust_code

__all__ = [
    "GROUPS",
    "Address",
    "AsJson",
    "Budget",
    "ExecutorName",
    "Latex",
    "PurposeGroup",
    "RunPath",
    "RunWorkers",
    "TrustCode",
    "Verbose",
    "answer_with_latex",
]

Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster: HOST:PORT or auto; default: a cluster on this machine, for this command only."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="The time for it, such as 90s, 10m or 2h: attacks are reduced or left out to fit.",
    ),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        help="The machines that do the work: local (processes) or ray (a Ray cluster; extra `scale`)."
    ),
]
RunWorkers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Ray workers at a time; default: one per processor of the cluster."),
]

Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also print a line for each attack by each adversary.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Latex = Annotated[
    bool, typer.Option("--latex", help="Print the tables as LaTeX (package booktabs) instead of the path.")
]


def _trusted(given: bool) -> bool:
    if given:
        trust_code()
    return given


TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trusted,
        help="Run code that the files name by import:module:Class. Read it first: it may be a stranger's.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]

GROUPS = {
    "Audit": ("quickstart", "init", "run", "attack", "remedy", "twin", "report", "compare"),
    "Federations that others ran": ("design", "card", "import", "active", "export-view", "score"),
    "Curves": ("sweep", "curve"),
    "Privacy": ("ledger", "calibrate"),
    "Evidence": ("verify", "evidence"),
    "Look up": ("list", "explain", "schema", "weights", "doctor"),
}


def answer_with_latex(value: dict[str, Any], line: str, tables: str, *, as_json: bool) -> None:
    """Print LaTeX tables instead of a line, or beside the members of an object; without tables, `answer`."""
    if not tables:
        answer(value, line, as_json=as_json)
    elif as_json:
        answer({**value, "latex": tables}, line, as_json=True)
    else:
        show(*tables.splitlines())


class PurposeGroup(TyperGroup):
    """A group of commands that lists them by purpose; a command without a purpose comes last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group of commands with their first sentences."""
        others = dict[str, Any]()
        for name, command in self.commands.items():
            if not command.hidden:
                others[name] = command
        for head, names in GROUPS.items():
            group = dict[str, Any]()
            for name in names:
                if name in others:
                    group[name] = others.pop(name)
            self._section(formatter, head, group)
        self._section(formatter, "More", others)

    @staticmethod
    def _section(formatter: Any, head: str, commands: dict[str, Any]) -> None:
        if commands:
            lines = list[tuple[str, str]]()
            for name, command in commands.items():
                lines.append((name, command.get_short_help_str(limit=200)))
            with formatter.section(head):
                formatter.write_dl(lines)
