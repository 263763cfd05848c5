"""What a protocol is given, what it yields, and what it declares: the contract of the `protocols` room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fdaudit.config import Config
from fdaudit.federation.local_training import LocalTrainings
from fdaudit.federation.networks import Networks, Trainers
from fdaudit.types import Task

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.training.execution import Execution
    from fdaudit.training.trainer import Parameters
    from fdaudit.transcript.wire import Wire
    from fdaudit.types import DefenseSpec, Trained

__all__ = [
    "Common",
    "FederatedProtocol",
    "PartyData",
    "ProtocolConfig",
    "Round",
    "Setting",
    "applies",
    "has_public_index",
]


class ProtocolConfig(Config):
    """What every protocol's settings say besides their own fields; `rounds` is a field or a property of each."""

    def alone(self) -> dict[str, Any]:
        """Settings of a reference line that trains a model as much as a client does here."""
        return {}

    def defenses(self) -> tuple[DefenseSpec, ...]:
        """The protocol's own defences, as data; they act after those of the spec."""
        return ()

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """The length, in `steps` or `epochs`, of each training of a client on its own records in a run, at most."""
        return ()

    def fits(self, clients: int) -> None:
        """Refuse settings that do not go with so many clients.

        Raises:
            SpecError: they do not.
        """

    def assumptions(self) -> tuple[str, ...]:
        """Return what an ε of a run with these settings takes on trust, one sentence each, for the ledger."""
        return ()

    def drawn_from(self, clients: int) -> int:
        """Of how many clients one is drawn uniformly at random, whatever the data, for each step's noisy answers."""
        return 1


def applies(when: Mapping[str, Any], config: Any) -> bool:
    """Whether what a protocol declares for some settings, by name with the value of each, holds with these."""
    return all(getattr(config, name) == value for name, value in when.items())


def has_public_index(protocol: Any, config: Any, kind: str, sender: str) -> bool:
    """Return whether a protocol promises that private data decide neither the index of a message nor its rows.

    Args:
        protocol: the protocol's class.
        config: its settings.
        kind: of message, as it leaves the protocol: before defences.
        sender: the role that sends it.
    """
    sent = [m for m in protocol.messages if (m["kind"], m["from"]) == (kind, sender) and "made_of" not in m]
    return any(m.get("index") == "public" and applies(m.get("when", {}), config) for m in sent)


@dataclass(frozen=True, eq=False)
class PartyData:
    """One client's private records: x (n, c, h, w), y (n,) or, of the multi-label task, (n, C)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What a protocol is given: its clients' data, each of which only that client's code may touch.

    Attributes:
        clients: private data by party name, `client/0` first.
        wire: the only way between parties.
        trainers: the training core of `server` and of each client.
        local: the only way in which clients' models are fitted to private data.
        initial: the public initial parameters of the same parties.
        public: (n, c, h, w) unlabelled samples that every party holds; n may be 0.
        input_shape: (c, h, w) of an image.
        classes: number of classes C.
        encode: a public feature extractor, (n, c, h, w) -> (n, d), for protocols that work in feature space.
        seed: the run's seed, for named child generators.
        task: whether a record has one class, or for each class an answer whether it occurs.
    """

    clients: Mapping[str, PartyData]
    wire: Wire
    trainers: Trainers
    local: LocalTrainings
    initial: Mapping[str, Parameters]
    public: Tensor
    input_shape: tuple[int, int, int]
    classes: int
    encode: Callable[[Tensor], Tensor] | None
    seed: int
    task: Task = "single-label"


@dataclass(frozen=True, kw_only=True, eq=False)
class Common:
    """What every party, and every adversary, has before the first message: nothing private is in it.

    Attributes:
        networks: who trains which network.
        execution: how training runs.
        public: (n, c, h, w) unlabelled samples.
        encode: a public feature extractor, where there is one.
        task: what there is to learn.
    """

    networks: Networks
    execution: Execution
    public: Tensor
    encode: Callable[[Tensor], Tensor] | None = None
    task: Task = "single-label"

    def setting(self, clients: Mapping[str, PartyData], wire: Wire, seed: int) -> Setting:
        """What a protocol is given that these clients run over `wire`."""
        parties = ("server", *clients)
        trainers = Trainers(self.networks, self.execution, parties)
        return Setting(
            clients=clients,
            wire=wire,
            trainers=trainers,
            local=LocalTrainings(trainers, wire),
            initial=self.networks.initial(parties, seed),
            public=self.public,
            input_shape=self.networks.shared.input_shape,
            classes=self.networks.shared.classes,
            encode=self.encode,
            seed=seed,
            task=self.task,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """What the auditor learns after a round; no party sees it.

    Attributes:
        index: the round's number.
        models: parameters by the party that holds them, where the round left any new ones.
        batches: by message `seq`, the sender's own record numbers (local indices, in order of use) that
            went into it: the truth that a reconstruction is later measured against.
        losses: by party, the mean local loss.
    """

    index: int
    models: Mapping[str, Parameters]
    batches: Mapping[int, Tensor] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)


class FederatedProtocol(Protocol):
    """A protocol: a frozen config and one generator that reads like the paper's algorithm box.

    The class attributes are plain literals, so that `list` and `explain` can read them without running code. An entry
    of `messages` has `kind`, `from`, `to`, `what` and, where a setting decides whether it is sent, `when`: the
    settings by name with the value that each must have; where part of it is raw data whatever the values are noised
    with, `reveals` says which; one that only a defence makes, of a message of another kind, names that kind in
    `made_of`. `"index": "public"` promises that, with these settings and before defences, private data decide neither
    the samples that `index` names nor the number of rows: a silent client leaves out a message, never a row. Left
    out, nothing is promised, and a defence with `public_index: true` is refused there. Messages of one sender whose
    `when` names the same settings stand in for each other: whoever reads one reads the other, which a defence may
    make of it. `roles_when` names the roles that take part with some settings only, each with these (left out: all
    always do).

    `heterogeneous` says whether clients may train different networks; `privacy` what the paper claims, by view the
    kind of the first message that leaves no ε to claim with the default settings, and the combination that does;
    `needs_public` whether the protocol works on the public samples, `tasks` which tasks it can run (left out:
    single-label only). `trains` names what clients train on their own records through `Setting.local`, each with the
    setting that says how many records a step has (left out: nothing that a training defence could act on). An oracle
    named `released-model` answers from the message that published the model, or by `released()` where none did; any
    other answers from clients' models, to who receives the messages in which clients answer samples.

    Guarantees every protocol must keep:
      * it talks only through the wire, in the kinds that it declares;
      * all randomness comes from named child generators of the run's seed, but for what defences draw;
      * what a client trains on its records it trains through `Setting.local`, and declares the basis it gets there;
      * what outlives a round sits in `state`, so a run resumed after any round ends bit for bit the same;
      * a message's `inputs`, where declared, leave out nothing that it depends on;
      * a round in which messages of some clients do not arrive is completed without them.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    roles: ClassVar[tuple[str, ...]]
    roles_when: ClassVar[dict[str, dict[str, Any]]]
    messages: ClassVar[tuple[dict[str, Any], ...]]
    trust: ClassVar[tuple[str, ...]]
    oracles: ClassVar[tuple[dict[str, Any], ...]]
    deviations: ClassVar[tuple[str, ...]]
    withholdable: ClassVar[tuple[str, ...]]
    privacy: ClassVar[dict[str, Any]]
    pools_data: ClassVar[bool]
    heterogeneous: ClassVar[bool]
    needs_public: ClassVar[bool]
    tasks: ClassVar[tuple[str, ...]]
    trains: ClassVar[dict[str, str]]
    Config: ClassVar[type[Any]]

    state: dict[str, Tensor]
    """Everything that outlives a round, by name; restored by assignment before `rounds` is called."""

    def __init__(self, config: Any, setting: Setting) -> None: ...

    def rounds(self, start: int) -> Iterator[Round]:
        """Runs from round `start` to the end."""
        ...

    def released(self) -> Parameters | None:
        """The released model's parameters as they stand in `state`, or None when none is released."""
        ...
