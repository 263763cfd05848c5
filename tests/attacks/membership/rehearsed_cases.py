"""Rehearsed federations in which a client holds one candidate of each pair, and attacks on its membership."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fdaudit import protocols
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common
from fdaudit.federation.rehearsal import rehearse
from fdaudit.goals.membership import Membership
from fdaudit.metrics import score_membership
from fdaudit.metrics.ranking import auc
from fdaudit.models import Architecture, architecture
from fdaudit.rng import child_numpy
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import SINGLE_LABEL
from fdaudit.testing.federation import execution
from fdaudit.training.trainer import Trainer
from fdaudit.types import AttackTask, Challenge

SEED = 5
EXECUTION = execution()
Records = tuple[Tensor, Tensor]


def mlp(width: int = 16, shape: tuple[int, int, int] = (1, 6, 6), classes: int = 4) -> Architecture:
    return architecture(ModelSpec(name="mlp", params={"widths": [width]}), shape, classes)


NETWORK = mlp()


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def common(
    public: Tensor, network: Architecture = NETWORK, encode: Callable[..., Any] | None = None
) -> Common:
    """Return what all parties know."""
    networks = Networks(network)
    return Common(networks=networks, execution=EXECUTION, public=public, task=SINGLE_LABEL, encode=encode)


def rehearsed(
    place: Path,
    name: str,
    data: Sequence[Any],
    public: Tensor | None = None,
    *,
    network: Architecture = NETWORK,
    encode: Callable[..., Any] | None = None,
    seed: int = SEED,
    adversary: str = "server",
    defenses: Any = None,
    models: Any = None,
    **params: Any,
) -> View:
    """Return an adversary's view of a federation whose clients hold these records.

    Args:
        place: where the record is written.
        name: the protocol's; `params` are its settings.
        data: records by client.
        public: samples; none by default.
        network: of all parties.
        encode: the public feature extractor.
        seed: of the run.
        adversary: whose view it is.
        defenses: by kind and sender.
        models: what clients start from.
    """
    protocol = protocols.REGISTRY.load(name)
    return rehearse(
        place,
        protocol=protocol,
        config=protocol.Config(**params),
        common=common(torch.zeros(0) if public is None else public, network, encode),
        data=list(data),
        seed=seed,
        adversary=adversary,
        defenses=defenses or {},
        models=models,
    )


class Paired:
    """Pairs of candidates, of each of which client/0 holds one where its coin says so."""

    view: View
    knowledge: Knowledge

    def __init__(self, x: Tensor, y: Tensor, coins: Tensor) -> None:
        self.member = torch.stack([coins, ~coins], 1).flatten()
        pair = torch.arange(len(coins)).repeat_interleave(2)
        self.challenge = Challenge(target="client/0", x=x, y=y, pair=pair)

    @property
    def held(self) -> Records:
        """The candidates that client/0 holds."""
        return self.challenge.x[self.member], self.challenge.y[self.member]

    @property
    def task(self) -> AttackTask:
        return AttackTask(targets=("client/0",), challenges={"client/0": self.challenge})

    def knows(
        self, auxiliary: Records, public: Tensor | None = None, network: Architecture = NETWORK
    ) -> None:
        """Give the adversary the network, a training core, and these records."""
        self.knowledge = Knowledge(
            architecture=network,
            auxiliary=auxiliary,
            train=Trainer(network, EXECUTION),
            public=public,
            classes=4,
        )

    def guess(
        self, attack: Any, view: View | None = None, knowledge: Knowledge | None = None, seed: int = 0
    ) -> Membership:
        """Return an attack's guess about client/0."""
        seen, known = view or self.view, knowledge or self.knowledge
        assert attack.applicable(seen, known, self.task)
        (found,) = attack.run(seen, known, self.task, stream(seed))
        assert isinstance(found, Membership)
        return found

    def auc_of(self, guess: Membership) -> float:
        return auc(guess.scores.double().numpy(), self.member.numpy())

    def figure(self, guess: Membership) -> tuple[float, float]:
        """Return the AUC of a guess and its p-value."""
        draws = child_numpy(0, "test")
        pair = self.challenge.pair
        figure = score_membership(guess.scores, self.member, generator=draws, pair=pair).figures["auc"]
        assert figure.value is not None
        assert figure.p is not None
        return figure.value, figure.p
