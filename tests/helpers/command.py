"""The type of the fixture `cli`: it calls the command line in this process and returns exit code, output and errors."""

from __future__ import annotations

from collections.abc import Callable

Cli = Callable[..., tuple[int, str, str]]
