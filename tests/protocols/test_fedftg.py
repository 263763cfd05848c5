"""FedFTG: weights and losses against plain loops, its server against another writing, and what its settings change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fdaudit.protocols.fedftg.config import FedFTGConfig
from fdaudit.protocols.fedftg.losses import disagreement, soft_cross_entropy, weighted_cross_entropy
from fdaudit.protocols.fedgen.generator import likeness
from torch import Tensor
from torch.nn import functional as F

from fdaudit.models.conditional import build_conditional
from fdaudit.rng import child
from fdaudit.testing.federation import CLASSES, SHAPE

from ..helpers.by_hand import close, tensors
from ..helpers.protocol_cases import configured, run


def test_the_losses_are_what_loops_over_samples_and_pairs_give() -> None:
    g = torch.Generator().manual_seed(0)
    model, teacher, weight = (
        torch.randn(4, 3, generator=g),
        torch.randn(4, 3, generator=g),
        torch.rand(4, generator=g),
    )
    y, target = torch.tensor([0, 2, 1, 1]), torch.rand(4, 3, generator=g)
    z, x = torch.randn(4, 5, generator=g), torch.rand(4, 1, 2, 2, generator=g)
    apart = [
        sum(abs(float(model[i, c] - teacher[i, c])) for c in range(3)) / 3 * float(weight[i])
        for i in range(4)
    ]
    assert float(disagreement(model, teacher, weight)) == pytest.approx(sum(apart) / 4, rel=1e-5)
    wrong = [float(weight[i]) * -float(model[i].log_softmax(0)[y[i]]) for i in range(4)]
    assert float(weighted_cross_entropy(model, y, weight)) == pytest.approx(sum(wrong) / 4, rel=1e-5)
    pairs = [
        float((z[i] - z[j]).square().mean() * (x[i] - x[j]).abs().mean()) for i in range(4) for j in range(4)
    ]
    assert float(likeness(z, x)) == pytest.approx(math.exp(-sum(pairs) / 16), rel=1e-5)
    assert float(likeness(z, x[:1].expand(4, -1, -1, -1))) == pytest.approx(1.0), "all samples alike"
    soft = [-sum(float(target[i, c] * model[i].log_softmax(0)[c]) for c in range(3)) for i in range(4)]
    assert float(soft_cross_entropy(model, target)) == pytest.approx(sum(soft) / 4, rel=1e-5)


def by_hand(
    config: FedFTGConfig, setting: Any, average: Any, uploads: Any, counts: Tensor
) -> dict[str, Tensor]:
    """The authors' two loops, written with torch.optim alone; the generator and every draw are the server's own."""
    core = setting.trainers["server"]
    drawn = child(setting.seed, "fedftg", "generator")
    G = build_conditional(drawn, config.latent, config.generator_width, SHAPE, CLASSES)
    teachers, model = [core.network(u).eval() for u in uploads], core.network(average)
    of_model = torch.optim.SGD(model.parameters(), lr=config.distill_lr)
    of_generator = torch.optim.Adam(G.parameters(), lr=config.generator_lr)
    drawn = child(setting.seed, "fedftg", "samples", 0)
    for _ in range(config.iterations):
        y = torch.multinomial(
            counts.sum(0).float(), config.distill_batch_size, replacement=True, generator=drawn
        )
        z = torch.randn(len(y), config.latent, generator=drawn)
        alpha = [(row / counts.sum(0))[y] for row in counts]
        for teacher, weight in zip(teachers, alpha, strict=True):
            x = G(z, y)
            t, s = teacher(x), model(x)
            spread = torch.stack([(a - b).abs().mean() for a in x for b in x])
            noise = torch.stack([(a - b).square().mean() for a in z for b in z])
            loss = (F.cross_entropy(t, y, reduction="none") * weight).mean()
            loss = loss + (-(spread * noise).mean()).exp() / len(teachers)
            loss = loss - ((s - t.detach()).abs().mean(1) * weight).mean()
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
        x = G(z, y).detach()
        target = sum(w[:, None] * m(x).softmax(1).detach() for m, w in zip(teachers, alpha, strict=True))
        for _ in range(config.distill_steps):
            of_model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            of_model.step()
    return {n: p.detach() for n, p in model.named_parameters()}


def test_the_fine_tuned_model_is_what_another_writing_of_it_gives(tmp_path: Any) -> None:
    params = {"local_steps": 2, "iterations": 2}
    tuned = run(tmp_path / "tuned", "fedftg", params, rounds=1)
    plain = run(tmp_path / "plain", "fedftg", {**params, "iterations": 0}, rounds=1)
    uploads = tensors(plain, "model_parameters", "client")
    counts = torch.stack([t["counts"] for t in tensors(plain, "class_counts")])
    made = by_hand(configured("fedftg", params, 1), plain.setting, plain.protocol.released(), uploads, counts)
    close(tuned.protocol.released(), made)


def test_the_model_learns_the_ensemble_on_the_generated_samples(tmp_path: Any) -> None:
    params = {"local_steps": 12, "lr": 1.0, "iterations": 1, "distill_steps": 40, "distill_lr": 0.1}
    ran = run(tmp_path / "a", "fedftg", params, rounds=1)
    first = run(tmp_path / "b", "fedftg", {**params, "distill_steps": 1}, rounds=1)
    assert ran.rounds[0].losses["server"] < first.rounds[0].losses["server"], (
        "the mean of 40 steps, and the first"
    )
