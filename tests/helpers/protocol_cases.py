"""fdaudit's protocols with short settings, for `fdaudit.testing`; shared by the tests of protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY

from fdaudit.config import Config, validate
from fdaudit.tasks import SINGLE_LABEL, Task
from fdaudit.testing.federation import common
from fdaudit.testing.running import ProtocolRun, run_protocol

FAST = {"lr": 1.0, "local_steps": 12}
"""Makes a few records enough to change a predicted class."""

VOTES = {"outputs": "votes", "weights": "uniform", "shares": "uniform"}
"""FedIOD with labels in place of logits."""

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"upload": "gradient"}),
    ("fedavg", {"upload": "model_update", "local_steps": 2, "momentum": 0.5}),
    ("fedavg", {"upload": "model_parameters", "local_epochs": 1, "mu": 0.1}),
    ("fedavg", {"fraction": 0.34, "local_steps": 1}),
    ("fedavg", {"optimizer": "adam", "send_state": True, "local_steps": 1, "clip": {"norm": 0.5}}),
    ("fedavg", {"server_momentum": 0.9, "weighting": "uniform", "fraction": 0.67}),
    ("fedavg", {"aggregation": "secure", "weighting": "uniform", "fraction": 0.67, "momentum": 0.5}),
    ("fedavg", {"aggregation": "secure", "weighting": "uniform", "server_momentum": 0.5}),
    ("fedkd", {"distill_rounds": 3, "temperature": 3.0, "weights": "uniform", "grid": "eq3", "levels": 6}),
    ("fedkd", {"levels": None, "noise_at": "client", "clip": 5.0, "distill_optimizer": "sgd"}),
    ("fedkd", {"z_max": 4.0, "gamma": None, "local_steps": 3, "final_lr": 0.01}),
    ("fedkd", {"ensemble": "votes", "temperature": 2.0, "distill_optimizer": "sgd", **FAST}),
    ("ds-fl", {"aggregation": "sa", "share": "hard_labels", "public_batch": 4, **FAST}),
    ("cronus", {"sigma": 0.01, "public_batch": 4, "warm_up_steps": 0}),
    # By a mean of votes: the filter would ignore one client's that change, as it should.
    ("cronus", {"share": "hard_labels", "sigma": 0.24, **FAST}),
    ("fedgems", {"epsilon": 0.0, "public_batch": 4, "warm_up_steps": 0}),
    ("fedgems", {"epsilon": 1.0, "distill_batch_size": None, **FAST}),
    ("feddf", {"fraction": 0.67, "distill_batch_size": 3, "temperature": 2.0}),
    ("fedftg", {"fraction": 0.67, "ensemble": "uniform", "labels": "uniform", "generator_steps": 2}),
    ("fedftg", {"iterations": 0}),
    ("fedgen", {"share": "head", "fraction": 0.67, "momentum": 0.5, "weighting": "uniform"}),
    (
        "fedgen",
        {"ensemble": "logits", "labels": "classes", "beta": 0.0, "diversity": 0.0, "final_lr": 1e-3},
    ),
    ("feded", {"share": "hard_labels", "distill_batch_size": 2, "distill_lr": 0.05, **FAST}),
    ("fedmd", {"share": "hard_labels", "public_batch": 4, "warm_up_steps": 0, **FAST}),
    ("fedmd", {"share": "soft_labels", "order": "revisit-digest", "local_steps": 1}),
    ("fkd", {"share": "hard", "gamma": 0.5, "momentum": 0.5, **FAST}),
    ("pls", {"share": "hard", **FAST, "local_steps": 40}),
    (
        "selective-fd",
        {"labels": "soft", "public_batch": 5, "tau_server": 1.2, "space": "features", "landmarks": 5},
    ),
    ("selective-fd", {"selector": "confidence", "local_steps": 0, "tau_client": 0.1}),
    ("selective-fd", {"selector": "energy", "labels": "soft", "warm_up_steps": 0}),
    ("selective-fd", {"selector": "none", "order": "local-first"}),
    ("selective-fd", {"ensemble": "votes", "selector": "confidence", "tau_client": 0.1}),
    ("selective-fd", {"ensemble": "votes", "aggregator": "secure", "selector": "none", "public_batch": 5}),
    ("standalone", {"momentum": 0.5}),
    ("centralized", {"weight_decay": 0.01}),
    ("dafkd", {"upload_discriminator": False, "fraction": 0.67, "weighting": "samples"}),
    ("dafkd", {"share_extractor": False}),
    (
        "dafkd",
        {"recognised": 0.0, "diversity": 0.0, "weights": "uniform", "local_steps": 2, "momentum": 0.5},
    ),
    ("fediod", {"weights": "samples", "mimic": 0.5, "student_steps": 1, "replay": 0}),
    ("fediod", {"weights": "uniform", "shares": "uniform", "temperature": 2.0, "local_steps": 3}),
    ("fediod", {"gradients_from": "one", "gan_total": "sum"}),
    ("fediod", {**VOTES, "gradients_from": "one", **FAST}),
    ("fediod", {**VOTES, "gan": 0.0, "student_steps": 2, "replay": 0, **FAST}),
]
"""Protocols with settings; `every_case` adds each registered protocol with its defaults."""


SMALL = {
    "batch_size": 4,
    "distill_batch_size": 5,
    "distill_rounds": 1,
    "distill_steps": 2,
    "warm_up_steps": 12,
    # selective-fd
    "uniform": 20,
    # dafkd
    "pseudo_samples": 5,
    # fedftg
    "iterations": 2,
    # fedgen
    "generated": 5,
    # fedgems
    "server_epochs": 2,
    "server_batch_size": 5,
    # fediod
    "steps_per_round": 2,
    "samples": 4,
    "latent": 3,
    "generator_width": 2,
    "discriminator_width": 2,
    "replay": 3,
    # asyndgan
    "kept": 3,
    "task_steps": 3,
}
"""Settings that keep a run short, for the protocols that have them."""


def every_case() -> list[tuple[str, dict[str, Any]]]:
    return [*((name, {}) for name in REGISTRY.names()), *CASES]


def thorough_beyond_defaults(cases: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the cases of a test that runs each anew; all but the defaults are left to the thorough tests."""
    return [pytest.param(c, id=case_id(c), marks=[pytest.mark.thorough] if c[1] else []) for c in cases]


def case_id(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(f"{k}={v}" for k, v in case[1].items())])


def configured(name: str, params: Mapping[str, Any], rounds: int = 3) -> Config:
    cls = REGISTRY.load(name)
    small = {name: value for name, value in SMALL.items() if name in cls.Config.model_fields}
    if name in ("fedkd", "fediod") and "local_steps" not in params:  # by default 50 epochs and 20
        small["local_epochs"] = 5
    if name == "fedgen":  # by default 50
        small["generator_steps"] = 2
    if name == "selective-fd":  # by default it sends predicted classes
        small["lr"] = FAST["lr"]
    if "rounds" in cls.Config.model_fields:
        small["rounds"] = rounds
    return validate(cls.Config, {**small, **params})


def run(
    folder: Path,
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    rounds: int = 3,
    cls: Any = None,
    unlike: bool = False,
    task: Task = SINGLE_LABEL,
    threads: int | None = None,
    **options: Any,
) -> ProtocolRun:
    """Runs a registered protocol, or `cls` in its place, in few rounds; `options` are those of `run_protocol`."""
    cls = cls or REGISTRY.load(name)
    shared = common(unlike, task)
    if threads is not None:
        shared = replace(shared, execution=replace(shared.execution, threads=threads))
    return run_protocol(folder, cls, configured(name, params or {}, rounds), shared=shared, **options)
