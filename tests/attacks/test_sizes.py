"""What the presence of messages tells: which kinds have a number, a size or a silence that depends on records.

A reader of such a kind must use which rows are there, not their values alone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fdaudit import attacks
from fdaudit.testing.federation import records
from fdaudit.testing.running import ProtocolRun

from ..helpers.protocol_cases import every_case, run, thorough_beyond_defaults

BY_RECORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "fedgems": {"logits": (), "proxy_indices": ()},
    "selective-fd": {
        "ensemble_labels": (),
        "hard_labels": ("accept-set", "label-declined"),
        "soft_labels": ("accept-set", "label-declined"),
    },
}
"""By protocol the kinds whose sizes depend on records, and the attacks that read which rows are there.

FedGEMS's server asks for the samples that its model gets wrong. Which these are depends on records from the second
round on, and no attack reads it. An ensemble lacks the samples that every client declined: that alone is not read.
"""


def sizes(ran: ProtocolRun) -> Counter[tuple[Any, ...]]:
    """Return how often each kind of message was sent: from whom to whom, when, and with tensors of which shapes."""
    return Counter(
        (
            m.kind,
            m.sender,
            tuple(m.receivers),
            m.round,
            m.step,
            tuple(sorted((name, tuple(info.shape)) for name, info in m.tensors.items())),
        )
        for m in ran.messages
    )


def by_records(place: Path, name: str, params: dict[str, Any]) -> set[str]:
    """Return the kinds that are sent otherwise where clients hold as many other records."""
    found = set[str]()
    one, *others = (
        sizes(run(place / f"{seed}", name, params, clients=records(seed=seed))) for seed in range(3)
    )
    for other in others:
        found |= {key[0] for key in (one - other) + (other - one)}
    return found


@pytest.mark.parametrize("case", thorough_beyond_defaults([c for c in every_case() if c[0] != "centralized"]))
def test_numbers_sizes_and_silences_depend_on_records_where_it_is_listed_alone(
    tmp_path: Path, case: tuple[str, dict[str, Any]]
) -> None:
    assert by_records(tmp_path, *case) <= set(BY_RECORDS.get(case[0], {}))


def test_attacks_that_are_named_declare_the_kind() -> None:
    for kinds in BY_RECORDS.values():
        for kind, readers in kinds.items():
            for reader in readers:
                assert kind in attacks.REGISTRY.load(reader).card.needs, (kind, reader)
