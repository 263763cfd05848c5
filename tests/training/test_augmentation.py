"""Images that are changed before each step: what of them stays, and that both strategies see the same."""

from __future__ import annotations

import pytest
import torch

from fdaudit.training.jobs import Augmentation
from fdaudit.training.trainer import Fit, Trainer

from .training_cases import NETWORKS, close, execution, jobs

IMAGES = torch.rand(200, 3, 12, 10, generator=torch.Generator().manual_seed(1)) + 0.1
"""No pixel is zero."""


def changed(seed: int = 2, **settings: object) -> torch.Tensor:
    return Augmentation.model_validate(settings).of(IMAGES, torch.Generator().manual_seed(seed))


def test_without_settings_images_stay() -> None:
    assert torch.equal(changed(), IMAGES)


def test_a_shift_moves_each_image_as_a_whole_and_zeros_come_in() -> None:
    shifted, moves = changed(shift=2), set()
    for before, after in zip(IMAGES, shifted, strict=True):
        found = []
        for down in range(-2, 3):
            for right in range(-2, 3):
                padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
                if torch.equal(padded[:, 2 + down : 14 + down, 2 + right : 12 + right], after):
                    found.append((down, right))
        (move,) = found
        moves.add(move)
    assert len(moves) == 25


def test_a_flip_mirrors_about_half_of_the_images_from_left_to_right() -> None:
    flipped = changed(flip=True)
    mirrored = (flipped == IMAGES.flip(-1)).flatten(1).all(1)
    assert torch.equal(flipped[~mirrored], IMAGES[~mirrored])
    assert 70 < mirrored.sum() < 130


def test_a_cutout_is_one_square_of_zeros_in_all_channels() -> None:
    cut = changed(cutout=4)
    gone = cut == 0
    assert torch.equal(cut[~gone], IMAGES[~gone])
    assert torch.equal(gone[:, 0], gone[:, 2])
    area = gone[:, 0].flatten(1).sum(1)
    assert area.max() == 16
    assert area.min() >= 4, "a quarter of the square at a corner"
    rows, columns = gone[:, 0].any(2).sum(1), gone[:, 0].any(1).sum(1)
    assert torch.equal(rows * columns, area)


def test_draws_decide() -> None:
    settings = {"shift": 2, "flip": True, "cutout": 3}
    assert torch.equal(changed(**settings), changed(**settings))
    assert not torch.equal(changed(**settings), changed(seed=3, **settings))


@pytest.mark.parametrize("model", ["mlp", "norm"])
def test_both_strategies_change_images_alike_and_it_changes_the_models(model: str) -> None:
    network, work = NETWORKS[model], jobs(NETWORKS[model])
    fit = Fit(lr=0.1, augmentation=Augmentation(shift=1, flip=True, cutout=2))
    looped = Trainer(network, execution("loop")).fit(work, fit)
    stacked = Trainer(network, execution("stacked")).fit(work, fit)
    bare = Trainer(network, execution("loop")).fit(work, Fit(lr=0.1))
    for one, two, three in zip(looped, stacked, bare, strict=True):
        close(one.parameters, two.parameters)
        assert any(not torch.allclose(one.parameters[n], three.parameters[n]) for n in one.parameters)
