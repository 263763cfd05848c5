"""The case: a federation as the attack stage sees it, whether fdaudit ran it or another system did.

`fdaudit.planning.simulated` makes one from a spec, and `fdaudit.planning.recorded` from a record and its card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from fdaudit.adversary.forms import Forms
from fdaudit.data import Dataset, Splits, test_xy
from fdaudit.deviations.attached import DeviatingParty
from fdaudit.errors import RunError
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, FederatedProtocol, ProtocolConfig
from fdaudit.models import Architecture
from fdaudit.models.declared import GeneratorCard, generator_card
from fdaudit.models.network import Network, feature_width
from fdaudit.planning.ladder import BRING, ImportedSystem, assumed_by, needed_by
from fdaudit.rng import child_seed
from fdaudit.spec.schema import Spec
from fdaudit.storage.vault import Secrets
from fdaudit.training.encoder import TaskEncoder
from fdaudit.training.evaluator import Evaluator
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Parameters, Trainer
from fdaudit.transcript.encoding import Naming
from fdaudit.transcript.wire import Defense, Outage, ReceiptCheck
from fdaudit.types import Design, GradientRule, ImportPart, Trained

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.spec.card import Claim
    from fdaudit.transcript.messages import Message

__all__ = ["Case"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A federation with all that its audit needs: what is declared of it, and the truth about its records.

    Attributes:
        spec: the audit's settings, with device, threads, strategy and memory format filled in.
        identity: digest of everything that determines the results of attacks; independent of which are asked for.
        execution: how models are trained.
        attacks: every known attack, requested or not.
        protocol: the protocol's class.
        protocol_config: its settings.
        settings: its public settings, as views show them.
        stand_in: the protocol that rehearsals run, with its settings; None if there is none.
        parties: every party, in the order in which roles are declared, with `world` last.
        declared_messages: the protocol's declarations of the messages that are sent with its settings.
        networks: the network of each party; None if none was named.
        initial_seed: the seed of the initial weights, if they are public.
        defenses: of messages, by (kind, sender role).
        training: defences of training, by what is trained.
        deviants: the parties that depart from the protocol, by name.
        checks: what clients check of messages that they receive, by (kind, sender role).
        secrets: the user's seed and the vault's secret, which determine the truth.
        dataset: every record that is known; only the auditor and the splits' owners see their parts.
        splits: the records of each party, as rows of `dataset`.
        public: (n, c, h, w) samples that every party holds.
        public_labels: (n,) classes of the public samples, if the protocol lets every party know them.
        imported: the card and the records of a system that fdaudit did not run; None in a simulation.
    """

    spec: Spec
    identity: str
    execution: Execution
    attacks: tuple[AttackPlan, ...]
    protocol: type[FederatedProtocol]
    protocol_config: ProtocolConfig
    settings: Mapping[str, Any]
    stand_in: tuple[type[FederatedProtocol], ProtocolConfig] | None
    parties: tuple[str, ...]
    declared_messages: Sequence[Mapping[str, Any]]
    networks: Networks | None
    initial_seed: int | None
    defenses: Mapping[tuple[str, str], tuple[Defense, ...]]
    training: Mapping[Trained, GradientRule]
    secrets: Secrets
    dataset: Dataset
    splits: Splits
    public: Tensor
    public_labels: Tensor | None
    deviants: Mapping[str, DeviatingParty] = field(default_factory=dict)
    checks: Mapping[tuple[str, str], tuple[ReceiptCheck, ...]] = field(default_factory=dict)
    imported: ImportedSystem | None = None

    @property
    def origin(self) -> Literal["simulation", "recording"]:
        """Return whether fdaudit ran the federation, or another system did."""
        return "simulation" if self.imported is None else "recording"

    @property
    def system(self) -> ImportedSystem:
        """Return the system that fdaudit did not run.

        Raises:
            RunError: fdaudit ran it.
        """
        if self.imported is None:
            raise RunError("run", self.spec.name, "is a simulation", "Give the run of an import.")
        return self.imported

    # -- what was not brought ---------------------------------------------------------------------------------

    @cached_property
    def not_brought(self) -> Mapping[ImportPart, str]:
        """Return what an import lacks, each with where to bring it; empty for a simulation, which has every part."""
        if self.imported is None:
            return {}
        remedies: dict[ImportPart, str] = {}
        for part, remedy in BRING.items():
            if part in self.imported.not_brought:
                remedies[part] = remedy
        return remedies

    def missing(self, *parts: ImportPart) -> str:
        """Return which of these parts were not brought, as a sentence that says where to bring them; empty if none."""
        remedies = []
        for part in dict.fromkeys(parts):
            if part in self.not_brought:
                remedies.append(self.not_brought[part])
        if not remedies:
            return ""
        return f"bring {'; '.join(remedies)}"

    def lacking(self, attack: AttackPlan) -> str:
        """Return what an attack needs and was not brought, as a sentence; empty if nothing."""
        return self.missing(*needed_by(attack.card))

    def advice(self, attack: AttackPlan) -> str:
        """Return what an attack could use and was not brought, as a sentence; empty if nothing."""
        return self.missing(*assumed_by(attack.card))

    # -- who takes part ---------------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """Return the seed of training, attacks and intervals; it reveals nothing about the truth."""
        return self.secrets.working_seed

    @property
    def deviations_seed(self) -> int:
        """Return the seed of what deviating parties draw, which these parties know."""
        return child_seed(self.seed, "deviations")

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Return the clients' names."""
        return tuple(f"client/{k}" for k in range(self.spec.clients))

    def victims(self, adversary: str) -> tuple[str, ...]:
        """Return the attacked clients: the first ones outside the adversary whose records are known, if any are.

        They are fixed before a run.
        """
        members = adversary.split("+")
        others = [client for client in self.clients if client not in members]
        if self.imported is None:
            return tuple(others[: self.spec.victims])
        with_records = [client for client in others if len(self.numbered(client))]
        return tuple(with_records or others)[: self.spec.victims]

    @property
    def outages(self) -> tuple[Outage, ...]:
        """Return when clients go silent by the spec."""
        outages = []
        for entry in self.spec.outages:
            last = entry.round if entry.last is None else entry.last
            outages.append(
                Outage(party=f"client/{entry.client}", first=entry.round, last=last, after=entry.after)
            )
        return tuple(outages)

    # -- records ----------------------------------------------------------------------------------------------

    def records(self, client: str) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that a client trains on."""
        index = self.splits.clients[int(client.partition("/")[2])].train
        return self.dataset.x[index], self.dataset.y[index]

    def numbered(self, client: str) -> Tensor:
        """Return the rows (n,) of a client's records by the numbers that it gives them itself; none if unknown."""
        if self.imported is not None:
            return self.imported.rows_of(client)
        return self.splits.clients[int(client.partition("/")[2])].train

    @property
    def design(self) -> Design:
        """Return how membership was decided."""
        tossed = self.imported is None or self.imported.coins is not None
        return "matched-pairs" if tossed else "observational"

    @cached_property
    def auxiliary(self) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that an adversary is assumed to hold."""
        index = self.splits.auxiliary
        return self.dataset.x[index], self.dataset.y[index]

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Return held-out records (x, y) for accuracy."""
        return test_xy(self.dataset, self.splits)

    # -- what the ledger may read -----------------------------------------------------------------------------

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Return ε that a recorded system claims for itself."""
        return () if self.imported is None else self.imported.card.claims

    @property
    def charged_transport(self) -> str:
        """Return the transport as the ledger may read it: plain, unless someone answers for its encryption."""
        return self.spec.transport if self.imported is None else self.imported.charged_transport

    def charged(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages as the ledger may read them: without statements that no one answers for."""
        return messages if self.imported is None else self.imported.charged(messages)

    # -- networks ---------------------------------------------------------------------------------------------

    @property
    def named_networks(self) -> Networks:
        """Return the network of each party.

        Raises:
            RunError: none was named.
        """
        if self.networks is None:
            raise RunError("card.model", None, "names no network", "Name it under `model` in the card.")
        return self.networks

    @property
    def architecture(self) -> Architecture:
        """Return the network of the server and of every client without its own.

        Raises:
            RunError: none was named.
        """
        return self.named_networks.shared

    @cached_property
    def generator(self) -> GeneratorCard | None:
        """Return the generator that the protocol declares, with its settings' values; None without one."""
        declared = self.protocol.card.generator
        if declared is None:
            return None
        shape, classes, width = self.dataset.input_shape, self.dataset.classes, 0
        if self.networks is not None:
            module = self.networks.shared.build(torch.Generator().manual_seed(0))
            if isinstance(module, Network):
                width = feature_width(module.extractor, shape, whole=self.dataset.task.inputs.whole)
        settings = self.protocol_config.model_dump(mode="json")
        return generator_card(declared, settings, input_shape=shape, classes=classes, features=width)

    @cached_property
    def forms(self) -> Forms:
        """Return the form of the messages that attacks can read."""
        return Forms(
            architecture=None if self.networks is None else self.networks.shared,
            classes=self.dataset.classes,
            generator=self.generator,
            naming=Naming.of(self.settings),
        )

    @cached_property
    def common(self) -> Common:
        """Return what every party holds before the first message."""
        return Common(
            networks=self.named_networks,
            execution=self.execution,
            public=self.public,
            encode=self.encoder,
            task=self.dataset.task,
            public_labels=self.public_labels,
        )

    @cached_property
    def encoder(self) -> TaskEncoder | None:
        """Return a public feature extractor, trained on auxiliary images at first use; None for other records."""
        if not self.dataset.task.inputs.encoded:
            return None
        return TaskEncoder(
            self.auxiliary,
            classes=self.dataset.classes,
            execution=self.execution,
            seed=child_seed(self.seed, "encoder"),
        )

    @cached_property
    def evaluator(self) -> Evaluator:
        """Return the auditor's own classifier, which judges reconstructions of classes; single-label records only."""
        return Evaluator(
            self.test,
            classes=self.dataset.classes,
            taken=frozenset(network.name for network in self.named_networks.distinct),
            execution=self.execution,
            seed=child_seed(self.seed, "evaluator"),
        )

    def trainer(self) -> Trainer:
        """Return a fresh training core for the server's network, without any party's weights."""
        return Trainer(self.architecture, self.execution)

    def initial(self) -> Parameters:
        """Return the server's initial parameters."""
        return self.named_networks.initial(["server"], self.seed)["server"]

    def on_one_thread(self) -> Self:
        """Return the case for cells: threads inside small operations are slower than parallel cells."""
        return replace(self, execution=replace(self.execution, threads=1, inside=1))
