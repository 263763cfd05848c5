"""Signs instead of values."""

from collections.abc import Mapping
from typing import Any, ClassVar

from fdaudit.config import Config
from fdaudit.events import NoGuarantee
from fdaudit.registry import DefenseCard
from fdaudit.transcript.wire import Released


class SignConfig(Config):
    """The defence has no settings."""


class Sign:
    """Sends the sign of every value: one bit each. Which samples a message is about stays."""

    card = DefenseCard(
        name="sign",
        source="Bernstein et al. 2018",
        protects="the magnitudes in one message",
    )
    Config: ClassVar[type[SignConfig]] = SignConfig

    def __init__(self, config): ...

    def describe(self) -> Mapping[str, Any]:
        return {"name": self.card.name}

    def release(self, kind, tensors, noise) -> Released:
        signs = {name: t if name == "index" else t.sign() for name, t in tensors.items()}
        bits = sum(t.numel() for t in signs.values())
        reason = "signs of the true values are sent as they are"
        return Released(
            kind=kind, tensors=signs, event=NoGuarantee(reason=reason), bytes_on_wire=(bits + 7) // 8
        )
