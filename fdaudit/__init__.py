"""fdaudit: privacy auditing, attacks and defences for federated distillation.

The names below load what they need when they are first used, so that importing the package stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdaudit.attestation.bundle import evidence
    from fdaudit.errors import FdauditError
    from fdaudit.joint_ledger import JointRuns, joint
    from fdaudit.places import mirrored
    from fdaudit.red_team import export_view, score
    from fdaudit.run import Run
    from fdaudit.runs import attack, compare, load, report, run
    from fdaudit.spec import Spec, load_spec

__all__ = [
    "FdauditError",
    "JointRuns",
    "Run",
    "Spec",
    "attack",
    "compare",
    "evidence",
    "export_view",
    "joint",
    "load",
    "load_spec",
    "mirrored",
    "report",
    "run",
    "score",
]

_HOMES = {
    "FdauditError": "fdaudit.errors",
    "JointRuns": "fdaudit.joint_ledger",
    "Run": "fdaudit.runs",
    "Spec": "fdaudit.spec",
    "attack": "fdaudit.runs",
    "compare": "fdaudit.runs",
    "evidence": "fdaudit.attestation.bundle",
    "export_view": "fdaudit.red_team",
    "joint": "fdaudit.joint_ledger",
    "load": "fdaudit.runs",
    "load_spec": "fdaudit.spec",
    "mirrored": "fdaudit.places",
    "report": "fdaudit.runs",
    "run": "fdaudit.runs",
    "score": "fdaudit.red_team",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fdaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
