"""The ledger against what views of random federations truly learn: sums, oracles, silence, and sizes that tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.ledger import Books
from fdaudit.events import Gaussian

from ..helpers.ledger_cases import CLIENT
from .ledger_truth import CLIENTS, PARTIES, Federation, federation

VIEWS = (
    "server", "aggregator", "world", "client/1", "server+client/1", "server+aggregator", "eavesdropper",
    "server+eavesdropper", "world+client/0",
)  # fmt: skip


def cost(mu: float) -> float:
    if not mu or math.isinf(mu):
        return mu
    event = Gaussian(sensitivity=mu, scale=1.0, **{**CLIENT, "unit": "record"})
    return epsilon({event: 1}, 1e-5).value


def shortfall(made: Federation, view: str, transport: str) -> tuple[float, float]:
    """The ledger's ε, and what the worst client's exposure truly costs."""
    books = Books(made.log, PARTIES, transport=transport, oracles=made.oracles, fixed_sizes=made.fixed_sizes)
    members = view.split("+")
    victims = [k for k in CLIENTS if k not in members]
    truth = max(cost(made.truth(members, transport, k)) for k in victims)
    return books.ledger(view, relation="replace-one", pld=False).epsilon, truth


def check(seeds: range) -> dict[str, int]:
    """Compare one view of each federation; count what occurred, so that no case can silently be missing."""
    seen = dict.fromkeys(("finite", "infinite", "sums", "oracles", "silence", "varying", "tight"), 0)
    for seed in seeds:
        g = np.random.default_rng(seed)
        made, view = federation(g), str(g.choice(VIEWS))
        transport = str(g.choice(["plain", "encrypted"]))
        claimed, truth = shortfall(made, view, transport)
        assert claimed >= truth * (1 - 1e-6) - 1e-9, (seed, view, transport, claimed, truth)
        seen["finite"] += 0 < truth < math.inf
        seen["infinite"] += math.isinf(truth)
        seen["tight"] += 0 < truth < math.inf and claimed <= truth * (1 + 1e-4)
        seen["sums"] += any(m.fields for m in made.log)
        seen["oracles"] += bool(made.oracles)
        seen["silence"] += any(m.kind == "silence" for m in made.log)
        seen["varying"] += transport == "encrypted" and "eavesdropper" in view
    return seen


@pytest.mark.parametrize(
    "federations",
    [pytest.param(1000, marks=pytest.mark.thorough), pytest.param(10_000, marks=pytest.mark.slow)],
)
def test_no_ledger_is_below_what_a_view_learns(federations: int) -> None:
    seen = check(range(federations))
    print(seen)
    assert min(seen.values()) >= 0.03 * federations, seen
