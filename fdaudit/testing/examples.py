"""Small finished federations, on whose views an attack is checked."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from fdaudit import protocols
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.adversary.view import View, export_view, open_view
from fdaudit.api import run
from fdaudit.evaluation.stage import Stage
from fdaudit.handout.auxiliary import assumptions, shared
from fdaudit.handout.handed import without_records
from fdaudit.isolation.schema import Trial
from fdaudit.registry import AttackCard
from fdaudit.rng import child
from fdaudit.storage.files import decode
from fdaudit.storage.tables import csv_text
from fdaudit.tasks import TEXT
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.messages import Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import Transcript, read_messages

__all__ = ["AttackInputs", "Example", "FileWatch", "examples_of"]

_FEDERATIONS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("fedavg", {}),
    ("fedavg", {"upload": "gradient", "local_steps": 1}),
    ("fedavg", {"upload": "model_parameters"}),
    ("fedmd", {}),
    ("fedmd", {"share": "soft_labels"}),
    ("fedmd", {"share": "hard_labels"}),
    ("selective-fd", {}),
    ("fkd", {}),
    ("pls", {}),
    ("fedkd", {"distill_rounds": 2}),
    ("dafkd", {}),
    ("fedgen", {}),
    ("fediod", {}),
    ("asyndgan", {}),
)
"""Federations that send each kind of message that attacks read: a protocol, with settings beside `_SHORT`."""
_SHORT: Mapping[str, Any] = {
    "rounds": 2,
    "local_steps": 2,
    "batch_size": 4,
    "warm_up_steps": 4,
    "distill_steps": 2,
    "public_batch": 16,
    "generator_steps": 2,
    "steps_per_round": 2,
    "samples": 8,
    "latent": 4,
    "generator_width": 4,
    "discriminator_width": 4,
    "task_steps": 3,
}
"""Settings that keep a run short, for the protocols that have them."""
_ADVERSARIES = ("server", "client/1", "world")
_WORDS = [
    "red",
    "green",
    "blue",
    "warm",
    "cold",
    "late",
    "soon",
    "here",
    "there",
    "often",
    "never",
    "up",
    "down",
    "left",
    "right",
]
_TEXTS = 300
"""Texts of the federation for attacks on texts."""
_RUNS: dict[str, Example] = {}
_HOME: list[tempfile.TemporaryDirectory[str]] = []
"""The folder of this process's examples; it is removed when the process ends."""


@dataclass(frozen=True, eq=False)
class AttackInputs:
    """What an attack is given on one view.

    Attributes:
        view: the exported view.
        trial: knowledge, task and seed.
        folder: the folder around the view, which also holds a file that the attack must not read.
        allowed: the folders in it that the attack may read.
        reply: answers the questions to the oracle of its task.
    """

    view: View
    trial: Trial
    folder: Path
    allowed: tuple[Path, ...]
    reply: Callable[..., Tensor]

    def without_messages(self) -> AttackInputs:
        """Return the same without messages, records and oracle."""
        view = replace(self.view, messages=(), own_data={}, sizes=())
        task = replace(self.trial.task, oracle=None)
        return replace(self, view=view, trial=replace(self.trial, task=task))

    def reversed(self) -> AttackInputs:
        """Return the same with the candidates in reverse order."""
        reversed_challenges = {}
        for target, c in self.trial.task.challenges.items():
            reversed_challenges[target] = replace(c, x=c.x.flip(0), y=c.y.flip(0), pair=c.pair.flip(0))
        task = replace(self.trial.task, challenges=reversed_challenges)
        return replace(self, trial=replace(self.trial, task=task))


@dataclass(frozen=True, eq=False)
class Example:
    """A finished run of a small federation."""

    spec: Mapping[str, Any]
    stage: Stage

    @property
    def adversaries(self) -> tuple[str, ...]:
        """Return the adversaries on whose views an attack is tried."""
        return tuple(self.stage.case.spec.adversaries)

    @property
    def task(self) -> str:
        """Return the name of the learning task."""
        return self.stage.case.dataset.task.name

    def on_cuda(self) -> Example:
        """Return the same federation, trained on CUDA."""
        return _example({**self.spec, "device": "cuda"})

    @contextmanager
    def adversary(
        self, name: str, card: AttackCard, dtype: torch.dtype | None = None
    ) -> Iterator[AttackInputs]:
        """Yield what an attack with this card is given as an adversary.

        Args:
            name: the adversary.
            card: the attack's card.
            dtype: the type in which all messages were recorded; None: as they are.
        """
        plan = AttackPlan(name=card.name, card=card, target="", own=True, params={}, adversaries=(name,))
        with self.stage.adversary(name) as ready:
            folder = ready.view.directory.parent
            (folder / "vault").mkdir()
            (folder / "vault" / "truth.json").write_text("{}", encoding="utf-8")
            assumed = assumptions(self.stage.case, card)
            seen = self.stage.run.view(name)
            if dtype is not None:
                seen = _recorded_as(dtype, seen, folder / "recorded")
                export_view(seen, folder / "recorded-view")
                ready = replace(ready, view=open_view(folder / "recorded-view"))
            view = ready.view
            if any(one.lacks for one in assumed):
                view = without_records(ready, seen)
            task = shared(self.stage.task(name, plan), assumed[0], len(assumed))
            trial = Trial(knowledge=self.stage.knowledge(ready, card, assumed[0]), task=task, seed=0)
            allowed = (view.directory, ready.view.directory, ready.scratch)
            yield AttackInputs(view, trial, folder, allowed, self.stage.run.answering.reply)


class FileWatch:
    """Notes which files of a folder this thread opens, or lists, while the block lasts.

    Args:
        folder: the folder.
        allowed: folders in it that may be read.

    Attributes:
        opened: the others that were read.
    """

    _active: FileWatch | None = None
    _hooked = False

    def __init__(self, folder: Path, allowed: Sequence[Path]) -> None:
        self._folder, self._allowed = folder.resolve(), [path.resolve() for path in allowed]
        self.opened: list[str] = []
        self._thread = get_ident()

    def __enter__(self) -> FileWatch:
        self._thread = get_ident()
        if not FileWatch._hooked:  # a hook stays as long as the process does
            sys.addaudithook(FileWatch._note)
            FileWatch._hooked = True
        FileWatch._active = self
        return self

    def __exit__(self, *_: object) -> None:
        FileWatch._active = None

    @staticmethod
    def _note(event: str, arguments: tuple[Any, ...]) -> None:
        watch = FileWatch._active
        if watch is None or event not in ("open", "os.listdir", "os.scandir") or get_ident() != watch._thread:
            return
        if isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = Path(os.path.abspath(os.fsdecode(arguments[0])))
            inside = path == watch._folder or watch._folder in path.parents
            if inside and not any(path == one or one in path.parents for one in watch._allowed):
                watch.opened.append(path.relative_to(watch._folder.parent).as_posix())


def examples_of(card: AttackCard, spec: Mapping[str, Any] | None = None) -> Iterator[Example]:
    """Yield finished federations to try an attack on: that of a spec, or those that send what its card needs."""
    if spec is not None:
        adversaries = list(spec.get("adversaries", _ADVERSARIES))
        yield _example({**spec, "attacks": [], "adversaries": adversaries})
        return
    oracle = any(need.startswith("oracle") for need in card.needs)
    for name, params in _FEDERATIONS:
        protocol = protocols.REGISTRY.describe(name)
        kinds = {message["kind"] for message in protocol.declared_messages}
        if not card.needs or kinds & set(card.needs) or (oracle and protocol.oracles):
            fields = protocols.REGISTRY.load(name).Config.model_fields
            settings: dict[str, Any] = {}
            for field, value in _SHORT.items():
                if field in fields:
                    settings[field] = value
            yield _example(_spec(name, {**settings, **params}, card))


def _recorded_as(dtype: torch.dtype, view: View, folder: Path) -> View:
    """Return a view of the same messages, recorded in a folder with values of another type."""
    with Transcript(folder, secret=b"salts of the checks") as transcript:
        for message in read_messages(view.directory):
            tensors = readable(decode(read_payload(view.directory, message)))
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    tensors[name] = tensor.to(dtype)
            transcript.append(replace(message, bytes_on_wire=0), tensors)
    numbers = {message.seq for message in view.messages}
    messages: list[Message] = []
    for message in read_messages(folder):
        if message.seq in numbers:
            messages.append(message)
    return replace(view, messages=tuple(messages), directory=folder)


def _spec(protocol: str, params: Mapping[str, Any], card: AttackCard) -> dict[str, Any]:
    """Return the spec of a federation, on images or, for an attack on texts alone, on random texts of two classes."""
    changes: dict[str, Any] = {
        "dataset": {"name": "digits", "limit": 400},
        "splits": {"test": 0.1, "proxy": 0.2, "auxiliary": 0.3, "candidates": 8},
        "model": {"name": "mlp", "params": {"widths": [8]}},
    }
    if card.tasks == (TEXT.name,):
        texts = _home() / "texts.csv"
        if not texts.exists():
            draws = child(0, "texts")
            rows = [["text", "label"]]
            for number in range(_TEXTS):
                words = torch.randint(len(_WORDS), (6,), generator=draws).tolist()
                rows.append([" ".join(_WORDS[word] for word in words), str(number % 2)])
            texts.write_text(csv_text(rows), encoding="utf-8")
        changes["dataset"] = {"name": f"text:{texts}", "length": 10}
        changes["model"] = {"name": "transformer", "params": {"width": 8}}
        params = {**params, "batch_size": 2}
    return small_spec(
        **changes,
        protocol={"name": protocol, "params": dict(params)},
        adversaries=list(_ADVERSARIES),
        victims=2,
    )


def _home() -> Path:
    if not _HOME:
        _HOME.append(tempfile.TemporaryDirectory(prefix="fdaudit-"))
    return Path(_HOME[0].name)


def _example(spec: Mapping[str, Any]) -> Example:
    """Return a finished run of a spec, which is run once in a process."""
    key = repr(sorted(spec.items()))
    if key not in _RUNS:
        finished = run(dict(spec), _home() / f"run-{len(_RUNS)}")
        _RUNS[key] = Example(spec, Stage(finished.opened))
    return _RUNS[key]
