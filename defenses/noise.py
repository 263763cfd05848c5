"""Additive noise on a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.events import Event, Gaussian, NoGuarantee
from fdaudit.rng import SecretStream
from fdaudit.wire import Released

__all__ = ["GaussianNoise", "GaussianNoiseConfig"]


class GaussianNoiseConfig(Config):
    """Settings of Gaussian noise on a message."""

    sigma: float = Field(gt=0)
    """Standard deviation of the noise, in the units of the values sent."""
    clip: float | None = Field(None, gt=0)
    """ℓ2 norm to which the whole message is clipped first: a public constant. None: no clip, no guarantee."""


class GaussianNoise:
    """Adds independent Gaussian noise to every value of a message, after clipping the whole message.

    With a clip C, replacing everything the client holds moves the message by at most 2C: one message is
    a Gaussian release of sensitivity 2C for the client as unit. Without a clip the values are unbounded and no
    guarantee is claimed, however large the noise. That a message was sent at all is not covered by noise on its
    values: it is part of the protocol's schedule, which must not depend on data.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data;
      * noise comes from the vault's secret.
    """

    name: ClassVar[str] = "gaussian-noise"
    source: ClassVar[str] = "Dwork & Roth 2014, appendix A; client-level: McMahan et al. 2018"
    protects: ClassVar[str] = "the values of one message"
    Config: ClassVar[type[GaussianNoiseConfig]] = GaussianNoiseConfig

    def __init__(self, config: GaussianNoiseConfig) -> None:
        self.config = config

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **self.config.model_dump()}

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Clips, adds noise, and says what that is worth."""
        factor = 1.0
        if self.config.clip is not None:
            norm = float(torch.stack([t.double().square().sum() for t in tensors.values()]).sum().sqrt())
            factor = min(1.0, self.config.clip / norm) if norm > 0 else 1.0
        # In double precision up to the noise: float32 would round the clipped norm past the clip.
        noised = {n: self._noised(t, t.double() * factor, noise) for n, t in tensors.items()}
        return Released(kind=kind, tensors=noised, event=self._event())

    def _noised(self, sent: Tensor, clipped: Tensor, noise: SecretStream) -> Tensor:
        drawn = torch.as_tensor(noise.normal(*sent.shape)) * self.config.sigma
        noised = clipped + drawn.to(sent.device)
        return (noised if sent.is_floating_point() else noised.round()).to(sent.dtype)

    def _event(self) -> Event:
        if self.config.clip is None:
            return NoGuarantee(reason="noise without a clip: the sensitivity of the message is unbounded")
        return Gaussian(
            sensitivity=2 * self.config.clip,
            scale=self.config.sigma,
            unit="client",
            relation="replace-one",
            covers=("data", "messages"),
        )
