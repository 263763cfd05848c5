"""torchvision's residual blocks without in-place sums, which per-sample gradients do not allow."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor
from torchvision.models.resnet import BasicBlock, Bottleneck

__all__ = ["BLOCKS", "Basic", "Deep"]


class Basic(BasicBlock):  # type: ignore[misc]  # torchvision has no types
    """Two 3x3 convolutions with a shortcut; bit for bit the same results as torchvision's block."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, c, h, w) to (n, c', h', w')."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        shortcut = x if self.downsample is None else self.downsample(x)
        maps: Tensor = self.relu(out + shortcut)
        return maps


class Deep(Bottleneck):  # type: ignore[misc]
    """A 3x3 convolution between two of 1x1, with a shortcut; bit for bit the same results as torchvision's block."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, c, h, w) to (n, c', h', w')."""
        out = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        maps: Tensor = self.relu(out + shortcut)
        return maps


BLOCKS: Mapping[str, tuple[type[BasicBlock | Bottleneck], list[int]]] = MappingProxyType(
    {
        "resnet18": (Basic, [2, 2, 2, 2]),
        "resnet34": (Basic, [3, 4, 6, 3]),
        "resnet50": (Deep, [3, 4, 6, 3]),
    }
)
"""Block and number of blocks a stage (He 2016, Table 1)."""
