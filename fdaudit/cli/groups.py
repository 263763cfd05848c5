"""The help of the command line: commands in groups, each with its whole sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["Grouped"]

GROUPS = {
    "Audit": ("quickstart", "init", "run", "attack", "report", "compare"),
    "Federations that others ran": ("design", "card", "import", "export-view", "score"),
    "Curves": ("sweep", "curve"),
    "Privacy": ("ledger", "calibrate"),
    "Evidence": ("verify", "evidence"),
    "Look up": ("list", "explain", "schema", "weights", "doctor"),
}


class Grouped(TyperGroup):
    """A group of commands that lists them by purpose; a command without a purpose comes last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group of commands with their first sentences."""
        left = {name: command for name, command in self.commands.items() if not command.hidden}
        for head, names in GROUPS.items():
            self._section(formatter, head, {name: left.pop(name) for name in names if name in left})
        self._section(formatter, "More", left)

    @staticmethod
    def _section(formatter: Any, head: str, commands: dict[str, Any]) -> None:
        if commands:
            with formatter.section(head):
                formatter.write_dl([(name, c.get_short_help_str(limit=200)) for name, c in commands.items()])
