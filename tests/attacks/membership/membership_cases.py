"""A server's view made by hand, and an adversary's knowledge around it, for tests of membership attacks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from fdaudit.attacks.membership._study import Study, before_answers, drawn, trained

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import view_of
from fdaudit.models import architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Trainer
from fdaudit.transcript.transcript import Transcript
from fdaudit.types import AttackTask, Challenge

from ...helpers.transcript_cases import message

SHAPE, CLASSES = (1, 8, 8), 4


def network(widths=(16,)):
    return architecture(ModelSpec(name="mlp", params={"widths": list(widths)}), SHAPE, CLASSES)


def core(made):
    execution = Execution.resolve(device="cpu", threads=1, convolutions=False)
    return Trainer(made, execution)


def knowledge(x, y, *, public=None, widths=(16,), **changes):
    made = network(widths)
    given = {
        "architecture": made,
        "auxiliary": (x, y),
        "train": core(made),
        "public": public,
        "classes": CLASSES,
        "encode": lambda images: images.flatten(1)[:, ::4],
    }
    return Knowledge(**{**given, **changes})


def task(x, y, target="client/0", **changes):
    pairs = torch.arange(len(y) // 2).repeat_interleave(2)
    challenge = Challenge(target=target, x=x, y=y, pair=pairs)
    return AttackTask(targets=(target,), challenges={target: challenge}, **changes)


def records(n, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return torch.rand(n, *SHAPE, generator=drawn), torch.randint(CLASSES, (n,), generator=drawn)


def studied(seen, known, challenge: Challenge, count: int, *, most_steps: int) -> Study:
    """Return trained shadows of a victim as they answer first, with one candidate of each pair."""
    study = drawn(seen, known, challenge, count, paired=True, seed=0)
    return trained(known, study, training=before_answers(seen.hyperparameters), most_steps=most_steps)


@contextmanager
def view(folder: Path, messages, adversary="server", clients=4, hyperparameters: Mapping | None = None):
    """The view of messages (sender, receiver, kind, tensors[, round[, step[, defences]]])."""
    folder.mkdir(exist_ok=True)
    with Transcript(folder, secret=b"k" * 32) as transcript:
        for sender, receiver, kind, tensors, *more in messages:
            round_, step, defenses = (*more, *(0, 0, ())[len(more) :])
            draft = message(kind, sender, (receiver,), round=round_, step=step, defenses=tuple(defenses))
            transcript.append(draft, tensors)
    parties = ("server", *(f"client/{k}" for k in range(clients)), "world")
    yield view_of(folder, adversary, parties=parties, hyperparameters=hyperparameters or {})
