"""Whether the noise of a defence, and the sensitivity before it, are as its event states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fdaudit.events import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, SampledGaussian
from fdaudit.testing.extensions import fail
from fdaudit.testing.messages import MessageDefence, noise_stream

__all__ = ["SCALES", "SLACK", "check_noise", "check_noise_in_training", "check_sensitivity"]

SCALES = (1.0, 1e3, 1e6)
"""Factors of messages on which a stated sensitivity is subject."""
SLACK = 1e-3
"""Relative rounding that a stated sensitivity may be exceeded by, in single precision."""
_DISCRETE = (DiscreteGaussian, DiscreteLaplace)
_ADDITIVE = (Gaussian, Laplace, *_DISCRETE)
"""Events that state a sensitivity and a scale of noise on the values sent."""
_DRAWS = 32
"""Releases from which the spread of noise is measured: about 600 values, so within a few percent."""
_LEAST_SPREAD = 0.75
"""Least spread of noise, as a share of the stated one."""


def check_sensitivity(subject: MessageDefence) -> None:
    """Two messages differ after their clip by no more than the stated sensitivity."""
    first = subject.release(subject.message())
    if not isinstance(first.event, _ADDITIVE) or first.kind != subject.kind:
        return
    norm = 1.0 if isinstance(first.event, (Laplace, DiscreteLaplace)) else 2.0
    # A message of `count` releases is that many vectors, side by side.
    stated = first.event.sensitivity * first.event.count ** (1 / norm)
    for scale in SCALES:
        up = subject.message(1, scale)
        down = {n: -t if t.is_floating_point() else t for n, t in up.items()}
        # Both have the same noise, which falls out of the difference.
        difference = subject.values(up) - subject.values(down)
        distance = float(torch.linalg.vector_norm(difference, norm))
        if distance > stated * (1 + SLACK) + SLACK:
            problem = f"states a sensitivity of {stated:g}, and two of its messages differ by {distance:g}"
            fail(subject.name, f"{problem} before noise; clip to a constant of the settings.")


def check_noise(subject: MessageDefence) -> None:
    """The noise of a message is as the event states: drawn afresh, and as large."""
    message = subject.message()
    first = subject.release(message)
    if not isinstance(first.event, _ADDITIVE) or first.kind != subject.kind:
        return
    if isinstance(first.event, _DISCRETE) and first.event.scale < 1:  # it may well draw nothing but 0
        return
    nothing = {n: t if n == "index" else torch.zeros_like(t) for n, t in message.items()}
    paths: list[str] = []
    draws: list[Tensor] = []
    for number in range(_DRAWS):
        paths.append(f"noise of message {number}")
        draws.append(subject.values(nothing, paths[-1]))
    shifts: list[Tensor] = []
    for path, draw in zip(paths[:3], draws, strict=False):
        shifts.append(subject.values(message, path) - draw)
    # What is done to values after the noise, such as a projection, costs no privacy and may make them spread less.
    added_last = all(torch.allclose(shift, shifts[0], rtol=1e-3, atol=1e-3) for shift in shifts)
    _refuse_weak_noise(subject.name, first.event, draws, added_last)
    never_noised = (torch.stack(draws) == draws[0]).all(0)
    if bool((never_noised & (shifts[0] != 0)).any()):
        fail(subject.name, f"states a {type(first.event).__name__}, and sends some values without noise.")


def _refuse_weak_noise(name: str, event: Any, draws: Sequence[Tensor], added_last: bool) -> None:
    """Refuse noise that is less than an event states.

    Args:
        name: of the defence.
        event: an event of additive noise.
        draws: releases of one message with different noise.
        added_last: whether the noise is added to values that do not change afterwards.
    """
    values = torch.stack(list(draws))
    if all(torch.equal(draw, draws[0]) for draw in draws):
        fail(
            name,
            f"states a {type(event).__name__}, and releases the same for other noise; add draws of `noise`.",
        )
    # The scale of discrete noise is in steps of a grid, which the event does not give.
    if not added_last or isinstance(event, _DISCRETE):
        return
    stated = event.scale
    if isinstance(event, Laplace):
        stated *= math.sqrt(2)
    spread = float(values.var(0).mean().sqrt())
    if spread < _LEAST_SPREAD * stated:
        fail(name, f"states noise of standard deviation {stated:g}, and its messages spread by {spread:g}.")


def check_noise_in_training(name: str, defence: Any, event: Any) -> None:
    """The noise of a step is as the event states: drawn afresh, and as large, before the sum is divided."""
    if not isinstance(event, SampledGaussian):
        return
    nothing = {"w": torch.zeros(3, 2)}
    draws = []
    for number in range(4 * _DRAWS):
        step = defence.noised(nothing, noise_stream(f"noise of step {number}"))
        draws.append(step["w"].double().flatten() * defence.expected_batch)
    _refuse_weak_noise(name, event, draws, added_last=True)
