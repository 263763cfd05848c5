"""The auxiliary records that an adversary is assumed to hold, by the variants of a spec's `auxiliary`.

`same` is the set from `splits.auxiliary`. `shifted` is the same records, turned, blurred and paler. `none` is no
record. `class-disjoint` is for attacks that show what classes look like: half of the classes are withheld from the
adversary, and only its guesses of these are scored. Two adversaries lack one half each.

Guarantees:
  * a class-disjoint adversary holds no auxiliary record of a class that it lacks;
  * every class is lacked by exactly one of the class-disjoint adversaries;
  * the withheld classes follow from the working seed only, not from the clients' classes;
  * an attack that reads public samples lacks no class: they may show any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.goals import Guess
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.isolation.rehearsal import Rehearsal
from fdaudit.registry import AttackCard
from fdaudit.rng import child, child_seed
from fdaudit.tasks import labels_of
from fdaudit.training.encoder import TaskEncoder
from fdaudit.types import AttackTask

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.planning.case import Case
    from fdaudit.training.trainer import Trainer

__all__ = [
    "Assumption",
    "assumptions",
    "by_classes",
    "groups_of",
    "known",
    "merged",
    "others",
    "shared",
    "shifted",
]

_LEAST = 2
"""Fewest usable records: no prior can be made of fewer."""
_TURN, _CONTRAST = 0.35, 0.6
"""Rotation of a shifted record in radians, and its remaining contrast."""


@dataclass(frozen=True, eq=False)
class Assumption:
    """One adversary's auxiliary records.

    Attributes:
        records: (x, y), or None.
        lacks: the classes of which the adversary holds no image. If there are any, only guesses of these count.
        public: (n, c, h, w) public images, if the attack reads them and `records` is None.
    """

    records: tuple[Tensor, Tensor] | None
    lacks: tuple[int, ...] = ()
    public: Tensor | None = None

    @property
    def prior(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the images and labels from which a guess can be made without the view; None for a missing part."""
        if self.records is None:
            return self.public, None
        return self.records


def by_classes(card: AttackCard) -> bool:
    """Return whether an attack, by its card, shows what classes look like."""
    return bool(card.control["on"] == "classes")


def assumptions(case: Case, card: AttackCard) -> tuple[Assumption, ...]:
    """Return the adversaries with which an attack is tried: one, or two that lack half of the classes each.

    If the variant withholds classes, an attack that does not assume auxiliary records gets none. Nothing is withheld
    from an attack that reads public samples: they show every class.

    Args:
        case: the run's case.
        card: the attack's card.
    """
    variant = case.spec.auxiliary.inversion
    if not by_classes(card):
        return (others(case),)
    if variant in ("same", "shifted"):
        return (Assumption(_variant(case, variant)),)
    holds_records = "auxiliary" in card.assumes and variant != "none"
    if "public" in card.assumes and len(case.public) >= _LEAST:
        return (Assumption(case.auxiliary if holds_records else None, public=case.public),)
    if not holds_records:
        return (Assumption(None, tuple(range(case.dataset.classes))),)
    # Two random halves of the classes; one half if there is only one class.
    order = torch.randperm(case.dataset.classes, generator=child(case.seed, "auxiliary", "halves"))
    x, y = case.auxiliary
    assumed = []
    for classes in order.tensor_split(2):
        if not len(classes):
            continue
        half = tuple(sorted(classes.tolist()))
        rows = ~torch.isin(y, torch.tensor(half))
        if int(rows.sum()) < _LEAST:
            assumed.append(Assumption(None, half))
        else:
            assumed.append(Assumption((x[rows], y[rows]), half))
    return tuple(assumed)


def others(case: Case) -> Assumption:
    """Return the adversaries' auxiliary records for attacks that do not show classes."""
    return Assumption(_variant(case, case.spec.auxiliary.others))


def groups_of(case: Case, y: Tensor | None) -> Tensor | None:
    """Return the class (m,) of each auxiliary record with labels y, or the site of each mask; None without either."""
    dataset = case.dataset
    if y is None or dataset.known_groups is None:
        return None
    if dataset.sites is None or not dataset.task.labels.dense:
        return y
    return dataset.sites[case.splits.auxiliary]


def known(
    case: Case,
    held: Assumption,
    card: AttackCard | None,
    rehearsal: Rehearsal | None = None,
    public: Tensor | None = None,
    train: Trainer | None = None,
) -> Knowledge:
    """Return the assumed knowledge of an adversary with these records; it holds no weight of any party.

    An attack that shows classes gets no rehearsal, and public samples only if its card says that it reads them: both
    hold images of classes that may be withheld from it. Without records there is no task encoder and no rehearsal.

    Args:
        case: the run's case.
        held: the adversary's auxiliary records.
        card: card of the attack; None stands for one that does not show classes.
        rehearsal: rehearsal on the records that `splits.auxiliary` sets aside.
        public: (n, c, h, w) samples without labels, in place of the run's.
        train: a training core for the server's network; by default a new one.
    """
    if held.records is case.auxiliary:
        encoder = case.encoder
    elif held.records is None or not case.dataset.task.inputs.encoded:
        encoder = None
    else:
        seed = child_seed(case.seed, "encoder")
        encoder = TaskEncoder(held.records, classes=case.dataset.classes, execution=case.execution, seed=seed)
    labels = None
    if public is None:
        public, labels = case.public, case.public_labels
    if card is not None and by_classes(card):
        rehearsal = None
        if "public" not in card.assumes:
            public = public[:0]
    elif held.records is None:
        rehearsal = None
    elif rehearsal is not None and held.records is not case.auxiliary:
        common = replace(rehearsal.common, encode=encoder)
        rehearsal = replace(rehearsal, common=common, shared=held.records)
    has_networks, has_public = case.networks is not None, len(public) > 0
    return Knowledge(
        architecture=case.architecture if has_networks else None,
        auxiliary=held.records,
        train=(train or case.trainer()) if has_networks else None,
        encode=encoder,
        public=public if has_public else None,
        public_labels=labels if has_public else None,
        initial=case.initial_seed,
        classes=case.dataset.classes,
        generator=case.generator,
        rehearse=rehearsal,
        task=case.dataset.task,
    )


def merged(guesses: Sequence[Sequence[Guess]], assumed: Sequence[Assumption]) -> tuple[Guess, ...]:
    """Join several adversaries' guesses about the same victims: from each, its guesses of the classes that it lacks.

    Args:
        guesses: each adversary's guesses.
        assumed: each adversary's auxiliary records.
    """
    if len(assumed) == 1 and not assumed[0].lacks:
        return tuple(guesses[0])
    parts: dict[str, list[Reconstruction]] = {}
    for of_adversary, assumption in zip(guesses, assumed, strict=True):
        for guess in of_adversary:
            if not isinstance(guess, Reconstruction) or not guess.by_class or guess.labels is None:
                raise ValueError(f"{guess.target}: a guess about classes was asked for, and none was given")
            rows = torch.isin(guess.labels, torch.tensor(assumption.lacks))
            part = replace(guess, images=guess.images[rows], labels=guess.labels[rows])
            parts.setdefault(guess.target, []).append(part)
    with_images: list[Guess] = []
    for joined in map(_joined, parts.values()):
        if len(joined.images):
            with_images.append(joined)
    return tuple(with_images)


def _joined(parts: Sequence[Reconstruction]) -> Reconstruction:
    images: list[Tensor] = []
    labels: list[Tensor] = []
    objectives: list[float] = []
    evaluations = 0
    for part in parts:
        images.append(part.images)
        evaluations += part.evaluations
        if part.labels is not None:
            labels.append(part.labels)
        if part.objective is not None:
            objectives.append(part.objective)
    mean_objective = None
    if objectives:
        mean_objective = sum(objectives) / len(objectives)
    return replace(
        parts[0],
        images=torch.cat(images),
        labels=torch.cat(labels),
        objective=mean_objective,
        evaluations=evaluations,
    )


def shared(task: AttackTask, held: Assumption, adversaries: int) -> AttackTask:
    """Return the task of one of several adversaries: its missing classes, and its share of the oracle's budget."""
    task, oracle = replace(task, classes=held.lacks), task.oracle
    if adversaries == 1 or not isinstance(oracle, Oracle):
        return task
    return replace(task, oracle=Oracle(oracle.answers, oracle.budget // adversaries, oracle.models))


def shifted(x: Tensor) -> Tensor:
    """Return images (n, c, h, w) in [0, 1] turned by 20 degrees, blurred over 3x3 pixels and made paler."""
    turned = F.grid_sample(x, _grid(x), padding_mode="border", align_corners=False)
    blurred = F.avg_pool2d(F.pad(turned, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return (0.5 + _CONTRAST * (blurred - 0.5)).clamp(0, 1)


def _turned(y: Tensor) -> Tensor:
    """Return masks (n, h, w) turned like the images that `shifted` makes; other labels as they are."""
    if not labels_of(y).dense:
        return y
    masks = y[:, None].float()
    turned = F.grid_sample(masks, _grid(masks), mode="nearest", padding_mode="border", align_corners=False)
    return turned[:, 0].to(y.dtype)


def _grid(x: Tensor) -> Tensor:
    """Return where each pixel of images (n, c, h, w) comes from when they are turned."""
    cos, sin = torch.cos(torch.tensor(_TURN)), torch.sin(torch.tensor(_TURN))
    turn = torch.stack([torch.stack([cos, -sin, cos * 0]), torch.stack([sin, cos, cos * 0])])
    return F.affine_grid(turn.expand(len(x), -1, -1), list(x.shape), align_corners=False).to(x)


def _variant(case: Case, variant: str) -> tuple[Tensor, Tensor] | None:
    if variant == "none":
        return None
    if variant == "same":
        return case.auxiliary
    x, y = case.auxiliary
    if not len(y):
        return x, y
    return shifted(x), _turned(y)
