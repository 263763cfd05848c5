"""What the runs of several tasks are checked for alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fdaudit
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.rng import child
from fdaudit.tasks import Task
from fdaudit.transcript.encoding import Naming
from fdaudit.types import AttackTask, Challenge

from ..helpers.protocol_cases import run as run_protocol
from ..helpers.run_cases import tree


def check_repeated(finished: fdaudit.Run, folder: Path) -> None:
    """Check that a run again from the same seed gives the same bytes."""
    again = fdaudit.run(finished.directory / "spec.yaml", folder, seed_from=finished.directory)
    fdaudit.report(again)
    timed = ("timings.json", "report/index.html", "report/index.json", "report/appendix.html")
    assert tree(again.directory, timed) == tree(finished.directory, timed)


def check_resumed(case: tuple[str, dict[str, Any]], folder: Path, **federation: Any) -> None:
    """Check that a protocol that stops after a round goes on bit for bit, and that its figures are finite."""
    whole = run_protocol(folder / "whole", *case, **federation)
    part = run_protocol(folder / "part", *case, **federation, stop_after=0)
    resume = (1, part.states[-1], part.positions[-1])
    rest = run_protocol(part.folder, *case, **federation, resume=resume)
    assert (rest.log, rest.states[-1]) == (whole.log, whole.states[-1])
    for done in whole.rounds:
        assert all(np.isfinite(v) for v in done.losses.values())
        assert all(torch.isfinite(t).all() for model in done.models.values() for t in model.values())


def first_gradient(
    folder: Path, clients: Mapping[str, Any], task: Task
) -> tuple[Mapping[str, Tensor], nn.Module, Tensor, Tensor]:
    """Return the first gradient that client/1 sends, the network that it is of, and the batch behind it."""
    ran = run_protocol(folder, "fedavg", {"upload": "gradient"}, rounds=1, clients=clients, task=task)
    (sent,) = [m for m in ran.messages if m.kind == "gradient" and m.sender == "client/1"]
    batch = ran.rounds[0].batches[sent.seq]
    module = ran.setting.trainers["server"].architecture.build(child(0, "any"))
    module.load_state_dict(ran.setting.initial["server"])
    return ran.tensors(sent), module, clients["client/1"].x[batch], clients["client/1"].y[batch]


def loss_scores(answers: Tensor, y: Tensor, task: Task, **config: Any) -> Tensor:
    """Return the scores of `loss-threshold` for labels that an oracle answers so."""
    attack = fdaudit.attacks.REGISTRY.load("loss-threshold")
    oracle = SimpleNamespace(answers="soft", budget=10, remaining=10, models=(), query=lambda x: answers)
    x = torch.zeros(2, 1, 4, 4)
    challenge = Challenge(target="client/0", x=x, y=y, pair=torch.tensor([0, 0]))
    asked = AttackTask(targets=("client/0",), challenges={"client/0": challenge}, oracle=oracle)
    view = SimpleNamespace(messages=(), naming=Naming(), hyperparameters={})
    (guess,) = attack(attack.Config(**config)).run(view, Knowledge(task=task), asked, child(0, "a"))
    return guess.scores
