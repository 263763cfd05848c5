"""The contract of protocols: their inputs, outputs and declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import ProtocolError
from fdaudit.federation.local_training import LocalTrainings
from fdaudit.federation.networks import Networks, Trainers
from fdaudit.registry import ProtocolCard
from fdaudit.tasks import SINGLE_LABEL, Task
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.wire import Delivery, Wire
from fdaudit.types import DefenseSpec, Trained

__all__ = [
    "CURIOUS",
    "PRIVATE_ROUNDS",
    "PRIVATE_TRAINING",
    "RELEASED_MODEL",
    "Common",
    "FederatedProtocol",
    "PartyData",
    "ProtocolConfig",
    "Round",
    "Setting",
    "applies",
    "arrived",
    "broadcasts",
    "has_public_index",
]


class ProtocolConfig(Config):
    """Settings common to all protocols; `rounds` is a field or a property of each."""

    if TYPE_CHECKING:

        @property
        def rounds(self) -> int:
            """Return the number of rounds."""
            ...

    def alone(self) -> dict[str, Any]:
        """Return the settings of a reference line that trains a model as much as a client does here."""
        return {}

    def defenses(self) -> tuple[DefenseSpec, ...]:
        """Return the protocol's own defences, as data; they act after those of the spec."""
        return ()

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Return the greatest length, in `steps` or `epochs`, of each training of a client on its own records."""
        return ()

    def fits(self, clients: int) -> None:
        """Refuse settings that are impossible with this number of clients.

        Raises:
            SpecError: the settings are impossible.
        """

    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions of an ε of a run with these settings, one sentence each, for the ledger."""
        return ()

    def drawn_from(self, clients: int) -> int:
        """Return from how many clients each step draws one for noisy answers, uniformly and independent of data."""
        return 1


def applies(when: Mapping[str, Any], config: Config) -> bool:
    """Return whether a declaration for given settings, a value by name, holds under these settings."""
    return all(getattr(config, name) == value for name, value in when.items())


def has_public_index(protocol: type[FederatedProtocol], config: Config, kind: str, sender: str) -> bool:
    """Return whether a protocol promises that a message's index and number of rows do not depend on private data.

    Args:
        protocol: the protocol's class.
        config: its settings.
        kind: kind of message before defences.
        sender: the role that sends it.
    """
    for m in protocol.card.declared_messages:
        if (m["kind"], m["from"]) != (kind, sender) or "made_of" in m:
            continue
        if m.get("index") == "public" and applies(m.get("when", {}), config):
            return True
    return False


def broadcasts(protocol: type[FederatedProtocol]) -> bool:
    """Return whether every client starts from weights that the server sends, so that they are public."""
    return protocol.card.starts.get("weights") == "broadcast"


def arrived(message: Delivery | None, what: str) -> Delivery:
    """Return a message of the server or the aggregator, as it was delivered.

    Raises:
        ProtocolError: it did not arrive.
    """
    if message is None:
        raise ProtocolError(f"{what} did not arrive. Only clients may go silent.")
    return message


@dataclass(frozen=True, eq=False)
class PartyData:
    """The private records of one client: x (n, c, h, w), y (n,), multi-label (n, C), or for segmentation (n, h, w)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The inputs of a protocol; only a client's own code may use that client's data.

    Attributes:
        clients: private data by party name, `client/0` first.
        wire: the only channel between parties.
        trainers: the training core of `server` and of each client.
        local: the only way in which clients' models are fitted to private data.
        initial: initial parameters of the same parties. A client's are its own secret; the server's are public if it
            broadcasts them.
        public: (n, c, h, w) or (n, L) samples that every party holds; n may be 0.
        input_shape: (c, h, w) of an image, or (L,) of a text.
        classes: number of classes C.
        encode: a public feature extractor, (n, c, h, w) -> (n, d), for protocols that work in feature space.
        seed: the run's seed, for named child generators.
        task: the learning task: what records are, and what they are labelled with.
        public_labels: (n,) classes of the public samples, if the protocol declares `needs_labels`.
    """

    clients: Mapping[str, PartyData]
    wire: Wire
    trainers: Trainers
    local: LocalTrainings
    initial: Mapping[str, Parameters]
    public: Tensor
    input_shape: tuple[int, ...]
    classes: int
    encode: Callable[[Tensor], Tensor] | None
    seed: int
    task: Task = SINGLE_LABEL
    public_labels: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Common:
    """Public inputs that every party and every adversary has before the first message.

    Attributes:
        networks: the network of each party.
        execution: how training runs.
        public: (n, c, h, w) samples.
        encode: a public feature extractor, if there is one.
        task: the learning task.
        public_labels: (n,) classes of the public samples, for a protocol that declares `needs_labels`.
    """

    networks: Networks
    execution: Execution
    public: Tensor
    encode: Callable[[Tensor], Tensor] | None = None
    task: Task = SINGLE_LABEL
    public_labels: Tensor | None = None

    def setting(self, clients: Mapping[str, PartyData], wire: Wire, seed: int) -> Setting:
        """Return the inputs of a protocol that these clients run over `wire`."""
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
            public_labels=self.public_labels,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """The auditor's record of a round; no party sees it.

    Attributes:
        index: the round's number.
        models: new parameters of the round, by the party that holds them.
        batches: by message `seq`, the sender's own records behind it (local indices, in the order used):
            the truth for reconstructions.
        losses: by party, the mean local loss.
    """

    index: int
    models: Mapping[str, Parameters]
    batches: Mapping[int, Tensor] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)


CURIOUS = "Parties follow the protocol and are curious (honest-but-curious)."
"""The usual trust assumption."""

RELEASED_MODEL: dict[str, Any] = {
    "name": "released-model",
    "available_to": ("world",),
    "answers": ("soft", "hard"),
}
"""The oracle of a protocol that publishes its model."""

PRIVATE_TRAINING: dict[str, Any] = {"params": {}, "withhold": [], "training": ["model"]}
"""The `private` combination of a protocol whose clients only need to train their models privately."""

PRIVATE_ROUNDS: dict[str, Any] = {"rounds": 10, "local_steps": 15, "lr": 1.0}
"""Lengths and learning rate that DP-SGD with clip 1 and batches of all records was tuned to, in rounds of training.

At rate 2 logistic regression does as well; a perceptron, and answers of few steps, do worse.
"""


class FederatedProtocol(Protocol):
    """A protocol: a frozen config and one generator that reads like the paper's algorithm box.

    Guarantees every protocol must keep:
      * it communicates only through the wire, in the kinds that it declares;
      * all randomness comes from named child generators of the run's seed, except the draws of defences;
      * clients train on their records only through `Setting.local`, and declare the basis that it returns;
      * all state between rounds is in `state`, so a run resumed after any round ends bit for bit the same;
      * a message's `inputs`, if declared, include everything that it depends on;
      * a round in which messages of some clients do not arrive is completed without them.
    """

    card: ClassVar[ProtocolCard]
    Config: ClassVar[type[ProtocolConfig]]

    state: dict[str, Tensor]
    """The state between rounds, by name; restored by assignment before `rounds` is called."""

    def __init__(self, config: Any, setting: Setting) -> None: ...

    def rounds(self, start: int) -> Iterator[Round]:
        """Run from round `start` to the end."""
        ...

    def released(self) -> Parameters | None:
        """Return the released model's current parameters in `state`, or None if none is released."""
        ...
