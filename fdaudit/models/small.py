"""Small networks: the CNNs and MLPs of Selective-FD's tables, DLG's LeNet, a strided CNN."""

from __future__ import annotations

import math
import operator
from typing import Annotated

from pydantic import Field
from torch import nn

from fdaudit.config import Config
from fdaudit.models.network import Network, feature_width

__all__ = [
    "CNNS",
    "MLPS",
    "MlpParams",
    "NoParams",
    "StridedParams",
    "lenet_dlg",
    "mlp",
    "pooled_cnn",
    "strided_cnn",
]

_Shape = tuple[int, ...]
_Width = Annotated[int, Field(ge=1, le=65536)]

CNNS: dict[str, tuple[tuple[int, int], tuple[int, int], int]] = {
    "cnn-5-5": ((5, 0), (5, 0), 50),
    "cnn-3-3": ((3, 1), (3, 1), 128),
    "cnn-5-3": ((5, 0), (3, 1), 64),
}
"""By name: (kernel, padding) of the first and second convolution, width of the fully connected layer."""

MLPS: dict[str, tuple[int, ...]] = {"mlp-1024-512-256": (1024, 512, 256), "mlp-1024-1024": (1024, 1024)}
"""By name: the hidden widths."""


class NoParams(Config):
    """No parameters: the network has a fixed design."""


class MlpParams(Config):
    """A multilayer perceptron."""

    widths: tuple[_Width, ...] = Field((128,), max_length=64)
    """Hidden widths in order; none makes it logistic regression."""

    # Left out where it is off, so that networks keep the descriptions that they had before it.
    standardize: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the network scales each sample to mean 0 and variance 1 first. It helps training under noise."""


class StridedParams(Config):
    """A CNN that downsamples by stride."""

    channels: tuple[_Width, ...] = Field(default=(16, 32), min_length=1)
    """Output channels of each convolution; all but the first have stride 2."""

    kernel: int = Field(default=5, ge=1, le=11)
    """Kernel side; padding is half of it, rounded down."""


def pooled_cnn(name: str, input_shape: _Shape, classes: int) -> Network:
    """Conv(10)-MaxPool(2)-ReLU-Conv(20)-MaxPool(2)-ReLU-Linear-ReLU-Linear (Shao 2023, Tables 2 and 3).

    The tables put ReLU before the pooling, the authors' public code after it. Both are the same function with the same
    gradients; after the pooling ReLU needs a quarter of the work.

    `cnn-5-5` is Conv(10, 5, 0), Conv(20, 5, 0), Linear(50); `cnn-3-3` is Conv(10, 3, 1), Conv(20, 3, 1),
    Linear(128); `cnn-5-3` is Conv(10, 5, 0), Conv(20, 3, 1), Linear(64), where Conv(o, k, p) has o output
    channels, kernel k and padding p.
    """
    (kernel_1, padding_1), (kernel_2, padding_2), width = CNNS[name]
    extractor = nn.Sequential(
        nn.Conv2d(input_shape[0], 10, kernel_1, padding=padding_1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_2, padding=padding_2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    inner = feature_width(extractor, input_shape)
    head = nn.Sequential(nn.Linear(inner, width), nn.ReLU(), nn.Linear(width, classes))
    return Network(extractor, head)


def mlp(params: MlpParams, input_shape: _Shape, classes: int) -> Network:
    """Flatten, then Linear-ReLU for each of the widths, then Linear to the classes."""
    layers: list[nn.Module] = [nn.Flatten()]
    inner = math.prod(input_shape)
    if params.standardize:
        layers.append(nn.LayerNorm(inner, elementwise_affine=False))
    for outer in params.widths:
        layers += [nn.Linear(inner, outer), nn.ReLU()]
        inner = outer
    return Network(nn.Sequential(*layers), nn.Sequential(nn.Linear(inner, classes)))


def lenet_dlg(input_shape: _Shape, classes: int) -> Network:
    """Return the LeNet of Deep Leakage from Gradients (Zhu 2019): sigmoids, strides in place of pooling.

    Three 5x5 convolutions of 12 channels with padding 2 and strides 2, 2, 1, then one fully connected layer.
    Weights and biases start uniform in [-0.5, 0.5] as in the authors' code: PyTorch's own, smaller
    initial weights leave the sigmoids near their linear middle, where second derivatives vanish and
    matching gradients says little about the image.
    """
    channels = input_shape[0]
    layers: list[nn.Module] = []
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, 12, 5, stride, padding=2), nn.Sigmoid()]
        channels = 12
    extractor = nn.Sequential(*layers, nn.Flatten())
    inner = feature_width(extractor, input_shape)
    network = Network(extractor, nn.Sequential(nn.Linear(inner, classes)))
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return network


def strided_cnn(params: StridedParams, input_shape: _Shape, classes: int) -> Network:
    """Convolutions with ReLU, downsampling by stride 2 in all but the first, then one fully connected layer.

    Without pooling every pixel contributes to the gradient. This network is therefore the target on which gradient
    inversion has to succeed.
    """
    layers: list[nn.Module] = []
    inner = input_shape[0]
    for i, outer in enumerate(params.channels):
        stride = 1 if i == 0 else 2
        layers += [nn.Conv2d(inner, outer, params.kernel, stride, padding=params.kernel // 2), nn.ReLU()]
        inner = outer
    extractor = nn.Sequential(*layers, nn.Flatten())
    inner = feature_width(extractor, input_shape)
    return Network(extractor, nn.Sequential(nn.Linear(inner, classes)))
