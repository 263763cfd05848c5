"""The network in the mode in which a client computes gradients, as far as an adversary can repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fdaudit.errors import FdauditError
from fdaudit.models.network import call_with
from fdaudit.training.replicas import rehearsed, silence_draws
from fdaudit.training.trials.double_backward import double_backward_problem

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

    from .uploads import Upload

__all__ = ["invertible_network", "lone_record", "network", "separable_network"]

_RECORDS = 4
"""Random records of a trial pass."""


def network(knowledge: Knowledge) -> nn.Module | str:
    """Return the network whose gradients are inverted, or the reason why it is not known or not suitable.

    It is in training, as at a client: BatchNorm and every other layer that behaves differently then computes what the
    client's did. Layers that draw random numbers, such as dropout, are in evaluation, because their draws are unknown.
    """
    if knowledge.architecture is None:
        return "the architecture of the model is not known"
    # Its weights are replaced by the model in view: the generator only fills the mould.
    module = knowledge.architecture.build(torch.Generator().manual_seed(0)).train()
    try:
        behavior = rehearsed(knowledge.architecture)
    except FdauditError as error:
        return str(error)
    if behavior.random:
        silence_draws(
            module, knowledge.architecture.random_inputs(_RECORDS, torch.Generator().manual_seed(0))
        )
    return module


def invertible_network(knowledge: Knowledge) -> nn.Module | str:
    """Return the network for an attack that differentiates gradients in images, or why there is none."""
    module = network(knowledge)
    if isinstance(module, str) or knowledge.architecture is None:
        return module
    return double_backward_problem(knowledge.architecture) or module


def lone_record(knowledge: Knowledge, upload: Upload) -> str:
    """Return why no pass can repeat a step of an upload on one record; empty if it can, or if no step has one."""
    if knowledge.architecture is None or min(map(len, upload.training.batches)) > 1:
        return ""
    if rehearsed(knowledge.architecture).single:
        return ""
    return (
        "its upload has a step on one record, on which this network cannot be trained; the card may be wrong"
    )


def separable_network(knowledge: Knowledge) -> nn.Module | str:
    """Return the network in evaluation for an attack that adds up gradients of single records, or why there is none."""
    if knowledge.architecture is None:
        return "the architecture of the model is not known"
    module = network(knowledge)
    if isinstance(module, str):
        return module
    x = knowledge.architecture.random_inputs(_RECORDS, torch.Generator().manual_seed(0))
    if _mixes(module, x):
        return "the model mixes the records of a batch, as BatchNorm does, so no record has a gradient of its own"
    return module.eval()


def _mixes(module: nn.Module, x: Tensor) -> bool:
    """Return whether the answers to some records depend on the other records of their batch."""
    half = len(x) // 2
    try:
        with torch.no_grad():
            together, alone = call_with(module, {}, x)[:half], call_with(module, {}, x[:half])
    except Exception:  # of foreign code
        return True
    return not torch.allclose(together, alone, rtol=1e-3, atol=1e-4)
