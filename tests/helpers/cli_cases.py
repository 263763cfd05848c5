"""The command line as tests call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fdaudit.testing.specs import small_spec

from .run_cases import cli, tree, write_spec


class Shell:
    """The command line in this process, in a directory of its own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
    ) -> None:
        self._monkeypatch, self._capsys, self.home = monkeypatch, capsys, home
        home.mkdir()
        monkeypatch.chdir(home)

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        return cli(self._monkeypatch, self._capsys, *arguments)

    def told(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """What is printed, and what is said beside it, by a command that ends with the code."""
        found, out, err = self(*arguments)
        assert found == code, err
        return out, err

    def refused(self, *arguments: object, code: int = 2) -> str:
        """The one line that a refusal is; nothing has changed in this directory."""
        before = tree(self.home)
        out, err = self.told(*arguments, code=code)
        assert out == ""
        assert len(err.splitlines()) == 1, err
        assert tree(self.home) == before
        return err

    def json(self, *arguments: object, code: int = 0) -> Any:
        found, out, err = self(*arguments, "--json")
        assert found == code, err
        assert len(out.splitlines()) == 1
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    def spec(self, **changes: Any) -> Path:
        return write_spec(self.home / "spec.yaml", small_spec(**changes))
