"""The plan: a spec with every name resolved and every setting checked, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from fdaudit import defenses, protocols
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.adversary.forms import Forms
from fdaudit.adversary.view import members_of
from fdaudit.config import validate
from fdaudit.data import Dataset, Splits, insert_canaries, load_dataset, make_splits, public_samples, test_xy
from fdaudit.data.datasets import VOCABULARY, data_root
from fdaudit.data.texts.vocabulary import known_words
from fdaudit.errors import Mistakes, SpecError
from fdaudit.federation.defenses import attach, refuse_untrainable
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import (
    Common,
    FederatedProtocol,
    ProtocolConfig,
    applies,
    broadcasts,
    labels_public,
)
from fdaudit.federation.rehearsal import networks_of, parties_of, set_up, with_messages
from fdaudit.limits import MOST_NETWORKS
from fdaudit.models import Architecture, architecture
from fdaudit.models.declared import GeneratorCard, generator_card
from fdaudit.models.network import Network, feature_width
from fdaudit.planning.attacks import plan_attacks, refuse_attacks_without_controls
from fdaudit.planning.presets import written_out
from fdaudit.rng import child_seed
from fdaudit.spec.code import own_digest
from fdaudit.spec.schema import ModelSpec, RecordRounds, Spec
from fdaudit.storage.cache import digest_of
from fdaudit.storage.digests import canonical
from fdaudit.storage.vault import Secrets
from fdaudit.training.encoder import TaskEncoder
from fdaudit.training.evaluator import Evaluator
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Parameters, Trainer
from fdaudit.transcript.wire import Defense, Outage
from fdaudit.types import ONLY_SINGLE_LABEL, Design, GradientRule, Task, Trained

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.spec.card import Claim
    from fdaudit.transcript.messages import Message


__all__ = ["Plan", "execution_of", "make_plan", "networks_named", "refuse_unknown_adversaries"]


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything a run needs, resolved.

    Attributes:
        spec: with device, threads, strategy and memory format filled in.
        secrets: the user's seed and the vault's secret, which determine the truth.
        dataset: all images; only the auditor and the splits' owners see their parts.
        splits: the records of each party.
        networks: the network of each party.
        public: (n, c, h, w) samples that every party holds.
        execution: how training runs.
        protocol: the protocol's class.
        protocol_config: its settings.
        references: reference protocols with their settings.
        defenses: of messages, by (kind, sender role).
        training: of training, by what is trained.
        attacks: every known attack, requested or not.
        identity: digest of everything that determines the run's results; independent of the attacks.
        origin: whether fdaudit ran the federation, or another system did.
        lacks: what was not brought to a recording, each with where to bring it.
        design: how membership was decided.
        claims: ε that a recorded system claims for itself.
        public_labels: (n,) classes of the public samples, if the protocol lets every party know them.
    """

    spec: Spec
    secrets: Secrets
    dataset: Dataset
    splits: Splits
    networks: Networks
    public: Tensor
    execution: Execution
    protocol: type[FederatedProtocol]
    protocol_config: ProtocolConfig
    references: tuple[tuple[type[FederatedProtocol], ProtocolConfig], ...]
    defenses: Mapping[tuple[str, str], tuple[Defense, ...]]
    training: Mapping[Trained, GradientRule]
    attacks: tuple[AttackPlan, ...]
    identity: str
    origin: Literal["simulation", "recording"] = "simulation"
    lacks: Mapping[str, str] = field(default_factory=dict)
    design: Design = "matched-pairs"
    claims: tuple[Claim, ...] = ()
    public_labels: Tensor | None = None

    @property
    def seed(self) -> int:
        """Return the seed of training, attacks and intervals; it reveals nothing about the truth."""
        return self.secrets.working_seed

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Return the clients' names."""
        return tuple(f"client/{k}" for k in range(self.spec.clients))

    @property
    def parties(self) -> tuple[str, ...]:
        """Return every party, in the order in which roles are declared, with `world` last."""
        return parties_of(self.protocol, self.protocol_config, self.spec.clients)

    @cached_property
    def declared_messages(self) -> list[Mapping[str, Any]]:
        """Return the protocol's declarations of the messages that are sent with its settings."""
        return [m for m in self.protocol.messages if applies(m.get("when", {}), self.protocol_config)]

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Return held-out records for accuracy."""
        return test_xy(self.dataset, self.splits)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the public settings of the protocol, as views show them."""
        return self.protocol_config.model_dump(mode="json")

    @property
    def stand_in(self) -> tuple[type[FederatedProtocol], ProtocolConfig] | None:
        """Return the protocol that rehearsals run, with its settings: the run's own."""
        return self.protocol, self.protocol_config

    @property
    def initial_seed(self) -> int | None:
        """Return the seed of the initial weights if the server broadcasts them; None if each client has its own."""
        return self.networks.initial_seed(self.seed) if broadcasts(self.protocol) else None

    def records(self, client: str) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) that a client trains on."""
        index = self.splits.clients[int(client.partition("/")[2])].train
        return self.dataset.x[index], self.dataset.y[index]

    def numbered(self, client: str) -> Tensor:
        """Return the rows (n,) of a client's records by the numbers that it gives them itself."""
        return self.splits.clients[int(client.partition("/")[2])].train

    def victims(self, adversary: str) -> tuple[str, ...]:
        """Return the attacked clients: the first ones that do not belong to the adversary, fixed before the run."""
        members = adversary.split("+")
        return tuple(k for k in self.clients if k not in members)[: self.spec.victims]

    def lacking(self, attack: AttackPlan) -> str:
        """Return what an attack needs and was not brought: nothing, in a simulation."""
        return ""

    def advice(self, attack: AttackPlan) -> str:
        """Return what an attack could use and was not brought: nothing, in a simulation."""
        return ""

    @property
    def charged_transport(self) -> str:
        """Return the transport as the ledger may read it: the spec's."""
        return self.spec.transport

    def charged(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages as the ledger may read them: as they are, because the wire wrote them."""
        return messages

    def on_one_thread(self) -> Self:
        """Return the plan for cells: threads inside small operations are slower than parallel cells."""
        return replace(self, execution=replace(self.execution, threads=1, inside=1))

    @cached_property
    def auxiliary(self) -> tuple[Tensor, Tensor]:
        """Return the records that an adversary is assumed to hold."""
        index = self.splits.auxiliary
        return self.dataset.x[index], self.dataset.y[index]

    @property
    def architecture(self) -> Architecture:
        """Return the network of the server and of every client without its own."""
        return self.networks.shared

    @cached_property
    def generator(self) -> GeneratorCard | None:
        """Return the generator that the protocol declares, with its settings' values; None without one."""
        declared = getattr(self.protocol, "generator", None)
        if declared is None:
            return None
        module = self.architecture.build(torch.Generator().manual_seed(0))
        shape, classes = self.dataset.input_shape, self.dataset.classes
        text = self.dataset.task == "text"
        width = feature_width(module.extractor, shape, text=text) if isinstance(module, Network) else 0
        settings = self.protocol_config.model_dump(mode="json")
        return generator_card(declared, settings, input_shape=shape, classes=classes, features=width)

    @cached_property
    def forms(self) -> Forms:
        """Return the form of the messages that attacks can read."""
        known = None if "architecture" in self.lacks else self.architecture
        return Forms(architecture=known, classes=self.dataset.classes, generator=self.generator)

    @property
    def outages(self) -> tuple[Outage, ...]:
        """Return when clients go silent."""
        return tuple(
            Outage(
                party=f"client/{o.client}",
                first=o.round,
                last=o.round if o.last is None else o.last,
                after=o.after,
            )
            for o in self.spec.outages
        )

    @cached_property
    def common(self) -> Common:
        """Return what every party holds before the first message."""
        return Common(
            networks=self.networks,
            execution=self.execution,
            public=self.public,
            encode=self.encoder,
            task=self.dataset.task,
            public_labels=self.public_labels,
        )

    @cached_property
    def encoder(self) -> TaskEncoder | None:
        """Return a public feature extractor, trained on auxiliary images at first use; None for texts."""
        if self.dataset.task == "text":
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
            taken=frozenset(network.name for network in self.networks.distinct),
            execution=self.execution,
            seed=child_seed(self.seed, "evaluator"),
        )

    def trainer(self) -> Trainer:
        """Return a fresh training core for the server's network, without any party's weights."""
        return Trainer(self.architecture, self.execution)

    def initial(self) -> Parameters:
        """Return the server's initial parameters."""
        return self.networks.initial(["server"], self.seed)["server"]


def make_plan(spec: Spec, secrets: Secrets) -> Plan:
    """Resolve a spec to a plan; write nothing.

    Raises:
        UsageError: a name is unknown, a setting impossible, a dataset absent or damaged.
    """
    protocol = protocols.REGISTRY.load(spec.protocol.name, "protocol.name")
    protocols.REGISTRY.called(spec.protocol.name, "protocol.name")
    if spec.preset is not None and not spec.preset.written_out:
        _, shared = _records(spec, secrets)
        spec = written_out(spec, protocol, sum(len(c.train) for c in shared.clients))
    mistakes = Mistakes()
    with mistakes.apart():
        config = validate(protocol.Config, spec.protocol.params, "protocol.params")
    with mistakes.apart():
        attack_plans = plan_attacks(spec)
    mistakes.refuse()
    protocol = _with_messages(spec, secrets, protocol, config)
    attached = attach(spec, protocol, config)
    _refuse_strangers(spec, protocol, config)
    _refuse_rounds_beyond(spec, config)
    for number, kind in enumerate(spec.withhold):
        if kind not in protocol.withholdable:
            allowed = ", ".join(protocol.withholdable) or "nothing"
            problem = f"cannot be withheld from {spec.protocol.name}"
            raise SpecError(f"withhold.{number}", kind, problem, f"It can live without: {allowed}.")
    dataset, splits = _records(spec, secrets)
    if spec.canaries is not None:
        dataset, splits = insert_canaries(
            dataset, splits, spec.canaries, lambda client: secrets.truth("canaries", client)
        )
    _refuse_other_tasks(spec, protocol, dataset)
    networks = networks_named(spec, dataset.input_shape, dataset.classes, dataset.task, dataset.words)
    _refuse_unlike(networks, spec, protocol)
    refuse_untrainable(attached, spec, networks_of(protocol, networks))
    execution = execution_of(spec, networks)
    _refuse_absent_device(execution.device)
    if getattr(config, "upload", None) == "gradient" and networks.shared.has_batchnorm:
        raise SpecError(
            "protocol.params.upload",
            "gradient",
            f"cannot carry the BatchNorm statistics of {spec.model.name}",
            "Set upload to 'model_update', or the model's norm to 'group'.",
        )
    public, labels = _public(spec, protocol, dataset, splits, secrets)
    refuse_attacks_without_controls(spec, attack_plans, len(splits.auxiliary))
    resolved = spec.model_copy(update=execution.settings)
    plan = Plan(
        spec=resolved,
        secrets=secrets,
        dataset=dataset,
        splits=splits,
        networks=networks,
        public=public,
        execution=execution,
        protocol=protocol,
        protocol_config=config,
        references=tuple(
            _reference(name, config, spec.clients) for name in spec.references if name != protocol.name
        ),
        defenses=attached.messages,
        training=attached.training,
        attacks=attack_plans,
        identity=_identity(resolved, secrets.working_seed, dataset, splits, networks, public, labels),
        public_labels=labels,
    )
    _ = plan.generator  # a wrong declaration is refused now
    set_up(protocol, config, plan.common, plan.clients, plan.seed)  # what it refuses, it refuses now
    return plan


def _with_messages(
    spec: Spec, secrets: Secrets, protocol: type[FederatedProtocol], config: ProtocolConfig
) -> type[FederatedProtocol]:
    """Return the protocol with its messages: those that it declares, or those of a short rehearsal."""
    if getattr(protocol, "messages", None) is not None:
        return protocol
    config.fits(spec.clients)
    dataset, splits = _records(spec, secrets)
    _refuse_other_tasks(spec, protocol, dataset)
    networks = networks_named(spec, dataset.input_shape, dataset.classes, dataset.task, dataset.words)
    public, labels = _public(spec, protocol, dataset, splits, secrets)
    execution = replace(execution_of(spec, networks), device="cpu")
    held, seed = dataset.x[splits.auxiliary], child_seed(secrets.working_seed, "encoder")
    records = held, dataset.y[splits.auxiliary]
    encoder = None
    if dataset.task != "text":
        encoder = TaskEncoder(records, classes=dataset.classes, execution=execution, seed=seed)
    common = Common(
        networks=networks,
        execution=execution,
        public=public,
        encode=encoder,
        task=dataset.task,
        public_labels=labels,
    )
    return with_messages(protocol, config, common, spec.clients)


def _identity(
    spec: Spec, seed: int, dataset: Dataset, splits: Splits, networks: Networks, *public: Tensor | None
) -> str:
    """Return a digest of a run's settings, records, shares and code; any change gives another digest."""
    code = [own_digest(), *(network.source for network in networks.distinct)]
    code += protocols.REGISTRY.source(spec.protocol.name)
    code += [digest for entry in spec.defenses for digest in defenses.REGISTRY.source(entry.name)]
    card = {"spec": spec.digest(), "seed": seed, "data": dataset.sha256(), "code": code}
    return digest_of(card, splits.to_dict(), *(tensor for tensor in public if tensor is not None))


def execution_of(spec: Spec, networks: Networks) -> Execution:
    """Return how the models of a spec are trained on this machine."""
    return Execution.resolve(
        device=spec.device,
        threads=spec.threads,
        strategy=spec.strategy,
        memory_format=spec.memory_format,
        precision=spec.precision,
        compile=spec.compile,
        convolutions=any(n.has_convolutions for n in networks.distinct),
        batchnorm=any(n.has_batchnorm for n in networks.distinct),
        work=max(n.work for n in networks.distinct),
    )


def _records(spec: Spec, secrets: Secrets) -> tuple[Dataset, Splits]:
    """Return the dataset and its splits."""
    dataset = load_dataset(spec.dataset, secrets.truth("dataset"))
    shares = spec.splits if spec.public_dataset is None else spec.splits.model_copy(update={"proxy": 0.0})
    splits = make_splits(dataset, spec.clients, spec.partition, shares, secrets.truth("splits"))
    if spec.dataset.wordpieces is not None:
        return dataset, splits  # the vocabulary is a public file's, made of no text of this run
    public = torch.cat([splits.proxy, splits.auxiliary])
    return known_words(dataset, public, spec.dataset.vocabulary or VOCABULARY), splits


def _refuse_other_tasks(spec: Spec, protocol: type[FederatedProtocol], dataset: Dataset) -> None:
    """Refuse a dataset whose task the protocol or a defence does not support, and what texts do not support."""
    if dataset.task == "text":
        _refuse_beside_texts(spec)
    if dataset.task not in getattr(protocol, "tasks", ONLY_SINGLE_LABEL):
        registry = protocols.REGISTRY
        able = [
            n
            for n in registry.names()
            if dataset.task in registry.describe(n).get("tasks", ONLY_SINGLE_LABEL)
        ]
        problem = f"does not run {dataset.task} data, which {spec.dataset.name} is"
        remedy = f"Protocols that do: {', '.join(able) or 'none'}."
        raise SpecError("protocol.name", spec.protocol.name, problem, remedy)
    for number, entry in enumerate(spec.defenses):
        if dataset.task not in getattr(defenses.REGISTRY.load(entry.name), "tasks", (dataset.task,)):
            problem = f"does not act on answers of {dataset.task} data"
            raise SpecError(
                f"defenses.{number}.name", entry.name, problem, "Choose another defence, or none."
            )


def _refuse_beside_texts(spec: Spec) -> None:
    """Refuse settings that act on images."""
    if spec.public_dataset is not None:
        remedy = "Remove public_dataset: public texts are those of splits.proxy."
        raise SpecError("public_dataset.name", spec.public_dataset.name, "does not go with texts", remedy)
    if spec.auxiliary.others == "shifted":
        remedy = "Set it to 'same' or 'none'."
        raise SpecError("auxiliary.others", "shifted", "turns and blurs images, not texts", remedy)


def networks_named(
    spec: Spec,
    input_shape: tuple[int, ...],
    classes: int,
    task: Task = "single-label",
    words: tuple[str, ...] = (),
) -> Networks:
    """Return the networks that a spec names, for images (c, h, w), or for texts (L,) of these `words`.

    Raises:
        SpecError: a network is unknown, or does not accept such images or texts.
    """

    made: dict[bytes, Architecture] = {}

    def named(entry: ModelSpec) -> Architecture:
        key = canonical(entry.model_dump(mode="json"))
        if key not in made:
            if len(made) == MOST_NETWORKS:
                problem = f"is one of more than {MOST_NETWORKS} different networks"
                raise SpecError("model.name", entry.name, problem, "Use fewer.")
            made[key] = architecture(entry, input_shape, classes, task, words, data_root(spec.dataset.root))
        return made[key]

    shared, own = named(spec.model), []
    for number, entry in enumerate(spec.client_models):
        try:
            own.append(named(entry))
        except SpecError as error:
            field = error.field.replace("model", f"client_models.{number}", 1)
            raise SpecError(field, error.value, error.problem, error.remedy) from None
    return Networks(shared, tuple(own))


def _refuse_unlike(networks: Networks, spec: Spec, protocol: type[FederatedProtocol]) -> None:
    """Refuse networks of clients' own where the protocol needs one for all."""
    for number, own in enumerate(networks.clients):
        if not protocol.heterogeneous and own != networks.shared:
            problem = f"differs from model {spec.model.name!r}: {protocol.name} needs one network for all"
            remedy = "Remove client_models, or choose a protocol that exchanges predictions."
            raise SpecError(f"client_models.{number}.name", own.name, problem, remedy)


def _public(
    spec: Spec, protocol: type[FederatedProtocol], dataset: Dataset, splits: Splits, secrets: Secrets
) -> tuple[Tensor, Tensor | None]:
    """Return the public samples, and their labels if the protocol's parties know them."""
    needed, labelled = protocol.needs_public, labels_public(protocol)
    drawn = secrets.truth("public-dataset")
    return public_samples(spec, dataset, splits, drawn, needed=needed, labelled=labelled)


def refuse_unknown_adversaries(spec: Spec) -> None:
    """Refuse a spec that names an adversary which its protocol does not have; a spec with a preset is not checked yet.

    Raises:
        SpecError: an adversary is no party, or the protocol's settings are wrong.
    """
    if spec.preset is None:
        protocol = protocols.REGISTRY.load(spec.protocol.name, "protocol.name")
        _refuse_strangers(spec, protocol, validate(protocol.Config, spec.protocol.params, "protocol.params"))


def _refuse_strangers(spec: Spec, protocol: type[FederatedProtocol], config: ProtocolConfig) -> None:
    """Refuse an adversary that is not a party of this protocol with these settings."""
    for where, name in spec.asked_adversaries:
        try:
            members_of(name, parties_of(protocol, config, spec.clients))
        except SpecError as error:
            raise SpecError(where, name, f"{error.problem} of {protocol.name}", error.remedy) from None


def _refuse_rounds_beyond(spec: Spec, config: ProtocolConfig) -> None:
    rounds = config.rounds
    beyond = [r for r in spec.record.rounds if r >= rounds] if isinstance(spec.record, RecordRounds) else []
    if beyond:
        problem = f"is no round of a run of {rounds}"
        raise SpecError("record.rounds", beyond[0], problem, f"Rounds count from 0 to {rounds - 1}.")


def _refuse_absent_device(device: str) -> None:
    if not device.startswith("cuda"):
        return
    found, number = torch.cuda.device_count(), int(device.partition(":")[2] or 0)
    if number >= found:
        problem = f"is not there: PyTorch finds {found} CUDA devices"
        raise SpecError("device", device, problem, "Set device to 'cpu' or 'auto'.")


def _reference(
    name: str, config: ProtocolConfig, clients: int
) -> tuple[type[FederatedProtocol], ProtocolConfig]:
    """Return a reference protocol that trains as the run does, with as many records a round in total."""
    cls = protocols.REGISTRY.load(name)
    shared = config.alone()
    if name == "centralized":
        shared["publish"] = False
        if shared.get("local_steps") is not None:
            shared["local_steps"] *= clients
    return cls, validate(cls.Config, shared)
