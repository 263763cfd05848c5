"""Networks that nobody here wrote, from torchvision and timm, for colour images of 32x32 pixels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models as vision
from torchvision.models import densenet, vision_transformer

__all__ = ["NAMES", "SIDE", "UNet"]

SIDE = 32
NAMES = (
    "resnet18", "resnet50_block", "mobilenet", "efficientnet", "densenet121", "vit", "vit_timm", "convnext",
    "convnext_timm", "squeezenet", "vgg", "UNet", "regnet", "shufflenet", "googlenet", "mixer_timm",
)  # fmt: skip
"""Functions and classes of this module, as `import:_outside:NAME` names them."""


def resnet18(num_classes: int) -> nn.Module:
    """Return torchvision's ResNet-18."""
    return vision.resnet18(num_classes=num_classes)


def resnet50_block(num_classes: int) -> nn.Module:
    """Return ResNet-50's stem and first bottleneck block."""
    whole = vision.resnet50()
    layers = [whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1[0], whole.avgpool, nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(256, num_classes))


def mobilenet(num_classes: int) -> nn.Module:
    """Return torchvision's MobileNetV3-small."""
    return vision.mobilenet_v3_small(num_classes=num_classes)


def efficientnet(num_classes: int) -> nn.Module:
    """Return torchvision's EfficientNet-B0."""
    return vision.efficientnet_b0(num_classes=num_classes)


def densenet121(num_classes: int) -> nn.Module:
    """Return DenseNet with two layers in each of its four blocks, and a growth rate of 8."""
    return densenet.DenseNet(8, (2, 2, 2, 2), 16, num_classes=num_classes)


def vit(num_classes: int) -> nn.Module:
    """Return torchvision's VisionTransformer at the size of ViT-tiny, with patches of 4 pixels."""
    return vision_transformer.VisionTransformer(SIDE, 4, 12, 3, 192, 768, num_classes=num_classes)


def vit_timm(num_classes: int) -> nn.Module:
    """Return timm's ViT-tiny, with patches of 4 pixels."""
    return _timm("vit_tiny_patch16_224", num_classes, img_size=SIDE, patch_size=4)


def convnext(num_classes: int) -> nn.Module:
    """Return torchvision's ConvNeXt-tiny."""
    return vision.convnext_tiny(num_classes=num_classes)


def convnext_timm(num_classes: int) -> nn.Module:
    """Return timm's ConvNeXt-atto."""
    return _timm("convnext_atto", num_classes)


def squeezenet(num_classes: int) -> nn.Module:
    """Return torchvision's SqueezeNet 1.1."""
    return vision.squeezenet1_1(num_classes=num_classes)


def vgg(num_classes: int) -> nn.Module:
    """Return torchvision's VGG-11 with BatchNorm; one linear layer stands for three, which fit images of 224 pixels."""
    return nn.Sequential(vision.vgg11_bn().features, nn.Flatten(), nn.Linear(512, num_classes))


def regnet(num_classes: int) -> nn.Module:
    """Return torchvision's RegNetY-400MF."""
    return vision.regnet_y_400mf(num_classes=num_classes)


def shufflenet(num_classes: int) -> nn.Module:
    """Return torchvision's ShuffleNetV2 at half its width."""
    return vision.shufflenet_v2_x0_5(num_classes=num_classes)


def googlenet(num_classes: int) -> nn.Module:
    """Return torchvision's GoogLeNet, whose answers in training are a named tuple with two auxiliary heads."""
    return vision.googlenet(num_classes=num_classes, init_weights=False)


def mixer_timm(num_classes: int) -> nn.Module:
    """Return timm's MLP-Mixer, at the size of Mixer-S, with patches of 4 pixels."""
    from timm.models.mlp_mixer import MlpMixer

    mixer = MlpMixer(num_classes, SIDE, patch_size=4, num_blocks=8, embed_dim=512)
    assert isinstance(mixer, nn.Module)
    return mixer


def _timm(name: str, classes: int, **settings: Any) -> nn.Module:
    import timm

    made = timm.create_model(name, num_classes=classes, **settings)
    assert isinstance(made, nn.Module)
    return made


class UNet(nn.Module):
    """Ronneberger et al. (2015) with BatchNorm and two steps down; its answers are means over pixels.

    Args:
        num_classes: number of classes.
        width: channels of the first block.
    """

    def __init__(self, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            _block(3, width),
            _block(width, 2 * width),
            _block(2 * width, 4 * width),
        )
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.left_second, self.left_first = _block(4 * width, 2 * width), _block(2 * width, width)
        self.out = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes)."""
        first = self.first(x)
        second = self.second(nn.functional.max_pool2d(first, 2))
        third = self.third(nn.functional.max_pool2d(second, 2))
        second = self.left_second(torch.cat([second, self.up_second(third)], 1))
        first = self.left_first(torch.cat([first, self.up_first(second)], 1))
        answers: Tensor = self.out(first)
        return answers.mean((2, 3))


def _block(inside: int, outside: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (inside, outside):
        layers += [nn.Conv2d(channels, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
