"""`fdaudit doctor` says what this machine offers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fdaudit.cli import machine
from fdaudit.isolation import attacker
from fdaudit.isolation.confinement import LAYERS

from ..helpers import warm


@pytest.mark.thorough
def test_it_tries_the_layers_of_confinement(capsys: pytest.CaptureFixture[str]) -> None:
    with warm.forked_attackers():
        machine.doctor(as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    said = found["confinement"]
    assert {*said["held"], *said["missing"]} == {*LAYERS, "time"}
    assert found["cores"] >= 1
    assert found["disk_free_gb"] > 0
    assert {"memory_gb", "accelerator", "data", "weights", "weights_missing"} <= found.keys()


def test_it_says_which_layer_is_missing_and_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacker, "_without", ("files",))
    with warm.forked_attackers():
        machine.doctor()
    lines = capsys.readouterr().out.splitlines()
    assert "not confined by  files: switched off" in lines
    assert "files" not in lines[0]
    assert all(len(line.split()) > 1 for line in lines)
