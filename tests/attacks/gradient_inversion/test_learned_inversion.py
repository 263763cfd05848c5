"""The learned inversion: what it finds in gradients of images, masks and several labels, and where it says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fdaudit.attacks.gradient_inversion.learned import LearnedInversion, LearnedInversionConfig
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.models.unet import UNet
from fdaudit.rng import child
from fdaudit.tasks import TASKS
from fdaudit.training.objectives import loss_function
from fdaudit.types import AttackTask

from ...helpers.mask_cases import discs
from .gradient_inversion_cases import (
    MemoryView,
    digits,
    one_thread,  # noqa: F401
    psnr,
    strided_cnn,
    world,
)

SMALL = LearnedInversionConfig(features=400)
CASES = ("single-label", "multi-label", "segmentation")


def small_unet(side: int, generator: torch.Generator) -> torch.nn.Module:
    """A U-Net with PyTorch's own initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(1000, (), generator=generator)))
        return UNet(1, 2, 4, 1)


def two_answers(side: int, generator: torch.Generator) -> torch.nn.Module:
    return strided_cnn(side, generator, classes=2)


def records(task: str) -> tuple[Tensor, Tensor]:
    """Return 150 records (x, y) of a task."""
    if task == "segmentation":
        images, objects = discs(150)
        return torch.from_numpy(images)[:, None], torch.from_numpy(objects > 0).long()
    x, y = digits()
    x, y = x[:150], y[:150]
    return (x, torch.stack([y % 2, (y > 4).long()], 1)) if task == "multi-label" else (x, y)


def seen(
    task: str, noise: float = 0.0, victims: int = 12
) -> tuple[MemoryView, Knowledge, AttackTask, Tensor]:
    """Return what a server sees of clients that send the gradient of one record each, and their images (n, c, h, w)."""
    make = {"segmentation": small_unet, "multi-label": two_answers}.get(task, strided_cnn)
    given, loss = records(task), loss_function(TASKS[task].labels.objective, 1.0)
    view, knowledge, asked, data = world(
        make, "gradient", (1,) * victims, noise=noise, records=given, loss=loss
    )
    return view, knowledge, asked, torch.cat([x for x, _ in data])


@pytest.mark.parametrize("task", CASES)
def test_a_gradient_of_one_record_shows_its_image_better_than_any_mean(task):
    view, knowledge, asked, x = seen(task)
    attack = LearnedInversion(SMALL)
    assert attack.applicable(view, knowledge, asked)
    guesses = attack.run(view, knowledge, asked, child(0, "attack"))
    shown = torch.cat([g.images for g in guesses])
    assert shown.shape == x.shape
    assert 0 <= shown.min() <= shown.max() <= 1
    mean = knowledge.auxiliary[0].mean(0)
    gain = (psnr(shown, x) - psnr(mean.expand_as(x), x)).mean().item()
    distances = torch.cdist(shown.flatten(1), x.flatten(1))
    found = (distances.argmin(1) == torch.arange(len(x))).sum().item()
    print(f"{task}: {gain:.1f} dB above the mean image, {found} of {len(x)} told from the others")
    assert gain > 1
    assert found >= 6  # a guess tells 1


@pytest.mark.parametrize("task", CASES)
def test_noise_that_drowns_the_gradient_leaves_nothing(task):
    view, knowledge, asked, x = seen(task, noise=10.0)
    guesses = LearnedInversion(SMALL).run(view, knowledge, asked, child(0, "attack"))
    shown = torch.cat([g.images for g in guesses])
    mean = knowledge.auxiliary[0].mean(0)
    assert (psnr(shown, x) - psnr(mean.expand_as(x), x)).mean() < 0.5
    distances = torch.cdist(shown.flatten(1), x.flatten(1))
    assert (distances.argmin(1) == torch.arange(len(x))).sum() <= 4


def test_it_says_why_it_does_not_apply():
    view, knowledge, asked, _ = seen("single-label", victims=2)
    attack = LearnedInversion(SMALL)
    bare = replace(knowledge, auxiliary=None)
    assert "auxiliary records" in attack.applicable(view, bare, asked).reason
    batches, known, task, _ = world(strided_cnn, "gradient", (4, 4))
    assert "mixes 4 images" in attack.applicable(batches, known, task).reason


def test_a_guess_depends_on_no_other_victim():
    view, knowledge, asked, _ = seen("single-label", victims=4)
    together = LearnedInversion(SMALL).run(view, knowledge, asked, child(0, "a"))
    alone = LearnedInversion(SMALL).run(view, knowledge, AttackTask(targets=("client/2",)), child(1, "b"))
    torch.testing.assert_close(alone[0].images, together[2].images, rtol=1e-3, atol=1e-4)


class Branching(torch.nn.Module):
    """A network that looks at a value of its input, which vectorised code cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.sum()) >= 0 else self.inner(-x)


def test_a_network_that_cannot_be_vectorised_is_asked_record_by_record():
    given = records("single-label")
    view, knowledge, asked, data = world(
        lambda side, generator: Branching(), "gradient", (1, 1), records=(given[0][:60], given[1][:60])
    )
    guesses = LearnedInversion(SMALL).run(view, knowledge, asked, child(0, "a"))
    assert [g.images.shape for g in guesses] == [x.shape for x, _ in data]
