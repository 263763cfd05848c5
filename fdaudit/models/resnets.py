"""Residual networks for small images: ResNet-8, and torchvision's with a small stem."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.models.network import Network, group_norm

__all__ = ["Resnet8Params", "ResnetParams", "resnet8", "resnet_small"]

_Shape = tuple[int, ...]
_Norm = Literal["group", "batch"]


class Resnet8Params(Config):
    """ResNet-8."""

    norm: _Norm = "group"
    """group: GroupNorm, which training with DP demands; batch: BatchNorm."""

    width: int = Field(default=16, ge=8, le=1024)
    """Channels of the first stage; the second and third have twice and four times as many.

    With fewer than 8, oneDNN 3.12 (in PyTorch 2.14) writes outside its memory on processors without AVX-512.
    """


class ResnetParams(Config):
    """A torchvision ResNet with a stem for small images."""

    norm: _Norm = "group"
    """group: GroupNorm, which training with DP demands; batch: BatchNorm."""

    head: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = ()
    """Widths of fully connected layers, each with ReLU, between the extractor and the last layer."""


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int, norm: _Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False),
            _normalise(norm, outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
            _normalise(norm, outer),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inner != outer or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), _normalise(norm, outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet8(params: Resnet8Params, input_shape: _Shape, classes: int) -> Network:
    """Return the CIFAR ResNet of 6n + 2 layers with n = 1 (He 2016, §4.2), with projection shortcuts."""
    w = params.width
    extractor = nn.Sequential(
        nn.Conv2d(input_shape[0], w, 3, padding=1, bias=False),
        _normalise(params.norm, w),
        nn.ReLU(),
        _Block(w, w, 1, params.norm),
        _Block(w, 2 * w, 2, params.norm),
        _Block(2 * w, 4 * w, 2, params.norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Network(extractor, nn.Sequential(nn.Linear(4 * w, classes)))


def resnet_small(name: str, params: ResnetParams, input_shape: _Shape, classes: int) -> Network:
    """Return torchvision's `name` (resnet18, 34 or 50) with a 3x3 stride-1 stem and no max-pooling.

    The stem is the usual one for images of 32x32 (He 2016, §4.2). torchvision's own stem would reduce such images to
    one pixel. Weights are random, whereas Shao 2023 (Table 4) starts from ImageNet's.
    """
    from torchvision.models.resnet import ResNet

    from fdaudit.models.blocks import BLOCKS  # torchvision takes a second to import

    trunk = ResNet(*BLOCKS[name], norm_layer=lambda channels: _normalise(params.norm, channels))
    trunk.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(trunk.conv1.weight, mode="fan_out", nonlinearity="relu")
    trunk.maxpool = nn.Identity()
    inner = int(trunk.fc.in_features)
    trunk.fc = nn.Identity()
    for module in trunk.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    layers: list[nn.Module] = []
    for outer in params.head:
        layers += [nn.Linear(inner, outer), nn.ReLU()]
        inner = outer
    return Network(trunk, nn.Sequential(*layers, nn.Linear(inner, classes)))


def _normalise(norm: _Norm, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else group_norm(channels)
