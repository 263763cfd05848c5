"""Defences as a spec configures them, and what they release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fdaudit.defenses import REGISTRY
from torch import Tensor

from fdaudit.config import validate
from fdaudit.rng import SecretStream
from fdaudit.transcript.messages import role
from fdaudit.transcript.transcript import Transcript
from fdaudit.transcript.wire import Released, Wire

SECRET = b"a secret of sixteen bytes or more"


def defence(name: str, **params: Any) -> Any:
    """Return a registered defence with settings, which are checked."""
    cls = REGISTRY.load(name)
    return cls(validate(cls.Config, params, "defenses.0.params"))


def on_wire(
    folder: Path,
    defences: Sequence[Any],
    tensors: Mapping[str, Tensor],
    kind: str,
    way: tuple[str, str],
    n: int = 1,
) -> list[Any]:
    """Send a message n times over a wire with defences on it; return what arrives.

    Args:
        folder: where the record is written.
        defences: on messages of this kind.
        tensors: of the message.
        kind: of the message.
        way: its sender and its receiver.
        n: how often it is sent.
    """
    sender, receiver = way
    with Transcript(folder, secret=SECRET) as transcript:
        wire = Wire(
            transcript,
            parties=way,
            kinds=(kind,),
            device=torch.device("cpu"),
            secret=SECRET,
            defenses={(kind, role(sender)): defences},
        )
        return [wire.send(sender, [receiver], kind, tensors, inputs=()) for _ in range(n)]


def released(
    made: Any, tensors: Mapping[str, Tensor], kind: str = "model_update", path: str = "m"
) -> Released:
    """Return what a defence makes of a message, with the noise of a path."""
    message: Released = made.release(kind, tensors, SecretStream(SECRET, path))
    return message
