"""Cost of recording: a DaFKD round with every message on disk and a checkpoint, against a bare loop.

A is `protocols/dafkd/protocol.py` over the wire: two models down and three up for each client, encoded, digested,
salted, chained and written, files made durable, state saved, `round.json` replaced. B is the same arithmetic in plain
PyTorch. All its parties share one process and its tensors, and it keeps nothing. Both must end with the same
classifier, or the benchmark fails. Target: at most 1.2.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from _pairs import HEADS, Pairs, compare_both, table
from _recorded import Recorded
from fdaudit.protocols.dafkd.protocol import DaFKD, DaFKDConfig
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.federation.protocol import PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.models.conditional import build_conditional, build_domain_head
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import draw_batches

SEED, CLIENTS, STEPS, RECORDS = 1, 10, 10, 320
SHAPE, CLASSES = (1, 28, 28), 10
TARGET = 1.2

Data = dict[str, PartyData]
Named = dict[str, Tensor]


class Bare:
    """The same rounds in plain PyTorch, without a record."""

    def __init__(
        self, network: Architecture, data: Data, config: DaFKDConfig, layout: torch.memory_format
    ) -> None:
        self._cfg, self._data, self._t = config, data, 0
        self._net = network.build(child(SEED, "initial-parameters")).to(memory_format=layout)
        width, latent = config.generator_width, config.latent
        self._G = build_conditional(child(SEED, "dafkd", "generator"), latent, width, SHAPE, CLASSES)
        heads = {
            k: build_domain_head(child(SEED, "dafkd", "discriminator", k), self._net, SHAPE) for k in data
        }
        self._heads = heads
        self.w, self._g = _copy(self._net), _copy(self._G)

    def __call__(self) -> None:
        cfg, t = self._cfg, self._t
        done = {k: self._client(t, k) for k in self._data}
        average = {n: torch.stack([w[n] for w, _ in done.values()]).mean(0) for n in self.w}
        self._g = {n: torch.stack([g[n] for _, g in done.values()]).mean(0) for n in self._g}
        drawn = child(SEED, "dafkd", "pseudo", t)
        y = torch.randint(CLASSES, (cfg.pseudo_samples,), generator=drawn)
        z = torch.randn(cfg.pseudo_samples, cfg.latent, generator=drawn)
        self._G.load_state_dict(self._g)
        soft, scores = [], []
        with torch.no_grad():
            x = self._G(z, y)
            for k, (w, _) in done.items():
                self._net.load_state_dict(w)
                features = self._net.extractor(x)
                soft.append(self._net.head(features).softmax(1))
                scores.append(self._heads[k](features)[:, 0].sigmoid())
        f = torch.stack(scores)
        target = ((f / f.sum(0))[..., None] * torch.stack(soft)).sum(0)
        self._net.load_state_dict(average)
        optimizer = torch.optim.SGD(self._net.parameters(), lr=cfg.distill_lr)
        order = draw_batches(
            len(x),
            cfg.distill_batch_size,
            steps=cfg.distill_steps,
            generator=child(SEED, "dafkd", "distil", t),
        )
        for batch in order:
            optimizer.zero_grad()
            q = F.log_softmax(self._net(x[batch]), 1)
            F.kl_div(q, target[batch], reduction="batchmean").backward()
            optimizer.step()
        self.w = _copy(self._net)
        self._t += 1

    def _client(self, t: int, k: str) -> tuple[Named, Named]:
        cfg, data, net, G, head = self._cfg, self._data[k], self._net, self._G, self._heads[k]
        net.load_state_dict(self.w)
        G.load_state_dict(self._g)
        joint = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=cfg.lr)
        adam = torch.optim.Adam(G.parameters(), lr=cfg.generator_lr, betas=(0.5, 0.999))
        drawn = child(SEED, "dafkd", "batches", t, k)
        batches = draw_batches(len(data), cfg.batch_size, steps=STEPS, generator=drawn)
        noise = child(SEED, "dafkd", "noise", t, k)
        for batch in batches:
            y, n = torch.randint(CLASSES, (len(batch),), generator=noise), len(batch)
            with torch.no_grad():
                pseudo = G(torch.randn(n, cfg.latent, generator=noise), y)
            features = net.extractor(torch.cat([data.x[batch], pseudo]))
            real = torch.cat([torch.ones(n), torch.zeros(n)])
            L_adv = F.binary_cross_entropy_with_logits(head(features)[:, 0], real)
            joint.zero_grad()
            (F.cross_entropy(net.head(features[:n]), data.y[batch]) + L_adv).backward()
            joint.step()
        for batch in batches:
            n = len(batch) // 2
            y = data.y[torch.randint(len(data), (n,), generator=noise)].repeat(2)
            x = G(torch.randn(2 * n, cfg.latent, generator=noise), y)
            features = net.extractor(x)
            loss = F.softplus(-head(features)).mean()
            loss = loss + cfg.recognised * F.cross_entropy(net.head(features), y)
            loss = loss - cfg.diversity * ((x[:n] - x[n:]).abs().mean() + 1e-3).log()
            adam.zero_grad()
            loss.backward(inputs=list(G.parameters()))
            adam.step()
        return _copy(net), _copy(G)


def _copy(module: nn.Module) -> Named:
    return {n: t.detach().clone() for n, t in module.state_dict().items()}


def measure(execution: Execution, pairs: int) -> tuple[Pairs, Pairs]:
    """Measure pairs of rounds; the first must leave both sides with the same classifier."""
    network = architecture(ModelSpec(name="cnn-5-5"), SHAPE, CLASSES)
    data = {}
    for k in range(CLIENTS):
        generator = child(SEED, "images", k)
        x = torch.rand(RECORDS, *SHAPE, generator=generator)
        data[f"client/{k}"] = PartyData(x, torch.randint(CLASSES, (RECORDS,), generator=generator))
    layout = torch.channels_last if execution.memory_format == "channels_last" else torch.contiguous_format
    with tempfile.TemporaryDirectory() as folder:
        config = DaFKDConfig(rounds=pairs + 4, local_steps=STEPS, batch_size=32)
        recorded = Recorded(Path(folder), DaFKD, config, network, data, execution, SEED)
        bare = Bare(network, data, config, layout)
        recorded()
        bare()
        for name, tensor in recorded.parameters.items():
            torch.testing.assert_close(bare.w[name], tensor, rtol=1e-2, atol=1e-4)
        return compare_both(recorded, bare, pairs=pairs, warm_up=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    execution = Execution.resolve(device="cpu", threads=1, convolutions=True)
    wall, processor = measure(execution, options.pairs)
    print(f"DaFKD round: {CLIENTS} clients, {STEPS} steps of 32 records, cnn-5-5, 1 thread")
    print(table(HEADS, [wall.row("recorded / bare"), processor.row("recorded / bare, processor time")]))
    print(f"target of the first line: at most {TARGET}")


if __name__ == "__main__":
    main()
