"""Batched HopSkipJump against what is known without it: linear boundaries, spheres, and another implementation."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fdaudit.attacks.label_only.hopskipjump import Schedule, boundary_distances
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from fdaudit.rng import child

FIXTURE = Path(__file__).parents[2] / "fixtures" / "art_boundary.json"


def recorded():
    """The tensors that the script beside the fixture wrote."""
    entries = json.loads(FIXTURE.read_text())["tensors"]
    return {
        name: torch.from_numpy(
            np.frombuffer(base64.b64decode(e["data"]), dtype=e["dtype"]).reshape(e["shape"]).copy()
        )
        for name, e in entries.items()
    }


class Counted:
    """Decisions, counted."""

    def __init__(self, decide):
        self._decide, self.asked, self.largest, self.low, self.high = decide, 0, 0, 0.0, 1.0

    def __call__(self, x):
        self.asked, self.largest = self.asked + len(x), max(self.largest, len(x))
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        return self._decide(x)


def half_space(d, seed):
    """A hyperplane through the middle of the cube: class 1 where w·x > c, |w| = 1."""
    w = torch.randn(d, generator=child(seed, "w"))
    w = w / w.norm()
    c = float(w.sum() / 2)
    return w, c, Counted(lambda x: (x.flatten(1) @ w > c).long())


def near_the_middle(n, shape, seed):
    """Samples far from the cube's faces, so that no clipping stands between them and the boundary."""
    return 0.5 + 0.05 * torch.randn(n, *shape, generator=child(seed, "x")).clamp(-2, 2)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), side=st.integers(3, 6))
def test_the_distance_to_a_hyperplane_is_found(seed, side):
    w, c, ask = half_space(side * side, seed)
    x = near_the_middle(20, (1, side, side), seed)
    exact = (x.flatten(1) @ w - c).abs()
    starts = torch.rand(30, 1, side, side, generator=child(seed, "starts"))
    y = ask(x)
    found = boundary_distances(ask, x, y, starts, ask(starts), Schedule(queries=3000), child(seed, "walk"))
    assert bool(found.started.all())
    assert bool((found.distance >= exact - 1e-4).all())  # no point beyond the boundary is nearer
    assert float(((found.distance - exact) / exact.clamp_min(0.05)).median()) < 0.05


def test_the_distance_to_a_sphere_is_found():
    ask = Counted(lambda x: ((x.flatten(1) - 0.5).norm(dim=1) > 0.4).long())
    x = 0.5 + 0.3 * torch.nn.functional.normalize(torch.randn(30, 16, generator=child(0, "x")), dim=1).view(
        30, 1, 4, 4
    )
    starts = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 4, 4)
    found = boundary_distances(ask, x, ask(x), starts, ask(starts), Schedule(queries=3000), child(0, "walk"))
    assert bool((found.distance >= 0.1 - 1e-4).all())
    assert float(found.distance.median()) < 0.105


def test_points_lie_beyond_the_boundary_at_the_distance_given():
    _, _, ask = half_space(16, 3)
    x = near_the_middle(20, (1, 4, 4), 3)
    y = ask(x)
    starts = torch.rand(30, 1, 4, 4, generator=child(3, "starts"))
    found = boundary_distances(ask, x, y, starts, ask(starts), Schedule(queries=300), child(3, "walk"))
    assert bool((ask(found.points) != y).all())
    assert torch.allclose((found.points - x).flatten(1).norm(dim=1).double(), found.distance, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(0, 30),
    queries=st.integers(24, 300),
    directions=st.integers(4, 60),
    halvings=st.integers(1, 8),
    chunk=st.integers(1, 64),
)
def test_no_candidate_has_more_queries_than_it_may(n, queries, directions, halvings, chunk):
    _, _, ask = half_space(9, 5)
    x = torch.rand(n, 1, 3, 3, generator=child(5, "x"))
    y = (torch.arange(n) % 3 == 0).long()  # some are classified wrong
    starts = torch.rand(10, 1, 3, 3, generator=child(5, "starts"))
    classes = ask(starts)
    ask.asked = ask.largest = 0
    schedule = Schedule(queries=queries, directions=directions, halvings=halvings, chunk=chunk)
    found = boundary_distances(ask, x, y, starts, classes, schedule, child(5, "walk"))
    assert int(found.spent.sum()) == ask.asked
    assert bool((found.spent <= queries).all())
    assert ask.low >= 0
    assert ask.high <= 1
    if n:
        assert ask.largest <= 2 * max(chunk, 1)
    assert bool((found.distance[~found.right] == 0).all())
    assert bool((found.spent[~found.right] == 1).all())


def test_more_queries_find_nearer_points():
    _, _, ask = half_space(64, 7)
    x = near_the_middle(40, (1, 8, 8), 7)
    starts = torch.rand(30, 1, 8, 8, generator=child(7, "starts"))
    mean = []
    for queries in (30, 200, 1500):
        schedule = Schedule(queries=queries, directions=20)
        found = boundary_distances(ask, x, ask(x), starts, ask(starts), schedule, child(7, "walk"))
        mean.append(float(found.distance.mean()))
    assert mean[0] > mean[1] > mean[2]


def test_without_a_starting_point_the_distance_is_infinite_and_costs_one_query():
    ask = Counted(lambda x: torch.zeros(len(x), dtype=torch.int64))
    x, starts = torch.rand(5, 1, 3, 3, generator=child(0, "x")), torch.zeros(4, 1, 3, 3)
    y = torch.tensor([0, 0, 1, 0, 0])
    found = boundary_distances(ask, x, y, starts, ask(starts), Schedule(queries=100), child(0, "walk"))
    assert found.distance.tolist() == [math.inf, math.inf, 0, math.inf, math.inf]
    assert found.started.tolist() == [False] * 5
    assert found.spent.tolist() == [1] * 5


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1])
def test_another_implementation_finds_the_same(seed):
    """ART's label-only decision-boundary attack on the same 200 candidates with as many queries each."""
    kept = recorded()
    w = [kept[f"network.{name}"] for name in ("1.weight", "1.bias", "3.weight", "3.bias")]
    ask = Counted(lambda x: ((x.flatten(1) @ w[0].T + w[1]).relu() @ w[2].T + w[3]).argmax(1))
    x, y, member = kept["x"].float() / 16, kept["y"].long(), torch.arange(200) < 100
    starts = torch.rand(100, 1, 8, 8, generator=child(seed, "starts"))
    schedule = Schedule(queries=int(kept["queries"]), directions=40)
    found = boundary_distances(ask, x, y, starts, ask(starts), schedule, child(seed, "walk"))
    assert torch.equal(found.started, found.right)
    theirs, ours = kept["distance"].double(), found.distance
    assert abs(roc_auc_score(member, ours) - roc_auc_score(member, theirs)) <= 0.03
    assert spearmanr(ours, theirs).statistic > 0.9
    # It stops after a step away from the boundary, ours after the search back to it.
    assert bool((ours[found.started].median() <= theirs[found.started].median()).all())
