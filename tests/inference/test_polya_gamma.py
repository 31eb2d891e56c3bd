"""What the sampler takes and refuses; its random numbers, whatever threads, compilers and strides."""

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from same_bits import builds
from torch import Tensor

from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.errors import InputError
from momentgen.inference.polya_gamma_sampler.function import draws_by, polya_gamma, sampler
from momentgen.native import c_sources
from momentgen.runtime.kernel_cache import compile_and_load


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (7, 3), (2, 3, 400)])
def test_results_have_the_shape_and_dtype_of_z(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    draws = polya_gamma(2, torch.ones(shape, dtype=dtype), generator=seeded())
    assert draws.shape == shape
    assert draws.dtype is dtype
    assert draws.is_contiguous()
    assert bool((draws > 0).all())


def test_extreme_tilts_give_what_the_mean_says() -> None:
    """PG(1, z) has mean tanh(z/2)/2z and, for large z, a standard deviation of √(2/z) of it."""
    z = torch.tensor([1e4, 1e8, 1e30, 1e300, 1.7e308], dtype=torch.float64)
    draws = polya_gamma(1, z, generator=seeded()) * 2 * z
    assert bool(((draws - 1).abs() <= 8 * (2 / z).sqrt() + 1e-15).all()), draws
    z = torch.tensor([0.0, -0.0, 5e-324, 1e-300, -1e-150], dtype=torch.float64).expand(50_000, 5)
    draws = polya_gamma(1, z, generator=seeded())
    assert bool(((draws.mean(0) - 0.25).abs() < 5 * math.sqrt(1 / 24 / 50_000)).all()), draws.mean(0)
    largest = polya_gamma(1, torch.tensor([3e38, 1e-45]), generator=seeded())
    assert float(largest[0]) == pytest.approx(1 / 6e38, rel=1e-5)
    assert float(largest[1]) > 0


def test_b_of_zero_gives_zero_and_more_give_more() -> None:
    z = torch.zeros(4, 1000, dtype=torch.float64)
    b = torch.tensor([0, 1, 10, 40], dtype=torch.int32)[:, None]
    draws = polya_gamma(b, z, generator=seeded())
    assert bool((draws[0] == 0).all())
    expected = b[:, 0] / 4
    assert bool(((draws.mean(1) - expected).abs() <= 5 * (b[:, 0] / 24 / 1000).sqrt()).all())
    assert bool((polya_gamma(0, z) == 0).all())
    assert bool((polya_gamma(np.int64(1), z, generator=seeded()) == polya_gamma(1, z, generator=seeded())).all())


def test_other_generators_and_tilts_with_a_gradient_are_refused() -> None:
    with pytest.raises(InputError, match=r"must be a torch\.Generator, got int"):
        polya_gamma(1, torch.ones(2), generator=3)  # type: ignore[arg-type]
    z = torch.ones(3, requires_grad=True)
    with pytest.raises(InputError, match="z requires a gradient"):
        polya_gamma(1, z)
    with torch.no_grad():
        assert not polya_gamma(1, z).requires_grad


# The same draws everywhere: the random numbers, threads and compilers.
SOURCE = c_sources.polya_gamma()
#: counter, key and result of philox4x32-10 in the file kat_vectors of Random123
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
KEY = -0x0123456789ABCDEF


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def tilts(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Of all sizes, with those about which the code changes."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(n, generator=generator, dtype=torch.float64) * 3
    z[::5] *= 10.0 ** torch.linspace(-8, 4, z[::5].numel(), dtype=torch.float64)
    corners = [0.0, -0.0, 1.8, 1.8 - 1e-9, -1.8, 1e-300, 1e-310, 40.0, -41.0, 1e4, 1e30]
    z[: len(corners)] = torch.tensor(corners, dtype=torch.float64)
    return z.to(dtype)


def test_philox_in_c_gives_the_published_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path))
    more = """
void one(int64_t first, uint32_t draw, uint32_t attempt, uint64_t key, uint64_t *out) {
    int32_t list[1] = {0};
    philox(1, list, first, draw, attempt, key, out, out + 1);
}
"""
    function = compile_and_load("philox", SOURCE + more)["one"]
    function.argtypes = [ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p]
    for counter, key, expected in VECTORS:
        (c0, c1, c2, c3), (low, high), out = words(counter), words(key), np.zeros(2, np.uint64)
        function(ctypes.c_int64(c1 << 32 | c0).value, c2, c3, high << 32 | low, out.ctypes.data)
        assert [int(word) for word in out.view(np.uint32)] == words(expected)


def test_draws_do_not_depend_on_the_number_of_threads() -> None:
    z, before = tilts(200_001), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(polya_gamma(2, z, generator=torch.Generator().manual_seed(0)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(draws, found[0]) for draws in found)


@pytest.mark.parametrize("build", sorted(builds()))
def test_c_has_the_same_bits_however_it_is_compiled(build: str) -> None:
    z = tilts(50_000)
    out = torch.empty_like(z)
    function = compiled(SOURCE, builds()[build].flags, builds()[build].compiler)["polya_gamma_float64"]
    function.argtypes = [
        ctypes.c_int64,
        *[ctypes.c_void_p] * 2,
        ctypes.c_int64,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_int,
    ]
    function(z.numel(), z.data_ptr(), None, 2, KEY % 2**64, out.data_ptr(), 1)
    assert torch.equal(out, draws_by(sampler(), z, None, 2, KEY))


def test_draws_follow_from_the_generator_and_the_order_of_elements_alone() -> None:
    z = tilts(6_000).reshape(20, 300)

    def draws(tensor: Tensor, seed: int = 3, b: int | Tensor = 1) -> Tensor:
        return polya_gamma(b, tensor, generator=torch.Generator().manual_seed(seed))

    want = draws(z)
    assert torch.equal(draws(z), want)
    assert not torch.equal(draws(z, seed=4), want)
    assert torch.equal(draws(z.T.contiguous().T), want)
    assert torch.equal(draws(-z), want)
    assert torch.equal(draws(z.flatten()).reshape(z.shape), want)
    assert torch.equal(draws(z[:, None])[:, 0], want)
    assert torch.equal(draws(z, b=torch.tensor(1, dtype=torch.uint8)), want)
    wide = torch.stack([z, z], -1)[..., 0]
    assert not wide.is_contiguous()
    assert torch.equal(draws(wide), want)
    torch.manual_seed(3)
    assert torch.equal(polya_gamma(1, z), want)
    generator = torch.Generator().manual_seed(3)
    assert not torch.equal(polya_gamma(1, z, generator=generator), polya_gamma(1, z, generator=generator))
