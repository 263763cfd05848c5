"""fdaudit: privacy auditing, attacks and defences for federated distillation.

The names below are loaded at first use, so that importing the package stays fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from fdaudit.api import attack, compare, load, report, run
    from fdaudit.attestation.bundle import evidence
    from fdaudit.attestation.public import public_evidence
    from fdaudit.audit.joint_ledger import JointRuns, joint
    from fdaudit.audit.red_team import export_view, score
    from fdaudit.audit.run import Run
    from fdaudit.errors import FdauditError
    from fdaudit.importing.records import import_record
    from fdaudit.spec.schema import Spec, load_spec
    from fdaudit.spec.trust import trust_code

__all__ = [
    "FdauditError",
    "JointRuns",
    "Run",
    "Spec",
    "attack",
    "compare",
    "evidence",
    "export_view",
    "import_record",
    "joint",
    "load",
    "load_spec",
    "public_evidence",
    "report",
    "run",
    "score",
    "trust_code",
]

_HOMES = {
    "FdauditError": "fdaudit.errors",
    "JointRuns": "fdaudit.audit.joint_ledger",
    "Run": "fdaudit.api",
    "Spec": "fdaudit.spec.schema",
    "attack": "fdaudit.api",
    "compare": "fdaudit.api",
    "evidence": "fdaudit.attestation.bundle",
    "export_view": "fdaudit.audit.red_team",
    "import_record": "fdaudit.importing.records",
    "joint": "fdaudit.audit.joint_ledger",
    "load": "fdaudit.api",
    "load_spec": "fdaudit.spec.schema",
    "public_evidence": "fdaudit.attestation.public",
    "report": "fdaudit.api",
    "run": "fdaudit.api",
    "score": "fdaudit.audit.red_team",
    "trust_code": "fdaudit.spec.trust",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("fdaudit")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fdaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
