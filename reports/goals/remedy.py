"""The sentences that remedies for several goals share."""

from __future__ import annotations

__all__ = ["HIDE_CLIENTS", "LABELS_NO_REMEDY", "NOT_BY_THE_RECEIVER", "ONLY_A_BOUND"]

HIDE_CLIENTS = (
    "Clip each client's {kinds} and add `gaussian-noise` for whole clients, or sum updates securely if only the sum is "
    "needed."
)
LABELS_NO_REMEDY = "Answering with labels only is no remedy: label-only attacks exist (Choquette-Choo 2021)."
NOT_BY_THE_RECEIVER = "Noise that the receiver of the answers adds (`gnmax`) hides nothing from the receiver."
ONLY_A_BOUND = "Only a stated ε bounds what any attack can tell about a record."
