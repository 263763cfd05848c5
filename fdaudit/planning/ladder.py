"""What an auditor brings to a recording: its parts, what each makes possible, and what an attack needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fdaudit.goals import GOALS
from fdaudit.planning.brought import BroughtRecords
from fdaudit.spec.card import Card

__all__ = ["ASSUMED", "BRING", "LADDER", "lacking_parts", "needed_by"]

BRING: Mapping[str, str] = MappingProxyType(
    {
        "architecture": "the network: name it under `model` in the card",
        "records": "the clients' records: `records.npz` and `records.json` in the truth",
        "images": "the records' images: `x` in `records.npz`",
        "uses": "the records behind each message: `uses.jsonl`, which the recorder writes to the truth",
        "candidates": "candidates of each client, with coins tossed before training: see `fdaudit design`",
        "auxiliary": "auxiliary records: rows under `auxiliary` in `records.json`",
        "public": "the public samples, in the order of the messages' index: rows under `public` in `records.json`",
        "test": "test records: rows under `test` in `records.json`",
        "stand-in": "a protocol for rehearsals: name it under `stand_in` in the card",
        "initial": "the seed of the first weights, if it is public: `initial_seed` in the card",
    }
)
"""What an audit of a recording may lack, and where it is brought."""

LADDER: tuple[tuple[str, tuple[str, ...], str], ...] = (
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

ASSUMED: Mapping[str, str] = MappingProxyType(
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


def needed_by(card: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts without which an attack, by its card, cannot be made or scored."""
    goal, by_class = GOALS[card["goal"]], card.get("control", {}).get("on") == "classes"
    if card.get("oracle") is not None or {"architecture", "training core"} & set(card["assumes"]):
        yield "architecture"
    yield from (by_class and goal.classes_scored_with) or goal.scored_with


def lacking_parts(
    card: Card, brought: BroughtRecords | None, *, uses: bool, stands_in: bool
) -> Mapping[str, str]:
    """Return what was not brought, each with where to bring it.

    Args:
        card: the system's card.
        brought: records that the auditor holds.
        uses: whether the truth names the records behind messages.
        stands_in: whether a protocol can be rehearsed.
    """
    held = brought if brought is not None and brought.x is not None else None
    there = {
        "architecture": card.model is not None,
        "records": brought is not None and any(len(c.records) for c in brought.clients.values()),
        "images": held is not None,
        "uses": uses,
        "candidates": brought is not None and any(len(c.members) for c in brought.clients.values()),
        "auxiliary": held is not None and len(held.auxiliary) > 1,
        "public": held is not None and len(held.public) > 0,
        "test": held is not None and len(held.test) > 0,
        "stand-in": stands_in,
        "initial": card.initial_seed is not None,
    }
    return MappingProxyType({name: BRING[name] for name, has in there.items() if not has})
