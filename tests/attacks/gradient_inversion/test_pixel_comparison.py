"""Pixel comparison: the value between comparisons, records followed by their masks, and where it does not apply."""

from __future__ import annotations

import numpy as np
import torch
from fdaudit.attacks.gradient_inversion.comparison import PixelComparison, PixelComparisonConfig, between
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.rng import child
from fdaudit.tasks import SEGMENTATION, SINGLE_LABEL
from fdaudit.types import AttackTask

from ...helpers.mask_cases import discs
from .gradient_inversion_cases import one_thread, psnr, view_of_messages  # noqa: F401

NONE = torch.full((1, 1), -1.0, dtype=torch.float64)
"""A typical value outside every bracket: the middle is taken."""


@given(st.lists(st.integers(1, 19), min_size=1, max_size=6, unique=True), st.data())
@settings(deadline=None)
def test_the_guess_contradicts_as_few_comparisons_as_any_value_could(drawn, data) -> None:
    values = np.array(drawn) / 20
    said = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    guess = float(between(torch.from_numpy(values)[:, None], torch.from_numpy(said)[:, None], NONE))

    def wrong(at: float) -> int:
        return sum((v > at) if brighter else (v < at) for v, brighter in zip(values, said, strict=True))

    order = np.sort(values)
    grid = np.concatenate([(order[1:] + order[:-1]) / 2, [0.0, 1.0]])
    assert wrong(guess) <= min(wrong(float(v)) for v in grid)


def test_comparisons_without_error_bracket_every_pixel() -> None:
    truth = torch.rand(50, generator=child(0, "truth"))
    images = torch.rand(40, 50, generator=child(0, "images"))
    guess = between(images, truth > images, torch.rand(200, 50, generator=child(0, "typical")))
    assert (guess - truth).abs().mean() < 0.03
    assert ((images < truth) == (images < guess)).all()


def seen(steps: int, masks: bool, **public):
    """Return what a server sees of a client that compares eight records in every step, and the records."""
    x, objects = discs(60)
    x, y = torch.from_numpy(x)[:, None], torch.from_numpy(objects > 0).long()
    labels = y if masks else y.flatten(1).sum(1) % 3
    draws, sent = child(0, "steps"), []
    for _ in range(steps):
        rows = torch.randint(8, (8,), generator=draws)
        images = (x[rows] + 0.2 * torch.randn(x[rows].shape, generator=draws)).clamp(0, 1)
        stray = 0.3 * torch.randn(images.shape, generator=draws)
        sent += [
            ("client/0", ("server",), "private_labels", {"values": labels[rows]}),
            ("server", ("client/0",), "generated_samples", {"samples": images}),
            ("client/0", ("server",), "sample_gradients", {"values": (images - x[rows]).sign() + stray}),
        ]
    task = SEGMENTATION if masks else SINGLE_LABEL
    knowledge = Knowledge(auxiliary=(x[8:], labels[8:]), task=task)
    return view_of_messages(sent, **public), knowledge, AttackTask(targets=("client/0",)), x[:8]


def test_masks_tell_which_comparisons_are_of_one_record() -> None:
    view, knowledge, asked, x = seen(30, masks=True)
    attack = PixelComparison(PixelComparisonConfig())
    assert attack.applicable(view, knowledge, asked)
    (guess,) = attack.run(view, knowledge, asked, child(0, "a"))
    assert guess.images.shape == x.shape
    nearest = torch.cdist(guess.images.flatten(1), x.flatten(1)).argmin(1)
    assert sorted(nearest.tolist()) == list(range(8))
    mean = knowledge.auxiliary[0].mean(0).expand_as(x)
    assert (psnr(guess.images, x[nearest]) - psnr(mean, x[nearest])).min() > 3
    assert len(guess.messages) == 30


def test_records_of_one_class_are_read_in_the_last_step_alone() -> None:
    view, knowledge, asked, x = seen(5, masks=False)
    (guess,) = PixelComparison(PixelComparisonConfig()).run(view, knowledge, asked, child(0, "a"))
    assert guess.images.shape == x.shape
    assert guess.messages == (12,)


def test_it_says_why_it_does_not_apply() -> None:
    attack = PixelComparison(PixelComparisonConfig())
    view, knowledge, asked, _ = seen(2, masks=True, l1=0)
    assert "l1 is 0" in attack.applicable(view, knowledge, asked).reason
    view, knowledge, asked, _ = seen(0, masks=True)
    assert "no gradients" in attack.applicable(view, knowledge, asked).reason
    assert "no auxiliary" in attack.applicable(view, Knowledge(task=SEGMENTATION), asked).reason
