"""Pixel matching: members behind the signs of gradients, chance under random signs, and where it does not apply."""

from __future__ import annotations

from typing import Any

import torch
from fdaudit.attacks.membership.comparisons import PixelMatching, PixelMatchingConfig, agreement

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.metrics.ranking import auc
from fdaudit.rng import child
from fdaudit.types import AttackTask, Challenge

from ...helpers.mask_cases import discs
from ..gradient_inversion.gradient_inversion_cases import view_of_messages


def seen(
    steps: int, masks: bool = False, true: bool = True, **public: Any
) -> tuple[View, AttackTask, torch.Tensor]:
    """Return what a server sees of a client that compares half of forty records, the task, and the members."""
    x, objects = discs(40)
    images, y = torch.from_numpy(x)[:, None], torch.from_numpy(objects > 0).long()
    labels = y if masks else y.flatten(1).sum(1) % 3
    draws, sent = child(0, "steps"), []
    order = torch.randperm(40, generator=draws)
    member = torch.zeros(40, dtype=torch.bool)
    member[order[:20]] = True
    for _ in range(steps):
        rows = order[torch.randint(20, (8,), generator=draws)]
        shown = (images[rows] + 0.2 * torch.randn(images[rows].shape, generator=draws)).clamp(0, 1)
        noise = torch.randn(shown.shape, generator=draws)
        signs = (shown - images[rows]).sign() if true else noise.sign()
        sent += [
            ("client/0", ("server",), "private_labels", {"values": labels[rows]}),
            ("server", ("client/0",), "generated_samples", {"samples": shown}),
            ("client/0", ("server",), "sample_gradients", {"values": signs + 0.5 * noise}),
        ]
    challenge = Challenge(target="client/0", x=images, y=labels, pair=torch.arange(40), design="coin-flips")
    task = AttackTask(targets=("client/0",), challenges={"client/0": challenge})
    return view_of_messages(sent, **public), task, member


def found(view: View, task: AttackTask, member: torch.Tensor) -> float:
    attack = PixelMatching(PixelMatchingConfig())
    assert attack.applicable(view, Knowledge(), task)
    (guess,) = attack.run(view, Knowledge(), task, child(0, "a"))
    return auc(guess.scores.numpy(), member.numpy())


def test_the_record_behind_a_gradient_agrees_with_all_signs() -> None:
    draws = child(0, "signs")
    x, images = torch.rand(3, 50, generator=draws), torch.rand(4, 50, generator=draws)
    told = agreement(x, images, images - x[1])
    assert torch.equal(told[1], torch.ones(4))
    assert bool((told[[0, 2]] < 1).all())


def test_members_are_told_by_the_signs_of_gradients() -> None:
    assert found(*seen(20)) > 0.95


def test_a_record_whose_mask_was_never_sent_is_no_member() -> None:
    assert found(*seen(20, masks=True)) > 0.95


def test_random_signs_tell_nothing() -> None:
    assert abs(found(*seen(20, true=False)) - 0.5) < 0.3  # of 20 members and 20 others: the deviation is 0.09


def test_it_says_why_it_does_not_apply() -> None:
    attack = PixelMatching(PixelMatchingConfig())
    view, task, _ = seen(2, l1=0)
    assert "l1 is 0" in attack.applicable(view, Knowledge(), task).reason
    view, task, _ = seen(0)
    assert "no gradients" in attack.applicable(view, Knowledge(), task).reason
    assert "no challenge" in attack.applicable(view, Knowledge(), AttackTask(targets=("client/0",))).reason
