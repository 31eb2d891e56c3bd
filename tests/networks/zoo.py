"""The zoo: every network's name, how it is built, its example input, and what is asked of it.

Nothing is downloaded: the weights are random, from a fixed seed.  The modules of the networks are imported when a
network is built, so that collecting the tests imports neither timm nor transformers.
"""

from __future__ import annotations

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
        positional: shapes of tensors given by position, standard normal; a tensor is given as it is.
        keywords: the same for tensors given by name; anything but a shape or a tensor is given as it is.
        random: which arguments are random values, by position or name; several are given the same one.
        variance: of the random argument, the same everywhere.
        output: what of the output is compared: None if it is one tensor, else an attribute or an index of it.
        noise: whether the network draws noise in evaluation mode, which has the mean 0 for AP1.
    """

    name: str
    source: str
    positional: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    random: tuple[int | str, ...] = (0,)
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
        arguments, keywords = self.place(torch.randn(BATCH, *self.mean().shape[1:]), *self.plain_inputs())
        with torch.no_grad():
            net.train()(*arguments, **keywords)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.running_var is not None:
                norm.running_var.clamp_(min=0.1 * float(norm.running_var.mean()))

    def plain_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a plain call; the same every time."""
        generator = torch.Generator().manual_seed(SEED + 1)

        def example(value: Any) -> Any:
            return torch.randn(value, generator=generator) if isinstance(value, tuple) else value

        arguments = [example(value) for value in self.positional]
        keywords = {name: example(value) for name, value in self.keywords.items()}
        first = self.random[0]
        shared = arguments[first] if isinstance(first, int) else keywords[first]
        return self.place(shared, tuple(arguments), keywords)

    def place(
        self, value: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with ``value`` in the place of the random ones."""
        placed, named = list(arguments), dict(keywords)
        for where in self.random:
            if isinstance(where, int):
                placed[where] = value
            else:
                named[where] = value
        return tuple(placed), named

    def mean(self) -> Tensor:
        """The random argument of the plain call."""
        arguments, keywords = self.plain_inputs()
        where = self.random[0]
        mean = arguments[where] if isinstance(where, int) else keywords[where]
        assert isinstance(mean, Tensor)
        return mean

    def call(self, net: Callable[..., Any], value: Any) -> Any:
        """The compared output of ``net`` with ``value``, a tensor or moments, as the random argument."""
        arguments, keywords = self.place(value, *self.plain_inputs())
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


def _image(size: int, channels: int = 3, batch: int = 2) -> tuple[tuple[int, ...], ...]:
    return ((batch, channels, size, size),)


_TOKENS = 12
_PADDED = torch.ones(2, _TOKENS, dtype=torch.long)
_PADDED[1, 9:] = 0


def _text(name: str, width: int = 32) -> Network:
    keywords = {"inputs_embeds": (2, _TOKENS, width), "attention_mask": _PADDED}
    output = "logits" if name.endswith(("lm", "classifier")) else "last_hidden_state"
    return Network(f"hf_{name}", f"zoo_huggingface:{name}", (), keywords, ("inputs_embeds",), output=output)


def _hf_image(name: str, size: int = 32) -> Network:
    keywords = {"pixel_values": _image(size)[0]}
    output = "logits" if name.endswith("classifier") else "last_hidden_state"
    return Network(f"hf_{name}", f"zoo_huggingface:{name}", (), keywords, ("pixel_values",), output=output)


def _timm(name: str, size: int = 32) -> Network:
    return Network(f"timm_{name}", f"zoo_timm:{name}", _image(size))


def _vision(name: str, size: int = 32, **more: Any) -> Network:
    return Network(name, f"zoo_vision:{name}", _image(size), **more)


def _other(name: str, *shapes: Any, **more: Any) -> Network:
    return Network(name, f"zoo_other:{name}", shapes, **more)


NETWORKS: tuple[Network, ...] = (
    _text("bert"),
    _text("bert_classifier"),
    _text("distilbert"),
    _text("gpt2_lm"),
    _text("llama_lm"),
    _hf_image("vit"),
    _hf_image("swin_classifier", 64),
    _hf_image("convnext_classifier"),
    _hf_image("resnet_classifier"),
    _timm("deit"),
    _timm("swin"),
    _timm("maxvit", 64),
    _timm("efficientnet", 64),
    _timm("mobilevit", 64),
    _timm("mobilevitv2", 64),
    _timm("nfnet"),
    _timm("resmlp"),
    _timm("skresnet18"),
    _timm("levit", 64),
    _timm("xcit", 64),
    _timm("efficientvit_b0"),
    _timm("efficientvit_m0", 64),
    _timm("coat", 64),
    _timm("coat_lite", 64),
    _timm("convmixer"),
    _vision("resnet50", 64),
    _vision("densenet"),
    _vision("googlenet", 64),
    _vision("mobilenet_v3"),
    _vision("efficientnet"),
    _vision("convnext"),
    _vision("unet", 36),
    _other("transformer_encoder_layer", (2, 6, 16)),
    _other("transformer_encoder_layer_norm_first", (2, 6, 16)),
    _other("multihead_attention", (2, 6, 16), None, None, random=(0, 1, 2), output=0),
    _other("lstm", (2, 7, 8), output=0),
    _other("bidirectional_lstm", (2, 7, 8), output=0),
    _other("gru", (2, 7, 8), output=0),
    _other("gru_cell", (4, 8), (4, 16)),
    _other("gru_classifier", (3, 9, 8)),
    _other("vae", (4, 1, 28, 28), output=0, noise=True),
    _other("siren", (32, 2), variance=1e-6),
    _other("tcn", (2, 4, 24)),
    _other("nano_gpt", (2, 8, 32)),
)
BY_NAME = {network.name: network for network in NETWORKS}
