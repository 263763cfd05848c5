"""Refusals of a spec whose parts do not go together: each error names the field, its value and a remedy.

Each function checks what is known at its point of `fdaudit.planning.simulated`: settings before any record is read,
records before a network is built, networks before anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fdaudit import defenses, deviations, protocols
from fdaudit.adversary.view import members_of
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.federation.local_settings import LocalSteps
from fdaudit.federation.rehearsal import parties_of
from fdaudit.spec.schema import RecordRounds, Spec
from fdaudit.training.replicas import rehearsed

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.federation.networks import Networks
    from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig
    from fdaudit.tasks import Task

__all__ = [
    "refuse_absent_device",
    "refuse_networks",
    "refuse_precision",
    "refuse_records",
    "refuse_settings",
    "refuse_strangers",
    "refuse_unknown_adversaries",
]

_ROUNDS = (8, 0)
"""The compute capability of the first GPUs with TF32 and bfloat16."""


def refuse_settings(
    spec: Spec, protocol: type[FederatedProtocol], config: ProtocolConfig, parties: Sequence[str]
) -> None:
    """Refuse settings that the protocol does not allow.

    Args:
        spec: the spec, with its preset written out.
        protocol: its protocol.
        config: the protocol's settings.
        parties: every party that takes part with these settings.

    Raises:
        SpecError: there are too few clients, an adversary is no party, a defence is unknown, a round is never played,
            or a kind of message cannot be withheld.
    """
    config.fits(spec.clients)
    refuse_strangers(spec.asked_adversaries, parties, protocol.card.name)
    for number, entry in enumerate(spec.defenses):
        defenses.REGISTRY.load(entry.name, f"defenses.{number}.name")
    for number, deviating in enumerate(spec.deviations):
        deviations.REGISTRY.load(deviating.name, f"deviations.{number}.name")
    recorded = spec.record.rounds if isinstance(spec.record, RecordRounds) else ()
    for number in recorded:
        if number >= config.rounds:
            problem = f"is no round of a run of {config.rounds}"
            raise SpecError("record.rounds", number, problem, f"Rounds count from 0 to {config.rounds - 1}.")
    for number, kind in enumerate(spec.withhold):
        if kind not in protocol.card.withholdable:
            allowed = ", ".join(protocol.card.withholdable) or "nothing"
            problem = f"cannot be withheld from {spec.protocol.name}"
            raise SpecError(f"withhold.{number}", kind, problem, f"It can live without: {allowed}.")


def refuse_unknown_adversaries(spec: Spec) -> None:
    """Refuse a spec that names an adversary which its protocol does not have; a spec with a preset is not checked yet.

    Raises:
        SpecError: an adversary is no party, or the protocol's settings are wrong.
    """
    if spec.preset is None:
        protocol = protocols.REGISTRY.load(spec.protocol.name, "protocol.name")
        config = validate(protocol.Config, spec.protocol.params, "protocol.params")
        parties = parties_of(protocol, config, spec.clients)
        refuse_strangers(spec.asked_adversaries, parties, protocol.card.name)


def refuse_strangers(
    adversaries: Sequence[tuple[str, str]], parties: Sequence[str], protocol: str = ""
) -> None:
    """Refuse an adversary that is not a party.

    Args:
        adversaries: the field that names an adversary, and its name.
        parties: every party.
        protocol: whose parties they are, for the message; empty for a recording.

    Raises:
        SpecError: an adversary has a member that is no party.
    """
    for field, name in adversaries:
        try:
            members_of(name, parties)
        except SpecError as error:
            problem = f"{error.problem} of {protocol}" if protocol else error.problem
            raise SpecError(field, name, problem, error.remedy) from None


def refuse_records(
    spec: Spec,
    protocol: type[FederatedProtocol],
    attacks: Sequence[AttackPlan],
    task: Task,
    auxiliary: int,
) -> None:
    """Refuse records that the protocol, a defence, a setting or an attack cannot use.

    Args:
        spec: the spec.
        protocol: its protocol.
        attacks: every known attack, requested or not.
        task: the learning task of the records.
        auxiliary: number of auxiliary records.

    Raises:
        SpecError: the task is not supported, a setting is for other records, or too few auxiliary records are left for
            the controls of an attack.
    """
    inputs = task.inputs
    if spec.public_dataset is not None and not inputs.public_from_elsewhere:
        problem = f"does not go with {inputs.plural}"
        remedy = f"Remove public_dataset: public {inputs.plural} are those of splits.proxy."
        raise SpecError("public_dataset.name", spec.public_dataset.name, problem, remedy)
    if spec.auxiliary.others == "shifted" and not inputs.shifted:
        problem, remedy = f"turns and blurs images, not {inputs.plural}", "Set it to 'same' or 'none'."
        raise SpecError("auxiliary.others", "shifted", problem, remedy)
    for name in ("augmentation", "distill_augmentation"):
        changed = spec.protocol.params.get(name)
        if changed and (not inputs.shifted or task.labels.dense):
            problem = "changes images only"
            if inputs.shifted:
                problem = "shifts and mirrors images without their masks"
            raise SpecError(f"protocol.params.{name}", changed, problem, "Leave it out.")
    if task.name not in protocol.card.tasks:
        registry = protocols.REGISTRY
        others = []
        for name in registry.names():
            if task.name in registry.describe(name).tasks:
                others.append(name)
        problem = f"does not run {task.name} data, which {spec.dataset.name} is"
        remedy = f"Protocols that do: {', '.join(others) or 'none'}."
        raise SpecError("protocol.name", spec.protocol.name, problem, remedy)
    for number, entry in enumerate(spec.defenses):
        able = defenses.REGISTRY.load(entry.name).card.tasks
        if able and task.name not in able:
            problem = f"does not act on answers of {task.name} data"
            remedy = "Choose another defence, or none."
            raise SpecError(f"defenses.{number}.name", entry.name, problem, remedy)
    for attack in attacks:
        # A record of each client of a reconstruction control and one for the prior; one pair for membership.
        control = attack.card.control
        needed = int(control.get("clients", control.get("images", 1))) + 1
        if attack.params is not None and auxiliary < needed:
            problem = f"leaves {auxiliary} auxiliary records, the controls of {attack.name} need {needed}"
            remedy = "Raise it, or set attacks: []."
            raise SpecError("splits.auxiliary", spec.splits.auxiliary, problem, remedy)


def refuse_networks(
    spec: Spec,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    networks: Networks,
    sizes: Sequence[int],
    device: str,
) -> None:
    """Refuse networks that the protocol cannot train or send.

    Args:
        spec: the spec.
        protocol: its protocol.
        config: the protocol's settings.
        networks: the networks that the spec names.
        sizes: number of records of each client.
        device: where they are trained.

    Raises:
        SpecError: clients have networks of their own where one is for all, a gradient cannot carry a network's
            statistics, or a batch has one record and the network cannot be trained on it (BatchNorm).
    """
    for number, own in enumerate(networks.clients):
        if not protocol.card.heterogeneous and own != networks.shared:
            problem = (
                f"differs from model {spec.model.name!r}: {protocol.card.name} needs one network for all"
            )
            remedy = "Remove client_models, or choose a protocol that exchanges predictions."
            raise SpecError(f"client_models.{number}.name", own.name, problem, remedy)
    if getattr(config, "upload", None) == "gradient" and rehearsed(networks.shared, device).keeps:
        raise SpecError(
            "protocol.params.upload",
            "gradient",
            f"cannot carry the statistics that {spec.model.name} keeps of its batches, as BatchNorm does",
            "Set upload to 'model_update', or use GroupNorm (`norm: group` in the zoo's networks).",
        )
    if isinstance(config, LocalSteps):
        _refuse_lone_records(config, networks, sizes, device)


def _refuse_lone_records(config: LocalSteps, networks: Networks, sizes: Sequence[int], device: str) -> None:
    """Refuse batches of one record for a network that cannot be trained on them."""
    for k, size in enumerate(sizes):
        network = networks.of(f"client/{k}")
        if config.smallest_batch(size) > 1 or rehearsed(network, device).single:
            continue
        problem = f"leaves a batch of one of the {size} records of client/{k}"
        problem += f", and {network.name} cannot be trained on one record"
        remedy = "Set local_steps, which take full batches."
        for batch_size in range(config.batch_size + 1, max(sizes) + 2):
            larger = config.model_copy(update={"batch_size": batch_size})
            if min(map(larger.smallest_batch, sizes)) > 1:
                remedy = f"Set local_steps, which take full batches, or batch_size to {batch_size}."
                break
        raise SpecError("protocol.params.batch_size", config.batch_size, problem, remedy)


def refuse_absent_device(device: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        SpecError: the device is absent.
    """
    if not device.startswith("cuda"):
        return
    count, number = torch.cuda.device_count(), int(device.partition(":")[2] or 0)
    if number >= count:
        problem = f"is not there: PyTorch finds {count} CUDA devices"
        raise SpecError("device", device, problem, "Set device to 'cpu' or 'auto'.")


def refuse_precision(precision: str, device: str) -> None:
    """Refuse a precision that a device cannot compute with.

    Raises:
        SpecError: `tf32` on a CPU; `tf32` or `bfloat16` on a GPU without them.
    """
    on_gpu = device.startswith("cuda")
    if precision == "tf32" and not on_gpu:
        problem = "needs a CUDA device, and this run would use the CPU"
        raise SpecError("precision", precision, problem, "Set precision to 'float32', or device to 'cuda'.")
    if precision in ("tf32", "bfloat16") and on_gpu:
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < _ROUNDS:
            problem = f"needs a GPU of compute capability 8.0 or later, and {device} has {major}.{minor}"
            raise SpecError("precision", precision, problem, "Set precision to 'float32'.")
