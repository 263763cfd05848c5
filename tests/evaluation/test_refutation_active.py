"""Claims under attack by parties that depart from the protocol: those that say that they hold, and one that cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.defenses.noise import GaussianNoise, GaussianNoiseConfig
from fdaudit.deviations import REGISTRY as DEVIATIONS
from fdaudit.protocols import REGISTRY as PROTOCOLS

import fdaudit
from fdaudit.accounting.ledger import Books
from fdaudit.audit.run import Run
from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.federation.protocol import PartyData
from fdaudit.metrics import epsilon_lower_bound
from fdaudit.registry import DeviationCard
from fdaudit.testing.federation import CLASSES, SHAPE, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import DEVIATION
from fdaudit.transcript.transcript import read_messages
from fdaudit.transcript.wire import Outgoing

from ..helpers.protocol_cases import run
from .refutation_attacks import Attacker
from .refutation_broken import BROKEN
from .refutation_cases import case
from .refutation_rows import Row, row_of

pytestmark = pytest.mark.thorough

ABLE = {
    name: PROTOCOLS.describe(name).copies["server"]
    for name in PROTOCOLS.names()
    if "server" in PROTOCOLS.describe(name).copies
    and PROTOCOLS.describe(name).privacy.get("private", {}).get("training")
}
"""By protocol whose preset trains clients by DP-SGD: the kinds of the server's messages that clients read."""


class Hostile:
    """A server that sends clients one value in every place, in all rounds: of samples, the first alone."""

    card = DeviationCard(
        name="hostile",
        source="a test",
        roles=("server",),
        changes=(
            "ensemble_labels",
            "generated_samples",
            "logit_cotangents",
            "logits",
            "model_parameters",
            "proxy_indices",
            "vote_counts",
        ),
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
        if draft.kind not in self.card.changes or "world" in draft.receivers:
            return (draft,)
        tensors = {}
        for name, tensor in draft.tensors.items():
            tensors[name] = torch.full_like(tensor, self.value if tensor.is_floating_point() else 0)
        return (replace(draft, tensors=tensors),)


HOSTILE = f"import:{__name__}:Hostile"
FIRST = {"params": {"rounds": [0]}}
DEPARTURES: Mapping[str, dict[str, Any]] = {
    "candidate-neurons": {"name": "candidate-neurons", **FIRST},
    "class-fishing": {"name": "class-fishing", **FIRST},
    "crafted-consensus": {"name": "crafted-consensus"},
    "imprint": {"name": "imprint", **FIRST},
    "model-inconsistency": {"name": "model-inconsistency", **FIRST},
    "planted-candidates": {"name": "planted-candidates"},
    "repeated-model": {"name": "repeated-model"},
    "trap-weights": {"name": "trap-weights", **FIRST},
    "all zero": {"name": HOSTILE, "params": {"value": 0.0}},
    "large values": {"name": HOSTILE, "params": {"value": 1e4}},
}
"""What the server does: shipped deviations, crafted models in the first round; and what no training would send."""
CRAFTED = ("imprint", "model-inconsistency", "trap-weights")
QUICK = ("ds-fl", "fedavg", "fediod")


def trials() -> Iterator[Any]:
    """Each protocol with what its server could send."""
    for protocol, kinds in ABLE.items():
        for departure, entry in DEPARTURES.items():
            own = entry["name"] != HOSTILE
            changes = DEVIATIONS.describe(entry["name"]).changes if own else Hostile.card.changes
            if set(changes) & set(kinds):
                marks = [] if protocol in QUICK else [pytest.mark.slow]
                yield pytest.param(protocol, departure, marks=marks)


def active(protocol: str, departure: dict[str, Any]) -> dict[str, Any]:
    spec = dict(case(f"{protocol}, preset, ε 1").spec)
    candidates = {"splits": {**spec["splits"], "candidates": 4}}  # some deviations ask about them
    return {**spec, **candidates, "deviations": [{"party": "server", **departure}]}


def attacked(found: Run) -> Row:
    """The server's claim of an active run, attacked with what its view holds of the canaries."""
    return row_of(case("fedavg, preset, ε 1"), Attacker(found), "server")


def test_every_shipped_deviation_of_a_server_is_tried() -> None:
    able = {name for name in DEVIATIONS.names() if "server" in DEVIATIONS.describe(name).roles}
    assert able <= set(DEPARTURES)


@pytest.mark.parametrize(("protocol", "departure"), list(trials()))
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


@pytest.mark.parametrize("departure", CRAFTED)
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


NOISE = GaussianNoise(GaussianNoiseConfig(sigma=45.0, clip=3.0))


def test_a_claim_that_needs_an_honest_server_is_contradicted_by_one_that_departs(tmp_path: Path) -> None:
    """A training that fails on what was sent is seen, and no noise on the answer hides it."""
    defenses = {("class_prototypes", "client"): (NOISE,)}

    params = {"local_steps": 1}

    def ran(name: str, last: bool, server: Mapping[str, Any] | None = None) -> ProtocolRun:
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
