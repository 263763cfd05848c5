"""Every private kind has a reader: for each protocol and party, an attack that applies to the party's view reads it.

What is missing is listed. A view with a kind of the list reads "not tested" where it would read "no leak measured", see
`tests/reports/test_inheritance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fdaudit import attacks, protocols
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import EAVESDROPPER, View, view_of
from fdaudit.models.declared import generator_card
from fdaudit.result import derived_from_data, told_anew
from fdaudit.testing.federation import (
    CLASSES,
    SHAPE,
    features,
    network,
    public,
    public_labels,
    records,
    trainer,
)
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import role
from fdaudit.types import AttackTask, Challenge

from ..helpers.protocol_cases import case_id, configured, every_case, run

MISSING: dict[tuple[str, str], tuple[str, ...]] = {
    ("client", "logit_range"): ("fedkd",),
    ("client", "logits"): ("fedgems",),
    ("client", "proxy_indices"): ("fedgems",),
}
"""Protocols by the role of a receiver and the kind of private messages that no attack reads there.

Attacks on each were tried and read nothing (`docs/results.md`, "What was made of all clients").
"""

UNDER_SETTINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("client", "generator_parameters"): ("fedgen",),
    ("client", "model_parameters"): ("fedgen",),
    ("eavesdropper", "discriminator_scores"): ("dafkd",),
    ("eavesdropper", "model_parameters"): ("fedgen",),
    ("server", "discriminator_scores"): ("dafkd",),
    ("server", "model_parameters"): ("fedgen",),
}
"""Those that settings other than the defaults add: models sent in part, and scores without their discriminator."""


@lru_cache
def registered() -> dict[str, Any]:
    return {name: attacks.REGISTRY.load(name) for name in attacks.REGISTRY.names()}


def readers_of(kind: str) -> list[str]:
    """Return the names of the attacks that need a kind, or read it besides."""
    return [n for n, a in registered().items() if kind in (*a.card.needs, *a.card.reads)]


def challenge(client: str) -> Challenge:
    """Return matched pairs of a client's records and others of the same class."""
    data = records()[client]
    x = torch.stack([data.x, torch.rand(data.x.shape, generator=torch.Generator().manual_seed(1))], 1)
    pair = torch.arange(len(data)).repeat_interleave(2)
    return Challenge(target=client, x=x.flatten(0, 1), y=data.y.repeat_interleave(2), pair=pair)


def knowledge(name: str, params: dict[str, Any]) -> Knowledge:
    """Return all that an adversary may know of a case's federation, besides its view."""
    declared = protocols.REGISTRY.load(name).card.generator
    card = None
    if declared is not None:
        settings = configured(name, params, 2).model_dump(mode="json")
        card = generator_card(declared, settings, input_shape=SHAPE, classes=CLASSES, features=5)
    x = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(2))
    return Knowledge(
        architecture=network(),
        auxiliary=(x, torch.arange(30) % CLASSES),
        train=trainer(),
        encode=features,
        rehearse=lambda *_: pytest.fail("whether an attack applies must not take a rehearsal"),
        public=public(),
        public_labels=public_labels(),
        initial=0,
        classes=CLASSES,
        generator=card,
    )


def private_kinds(ran: ProtocolRun, view: View) -> set[str]:
    """Return the kinds of messages that reached a view with raw data which no other message of the view holds."""
    anew = told_anew(ran.messages, [m.seq for m in view.messages], derived_from_data(ran.messages))
    return {m.kind for m in view.messages if m.seq in anew and m.sender not in view.members}


def unread(ran: ProtocolRun, view: View, known: Knowledge) -> Iterator[str]:
    """Yield the private kinds of a view for which no attack that reads them applies."""
    targets = tuple(k for k in ran.clients if k not in view.members)
    task = AttackTask(targets=targets, challenges={k: challenge(k) for k in targets})
    for kind in sorted(private_kinds(ran, view)):
        made = (registered()[name] for name in readers_of(kind))
        able = (a(a.Config()).applicable(view, known, task) for a in made if "single-label" in a.card.tasks)
        if not any(able):
            yield kind


def found_in(folder: Path, name: str, params: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the unread kinds of a case's run, each with the role that receives it."""
    ran = run(folder, name, params, rounds=2)
    settings = configured(name, params, 2).model_dump(mode="json")
    found = set[tuple[str, str]]()
    for party in (*ran.parties, EAVESDROPPER):
        view = view_of(folder, party, parties=ran.parties, hyperparameters=settings)
        found |= {(role(party), kind) for kind in unread(ran, view, knowledge(name, params))}
    return found


def listed(name: str, *tables: dict[tuple[str, str], tuple[str, ...]]) -> set[tuple[str, str]]:
    return {where for table in tables for where, names in table.items() if name in names}


@pytest.mark.parametrize("name", [n for n in protocols.REGISTRY.names() if n != "centralized"])
def test_every_private_kind_has_a_reader_or_is_listed(tmp_path: Path, name: str) -> None:
    """An entry of the list that has a reader now fails as well, so the list only shrinks."""
    assert found_in(tmp_path / "run", name, {}) == listed(name, MISSING)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [c for c in every_case() if c[1] and c[0] != "centralized"], ids=case_id)
def test_other_settings_send_no_kind_without_a_reader(
    tmp_path: Path, case: tuple[str, dict[str, Any]]
) -> None:
    assert found_in(tmp_path / "run", *case) <= listed(case[0], MISSING, UNDER_SETTINGS)
