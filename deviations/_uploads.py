"""The messages in which clients send what they learnt."""

from __future__ import annotations

__all__ = ["UPLOADS"]

UPLOADS = (
    "gradient",
    "model_update",
    "model_parameters",
    "logits",
    "soft_labels",
    "hard_labels",
    "class_prototypes",
)
"""Their kinds."""
