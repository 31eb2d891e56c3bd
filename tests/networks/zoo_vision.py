"""Networks of torchvision, narrow and shallow where it lets them be."""

from functools import partial

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
