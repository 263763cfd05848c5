"""Runs protocols on small data with every call to the wire watched; shared by the tests of protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.protocols import REGISTRY
from torch import Tensor

from fdaudit.config import Config, validate
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, PartyData, Round
from fdaudit.federation.rehearsal import kinds_of, parties_of, setting_of
from fdaudit.models import Architecture, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.storage.files import decode, encode
from fdaudit.tasks import SEGMENTATION, SINGLE_LABEL, TEXT, Task
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Parameters, Trainer
from fdaudit.transcript.messages import ALL, DATA, Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, Position, Transcript, read_messages
from fdaudit.transcript.wire import Delivery, Outage, Wire

SECRET = b"a secret of the auditor, not the seed"
SIZES = (9, 6, 12)
"""Records by client: unequal, so that weights show."""
CLASSES = 3
SHAPE = (1, 8, 8)
LENGTH, WORDS = 6, 20
"""Tokens of a text, and words of the vocabulary, of `task=TEXT`."""

FAST = {"lr": 1.0, "local_steps": 12}
"""Makes a few records enough to change a predicted class."""

VOTES = {"outputs": "votes", "weights": "uniform", "shares": "uniform"}
"""FedIOD with labels in place of logits."""

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"upload": "gradient"}),
    ("fedavg", {"upload": "model_update", "local_steps": 2, "momentum": 0.5}),
    ("fedavg", {"upload": "model_parameters", "local_epochs": 1, "mu": 0.1}),
    ("fedavg", {"fraction": 0.34, "local_steps": 1}),
    ("fedavg", {"optimizer": "adam", "send_state": True, "local_steps": 1, "clip": {"norm": 0.5}}),
    ("fedavg", {"server_momentum": 0.9, "weighting": "uniform", "fraction": 0.67}),
    ("fedavg", {"aggregation": "secure", "weighting": "uniform", "fraction": 0.67, "momentum": 0.5}),
    ("fedavg", {"aggregation": "secure", "weighting": "uniform", "server_momentum": 0.5}),
    ("fedkd", {"distill_rounds": 3, "temperature": 3.0, "weights": "uniform", "grid": "eq3", "levels": 6}),
    ("fedkd", {"levels": None, "noise_at": "client", "clip": 5.0, "distill_optimizer": "sgd"}),
    ("fedkd", {"z_max": 4.0, "gamma": None, "local_steps": 3, "final_lr": 0.01}),
    ("fedkd", {"ensemble": "votes", "temperature": 2.0, "distill_optimizer": "sgd", **FAST}),
    ("ds-fl", {"aggregation": "sa", "share": "hard_labels", "public_batch": 4, **FAST}),
    ("cronus", {"sigma": 0.01, "public_batch": 4, "warm_up_steps": 0}),
    # By a mean of votes: the filter would ignore one client's that change, as it should.
    ("cronus", {"share": "hard_labels", "sigma": 0.24, **FAST}),
    ("fedgems", {"epsilon": 0.0, "public_batch": 4, "warm_up_steps": 0}),
    ("fedgems", {"epsilon": 1.0, "distill_batch_size": None, **FAST}),
    ("feddf", {"fraction": 0.67, "distill_batch_size": 3, "temperature": 2.0}),
    ("fedftg", {"fraction": 0.67, "ensemble": "uniform", "labels": "uniform", "generator_steps": 2}),
    ("fedftg", {"iterations": 0}),
    ("fedgen", {"share": "head", "fraction": 0.67, "momentum": 0.5, "weighting": "uniform"}),
    (
        "fedgen",
        {"ensemble": "logits", "labels": "classes", "beta": 0.0, "diversity": 0.0, "final_lr": 1e-3},
    ),
    ("feded", {"share": "hard_labels", "distill_batch_size": 2, "distill_lr": 0.05, **FAST}),
    ("fedmd", {"share": "hard_labels", "public_batch": 4, "warm_up_steps": 0, **FAST}),
    ("fedmd", {"share": "soft_labels", "order": "revisit-digest", "local_steps": 1}),
    ("fkd", {"share": "hard", "gamma": 0.5, "momentum": 0.5, **FAST}),
    ("pls", {"share": "hard", **FAST, "local_steps": 40}),
    (
        "selective-fd",
        {"labels": "soft", "public_batch": 5, "tau_server": 1.2, "space": "features", "landmarks": 5},
    ),
    ("selective-fd", {"selector": "confidence", "local_steps": 0, "tau_client": 0.1}),
    ("selective-fd", {"selector": "energy", "labels": "soft", "warm_up_steps": 0}),
    ("selective-fd", {"selector": "none", "order": "local-first"}),
    ("selective-fd", {"ensemble": "votes", "selector": "confidence", "tau_client": 0.1}),
    ("selective-fd", {"ensemble": "votes", "aggregator": "secure", "selector": "none", "public_batch": 5}),
    ("standalone", {"momentum": 0.5}),
    ("centralized", {"weight_decay": 0.01}),
    ("dafkd", {"upload_discriminator": False, "fraction": 0.67, "weighting": "samples"}),
    ("dafkd", {"share_extractor": False}),
    (
        "dafkd",
        {"recognised": 0.0, "diversity": 0.0, "weights": "uniform", "local_steps": 2, "momentum": 0.5},
    ),
    ("fediod", {"weights": "samples", "mimic": 0.5, "student_steps": 1, "replay": 0}),
    ("fediod", {"weights": "uniform", "shares": "uniform", "temperature": 2.0, "local_steps": 3}),
    ("fediod", {"gradients_from": "one", "gan_total": "sum"}),
    ("fediod", {**VOTES, "gradients_from": "one", **FAST}),
    ("fediod", {**VOTES, "gan": 0.0, "student_steps": 2, "replay": 0, **FAST}),
]
"""Protocols with settings; `every_case` adds each registered protocol with its defaults."""


SMALL = {
    "batch_size": 4,
    "distill_batch_size": 5,
    "distill_rounds": 1,
    "distill_steps": 2,
    "warm_up_steps": 12,
    # selective-fd
    "uniform": 20,
    # dafkd
    "pseudo_samples": 5,
    # fedftg
    "iterations": 2,
    # fedgen
    "generated": 5,
    # fedgems
    "server_epochs": 2,
    "server_batch_size": 5,
    # fediod
    "steps_per_round": 2,
    "samples": 4,
    "latent": 3,
    "generator_width": 2,
    "discriminator_width": 2,
    "replay": 3,
    # asyndgan
    "kept": 3,
    "task_steps": 3,
}
"""Settings that keep a run short, for the protocols that have them."""


def every_case() -> list[tuple[str, dict[str, Any]]]:
    return [*((name, {}) for name in REGISTRY.names()), *CASES]


def thorough_beyond_defaults(cases: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the cases of a test that runs each anew; all but the defaults are left to the thorough tests."""
    return [pytest.param(c, id=case_id(c), marks=[pytest.mark.thorough] if c[1] else []) for c in cases]


def case_id(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(f"{k}={v}" for k, v in case[1].items())])


@lru_cache
def network(width: int = 5) -> Architecture:
    return architecture(ModelSpec(name="mlp", params={"widths": [width]}), SHAPE, CLASSES)


@lru_cache
def dense() -> Architecture:
    """A network with an answer for each pixel."""
    spec = ModelSpec(name="unet", params={"width": 8, "depth": 1})
    return architecture(spec, SHAPE, CLASSES, SEGMENTATION)


@lru_cache
def of_texts(width: int = 4) -> Architecture:
    """A network for texts."""
    spec = ModelSpec(name="transformer", params={"width": width})
    return architecture(spec, (LENGTH,), CLASSES, TEXT, WORDS)


def execution() -> Execution:
    return Execution(device="cpu", threads=1, strategy="loop", memory_format="contiguous")


def trainer() -> Trainer:
    return Trainer(network(), execution())


def public() -> Tensor:
    return torch.rand(7, *SHAPE, generator=child(0, "public"))


def public_labels() -> Tensor:
    return torch.randint(CLASSES, (7,), generator=child(0, "public labels"))


def tokens(n: int, *path: str | int) -> Tensor:
    """Random texts of three to `LENGTH` words."""
    draws = child(0, "tokens", *path)
    x = torch.randint(2, WORDS, (n, LENGTH), generator=draws)
    ends = torch.randint(3, LENGTH + 1, (n, 1), generator=draws)
    return x.masked_fill(torch.arange(LENGTH) >= ends, 0)


def public_texts() -> Tensor:
    return tokens(7, "public")


def features(x: Tensor) -> Tensor:
    """A public feature extractor: row means."""
    return x.mean((1, 3))


def common(unlike: bool = False, task: Task = SINGLE_LABEL) -> Common:
    """What every party has; `unlike` gives each client a network of its own."""
    if task == TEXT:
        others = tuple(map(of_texts, (2, 4, 6))) if unlike else ()
        networks = Networks(of_texts(), others)
        return Common(networks=networks, execution=execution(), public=public_texts(), task=task)
    own = tuple(network(width) for width in (4, 5, 6)) if unlike else ()
    networks = Networks(dense() if task == SEGMENTATION else network(), own)
    return Common(
        networks=networks,
        execution=execution(),
        public=public(),
        encode=features,
        task=task,
        public_labels=public_labels(),
    )


def initial(party: str = "server", seed: int = 5, unlike: bool = False) -> Parameters:
    return common(unlike).networks.initial([party], seed)[party]


def records(sizes: Sequence[int] = SIZES, seed: int = 0) -> dict[str, PartyData]:
    found = {}
    for k, n in enumerate(sizes):
        x = torch.rand(n, *SHAPE, generator=child(seed, "x", k))
        found[f"client/{k}"] = PartyData(x, torch.randint(CLASSES, (n,), generator=child(seed, "y", k)))
    return found


def several(data: Mapping[str, PartyData]) -> dict[str, PartyData]:
    """The same records with labels drawn for each class by itself, a third of them unknown."""
    found = {}
    for k, d in data.items():
        y = torch.randint(-1, 2, (len(d), CLASSES), generator=child(9, "several", k))
        found[k] = PartyData(d.x, y)
    return found


def masked(data: Mapping[str, PartyData]) -> dict[str, PartyData]:
    """The same records with masks: the class of each pixel follows from its brightness."""
    return {k: PartyData(d.x, (d.x[:, 0] * CLASSES).long().clamp(max=CLASSES - 1)) for k, d in data.items()}


def worded(data: Mapping[str, PartyData]) -> dict[str, PartyData]:
    """The same labels with texts."""
    return {k: PartyData(tokens(len(d), k), d.y) for k, d in data.items()}


class Watched(Wire):
    """A wire that remembers what was asked of it and what it delivered, and may alter deliveries."""

    def __init__(
        self, *args: Any, alter: Callable[[Delivery], Delivery] = lambda d: d, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._alter = alter
        self.delivered: list[tuple[Delivery, dict[str, Tensor]]] = []

    def send(self, *args: Any, **kwargs: Any) -> Delivery | None:
        delivery = super().send(*args, **kwargs)
        if delivery is None:
            return None
        delivery = self._alter(delivery)
        self.delivered.append((delivery, {n: t.clone() for n, t in delivery.items()}))
        return delivery


@dataclass
class Ran:
    """A protocol's run: its messages with their payloads, what it yielded, what it ended with."""

    folder: Path
    parties: tuple[str, ...]
    clients: Mapping[str, PartyData]
    rounds: list[Round] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    delivered: list[tuple[Delivery, dict[str, Tensor]]] = field(default_factory=list)
    protocol: Any = None
    setting: Any = None

    @cached_property
    def messages(self) -> list[Message]:
        return list(read_messages(self.folder))

    @property
    def log(self) -> bytes:
        return (self.folder / LOG).read_bytes()

    def payload(self, message: Message) -> bytes:
        return read_payload(self.folder, message)

    def tensors(self, message: Message) -> dict[str, Tensor]:
        return decode(self.payload(message))


def configured(name: str, params: Mapping[str, Any], rounds: int = 3) -> Config:
    cls = REGISTRY.load(name)
    small = {name: value for name, value in SMALL.items() if name in cls.Config.model_fields}
    if name in ("fedkd", "fediod") and "local_steps" not in params:  # by default 50 epochs and 20
        small["local_epochs"] = 5
    if name == "fedgen":  # by default 50
        small["generator_steps"] = 2
    if name == "selective-fd":  # by default it sends predicted classes
        small["lr"] = FAST["lr"]
    if "rounds" in cls.Config.model_fields:
        small["rounds"] = rounds
    return validate(cls.Config, {**small, **params})


def own_defenses(config: Config) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The protocol's own defences, attached as the case attaches them."""
    attached: dict[tuple[str, str], tuple[Any, ...]] = {}
    for entry in config.defenses():  # type: ignore[attr-defined]
        cls = DEFENSES.load(entry.name)
        key = (entry.kind, entry.sender)
        attached[key] = (*attached.get(key, ()), cls(validate(cls.Config, entry.params)))
    return attached


def run(
    folder: Path,
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    rounds: int = 3,
    cls: Any = None,
    clients: Mapping[str, PartyData] | None = None,
    seed: int = 5,
    stop_after: int | None = None,
    resume: tuple[int, bytes, Position] | None = None,
    alter: Callable[[Delivery], Delivery] = lambda d: d,
    defenses: Mapping[tuple[str, str], Sequence[Any]] | None = None,
    withheld: Sequence[str] = (),
    outages: Sequence[Outage] = (),
    unlike: bool = False,
    task: Task = SINGLE_LABEL,
    training: Mapping[str, Any] | None = None,
    threads: int | None = None,
    deviants: Mapping[str, Any] | None = None,
    checks: Mapping[tuple[str, str], Any] | None = None,
) -> Ran:
    """Runs a protocol to its end, or to `stop_after`; `resume` is (next round, state, position)."""
    cls = cls or REGISTRY.load(name)
    config = configured(name, params or {}, rounds)
    clients = dict(clients or records())
    parties = parties_of(cls, config, len(clients))
    attached = own_defenses(config)
    for key, given in (defenses or {}).items():
        attached[key] = (*given, *attached.get(key, ()))
    first, state, start = resume or (0, b"", None)
    made = Ran(folder, parties, clients)
    with Transcript(folder, secret=SECRET, start=start) as transcript:
        wire = Watched(
            transcript,
            parties=parties,
            kinds=kinds_of(cls),
            device=torch.device("cpu"),
            secret=SECRET,
            defenses=attached,
            withheld=withheld,
            withholdable=cls.card.withholdable,
            outages=outages,
            training=training,
            deviants=deviants,
            checks=checks,
            alter=alter,
        )
        shared = common(unlike, task)
        if threads is not None:
            shared = replace(shared, execution=replace(shared.execution, threads=threads))
        made.setting = setting_of(cls, shared, clients, wire, seed)
        made.protocol = cls(config, made.setting)
        if state:
            made.protocol.state = decode(state)
        for done in made.protocol.rounds(first):
            made.rounds.append(done)
            made.states.append(encode(made.protocol.state))
            made.positions.append(transcript.position)
            if done.index == stop_after:
                break
        made.delivered = wire.delivered
    return made


# -- what a message depends on ------------------------------------------------------------------------------------


def ancestry(messages: Sequence[Message]) -> list[tuple[frozenset[str], frozenset[int]]]:
    """For each message, by its declared inputs: whose data it depends on, and on which messages, itself included."""
    found: list[tuple[frozenset[str], frozenset[int]]] = []
    for message in messages:
        inputs = message.inputs
        if inputs == ALL:
            held = [m.seq for m in messages[: message.seq] if message.sender in m.parties()]
            inputs = (DATA, *held)
        data = {message.sender} if DATA in inputs else set()
        behind = {message.seq}
        for seq in inputs:
            if isinstance(seq, int):
                data |= found[seq][0]
                behind |= found[seq][1]
        found.append((frozenset(data), frozenset(behind)))
    return found
