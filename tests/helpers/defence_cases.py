"""Defences as a spec configures them, and what they release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdaudit.defenses import REGISTRY
from torch import Tensor

from fdaudit.config import validate
from fdaudit.rng import SecretStream
from fdaudit.transcript.wire import Released

SECRET = b"a secret of sixteen bytes or more"


def defence(name: str, **params: Any) -> Any:
    """Return a registered defence with settings, which are checked."""
    cls = REGISTRY.load(name)
    return cls(validate(cls.Config, params, "defenses.0.params"))


def released(
    made: Any, tensors: Mapping[str, Tensor], kind: str = "model_update", path: str = "m"
) -> Released:
    """Return what a defence makes of a message, with the noise of a path."""
    message: Released = made.release(kind, tensors, SecretStream(SECRET, path))
    return message
