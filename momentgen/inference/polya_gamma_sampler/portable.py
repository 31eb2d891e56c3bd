"""The sampler in PyTorch: any device with float64, the same draws as the compiled C up to rounding.

What is rejected is drawn again in ever smaller tensors.  On the CPU it runs in slices that stay in the caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from momentgen.inference.polya_gamma_sampler.envelope import ENVELOPE as ENV

__all__ = ["philox", "portable_draws"]

#: smaller than torch's grain, so that few operations wait for other threads; indexing by masks would each time.
_SLICE = (1 << 15) - 1
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox 4x32-10 of Salmon et al. (2011): four words for each counter.

    Args:
        counter: four int64 tensors that broadcast, each with values below 2^32.
        key: an int64 tensor; the low 32 bits are the first word of the key.

    Returns:
        Four int64 tensors with values below 2^32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    for _ in range(10):
        # int64 wraps around, so that the product's 64 bits are right; its sign bit must not be drawn along.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _LOW) ^ c1 ^ k0, b & _LOW
        c2, c3 = ((a >> 32) & _LOW) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def portable_draws(z: Tensor, counts: Tensor | None, draws: int, key: Tensor) -> Tensor:
    """Draws for a contiguous tensor ``z``; ``counts``, if any, is b as int64, of its shape and contiguous."""
    flat, out = z.reshape(-1), torch.empty(z.numel(), dtype=z.dtype, device=z.device)
    step = _SLICE if z.is_cpu else max(flat.numel(), 1)
    for start in range(0, flat.numel(), step):
        here = slice(start, start + step)
        h = flat[here].to(torch.float64).abs() / 2
        places = torch.arange(h.numel(), device=z.device)
        many = None if counts is None else counts.reshape(-1)[here]
        total = torch.zeros_like(h)
        for draw in range(draws if many is None else int(many.max())):
            for pieces, chosen in ((_two_pieces, h < ENV.switch), (_one_piece, h >= ENV.switch)):
                wanted = chosen if many is None else chosen & (many > draw)
                _add_draws(pieces, total, places.masked_select(wanted), h, start, draw, key)
        out[here] = (total / 4).to(z.dtype)
    return out.reshape(z.shape)


Bits = Callable[[int], tuple[Tensor, Tensor]]


def _add_draws(
    propose: Callable[[Tensor, Bits], tuple[Tensor, Tensor]],
    total: Tensor,
    todo: Tensor,
    h: Tensor,
    start: int,
    draw: int,
    key: Tensor,
) -> None:
    """Add a draw from J*(1, h) at the places ``todo``, each there once; place 0 is element ``start``."""
    attempt = 0
    while todo.numel():
        number = todo + start

        def bits(half: int, number: Tensor = number, attempt: int = attempt) -> tuple[Tensor, Tensor]:
            low, high = number & _LOW, number >> 32
            counter = (low, high, torch.full_like(low, draw), torch.full_like(low, 2 * attempt + half))
            return _uniforms(philox(counter, key))

        x, accepted = propose(h[todo], bits)
        total.index_add_(0, todo, torch.where(accepted, x, 0.0))
        todo = todo.masked_select(~accepted)
        attempt += 1


def _uniforms(words: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two uniform numbers on {2^-52, 2 * 2^-52, ..., 1}."""

    def uniform(low: Tensor, high: Tensor) -> Tensor:
        return 1 - ((high << 20) | (low >> 12)).to(torch.float64) * 2.0**-52

    return uniform(words[0], words[1]), uniform(words[2], words[3])


def _bracket(r: Tensor) -> Tensor:
    cube = r * r * r
    return 1 - (3 * r - cube * (5 - 7 * cube))


def _two_pieces(h: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """A proposal for h < 0.9, and whether it is accepted."""
    first, second = bits(0)
    e, tilt = -first.log(), h * h / 2
    k = math.pi**2 / 8 + tilt
    right = ENV.right_mass / k * (-k * ENV.split).exp()
    u = second * (ENV.left_mass + right)
    n = ENV.edge + e / ENV.rate
    beyond, within = ENV.split + e / k, 1 / (n * n)
    is_right = u <= right
    u = torch.where(is_right, u / right, (u - right) / ENV.left_mass)
    lost = torch.where(is_right, 0.0, (n - ENV.rate) ** 2 / 2 + tilt * within)
    r = torch.where(is_right, -(math.pi**2) * beyond, -4 * (n * n)).exp()
    return torch.where(is_right, beyond, within), u <= (-lost).exp() * _bracket(r)


def _one_piece(h: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """A proposal for h >= 0.9, and whether it is accepted."""
    first, angle = bits(0)
    root, u = bits(1)
    sine = ((angle - 2.0**-53) * (math.pi / 2)).sin()
    c = -2 * first.log() * (sine * sine) / h
    t = 1 + (c / 2 + (c * (1 + c / 4)).sqrt())
    x = torch.where(root * (1 + t) <= t, 1 / t, t) / h
    is_right = x > ENV.split
    r = torch.where(is_right, -(math.pi**2) * x, -4 / x).exp()
    other = ENV.beyond * (x * x.sqrt()) * (0.5 / x - math.pi**2 / 8 * x).clamp(max=0).exp()
    return x, u <= torch.where(is_right, other, 1.0) * _bracket(r)
