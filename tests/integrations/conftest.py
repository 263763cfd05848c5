"""Flower requires an older Typer, which a newer Click warns about when it is imported. That is no defect of fdaudit."""

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import typer  # noqa: F401

from ..helpers.cli_cases import Shell  # after Typer, which it imports
from .strangers import Stranger


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Stranger:
    """A user in an empty directory."""
    return Stranger(Shell(monkeypatch, capsys, tmp_path / "home"), monkeypatch)
