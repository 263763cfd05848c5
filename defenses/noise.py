"""Additive noise on a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.events import Event, Gaussian, Laplace, NoGuarantee
from fdaudit.rng import SecretStream
from fdaudit.wire import Released

__all__ = ["GaussianNoise", "GaussianNoiseConfig", "LaplaceNoise", "LaplaceNoiseConfig"]

_LEFT_ALONE = ("index", "z_max")
"""What a message is about, not what it says: noise on a sample's number would name another sample."""


class _NoiseConfig(Config):
    """What the settings of every additive noise have in common."""

    public_index: bool = False
    """The samples that `index` names are chosen without private data. Otherwise the choice goes out as it is, and no
    guarantee is claimed."""


class GaussianNoiseConfig(_NoiseConfig):
    """Settings of Gaussian noise on a message."""

    sigma: float = Field(gt=0)
    """Standard deviation of the noise, in the units of the values sent."""
    clip: float | None = Field(None, gt=0)
    """ℓ2 norm to which the whole message is clipped first: a public constant. None: no clip, no guarantee."""


class LaplaceNoiseConfig(_NoiseConfig):
    """Settings of Laplace noise on a message."""

    gamma: float = Field(gt=0)
    """γ: the noise has scale 1/γ, in the units of the values sent."""
    clip: float | None = Field(None, gt=0)
    """B: every value is clipped to ±B first, a public constant. None: no clip, no guarantee."""


class _Noise:
    """What every additive noise has in common: what it leaves alone, dtypes, and when nothing can be claimed."""

    name: ClassVar[str]
    config: GaussianNoiseConfig | LaplaceNoiseConfig

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **self.config.model_dump()}

    def _unclaimed(self, tensors: Mapping[str, Tensor]) -> NoGuarantee | None:
        """The reason why nothing can be claimed for a message, where there is one."""
        if self.config.clip is None:
            return NoGuarantee(reason="noise without a clip: the sensitivity of the message is unbounded")
        bare = sorted(tensors.keys() & {*_LEFT_ALONE} - ({"index"} if self.config.public_index else set()))
        if bare:
            return NoGuarantee(reason=f"{' and '.join(bare)} of the message goes out without noise")
        return None


def _values(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that noise is added to."""
    return {n: t for n, t in tensors.items() if n not in _LEFT_ALONE}


def _noised(sent: Tensor, clipped: Tensor, drawn: Tensor) -> Tensor:
    """The sum in the dtype that was sent; whole numbers are rounded, not cut."""
    noised = clipped + drawn.to(sent.device)
    return (noised if sent.is_floating_point() else noised.round()).to(sent.dtype)


class GaussianNoise(_Noise):
    """Adds independent Gaussian noise to every value of a message, after clipping the whole message.

    With a clip C, replacing everything the client holds moves the message by at most 2C: one message is
    a Gaussian release of sensitivity 2C for the client as unit. Without a clip the values are unbounded and no
    guarantee is claimed, however large the noise. That a message was sent at all is not covered by noise on its
    values: it is part of the protocol's schedule, which must not depend on data. Nor is which samples its `index`
    names, which stays as it is; nothing is claimed unless the spec says that `index` is public.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data;
      * noise comes from the vault's secret.
    """

    name: ClassVar[str] = "gaussian-noise"
    source: ClassVar[str] = "Dwork & Roth 2014, appendix A; client-level: McMahan et al. 2018"
    protects: ClassVar[str] = "the values of one message"
    Config: ClassVar[type[GaussianNoiseConfig]] = GaussianNoiseConfig

    def __init__(self, config: GaussianNoiseConfig) -> None:
        self.config: GaussianNoiseConfig = config

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Clips, adds noise, and says what that is worth."""
        values, factor = _values(tensors), 1.0
        if self.config.clip is not None:
            squares = [t.double().square().sum().cpu() for t in values.values()]
            norm = float(torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum().sqrt())
            factor = min(1.0, self.config.clip / norm) if norm > 0 else 1.0
        # In double precision up to the noise: float32 would round the clipped norm past the clip.
        noised = {n: _noised(t, t.double() * factor, self._drawn(t, noise)) for n, t in values.items()}
        return Released(kind=kind, tensors={**tensors, **noised}, event=self._event(tensors))

    def _drawn(self, sent: Tensor, noise: SecretStream) -> Tensor:
        return torch.as_tensor(noise.normal(*sent.shape)) * self.config.sigma

    def _event(self, tensors: Mapping[str, Tensor]) -> Event:
        return self._unclaimed(tensors) or Gaussian(
            sensitivity=2 * (self.config.clip or 0.0),
            scale=self.config.sigma,
            unit="client",
            relation="replace-one",
            covers=("data", "messages"),
        )


class LaplaceNoise(_Noise):
    """Adds independent Laplace noise of scale 1/γ to every value of a message, after clipping each value.

    With a clip B, replacing everything that the sender computed the message from moves each of its n values by at most
    2B: one message is a Laplace release of ℓ1 sensitivity 2Bn, for the client as unit. On logits of 5,000
    samples and 10 classes with B = 86 and γ = 1 that is ε = 8.6 million: finite, and empty. Without a clip
    nothing is claimed. As with Gaussian noise, neither that a message is sent nor which samples `index` names is
    covered. The event speaks of real numbers; that the low bits of floating-point noise can give it away
    (Mironov 2012) is not accounted for.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data;
      * noise comes from the vault's secret.
    """

    name: ClassVar[str] = "laplace-noise"
    source: ClassVar[str] = (
        "Dwork & Roth 2014, section 3.3; on an ensemble of logits: Gong et al. 2022, Eq. 2"
    )
    protects: ClassVar[str] = "the values of one message"
    Config: ClassVar[type[LaplaceNoiseConfig]] = LaplaceNoiseConfig

    def __init__(self, config: LaplaceNoiseConfig) -> None:
        self.config: LaplaceNoiseConfig = config

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Clips, adds noise, and says what that is worth."""
        values = _values(tensors)
        noised = {n: _noised(t, self._clipped(t), self._drawn(t, noise)) for n, t in values.items()}
        return Released(kind=kind, tensors={**tensors, **noised}, event=self._event(tensors, values))

    def _clipped(self, sent: Tensor) -> Tensor:
        bound = self.config.clip
        return sent.double() if bound is None else sent.double().clamp(-bound, bound)

    def _drawn(self, sent: Tensor, noise: SecretStream) -> Tensor:
        return torch.as_tensor(noise.laplace(*sent.shape)) / self.config.gamma

    def _event(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Event:
        count = sum(t.numel() for t in values.values())
        if not count:
            return NoGuarantee(reason="a message without values has nothing to add noise to")
        return self._unclaimed(tensors) or Laplace(
            sensitivity=2 * (self.config.clip or 0.0) * count,
            scale=1 / self.config.gamma,
            unit="client",
            relation="replace-one",
            covers=("data", "messages"),
        )
