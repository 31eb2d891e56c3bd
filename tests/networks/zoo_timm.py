"""Networks of timm, narrow and shallow."""

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


deit = partial(create, "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)
swin = partial(
    create, "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)
)
maxvit = partial(create, "maxvit_tiny_tf_224", img_size=64, embed_dim=(32, 64), depths=(1, 2), stem_width=16)
efficientnet = partial(create, "efficientnet_b0")
mobilevit = partial(create, "mobilevit_xxs")
mobilevitv2 = partial(create, "mobilevitv2_050")
nfnet = partial(create, "dm_nfnet_f0", channels=(32, 32, 64, 64), depths=(1, 2, 1, 1), group_size=16)
resmlp = partial(
    MlpMixer,
    num_classes=10,
    img_size=32,
    patch_size=8,
    num_blocks=3,
    embed_dim=32,
    mlp_ratio=4,
    block_layer=partial(ResBlock, init_values=1e-4),
    norm_layer=Affine,
)
skresnet18 = partial(create, "skresnet18")
levit = partial(
    create, "levit_128s", img_size=64, embed_dim=(32, 48, 64), key_dim=8, num_heads=(2, 3, 4), depth=(1, 1, 2)
)
xcit = partial(create, "xcit_nano_12_p16_224", img_size=64, embed_dim=32, depth=2, num_heads=4)
efficientvit_b0 = partial(create, "efficientvit_b0")
efficientvit_m0 = partial(create, "efficientvit_m0", img_size=64)
coat = partial(
    create,
    "coat_tiny",
    img_size=64,
    embed_dims=(16, 32, 32, 32),
    serial_depths=(1, 1, 1, 1),
    parallel_depth=1,
    num_heads=8,
)
coat_lite = partial(
    create, "coat_lite_tiny", img_size=64, embed_dims=(16, 24, 32, 48), serial_depths=(1, 1, 1, 1), num_heads=8
)
convmixer = partial(ConvMixer, dim=32, depth=3, kernel_size=7, patch_size=7, act_layer=nn.ReLU, num_classes=10)
