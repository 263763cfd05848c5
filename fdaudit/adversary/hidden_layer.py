"""The layer before the one that answers: what its neurons receive, and where their outputs go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import UsageError
from fdaudit.models.network import call_with, last_layer

if TYPE_CHECKING:
    from fdaudit.models import Architecture

__all__ = ["HiddenLayer", "hidden_layer"]

_RECORDS = 2
"""Blank records on which a network is tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenLayer:
    """A fully connected or convolutional layer whose outputs a ReLU passes on to the answering layer.

    Attributes:
        module: the network, in evaluation.
        weight: name of its weight (m, ...) of m neurons, or channels.
        bias: name of its bias (m,).
        answers: name of the answering layer's weight (C, k).
        answers_bias: name of that layer's bias (C,).
        neuron: (k,) the neuron that each input of the answering layer comes from.
    """

    module: nn.Module
    weight: str
    bias: str
    answers: str
    answers_bias: str
    neuron: Tensor

    @property
    def tensors(self) -> frozenset[str]:
        """Return the names of the tensors of both layers."""
        return frozenset({self.weight, self.bias, self.answers, self.answers_bias})

    @property
    def neurons(self) -> int:
        """Return the number m of neurons."""
        return int(self.neuron.max()) + 1

    def inputs(self, model: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return what a neuron's weights are multiplied with (n, p, d) for records (n, ...), float64.

        A fully connected layer has p = 1. A convolution sees p patches of a record.
        """
        layer = _owner(self.module, self.weight)
        received = _passed(self.module, layer, model, x).received
        if isinstance(layer, nn.Conv2d):
            padding = layer.padding if isinstance(layer.padding, tuple) else 0
            received = F.unfold(received, layer.kernel_size, layer.dilation, padding, layer.stride).mT
        return received.reshape(len(x), -1, received.shape[-1]).double()

    def outputs(self, model: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return each neuron's output (n, m) for records (n, ...) before the ReLU, the largest over patches."""
        outputs = _passed(self.module, _owner(self.module, self.weight), model, x).returned
        return outputs.reshape(len(x), self.neurons, -1).amax(2)


def hidden_layer(architecture: Architecture) -> HiddenLayer | str:
    """Return the layer before the one that answers, or what a network lacks.

    Pooling, dropout and flattening may follow the ReLU. With weights of zero, each input of the answering layer must be
    zero if biases are negative, and one neuron's bias if they are positive.
    """
    module = architecture.build(torch.Generator().manual_seed(0)).eval()
    blank = architecture.blank_inputs(_RECORDS)
    try:
        answers, answers_bias = last_layer(module, blank)
    except UsageError:
        answers, answers_bias = "", None
    if answers_bias is None:
        return "does not end in a fully connected layer with a bias"
    owners: list[str] = []
    for name, part in module.named_modules():
        if list(part.parameters(recurse=False)):
            owners.append(name)
    before = owners[: owners.index(answers.rpartition(".")[0])]
    layer = module.get_submodule(before[-1]) if before else None
    if not _is_linear(layer):
        return "has no fully connected or convolutional layer with a bias before the one that answers"
    weight, bias = f"{before[-1]}.weight", f"{before[-1]}.bias"
    neurons = len(module.get_parameter(bias))

    def reached(biases: Tensor) -> Tensor:
        model = {weight: torch.zeros_like(module.get_parameter(weight)), bias: biases}
        return _passed(module, _owner(module, answers), model, blank).received

    silent, biases = reached(-torch.ones(neurons)), reached(torch.arange(1.0, neurons + 1))
    neuron = biases[0].round().long() - 1
    if silent.any() or not torch.equal(biases, (neuron + 1.0).expand_as(biases)):
        return "has no ReLU alone between its last two layers"
    if not torch.equal(neuron.unique(), torch.arange(neurons)):
        return "has neurons in its last hidden layer that do not reach the answers"
    return HiddenLayer(
        module=module, weight=weight, bias=bias, answers=answers, answers_bias=answers_bias, neuron=neuron
    )


def _is_linear(layer: nn.Module | None) -> bool:
    """Return whether trained weights of a layer multiply what it receives, or patches of it, and a bias is added."""
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and isinstance(layer.padding, tuple)
    else:
        plain = isinstance(layer, nn.Linear)
    return (
        plain
        and layer is not None
        and all(p.requires_grad for p in layer.parameters())
        and layer.bias is not None
    )


def _owner(module: nn.Module, tensor: str) -> nn.Module:
    return module.get_submodule(tensor.rpartition(".")[0])


class _Passed(NamedTuple):
    """What a layer received and returned."""

    received: Tensor
    returned: Tensor


def _passed(module: nn.Module, layer: nn.Module, model: Mapping[str, Tensor], x: Tensor) -> _Passed:
    """Return what a layer receives and returns for records (n, ...) under a model."""
    passed: list[_Passed] = []
    hook = layer.register_forward_hook(lambda _, given, output: passed.append(_Passed(given[0], output)))
    try:
        with torch.no_grad():
            call_with(module, model, x)
    finally:
        hook.remove()
    return passed[0]
