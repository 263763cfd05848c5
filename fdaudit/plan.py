"""The plan: a spec with every name resolved and every setting checked, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from fdaudit import attacks, defenses, protocols
from fdaudit.config import Config, validate
from fdaudit.data import Dataset, Splits, load_dataset, make_splits, test_xy
from fdaudit.errors import SpecError, nearest
from fdaudit.execution import Execution
from fdaudit.models import Architecture, architecture
from fdaudit.rehearsal import parties_of
from fdaudit.rng import child
from fdaudit.spec import RecordRounds, Spec
from fdaudit.training import Parameters, Trainer, parameters_of
from fdaudit.view import members_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AttackPlan", "Plan", "make_plan", "plan_attack"]


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """One attack with its card, class and settings; the last two are None where the spec does not ask for it."""

    name: str
    card: Mapping[str, Any]
    cls: Any
    config: Config | None
    adversaries: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything a run needs, resolved.

    Attributes:
        spec: with device, threads, strategy and memory format filled in.
        seed: the run's seed.
        dataset: all images; only the auditor and the splits' owners see their parts.
        splits: who holds which records.
        architecture: the network of the federation.
        execution: how training runs.
        protocol: the protocol's class.
        protocol_config: its settings.
        references: reference protocols with their settings.
        defenses: by (kind, sender role).
        attacks: every known attack, requested or not.
    """

    spec: Spec
    seed: int
    dataset: Dataset
    splits: Splits
    architecture: Architecture
    execution: Execution
    protocol: Any
    protocol_config: Config
    references: tuple[tuple[Any, Config], ...]
    defenses: Mapping[tuple[str, str], tuple[Any, ...]]
    attacks: tuple[AttackPlan, ...]

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' names."""
        return tuple(f"client/{k}" for k in range(self.spec.clients))

    @property
    def parties(self) -> tuple[str, ...]:
        """Every party, in the order roles are declared, and `world` last."""
        return parties_of(self.protocol, self.spec.clients)

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Held-out records for accuracy."""
        return test_xy(self.dataset, self.splits)

    def records(self, client: str) -> tuple[Tensor, Tensor]:
        """The records (x, y) that a client trains on."""
        index = self.splits.clients[int(client.partition("/")[2])].train
        return self.dataset.x[index], self.dataset.y[index]

    @property
    def auxiliary(self) -> tuple[Tensor, Tensor]:
        """The records that an adversary is assumed to hold."""
        index = self.splits.auxiliary
        return self.dataset.x[index], self.dataset.y[index]

    def trainer(self) -> Trainer:
        """A fresh training core: no weights of any party in it."""
        return Trainer(self.architecture, self.execution)

    def initial(self) -> Parameters:
        """The public initial parameters."""
        return parameters_of(self.architecture.build(child(self.seed, "initial-parameters")))


def make_plan(spec: Spec, seed: int) -> Plan:
    """Resolves a spec; nothing is written.

    Raises:
        UsageError: a name is unknown, a setting impossible, a dataset absent or damaged.
    """
    protocol = protocols.REGISTRY.load(spec.protocol.name, "protocol.name")
    config = validate(protocol.Config, spec.protocol.params, "protocol.params")
    attack_plans = _attacks(spec)
    attached = _defenses(spec, protocol, config)
    _refuse_strangers(spec, protocol)
    _refuse_rounds_beyond(spec, config)
    for number, kind in enumerate(spec.withhold):
        if kind not in protocol.withholdable:
            allowed = ", ".join(protocol.withholdable) or "nothing"
            problem = f"cannot be withheld from {spec.protocol.name}"
            raise SpecError(f"withhold.{number}", kind, problem, f"It can live without: {allowed}.")
    dataset = load_dataset(spec.dataset, child(seed, "dataset"))
    network = architecture(spec.model, dataset.input_shape, dataset.classes)
    execution = Execution.resolve(
        device=spec.device,
        threads=spec.threads,
        strategy=spec.strategy,
        memory_format=spec.memory_format,
        convolutions=network.has_convolutions,
        batchnorm=network.has_batchnorm,
    )
    _refuse_absent_device(execution.device)
    if getattr(config, "upload", None) == "gradient" and network.has_batchnorm:
        raise SpecError(
            "protocol.params.upload",
            "gradient",
            f"cannot carry the BatchNorm statistics of {spec.model.name}",
            "Set upload to 'model_update', or the model's norm to 'group'.",
        )
    splits = make_splits(dataset, spec.clients, spec.partition, spec.splits, child(seed, "splits"))
    _refuse_attacks_without_controls(spec, attack_plans, len(splits.auxiliary))
    return Plan(
        spec=spec.model_copy(update=vars(execution)),
        seed=seed,
        dataset=dataset,
        splits=splits,
        architecture=network,
        execution=execution,
        protocol=protocol,
        protocol_config=config,
        references=tuple(
            _reference(name, config, spec.clients) for name in spec.references if name != protocol.name
        ),
        defenses=attached,
        attacks=attack_plans,
    )


def _attacks(spec: Spec) -> tuple[AttackPlan, ...]:
    wanted = None if spec.attacks == "all" else {a.name: (n, a) for n, a in enumerate(spec.attacks)}
    known = attacks.REGISTRY.names()
    for number, asked in enumerate(() if spec.attacks == "all" else spec.attacks):
        field = f"attacks.{number}.name"
        if asked.name not in known:
            raise SpecError(field, asked.name, "is not a known attack", nearest(asked.name, known))
        if wanted is not None and wanted[asked.name][0] != number:
            raise SpecError(field, asked.name, "is asked for twice", "Keep one of them.")
    plans = []
    for name in known:
        if wanted is not None and name not in wanted:
            plans.append(AttackPlan(name, attacks.REGISTRY.describe(name), None, None, spec.adversaries))
            continue
        number, entry = wanted[name] if wanted else (0, None)
        plans.append(
            plan_attack(
                name,
                entry.params if entry else {},
                spec,
                f"attacks.{number}.params",
                (entry.adversaries if entry else None) or spec.adversaries,
            )
        )
    return tuple(plans)


def plan_attack(
    name: str, params: Mapping[str, Any], spec: Spec, where: str, adversaries: tuple[str, ...]
) -> AttackPlan:
    """One attack under the spec's profile, with the user's own settings above the profile's.

    Raises:
        SpecError: the attack or one of its settings is unknown or out of range.
    """
    cls = attacks.REGISTRY.load(name, "attack")
    config = validate(cls.Config, {**cls.profiles[spec.profile], **params}, where)
    return AttackPlan(name, attacks.REGISTRY.describe(name), cls, config, adversaries)


def _defenses(spec: Spec, protocol: Any, config: Config) -> dict[tuple[str, str], tuple[Any, ...]]:
    attached: dict[tuple[str, str], tuple[Any, ...]] = {}
    for number, entry in enumerate(spec.defenses):
        sent = sorted(
            {m["kind"] for m in protocol.messages if m["from"] == entry.sender and _sent(m, config)}
        )
        if entry.kind not in sent:
            # A defence on a message that is never sent would protect nothing, and nobody would be told.
            problem = f"is never sent by a {entry.sender} in {protocol.name} with these settings"
            raise SpecError(
                f"defenses.{number}.kind", entry.kind, problem, nearest(entry.kind, sent or ["nothing"])
            )
        cls = defenses.REGISTRY.load(entry.name, f"defenses.{number}.name")
        built = cls(validate(cls.Config, entry.params, f"defenses.{number}.params"))
        key = (entry.kind, entry.sender)
        attached[key] = (*attached.get(key, ()), built)
    return attached


def _sent(message: Mapping[str, Any], config: Config) -> bool:
    """Whether a declared message is sent under these settings: `when` names the ones that it depends on."""
    return all(getattr(config, field) == value for field, value in message.get("when", {}).items())


def _refuse_strangers(spec: Spec, protocol: Any) -> None:
    """An adversary must be a party of this protocol, which only the protocol knows."""
    asked = [("adversaries", spec.adversaries)]
    for number, entry in enumerate(() if spec.attacks == "all" else spec.attacks):
        asked.append((f"attacks.{number}.adversaries", entry.adversaries or ()))
    for field, names in asked:
        for name in names:
            try:
                members_of(name, parties_of(protocol, spec.clients))
            except SpecError as error:
                raise SpecError(field, name, f"{error.problem} of {protocol.name}", error.remedy) from None


def _refuse_rounds_beyond(spec: Spec, config: Config) -> None:
    rounds: int = config.rounds  # type: ignore[attr-defined]
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


def _refuse_attacks_without_controls(spec: Spec, plans: tuple[AttackPlan, ...], auxiliary: int) -> None:
    """Controls are run on auxiliary records; an attack without them would show nothing."""
    for plan in plans:
        # The images of a reconstruction control and one record for the prior; one pair for membership.
        needed = int(plan.card["control"]["images"]) + 1 if plan.card.get("control") else 2
        if plan.config is not None and auxiliary < needed:
            problem = f"leaves {auxiliary} auxiliary records, the controls of {plan.name} need {needed}"
            raise SpecError(
                "splits.auxiliary", spec.splits.auxiliary, problem, "Raise it, or set attacks: []."
            )


def _reference(name: str, config: Config, clients: int) -> tuple[Any, Config]:
    """A reference protocol that trains as the run's does, with as many records a round in all."""
    cls = protocols.REGISTRY.load(name)
    shared = {f: getattr(config, f) for f in cls.Config.model_fields if hasattr(config, f)}
    if name == "centralized":
        shared["publish"] = False
        if shared.get("local_steps") is not None:
            shared["local_steps"] *= clients
    return cls, validate(cls.Config, shared)
