"""Coins read off accept bits: bits of a guess, chains against enumeration, the attack on a federation."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.membership._accepted import (
    KNOWN,
    OUT,
    VALIDATION,
    Guesses,
    Records,
    SelectedClass,
    Selector,
)
from fdaudit.attacks.membership._chains import Annealing, _bits, coins
from fdaudit.attacks.membership.accept_set import AcceptSet, AcceptSetConfig
from fdaudit.protocols.selective_fd import BoundingBox, Selection, fit_density

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.federation.protocol import PartyData
from fdaudit.goals.membership import Membership
from fdaudit.models.density_ratio import default_bandwidth
from fdaudit.rng import child
from fdaudit.types import AttackTask

from .rehearsed_cases import Paired, mlp, rehearsed, stream

pytestmark = pytest.mark.thorough

CLASSES, PAIRS = 3, 6


def points(n: int, seed: int, d: int = 6, centre: float = 0.5) -> torch.Tensor:
    return (centre + 0.12 * torch.randn(n, d, generator=stream(seed))).clamp(0, 1)


def settings(**changed: Any) -> tuple[Selection, Selector]:
    """The protocol's settings, and the attack's reading of them."""
    made = Selection(**changed)
    read = Selector.of(made.model_dump(mode="json"))
    assert read is not None
    return made, read


# -- the bits of a guess ----------------------------------------------------------------------------------------


def fitted_bits(x: torch.Tensor, public: torch.Tensor, made: Selection) -> torch.Tensor:
    data = PartyData(x[:, None, None], torch.zeros(len(x), dtype=torch.long))
    box = BoundingBox.unit(x.shape[1])
    found = fit_density(data, made, represent=lambda v: v.flatten(1), box=box, seed=3, party="client/0")
    return found.accepts(public)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changed", [{}, {"bandwidth": 0.3}, {"bandwidth": 0.5, "tau_client": 0.6}, {"beta": 0.5}]
)
@pytest.mark.parametrize("size", [2, 5, 8, 11])
def test_a_guess_predicts_the_bits_of_the_protocol(changed: dict[str, Any], size: int) -> None:
    made, read = settings(**changed)
    x, public = points(size, 1), points(300, 2)
    order = torch.randperm(size, generator=child(3, "selective-fd", "validation", "client/0", 0))
    role = torch.full((1, size), VALIDATION)
    role[0, order[: read.known_of(size)]] = KNOWN
    uniform = BoundingBox.unit(6).uniform(made.uniform, child(3, "selective-fd", "uniform", "client/0", 0))
    # Half of the candidates are out, so that what is held is one guess of many.
    candidates = torch.stack([x, points(size, 4)], 1).flatten(0, 1)
    sites = torch.arange(2 * size).reshape(-1, 2)
    records = Records(candidates=candidates, sites=sites, library=x[:0], others=0)
    table = SelectedClass(read, records, public, uniform, stream(0))
    guess = Guesses(record=2 * torch.arange(size)[None], role=role)
    assert bool(table.log_prior(guess).isfinite())
    bits = table.declined(guess, 1e-3)[0] < 0.5
    true = fitted_bits(x, public, made)
    agreed = float((bits == true[table.near]).double().mean())
    assert agreed == 1 if changed.get("bandwidth") else agreed > 0.97  # levels of bandwidth round
    far = torch.ones(len(public), dtype=torch.bool)
    far[table.near] = False
    assert 0 < int(true.sum()) < len(public)
    assert float(true[far].double().mean() if far.any() else 0) < 0.1


def test_levels_of_bandwidth_are_those_of_the_protocol() -> None:
    _, read = settings()
    x = points(7, 5)
    records = Records(candidates=x, sites=torch.arange(7)[:, None], library=x[:0], others=0)
    table = SelectedClass(read, records, points(50, 6), points(30, 7), stream(0))
    role = torch.tensor([[KNOWN, KNOWN, OUT, VALIDATION, VALIDATION, OUT, KNOWN]])
    guess = Guesses(record=torch.arange(7)[None], role=role)
    assert float(table._bandwidths(guess)) == pytest.approx(default_bandwidth(x[role[0] != OUT]), rel=1e-4)


def test_prior_guesses_hold_one_of_each_pair_and_split_as_the_protocol_does() -> None:
    _, read = settings()
    x = points(14, 8)
    records = Records(candidates=x, sites=torch.arange(14).reshape(7, 2), library=points(9, 9), others=1)
    table = SelectedClass(read, records, points(50, 6), points(30, 7), stream(0))
    drawn = table.prior(200, stream(1))
    held = (drawn.role != OUT).sum(1)
    assert set(held.tolist()) == {7, 8}
    assert bool((drawn.role[:, :7] != OUT).all())
    assert bool((drawn.record[:, :7] // 2 == torch.arange(7)).all())
    assert bool(((drawn.role == KNOWN).sum(1) == torch.tensor([read.known_of(int(n)) for n in held])).all())
    assert bool(table.log_prior(drawn).isfinite().all())
    wrong = Guesses(record=drawn.record, role=drawn.role.where(drawn.role != VALIDATION, KNOWN))
    assert not bool(table.log_prior(wrong).isfinite().any())


# -- the chains -------------------------------------------------------------------------------------------------


def enumerated(table: SelectedClass, accepted: torch.Tensor, softness: float) -> torch.Tensor:
    """How likely each candidate of a class without other records is held: every guess, weighed."""
    sites, rows = table.records.sites, []
    known = table.settings.known_of(len(sites))
    for side in product(range(2), repeat=len(sites)):
        for chosen in combinations(range(len(sites)), known):
            role = torch.full((len(sites),), VALIDATION)
            role[list(chosen)] = KNOWN
            rows.append((sites[torch.arange(len(sites)), list(side)], role))
    every = Guesses(record=torch.stack([r for r, _ in rows]), role=torch.stack([r for _, r in rows]))
    weight = _bits(table.declined(every, softness), accepted).double().softmax(0)
    found = torch.zeros(len(table.records.candidates), dtype=torch.float64)
    return found.index_add_(0, every.record.flatten(), weight.repeat_interleave(len(sites)))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1])
def test_chains_find_what_enumeration_finds(seed: int) -> None:
    made, read = settings()
    x, public = points(10, 20 + seed), points(60, 30 + seed)
    records = Records(candidates=x, sites=torch.arange(10).reshape(5, 2), library=x[:0], others=0)
    table = SelectedClass(read, records, public, points(50, 7), stream(0))
    accepted = fitted_bits(x[::2], public, made)
    soft = 0.5  # at low softness there is hardly anything left to weigh
    exact = enumerated(table, accepted[table.near], soft)
    how = Annealing(chains=300, sweeps=300, softness=soft, cooling=0.3)
    (found,) = coins([table], accepted, how, stream(1))
    assert float((exact - 0.5).abs().max()) > 0.1
    assert float((found.double() - exact).abs().max()) < 0.05


@pytest.mark.thorough
def test_without_bits_chains_draw_fair_coins() -> None:
    _, read = settings()
    x = points(12, 40)
    for sites in (torch.arange(12).reshape(6, 2), torch.arange(12)[:, None]):
        records = Records(candidates=x, sites=sites, library=points(5, 41), others=2)
        table = SelectedClass(read, records, points(40, 42), points(30, 7), stream(0))
        table.near = table.near[:0]
        table._build(points(40, 42)[:0])
        (found,) = coins(
            [table], torch.zeros(40).bool(), Annealing(chains=500, sweeps=120, softness=0.1), stream(1)
        )
        assert float((found - 0.5).abs().max()) < 0.06


# -- the attack on a federation ---------------------------------------------------------------------------------


def encoded(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)[:, :9]


class Case(Paired):
    """Selective-FD among two clients; the first holds one of each of six pairs of three classes."""

    def __init__(
        self, place: Path, *, holds: bool = True, public: int = 240, more: int = 0, **params: Any
    ) -> None:
        draws = stream(9)
        centres = torch.rand(CLASSES, 1, 4, 4, generator=draws)

        def some(y: torch.Tensor) -> torch.Tensor:
            return (centres[y] + 0.12 * torch.randn(len(y), 1, 4, 4, generator=draws)).clamp(0, 1)

        y = torch.arange(CLASSES).repeat_interleave(2 * PAIRS)
        x = some(y)
        super().__init__(x, y, torch.randint(2, (CLASSES * PAIRS,), generator=draws).bool())
        apart, further = some(y[::2]), torch.arange(more) % CLASSES
        own = torch.cat([x[self.member] if holds else apart, some(further)])
        data = [(own, torch.cat([y[::2], further]))]
        samples = some(torch.arange(public) % CLASSES)
        data.append((some(y[::2]), y[::2]))
        given = {
            "rounds": 2,
            "warm_up_steps": 1,
            "distill_steps": 1,
            "public_batch": public,
            "labels": "hard",
        }
        self.view = rehearsed(
            place / "transcript",
            "selective-fd",
            data,
            samples,
            network=mlp(4, (1, 4, 4), CLASSES),
            encode=encoded if params.get("space") == "features" else None,
            **given | params,
        )
        others = torch.arange(30) % CLASSES
        self.knowledge = Knowledge(auxiliary=(some(others), others), public=samples, classes=CLASSES)

    def told(self, seed: int = 0, knowledge: Knowledge | None = None, **params: Any) -> Membership:
        attack = AcceptSet(AcceptSetConfig(**({"chains": 48, "sweeps": 80} | params)))
        return self.guess(attack, knowledge=knowledge, seed=seed)

    def scores(self, **params: Any) -> torch.Tensor:
        return self.told(**params).scores

    def auc(self, **params: Any) -> tuple[float, float]:
        """AUC and its p-value."""
        return self.figure(self.told(**params))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


def test_members_are_told_from_the_accept_bits_alone(case: Case) -> None:
    assert case.auc()[0] > 0.9


@pytest.mark.thorough
def test_more_public_samples_recover_every_pair(tmp_path: Path) -> None:
    many = Case(tmp_path, public=1000)
    scores = many.scores(chains=48, sweeps=100).reshape(-1, 2)
    right = (scores[:, 0] > scores[:, 1]) == many.member.reshape(-1, 2)[:, 0]
    assert float(right.double().mean()) > 0.9


def test_of_each_pair_one_is_held_and_equal_seeds_give_equal_scores(case: Case) -> None:
    first = case.scores(sweeps=20)
    assert torch.allclose(
        first.reshape(-1, 2).sum(1), torch.ones(CLASSES * PAIRS, dtype=torch.float64), atol=1e-5
    )
    assert torch.equal(first, case.scores(sweeps=20))
    assert not torch.equal(first, case.scores(sweeps=20, seed=1))


def test_without_pairs_it_still_tells_members(case: Case) -> None:
    assert case.auc(paired=False)[1] < 0.01


def test_records_that_are_no_candidates_are_allowed_for(tmp_path: Path) -> None:
    assert Case(tmp_path, more=3).auc()[1] < 0.01


def test_selectors_on_features_are_attacked_with_the_same_encoder(tmp_path: Path) -> None:
    features = Case(tmp_path, space="features")
    known = replace(features.knowledge, encode=encoded)
    assert features.auc(knowledge=known)[1] < 0.01
    attack = AcceptSet(AcceptSetConfig())
    assert "feature extractor" in attack.applicable(features.view, features.knowledge, features.task).reason


def test_a_client_without_the_candidates_gives_nothing_away(tmp_path: Path) -> None:
    value, p = Case(tmp_path, holds=False).auc()
    assert p > 0.01
    assert value > 0.2


def test_bits_that_are_independent_of_the_coins_tell_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = stream(3)
    bits = torch.ones(240), (torch.rand(240, generator=draws) < 0.5).float()
    monkeypatch.setattr("fdaudit.attacks.membership.accept_set.accepted_samples", lambda *_: bits)
    assert case.auc()[1] > 0.01


def test_it_says_why_it_does_not_apply(case: Case) -> None:
    attack, task = AcceptSet(AcceptSetConfig()), AttackTask(targets=("client/0",))
    full = replace(task, challenges={"client/0": case.challenge})

    def reason(view: View, known: Knowledge, asked: AttackTask) -> str:
        found = attack.applicable(view, known, asked)
        assert not found
        return found.reason

    assert "no challenge" in reason(case.view, case.knowledge, task)
    energy = replace(case.view, hyperparameters={**case.view.hyperparameters, "selector": "energy"})
    assert "density-ratio" in reason(energy, case.knowledge, full)
    assert "density-ratio" in reason(replace(case.view, hyperparameters={}), case.knowledge, full)
    assert "public samples" in reason(case.view, replace(case.knowledge, public=None), full)
    nobody = replace(task, challenges={"client/7": replace(case.challenge, target="client/7")})
    assert "not in view" in reason(case.view, case.knowledge, nobody)


def test_a_client_that_declines_nothing_is_not_attacked(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.ones(240), torch.ones(240)
    monkeypatch.setattr("fdaudit.attacks.membership.accept_set.accepted_samples", lambda *_: bits)
    found = AcceptSet(AcceptSetConfig()).applicable(case.view, case.knowledge, case.task)
    assert "declined" in found.reason
