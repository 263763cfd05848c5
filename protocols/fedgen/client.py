"""FedGEN's client: it trains on its own records and on features from the server's generator (Eq. 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.kit import (
    Guard,
    Learner,
    Parameters,
    Setting,
    child,
    child_seed,
    draw_batches,
    per_sample_gradients,
    shared_network,
)

from .config import FedGENConfig
from .generator import initial_generator, noise_and_classes

__all__ = ["FedGenClient", "FedGenUpdate"]


@dataclass(frozen=True, eq=False)
class FedGenUpdate:
    """The result of one client's round.

    Attributes:
        theta: its model.
        batch: numbers of the records it trained on, in training order.
        loss: mean loss of its steps.
    """

    theta: Parameters
    batch: Tensor
    loss: float


class FedGenClient:
    """Client k and its records; the protocol's `state` holds its model between rounds."""

    def __init__(self, name: str, config: FedGENConfig, setting: Setting) -> None:
        self.name, self._config, self._seed = name, config, setting.seed
        self._data, self._classes = setting.clients[name], setting.classes
        self._trainer = setting.trainers[name]
        self._net = shared_network(self._trainer.network(setting.initial["server"]))
        self._G = initial_generator(config, setting).to(self._trainer.device)

    def update(
        self, t: int, theta: Mapping[str, Tensor], w: Mapping[str, Tensor], guard: Guard | None
    ) -> FedGenUpdate:
        """Train locally in round `t` from a whole model `theta`, with the server's generator `w`.

        Args:
            t: the round.
            theta: the model to start from.
            w: the generator.
            guard: the training defence, if there is one.
        """
        cfg, k = self._config, self.name
        learner = Learner(k, self._net, cfg.local_optimizer, self._trainer.device)
        learner.load(theta)
        self._G.load_state_dict(dict(w))
        order = child(self._seed, "fedgen", "batches", t, k)
        planned = draw_batches(len(self._data), cfg.batch_size, generator=order, **cfg.steps)
        noise = child(self._seed, "fedgen", "noise", t, k)
        dropout = child_seed(self._seed, "fedgen", "dropout", t, k)
        steps, losses, batches = len(planned) if guard is None else guard.steps, list[float](), list[Tensor]()
        with self._trainer.randomness(dropout if guard is None else guard.noise):
            for s in range(steps):
                on_generated, target = self._on_generated(t, noise)
                if guard is None:
                    batch = planned[s]
                    loss = self._on_records(t, batch, target) / len(batch) + on_generated
                    losses.append(learner.step(loss, cfg.local_lr(s, steps)))
                else:
                    batch, value = self._guarded_step(
                        t, learner, guard, on_generated, target, cfg.local_lr(s, steps)
                    )
                    losses.append(value)
                batches.append(batch)
        return FedGenUpdate(learner.parameters(), torch.cat(batches), sum(losses) / len(losses))

    def _guarded_step(
        self, t: int, learner: Learner, guard: Guard, on_generated: Tensor, target: Tensor | None, rate: float
    ) -> tuple[Tensor, float]:
        """Take a step by a clipped and noisy sum over records; return the drawn records and the loss.

        The loss `on_generated` on generated features depends on no record: its gradient is added as it is.
        """
        parameters: dict[str, Tensor] = {}
        for n, p in self._net.named_parameters():
            if p.requires_grad:
                parameters[n] = p
        public: tuple[Tensor | None, ...] = (None,) * len(parameters)
        if on_generated.requires_grad:
            public = torch.autograd.grad(on_generated, list(parameters.values()), allow_unused=True)
        with per_sample_gradients(self._net):
            step = guard.step(self._net, len(self._data), lambda drawn: self._on_records(t, drawn, target))
        added = {n: 0 if g is None else g for n, g in zip(parameters, public, strict=True)}
        gradient: dict[str, Tensor] = {}
        for n, g in step.gradient.items():
            gradient[n] = g + added[n]
        learner.descend(gradient, rate)
        return step.batch, float(step.loss) + float(on_generated.detach())

    def _on_records(self, t: int, batch: Tensor, target: Tensor | None) -> Tensor:
        """Return the sum of the losses of the records with numbers `batch` (b,).

        A record's loss depends on no other record: all of a class have the same row of `target` (C, C).
        """
        data, device = self._data, self._trainer.device
        x = data.x.index_select(0, batch.to(data.x.device)).to(device)
        y = data.y.index_select(0, batch.to(data.y.device)).to(device)
        x.requires_grad_(x.is_floating_point())
        logits = self._net.train()(x)
        loss = F.cross_entropy(logits, y, reduction="sum")
        if target is None:
            return loss
        apart = F.kl_div(logits.log_softmax(1), target[y], reduction="sum")
        return loss + self._config.beta * self._config.decay**t * apart

    def _on_generated(self, t: int, noise: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Return the loss on generated features (), and predictions (C, C) of a feature of each class.

        The generator has learnt nothing before the first round: the loss is then 0, and there are no predictions.
        """
        cfg, G, head, device = self._config, self._G, self._net.train().head, self._trainer.device
        loss, target = torch.zeros((), device=device), None
        if t and cfg.alpha:
            z, y = noise_and_classes(cfg, torch.ones(self._classes), noise, device)
            with torch.no_grad():
                features = G(z, y)
            weight = cfg.alpha * cfg.decay**t * cfg.generated / cfg.batch_size
            loss = weight * F.cross_entropy(head(features), y)
        if t and cfg.beta:
            z = torch.randn(self._classes, cfg.latent, generator=noise).to(device)
            with torch.no_grad():
                target = head(G(z, torch.arange(self._classes, device=device))).softmax(1)
        return loss, target
