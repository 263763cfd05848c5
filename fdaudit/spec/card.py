"""The card of a recorded system: what its record cannot show, as its author asserts it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.config import Config, validate
from fdaudit.errors import IntegrityError, SpecError
from fdaudit.events import EventUnit, Relation, event_from_json
from fdaudit.limits import (
    MOST_CANDIDATES,
    MOST_CLIENTS,
    MOST_HISTORY,
    MOST_PARTS,
    MOST_ROUNDS,
    MOST_ROW,
    MOST_TABLE,
    MOST_TEXT,
)
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.schema import DefenseEntry, ModelSpec, ProtocolSpec
from fdaudit.tasks import TASKS
from fdaudit.tasks.columns import Column, width_of
from fdaudit.tasks.stated_loss import ClipFacts, LossFacts

__all__ = [
    "Attested",
    "Card",
    "Claim",
    "ColumnFacts",
    "Facts",
    "MessageFacts",
    "PreprocessFacts",
    "load_card",
]

Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
Role = Literal["client", "server", "aggregator"]


_Name = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
_MOST_CLAIMS, _MOST_PATTERNS, _MOST_NAMES = 100, 100, 10_000
_LEAST_WIDTH = 1e-6
_LEAST_NOISE, _LEAST_RATE = 1e-6, 1e-12
"""Smaller noise and rarer sampling than these say nothing, and overflow."""


_Level = Annotated[float, Field(ge=-1e6, le=1e6)]
_Spread = Annotated[float, Field(ge=1e-6, le=1e6)]


class PreprocessFacts(Config):
    """What clients do to an image before their network gets it. Nothing is done to images in [0, 1] by `{}`."""

    range: tuple[_Level, _Level] = (0.0, 1.0)
    """Lowest and highest value of an image before `mean` and `std`: `[-1, 1]`, or `[0, 255]`. Records that you bring
    are uint8, or floats in [0, 1] or in this range."""
    mean: _Level | tuple[_Level, ...] | None = None
    """Subtracted from images, as by `Normalize` of torchvision: for all channels, or one for each."""
    std: _Spread | tuple[_Spread, ...] | None = None
    """Images are divided by this after `mean`: for all channels, or one for each."""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if self.range[1] - self.range[0] < _LEAST_WIDTH:
            problem = "is no lowest value before a highest one"
            raise SpecError("preprocess.range", list(self.range), problem, "Give the lower one first.")
        for name, other in (("mean", "std"), ("std", "mean")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                problem = f"is missing beside {other}"
                raise SpecError(f"preprocess.{name}", None, problem, "Give both, as `Normalize` takes them.")
        return self

    @property
    def channels(self) -> Mapping[str, tuple[float, ...]]:
        """Return mean and std, each with one entry for all channels or one for each; 0 and 1 if not given."""
        found = {}
        for name, unset in (("mean", 0.0), ("std", 1.0)):
            value = getattr(self, name)
            if value is None:
                value = unset
            found[name] = value if isinstance(value, tuple) else (value,)
        return found


class Facts(Config):
    """The public settings of local training. An attack without a setting that it needs does not apply."""

    rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """Number of rounds that were planned."""
    lr: Annotated[float, Field(gt=0)] | tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Learning rate of a client's steps; a list has one for each round."""
    lr_decay: float | None = Field(None, gt=0, le=1)
    """Factor on the learning rate after every round."""
    loss: LossFacts | None = None
    """The loss. Attacks assume plain cross-entropy if it is not given. A rate that the record refutes is refused only
    if the loss is given: another loss may explain it."""
    clip: ClipFacts | None = None
    """Clipping of gradients. Attacks assume none if it is not given."""
    batch_size: int | None = Field(None, ge=1, le=MOST_CANDIDATES)
    """Records a step."""
    accumulate: int | None = Field(None, ge=1, le=MOST_CANDIDATES)
    """Batches of `batch_size` records whose mean gradient is one step's. Attacks assume 1 if it is not given."""
    frozen: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """Parameters that do not move, by name, or by patterns such as `features.*`."""
    precision: (
        Literal["float32", "float64", "bfloat16", "float16", "bfloat16-mixed", "float16-mixed"] | None
    ) = None
    """The numbers that clients compute with; `mixed` is autocast. Attacks compute in float32."""
    local_steps: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """Steps of a client in a round. Give this or `local_epochs`."""
    local_epochs: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """Passes of a client over its records in a round."""
    momentum: float | None = Field(None, ge=0, lt=1)
    """Momentum of the clients' optimiser."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the clients' optimiser."""
    mu: float | None = Field(None, ge=0)
    """FedProx's proximal term."""
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    """The clients' optimiser. Attacks assume `sgd` if it is not given. Of updates by the others `inverting-gradients`
    simulates the steps. Further inversions need the optimiser's state on record."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] | None = None
    """Decay rates of Adam's moments. Attacks assume 0.9 and 0.999 if they are not given."""
    optimizer_kept: bool | None = None
    """Whether clients keep their optimiser's state from round to round. Attacks assume that it starts anew if this is
    not given, unless the state on record shows otherwise."""
    temperature: float | None = Field(None, gt=0)
    """Temperature of distillation."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_steps is not None and self.local_epochs is not None:
            problem = "is given beside local_epochs"
            raise SpecError("training.local_steps", self.local_steps, problem, "Keep one of them.")
        if isinstance(self.lr, tuple) and (not self.lr or self.lr_decay is not None):
            problem = "has no entry" if not self.lr else "is a list and is given beside lr_decay"
            raise SpecError("training.lr", list(self.lr), problem, "Give a number, or one for each round.")
        if self.accumulate is not None and self.batch_size is None:
            problem = "is given without batch_size"
            raise SpecError("training.accumulate", self.accumulate, problem, "Give the records of one batch.")
        if len(self.frozen) > _MOST_PATTERNS:
            problem = f"has {len(self.frozen)} entries, more than {_MOST_PATTERNS}"
            raise SpecError(
                "training.frozen", f"{len(self.frozen)} entries", problem, "Use patterns: `features.*`."
            )
        handled = (self.batch_size or 1) * (self.accumulate or 1) * (self.local_steps or 1)
        if handled > MOST_TABLE:
            problem = (
                f"times batch_size and accumulate is {handled:,} records in a round, more than {MOST_TABLE:,}"
            )
            raise SpecError("training.local_steps", self.local_steps, problem, "Correct one of them.")
        return self


class MessageFacts(Config):
    """What is known of all messages of one kind from one role."""

    kind: Text
    """The kind, as in the record."""
    sender: Role
    """The role that sends it."""
    what: Text = "not described"
    """What it carries, in words."""
    reveals: Text | None = None
    """Raw data of a client in it, in words, for example `the samples a client accepted`."""
    fixed_size: bool = False
    """Whether its size and its number of rows are the same whatever the clients' data are."""


class Attested(Config):
    """A defence in the recorded system that someone answers for. Without one, ε of its messages is infinite."""

    kind: Text
    """The kind of messages that it acts on."""
    sender: Role = "client"
    """The role on whose side it acts."""
    event: dict[str, Any]
    """The mechanism, as a transcript states it: `event` (its class), `unit`, `relation`, `covers` and its numbers."""
    by: Text
    """Who answers for it."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        try:
            event_from_json(self.event)
        except IntegrityError as error:
            problem = "; ".join(error.findings).removesuffix(".")
            raise SpecError(
                "attested.event", self.event, problem, "docs/ledger.md lists mechanisms."
            ) from None
        return self


class Claim(Config):
    """An ε that the system claims for itself: stated as a number, or by its accountant's history."""

    adversary: Text = "server"
    """The view that it is claimed for."""
    epsilon: float | None = Field(None, gt=0)
    """ε at `delta`; leave it out with `history`."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ."""
    unit: EventUnit = "record"
    """What neighbours differ in: one record of a client, or a client."""
    relation: Relation = "add-or-remove"
    """How they differ."""
    history: tuple[tuple[float, float, int], ...] = ()
    """Steps of sampled Gaussian noise as (noise multiplier, sampling rate, steps): `accountant.history` of Opacus."""
    source: Text
    """Where the claim is made: a document, a page, the accountant's name."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.epsilon is None) == (not self.history):
            problem = "is missing" if self.epsilon is None else "is given beside history"
            raise SpecError("claims.epsilon", self.epsilon, problem, "Give epsilon, or history.")
        if len(self.history) > MOST_HISTORY:
            problem = f"has {len(self.history):,} entries, more than {MOST_HISTORY:,}"
            remedy = "Join equal entries, or state epsilon."
            raise SpecError("claims.history", f"{len(self.history)} entries", problem, remedy)
        for noise, rate, steps in self.history:
            if not (_LEAST_NOISE <= noise <= 1 / _LEAST_NOISE and _LEAST_RATE <= rate <= 1 and steps >= 1):
                problem = "is no (noise multiplier > 0, sampling rate in (0, 1], steps from 1)"
                raise SpecError("claims.history", [noise, rate, steps], problem, "Correct the entry.")
        return self

    @property
    def mechanisms(self) -> frozenset[tuple[float, float]]:
        """Return the different (noise multiplier, sampling rate) of the history; each takes seconds to compose."""
        return frozenset((noise, rate) for noise, rate, _ in self.history)


class ColumnFacts(Config):
    """A column of a table, as the clients' code makes a row's vector of it: one entry, or one for each category."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The column's name."""
    categories: tuple[Annotated[str, Field(max_length=200)], ...] = Field((), max_length=1000)
    """The categories, in the order of the one-hot entries; none for a number."""
    mean: float = Field(0.0, ge=-1e30, le=1e30)
    """What was subtracted from a number."""
    scale: float = Field(1.0, gt=1e-30, le=1e30)
    """What the difference was divided by."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.categories and (self.mean, self.scale) != (0.0, 1.0):
            raise SpecError("columns.scale", self.scale, "is given beside categories", "Keep one of them.")
        return self

    @property
    def column(self) -> Column:
        """Return the column, as it was stated."""
        return Column(
            name=self.name, categories=self.categories, mean=self.mean, scale=self.scale, stated=True
        )


class Card(Config):
    """A system that fdaudit did not run."""

    fdaudit: Literal[1] = 1
    """Version of this format."""
    name: Text
    """The system's name."""
    asserted_by: Text
    """Who asserts that the record is complete and that this card is true: a person, a team, a company."""
    clients: int | None = Field(None, ge=1, le=MOST_CLIENTS)
    """Number of clients. Default: those that the record names."""
    task: Literal["single-label", "multi-label", "table"] = "single-label"
    """One class for each image, a yes or no for each class, or one class for each row of a table."""
    classes: int = Field(ge=1, le=1_000_000)
    """Number of classes."""
    input_shape: tuple[int, int, int] | tuple[int]
    """Channels, height and width of an image, or the length of a row's vector."""
    columns: tuple[ColumnFacts, ...] = ()
    """What the entries of a row's vector mean. Default: numbers without a name, as they are."""
    preprocess: PreprocessFacts | None = None
    """What clients do to images before their network. If it is not given, attacks assume that it gets [0, 1]."""
    model: ModelSpec | None = None
    """The network: one of fdaudit's, or `import:package.module:Class`."""
    client_models: tuple[ModelSpec, ...] = ()
    """One network for each client, if they differ; `model` is then the server's."""
    names: Literal["by-position"] | dict[_Name, _Name] | None = None
    """Names of the network's tensors, if those on record are others: by the name on record, as `{coef: fc.weight}`. Or
    `by-position`: the record counts them from `0`, in the order of the network's `state_dict()`, or of its
    `parameters()` if it has as many."""
    prefix: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What stands before the names of the network's tensors on record, for example `module.`."""
    initial_seed: int | None = Field(None, ge=0, lt=2**64)
    """If the first weights are public: they are those of the network built after `torch.manual_seed` of this number."""
    protocol: ProtocolSpec
    """What the system runs. If fdaudit knows the protocol, its name and settings; any other name otherwise."""
    training: Facts = Facts()
    """Settings of local training; only for a protocol that fdaudit does not know."""
    stand_in: ProtocolSpec | None = None
    """A protocol of fdaudit that comes close, for rehearsals; only for a protocol that fdaudit does not know."""
    messages: tuple[MessageFacts, ...] = ()
    """What is known of single kinds of messages."""
    transport: Literal["plain", "encrypted"] = "plain"
    """With `encrypted`, an eavesdropper sees sizes and order only."""
    transport_attested_by: Text | None = None
    """Who answers for an encrypted transport. Without this, the ledger reads every message on the wire as plain."""
    oracles: bool = True
    """Whether the released model answers whoever received it."""
    release: Literal["internal", "api", "public-weights"] | None = None
    """Where the trained model goes."""
    defenses: tuple[DefenseEntry, ...] = ()
    """Defences that the system applies, by fdaudit's names: attacks adapt to them. Only `attested` ones lower ε."""
    trust: tuple[Text, ...] = ()
    """Assumptions of trust, one sentence each."""
    attested: tuple[Attested, ...] = ()
    """Defences that someone answers for."""
    inputs_attested_by: Text | None = None
    """Who answers for the inputs that messages declare. Without this, every message counts as computed from all that
    its sender held."""
    claims: tuple[Claim, ...] = ()
    """ε that the system claims for itself."""
    design: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """The commitment of the coins that the command `design` tossed before training."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._fits_records()
        products: tuple[tuple[str, object, int, str], ...] = (
            ("input_shape", list(self.input_shape), math.prod(self.input_shape), "values of one record"),
            ("classes", self.classes, self.classes * (self.clients or 1), "entries, one a client and class"),
        )
        for name, value, product, of in products:
            if product > MOST_TABLE:
                problem = f"makes {product:,} {of}, more than {MOST_TABLE:,}"
                raise SpecError(name, value, problem, "Give smaller numbers.")
        composed = sum(len(claim.mechanisms) for claim in self.claims)
        if composed > MOST_PARTS or len(self.claims) > _MOST_CLAIMS:
            problem = f"compose {composed} different steps in {len(self.claims)} claims"
            problem += f", more than {MOST_PARTS} in {_MOST_CLAIMS}"
            remedy = "State epsilon in place of a longer history."
            raise SpecError("claims", f"{len(self.claims)} entries", problem, remedy)
        if self.preprocess is not None:
            for name, values in self.preprocess.channels.items():
                if len(values) not in (1, self.input_shape[0]):
                    problem = f"has {len(values)} entries for {self.input_shape[0]} channels"
                    raise SpecError(
                        f"preprocess.{name}", list(values), problem, "Give one, or one a channel."
                    )
        loss = self.training.loss
        if loss is not None and loss.class_weights and len(loss.class_weights) != self.classes:
            problem = f"has {len(loss.class_weights)} weights for {self.classes} classes"
            raise SpecError(
                "training.loss.class_weights", list(loss.class_weights), problem, "Give one a class."
            )
        self._check_names()
        if self.client_models and self.model is None:
            raise SpecError("model", None, "is missing beside client_models", "Name the server's network.")
        for field, entries in (("messages", self.messages), ("attested", self.attested)):
            pairs = set[tuple[str, str]]()
            for entry in entries:
                if (entry.kind, entry.sender) in pairs:
                    twice = f"{entry.kind} of a {entry.sender}"
                    raise SpecError(field, twice, "has two entries", "Keep one of them.")
                pairs.add((entry.kind, entry.sender))
        return self

    def _check_names(self) -> None:
        if self.names is None:
            return
        if self.model is None or self.client_models:
            problem = "is given without model" if self.model is None else "is given beside client_models"
            raise SpecError("names", self.names, problem, "Give it with one network for all clients.")
        if isinstance(self.names, dict):
            doubles = list[str]()
            for name, count in Counter(self.names.values()).items():
                if count > 1:
                    doubles.append(name)
            if doubles or not 0 < len(self.names) <= _MOST_NAMES:
                problem = f"names {doubles[0]!r} twice" if doubles else f"has {len(self.names)} entries"
                remedy = f"Name each tensor of the network once, at most {_MOST_NAMES}."
                raise SpecError("names", f"{len(self.names)} entries", problem, remedy)

    def _fits_records(self) -> None:
        """Refuse a shape that records of the task cannot have, and columns that do not describe it."""
        shape, given = self.input_shape, list(self.input_shape)
        rows = TASKS[self.task].inputs.shown == "rows"
        if rows and (len(shape) != 1 or not 1 <= shape[0] <= MOST_ROW):
            remedy = f"Give one number from 1 to {MOST_ROW:,}, as in [30]."
            raise SpecError("input_shape", given, "is no length of a row's vector", remedy)
        if not rows and (len(shape) != 3 or min(shape) < 1 or max(shape) > 4096):
            remedy = "Give three numbers from 1 on. Rows of a table need `task: table`."
            raise SpecError("input_shape", given, "is no (channels, height, width)", remedy)
        if self.columns and not rows:
            problem, remedy = "are given for images", "Remove them, or set `task: table`."
            raise SpecError("columns", f"{len(self.columns)} entries", problem, remedy)
        if rows and self.preprocess is not None:
            problem, remedy = "is for images", "Remove it: `columns` has the means and scales of a table."
            raise SpecError("preprocess", self.preprocess.model_dump(), problem, remedy)
        width = width_of([one.column for one in self.columns])
        if self.columns and width != shape[0]:
            problem = f"have {width:,} entries, and input_shape says {shape[0]:,}"
            raise SpecError("columns", f"{len(self.columns)} entries", problem, "Describe every entry once.")

    @property
    def image_range(self) -> tuple[float, float]:
        """Return the lowest and the highest value of images as clients hold them."""
        return (0.0, 1.0) if self.preprocess is None else self.preprocess.range


def load_card(source: Card | Path | str | dict[str, Any]) -> Card:
    """Return a card from a card, a mapping, or a YAML file.

    Raises:
        SpecError: the file is missing or not YAML, or a field is wrong.
    """
    if isinstance(source, Card):
        return source
    value = source if isinstance(source, dict) else read_yaml(Path(source), "card")
    return validate(Card, value if value is not None else {}, "card")
