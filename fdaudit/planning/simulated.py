"""The case of a simulation: a spec with every name resolved and every setting checked, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fdaudit import defenses, deviations, protocols
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.config import validate
from fdaudit.data import Dataset, Splits, insert_canaries, load_dataset, make_splits, public_samples
from fdaudit.data.datasets import VOCABULARY, data_root
from fdaudit.data.tables.known import known_columns
from fdaudit.data.texts.vocabulary import known_words
from fdaudit.deviations.attached import DeviatingParty, attach_deviations
from fdaudit.errors import Mistakes, SpecError
from fdaudit.federation.defenses import attach, refuse_untrainable
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig, applies, broadcasts
from fdaudit.federation.rehearsal import networks_of, parties_of, set_up, with_messages
from fdaudit.limits import MOST_NETWORKS
from fdaudit.models import Architecture, architecture
from fdaudit.planning.attacks import plan_attacks
from fdaudit.planning.case import Case
from fdaudit.planning.presets import written_out
from fdaudit.planning.refusals import (
    refuse_absent_device,
    refuse_networks,
    refuse_precision,
    refuse_records,
    refuse_settings,
)
from fdaudit.spec.code import own_digest
from fdaudit.spec.privacy import PresetSpec
from fdaudit.spec.schema import ModelSpec, Spec
from fdaudit.storage.cache import digest_of
from fdaudit.storage.digests import canonical
from fdaudit.storage.vault import Secrets
from fdaudit.tasks import SINGLE_LABEL, Task
from fdaudit.training.execution import Execution, default_device
from fdaudit.training.replicas import rehearsed

if TYPE_CHECKING:
    from torch import Tensor


__all__ = [
    "candidates_of",
    "execution_of",
    "networks_named",
    "references_of",
    "simulated_case",
]


def simulated_case(spec: Spec, secrets: Secrets) -> Case:
    """Resolve a spec to the case of a simulation; write nothing.

    Raises:
        UsageError: a name is unknown, a setting impossible, a dataset absent or damaged.
    """
    protocol = protocols.REGISTRY.load(spec.protocol.name, "protocol.name")
    protocols.REGISTRY.called(spec.protocol.name, "protocol.name")
    records: tuple[Dataset, Splits] | None = None
    if spec.preset is not None and not spec.preset.written_out:
        records = _records(spec, secrets)
        spec = written_out(spec, protocol, sum(len(client.train) for client in records[1].clients))
    mistakes = Mistakes()
    with mistakes.apart():
        config = validate(protocol.Config, spec.protocol.params, "protocol.params")
    with mistakes.apart():
        attacks = plan_attacks(spec)
    mistakes.refuse()
    if spec.loss is not None:
        remedy = "Leave it out: protocols have losses of their own."
        raise SpecError("loss", spec.loss, "is for imports", remedy)
    parties = parties_of(protocol, config, spec.clients)
    refuse_settings(spec, protocol, config, parties)
    # Wrong settings are refused now.
    references_of(spec.references, spec.clients, protocol, config, spec.preset)
    dataset, splits = records or _records(spec, secrets)
    if spec.canaries is not None:
        dataset, splits = insert_canaries(
            dataset, splits, spec.canaries, lambda client: secrets.truth("canaries", client)
        )
    if "model" not in spec.model_fields_set:
        spec = spec.model_copy(update={"model": ModelSpec(name=dataset.task.inputs.network)})
    refuse_records(spec, protocol, attacks, dataset.task, len(splits.auxiliary))
    networks = networks_named(
        spec.model,
        spec.client_models,
        data_root(spec.dataset.root),
        dataset.input_shape,
        dataset.classes,
        dataset.task,
        dataset.words,
    )
    execution = execution_of(spec, networks)
    sizes = [len(client.train) for client in splits.clients]
    refuse_networks(spec, protocol, config, networks, sizes, execution.device)
    public, labels = public_samples(
        spec,
        dataset,
        splits,
        secrets.truth("public-dataset"),
        needed=protocol.card.needs_public,
        labelled=protocol.card.needs_labels,
    )
    resolved = spec.model_copy(update=execution.settings)
    case = Case(
        spec=resolved,
        secrets=secrets,
        dataset=dataset,
        splits=splits,
        networks=networks,
        public=public,
        public_labels=labels,
        execution=execution,
        protocol=protocol,
        protocol_config=config,
        settings=config.model_dump(mode="json"),
        stand_in=(protocol, config),
        parties=parties,
        declared_messages=(),
        initial_seed=_broadcast_seed(protocol, networks, secrets.working_seed),
        defenses={},
        training={},
        attacks=attacks,
        identity=_identity(resolved, secrets.working_seed, dataset, splits, networks, public, labels),
    )
    return _with_messages(case)


def _with_messages(case: Case) -> Case:
    """Return a case with its protocol's messages and the defences on them.

    A short rehearsal on the CPU finds the messages of a protocol that declares none.

    Raises:
        SpecError: a defence does not fit, or the protocol refuses its settings for these networks and records.
    """
    protocol, config, spec, networks = case.protocol, case.protocol_config, case.spec, case.named_networks
    if protocol.card.messages is None:
        on_cpu = replace(case, execution=replace(case.execution, device="cpu"))
        protocol = with_messages(protocol, config, on_cpu.common, spec.clients)
    attached = attach(spec.defenses, protocol, config, spec.clients)
    refuse_untrainable(attached, spec.model, spec.client_models, networks_of(protocol, networks))
    declared = []
    for message in protocol.card.declared_messages:
        if applies(message.get("when", {}), config):
            declared.append(message)
    deviants: Mapping[str, DeviatingParty] = {}
    if spec.deviations:
        known, seed = _known_to_deviants(case), case.deviations_seed
        deviants = attach_deviations(spec.deviations, protocol.card, declared, case.parties, known, seed)
    public, labels = case.public, case.public_labels
    checks = chain.from_iterable(attached.checks.values())
    if not any(getattr(check, "keeps_public", False) for check in checks):
        for deviant in deviants.values():
            public, labels = deviant.hands_out(public, labels)
    case = replace(
        case,
        protocol=protocol,
        stand_in=(protocol, config),
        declared_messages=declared,
        defenses=attached.messages,
        training=attached.training,
        deviants=deviants,
        checks=attached.checks,
        public=public,
        public_labels=labels,
    )
    _ = case.generator  # a wrong declaration is refused now
    set_up(protocol, config, case.common, case.clients, case.seed)  # what it refuses, it refuses now
    return case


def _known_to_deviants(case: Case) -> Knowledge:
    """Return what parties that deviate may know: the network, public samples, an adversary's auxiliary records and, if
    a deviation says so, the candidates of membership.
    """
    if case.spec.auxiliary.others == "shifted":
        problem = "does not go with deviations"
        raise SpecError("auxiliary.others", "shifted", problem, "Set it to 'same' or 'none'.")
    auxiliary = public = None
    if case.spec.auxiliary.others == "same" and len(case.splits.auxiliary):
        auxiliary = case.auxiliary
    if len(case.public):
        public = case.public
    return Knowledge(
        architecture=case.architecture,
        auxiliary=auxiliary,
        public=public,
        classes=case.dataset.classes,
        task=case.dataset.task,
        candidates=candidates_of(case),
    )


def candidates_of(case: Case) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return each client's candidates (x, y) in random order, so that their places do not tell members."""
    candidates = {}
    for client, split in zip(case.clients, case.splits.clients, strict=True):
        rows = torch.cat([split.members, split.non_members])
        order = case.secrets.truth("candidates-of-deviants", client).permutation(len(rows))
        rows = rows[torch.from_numpy(order)]
        candidates[client] = case.dataset.x[rows], case.dataset.y[rows]
    return candidates


def _identity(
    spec: Spec, seed: int, dataset: Dataset, splits: Splits, networks: Networks, *public: Tensor | None
) -> str:
    """Return a digest of a run's settings, records, shares and code; any change gives another digest."""
    code = [own_digest(), *(network.source for network in networks.distinct)]
    code += protocols.REGISTRY.source(spec.protocol.name)
    for defense in spec.defenses:
        code += defenses.REGISTRY.source(defense.name)
    for deviation in spec.deviations:
        code += deviations.REGISTRY.source(deviation.name)
    card = {"spec": spec.digest(), "seed": seed, "data": dataset.sha256(), "code": code}
    tensors = []
    for tensor in public:
        if tensor is not None:
            tensors.append(tensor)
    return digest_of(card, splits.to_dict(), *tensors)


def _broadcast_seed(protocol: type[FederatedProtocol], networks: Networks, seed: int) -> int | None:
    """Return the seed of the initial weights that the server broadcasts; None if each client has its own."""
    return networks.initial_seed(seed) if broadcasts(protocol) else None


def execution_of(spec: Spec, networks: Networks | None) -> Execution:
    """Return how the models of a spec are trained on this machine."""
    distinct = () if networks is None else networks.distinct
    device = spec.device
    if device == "auto":
        device = default_device(lambda: _work_of(distinct))
    refuse_absent_device(device)
    refuse_precision(spec.precision, device)
    # Networks of the zoo are tried when they are first trained: a card may name one that is too large to build here.
    trials = [rehearsed(network, device) for network in distinct if network.imported]
    own_norms = any(network.has_batchnorm for network in distinct if not network.imported)
    contiguous_only = any(trial.contiguous_only for trial in trials)
    if contiguous_only and spec.memory_format == "channels_last":
        problem = "does not go with a network that runs on contiguous images only"
        raise SpecError("memory_format", spec.memory_format, problem, "Set it to 'auto'.")
    return Execution.resolve(
        device=device,
        threads=spec.threads,
        strategy=spec.strategy,
        memory_format=spec.memory_format,
        precision=spec.precision,
        compile=spec.compile,
        convolutions=any(n.has_convolutions for n in distinct),
        stackable=device.startswith("cuda") and all(trial.stackable for trial in trials) and not own_norms,
        contiguous_only=contiguous_only,
        work=0.0 if spec.threads == 1 else _work_of(distinct),
    )


def _work_of(networks: Sequence[Architecture]) -> float:
    """Return the floating-point operations of a forward pass of the largest network."""
    return float(max((network.work for network in networks), default=0))


def _records(spec: Spec, secrets: Secrets) -> tuple[Dataset, Splits]:
    """Return the dataset and its splits."""
    dataset = load_dataset(spec.dataset, secrets.truth("dataset"))
    shares = spec.splits
    if spec.public_dataset is not None:
        shares = shares.model_copy(update={"proxy": 0.0})
    splits = make_splits(dataset, spec.clients, spec.partition, shares, secrets.truth("splits"))
    if spec.dataset.wordpieces is not None:
        return dataset, splits  # the vocabulary is a public file's, made of no text of this run
    public = torch.cat([splits.proxy, splits.auxiliary])
    dataset = known_columns(dataset, public)
    return known_words(dataset, public, spec.dataset.vocabulary or VOCABULARY), splits


def networks_named(
    model: ModelSpec,
    client_models: Sequence[ModelSpec],
    root: Path,
    input_shape: tuple[int, ...],
    classes: int,
    task: Task = SINGLE_LABEL,
    words: tuple[str, ...] = (),
) -> Networks:
    """Return the networks that a spec names, for images (c, h, w), or for texts (L,) of these `words`.

    Args:
        model: the network of the server, and of every client without its own.
        client_models: the clients' own networks, if any.
        root: the folder of datasets, where pretrained networks are.
        input_shape: of one record.
        classes: number of classes.
        task: the learning task.
        words: the word of each token number, for texts.

    Raises:
        SpecError: a network is unknown, or does not accept such images or texts.
    """
    by_spec: dict[bytes, Architecture] = {}

    def network_of(entry: ModelSpec) -> Architecture:
        key = canonical(entry.model_dump(mode="json"))
        if key not in by_spec:
            if len(by_spec) == MOST_NETWORKS:
                problem = f"is one of more than {MOST_NETWORKS} different networks"
                raise SpecError("model.name", entry.name, problem, "Use fewer.")
            by_spec[key] = architecture(entry, input_shape, classes, task, words, root)
        return by_spec[key]

    shared, own = network_of(model), []
    for number, entry in enumerate(client_models):
        try:
            own.append(network_of(entry))
        except SpecError as error:
            field = error.field.replace("model", f"client_models.{number}", 1)
            raise SpecError(field, error.value, error.problem, error.remedy) from None
    return Networks(shared, tuple(own))


def references_of(
    names: Sequence[str],
    clients: int,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    preset: PresetSpec | None = None,
) -> tuple[tuple[type[FederatedProtocol], ProtocolConfig], ...]:
    """Return the reference protocols of these names, with their settings.

    Each trains as the run does, with as many records a round in total. What a preset tuned for noise would spoil
    training without it, and is left out.

    Args:
        names: of the reference protocols.
        clients: number of clients.
        protocol: the run's protocol, which is no reference for itself.
        config: its settings.
        preset: the run's.

    Raises:
        SpecError: a reference is unknown, or a setting does not fit it.
    """
    if preset is not None and preset.tuned:
        untuned = config.model_dump(exclude_unset=True, exclude=set(preset.tuned))
        config = validate(protocol.Config, untuned, "protocol.params")
    references = list[tuple[type[FederatedProtocol], ProtocolConfig]]()
    for name in names:
        if name == protocol.card.name:
            continue
        cls, shared = protocols.REGISTRY.load(name), config.alone()
        if name == "centralized":
            shared["publish"] = False
            if shared.get("local_steps") is not None:
                shared["local_steps"] *= clients
        references.append((cls, validate(cls.Config, shared)))
    return tuple(references)
