"""Example messages, and a defence that is tried on one kind of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdaudit.errors import ProtocolError
from fdaudit.kinds import KINDS
from fdaudit.rng import SecretStream, child
from fdaudit.testing.extensions import during, fail
from fdaudit.testing.federation import CLASSES, SHAPE
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.wire import Released

__all__ = ["MessageDefence", "example_message", "message_defences", "noise_stream"]

_KINDS = ("logits", "model_update", "soft_labels", "vote_counts", "sample_gradients", "generated_samples")
"""Kinds that are tried where a card accepts every kind: the first that the defence treats."""
_ROWS = 6
_SIZES = {"n": _ROWS, "C": CLASSES, "k": 2, **dict(zip("chw", SHAPE, strict=True))}
"""The sizes of an example message, by the letters of `fdaudit.kinds`."""
_SECRET = b"a secret of the auditor, not the seed"


def example_message(kind: str, seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    """Return random tensors of a kind of message, about six samples of three classes.

    Args:
        kind: one of `fdaudit.kinds.KINDS`; a kind that states no tensors, or of your own, is a model of two tensors.
        seed: of the values.
        scale: factor of the values, where they have no fixed range.
    """
    draws = child(seed, "message", kind)
    index = torch.arange(_ROWS)
    logits = 3 * torch.randn(_ROWS, CLASSES, generator=draws)
    if kind == "logits":
        return {"index": index, "values": logits * scale}
    if kind in ("soft_labels", "ensemble_labels"):
        return {"index": index, "values": logits.softmax(1)}
    if kind == "vote_counts":
        return {"index": index, "counts": torch.randint(9, (_ROWS, CLASSES), generator=draws)}
    if kind in ("top_logits", "top_soft_labels"):
        answers = logits * scale if kind == "top_logits" else logits.softmax(1)
        values, classes = answers.topk(_SIZES["k"], dim=1)
        return {"index": index, "classes": classes, "values": values}
    forms = KINDS[kind].tensors if kind in KINDS else ()
    tensors = {}
    for form in forms:
        shape = [_SIZES[letter] for letter in form.shapes[0].split()]
        if form.name == "index":
            tensors[form.name] = index
        elif form.whole:
            tensors[form.name] = torch.randint(CLASSES, shape, generator=draws)
        elif form.name == "samples":
            tensors[form.name] = torch.rand(shape, generator=draws)
        elif not form.when:
            tensors[form.name] = torch.randn(shape, generator=draws) * scale
    return tensors or {
        "head.0.weight": torch.randn(CLASSES, 5, generator=draws) * scale,
        "head.0.bias": torch.randn(CLASSES, generator=draws) * scale,
    }


@dataclass(frozen=True)
class MessageDefence:
    """A message defence that is tried on one kind of message."""

    name: str
    defence: Any
    kind: str

    def values(self, tensors: Mapping[str, Tensor], path: str = "m") -> Tensor:
        """Return all values but the index of what the defence makes of a message, as one vector."""
        released = readable(dict(self.release(tensors, path).tensors))
        parts: list[Tensor] = []
        for n, tensor in released.items():
            if n != "index":
                parts.append(tensor.double().flatten())
        return torch.cat(parts)

    def message(self, seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
        """Return a message of the kind."""
        return example_message(self.kind, seed, scale)

    def release(self, tensors: Mapping[str, Tensor], path: str = "m") -> Released:
        """Return what the defence makes of a message, with the noise of a path."""
        with during(self.name, f"release of {self.kind}"):
            released: Released = self.defence.release(self.kind, tensors, noise_stream(path))
        return released


def message_defences(name: str, defence: Any, kind: str | None) -> list[MessageDefence]:
    """Return the defence with each kind of message that it is tried on.

    Where the card accepts every kind, it may refuse some under its settings, and one that it treats is enough.
    """
    accepted = (kind,) if kind else defence.card.accepts
    subjects: list[MessageDefence] = []
    for tried in accepted or _KINDS:
        subject = MessageDefence(name, defence, tried)
        try:
            defence.release(tried, subject.message(), noise_stream())
        except ProtocolError as error:
            refusal = error
        except Exception:  # the checks name it
            return [*subjects, subject]
        else:
            subjects.append(subject)
            if not accepted:
                break
    if not subjects:
        kinds = ", ".join(accepted or _KINDS)
        fail(name, f"refuses messages of {kinds} ({refusal}); give params or another kind.")
    return subjects


def noise_stream(path: str = "m") -> SecretStream:
    """Return the noise of a path."""
    return SecretStream(_SECRET, path)
