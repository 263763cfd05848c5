"""The ε of Flower's strategies of fixed clipping, from the strategy to the check from below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

import fdaudit
from fdaudit import api
from fdaudit.integrations.flower import RecordingGrid, fixed_clipping_claim
from fdaudit.scoring.claimed import epsilon_claimed
from fdaudit.spec.card import Claim, load_card

from ..helpers.noise_records import CLIENTS, NAMES, card, make_noise_design, network, site, train
from .grids import LocalGrid

NODES = (31, 77)


@pytest.fixture
def design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_noise_design(tmp_path, monkeypatch)


def plain() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)


def private(noise: float, norm: float = 1.0) -> DifferentialPrivacyServerSideFixedClipping:
    return DifferentialPrivacyServerSideFixedClipping(plain(), noise, norm, 2)


def client(design: Path, party: str) -> ClientApp:
    """A client that memorises its records."""
    app, (x, y, kept) = ClientApp(), site(design, party)

    @app.train()
    def _(message: Message, context: Context) -> Message:
        net = network()
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        with torch.no_grad():
            for parameter, name in zip(net.parameters(), NAMES, strict=True):
                parameter.copy_(torch.from_numpy(arrays[name].numpy()))
        train(net, x[kept], y[kept], 150)
        own = {n: Array(p.detach().numpy()) for n, p in zip(NAMES, net.parameters(), strict=True)}
        content = {"arrays": ArrayRecord(own), "metrics": MetricRecord({"num-examples": 100})}
        return Message(RecordDict(content), reply_to=message)

    return app


def checked(strategy: Any, claim: dict[str, Any], design: Path, folder: Path) -> dict[str, Any]:
    """Run an app with a strategy for a round, and return the check of a claim about its released model."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  # Flower draws its noise there
    first = {n: Array(p.detach().numpy()) for n, p in zip(NAMES, network().parameters(), strict=True)}
    grid = LocalGrid({node: client(design, party) for node, party in zip(NODES, CLIENTS, strict=True)})
    folder.mkdir()
    with RecordingGrid(grid, folder / "record") as recording:
        result = strategy.start(recording, ArrayRecord(first), num_rounds=1)
        recording.release(result.arrays)
    run = fdaudit.import_record(
        folder / "record",
        folder / "run",
        card={**card(design), "claims": [claim]},
        truth=[design / "truth"],
        audit={"profile": "quick", "threads": 1, "victims": 2},
    )
    api.attack("loss-threshold", run, "world")
    [found] = [c for c in run.result.plain()["checks"] if c["source"] == claim["source"]]
    return dict(found)


def test_a_claim_of_noise_that_was_added_stands(design: Path, tmp_path: Path) -> None:
    strategy = private(noise=2.0)
    found = checked(strategy, fixed_clipping_claim(strategy, rounds=1), design, tmp_path / "honest")
    assert found["verdict"] != "contradicted"
    assert found["unit"] == "client"


def test_a_claim_of_noise_that_was_not_added_is_contradicted(design: Path, tmp_path: Path) -> None:
    claim = fixed_clipping_claim(private(noise=60.0), rounds=1)
    found = checked(plain(), claim, design, tmp_path / "false")
    assert found["verdict"] == "contradicted"
    assert found["bound"] > found["claimed"]


@pytest.mark.parametrize(
    "made", [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping]
)
def test_a_claim_counts_each_round_without_the_luck_of_sampling(made: Any) -> None:
    claim = fixed_clipping_claim(made(plain(), 3.0, 1.0, 2), rounds=4, delta=1e-6)
    assert claim == {
        "adversary": "world",
        "delta": 1e-6,
        "unit": "client",
        "relation": "add-or-remove",
        "history": [[3.0, 1.0, 4]],
        "source": f"Flower's {made.__name__}",
    }
    # Gaussian noise of 3 over 4 rounds is that of 1.5 once: ε by Balle and Wang's formula, solved apart.
    assert epsilon_claimed(as_read(claim)) == pytest.approx(gaussian_epsilon(1.5, 1e-6), rel=1e-2)


def as_read(claim: dict[str, Any]) -> Claim:
    """Return a claim as a card's reader does."""
    stated = {
        "name": "a",
        "asserted_by": "b",
        "classes": 4,
        "input_shape": [1, 8, 8],
        "protocol": {"name": "c"},
    }
    return load_card({**stated, "claims": [claim]}).claims[0]


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Return ε of one release with Gaussian noise, by bisection of the exact δ (Balle and Wang 2018, Theorem 8)."""
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), torch.tensor(1.0).double())

    def exact(epsilon: float) -> float:
        at = torch.tensor([1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise]).double()
        first, second = normal.cdf(at)
        return float(first - torch.tensor(epsilon).double().exp() * second)

    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if exact(middle) > delta else (low, middle)
    return high


class _Accountant:
    """What Flower asks of an accountant; its own needs another library."""

    def __init__(self) -> None:
        from flwr.supercore import privacy_accounting as accounting

        self.config = accounting.PrivacyConfig(
            1e-5,
            2,
            accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
            accounting.SamplingMethod.NO_AMPLIFICATION,
        )
        self._spent = accounting.PrivacySpent(1.75, 1e-5, 3, "rdp")

    def get_privacy_spent(self, delta: float | None = None) -> Any:
        return self._spent


def test_a_claim_is_the_accountants_where_there_is_one() -> None:
    pytest.importorskip("flwr.supercore.privacy_accounting", reason="needs an accountant of Flower's")
    strategy = DifferentialPrivacyServerSideFixedClipping(plain(), 2.0, 1.0, 2, accountant=_Accountant())
    claim = fixed_clipping_claim(strategy, rounds=3)
    assert (claim["epsilon"], claim["delta"]) == (1.75, 1e-5)
    assert "(rdp)" in claim["source"]
    assert "3 releases" in claim["source"]
    assert epsilon_claimed(as_read(claim)) == 1.75


@pytest.mark.parametrize(
    ("strategy", "said"), [(plain(), "is no strategy of fixed clipping"), (private(0.0), "adds no noise")]
)
def test_a_strategy_that_claims_nothing_is_refused(strategy: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fixed_clipping_claim(strategy, rounds=1)
