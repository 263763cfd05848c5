"""An attack's process has namespaces of its own; its keeper stays in those of the auditor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdaudit.isolation.attacker import Attacker

from ..helpers.warm import forked_attackers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attacks are confined on Linux only")
KINDS = {"tree": ("mnt",), "processes": ("pid", "ipc", "uts"), "network": ("net",)}
"""The kinds of namespaces that each layer consists of."""


@pytest.fixture(scope="module")
def attacker() -> Iterator[Attacker]:
    with forked_attackers():
        attacker = Attacker(own=True)
    yield attacker
    attacker.close()


def _keeper(attacker: Attacker) -> int:
    assert attacker._process is not None
    return attacker._process.pid


def _namespace(process: int, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")


@pytest.mark.parametrize("layer", KINDS)
def test_a_process_has_its_own_namespace_for_each_layer_that_it_does_not_lack(
    layer: str, attacker: Attacker
) -> None:
    if layer in attacker.missing():
        pytest.skip(f"this system has no layer of {layer}, and the process says so")
    keeper = _keeper(attacker)
    (child,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    for kind in KINDS[layer]:
        assert _namespace(int(child), kind) != _namespace(os.getpid(), kind)


def test_a_keeper_sees_the_tree_of_its_auditor(attacker: Attacker) -> None:
    """Its process may hide devices and other processes while the keeper starts, and afterwards."""
    attacker.missing()
    assert _namespace(_keeper(attacker), "mnt") == _namespace(os.getpid(), "mnt")
