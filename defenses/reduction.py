"""Reduced answers: fewer decimals, fewer classes, the class alone, or softer probabilities.

These defences add no noise. Each maps values to values without randomness. Neighbouring data sets with different
answers may still be distinguished with certainty. An adversary learns less from an answer, but no ε follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import ProtocolError
from fdaudit.events import NoGuarantee
from fdaudit.kinds import KINDS
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.samples import narrow
from fdaudit.transcript.wire import Released

from ._parts import Configured, without_shares

__all__ = [
    "HardLabel",
    "HardLabelConfig",
    "Rounding",
    "RoundingConfig",
    "Temperature",
    "TemperatureConfig",
    "TopK",
    "TopKConfig",
]


Scale = Literal["logits", "probabilities"]


class _AnswerConfig(Config):
    """Common settings of defences that treat logits and probabilities differently."""

    values: Scale | None = None
    """The scale of `ensemble_labels`, which their kind does not determine: `logits` or `probabilities`."""


class RoundingConfig(Config):
    """Settings of rounding."""

    decimals: int = Field(2, ge=0, le=12)
    """Decimals that are kept."""


class TopKConfig(_AnswerConfig):
    """Settings of top-k."""

    k: int = Field(1, ge=1)
    """The largest values of each row that are kept."""
    rest: float = -20.0
    """The value of a row's other logits; the number below the smallest one kept, if that is lower. Other
    probabilities become 0.
    """


class HardLabelConfig(Config):
    """The defence has no settings."""


class TemperatureConfig(_AnswerConfig):
    """Settings of a temperature."""

    temperature: float = Field(gt=0)
    """T: above 1 softens, below 1 sharpens."""


def _scale(name: str, kind: str, stated: Scale | None) -> Scale:
    """Return whether a message of this kind contains logits or probabilities."""
    entry = KINDS.get(kind)
    scale, remedy = entry.scale if entry else None, "Attach it to logits or soft_labels."
    if kind == "ensemble_labels":
        scale, remedy = stated, "Set values to 'logits' or 'probabilities'."
    if scale is None or scale == "classes":
        problem = f"{name}: {kind} does not say whether it holds logits or probabilities."
        raise ProtocolError(f"{problem} {remedy}")
    return scale


def _rows(name: str, kind: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the answers (n, C) of a message."""
    values = tensors.get("values")
    if values is None or values.dim() != 2 or not values.shape[1] or not values.is_floating_point():
        raise ProtocolError(f"{name}: {kind} brings no answers (n, C) along. Attach it to a kind that does.")
    return values


def _as_before(rows: Tensor, values: Tensor) -> Tensor:
    """Return non-negative rows (n, C), scaled to the sums of the original rows; in double precision.

    Rows of soft labels sum to 1, or to the score that they are weighted by.
    """
    total, sums = rows.sum(1, keepdim=True), values.double().sum(1, keepdim=True)
    factors = sums / torch.where(total > 0, total, 1.0)
    return torch.where(total > 0, rows * factors, rows)


def _sent(tensors: Mapping[str, Tensor], values: Tensor) -> dict[str, Tensor]:
    return {**without_shares(tensors), "values": values}


class Rounding(Configured[RoundingConfig]):
    """Rounds every floating-point value of a message to a number of decimals.

    Whole numbers are unchanged. The values stay floating-point numbers, so no byte is saved. `client_share` is dropped,
    since rounding may move a value further than a client moved it.

    Guarantees:
      * every value moves by at most half a unit of the last decimal, and the dtype's rounding;
      * idempotent.
    """

    card = DefenseCard(
        name="rounding",
        source="Shokri, Stronati, Song & Shmatikov 2017, section VIII: a coarser prediction vector",
        protects="nothing by itself: it leaves out the last digits",
        fixed_size=True,
    )
    Config: ClassVar[type[RoundingConfig]] = RoundingConfig

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Round every value; no randomness is drawn."""
        message = without_shares(tensors)
        for n, t in message.items():
            if t.is_floating_point():
                message[n] = t.double().round(decimals=self.config.decimals).to(t.dtype)
        reason = "rounding is no noise: equal values stay equal, and unlike ones mostly stay unlike"
        return Released(kind=kind, tensors=message, event=NoGuarantee(reason=reason))


class TopK(Configured[TopKConfig]):
    """Keeps the k largest values of each answer and replaces the others by a constant.

    Other probabilities become 0, and the kept ones are scaled so that the row keeps its sum. Kept logits
    are unchanged, and the others become one constant. Among equal values at the limit, those of the lower classes are
    kept.

    Guarantees:
      * at most k values of a row carry information about its classes; their order, and the largest one, stay;
      * with k of the number of classes or more nothing changes, up to the dtype's rounding.
    """

    card = DefenseCard(
        name="top-k",
        source="Shokri, Stronati, Song & Shmatikov 2017, section VIII: the prediction's top k classes",
        protects="nothing by itself: it leaves out the less likely classes",
        tasks=("single-label", "multi-label", "table"),
        accepts=("ensemble_labels", "logits", "soft_labels"),
        fixed_size=True,
    )
    Config: ClassVar[type[TopKConfig]] = TopKConfig

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Keep the largest values; no randomness is drawn.

        Raises:
            ProtocolError: the message has no answers (n, C), or does not state their scale.
        """
        scale, values = _scale(self.card.name, kind, self.config.values), _rows(self.card.name, kind, tensors)
        first = values.argsort(dim=1, descending=True, stable=True)[:, : self.config.k]
        mask = torch.zeros_like(values, dtype=torch.bool).scatter(1, first, True)
        if scale == "logits":
            least = values.gather(1, first).amin(1, keepdim=True)
            below = torch.nextafter(least, torch.full_like(least, -math.inf))
            answers = torch.where(mask, values, below.clamp_max(self.config.rest))
        else:
            answers = _as_before(values.double().clamp_min(0) * mask, values).to(values.dtype)
        reason = "the largest values go out as they are: leaving out the others is no noise"
        return Released(kind=kind, tensors=_sent(tensors, answers), event=NoGuarantee(reason=reason))


class HardLabel(Configured[HardLabelConfig]):
    """Sends each answer's largest class instead of logits or probabilities: the message becomes `hard_labels`.

    It is for tasks of one label, and for protocols whose receivers can read `hard_labels`. Among equal values the first
    class counts. A weight in the probabilities is lost.

    Guarantees:
      * a receiver learns only the largest class of an answer: `values` (n,) instead of (n, C).
    """

    card = DefenseCard(
        name="hard-label",
        source="Shokri, Stronati, Song & Shmatikov 2017, section VIII: the most likely class alone",
        protects="nothing by itself: it leaves out how sure an answer is",
        tasks=("single-label", "multi-label", "table"),
        accepts=("logits", "soft_labels"),
        makes="hard_labels",
        fixed_size=True,
    )
    Config: ClassVar[type[HardLabelConfig]] = HardLabelConfig

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Return the largest class; no randomness is drawn, and a range `z_max` of logits is not sent on.

        Raises:
            ProtocolError: the message has no answers (n, C).
        """
        if kind not in self.card.accepts:
            kinds = " or ".join(self.card.accepts)
            raise ProtocolError(f"{self.card.name}: {kind} is no answer. Attach it to {kinds}.")
        rows = _rows(self.card.name, kind, tensors)
        labels = narrow(rows.argmax(1), rows.shape[1])
        message = _sent(tensors, labels)
        message.pop("z_max", None)
        reason = "a class without noise: an answer that one record turns gives the record away"
        return Released(kind=self.card.makes or kind, tensors=message, event=NoGuarantee(reason=reason))


class Temperature(Configured[TemperatureConfig]):
    """Softens every answer by a temperature T: logits z become z/T, probabilities p become p^(1/T), rescaled.

    A softmax of the softened logits is the softened softmax: both scales give one answer. Rescaled rows keep their
    sums.

    Guarantees:
      * the order of the classes stays;
      * with T = 1 nothing changes, up to the dtype's rounding.
    """

    card = DefenseCard(
        name="temperature",
        source=(
            "Hinton, Vinyals & Dean 2015; as a defence: Shokri, Stronati, Song & Shmatikov 2017, section VIII"
        ),
        protects="nothing by itself: whoever knows T can undo it",
        tasks=("single-label", "multi-label", "table"),
        accepts=("ensemble_labels", "logits", "soft_labels"),
        fixed_size=True,
    )
    Config: ClassVar[type[TemperatureConfig]] = TemperatureConfig

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Soften every answer; no randomness is drawn.

        Raises:
            ProtocolError: the message has no answers (n, C), or does not state their scale.
        """
        scale, values = _scale(self.card.name, kind, self.config.values), _rows(self.card.name, kind, tensors)
        T = self.config.temperature
        if scale == "logits":
            answers = values.double() / T
        else:
            # Divide by the largest first: a power of tiny numbers would underflow to 0.
            p = values.double().clamp_min(0)
            top = p.amax(1, keepdim=True)
            answers = _as_before((p / torch.where(top > 0, top, 1.0)) ** (1 / T), values)
        reason = "a temperature is no noise: whoever knows it can undo it"
        message = _sent(tensors, answers.to(values.dtype))
        return Released(kind=kind, tensors=message, event=NoGuarantee(reason=reason))
