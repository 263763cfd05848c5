"""Signs instead of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fdaudit.config import Config
from fdaudit.events import NoGuarantee
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.wire import Released


class SignConfig(Config):
    """The defence has no settings."""


class Sign:
    """Sends the sign of every value: one bit each."""

    card = DefenseCard(
        name="sign",
        source="Bernstein et al. 2018",
        protects="the magnitudes in one message",
    )
    Config: ClassVar[type[SignConfig]] = SignConfig

    def __init__(self, config: SignConfig) -> None:
        self.config = config

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters, as recorded beside the message."""
        return {"name": self.card.name}

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """The signs; `noise` is not needed."""
        bits = sum(t.numel() for t in tensors.values())
        return Released(
            kind=kind,
            tensors={name: tensor.sign() for name, tensor in tensors.items()},
            event=NoGuarantee(reason="signs of the true values are sent as they are"),
            bytes_on_wire=(bits + 7) // 8,
        )
