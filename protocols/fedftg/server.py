"""FedFTG's server: a generator finds samples on which average and clients disagree; the average learns these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fdaudit.federation.protocol import Setting
from fdaudit.models.conditional import build_conditional
from fdaudit.models.network import moved
from fdaudit.rng import child, child_seed
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Parameters, parameters_of

from ..fedgen.generator import likeness
from .config import FedFTGConfig
from .losses import disagreement, soft_cross_entropy, weighted_cross_entropy

__all__ = ["FedFTGServer"]


class FedFTGServer:
    """The server's fine-tuning; the protocol's `state` holds its generator between rounds."""

    def __init__(self, config: FedFTGConfig, setting: Setting) -> None:
        self._config, self._seed, self._classes = config, setting.seed, setting.classes
        self._trainer, shape = setting.trainers["server"], setting.input_shape
        draws = child(setting.seed, "fedftg", "generator")
        self._G = build_conditional(draws, config.latent, config.generator_width, shape, setting.classes)
        self._G.to(self._trainer.device)

    def generator(self) -> Parameters:
        """Return the generator's parameters."""
        return moved(parameters_of(self._G), "cpu")

    def restore(self, parameters: Mapping[str, Tensor]) -> None:
        """Load a result of `generator`."""
        self._G.load_state_dict(dict(parameters))

    def fine_tune(
        self,
        t: int,
        average: Parameters,
        uploads: Sequence[Mapping[str, Tensor]],
        shares: Tensor,
        labels: Tensor,
    ) -> tuple[Parameters, float]:
        """Return round t's model, from the average of the uploads, and the mean loss of its steps.

        Args:
            t: the round.
            average: the averaged parameters.
            uploads: the K clients' parameters.
            shares: α (K, C).
            labels: how frequent each class is among generated samples (C,).
        """
        cfg, device = self._config, self._trainer.device
        teachers = [self._trainer.network(upload).eval().requires_grad_(False) for upload in uploads]
        sgd = Optimizer(name="sgd", lr=cfg.distill_lr, weight_decay=cfg.weight_decay)
        model = Learner("server", self._trainer.network(average), sgd, device)
        generator = Learner("server", self._G, Optimizer(lr=cfg.generator_lr), device)
        draws, losses = child(self._seed, "fedftg", "samples", t), []
        with self._trainer.randomness(child_seed(self._seed, "fedftg", "dropout", t)):
            for _ in range(cfg.iterations):
                y = torch.multinomial(labels, cfg.distill_batch_size, replacement=True, generator=draws)
                z = torch.randn(len(y), cfg.latent, generator=draws).to(device)
                weights, y = shares[:, y].to(device), y.to(device)  # α of each sample's class, (K, n)
                for _ in range(cfg.generator_steps):
                    self._look_for_hard_samples(generator, model.module, teachers, weights, z, y)
                losses += self._learn(model, teachers, weights, z, y)
        return model.parameters(), sum(losses) / len(losses)

    def _look_for_hard_samples(
        self,
        generator: Learner,
        model: nn.Module,
        teachers: Sequence[nn.Module],
        weights: Tensor,
        z: Tensor,
        y: Tensor,
    ) -> None:
        """Take a generator's step for each client: towards samples of the classes y that the model gets wrong."""
        cfg = self._config
        model.eval()
        for teacher, weight in zip(teachers, weights, strict=True):
            x = generator.module(z, y)
            logits = teacher(x)
            loss = cfg.recognised * weighted_cross_entropy(logits, y, weight)
            loss = loss + cfg.diversity / len(teachers) * likeness(z, x)
            generator.step(loss - disagreement(model(x), logits.detach(), weight))

    def _learn(
        self, model: Learner, teachers: Sequence[nn.Module], weights: Tensor, z: Tensor, y: Tensor
    ) -> list[float]:
        """Take the model's steps towards the weighted ensemble on the generated samples; return their losses."""
        with torch.no_grad():
            x = self._G(z, y)
            target = sum(w[:, None] * m(x).softmax(1) for m, w in zip(teachers, weights, strict=True))
        model.module.train()
        return [
            model.step(soft_cross_entropy(model.module(x), target)) for _ in range(self._config.distill_steps)
        ]
