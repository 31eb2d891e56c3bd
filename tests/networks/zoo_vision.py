"""Networks of torchvision, narrow and shallow where it lets them be, and a U-Net as it is commonly written."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks.third_party import allow_torchvision

allow_torchvision()

from torchvision.models.convnext import CNBlockConfig, ConvNeXt  # noqa: E402
from torchvision.models.densenet import DenseNet  # noqa: E402
from torchvision.models.efficientnet import EfficientNet, MBConvConfig  # noqa: E402
from torchvision.models.googlenet import GoogLeNet  # noqa: E402
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3  # noqa: E402
from torchvision.models.resnet import Bottleneck, ResNet  # noqa: E402

resnet50 = partial(ResNet, Bottleneck, [1, 2, 1, 1], num_classes=10, width_per_group=8)
densenet = partial(DenseNet, growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16, bn_size=2, num_classes=10)
googlenet = partial(GoogLeNet, num_classes=10, transform_input=True, init_weights=False)
_RESIDUALS = [
    InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
    InvertedResidualConfig(16, 3, 48, 24, False, "RE", 1, 1, 1.0),
    InvertedResidualConfig(24, 5, 72, 24, True, "HS", 1, 1, 1.0),
]
mobilenet_v3 = partial(MobileNetV3, _RESIDUALS, last_channel=64, num_classes=10)
_BLOCKS = [MBConvConfig(1, 3, 1, 16, 16, 1), MBConvConfig(6, 3, 2, 16, 24, 2), MBConvConfig(6, 5, 1, 24, 32, 2)]
efficientnet = partial(EfficientNet, _BLOCKS, dropout=0.2, num_classes=10, last_channel=64)
convnext = partial(
    ConvNeXt, [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 1)], num_classes=10
)


class DoubleConv(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, mid_channels: int | None = None) -> None:
        super().__init__()
        if not mid_channels:
            mid_channels = out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bilinear: bool = True) -> None:
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        x1 = self.up(x1)
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        x = torch.cat([x2, x1], dim=1)
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, n_channels: int = 3, n_classes: int = 2, width: int = 8) -> None:
        super().__init__()
        self.inc = DoubleConv(n_channels, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 4 * width))
        self.down3 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(4 * width, 4 * width))
        self.up1 = Up(8 * width, 2 * width)
        self.up2 = Up(4 * width, 2 * width)
        self.up3 = Up(2 * width, width, bilinear=False)
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(x4, x3)
        x = self.up2(x, x2)
        x = self.up3(x, x1)
        return self.outc(x)


unet = UNet
