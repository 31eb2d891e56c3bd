"""Networks of timm, narrow and shallow."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from networks.third_party import allow_torchvision

allow_torchvision()

import timm  # noqa: E402
from timm.models.convmixer import ConvMixer  # noqa: E402
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock  # noqa: E402


def create(name: str, **changes: Any) -> nn.Module:
    return timm.create_model(name, pretrained=False, num_classes=10, **changes)


def deit() -> nn.Module:
    return create("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)


def swin() -> nn.Module:
    return create(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)
    )


def maxvit() -> nn.Module:
    return create("maxvit_tiny_tf_224", img_size=64, embed_dim=(32, 64), depths=(1, 2), stem_width=16)


def efficientnet() -> nn.Module:
    return create("efficientnet_b0")


def mobilevit() -> nn.Module:
    return create("mobilevit_xxs")


def mobilevitv2() -> nn.Module:
    return create("mobilevitv2_050")


def nfnet() -> nn.Module:
    return create("dm_nfnet_f0", channels=(32, 32, 64, 64), depths=(1, 2, 1, 1), group_size=16)


def resmlp() -> nn.Module:
    return MlpMixer(
        num_classes=10,
        img_size=32,
        patch_size=8,
        num_blocks=3,
        embed_dim=32,
        mlp_ratio=4,
        block_layer=partial(ResBlock, init_values=1e-4),
        norm_layer=Affine,
    )


def skresnet18() -> nn.Module:
    return create("skresnet18")


def levit() -> nn.Module:
    return create("levit_128s", img_size=64, embed_dim=(32, 48, 64), key_dim=8, num_heads=(2, 3, 4), depth=(1, 1, 2))


def xcit() -> nn.Module:
    return create("xcit_nano_12_p16_224", img_size=64, embed_dim=32, depth=2, num_heads=4)


def efficientvit_b0() -> nn.Module:
    return create("efficientvit_b0")


def efficientvit_m0() -> nn.Module:
    return create("efficientvit_m0", img_size=64)


def coat() -> nn.Module:
    return create(
        "coat_tiny", img_size=64, embed_dims=(16, 32, 32, 32), serial_depths=(1, 1, 1, 1), parallel_depth=1, num_heads=8
    )


def coat_lite() -> nn.Module:
    return create("coat_lite_tiny", img_size=64, embed_dims=(16, 24, 32, 48), serial_depths=(1, 1, 1, 1), num_heads=8)


def convmixer() -> nn.Module:
    return ConvMixer(dim=32, depth=3, kernel_size=7, patch_size=7, act_layer=nn.ReLU, num_classes=10)
