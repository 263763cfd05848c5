"""The data that pass between the auditor and an attack, by schema: cases to the attack, guesses back.

`packed` and `unpacked` turn an attack's inputs into JSON values with tensors, and back. Guesses may come from
untrusted code: `guesses_of` accepts only plain values of the given types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common
from fdaudit.isolation.frames import MOST_BYTES, MalformedError, Tensors
from fdaudit.isolation.rehearsal import Rehearsal
from fdaudit.models import Architecture
from fdaudit.models.declared import GeneratorCard
from fdaudit.names import visible
from fdaudit.training.encoder import TaskEncoder
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Trainer
from fdaudit.types import (
    AttackTask,
    Challenge,
    Extraction,
    Guess,
    LabelDistribution,
    Membership,
    Reconstruction,
    TextReconstruction,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Trial", "guesses_of", "packed", "packed_guesses", "unpacked"]

_LONGEST_NOTE = 500
Pair = tuple["Tensor", "Tensor"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """The inputs of an attack, except the view, which is in a directory.

    Attributes:
        knowledge: the adversary's assumed knowledge; with fdaudit's own training core, encoder and rehearsal.
        task: victims, challenges, and the terms of an oracle.
        seed: seed of the attack's generator.
    """

    knowledge: Knowledge
    task: AttackTask
    seed: int


# -- the case ---------------------------------------------------------------------------------------------------


def packed(case: Trial, tensors: Tensors) -> dict[str, Any]:
    """Return a case as JSON values; its tensors are added to the others.

    Raises:
        TypeError: the knowledge holds an object that cannot be described.
    """
    return {
        "knowledge": _packed_knowledge(case.knowledge, tensors),
        "task": _packed_task(case.task, tensors),
        "seed": case.seed,
    }


def unpacked(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Trial:
    """Return the case that `packed` wrote, with new objects."""
    return Trial(
        knowledge=_knowledge_of(value["knowledge"], tensors),
        task=_task_of(value["task"], tensors),
        seed=int(value["seed"]),
    )


def _packed_knowledge(known: Knowledge, tensors: Tensors) -> dict[str, Any]:
    return {
        "architecture": None if known.architecture is None else known.architecture.described,
        "auxiliary": None if known.auxiliary is None else _pair(known.auxiliary, tensors),
        "train": None
        if known.train is None
        else {
            "network": _described(known.train, Trainer).architecture.described,
            "execution": known.train.execution.described,
        },
        "encode": None if known.encode is None else _packed_encoder(known.encode, tensors),
        "rehearse": None if known.rehearse is None else _packed_rehearsal(known.rehearse, tensors),
        "public": _optional(known.public, tensors),
        "public_labels": _optional(known.public_labels, tensors),
        "initial": known.initial,
        "classes": known.classes,
        "generator": None if known.generator is None else asdict(known.generator),
        "task": known.task,
    }


def _knowledge_of(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Knowledge:
    train, encode, rehearse = value["train"], value["encode"], value["rehearse"]
    return Knowledge(
        architecture=None if value["architecture"] is None else _network(value["architecture"]),
        auxiliary=None if value["auxiliary"] is None else _pair_of(value["auxiliary"], tensors),
        train=None if train is None else Trainer(_network(train["network"]), Execution(**train["execution"])),
        encode=None if encode is None else _encoder_of(encode, tensors),
        rehearse=None if rehearse is None else _rehearsal_of(rehearse, tensors),
        public=_optional_of(value["public"], tensors),
        public_labels=_optional_of(value["public_labels"], tensors),
        initial=value["initial"],
        classes=value["classes"],
        generator=None if value["generator"] is None else _generator(value["generator"]),
        task=value["task"],
    )


def _packed_encoder(encode: Any, tensors: Tensors) -> dict[str, Any]:
    encoder = _described(encode, TaskEncoder)
    return {
        "auxiliary": _pair(encoder.auxiliary, tensors),
        "classes": encoder.classes,
        "execution": encoder.execution.described,
        "seed": encoder.seed,
    }


def _encoder_of(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TaskEncoder:
    return TaskEncoder(
        _pair_of(value["auxiliary"], tensors),
        classes=value["classes"],
        execution=Execution(**value["execution"]),
        seed=value["seed"],
    )


def _packed_rehearsal(rehearse: Any, tensors: Tensors) -> dict[str, Any]:
    rehearsal = _described(rehearse, Rehearsal)
    common = rehearsal.common
    return {
        "setting": dict(rehearsal.setting),
        "networks": [n.described for n in (common.networks.shared, *common.networks.clients)],
        "execution": common.execution.described,
        "public": tensors.name(common.public),
        "public_labels": _optional(common.public_labels, tensors),
        "encode": None if common.encode is None else _packed_encoder(common.encode, tensors),
        "task": common.task,
        "adversary": rehearsal.adversary,
        "shared": _pair(rehearsal.shared, tensors),
        "own": None if rehearsal.own is None else str(rehearsal.own),
        "everybody": None if rehearsal.everybody is None else str(rehearsal.everybody),
    }


def _rehearsal_of(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Rehearsal:
    shared, *clients = map(_network, value["networks"])
    return Rehearsal(
        setting=value["setting"],
        common=Common(
            networks=Networks(shared, tuple(clients)),
            execution=Execution(**value["execution"]),
            public=tensors[value["public"]],
            public_labels=_optional_of(value["public_labels"], tensors),
            encode=None if value["encode"] is None else _encoder_of(value["encode"], tensors),
            task=value["task"],
        ),
        adversary=value["adversary"],
        shared=_pair_of(value["shared"], tensors),
        own=None if value["own"] is None else Path(value["own"]),
        everybody=None if value["everybody"] is None else Path(value["everybody"]),
    )


def _packed_task(task: AttackTask, tensors: Tensors) -> dict[str, Any]:
    oracle = task.oracle
    return {
        "targets": list(task.targets),
        "classes": list(task.classes),
        "challenges": [
            {
                "target": target,
                "x": tensors.name(c.x),
                "y": tensors.name(c.y),
                "pair": tensors.name(c.pair),
                "design": c.design,
            }
            for target, c in task.challenges.items()
        ],
        "oracle": None
        if oracle is None
        else {"answers": oracle.answers, "budget": oracle.budget, "models": list(oracle.models)},
    }


def _task_of(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> AttackTask:
    terms = value["oracle"]
    return AttackTask(
        targets=tuple(value["targets"]),
        classes=tuple(value["classes"]),
        challenges={
            c["target"]: Challenge(
                target=c["target"],
                x=tensors[c["x"]],
                y=tensors[c["y"]],
                pair=tensors[c["pair"]],
                design=c["design"],
            )
            for c in value["challenges"]
        },
        oracle=None if terms is None else Oracle(terms["answers"], terms["budget"], tuple(terms["models"])),
    )


def _network(value: Mapping[str, Any]) -> Architecture:
    shape = tuple(value["input_shape"])
    return Architecture(value["name"], value["params"], shape, value["classes"], value.get("words", 0))


def _generator(value: Mapping[str, Any]) -> GeneratorCard:
    return GeneratorCard(**{**value, "takes": tuple(value["takes"])})


def _pair(pair: Pair, tensors: Tensors) -> list[str]:
    return [tensors.name(t) for t in pair]


def _pair_of(names: Sequence[str], tensors: Mapping[str, Tensor]) -> Pair:
    x, y = names
    return tensors[x], tensors[y]


def _optional(tensor: Tensor | None, tensors: Tensors) -> str | None:
    return None if tensor is None else tensors.name(tensor)


def _optional_of(name: str | None, tensors: Mapping[str, Tensor]) -> Tensor | None:
    return None if name is None else tensors[name]


def _described(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"an attack in a process of its own cannot be given a {type(value).__name__}")
    return value


# -- the guesses ------------------------------------------------------------------------------------------------


def packed_guesses(guesses: Sequence[Guess], tensors: Tensors) -> list[dict[str, Any]]:
    """Return guesses as JSON values with tensors.

    Raises:
        TypeError: the attack returned something other than guesses.
    """
    return [_packed_guess(guess, tensors) for guess in guesses]


def _packed_guess(guess: Guess, tensors: Tensors) -> dict[str, Any]:
    if isinstance(guess, Membership):
        made = None if guess.generated is None else tensors.name(guess.generated)
        scores, note = tensors.name(guess.scores), str(guess.note)
        return {
            "kind": "membership",
            "target": guess.target,
            "scores": scores,
            "generated": made,
            "note": note,
            "rehearsed": None if guess.rehearsed is None else _finite(float(guess.rehearsed)),
        }
    if isinstance(guess, LabelDistribution):
        return {"kind": "labels", "target": guess.target, "distribution": tensors.name(guess.distribution)}
    if isinstance(guess, Extraction):
        copy = {str(name): tensors.name(t) for name, t in guess.parameters.items()}
        return {
            "kind": "extraction",
            "target": guess.target,
            "parameters": copy,
            "answers": int(guess.answers),
        }
    if isinstance(guess, TextReconstruction):
        return {
            "kind": "text-reconstruction",
            "target": guess.target,
            "messages": [int(seq) for seq in guess.messages],
            "words": tensors.name(guess.words),
            "texts": None if guess.texts is None else tensors.name(guess.texts),
            "objective": None if guess.objective is None else _finite(float(guess.objective)),
        }
    if not isinstance(guess, Reconstruction):
        raise TypeError(f"the attack returned a {type(guess).__name__} among its guesses")
    return {
        "kind": "reconstruction",
        "target": guess.target,
        "messages": [int(seq) for seq in guess.messages],
        "images": tensors.name(guess.images),
        "labels": None if guess.labels is None else tensors.name(guess.labels),
        "objective": None if guess.objective is None else _finite(float(guess.objective)),
        "evaluations": int(guess.evaluations),
        "note": str(guess.note),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def guesses_of(value: Any, tensors: Mapping[str, Tensor], most: int) -> tuple[Guess, ...]:
    """Return the guesses that an attack's process sent.

    Args:
        value: their JSON values.
        tensors: the frame's tensors, by name.
        most: the most guesses that the case can need; no tensor is used more often.

    Raises:
        MalformedError: a field is missing or has another type, or the guesses are too many or too large.
    """
    try:
        if len(_typed(value, list)) > most:
            raise ValueError(f"{len(value)} guesses are more than the case's {most}")
        sent = _Sent(tensors, most)
        return tuple(_guess_of(one, sent) for one in value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {str(error)[:_LONGEST_NOTE]}"
        raise MalformedError(f"the attack's process sent no guesses: {said}") from None


class _Sent:
    """The tensors of a frame of guesses. Each is converted once; all uses count, with their bytes after conversion.

    Args:
        tensors: by name.
        most: the most uses of one tensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor], most: int) -> None:
        self._tensors, self._most = tensors, most
        self._uses: dict[str, int] = {}
        self._converted: dict[str, Tensor] = {}
        self._bytes = 0

    def floats(self, name: Any) -> Tensor:
        """Return a tensor of real numbers; whole numbers become float64."""
        tensor = self._tensors[_typed(name, str)]
        if tensor.is_complex():
            raise TypeError(f"needs real numbers, got {tensor.dtype}")
        return self._used(name, wide=not tensor.is_floating_point())

    def integers(self, name: Any, *, wide: bool = False) -> Tensor:
        """Return a tensor of whole numbers; if `wide`, as int64."""
        tensor = self._tensors[_typed(name, str)]
        if tensor.is_floating_point() or tensor.is_complex():
            raise TypeError(f"needs integers, got {tensor.dtype}")
        return self._used(name, wide=wide, whole=True)

    def _used(self, name: str, *, wide: bool, whole: bool = False) -> Tensor:
        """Return a tensor, of 64 bits a number if `wide`, unless that is one use or byte too many."""
        tensor = self._tensors[name]
        self._uses[name] = self._uses.get(name, 0) + 1
        if self._uses[name] > self._most:
            raise ValueError(f"the tensor {name!r:.40} is used more than {self._most} times")
        width = 8 if wide else tensor.element_size()
        self._bytes += width * math.prod(max(1, size) for size in tensor.shape)  # an empty tensor can be long
        if self._bytes > MOST_BYTES:
            raise ValueError(f"the tensors would take {self._bytes:,} bytes, more than {MOST_BYTES:,}")
        if not wide:
            return tensor
        if name not in self._converted:
            self._converted[name] = tensor.long() if whole else tensor.double()
        return self._converted[name]


def _guess_of(value: Mapping[str, Any], sent: _Sent) -> Guess:
    target = _typed(value["target"], str)
    if value["kind"] == "membership":
        note = visible(_typed(value["note"], str)[:_LONGEST_NOTE])
        made = None if value["generated"] is None else sent.floats(value["generated"])
        rehearsed = None if value["rehearsed"] is None else _typed(value["rehearsed"], float)
        if rehearsed is not None and not 0 <= rehearsed <= 1:
            raise ValueError(
                f"the share of coins in rehearsed federations must lie in [0, 1], got {rehearsed}"
            )
        scores = sent.floats(value["scores"])
        return Membership(target=target, scores=scores, generated=made, note=note, rehearsed=rehearsed)
    if value["kind"] == "labels":
        return LabelDistribution(target=target, distribution=sent.floats(value["distribution"]))
    if value["kind"] == "extraction":
        named = _typed(value["parameters"], dict)
        copy = {_typed(name, str): sent.floats(at) for name, at in named.items()}
        return Extraction(target=target, parameters=copy, answers=_typed(value["answers"], int))
    if value["kind"] == "text-reconstruction":
        texts, objective = value["texts"], value["objective"]
        return TextReconstruction(
            target=target,
            messages=tuple(_typed(seq, int) for seq in _typed(value["messages"], list)),
            words=sent.integers(value["words"], wide=True),
            texts=None if texts is None else sent.integers(texts, wide=True),
            objective=None if objective is None else _typed(objective, float),
        )
    if value["kind"] != "reconstruction":
        raise ValueError(f"no kind of guess is called {value['kind']!r}")
    labels, objective = value["labels"], value["objective"]
    return Reconstruction(
        target=target,
        messages=tuple(_typed(seq, int) for seq in _typed(value["messages"], list)),
        images=sent.floats(value["images"]),
        labels=None if labels is None else sent.integers(labels),
        objective=None if objective is None else _typed(objective, float),
        evaluations=_typed(value["evaluations"], int),
        note=visible(_typed(value["note"], str)[:_LONGEST_NOTE]),
    )


def _typed(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} is no {kind.__name__}")
    return value
