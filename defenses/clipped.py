"""Noise on clipped updates (DP-FedAvg) and on clipped gradients (GS-WGAN)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import ProtocolError
from fdaudit.events import Event, Gaussian, NoGuarantee
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.wire import Released

from ._parts import Configured, finite, noised
from .noise import GaussianNoise, GaussianNoiseConfig

__all__ = ["DPFedAvg", "DPFedAvgConfig", "SanitizedGradients", "SanitizedGradientsConfig"]


class DPFedAvgConfig(Config):
    """Settings of a clipped and noised update."""

    clip: float = Field(gt=0)
    """C: the ℓ2 norm to which the whole update is clipped, a public constant."""
    sigma: float = Field(gt=0)
    """σ: the noise multiplier; the noise in the sum of all shares has a standard deviation of σC."""
    shares: int = Field(1, ge=1)
    """Clients that share the noise: each adds N(0, σ²C²/shares). 1: each adds all of it."""


class DPFedAvg(Configured[DPFedAvgConfig]):
    """Clips a client's update to norm C and adds the client's share of Gaussian noise.

    Replacing everything the client holds moves its clipped update by at most 2C. With `shares` of 1, each
    update is a Gaussian release of sensitivity 2C and scale σC for every receiver: client-level local DP. With more
    shares, one update is a release of scale σC/√shares. The sum of that many updates carries noise of scale σC, and
    this holds only for receivers that see nothing less than the sum. McMahan et al. 2018 add the noise to the sum at
    the server and consider a client that is added or removed, of sensitivity C: σ is their z. Replacing a client counts
    twice that length.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data;
      * NaN and infinite values count as 0;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="dp-fedavg",
        source="McMahan, Ramage, Talwar & Zhang 2018, Algorithm 1 (FlatClip)",
        protects="one client's update",
        accepts=("gradient", "model_update"),
        fixed_size=True,
    )
    Config: ClassVar[type[DPFedAvgConfig]] = DPFedAvgConfig

    def __init__(self, config: DPFedAvgConfig) -> None:
        super().__init__(config)
        share = config.sigma * config.clip / math.sqrt(config.shares)
        self._noise = GaussianNoise(GaussianNoiseConfig(sigma=share, clip=config.clip))

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Clip the update, add this client's share of the noise, and state the update's own guarantee.

        Raises:
            ProtocolError: the message is no update.
        """
        if kind not in self.card.accepts:
            kinds = " or ".join(self.card.accepts)
            raise ProtocolError(f"{self.card.name}: {kind} is no update. Attach it to {kinds}.")
        return self._noise.release(kind, tensors, noise)


class SanitizedGradientsConfig(Config):
    """Settings of sanitised gradients at generated samples."""

    clip: float = Field(gt=0)
    """C: the ℓ2 norm to which each sample's gradient is clipped, a public constant."""
    sigma: float = Field(gt=0)
    """σ: the noise multiplier; each value's noise has a standard deviation of σC."""
    drawn_from: int = Field(1, ge=1)
    """Number of clients from which the server draws one at random each step; 1 if it asks this client in any case."""


class SanitizedGradients(Configured[SanitizedGradientsConfig]):
    """Clips the gradient at each generated sample to norm C and adds Gaussian noise of deviation σC to its values.

    A sample's gradient is the sum over all paths through the client: its task model and its discriminator.
    Any change of the client's data or inputs moves each clipped gradient by at most 2C. A message of n samples is
    therefore n Gaussian releases of sensitivity 2C: RDP 2nα/σ² at order α. If the server asks one client at random,
    `drawn_from` states the number of clients. Only views that cannot tell which client was asked may use that chance.
    The logits that a client sends for the samples are a separate release, which this defence does not cover.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data, and applies to each sample separately;
      * NaN and infinite values count as 0;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="sanitized-gradients",
        source="Chen, Orekondy & Fritz 2020 (GS-WGAN), Algorithm 1 and Theorem 4.1",
        protects="the gradients of one message",
        accepts=("sample_gradients",),
        fixed_size=True,
    )
    Config: ClassVar[type[SanitizedGradientsConfig]] = SanitizedGradientsConfig

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Clip `values` (n, c, h, w) sample by sample, add noise, and state the guarantee.

        Raises:
            ProtocolError: the message does not contain gradients at samples, or contains more than these.
        """
        values = tensors.get("values")
        if kind not in self.card.accepts or values is None or values.dim() < 2 or len(tensors) != 1:
            problem = f"{self.card.name}: {kind} with {sorted(tensors)} is not `values` (n, c, h, w) alone"
            raise ProtocolError(f"{problem}. Attach it to {self.card.accepts[0]}.")
        clip, scale = self.config.clip, self.config.sigma * self.config.clip
        rows = finite(values).flatten(1)
        norms = rows.norm(dim=1, keepdim=True)
        factors = (clip / torch.where(norms > 0, norms, 1.0)).clamp_max(1.0)
        clipped = (rows * factors).reshape(values.shape)
        draws = torch.as_tensor(noise.normal(*values.shape)) * scale
        event: Event = NoGuarantee(reason="a message without gradients has nothing to add noise to")
        if len(values):
            event = Gaussian(
                sensitivity=2 * clip,
                scale=scale,
                count=len(values),
                drawn_from=self.config.drawn_from,
                unit="client",
                relation="replace-one",
                covers=("data", "messages"),
            )
        return Released(kind=kind, tensors={"values": noised(values, clipped, draws)}, event=event)
