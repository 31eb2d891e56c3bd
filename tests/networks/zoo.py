"""The zoo: every network's name, how it is built, its example input, and what is asked of it.

Nothing is downloaded: the weights are random, from a fixed seed.  The modules of the networks are imported when a
network is built, so that collecting the tests imports neither timm nor transformers.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["BY_NAME", "NETWORKS", "Network", "randomise"]

SEED = 0
#: constant parameters are spread by this much.
SPREAD = 0.1
#: samples that batch norms take their running statistics of.
BATCH = 32


@dataclass(frozen=True)
class Network:
    """One network of the zoo.

    Args:
        name: unique, of letters, digits and underscores.
        source: the module beside this one, and its function that makes the network, as ``module:function``.
        shape: of the random argument, whose mean is standard normal.
        random: the name by which it is given; the only argument where that is empty.
        certain: other arguments by name.
        variance: of the random argument, the same everywhere.
        output: what of the output is compared: None if it is one tensor, else an attribute or an index of it.
        noise: whether the network draws noise in evaluation mode, which has the mean 0 for AP1.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    random: str = ""
    certain: Mapping[str, Tensor] = field(default_factory=dict)
    variance: float = 1e-4
    output: str | int | None = None
    noise: bool = False

    def build(self) -> nn.Module:
        """The network, in evaluation mode; the same weights every time, whatever was drawn before."""
        module, _, function = self.source.partition(":")
        make = getattr(importlib.import_module(f"networks.{module}"), function)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            net = randomise(make())
            self.settle(net)
            return net.eval()

    def settle(self, net: nn.Module) -> None:
        """Set the running statistics of batch norms to those of one random batch.

        With those of a fresh network, mean 0 and variance 1, the input would hardly reach the output.  Channels
        that hardly vary are not blown up.
        """
        norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        arguments, keywords = self.place(torch.randn(BATCH, *self.shape[1:]))
        with torch.no_grad():
            net.train()(*arguments, **keywords)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.running_var is not None:
                norm.running_var.clamp_(min=0.1 * float(norm.running_var.mean()))

    def plain_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a plain call; the same every time."""
        return self.place(self.mean())

    def place(self, value: Any, *_: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with ``value`` as the random one, whatever the others were."""
        return ((), {**self.certain, self.random: value}) if self.random else ((value,), {})

    def mean(self) -> Tensor:
        """The random argument of the plain call."""
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(SEED + 1))

    def call(self, net: Callable[..., Any], value: Any) -> Any:
        """The compared output of ``net`` with ``value``, a tensor or moments, as the random argument."""
        arguments, keywords = self.place(value)
        return self.pick(net(*arguments, **keywords))

    def pick(self, output: Any) -> Any:
        """What of the output is compared."""
        if self.output is None:
            return output
        return output[self.output] if isinstance(self.output, int) else getattr(output, self.output)


def randomise(net: nn.Module) -> nn.Module:
    """Spread what libraries initialise to a constant, in place.

    Gains of 0 or 1e-6 would hide whole branches.
    """
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.is_floating_point() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(SPREAD * torch.randn_like(parameter))
    return net


_TOKENS = 12
_PADDED = torch.ones(2, _TOKENS, dtype=torch.long)
_PADDED[1, 9:] = 0


def _image(name: str, size: int = 32, **more: Any) -> Network:
    of = name.partition("_")[0]
    source = f"zoo_timm:{name[5:]}" if of == "timm" else f"zoo_vision:{name}"
    return Network(name, source, (2, 3, size, size), **more)


def _text(name: str) -> Network:
    output = "logits" if name.endswith(("lm", "classifier")) else "last_hidden_state"
    certain = {"attention_mask": _PADDED}
    return Network(f"hf_{name}", f"zoo_huggingface:{name}", (2, _TOKENS, 32), "inputs_embeds", certain, output=output)


def _hf_image(name: str, size: int = 32) -> Network:
    output = "logits" if name.endswith("classifier") else "last_hidden_state"
    return Network(f"hf_{name}", f"zoo_huggingface:{name}", (2, 3, size, size), "pixel_values", output=output)


def _other(name: str, *shape: int, **more: Any) -> Network:
    return Network(name, f"zoo_other:{name}", shape, **more)


NETWORKS: tuple[Network, ...] = (
    *map(_text, ("bert", "bert_classifier", "distilbert", "gpt2_lm", "llama_lm")),
    _hf_image("vit"),
    _hf_image("swin_classifier", 64),
    _hf_image("convnext_classifier"),
    _hf_image("resnet_classifier"),
    _image("timm_deit"),
    _image("timm_swin"),
    _image("timm_maxvit", 64),
    _image("timm_efficientnet", 64),
    _image("timm_mobilevit", 64),
    _image("timm_mobilevitv2", 64),
    _image("timm_nfnet"),
    _image("timm_resmlp"),
    _image("timm_skresnet18"),
    _image("timm_levit", 64),
    _image("timm_xcit", 64),
    _image("timm_efficientvit_b0"),
    _image("timm_efficientvit_m0", 64),
    _image("timm_coat", 64),
    _image("timm_coat_lite", 64),
    _image("timm_convmixer"),
    _image("resnet50", 64),
    _image("densenet"),
    _image("googlenet", 64),
    _image("mobilenet_v3"),
    _image("efficientnet"),
    _image("convnext"),
    _other("vae", 4, 1, 28, 28, output=0, noise=True),
    _other("siren", 32, 2, variance=1e-6),
    _other("nano_gpt", 2, 8, 32),
)
BY_NAME = {network.name: network for network in NETWORKS}
