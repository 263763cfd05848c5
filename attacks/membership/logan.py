"""Membership inference by a discriminator that a client trained on its records (LOGAN)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.models.conditional import shared_network
from fdaudit.registry import AttackCard
from fdaudit.transcript.messages import Message
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["DiscriminatorScore", "DiscriminatorScoreConfig"]

_BATCH = 1024


class DiscriminatorScoreConfig(Config):
    """No settings."""


@reads_forms
class DiscriminatorScore:
    """Scores a candidate by how real the victim's own discriminator finds it.

    A discriminator learns to distinguish its training records from generated ones. If it overfits, it memorises them
    (Hayes 2019, white box). DaFKD's clients send theirs: a layer over the features of the classifier that they send in
    the same round, or with `share_extractor: false` a whole network. Scores of samples that the server chose reveal
    nothing about candidates unless these were among them. If only such scores are sent, the attack does not apply.
    """

    card = AttackCard(
        name="logan",
        work={"once": 3000, "each": 250},
        goal="membership",
        needs=("discriminator_parameters", "model_parameters"),
        assumes=("architecture",),
        oracle=None,
        source="Hayes, Melis, Danezis & De Cristofaro 2019 (LOGAN), white box",
        tasks=("single-label", "multi-label"),
        profiles={"quick": {}, "standard": {}, "full": {}},
        control={"on": "discriminator"},
    )
    Config: ClassVar[type[DiscriminatorScoreConfig]] = DiscriminatorScoreConfig

    def __init__(self, config: DiscriminatorScoreConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check that every challenged victim's discriminator and the classifier below it are in view."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if knowledge.architecture is None or knowledge.train is None:
            return Applicability(False, "the architecture is not known, whose extractor discriminators share")
        for client in task.challenges:
            if _sent(view, client) is not None:
                continue
            if view.select(kind="discriminator_scores", sender=client):
                reason = f"discriminator scores of {client} are about generated samples, not about candidates"
                return Applicability(False, reason)
            return Applicability(False, f"no discriminator of {client} is in view")
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenge: the discriminator's logits; the attack is deterministic."""
        guesses = []
        for name, challenge in task.challenges.items():
            messages = _sent(view, name)
            if messages is None or knowledge.train is None:
                raise ValueError(f"logan: run on a view to which it does not apply: nothing of {name}.")
            head = view.tensors(messages[0])
            network = view.tensors(messages[1])
            if "head.weight" in head:  # the discriminator shares nothing: its extractor comes with it
                extractor = dict[str, Tensor]()
                for n, tensor in head.items():
                    if n.startswith("extractor."):
                        extractor[n] = tensor
                network = {**network, **extractor}
                head = {n: head[f"head.{n}"] for n in ("weight", "bias")}
            module = shared_network(knowledge.train.network(network)).eval()
            device = knowledge.train.device
            weight = head["weight"].to(device)
            bias = head["bias"].to(device)
            logits = list[Tensor]()
            with torch.no_grad():
                for part in challenge.x.split(_BATCH):
                    features = module.extractor(part.to(device))
                    logits.append(nn.functional.linear(features, weight, bias)[:, 0].cpu())
            scores = torch.cat(logits).double()
            guesses.append(Membership(target=name, scores=scores))
        return tuple(guesses)


def _sent(view: View, client: str) -> tuple[Message, Message] | None:
    """Return a client's last discriminator and the classifier that it sent in the same round, or None."""
    for head in reversed(view.select(kind="discriminator_parameters", sender=client)):
        below = with_payload(view.select(kind="model_parameters", sender=client, round=head.round))
        if head.payload is not None and below:
            return head, below[-1]
    return None
