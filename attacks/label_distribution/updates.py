"""Class shares from the last layer of a client's upload, as a mixture of per-class gradients.

For mean cross-entropy the gradient of the last layer (weights and bias) is an average over records of
(p - onehot(y)) ⊗ (a, 1), with probabilities p and the layer's inputs a. Grouped by class it is Σ_c π_c G_c. π are the
class shares. G_c is the mean over records of class c, estimated from auxiliary records of that class. An update after
several steps is, up to a positive factor, minus such a sum along the path from the first model to the last. So π is, up
to that factor, the non-negative least-squares solution. Dividing by its sum removes the factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.kinds import MODELS
from fdaudit.models.network import last_layer
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._moments import StateGradient, state_gradient
from .._reading import reads_forms
from .._uploads import weight_of
from ..gradient_inversion.mixtures import LastLayer, halfway, mixture_of
from ._guesses import guesses, sent_by

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["LabelUpdates", "LabelUpdatesConfig"]

_MOST_KEPT = 1 << 26
"""Most values of passes through models that are kept for the next victim."""


class LabelUpdatesConfig(Config):
    """Settings of the attack from updates."""

    uploads: int = Field(20, ge=1)
    """Largest number of a victim's uploads: the first ones, before the model fits the records."""
    least: float = Field(0.005, gt=0, lt=1)
    """Added to every class's share before scaling to a sum of 1, so that no class is ruled out."""
    records: int = Field(4096, ge=1)
    """Largest number of auxiliary records that stand for the classes. All of them pass through each model in view."""


@reads_forms
class LabelUpdates:
    """Guesses class shares as the mixture of per-class last-layer gradients that best explains a client's uploads.

    It extends attacks on a single gradient's signs (Zhao 2020: iDLG; Wainakh 2022: LLG, whose auxiliary variant this
    follows) to the whole last layer, to updates of many steps and to several rounds. It needs no learning rate and no
    number of steps. If no upload of a victim with the model before it is in view, it guesses equal shares.
    """

    card = AttackCard(
        name="label-updates",
        work={"once": 2000, "each": 300, "grows": ("uploads", "records")},
        goal="label-distribution",
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture", "auxiliary"),
        oracle=None,
        source="Zhao, Mopuri & Bilen 2020; Wainakh et al. 2022 (LLG)",
        control={"on": "labels"},
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"uploads": 5, "records": 1024},
            "standard": {"uploads": 20, "records": 4096},
            "full": {"uploads": 100, "records": 4096},
        },
    )
    Config: ClassVar[type[LabelUpdatesConfig]] = LabelUpdatesConfig

    def __init__(self, config: LabelUpdatesConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's upload, the model before it, and a linear last layer."""
        verdict = sent_by(view, task.targets, MODELS)
        if not verdict:
            return verdict
        if not any(_uploads(view, target, 1) for target in task.targets):
            return Applicability(False, "the models that the victims started from are not in view")
        if knowledge.auxiliary is None:
            return Applicability(False, "auxiliary records are needed to stand for the classes")
        if knowledge.architecture is None:
            return Applicability(False, "the architecture of the model is not known")
        try:
            last_layer(_module(knowledge), knowledge.auxiliary[0].to(knowledge.device))
        except UsageError as error:
            return Applicability(False, f"the model {error.problem}")
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim; the attack is deterministic."""
        module = _module(knowledge)
        classes = knowledge.classes
        if knowledge.auxiliary is None:
            raise ValueError("label-updates: run without auxiliary records. Ask `applicable` first.")
        x = knowledge.auxiliary[0][: self.config.records].to(knowledge.device)
        y = knowledge.auxiliary[1][: self.config.records].to(knowledge.device)
        passes: dict[int, LastLayer] = {}  # by message, since all clients start a round from the same model

        def at(message: Message) -> LastLayer:
            if message.seq in passes:
                return passes[message.seq]
            passed = LastLayer.of(module, view.tensors(message), x, y, classes)
            if (1 + len(passes)) * passed.inputs.numel() <= _MOST_KEPT:
                passes[message.seq] = passed
            return passed

        last = last_layer(module, x)

        def parts(target: str, pairs: list[tuple[Message, Message]]) -> Iterator[tuple[Tensor, Tensor]]:
            for origin, upload in pairs:
                step, end = _step(last, view, origin, upload, target)
                before = at(origin)
                after = before if end is None else LastLayer.of(module, end, x, y, classes)
                if not after.finite:
                    after = before
                yield from halfway(before, after, step)

        def shares(target: str) -> Tensor | None:
            pairs = []
            for origin, upload in _uploads(view, target, self.config.uploads):
                if at(origin).finite:
                    pairs.append((origin, upload))
            if not pairs:
                return None
            pi = mixture_of(parts(target, pairs), classes) + self.config.least
            return pi / pi.sum()

        return guesses(task.targets, shares, classes)


def _uploads(view: View, target: str, most: int) -> list[tuple[Message, Message]]:
    """Return a client's first uploads, each with the last model that it had received before."""
    pairs = []
    origin: Message | None = None
    for message in view.messages:
        if message.payload is None:
            continue
        if message.kind == "model_parameters" and target in message.receivers:
            origin = message
        mine = message.kind in MODELS and message.sender == target
        if mine and origin is not None and set(message.tensors) <= set(origin.tensors):
            pairs.append((origin, message))
    return pairs[:most]


def _step(
    last: tuple[str, str | None], view: View, origin: Message, upload: Message, target: str
) -> tuple[Tensor, Mapping[str, Tensor] | None]:
    """Return the last layer's gradient (C, F + 1), or minus its update, and the model after the upload if known."""
    tensors = view.tensors(upload)
    start = view.tensors(origin)
    if upload.kind == "gradient":
        return _last(last, tensors), None
    state = state_gradient(view, upload, origin, target)
    if isinstance(state, StateGradient):  # Adam's update shows little more than the gradient's sign
        return _last(last, state.gradient), None
    weight = weight_of(upload)
    change = {}
    end = dict(start)
    for name, tensor in tensors.items():
        if upload.kind == "model_parameters":
            change[name] = tensor - start[name]
        else:
            change[name] = tensor / weight
        if name in start:
            end[name] = start[name] + change[name]
    return -_last(last, change), end


def _last(names: tuple[str, str | None], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return weight and bias (C, F + 1) of the last layer, with zeros for a missing bias."""
    weight, bias = names
    w = tensors[weight].double()
    b = w.new_zeros(len(w))
    if bias is not None:
        b = tensors[bias].double()
    return torch.cat([w, b[:, None]], 1)


def _module(knowledge: Knowledge) -> nn.Module:
    """Return the network in evaluation mode; weights from the view replace its own."""
    if knowledge.architecture is None:
        raise ValueError("label-updates: the architecture is not known. Ask `applicable` first.")
    return knowledge.architecture.build(torch.Generator().manual_seed(0)).eval().to(knowledge.device)
