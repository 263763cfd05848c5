"""What an auditor brings to an import: its parts, what each makes possible, and what an attack needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from fdaudit.events import Event, event_from_json
from fdaudit.goals import GOALS
from fdaudit.planning.brought import BroughtRecords
from fdaudit.planning.brought import TossedCoins as Coins
from fdaudit.registry import AttackCard
from fdaudit.spec.card import Card
from fdaudit.storage.answered import record_names
from fdaudit.transcript.messages import ALL, Message, role
from fdaudit.types import ImportPart

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BRING", "LADDER", "ImportedSystem", "assumed_by", "needed_by", "parts_not_brought"]

BRING: Mapping[ImportPart, str] = MappingProxyType(
    {
        "architecture": "the network: name it under `model` in the card",
        "records": "the clients' records: `records.npz` and `records.json` in the truth",
        "images": "the records' images or rows: `x` in `records.npz`",
        "uses": "the records behind each message: `uses.jsonl`, which the recorder writes to the truth",
        "candidates": "candidates of each client: coins before training (`fdaudit design`), or rows under `held_out`",
        "auxiliary": "auxiliary records, which nobody trained on: `auxiliary` in the truth",
        "public": "the public samples, in the order of the messages' index: `public` in the truth",
        "test": "test records: `test` in the truth",
        "stand-in": "a protocol for rehearsals: name it under `stand_in` in the card",
        "initial": "the seed of the first weights, if it is public: `initial_seed` in the card",
    }
)
"""What an audit of a recording may lack, and where it is brought."""

LADDER: tuple[tuple[str, tuple[ImportPart, ...], str], ...] = (
    (
        "a record and its card",
        (),
        "who sees what, bytes on the wire, the ledger; class counts that clients send",
    ),
    (
        "the clients' records",
        ("records",),
        "scores of guessed class shares",
    ),
    (
        "the network, facts of training, images and the records behind messages",
        ("architecture", "images", "uses"),
        "gradient inversion",
    ),
    (
        "candidates, with the released model on record",
        ("architecture", "images", "candidates"),
        "membership by the gap, by losses and by noise",
    ),
    (
        "auxiliary records",
        ("architecture", "auxiliary"),
        "LiRA, RMIA, coin regression, class shares from updates, and the controls of every attack",
    ),
    (
        "test records",
        ("architecture", "auxiliary", "test"),
        "model inversion and copies of the model",
    ),
    (
        "public samples",
        ("public",),
        "attacks on answers: co-op and distillation LiRA, paired logits",
    ),
    (
        "a protocol that stands in",
        ("stand-in",),
        "rehearsals: class shares from answers, and the power of membership attacks",
    ),
)
"""What an auditor may bring, the parts that it takes, and what it makes possible."""

_ASSUMED: Mapping[str, ImportPart] = MappingProxyType(
    {
        "architecture": "architecture",
        "training core": "architecture",
        "auxiliary": "auxiliary",
        "encode": "auxiliary",
        "encoder": "auxiliary",
        "public": "public",
        "public samples": "public",
        "rehearse": "stand-in",
        "initial": "initial",
    }
)
"""By assumption of an attack's card, the part that it comes from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportedSystem:
    """A system that fdaudit did not run: what its card says, and what an auditor brought beside its record.

    Attributes:
        card: the system's card.
        brought: records that the auditor holds, if any.
        not_brought: the parts that an audit could use and that were not brought.
        not_finite: numbers of messages with NaN or infinite values, which no view shows.
    """

    card: Card
    brought: BroughtRecords | None
    not_brought: frozenset[ImportPart]
    not_finite: frozenset[int] = frozenset()

    @property
    def coins(self) -> Coins | None:
        """Return the draw of the candidates before the training; None if no coins were tossed."""
        return None if self.brought is None else self.brought.design

    # -- records ----------------------------------------------------------------------------------------------

    def rows_of(self, client: str) -> Tensor:
        """Return the rows (n,) of a client's records by the numbers that it gives them itself; none if unknown."""
        if self.brought is None or client not in self.brought.clients:
            return torch.zeros(0, dtype=torch.int64)
        return self.brought.clients[client].records

    @cached_property
    def record_names(self) -> tuple[str, ...]:
        """Return by row the names under which answers about the brought records are counted."""
        return () if self.brought is None else record_names(self.brought.x, self.brought.y)

    def names_of(self, client: str) -> list[str]:
        """Return the names of a client's records, as `record_names` has them."""
        return [self.record_names[row] for row in self.rows_of(client).tolist()]

    @property
    def preprocess_unsaid(self) -> str:
        """Return what a card without `preprocess` leaves open of the inputs of networks; empty if it states that."""
        if self.card.preprocess is not None:
            return ""
        return "if clients normalise images, none is found before the card states how: give `preprocess`, or {} if not"

    # -- what the ledger may read -----------------------------------------------------------------------------

    @property
    def charged_transport(self) -> str:
        """Return the transport as the ledger may read it: plain, unless someone answers for its encryption."""
        return self.card.transport if self.card.transport_attested_by is not None else "plain"

    def charged(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the ledger may read them: with inputs and events that someone answers for."""
        events = dict[tuple[str, str], Event]()
        for attested in self.card.attested:
            events[attested.kind, attested.sender] = event_from_json(attested.event)
        charged = list[Message]()
        for message in messages:
            event = events.get((message.kind, role(message.sender)))
            # One of the fields says that a message is an exact sum, and nobody answers for that.
            message = replace(message, fields={}, event=event, defenses=())
            if self.card.inputs_attested_by is None:
                message = replace(message, inputs=ALL)
            charged.append(message)
        return charged


def needed_by(card: AttackCard) -> Iterator[ImportPart]:
    """Yield the parts without which an attack, by its card, cannot be made or scored."""
    goal = GOALS[card.goal]
    if card.oracle is not None or {"architecture", "training core"} & set(card.assumes):
        yield "architecture"
    if card.control["on"] == "classes" and goal.classes_scored_with:
        yield from goal.classes_scored_with
    else:
        yield from goal.scored_with


def assumed_by(card: AttackCard) -> Iterator[ImportPart]:
    """Yield the parts that an attack, by its card, assumes to be known."""
    for assumption in card.assumes:
        if assumption in _ASSUMED:
            yield _ASSUMED[assumption]


def parts_not_brought(
    card: Card, brought: BroughtRecords | None, *, uses: bool, stands_in: bool
) -> frozenset[ImportPart]:
    """Return the parts that an audit could use and that were not brought.

    Args:
        card: the system's card.
        brought: records that the auditor holds.
        uses: whether the truth names the records behind messages.
        stands_in: whether a protocol can be rehearsed.
    """
    present: dict[ImportPart, bool] = {
        "architecture": card.model is not None,
        "uses": uses,
        "stand-in": stands_in,
        "initial": card.initial_seed is not None,
    }
    if brought is not None:
        has_images = brought.x is not None
        clients = brought.clients.values()
        present |= {
            "images": has_images,
            "records": any(len(client.records) for client in clients),
            "candidates": any(len(client.members) for client in clients),
            "auxiliary": has_images and len(brought.auxiliary) > 1,
            "public": has_images and len(brought.public) > 0,
            "test": has_images and len(brought.test) > 0,
        }
    absent = []
    for part in BRING:
        if not present.get(part):
            absent.append(part)
    return frozenset(absent)
