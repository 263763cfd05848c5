"""Label-only attacks through a hard-label oracle: budgets, majorities, refusals, and each attack's own pieces."""

from __future__ import annotations

import re

import pytest
import torch
from fdaudit.attacks._target_model import BlackBox
from fdaudit.attacks.label_only.augmentation import _moved, augmentations, best_weights
from fdaudit.attacks.label_only.base import Voter
from fdaudit.attacks.label_only.boundary import note_on, scores_of
from fdaudit.attacks.label_only.hopskipjump import Boundary
from fdaudit.attacks.label_only.yoqo import craft_queries
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn
from torch.nn import functional as F

from fdaudit import attacks
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.types import AttackTask

from ..label_only_cases import Case, empty_view

pytestmark = pytest.mark.thorough

NAMES = ("augmentation", "boundary-distance", "gap", "noise-robustness", "yoqo")
QUICK = {
    "augmentation": {"shadows": 3, "shadow_steps": 300},
    "boundary-distance": {"queries": 150, "directions": 20, "halvings": 4, "starts": 40},
    "gap": {},
    "noise-robustness": {"queries": 31},
    "yoqo": {"shadows": 6, "shadow_steps": 300, "iterations": 10, "lr": 0.005},
}
MLP = ModelSpec(name="mlp", params={"widths": [64]})


@pytest.fixture(scope="module")
def overfit():
    """200 members known by heart and 200 others; a third of all labels drawn at random."""
    return Case(model=MLP, noise=0.35)


@pytest.fixture(scope="module")
def found(overfit):
    return {name: overfit.attacked(name, **QUICK[name]) for name in NAMES}


# -- what they find -----------------------------------------------------------------------------------------------


def test_the_overfit_model_is_one(overfit):
    assert bool(overfit.right[overfit.member].all())
    assert overfit.gap >= 0.2


@pytest.mark.thorough
def test_the_gap_attack_has_the_auc_that_the_gap_gives(overfit, found):
    assert overfit.auc(found["gap"][0]).value == pytest.approx(0.5 + overfit.gap / 2)


def test_boundary_distance_finds_members_of_an_overfit_model(overfit, found):
    assert overfit.auc(found["boundary-distance"][0]).value >= 0.70


@pytest.mark.parametrize("name", ["augmentation", "noise-robustness", "yoqo"])
def test_no_attack_is_much_worse_than_the_gap(overfit, found, name):
    assert overfit.auc(found[name][0]).value >= overfit.auc(found["gap"][0]).value - 0.05


@pytest.mark.thorough
def test_augmentation_at_a_gap_of_fifty_points():
    case = Case(model=MLP, noise=0.6)
    assert case.gap >= 0.5
    gap = 0.5 + case.gap / 2
    for settings_ in (QUICK["augmentation"], {"scorer": "classifier", "shadows": 2, "shadow_steps": 300}):
        assert case.auc(case.attacked("augmentation", **settings_)[0]).value >= max(0.70, gap - 0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_on_an_untrained_model_the_interval_covers_chance(name):
    case = Case(model=MLP, fitted=False, each=100, auxiliary=100)
    auc = case.auc(case.attacked(name, **QUICK[name])[0])
    assert auc.low <= 0.5 <= auc.high


# -- budgets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "each"), [("gap", 1), ("yoqo", 1), ("augmentation", 7), ("noise-robustness", 31)]
)
def test_each_candidate_costs_what_the_settings_say(found, name, each):
    assert found[name][2] == 400 * each


def test_boundary_distance_stays_within_its_queries(overfit, found):
    assert 400 * 100 < found["boundary-distance"][2] <= 400 * 150
    wrong = int((~overfit.right).sum())
    assert f"{wrong} of 400" in found["boundary-distance"][1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(budget=st.integers(0, 1200))
def test_a_budget_is_split_evenly_kept_or_refused(name, budget):
    case = Case(model=MLP, fitted=False, each=10, auxiliary=20)
    cls = attacks.REGISTRY.load(name)
    attack = cls(cls.Config(**QUICK[name]))
    task = AttackTask(
        targets=("client/0",), challenges={"client/0": case.challenge}, oracle=Oracle("hard", budget)
    )
    needed = 20 * attack.least()
    verdict = attack.applicable(empty_view(), case.knowledge, task)
    assert bool(verdict) == (budget >= needed)
    if verdict:
        assert case.attacked(name, budget, **QUICK[name])[2] <= budget
    else:
        assert list(map(int, re.findall(r"\d+", verdict.reason))) == [needed, attack.least(), budget]


@pytest.mark.parametrize("name", NAMES)
def test_without_an_oracle_or_a_model_there_is_a_reason(overfit, name):
    cls = attacks.REGISTRY.load(name)
    attack = cls(cls.Config())
    task = AttackTask(targets=("client/0",), challenges={"client/0": overfit.challenge})
    assert "hard-label oracle" in attack.applicable(empty_view(), overfit.knowledge, task).reason
    assert "challenge" in attack.applicable(empty_view(), overfit.knowledge, AttackTask(targets=())).reason


def test_yoqo_needs_a_network_to_train(overfit):
    cls = attacks.REGISTRY.load("yoqo")
    task = AttackTask(
        targets=("client/0",), challenges={"client/0": overfit.challenge}, oracle=Oracle("hard", 1000)
    )
    assert "shadow models" in cls(cls.Config()).applicable(empty_view(), Knowledge(), task).reason


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gap", {"repeats": 0}),
        ("noise-robustness", {"sigma": ()}),
        ("boundary-distance", {"queries": 3}),
        ("yoqo", {"shadows": 1}),
        ("augmentation", {"scorer": "luck"}),
    ],
)
def test_settings_out_of_range_are_refused(name, wrong):
    with pytest.raises(ValidationError):
        attacks.REGISTRY.load(name).Config(**wrong)


# -- majorities ---------------------------------------------------------------------------------------------------


class Unsteady:
    """Answers class 3, and every third time class 1."""

    def __init__(self):
        self.asked, self.largest = 0, 0

    def __call__(self, x):
        number = torch.arange(self.asked, self.asked + len(x))
        self.asked, self.largest = self.asked + len(x), max(self.largest, len(x))
        return torch.where(number % 3 == 0, 1, 3)


def test_a_majority_of_repeated_answers_is_steady():
    target = Unsteady()
    ask = Voter(target, repeats=5, chunk=20)
    assert ask(torch.zeros(40, 1, 2, 2)).tolist() == [3] * 40
    assert (ask.spent, target.asked, target.largest) == (200, 200, 20)
    assert 1 in Voter(Unsteady())(torch.zeros(40, 1, 2, 2)).tolist()


def test_nothing_asked_is_nothing_answered():
    assert Voter(BlackBox(answers="hard"))(torch.zeros(0, 1, 2, 2)).shape == (0,)


def test_repeats_divide_the_budget(overfit):
    assert overfit.attacked("gap", 1200, repeats=3)[2] == 1200


# -- pieces -------------------------------------------------------------------------------------------------------


def test_augmentations_are_the_papers():
    for d in range(4):
        assert len(augmentations(0, d)) == 1 + 2 * d * (d + 1)
    assert len(augmentations(4.0, 1)) == 7
    x = torch.rand(3, 2, 6, 6, generator=child(0, "x"))
    shifted = [t(x) for t in augmentations(0, 1)]
    assert torch.equal(shifted[0], x)
    wanted = [
        F.pad(x, (1, 1, 1, 1))[:, :, 1 + i : 7 + i, 1 + j : 7 + j]
        for i, j in ((-1, 0), (1, 0), (0, -1), (0, 1))
    ]
    for one in wanted:
        assert sum(torch.allclose(one, s, atol=1e-5) for s in shifted[1:]) == 1


def test_right_angles_turn_the_image():
    x = torch.rand(1, 1, 5, 5, generator=child(0, "x"))
    _, plus, minus = [t(x) for t in augmentations(90.0, 0)]
    assert torch.allclose(plus, x.rot90(-1, (2, 3)), atol=1e-5)
    assert torch.allclose(minus, x.rot90(1, (2, 3)), atol=1e-5)


def test_the_way_to_score_is_the_one_that_orders_unseen_shadows_best():
    generator = child(0, "ways")
    inside = torch.rand(6, 400, generator=generator) < 0.5
    noise = (torch.rand(6, 400, 5, generator=generator) < 0.5).double()
    only_first = noise.clone()
    only_first[:, :, 0] = inside
    weights, way = best_weights(only_first, inside)
    assert int(weights.argmax()) == 0
    against = (
        noise.clone()
    )  # members are those whose last copy is classified wrong: neither count nor first see it
    against[:, :, 4] = ~inside
    weights, way = best_weights(against, inside)
    assert way == "logistic regression"
    assert float(weights[4]) < -1


def test_a_boundary_that_was_not_met_scores_above_all_others_and_is_noted():
    found = Boundary(
        distance=torch.tensor([0.0, 0.7, torch.inf]),
        right=torch.tensor([False, True, True]),
        started=torch.tensor([False, True, False]),
        spent=torch.ones(3),
        points=torch.zeros(3, 1, 1, 1),
    )
    assert scores_of(found).argsort().tolist() == [0, 1, 2]
    assert bool(scores_of(found).isfinite().all())
    assert note_on(found).count("1 of 3") == 2  # classified wrong, and without a starting point


def line(weight, bias):
    network = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    network[1].weight.data, network[1].bias.data = (
        torch.tensor([[weight], [-weight]]),
        torch.tensor([bias, -bias]),
    )
    return network.eval().requires_grad_(False)


def test_yoqo_moves_a_sample_to_where_models_that_hold_it_disagree_with_the_others():
    """On a line: models in say class 0 above 0.2, models out above 0.6; a query in between tells them apart."""
    networks = [line(30.0, -30 * 0.2), line(30.0, -30 * 0.6)]
    x = torch.tensor([0.05, 0.9]).view(2, 1, 1, 1)
    inside = torch.tensor([[True, True], [False, False]])
    made = craft_queries(
        networks, inside, x, torch.zeros(2, dtype=torch.int64), iterations=300, lr=0.01, alpha=1.0
    )
    assert bool(((made > 0.2) & (made < 0.6)).all())


@pytest.mark.parametrize(("angle", "i", "j"), [(4.0, 0, 0), (-9.0, 0, 0), (0.0, 1, -2), (30.0, 2, 1)])
def test_a_moved_sample_is_torchvisions(angle: float, i: int, j: int) -> None:
    """Torchvision takes more than a second to import, and is asked nowhere else in an attack."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import affine

    x = torch.rand(3, 2, 8, 11, generator=torch.Generator().manual_seed(1))
    bilinear = InterpolationMode.BILINEAR
    expected = affine(x, angle=angle, translate=[i, j], scale=1.0, shear=[0.0, 0.0], interpolation=bilinear)
    torch.testing.assert_close(_moved(angle, i, j)(x), expected, atol=1e-5, rtol=0)
