"""An evaluator's figures: exact chances by hand and by enumeration, error rates without a leak, distances by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import UsageError
from fdaudit.metrics import Bystanders, ClassPriors, Judge, relabelled_p_value, score_class_evaluation


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _flat(*values: float) -> torch.Tensor:
    """Constant 4x4 images."""
    return torch.tensor(values)[:, None, None, None].expand(-1, 1, 4, 4).clone()


TENTHS = Judge(
    name="a judge",
    classify=lambda x: (10 * x.flatten(1).mean(1)).round().long(),
    features=lambda x: x.flatten(1)[:, :2],
)
"""Takes a constant image of 0.3 for class 3."""

SETS = st.lists(st.integers(1, 4), min_size=1, max_size=2)


@given(sizes=SETS, seed=st.integers(0, 2**31), n=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_the_p_value_counts_assignments(sizes: list[int], seed: int, n: int) -> None:
    """Every assignment of names within every set, tried one by one."""
    ends = np.cumsum([0, *sizes])
    withheld = [list(range(a, b)) for a, b in itertools.pairwise(ends.tolist())]
    claimed, taken = _rng(seed).integers(ends[-1], size=n), _rng(seed + 1).integers(ends[-1] + 1, size=n)
    right = []
    for orders in itertools.product(*(itertools.permutations(w) for w in withheld)):
        name = dict(zip(itertools.chain(*withheld), itertools.chain(*orders), strict=True))
        right.append(sum(name[c] == t for c, t in zip(claimed.tolist(), taken.tolist(), strict=True)))
    p, chance = relabelled_p_value(claimed, taken, withheld, _rng())
    reached = int((claimed == taken).sum())
    assert p == pytest.approx(np.mean([r >= reached for r in right]))
    assert chance == pytest.approx(np.mean(right) / n)


def test_p_values_of_assignments_by_hand() -> None:
    halves = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    p, chance = relabelled_p_value(range(10), range(10), halves, _rng())
    assert p == pytest.approx(1 / math.factorial(5) ** 2)
    assert chance == pytest.approx(0.2)
    p, chance = relabelled_p_value([3], [3], [[3]], _rng())
    assert (p, chance) == (1.0, 1.0)
    p, chance = relabelled_p_value(range(12), range(12), [list(range(12))], _rng())
    assert p == pytest.approx(1 / 20_000)
    assert chance == pytest.approx(1 / 12)
    assert relabelled_p_value(range(12), np.roll(range(12), 1), [list(range(12))], _rng())[0] == 1.0
    with pytest.raises(UsageError, match="leaves out"):
        relabelled_p_value([0, 1], [0, 1], [[0]], _rng())


def test_without_a_leak_the_p_value_keeps_its_level() -> None:
    """An attack that knows frequencies, but not which class is which: the truth is one assignment in 120."""
    draws, found = _rng(4), []
    for _ in range(2000):
        shown = draws.integers(5, size=5)  # what the image made for each name really shows
        found.append(relabelled_p_value(range(5), draws.permutation(5)[shown], [list(range(5))], _rng())[0])
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(found) <= level) <= level + 3 * math.sqrt(level / 2000)


def _score(guess, labels, x, y, **more):
    found = score_class_evaluation(guess, labels, x, y, TENTHS, _rng(), **more)
    return {f.name: f for f in found}


RECORDS, CLASSES = _flat(0.1, 0.12, 0.2, 0.3), torch.tensor([1, 1, 2, 3])


def test_accuracy_by_hand() -> None:
    found = _score(
        [_flat(0.1, 0.2, 0.1)], [torch.tensor([1, 2, 3])], [RECORDS], [CLASSES], withheld=[[1, 2, 3]]
    )
    accuracy = found["evaluator_accuracy"]
    assert accuracy.value == pytest.approx(2 / 3)
    assert accuracy.n == 3
    assert accuracy.low == pytest.approx(0.0943, abs=1e-4)  # Clopper and Pearson for 2 of 3
    assert accuracy.p == pytest.approx(2 / 6)
    assert found["evaluator_chance"].value == pytest.approx(1 / 3)
    assert "no auxiliary data" in found["evaluator_prior"].unavailable


def test_classes_are_counted_once_and_without_withheld_ones_there_is_no_p_value() -> None:
    found = _score([_flat(0.1)], [torch.tensor([1])], [RECORDS], [CLASSES])
    assert found["evaluator_accuracy"].p is None
    assert found["evaluator_chance"].value is None
    guess, labels = _flat(0.1, 0.2, 0.7), torch.tensor([1, 2, 7])
    found = _score([guess, guess], [labels, labels], [RECORDS, RECORDS[:2]], [CLASSES, CLASSES[:2]])
    assert found["evaluator_accuracy"].n == 2
    assert _score([guess[2:]], [labels[2:]], [RECORDS], [CLASSES]) == {}


def test_the_prior_of_withheld_classes_knows_none_of_them() -> None:
    aux, of = _flat(0.1, 0.1, 0.2, 0.2, 0.3, 0.3), [1, 1, 2, 2, 3, 3]
    guess, labels = _flat(0.1, 0.2, 0.3), torch.tensor([1, 2, 3])
    known = _score([guess], [labels], [RECORDS], [CLASSES], priors=ClassPriors(aux, of))
    assert known["evaluator_prior"].value == 1.0
    lacking = ClassPriors(aux, of, [[1], [2, 3]])
    found = _score([guess], [labels], [RECORDS], [CLASSES], priors=lacking, withheld=[[1], [2, 3]])
    assert found["evaluator_prior"].value == 0.0  # 0.25 for class 1, 0.1 for the two others
    assert lacking.guess("class-mean", np.array([1, 2]), _rng()).flatten(1).mean(1).tolist() == pytest.approx(
        [0.25, 0.1]
    )


def test_withholding_a_class_of_which_no_image_was_known_changes_no_guess() -> None:
    aux, of = _flat(0.1, 0.2, 0.3), [1, 2, 3]
    labels = np.array([1, 4, 2, 4])
    guess = ClassPriors(aux, of).guess("class-mean", labels, _rng())
    assert torch.equal(ClassPriors(aux, of, [[4]]).guess("class-mean", labels, _rng()), guess)


def test_distances_to_records_and_to_bystanders_of_a_class() -> None:
    x, y = _flat(0.1, 0.5), torch.tensor([1, 2])
    others = Bystanders(_flat(0.2, 0.9), np.array([0, 1]), np.array([1, 2]))
    found = _score([_flat(0.1, 0.6)], [torch.tensor([1, 2])], [x], [y], bystanders=others)
    root = math.sqrt(2)  # two features, alike in constant images
    assert found["evaluator_nearest"].value == pytest.approx(root * (0.0 + 0.1) / 2, abs=1e-6)
    assert found["evaluator_nearest_bystanders"].value == pytest.approx(root * (0.1 + 0.3) / 2, abs=1e-6)
    assert found["evaluator_nearest_gap"].value == pytest.approx(root * 0.15, abs=1e-6)
    nobody = _score([_flat(0.1)], [torch.tensor([1])], [x], [y])
    assert nobody["evaluator_nearest_gap"].value is None


def test_the_labelled_frechet_distance_of_a_point_by_hand() -> None:
    """A point against a Gaussian: squared distance to its mean, and its variances."""
    x, y = _flat(0.2, 0.4), torch.tensor([3, 3])
    found = _score([_flat(0.3)], [torch.tensor([3])], [x], [y])["labelled_frechet"]
    assert found.value == pytest.approx(2 * 0.02, abs=1e-6)  # two features, each of unbiased variance 0.02
    assert found.n == 1
    lone = _score([_flat(0.3)], [torch.tensor([3])], [x[:1]], [y[:1]])["labelled_frechet"]
    assert lone.value is None
