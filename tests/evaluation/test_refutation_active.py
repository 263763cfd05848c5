"""Claims under attack by parties that depart from the protocol: those that say that they hold, and one that cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.defenses.noise import GaussianNoise, GaussianNoiseConfig
from fdaudit.deviations import REGISTRY as DEVIATIONS
from fdaudit.protocols import REGISTRY as PROTOCOLS
from fdaudit.protocols.classwise import FKD

import fdaudit
from fdaudit.accounting.ledger import Books
from fdaudit.audit.run import Run
from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.federation.protocol import PartyData
from fdaudit.metrics import epsilon_lower_bound
from fdaudit.registry import DeviationCard
from fdaudit.transcript.messages import DEVIATION
from fdaudit.transcript.transcript import read_messages
from fdaudit.transcript.wire import Outgoing

from ..helpers.protocol_cases import CLASSES, SHAPE, Ran, records, run
from .refutation_attacks import Attacker
from .refutation_broken import BROKEN
from .refutation_cases import case
from .refutation_rows import Row, row_of

pytestmark = pytest.mark.thorough

ABLE = [n for n in PROTOCOLS.names() if "model_parameters" in PROTOCOLS.describe(n).copies.get("server", ())]
"""Protocols whose clients train from a model that the server sends to each."""


class Hostile:
    """A server that sends clients a model of one value in every place, in all rounds."""

    card = DeviationCard(
        name="hostile",
        source="a test",
        roles=("server",),
        changes=("model_parameters",),
        read_by=(),
        noticed="Everything.",
    )

    class Config(Config):
        """Settings of the hostile server."""

        value: float | str = 0.0

    def __init__(self, config: Any, knowledge: Any) -> None:
        self.value = float(config.value)

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the value in all places, for clients alone."""
        if draft.kind != "model_parameters" or "world" in draft.receivers:
            return (draft,)
        return (
            replace(draft, tensors={n: torch.full_like(t, self.value) for n, t in draft.tensors.items()}),
        )


HOSTILE = f"import:{__name__}:Hostile"
DEPARTURES: Mapping[str, dict[str, Any]] = {
    "imprint": {"name": "imprint", "params": {"rounds": [0]}},
    "trap-weights": {"name": "trap-weights", "params": {"rounds": [0]}},
    "model-inconsistency": {"name": "model-inconsistency", "params": {"rounds": [0]}},
    "all zero": {"name": HOSTILE, "params": {"value": 0.0}},
    "large weights": {"name": HOSTILE, "params": {"value": 1e4}},
}
"""What the server does: shipped deviations in the first round, and in all rounds models that no training would make."""
SHIPPED = tuple(DEPARTURES)[:3]


def active(protocol: str, departure: dict[str, Any]) -> dict[str, Any]:
    spec = dict(case(f"{protocol}, preset, ε 1").spec)
    return {**spec, "deviations": [{"party": "server", **departure}]}


def attacked(found: Run) -> Row:
    """The server's claim of an active run, attacked with what its view holds of the canaries."""
    return row_of(case("fedavg, preset, ε 1"), Attacker(found), "server")


def test_every_shipped_deviation_of_a_server_is_tried() -> None:
    able = [DEVIATIONS.describe(n) for n in DEVIATIONS.names()]
    assert {c.name for c in able if "server" in c.roles and "model_parameters" in c.changes} == set(SHIPPED)


@pytest.mark.parametrize("departure", DEPARTURES)
@pytest.mark.parametrize("protocol", ABLE)
def test_no_departure_of_the_server_contradicts_a_claim_that_holds_against_it(
    protocol: str, departure: str, tmp_path: Path
) -> None:
    found = fdaudit.run(active(protocol, DEPARTURES[departure]), tmp_path / "run")
    assert any(DEVIATION in m.fields for m in read_messages(found.directory / "transcript"))
    ledger = found.ledger("server", relation="add-or-remove")
    assert next(c for c in ledger.against if c.departs == "server").holds
    assert ledger.epsilon <= 1.0 + 1e-6, "what the preset asked for, whatever the server sends"
    row = attacked(found)
    assert row.bounds
    assert row.verdict == "consistent"


@pytest.mark.parametrize("departure", SHIPPED)
def test_a_departing_server_contradicts_noise_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, departure: str
) -> None:
    next(b for b in BROKEN if b.name == "noise of DP-SGD").patch(monkeypatch)
    found = fdaudit.run(active("fedavg", DEPARTURES[departure]), tmp_path / "run")
    assert attacked(found).verdict == "CONTRADICTED"


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_clients_under_dp_sgd_stop_at_an_impossible_model_whatever_their_records(
    value: str, tmp_path: Path
) -> None:
    """The noisy result decides, and it is the same with other coins: the run of a coin each."""
    said = set()
    for number in range(2):
        with pytest.raises(TrainingDivergedError) as caught:
            fdaudit.run(
                active("fedavg", {"name": HOSTILE, "params": {"value": value}}), tmp_path / str(number)
            )
        said.add(str(caught.value))
    assert len(said) == 1


# -- a claim that needs an honest server -------------------------------------------------------------------------------


class Poisoned:
    """A server that sends one client a table whose row of the last class overflows in a loss."""

    name = "poisoned"

    def sends(self, draft: Outgoing, seq: int) -> tuple[Outgoing, ...]:
        if draft.receivers != ("client/1",):
            return (draft,)
        table = draft.tensors["values"].clone()
        table[-1] = 3e38
        return (replace(draft, tensors={"values": table}),)


def holding(last: bool) -> dict[str, PartyData]:
    """Clients of which the second holds records of the last class alone, or of the first."""
    clients = records()
    y = torch.full((6,), CLASSES - 1 if last else 0)
    return {
        **clients,
        "client/1": PartyData(torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(3)), y),
    }


@pytest.fixture
def each_reads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FKD._learn
    monkeypatch.setattr(FKD, "_learn", lambda self, k, sent: honest(self, k, sent.of(k)))


NOISE = GaussianNoise(GaussianNoiseConfig(sigma=45.0, clip=3.0))


@pytest.mark.usefixtures("each_reads_its_own")
def test_a_claim_that_needs_an_honest_server_is_contradicted_by_one_that_departs(tmp_path: Path) -> None:
    """A training that fails on what was sent is seen, and no noise on the answer hides it."""
    defenses = {("class_prototypes", "client"): (NOISE,)}

    params = {"local_steps": 1}

    def ran(name: str, last: bool, server: Mapping[str, Any] | None = None) -> Ran:
        folder, clients = tmp_path / name, holding(last)
        return run(folder, "fkd", params, rounds=2, clients=clients, defenses=defenses, deviants=server)

    honest = ran("honest", True)
    books = Books(honest.messages, honest.parties)
    ledger = books.ledger("server", unit="client")
    assert 0.5 < ledger.epsilon < 1.0
    assert "server" in {c.departs for c in books.against(ledger) if not c.holds}

    coins = np.random.default_rng(5).random(60) < 0.5
    failed = []
    for number, last in enumerate(coins):
        try:
            ran(f"active-{number}", bool(last), {"server": Poisoned()})
            failed.append(0.0)
        except TrainingDivergedError:
            failed.append(1.0)
    bound = epsilon_lower_bound(
        failed, coins, ledger.delta, design="independent-runs", relation="replace-one"
    )
    assert failed == coins.tolist()
    assert bound > ledger.epsilon
