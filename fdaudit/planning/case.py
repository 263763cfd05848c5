"""The case: what the attack stage needs to know of a federation, whether fdaudit ran it or another system did.

A simulation's `Plan` is a case, and so is a recording (`fdaudit.planning.recorded`). `lacks` says what was not
brought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.forms import Forms
    from fdaudit.data import Dataset, Splits
    from fdaudit.federation.networks import Networks
    from fdaudit.federation.protocol import Common, FederatedProtocol, ProtocolConfig
    from fdaudit.models import Architecture
    from fdaudit.models.declared import GeneratorCard
    from fdaudit.spec.card import Claim
    from fdaudit.spec.schema import Spec
    from fdaudit.storage.vault import Secrets
    from fdaudit.training.encoder import TaskEncoder
    from fdaudit.training.evaluator import Evaluator
    from fdaudit.training.execution import Execution
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.transcript.messages import Message
    from fdaudit.transcript.wire import Defense, Outage
    from fdaudit.types import Design, GradientRule, Trained

__all__ = ["Case"]


class Case(Protocol):
    """A federation as the attack stage sees it."""

    @property
    def origin(self) -> str:
        """Return `simulation`, or `recording` of another system."""
        ...

    @property
    def spec(self) -> Spec:
        """Return the audit's settings."""
        ...

    @property
    def secrets(self) -> Secrets:
        """Return seed and secret, which determine the order of candidates."""
        ...

    @property
    def dataset(self) -> Dataset:
        """Return every record that is known; its images may be none."""
        ...

    @property
    def splits(self) -> Splits:
        """Return the records of each client, and those set aside, as rows of `dataset`."""
        ...

    @property
    def networks(self) -> Networks:
        """Return the network of each party."""
        ...

    @property
    def public(self) -> Tensor:
        """Return (n, c, h, w) samples that every party holds."""
        ...

    @property
    def public_labels(self) -> Tensor | None:
        """Return (n,) classes of the public samples, if the protocol's parties know them."""
        ...

    @property
    def execution(self) -> Execution:
        """Return how models are trained."""
        ...

    @property
    def protocol(self) -> type[FederatedProtocol]:
        """Return the protocol's class."""
        ...

    @property
    def protocol_config(self) -> ProtocolConfig:
        """Return its settings."""
        ...

    @property
    def defenses(self) -> Mapping[tuple[str, str], tuple[Defense, ...]]:
        """Return of messages, by (kind, sender role)."""
        ...

    @property
    def training(self) -> Mapping[Trained, GradientRule]:
        """Return of training, by what is trained."""
        ...

    @property
    def attacks(self) -> tuple[AttackPlan, ...]:
        """Return every known attack, requested or not."""
        ...

    @property
    def identity(self) -> str:
        """Return digest of everything that determines the results of attacks."""
        ...

    @property
    def lacks(self) -> Mapping[str, str]:
        """Return what was not brought, each with the remedy in words; empty for a simulation."""
        ...

    @property
    def design(self) -> Design:
        """Return how membership was decided."""
        ...

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Return ε that a recorded system claims for itself."""
        ...

    @property
    def seed(self) -> int:
        """Return the seed of attacks and intervals; it reveals nothing about the truth."""
        ...

    @property
    def outages(self) -> tuple[Outage, ...]:
        """Return when clients go silent by the spec."""
        ...

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the clients' names."""
        ...

    @property
    def parties(self) -> tuple[str, ...]:
        """Return every party, `world` last."""
        ...

    @property
    def declared_messages(self) -> list[Mapping[str, Any]]:
        """Return the declarations of the messages that are sent."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Return the public settings of the protocol, as views show them."""
        ...

    @property
    def stand_in(self) -> tuple[type[FederatedProtocol], ProtocolConfig] | None:
        """Return the protocol that rehearsals run, with its settings; None if there is none."""
        ...

    @property
    def initial_seed(self) -> int | None:
        """Return the seed of the public initial weights, if they are public."""
        ...

    @property
    def auxiliary(self) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that an adversary is assumed to hold."""
        ...

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Return held-out records (x, y)."""
        ...

    @property
    def architecture(self) -> Architecture:
        """Return the network of the server and of every client without its own."""
        ...

    @property
    def forms(self) -> Forms:
        """Return the form of the messages that attacks can read."""
        ...

    @property
    def generator(self) -> GeneratorCard | None:
        """Return the generator that the protocol declares; None without one."""
        ...

    @property
    def common(self) -> Common:
        """Return what every party holds before the first message."""
        ...

    @property
    def encoder(self) -> TaskEncoder | None:
        """Return a public feature extractor, trained on auxiliary records."""
        ...

    @property
    def evaluator(self) -> Evaluator:
        """Return the auditor's own classifier."""
        ...

    def records(self, client: str) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that a client trains on."""
        ...

    def numbered(self, client: str) -> Tensor:
        """Return the rows (n,) of a client's records by the numbers that it gives them itself."""
        ...

    def victims(self, adversary: str) -> tuple[str, ...]:
        """Return the attacked clients: the first ones that do not belong to the adversary."""
        ...

    def lacking(self, attack: AttackPlan) -> str:
        """Return what an attack needs and was not brought, as a sentence; empty if nothing."""
        ...

    def advice(self, attack: AttackPlan) -> str:
        """Return what an attack could use and was not brought, as a sentence; empty if nothing."""
        ...

    @property
    def charged_transport(self) -> str:
        """Return the transport as the ledger may read it: plain, unless someone answers for its encryption."""
        ...

    def charged(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages as the ledger may read them: without statements that nobody answers for."""
        ...

    def trainer(self) -> Trainer:
        """Return a fresh training core for the server's network."""
        ...

    def initial(self) -> Parameters:
        """Return initial parameters of the server's network."""
        ...

    def on_one_thread(self) -> Case:
        """Return the same case, computed on one thread."""
        ...
