"""The order of the packages, and what the rooms may import."""

from __future__ import annotations

ORDER = (  # lower ones first: a unit imports nothing of ours but itself and what stands before it
    "names",
    "errors",
    "limits",
    "rng",
    "parallel",
    "config",
    "events",
    "kinds",
    "tasks",
    "types",
    "goals",
    "progress",
    "storage",
    "spec",
    "registry",
    "transcript",
    "recording",
    "result",
    "metrics",
    "data",
    "models",
    "training",
    "adversary",
    "accounting",
    "defenses",
    "deviations",
    "federation",
    "protocols",
    "attacks",
    "reports",
    "isolation",
    "planning",
    "handout",
    "scoring",
    "evaluation",
    "audit",
    "api",
    "remedies",
    "twin",
    "sweeps",
    "attestation",
    "importing",
    "cluster",
    "quickstart",
    "integrations",
    "cli",
    "testing",
    "fdaudit",
    "__main__",
)
STANDALONE = {"recording.recorder"}
"""Modules that import nothing of ours. Every unit but the rooms may import them."""
ROOMS = ("attacks", "defenses", "deviations", "protocols", "reports")
FACADES = ("fdaudit", "fdaudit.__main__")

WORDS = {"errors", "limits", "rng", "config", "events", "kinds", "tasks", "types", "goals", "registry"}
"""Modules of the root that every room uses."""
ROOMS_MAY = {
    "attacks": WORDS
    | {"adversary", "training", "models"}
    | {"storage.cache", "storage.digests", "spec.schema", "transcript.messages", "transcript.samples"},
    "defenses": WORDS | {"transcript", "accounting", "models", "training"},
    "deviations": WORDS | {"adversary", "transcript", "models", "spec.schema"},
    "protocols": WORDS | {"transcript", "models", "training", "federation", "data"},
    "reports": WORDS | {"result", "transcript", "storage.digests", "storage.files", "storage.tables"},
}
"""Packages, and single modules of others, that a room may import besides itself."""
FROM_TRANSCRIPT_REPORTS_MAY = {"verify_transcript"}
MOST_MODULES = 12
"""Modules of one package, its `__init__` not counted."""


def may(unit: str) -> set[str]:
    """The units, and single modules of others, that a unit may import, itself included."""
    if unit in ROOMS_MAY:
        return {unit, *ROOMS_MAY[unit]}
    return {*ORDER[: ORDER.index(unit) + 1], *STANDALONE}
