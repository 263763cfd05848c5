"""Additive noise on a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fdaudit.events import Event, Gaussian, Laplace, NoGuarantee
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.wire import Released

from ._parts import (
    Configured,
    NoiseConfig,
    Settings,
    finite,
    moved,
    noised,
    norm,
    unclaimed,
    values_of,
    without_shares,
)

__all__ = ["GaussianNoise", "GaussianNoiseConfig", "LaplaceNoise", "LaplaceNoiseConfig"]

_UNCLIPPED = "noise without a clip: the sensitivity of the message is unbounded"


class GaussianNoiseConfig(NoiseConfig):
    """Settings of Gaussian noise on a message."""

    sigma: float = Field(gt=0)
    """Standard deviation of the noise, in the units of the values sent."""
    clip: float | None = Field(None, gt=0)
    """ℓ2 norm to which the whole message is clipped first: a public constant. None: no such clip."""
    bound: float | None = Field(None, gt=0)
    """B: every value is clipped to ±B first, a public constant, in place of `clip`. With neither, no guarantee."""

    @model_validator(mode="after")
    def _one_clip(self) -> GaussianNoiseConfig:
        if self.clip is not None and self.bound is not None:
            raise ValueError("sets both clip and bound. Clip the whole message, or each value.")
        return self


class LaplaceNoiseConfig(NoiseConfig):
    """Settings of Laplace noise on a message."""

    gamma: float = Field(gt=0)
    """γ: the noise has scale 1/γ, in the units of the values sent."""
    clip: float | None = Field(None, gt=0)
    """B: every value is clipped to ±B first, a public constant. None: no clip, no guarantee."""


class _AdditiveNoise(Configured[Settings]):
    """Base of additive noise: each value is clipped, noised and sent in its own dtype, whole numbers in int64."""

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Clip, add noise, and state the guarantee.

        Raises:
            ProtocolError: `client_share` does not fit the values, or comes without `client_bound`.
        """
        values = values_of(tensors)
        clipped = self._clipped(values)
        message = without_shares(tensors)
        # Use double precision up to the noise: float32 would round the clipped norm past the clip.
        for name, sent in values.items():
            message[name] = noised(sent, clipped[name], self._drawn(sent, noise))
        return Released(kind=kind, tensors=message, event=self._event(tensors))

    def _clipped(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError

    def _drawn(self, sent: Tensor, noise: SecretStream) -> Tensor:
        raise NotImplementedError

    def _event(self, tensors: Mapping[str, Tensor]) -> Event:
        raise NotImplementedError


def _each_clipped(values: Mapping[str, Tensor], bound: float) -> dict[str, Tensor]:
    return {n: finite(t).clamp(-bound, bound) for n, t in values.items()}


class GaussianNoise(_AdditiveNoise[GaussianNoiseConfig]):
    """Adds independent Gaussian noise to every value of a message, after clipping the whole message or each value.

    With a clip C of the whole message, replacing everything the client holds moves the message by at most 2C. One
    message is then a Gaussian release of ℓ2 sensitivity 2C for the client as unit. With a bound B on each of its n
    values the sensitivity is 2B√n. A sender may average clients' values and state that each was clipped to ±B
    (`client_bound`) and that no client's share in a value exceeds ω (`client_share`). Replacing one client's values
    then moves the average by at most 2B√(Σω²). Without a clip the values are unbounded and no guarantee is claimed,
    for any noise. The noise covers values only. It does not hide that a message was sent: this is part of the
    protocol's schedule, which must not depend on data. It does not hide the samples in `index`, which is not changed.
    No guarantee is claimed unless the spec declares `index` public. The event assumes real numbers.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data;
      * under a clip, NaN and infinite values count as 0;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="gaussian-noise",
        source="Dwork & Roth 2014, appendix A; client-level: McMahan et al. 2018",
        protects="the values of one message",
        fixed_size=True,
    )
    Config: ClassVar[type[GaussianNoiseConfig]] = GaussianNoiseConfig

    def _clipped(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.config.bound is not None:
            return _each_clipped(values, self.config.bound)
        if self.config.clip is None:
            return {n: t.double() for n, t in values.items()}
        numbers = {n: finite(t) for n, t in values.items()}
        length = norm(numbers.values())
        factor = min(1.0, self.config.clip / length) if length > 0 else 1.0
        return {n: t * factor for n, t in numbers.items()}

    def _drawn(self, sent: Tensor, noise: SecretStream) -> Tensor:
        return torch.as_tensor(noise.normal(*sent.shape)) * self.config.sigma

    def _event(self, tensors: Mapping[str, Tensor]) -> Event:
        if self.config.clip is None and self.config.bound is None:
            return NoGuarantee(reason=_UNCLIPPED)
        nothing = unclaimed(tensors, self.config.public_index)
        if nothing is not None:
            return nothing
        covers: tuple[str, ...] = ("data", "messages")
        if self.config.bound is not None:
            by = moved(self.card.name, tensors, self.config.bound)
            sensitivity, covers = 2 * self.config.bound * by.l2, by.covers
        else:
            sensitivity = 2 * (self.config.clip or 0.0)
        return Gaussian(
            sensitivity=sensitivity,
            scale=self.config.sigma,
            unit="client",
            relation="replace-one",
            covers=covers,
        )


class LaplaceNoise(_AdditiveNoise[LaplaceNoiseConfig]):
    """Adds independent Laplace noise of scale 1/γ to every value of a message, after clipping each value.

    With a clip B, replacing all data behind the message moves each of its n values by at
    most 2B. One message is a Laplace release of ℓ1 sensitivity 2Bn, for the client as unit. On logits of 5,000
    samples and 10 classes with B = 86 and γ = 1, ε is 8.6 million: finite but useless. A sender may average
    clients' values and state that each was clipped to ±B (`client_bound`) and that no client's share
    in a value exceeds ω (`client_share`). Replacing one client's values then moves the average by at most 2BΣω. Without
    a clip no guarantee is claimed. As with Gaussian noise, neither the sending of a message nor the samples in `index`
    are covered. The event assumes real numbers. The low bits of floating-point noise can reveal a value (Mironov
    2012), as they do if values are sent in double precision. The event does not account for that. `discrete-laplace`
    avoids it.

    Guarantees:
      * the clip is a constant of the spec, never taken from the data;
      * under a clip, NaN and infinite values count as 0;
      * noise comes from the vault's secret.
    """

    card = DefenseCard(
        name="laplace-noise",
        source="Dwork & Roth 2014, section 3.3; on an ensemble of logits: Gong et al. 2022, Eq. 2",
        protects="the values of one message",
        fixed_size=True,
    )
    Config: ClassVar[type[LaplaceNoiseConfig]] = LaplaceNoiseConfig

    def _clipped(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.config.clip is None:
            return {n: t.double() for n, t in values.items()}
        return _each_clipped(values, self.config.clip)

    def _drawn(self, sent: Tensor, noise: SecretStream) -> Tensor:
        return torch.as_tensor(noise.laplace(*sent.shape)) / self.config.gamma

    def _event(self, tensors: Mapping[str, Tensor]) -> Event:
        if self.config.clip is None:
            return NoGuarantee(reason=_UNCLIPPED)
        nothing = unclaimed(tensors, self.config.public_index)
        if nothing is not None:
            return nothing
        by = moved(self.card.name, tensors, self.config.clip)
        return Laplace(
            sensitivity=2 * self.config.clip * by.l1,
            scale=1 / self.config.gamma,
            unit="client",
            relation="replace-one",
            covers=by.covers,
        )
