"""Membership from how a client changes neurons that are active for one candidate each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.adversary.hidden_layer import HiddenLayer, hidden_layer
from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.models.network import call_with, moved
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import after, received_before, uploads_of, with_payload
from ._coins import against_its_pair

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["NeuronUpdates", "NeuronUpdatesConfig"]

_TINY = 1e-300


class NeuronUpdatesConfig(Config):
    """Settings of `neuron-updates`: none."""


@reads_forms
class NeuronUpdates:
    """Scores a candidate by the change of the neuron that is active for it and for no other candidate.

    It reads uploads that start from a model in whose last hidden layer each neuron is active for one candidate at most.
    An honest model is never like that: a server that deviates by `candidate-neurons` sends it. The score is the share
    of the candidate's gradient in the change of the neuron's weights and bias, by least squares over the rounds. It is
    zero if no one held the candidate. A sum of updates is read as the upload of each client in it. No model is trained.
    """

    card = AttackCard(
        name="neuron-updates",
        work={"once": 300, "each": 300},
        goal="membership",
        needs=("gradient", "model_update", "model_parameters"),
        assumes=("architecture",),
        tasks=("single-label",),
        source="Nguyen, Lai, Phan & Thai 2023, section 4; share of a gradient: Gauss least squares",
        profiles={"quick": {}, "standard": {}, "full": {}},
        control={"on": "neurons"},
    )
    Config: ClassVar[type[NeuronUpdatesConfig]] = NeuronUpdatesConfig

    def __init__(self, config: NeuronUpdatesConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for an upload of a victim that starts from a model with neurons for single candidates."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if knowledge.architecture is None:
            return Applicability(False, "the architecture of the model is not known")
        layer = hidden_layer(knowledge.architecture)
        if isinstance(layer, str):
            return Applicability(False, f"the network {layer}")
        if any(True for _ in _questions(view, layer, task)):
            return Applicability(True)
        reason = "no upload in view starts from a model with neurons for single candidates"
        return Applicability(False, f"{reason}: no party deviated to ask for one")

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim whose candidates were asked about; the attack is deterministic."""
        layer = "is not known" if knowledge.architecture is None else hidden_layer(knowledge.architecture)
        if isinstance(layer, str):
            raise ValueError(
                f"neuron-updates: run on a view to which it does not apply: the network {layer}."
            )
        products: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        for name, challenge in task.challenges.items():
            products[name] = torch.zeros(len(challenge.y), dtype=torch.float64)
            norms[name] = torch.zeros_like(products[name])
        for name, message, origin, neuron in _questions(view, layer, task):
            challenge, start = task.challenges[name], moved(view.tensors(origin), "cpu")
            asked = (neuron >= 0).nonzero().flatten()
            # The gradients (k, d + 1) of these candidates' losses in the weights and the bias of their neurons.
            weight = start[layer.weight].clone().requires_grad_()
            bias = start[layer.bias].clone().requires_grad_()
            placed = {**start, layer.weight: weight, layer.bias: bias}
            gradients = []
            for candidate, its in zip(asked.tolist(), neuron[asked].tolist(), strict=True):
                x = challenge.x[candidate : candidate + 1].cpu()
                y = challenge.y[candidate : candidate + 1].cpu()
                loss = F.cross_entropy(call_with(layer.module, placed, x), y.long())
                slopes = torch.autograd.grad(loss, (weight, bias))
                by_name = dict(zip((layer.weight, layer.bias), slopes, strict=True))
                gradients.append(_rows(layer, by_name)[its])
            rows = torch.stack(gradients)
            if message.kind == "gradient":
                descent = _rows(layer, moved(view.tensors(message), "cpu"))
            else:
                descent = _rows(layer, start) - _rows(layer, moved(after(view, message, start), "cpu"))
            products[name][asked] += (descent[neuron[asked]] * rows).sum(1)
            norms[name][asked] += rows.square().sum(1)
        guesses = []
        for name, challenge in task.challenges.items():
            if norms[name].any():
                scores = against_its_pair(products[name] / norms[name].clamp_min(_TINY), challenge)
                guesses.append(Membership(target=name, scores=scores))
        return tuple(guesses)


def _questions(
    view: View, layer: HiddenLayer, task: AttackTask
) -> Iterator[tuple[str, Message, Message, Tensor]]:
    """Yield a victim, its upload, the model before it, and the neuron (n,) that asks for each of its candidates.

    Models without neurons for single candidates of the victim are left out.
    """
    x = torch.cat([c.x for c in task.challenges.values()]).cpu()
    counts = [len(c.y) for c in task.challenges.values()]
    asking: dict[int, Mapping[str, Tensor]] = {}
    for name in task.challenges:
        for message, origin in _uploads(view, name):
            if origin.seq not in asking:
                active = layer.outputs(moved(view.tensors(origin), "cpu"), x) > 0
                neuron = active.int().argmax(1)
                # In any honest model some neuron is active for two candidates or more: then none asks for one.
                crafted = bool((active.sum(0) <= 1).all())
                neuron = torch.where(active.any(1) & crafted, neuron, -1)
                asking[origin.seq] = dict(zip(task.challenges, neuron.split(counts), strict=True))
            if (asking[origin.seq][name] >= 0).any():
                yield name, message, origin, asking[origin.seq][name]


def _uploads(view: View, target: str) -> list[tuple[Message, Message]]:
    """Return a client's uploads, or the sums that it is in, each with the model that it started from."""
    uploads = uploads_of(view, target)
    if uploads:
        return uploads
    sums = []
    for message in with_payload(view.select(kind="model_update", sender="aggregator")):
        if target not in message.fields.get("clients", ()):
            continue
        models = received_before(view, message, target)
        if models:
            sums.append((message, models[-1]))
    return sums


def _rows(layer: HiddenLayer, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return each neuron's weights and bias (m, d + 1), float64."""
    weight, bias = tensors[layer.weight], tensors[layer.bias]
    return torch.cat([weight.flatten(1), bias[:, None]], 1).double()
