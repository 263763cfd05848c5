"""Shadows of a client's discriminator: networks that learn to tell its records from recorded samples, as FedIOD's do.

In each step a client scores the server's samples, computes L_gan's gradient at them, and takes one step of Adam on real
records against the same samples (Gong et al. 2023, Algorithm 1). The samples are in view, so a shadow takes the same
steps with its own records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fdaudit.models.generative import build_discriminator
from fdaudit.rng import child
from fdaudit.training.optimizers import annealed

from .._shadows import fitted_in_parts

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.transcript.messages import Message

    from ._study import Study

__all__ = ["DiscriminatorStep", "judged", "steps_of"]

_BETAS = (0.5, 0.999)
"""Adam's moments for discriminators, as GANs have them since Radford 2016."""
_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True, eq=False)
class DiscriminatorStep:
    """One step of the generator, as a view holds it of one client.

    Attributes:
        samples: the message with the samples (n, c, h, w).
        answers: by kind, the client's messages about them and the server's message to the client.
    """

    samples: Message
    answers: Mapping[str, Message]


def steps_of(view: View, client: str) -> list[DiscriminatorStep]:
    """Return the steps of a view, in their order: each is all that follows its samples and precedes the next ones."""
    steps: list[DiscriminatorStep] = []
    answers: dict[str, Message] = {}
    for message in view.messages:
        if message.payload is None:
            continue
        if message.kind == "generated_samples":
            answers = {}
            steps.append(DiscriminatorStep(samples=message, answers=answers))
        elif message.sender == client or message.receivers == (client,):
            answers[message.kind] = message
    return steps


def judged(
    study: Study,
    samples: Sequence[Tensor],
    public: Mapping[str, Any],
    *,
    count: int,
    batch: int,
    scored: Sequence[int],
    pulled: Sequence[int],
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Return scores (count, r, n) and gradients (count, q, n, d) of shadows' discriminators at chosen steps.

    A score is D(x) over the mean of D on real records, a gradient that of the mean of -log D(x) at the samples.

    Args:
        study: of the client, whose records the discriminators of its first `count` shadows learn.
        samples: (n, c, h, w) of each step, up to the last one that is asked for.
        public: the public configuration: `discriminator_width`, `adam_lr`, `rounds`, `steps_per_round`.
        count: number of discriminators.
        batch: samples and records of a step that a shadow learns from, at most.
        scored: steps whose scores are returned.
        pulled: steps whose gradients are returned.
        seed: of initial weights and records.
    """
    x = torch.stack(list(samples))
    chosen = {"scored": list(scored), "pulled": list(pulled), "batch": batch, "seed": seed}
    settings = ("discriminator_width", "adam_lr", "rounds", "steps_per_round")
    card = {"what": "shadow discriminators", **chosen, "public": {name: public[name] for name in settings}}
    parts = fitted_in_parts(
        card,
        count,
        lambda rows: [x, study.pool[0], study.held[rows.start : rows.stop]],
        lambda rows: _judged(study, x, rows, public, batch, scored, pulled, seed),
    )
    return torch.cat([part["scores"] for part in parts]), torch.cat([part["gradients"] for part in parts])


def _judged(
    study: Study,
    x: Tensor,
    rows: range,
    public: Mapping[str, Any],
    batch: int,
    scored: Sequence[int],
    pulled: Sequence[int],
    seed: int,
) -> dict[str, Tensor]:
    """Train the discriminators of some shadows together; return their scores and gradients."""
    width = int(public["discriminator_width"])
    shape = tuple(x.shape[2:])
    n = x.shape[1]
    networks = [build_discriminator(child(seed, "discriminator", k, "start"), width, shape) for k in rows]
    network = networks[0]
    starts = [dict(one.named_parameters()) for one in networks]
    D = {}
    moments = {}
    for name in starts[0]:
        D[name] = torch.stack([start[name].detach() for start in starts])
        moments[name] = (torch.zeros_like(D[name]), torch.zeros_like(D[name]))
    pool, _ = study.pool
    own = study.records[rows.start : rows.stop]
    draws = [child(seed, "discriminator", k, "records") for k in rows]
    few = min(batch, n)
    last = (int(public["rounds"]) - 1) * int(public["steps_per_round"])

    def toward_real(w: Parameters, at: Tensor) -> Tensor:
        return F.softplus(-functional_call(network, w, (at,))).mean()

    def loss(w: Parameters, real: Tensor, fake: Tensor) -> Tensor:
        on_real, on_fake = functional_call(network, w, (torch.cat([real, fake]),)).split(len(real))
        return F.softplus(-on_real).mean() + F.softplus(on_fake).mean()

    def score(w: Parameters, real: Tensor, fake: Tensor) -> Tensor:
        on_real, on_fake = functional_call(network, w, (torch.cat([real, fake]),)).sigmoid().split(len(real))
        ratio: Tensor = on_fake.mean((1, 2)) / on_real.mean()
        return ratio

    scores = list[Tensor]()
    gradients = list[Tensor]()
    for t, generated in enumerate(x):
        indices = list[Tensor]()
        for mine, generator in zip(own, draws, strict=True):
            indices.append(mine[torch.randint(len(mine), (n,), generator=generator)])
        real = pool[torch.stack(indices)]
        if t in pulled:
            gradients.append(vmap(grad(toward_real, argnums=1), in_dims=(0, None))(D, generated).flatten(2))
        if t in scored:
            scores.append(vmap(score, in_dims=(0, 0, None))(D, real, generated))
        if t + 1 < len(x):
            slope = vmap(grad(loss), in_dims=(0, 0, None))(D, real[:, :few], generated[:few])
            D = _descended(D, slope, moments, annealed(float(public["adam_lr"]), 0.0, t, last), t + 1)
    nothing = torch.zeros(len(networks), 0)
    return {
        "scores": torch.stack(scores, 1) if scores else nothing,
        "gradients": torch.stack(gradients, 1) if gradients else nothing,
    }


def _descended(
    parameters: Parameters,
    slope: Parameters,
    moments: dict[str, tuple[Tensor, Tensor]],
    rate: float,
    step: int,
) -> Parameters:
    """Return parameters after one step of Adam (Kingma & Ba 2015, Algorithm 1); its moments are updated in place."""
    updated = {}
    for name, p in parameters.items():
        first, second = moments[name]
        first.lerp_(slope[name], 1 - _BETAS[0])
        second.lerp_(slope[name].square(), 1 - _BETAS[1])
        root = (second / (1 - _BETAS[1] ** step)).sqrt() + _EPSILON
        updated[name] = p - rate * first / (1 - _BETAS[0] ** step) / root
    return updated
