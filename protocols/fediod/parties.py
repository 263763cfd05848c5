"""FedIOD's client: it holds only its own data and sees the others only through received messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.data import class_counts
from fdaudit.errors import ProtocolError
from fdaudit.federation.local_training import Basis, joined
from fdaudit.federation.protocol import PartyData, Setting
from fdaudit.federation.state import basis_of, copies_of, keep_basis, put, take
from fdaudit.models.generative import build_discriminator
from fdaudit.rng import child, child_seed
from fdaudit.training.private_step import Guard, per_sample_gradients
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Job, Parameters, Trainer, draw_batches
from fdaudit.transcript.messages import ALL

if TYPE_CHECKING:
    from .config import FedIODConfig

__all__ = ["GAN", "Answer", "FedIODClient", "laid_out"]

GAN = (0.5, 0.999)
"""Adam's moments for G and D_k, as GANs have them since Radford 2016; the student has Adam's own."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's answer to generated samples.

    Attributes:
        logits: z_k (n, C), of masks (n, C, h, w).
        scores: D_k(x) over the mean of D_k on real records (n,), if the server gets them.
        batch: numbers of those records.
        loss: L_gan of the discriminator.
    """

    logits: Tensor
    scores: Tensor
    batch: Tensor
    loss: float


class FedIODClient:
    """Client k: its records, its task model T_k, frozen after stage 1, and its discriminator D_k.

    Attributes:
        T: T_k's parameters.
        T_basis: the inputs of T_k.
        D_basis: the inputs of D_k.
    """

    def __init__(self, name: str, data: PartyData, config: FedIODConfig, setting: Setting) -> None:
        self.name, self._data, self._config, self._seed = name, data, config, setting.seed
        self._trainer = setting.trainers[name]
        self.T: Parameters = copies_of(setting.initial[name])
        self.T_basis: Basis = ()
        self.D_basis: Basis = () if setting.local.defended("discriminator") else ALL
        self._freeze()
        draws = child(setting.seed, "fediod", "discriminator", name)
        D_k = build_discriminator(draws, config.discriminator_width, setting.input_shape)
        adam = Optimizer(lr=config.adam_lr, betas=GAN)
        self._D = Learner(name, laid_out(D_k, self._trainer), adam, self._trainer.device)
        self._held: tuple[Tensor, Tensor, Tensor] | None = None

    # -- stage 1 --------------------------------------------------------------------------------------------

    def job(self) -> Job:
        """Return the local training of the box's first step, for the training core."""
        generator = child(self._seed, "fediod", "batches", self.name)
        cfg, n = self._config, len(self._data)
        batches = draw_batches(n, cfg.batch_size, generator=generator, **cfg.steps)
        seed = child_seed(self._seed, "fediod", "dropout", self.name)
        x, y = self._data.x, self._data.y
        return Job(party=self.name, parameters=self.T, x=x, targets=y, batches=batches, seed=seed)

    def adopt(self, parameters: Parameters, basis: Basis) -> None:
        """Store the trained T_k and its inputs."""
        self.T, self.T_basis = parameters, basis
        self._freeze()

    def class_counts(self, classes: int) -> Tensor:
        """Return the records of each class, of masks the pixels (C,)."""
        return class_counts(self._data.y, classes)

    # -- stage 2 --------------------------------------------------------------------------------------------

    def made_from(self) -> Basis:
        """Return the inputs of `pull_back` other than received messages: T_k and D_k, if they are used."""
        through_T = self.T_basis if self._config.outputs == "logits" else ()
        return joined(through_T, self.D_basis if self._config.gan else ())

    def answer(self, t: int, sent: Tensor, guard: Guard | None = None) -> Answer:
        """Run the client's part of a step: predict, score, and take a step of D_k on real records against the samples.

        The graphs back to the samples are kept for `pull_back`.

        Args:
            t: the step.
            sent: x (n, c, h, w).
            guard: the training defence of D_k's step.
        """
        x = sent.clone().requires_grad_()
        z_k = self._task(x)
        draws = child(self._seed, "fediod", "real", t, self.name)
        batch = torch.randint(len(self._data), (len(x),), generator=draws)
        real = self._data.x.index_select(0, batch).to(x.device)
        if guard is not None:
            return self._guarded_answer(t, x, z_k, batch, real, guard)
        on_real, on_x = self._D.module(torch.cat([real, x])).split(len(x))
        (toward_real,) = torch.autograd.grad(F.softplus(-on_x).mean(), x, retain_graph=True)
        L_gan = F.softplus(-on_real).mean() + F.softplus(on_x).mean()
        loss = self._D.step(L_gan, self._config.rate(t))
        scores = on_x.detach().sigmoid().mean((1, 2)) / on_real.detach().sigmoid().mean()
        self._held = x, z_k, toward_real
        return Answer(z_k.detach(), scores, batch, loss)

    def _guarded_answer(
        self, t: int, x: Tensor, z_k: Tensor, batch: Tensor, real: Tensor, guard: Guard
    ) -> Answer:
        """Answer as `answer` does, but D_k's step uses the records only through a clipped and noisy sum.

        The mean score on real records is a separate use of records. It is computed only if scores are sent.
        """
        D_k = self._D.module
        on_x = D_k(x)
        (toward_real,) = torch.autograd.grad(F.softplus(-on_x).mean(), x, retain_graph=True)
        L_x = F.softplus(on_x).mean()  # of samples that the server knows: public given x
        parameters = dict(D_k.named_parameters())
        on_samples = dict(zip(parameters, torch.autograd.grad(L_x, list(parameters.values())), strict=True))
        scores = on_x.detach().sigmoid().mean((1, 2))
        if self._config.weights == "eq8":
            with torch.no_grad():
                scores = scores / D_k(real).sigmoid().mean()

        def on_records(drawn: Tensor) -> Tensor:
            records = self._data.x.index_select(0, drawn.to(self._data.x.device)).to(x.device)
            loss: Tensor = F.softplus(-D_k(records.requires_grad_())).mean((1, 2)).sum()
            return loss

        with per_sample_gradients(D_k):
            step = guard.step(D_k, len(self._data), on_records)
        gradient: dict[str, Tensor] = {}
        for n, g in step.gradient.items():
            gradient[n] = g + on_samples[n]
        self._D.descend(gradient, self._config.rate(t))
        self._held = x, z_k, toward_real
        return Answer(z_k.detach(), scores, batch, float(step.loss) + float(L_x.detach()))

    def predict(self, sent: Tensor) -> Tensor:
        """Return z_k (n, C), of masks (n, C, h, w), for samples (n, c, h, w) that only the student learns from."""
        with torch.no_grad():
            z_k: Tensor = self._task(sent)
        return z_k

    def pull_back(self, values: Tensor | None = None, gan_weight: Tensor | None = None) -> Tensor:
        """Return the part of the generator's loss gradient at the samples (n, c, h, w) that passes through this client.

        Args:
            values: ∂L/∂z_k (n, C), of masks (n, C, h, w). Omitted if the server got no logits; then only L_gan's
                gradient is returned.
            gan_weight: weight of L_gan's gradient (); if omitted, zero.
        """
        if self._held is None:
            raise ProtocolError(f"{self.name} was sent cotangents of samples that it never answered to.")
        (x, z_k, toward_real), self._held = self._held, None
        if values is None:
            return torch.zeros_like(x) if gan_weight is None else gan_weight * toward_real
        (through_T,) = torch.autograd.grad(z_k, x, values)
        if not self._config.gan or gan_weight is None:
            return through_T
        return through_T + gan_weight * toward_real

    # -- what outlives a round ------------------------------------------------------------------------------

    def save(self, state: dict[str, Tensor]) -> None:
        """Put T_k and D_k into `state`."""
        put(state, f"{self.name}/T/", self.T)
        put(state, f"{self.name}/D/", self._D.state())
        keep_basis(state, self.name, self.T_basis)
        keep_basis(state, f"{self.name}/discriminator", self.D_basis)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load T_k and D_k from `state`."""
        self.adopt(take(state, f"{self.name}/T/"), basis_of(state, self.name))
        self.D_basis = basis_of(state, f"{self.name}/discriminator")
        self._D.restore(take(state, f"{self.name}/D/"))

    def _freeze(self) -> None:
        self._task = self._trainer.network(self.T).eval().requires_grad_(False)


def laid_out(module: nn.Module, trainer: Trainer) -> nn.Module:
    """Return the module in the memory format of the run's training."""
    last = trainer.execution.memory_format == "channels_last"
    return module.to(memory_format=torch.channels_last if last else torch.contiguous_format)
