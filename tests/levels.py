"""The levels of the modules, and what each may import.

One entry a module, or a package of which all modules are on one level. A module that is in no entry fails.
"""

from __future__ import annotations

VOCABULARY = (  # level 0, lower ones first: nothing of ours but what stands further up in this list
    "errors",
    "tables",
    "limits",
    "rng",
    "events",
    "types",
    "config",
    "messages",
    "locks",
    "storage",
    "timings",
    "encoding",
    "documents",
    "privacy",
    "spec",
    "registry",
    "heap",
    "optimizers",
    "parallel",
    "queues",
    "pool",
    "scratch",
    "writer",
    "cache",
)
CORE = (  # level 1, lower ones first: the vocabulary, and what stands further up in this list
    "models",
    "data",
    "execution",
    "objectives",
    "separation",
    "guard",
    "jobs",
    "copies",
    "training",
    "trainers",
    "learner",
    "vault",
    "payloads",
    "transcript",
    "log",
    "wire",
    "local",
    "view",
    "accounting",
    "oracle",
    "knowledge",
    "federation",
    "checkpoints",
    "manifest",
    "encoder",
    "evaluator",
    "refutation",
)
MEASURES = ("metrics", "result")  # level 4
JOINTS = (  # level 6: joins the stages, may import everything
    "rehearsal",
    "attached",
    "isolation",
    "presets",
    "plan",
    "auxiliary",
    "simulation",
    "galleries",
    "extraction",
    "class_truth",
    "truth",
    "scoring",
    "oracle_access",
    "message_sizes",
    "answering",
    "controls",
    "handed",
    "cells",
    "elsewhere",
    "attack_pool",
    "attack_stage",
    "bookkeeping",
    "client_coins",
    "checks",
    "family",
    "containment",
    "audit",
    "attack_worker",
    "conclusion",
    "published",
    "runs",
    "joint_ledger",
    "ledger_files",
    "guesses",
    "red_team",
    "suite",
    "attestation",
    "sweep_levels",
    "sweep_grid",
    "sweep_index",
    "sweep_worker",
    "sweep",
    "parcels",
    "ray_worker",
    "ray_tasks",
    "ray_connection",
    "ray_executor",
    "ray_attack_worker",
    "ray_attacks",
    "sweep_curves",
    "explain",
    "terminal",
    "remote",
    "needs",
    "mirror",
    "places",
    "evidence_commands",
    "privacy_commands",
    "red_team_commands",
    "sweep_commands",
    "cli",
)
ROOMS = ("attacks", "defenses", "protocols", "reports")
FACADES = ("fdaudit", "fdaudit.__main__")  # load level 6, late

ATTACKS_MAY = {*VOCABULARY, "models", "training", "view", "oracle", "knowledge"}
DEFENSES_MAY = PROTOCOLS_MAY = {*VOCABULARY, *CORE} - {"vault"}
MEASURES_MAY = {*VOCABULARY, "vault", "refutation"}
REPORTS_MAY = {*VOCABULARY, "result", "transcript"}
FROM_TRANSCRIPT_REPORTS_MAY = {"verify_transcript"}


def may(unit: str) -> set[str]:
    """The units that a unit may import, itself included."""
    if unit in VOCABULARY:
        return {unit, *VOCABULARY[: VOCABULARY.index(unit)]}
    if unit in CORE:
        return {unit, *VOCABULARY, *CORE[: CORE.index(unit)]}
    rooms = {
        "attacks": ATTACKS_MAY,
        "defenses": DEFENSES_MAY,
        "protocols": PROTOCOLS_MAY,
        "reports": REPORTS_MAY,
    }
    if unit in rooms:
        return {unit, *rooms[unit]}
    if unit in MEASURES:
        return {unit, *MEASURES_MAY}
    return {*VOCABULARY, *CORE, *MEASURES, *JOINTS, *ROOMS, "fdaudit"}
