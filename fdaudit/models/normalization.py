"""Normalisation of images before a network, as the clients of another system do it; the layer that receives them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fdaudit.models.network import Network, inputs_of

__all__ = ["Normalization", "first_linear", "normalization_of", "normalized"]


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """Maps images in [0, 1] to the inputs of a network: (x - mean) / std, as torchvision's `Normalize` does.

    Attributes:
        mean: one for all channels, or one for each.
        std: likewise; positive.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(
        cls,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        span: tuple[float, float] = (0.0, 1.0),
    ) -> Normalization:
        """Return the map of images in [0, 1] to a range of values, normalised there.

        Args:
            mean: in units of the range; one for all channels, or one for each.
            std: likewise.
            span: the lowest and the highest value before normalisation.
        """
        low, high = span
        width = high - low
        return cls(mean=tuple((m - low) / width for m in mean), std=tuple(s / width for s in std))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the network's inputs for images x (..., c, h, w)."""
        return (x - _by_channel(self.mean, x)) / _by_channel(self.std, x)

    def undone(self, inputs: Tensor) -> Tensor:
        """Return the images behind a network's inputs (..., c, h, w)."""
        return inputs * _by_channel(self.std, inputs) + _by_channel(self.mean, inputs)


def _by_channel(values: tuple[float, ...], x: Tensor) -> Tensor:
    return torch.tensor(values)[:, None, None].to(x)


class _BeforeForward:
    """Normalises a module's input; a forward pre-hook, which adds no tensor and no name to the module."""

    def __init__(self, normalization: Normalization) -> None:
        self.normalization = normalization

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self.normalization(inputs[0]), *inputs[1:])


def normalized(module: nn.Module, normalization: Normalization) -> nn.Module:
    """Make a network take images in [0, 1], which it normalises itself.

    Its tensors and their names stay as they are. A `Network` normalises before its extractor: others use its features.

    Args:
        module: the network; changed in place.
        normalization: of its inputs.

    Returns:
        The same module.
    """
    first = module
    if isinstance(module, Network) and type(module).forward is Network.forward:
        first = module.extractor
    first.register_forward_pre_hook(_BeforeForward(normalization))
    return module


def normalization_of(module: nn.Module) -> Normalization | None:
    """Return how a network normalises images before its layers, or None if it takes them as they are."""
    for layer in module.modules():
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, _BeforeForward):
                return hook.normalization
    return None


def first_linear(module: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the name of the linear layer with a bias that receives the flattened image, if the network starts so.

    The image may be normalised as `fdaudit.models.normalization` does it.

    Args:
        module: the network.
        shape: (c, h, w) of an image.
    """
    modules = dict(module.named_modules())
    for name in modules:
        if list(modules[name].parameters(recurse=False)):
            break
    else:
        return None
    layer = modules[name]
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        return None
    if not (layer.weight.requires_grad and layer.bias.requires_grad):
        return None
    # Check its actual input for an image with distinct values: nothing may scale or reorder it.
    probe = torch.linspace(0, 1, math.prod(shape)).view(1, *shape)
    normalization = normalization_of(module)
    expected = probe if normalization is None else normalization(probe)
    in_training = [m for m in module.modules() if m.training]
    try:
        with torch.no_grad(), inputs_of(layer) as inputs:
            module.eval()(probe)  # of one image, which BatchNorm may refuse in training
    finally:
        for m in in_training:
            m.training = True
    reaches_layer = bool(inputs) and torch.equal(inputs[0], expected.flatten(1))
    return name if reaches_layer else None
