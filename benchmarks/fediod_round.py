"""Cost of recording: a FedIOD round with every message on disk and a checkpoint, against a bare loop.

A is `protocols/fediod/protocol.py` over the wire: five kinds of messages a step, each encoded, digested, salted,
chained and written, files made durable, state saved, `round.json` replaced. B is the same arithmetic in plain PyTorch.
All its parties share one process and its tensors, and it keeps nothing. Both must end with the same student, or the
benchmark fails. Target: at most 1.2.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import torch
from _pairs import HEADS, Pairs, compare_both, table
from _recorded import Recorded
from fdaudit.protocols.fediod.protocol import FedIOD, FedIODConfig
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.protocol import PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.models.generative import build_discriminator, build_generator
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution

SEED, CLIENTS, STEPS, RECORDS = 1, 10, 10, 200
SHAPE, CLASSES = (1, 28, 28), 10
TARGET = 1.2

Data = dict[str, PartyData]


class Bare:
    """The same steps in plain PyTorch, without a record."""

    def __init__(
        self, network: Architecture, data: Data, recorded: Recorded, layout: torch.memory_format
    ) -> None:
        cfg, self._steps, self._t = recorded.config, recorded.config.steps_per_round, 0
        self._cfg, self._total = cfg, (cfg.rounds - 1) * cfg.steps_per_round
        self._data, state = data, recorded.protocol.state
        self._G = build_generator(child(SEED, "fediod", "generator"), cfg.latent, cfg.generator_width, SHAPE)
        self._D, self._T = {}, {}
        for k in data:
            drawn = child(SEED, "fediod", "discriminator", k)
            self._D[k] = build_discriminator(drawn, cfg.discriminator_width, SHAPE)
            self._T[k] = network.build(child(0, "any")).to(memory_format=layout).eval().requires_grad_(False)
            self._T[k].load_state_dict({n: state[f"{k}/T/{n}"] for n in self._T[k].state_dict()})
        self._S = network.build(child(0, "any")).to(memory_format=layout)
        self._S.load_state_dict(recorded.parameters)
        adam, gan = torch.optim.Adam, (0.5, 0.999)
        self._adam_G = adam(self._G.parameters(), lr=cfg.adam_lr, betas=gan)
        self._adam_D = {k: adam(d.parameters(), lr=cfg.adam_lr, betas=gan) for k, d in self._D.items()}
        self._adam_S = adam(self._S.parameters(), lr=cfg.adam_lr)
        self._counts = torch.stack([torch.bincount(d.y, minlength=CLASSES) for d in data.values()]).float()
        self._seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self) -> None:
        for _ in range(self._steps):
            self._step()
            self._t += 1

    def _step(self) -> None:
        cfg, t, K = self._cfg, self._t, len(self._data)
        for optimizer in (self._adam_G, self._adam_S, *self._adam_D.values()):
            optimizer.param_groups[0]["lr"] = cfg.adam_lr * 0.5 * (1 + math.cos(math.pi * t / self._total))
        made = self._G(torch.randn(cfg.samples, cfg.latent, generator=child(SEED, "fediod", "latent", t)))
        x = made.detach().requires_grad_()
        pi = self._counts.sum(1) / self._counts.sum()
        logits, ratios, gan = [], [], torch.zeros_like(x)
        for number, (k, data) in enumerate(self._data.items()):
            logits.append(self._T[k](x))
            batch = torch.randint(len(data), (len(x),), generator=child(SEED, "fediod", "real", t, k))
            on_real, on_x = self._D[k](torch.cat([data.x[batch], x])).split(len(x))
            gan += pi[number] * torch.autograd.grad(F.softplus(-on_x).mean(), x, retain_graph=True)[0]
            self._adam_D[k].zero_grad()
            loss = F.softplus(-on_real).mean() + F.softplus(on_x).mean()
            loss.backward(inputs=list(self._D[k].parameters()))
            self._adam_D[k].step()
            with torch.no_grad():
                ratios.append(on_x.sigmoid().mean((1, 2)) / on_real.sigmoid().mean())
        z = torch.stack(logits)
        weights = self._counts[:, None] * torch.stack(ratios)[..., None]
        weights = weights / weights.sum(0).where(weights.sum(0) > 0, 1)
        target = (weights * z).sum(0)
        log_q = F.log_softmax(z, -1)
        each = -(log_q.exp() * log_q).sum(-1)
        mixed = (log_q + pi.log()[:, None, None]).logsumexp(0)
        conf = (pi @ each).mean()
        unique = conf + (mixed.exp() * mixed).sum(-1).mean()
        mimic = (self._S(x) - target).square().sum(1).mean()
        total = cfg.conf * conf + cfg.unique * unique - cfg.mimic * mimic
        (through,) = torch.autograd.grad(total, x, retain_graph=True)
        self._adam_G.zero_grad()
        made.backward(through + cfg.gan * gan)
        self._adam_G.step()
        self._adam_S.zero_grad()
        mimic.backward(inputs=list(self._S.parameters()))
        self._adam_S.step()
        self._seen = [*self._seen, (x.detach(), target.detach())][-cfg.replay :]
        assert len(logits) == K
        for s in range(1, cfg.student_steps):
            drawn = child(SEED, "fediod", "replay", t, s)
            rows = torch.randint(len(self._seen) * cfg.samples, (cfg.samples,), generator=drawn).tolist()
            again, aims = zip(*[(b[0][r], b[1][r]) for b, r in self._rows(rows)], strict=True)
            self._adam_S.zero_grad()
            (self._S(torch.stack(again)) - torch.stack(aims)).square().sum(1).mean().backward()
            self._adam_S.step()

    def _rows(self, rows: list[int]) -> list[tuple[tuple[Tensor, Tensor], int]]:
        return [(self._seen[row // self._cfg.samples], row % self._cfg.samples) for row in rows]

    @property
    def parameters(self) -> dict[str, Tensor]:
        return dict(self._S.state_dict())


def _flat(parameters: dict[str, Tensor]) -> Tensor:
    return torch.cat([parameters[n].detach().flatten() for n in sorted(parameters)])


def measure(execution: Execution, pairs: int) -> tuple[Pairs, Pairs]:
    """Measure pairs of rounds; the first must leave both sides with the same student."""
    network = architecture(ModelSpec(name="cnn-5-5"), SHAPE, CLASSES)
    data = {}
    for k in range(CLIENTS):
        generator = child(SEED, "images", k)
        x = torch.rand(RECORDS, *SHAPE, generator=generator)
        data[f"client/{k}"] = PartyData(x, torch.randint(CLASSES, (RECORDS,), generator=generator))
    layout = torch.channels_last if execution.memory_format == "channels_last" else torch.contiguous_format
    with tempfile.TemporaryDirectory() as folder:
        config = FedIODConfig(rounds=pairs + 4, steps_per_round=STEPS, local_steps=20)
        recorded = Recorded(Path(folder), FedIOD, config, network, data, execution, SEED)
        recorded()  # stage 1, once a run
        bare = Bare(network, data, recorded, layout)
        start = _flat(recorded.parameters)
        recorded()
        bare()
        moved, apart = (_flat(recorded.parameters) - other for other in (start, _flat(bare.parameters)))
        # Adam divides by the size of what it steps along, so rounding shows where a gradient is next to nothing.
        assert float(apart.norm()) <= 0.01 * float(moved.norm()), (apart.norm(), moved.norm())
        return compare_both(recorded, bare, pairs=pairs, warm_up=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    execution = Execution.resolve(device="cpu", threads=1, convolutions=True)
    wall, processor = measure(execution, options.pairs)
    print(f"FedIOD round: {CLIENTS} clients, {STEPS} steps of 32 samples, cnn-5-5, 1 thread")
    print(table(HEADS, [wall.row("recorded / bare"), processor.row("recorded / bare, processor time")]))
    print(f"target of the first line: at most {TARGET}")


if __name__ == "__main__":
    main()
