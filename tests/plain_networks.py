"""Networks written as anyone would in plain torch, for the tests of conversion."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18, the layout and names of torchvision's; narrower by ``width``."""

    def __init__(self, num_classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.inplanes = width
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(width, 2, 1)
        self.layer2 = self._make_layer(2 * width, 2, 2)
        self.layer3 = self._make_layer(4 * width, 2, 2)
        self.layer4 = self._make_layer(8 * width, 2, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, num_classes)

    def _make_layer(self, planes: int, blocks: int, stride: int) -> nn.Sequential:
        downsample = None
        if stride != 1 or self.inplanes != planes:
            downsample = nn.Sequential(
                nn.Conv2d(self.inplanes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )
        layers = [BasicBlock(self.inplanes, planes, stride, downsample)]
        self.inplanes = planes
        layers.extend(BasicBlock(planes, planes) for _ in range(1, blocks))
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


class Functional(nn.Module):
    """Functional calls, concatenation, a residual, a functional dropout, a reshape by sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x), 0.1)
        y = F.relu(self.norm(self.second(x)), inplace=True)
        y = y * self.scale + x / 2 - 0.25
        y = F.dropout(y, 0.3, self.training)
        x = torch.cat([F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)], dim=1)
        x = F.adaptive_avg_pool2d(x, (2, 2))
        x = x.view(x.size(0), -1)
        return self.head(torch.sigmoid(x).mul(2).sub(x.shape[1] * 0.01))
