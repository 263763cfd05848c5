"""The card of a recorded system: what its record cannot show. Whoever fills it in asserts it."""

from __future__ import annotations

import math
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
    MOST_TABLE,
    MOST_TEXT,
)
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.schema import DefenseEntry, ModelSpec, ProtocolSpec

__all__ = ["Attested", "Card", "Claim", "Facts", "MessageFacts", "load_card"]

Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
Role = Literal["client", "server", "aggregator"]


_MOST_CLAIMS = 100
_LEAST_NOISE, _LEAST_RATE = 1e-6, 1e-12
"""Smaller noise and rarer sampling than these say nothing, and overflow."""


class Facts(Config):
    """The public settings of local training. An attack without a setting that it needs does not apply."""

    rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """Number of rounds that were planned."""
    lr: float | None = Field(None, gt=0)
    """Learning rate of a client's steps."""
    batch_size: int | None = Field(None, ge=1, le=MOST_CANDIDATES)
    """Records a step."""
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
    optimizer: Literal["sgd", "adam"] | None = None
    """The clients' optimiser. Attacks assume `sgd` if it is not given. Updates by `adam` are not inverted."""
    temperature: float | None = Field(None, gt=0)
    """Temperature of distillation."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_steps is not None and self.local_epochs is not None:
            problem = "is given beside local_epochs"
            raise SpecError("training.local_steps", self.local_steps, problem, "Keep one of them.")
        handled = (self.batch_size or 1) * (self.local_steps or 1)
        if handled > MOST_TABLE:
            problem = (
                f"times batch_size is {handled:,} records in one round of a client, more than {MOST_TABLE:,}"
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
    task: Literal["single-label", "multi-label"] = "single-label"
    """One class for each record, or a yes or no for each class."""
    classes: int = Field(ge=1, le=1_000_000)
    """Number of classes."""
    input_shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    model: ModelSpec | None = None
    """The network: one of fdaudit's, or `import:package.module:Class`."""
    client_models: tuple[ModelSpec, ...] = ()
    """One network for each client, if they differ; `model` is then the server's."""
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
        if min(self.input_shape) < 1 or max(self.input_shape) > 4096:
            problem = "is no (channels, height, width)"
            raise SpecError("input_shape", list(self.input_shape), problem, "Give three numbers from 1 on.")
        products: tuple[tuple[str, object, int, str], ...] = (
            ("input_shape", list(self.input_shape), math.prod(self.input_shape), "values of one image"),
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
        if self.client_models and self.model is None:
            raise SpecError("model", None, "is missing beside client_models", "Name the server's network.")
        for field, entries in (("messages", self.messages), ("attested", self.attested)):
            named = set[tuple[str, str]]()
            for entry in entries:
                if (entry.kind, entry.sender) in named:
                    twice = f"{entry.kind} of a {entry.sender}"
                    raise SpecError(field, twice, "has two entries", "Keep one of them.")
                named.add((entry.kind, entry.sender))
        return self


def load_card(source: Card | Path | str | dict[str, Any]) -> Card:
    """Return a card from a card, a mapping, or a YAML file.

    Raises:
        SpecError: the file is missing or not YAML, or a field is wrong.
    """
    if isinstance(source, Card):
        return source
    value = source if isinstance(source, dict) else read_yaml(Path(source), "card")
    return validate(Card, value if value is not None else {}, "card")
