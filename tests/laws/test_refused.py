"""Functions that the deterministic methods refuse in one sentence, and that the default runs: σ against draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import diagonal


def given() -> Moments:
    draw = torch.Generator().manual_seed(3)
    mean = torch.randn(2, 12, dtype=torch.float64, generator=draw)
    return Moments(mean, 0.1 * torch.rand(mean.shape, dtype=torch.float64, generator=draw) + 0.01)


def fixed(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


_GRID, _ROWS, _COLUMNS = fixed(1, 2, 2, 2).tanh(), fixed(1, 4, 3), (fixed(12, 4), fixed(4, 2))
_FILTER = torch.view_as_complex(fixed(7, 2))
#: name of the refused function, and what is special -> a function of a batch of twelve values
REFUSED: dict[str, Callable[[Any], Any]] = {
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "rfft, a filter": lambda x: torch.fft.irfft(torch.fft.rfft(x) * _FILTER, n=12),
    "rfft, sizes": lambda x: torch.fft.rfft(x).abs(),
    "fft2": lambda x: torch.fft.fft2(x.view(-1, 3, 4)).real,
    "ifftn": lambda x: torch.fft.ifftn(x.view(-1, 3, 4), dim=(1, 2)).imag,
    "complex": lambda x: torch.complex(x, 2 * x).abs(),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(-1, 6, 2)).abs(),
    "gradient": lambda x: torch.gradient(x, dim=1)[0],
    "trapezoid": lambda x: torch.trapezoid(x, dim=1)[:, None],
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dim=1),
    "grid_sample": lambda x: F.grid_sample(x.view(-1, 1, 3, 4), _GRID.expand(len(x), -1, -1, -1), align_corners=False),
    "affine_grid": lambda x: F.affine_grid(x.view(-1, 2, 2, 3)[:, 0], [len(x), 1, 2, 2], align_corners=True),
    "cross": lambda x: torch.linalg.cross(x.view(-1, 4, 3), _ROWS),
    "kron": lambda x: torch.kron(x, _GRID[0, 0, :1]),
    "linalg_multi_dot": lambda x: torch.linalg.multi_dot([x, *_COLUMNS]),
    "cumprod": lambda x: torch.cumprod(x, 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_deterministic_method_names_the_function_the_line_and_the_default(name: str, method: Any) -> None:
    own = name.split(",")[0]
    sentence = rf"{own} of a random value, \w+ of shape .*, at .*\.py:\d+: .*controlled, the default .*/networks/"
    with pytest.raises(UnsupportedError, match=sentence):
        momentgen.convert(Of(REFUSED[name]).eval(), method)(given())


@pytest.mark.parametrize("name", REFUSED)
def test_the_default_has_sigma_of_draws(name: str) -> None:
    x, function = given(), REFUSED[name]
    with momentgen.method("controlled", max_rows=1024):
        found = momentgen.convert(Of(function).eval())(x)
    noise = torch.randn(40_000, *x.mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = function((x.mean + x.std * noise).flatten(0, 1)).unflatten(0, (40_000, -1))
    allowed = 0.02 * drawn.std(0) + 5 * found.std_error + 1e-6
    assert ((found.std - drawn.std(0)).abs() <= allowed).all()
    assert ((found.mean - drawn.mean(0)).abs() <= 0.03 * drawn.std(0) + 5 * found.mean_error + 1e-12).all()


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "cumprod"])
def test_certain_values_have_the_functions_own_result(name: str) -> None:
    x, function = given(), REFUSED[name]
    out = momentgen.convert(Of(lambda pair: (pair[0] * 2, function(pair[1]))).eval(), "ap2")((x, x.mean))
    torch.testing.assert_close(out[1].mean, function(x.mean))
    assert not out[1].var.any()


def test_a_random_value_that_meets_a_complex_number_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no rule for complex random values.*controlled"):
        _ = diagonal(*given()) * torch.tensor(1j, dtype=torch.complex128)


#: functions that make complex values of real ones, in several kinds of the table
TO_COMPLEX: dict[str, Callable[[Any], Any]] = {
    "fft": torch.fft.fft, "times 1j": lambda x: x * 1j, "complex": lambda x: torch.complex(x, x),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(-1, 6, 2)), "to": lambda x: x.to(torch.complex128),
    "polar": lambda x: torch.polar(x, x), "cfloat": lambda x: x.cfloat(),
}  # fmt: skip


@pytest.mark.parametrize("name", TO_COMPLEX)
def test_complex_values_are_refused_with_what_the_default_wants(name: str, method: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"controlled.*outputs are real: return torch\.view_as_real"):
        momentgen.convert(Of(TO_COMPLEX[name]).eval(), method)(given())
    found = momentgen.convert(Of(lambda x: torch.view_as_real(TO_COMPLEX[name](x))).eval())(given())
    assert found.mean.shape[-1] == 2


def test_noise_of_complex_values_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match=r"complex64.*torch\.view_as_real"):
        momentgen.noisy(torch.zeros(3, dtype=torch.complex64), std=0.1)
    with pytest.raises(InputError, match=r"int64.*x\.float"):
        momentgen.noisy(torch.zeros(3, dtype=torch.int64), std=0.1)
