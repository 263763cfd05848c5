"""Figures of segmentation: cases worked out by hand, independent references, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import t
from sklearn.metrics import f1_score, jaccard_score

from fdaudit.errors import UsageError
from fdaudit.metrics.segmentation.figures import constant_dice, mean_dice_figure, score_masks
from fdaudit.metrics.segmentation.objects import aggregated_jaccard, components, object_dice
from fdaudit.metrics.segmentation.pixels import dice, hausdorff_95, mean_iou

from ..helpers.mask_cases import discs


def box(*corners, side=10):
    """Return a mask with boxes (top, left, height, width), numbered from 1."""
    mask = np.zeros((side, side), dtype=int)
    for number, (top, left, height, width) in enumerate(corners, 1):
        mask[top : top + height, left : left + width] = number
    return mask


TRUE = discs(12, seed=1)[1]
GUESS = discs(12, seed=2)[1]
EMPTY = np.zeros((10, 10), dtype=int)


# -- pixels -------------------------------------------------------------------------------------------------------


def test_dice_of_boxes_by_hand() -> None:
    # 4x4 boxes, shifted by two columns: 8 pixels shared of 16 and 16.
    assert dice(box((0, 0, 4, 4)), box((0, 2, 4, 4))) == pytest.approx(2 * 8 / 32)
    guess, truth = box((0, 0, 2, 2), (5, 0, 2, 2)), box((0, 0, 2, 2), (5, 1, 2, 2))
    assert dice(guess, truth) == pytest.approx((1 + 2 * 2 / 8) / 2)
    assert dice(EMPTY, EMPTY) == 1
    assert dice(EMPTY, box((0, 0, 1, 1))) == 0
    for guess, truth in zip(GUESS > 0, TRUE > 0, strict=True):
        assert dice(guess, truth) == pytest.approx(f1_score(truth.ravel(), guess.ravel()))


def test_mean_iou_of_boxes_by_hand() -> None:
    # Object: 8 of 24 pixels. Background: 100 - 24 = 76 of 76 + 16.
    found = mean_iou(box((0, 0, 4, 4))[None], box((0, 2, 4, 4))[None])
    assert found == pytest.approx((8 / 24 + 76 / 92) / 2)
    guess, truth = GUESS % 3, TRUE % 3
    expected = jaccard_score(truth.ravel(), guess.ravel(), average="macro")
    assert mean_iou(guess, truth) == pytest.approx(expected)


def test_hd95_by_hand() -> None:
    assert hausdorff_95(box((1, 1, 1, 1)), box((4, 5, 1, 1))) == pytest.approx(5)
    # A row of 41 pixels, and the same row with one stray pixel 9 rows below: 1 of 42 distances is 9, the others are 0.
    row = box((0, 0, 1, 41), side=50)
    assert hausdorff_95(row, np.maximum(row, box((9, 3, 1, 1), side=50))) == 0
    assert hausdorff_95(EMPTY, EMPTY) == 0
    assert hausdorff_95(EMPTY, box((0, 0, 1, 1))) is None


def test_hd95_is_that_of_all_pairs_of_boundary_pixels():
    def edge(mask):
        around = [(0, 1), (0, -1), (1, 0), (-1, 0)]
        inside = {tuple(p) for p in np.argwhere(mask)}
        return np.array([p for p in inside if any((p[0] + r, p[1] + c) not in inside for r, c in around)])

    for guess, truth in zip(GUESS > 0, TRUE > 0, strict=True):
        apart = cdist(edge(guess), edge(truth))
        expected = max(np.percentile(apart.min(1), 95), np.percentile(apart.min(0), 95))
        assert hausdorff_95(guess, truth) == pytest.approx(expected)


# -- objects --------------------------------------------------------------------------------------------------------


def test_objects_by_hand() -> None:
    mask = np.array([[1, 1, 0], [0, 0, 1], [1, 0, 1]])
    found = components(mask)
    assert found[0, 0] == found[0, 1]
    assert found[1, 2] == found[2, 2]
    assert len(np.unique(found)) == 1 + 3
    # The first object is found; the second, of 4 pixels, is missed: its half averages 0 with weight 4 of 8.
    assert object_dice(box((0, 0, 2, 2)), box((0, 0, 2, 2), (6, 6, 2, 2))) == pytest.approx((0.5 + 1) / 2)
    # True: two 2x2 boxes side by side. Predicted: one box over both.
    merged = box((0, 0, 2, 4))
    apart = box((0, 0, 2, 2), (0, 2, 2, 2))
    assert object_dice(merged, apart) == pytest.approx(2 * 4 / (4 + 8))
    apart = box((0, 0, 2, 2), (0, 2, 2, 2))[None]
    assert score_masks(apart > 0, apart > 0).aji == 1
    assert score_masks(apart > 0, apart > 0, objects=apart).aji == pytest.approx(0.5)


def test_aji_by_hand() -> None:
    # Shared 4; union 4 of the first; 4 of the missed; 9 of the invented one.
    guess = box((0, 0, 2, 2), (3, 7, 3, 3))
    truth = box((0, 0, 2, 2), (7, 0, 2, 2))
    assert aggregated_jaccard(guess, truth) == pytest.approx(4 / (4 + 4 + 9))
    # Each true box of 4 meets the predicted 8: (4 + 4) / (8 + 8).
    merged, apart = box((0, 0, 2, 4)), box((0, 0, 2, 2), (0, 2, 2, 2))
    assert aggregated_jaccard(merged, apart) == pytest.approx(0.5)


@pytest.mark.parametrize("figure", [object_dice, aggregated_jaccard])
def test_objects_may_have_any_numbers_or_be_absent(figure) -> None:
    other = np.array([0, 9, 2, 30])[TRUE]
    for k in range(len(TRUE)):
        assert figure(other[k], TRUE[k]) == pytest.approx(1)
        assert figure(GUESS[k], other[k]) == pytest.approx(figure(GUESS[k], TRUE[k]))
    full = np.ones((10, 10), dtype=int)
    assert figure(EMPTY, EMPTY) == 1
    assert figure(EMPTY, box((0, 0, 2, 2))) == figure(box((0, 0, 2, 2)), EMPTY) == 0
    assert figure(full, full) == 1


# -- all together -----------------------------------------------------------------------------------------------------


def test_figures_of_no_distance_or_one_picture_have_no_interval() -> None:
    guess, truth = np.stack([EMPTY, box((1, 1, 1, 1))]), np.stack([box((0, 0, 1, 1)), box((4, 5, 1, 1))])
    assert score_masks(guess, truth).hd95 == pytest.approx(5)
    assert score_masks(guess[:1], truth[:1]).hd95 is None
    assert mean_dice_figure(np.array([0.5, 0.7]), np.zeros(2)).low is None
    half, none = box((0, 0, 5, 10)), EMPTY
    assert constant_dice(np.stack([half, half])) == pytest.approx(2 * 50 / 150)
    assert constant_dice(np.stack([half, none, none])) == pytest.approx(2 / 3)
    found = score_masks(TRUE > 0, TRUE > 0)
    assert (found.dice.value, found.mean_iou, found.object_dice, found.aji, found.hd95) == (1, 1, 1, 1, 0)
    assert found.dice.low is None


def test_the_interval_is_students_for_images_of_their_own():
    values = np.array([0.5, 0.6, 0.7, 0.8])
    found = mean_dice_figure(values)
    error = values.std(ddof=1) / 2
    ends = [np.log(v / (1 - v)) for v in (found.low, found.high)]
    reach = t.ppf(0.975, 3) * error / (0.65 * 0.35)
    middle = np.log(0.65 / 0.35)
    assert ends == pytest.approx([middle - reach, middle + reach])


def test_copies_of_a_picture_add_no_certainty():
    values = np.array([0.5, 0.6, 0.7, 0.8])
    once, often = mean_dice_figure(values), mean_dice_figure(np.repeat(values, 3), np.repeat(np.arange(4), 3))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert often.n == 12


def test_the_interval_holds_the_mean_as_often_as_it_says():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        picture = np.arange(60) // 3
        values = rng.beta(6, 3, 20)[picture] * 0.9 + 0.1 * rng.uniform(size=60)
        found = mean_dice_figure(values, picture)
        inside += found.low <= 0.9 * 6 / 9 + 0.05 <= found.high
    assert 0.92 <= inside / 400 <= 0.98


@pytest.mark.parametrize(
    ("guess", "truth"),
    [
        (EMPTY, EMPTY[:, :9]),
        (EMPTY - 1, EMPTY),
        (EMPTY / 2, EMPTY),
        (EMPTY[0], EMPTY[0]),
        (EMPTY[:0], EMPTY[:0]),
    ],
)
@pytest.mark.parametrize("figure", [dice, hausdorff_95, object_dice, aggregated_jaccard])
def test_what_is_no_pair_of_masks_is_refused(figure, guess, truth):
    with pytest.raises(UsageError):
        figure(guess, truth)
