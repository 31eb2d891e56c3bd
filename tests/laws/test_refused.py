"""Functions that the deterministic methods refuse in one sentence, and that the default runs: σ against draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import UnsupportedError
from momentgen.laws import diagonal


class Network(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


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
    "fft_rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "fft_rfft, a filter": lambda x: torch.fft.irfft(torch.fft.rfft(x) * _FILTER, n=12),
    "fft_rfft, sizes": lambda x: torch.fft.rfft(x).abs(),
    "fft_fft2": lambda x: torch.fft.fft2(x.view(-1, 3, 4)).real,
    "fft_ifftn": lambda x: torch.fft.ifftn(x.view(-1, 3, 4), dim=(1, 2)).imag,
    "fft_fftshift": lambda x: torch.fft.fftshift(x, 1),
    "complex": lambda x: torch.complex(x, 2 * x).abs(),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(-1, 6, 2)).abs(),
    "gradient": lambda x: torch.gradient(x, dim=1)[0],
    "trapezoid": lambda x: torch.trapezoid(x, dim=1)[:, None],
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dim=1),
    "grid_sample": lambda x: F.grid_sample(x.view(-1, 1, 3, 4), _GRID.expand(len(x), -1, -1, -1), align_corners=False),
    "affine_grid": lambda x: F.affine_grid(x.view(-1, 2, 2, 3)[:, 0], [len(x), 1, 2, 2], align_corners=True),
    "linalg_cross": lambda x: torch.linalg.cross(x.view(-1, 4, 3), _ROWS),
    "linalg_vecdot": lambda x: torch.linalg.vecdot(x.view(-1, 4, 3), _ROWS[0]),
    "kron": lambda x: torch.kron(x, _GRID[0, 0, :1]),
    "linalg_multi_dot": lambda x: torch.linalg.multi_dot([x, *_COLUMNS]),
    "div, a softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "div, a softmax below its maximum": lambda x: (lambda e: e / e.sum(-1, True))((x - x.amax(1, keepdim=True)).exp()),
    "matmul, a Gram matrix": lambda x: x.view(-1, 4, 3) @ x.view(-1, 4, 3).mT,
    "matmul, row by column": lambda x: torch.tanh(x[:, None]) @ x[:, :, None],
    "einsum, a Gram matrix": lambda x: torch.einsum("bij,bkj->bik", x.view(-1, 4, 3), x.view(-1, 4, 3)),
    "embedding_bag": lambda x: F.embedding_bag(
        torch.arange(3).expand(len(x), 3), _COLUMNS[0], per_sample_weights=x[:, :3].contiguous(), mode="sum"
    ),
    "cumprod": lambda x: torch.cumprod(x, 1),
}


@pytest.mark.parametrize("method", ["ap2", "adjoint", "covariance"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_deterministic_method_names_the_function_the_line_and_the_default(name: str, method: Any) -> None:
    own = name.split(",")[0].split("_")[-1]
    sentence = rf"{own}\w* of a random value, \w+ of shape .*, at .*\.py:\d+: .*controlled, the default .*/networks/"
    if method == "covariance" and own in ("div", "matmul", "einsum"):
        return  # it knows what values have in common
    with pytest.raises(UnsupportedError, match=sentence):
        momentgen.convert(Network(REFUSED[name]).eval(), method)(given())


@pytest.mark.parametrize("name", REFUSED)
def test_the_default_has_sigma_of_draws(name: str) -> None:
    x, function = given(), REFUSED[name]
    with momentgen.method("controlled", max_rows=1024):
        found = momentgen.convert(Network(function).eval())(x)
    noise = torch.randn(40_000, *x.mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = function((x.mean + x.std * noise).flatten(0, 1)).unflatten(0, (40_000, -1))
    allowed = 0.02 * drawn.std(0) + 5 * found.std_error + 1e-6
    assert ((found.std - drawn.std(0)).abs() <= allowed).all()
    assert ((found.mean - drawn.mean(0)).abs() <= 0.03 * drawn.std(0) + 5 * found.mean_error + 1e-12).all()


@pytest.mark.parametrize("name", REFUSED)
def test_certain_values_have_the_functions_own_result(name: str) -> None:
    x, function = given(), REFUSED[name]
    out = momentgen.convert(Network(lambda pair: (pair[0] * 2, function(pair[1]))).eval(), "ap2")((x, x.mean))
    torch.testing.assert_close(out[1].mean, function(x.mean))
    assert not out[1].var.any()


def test_a_random_value_that_meets_a_complex_number_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"complex random values have no rule.*controlled"):
        _ = diagonal(*given()) * torch.tensor(1j, dtype=torch.complex128)


_SPARSE = torch.diag(torch.arange(1.0, 8.0, dtype=torch.float64), 1)[:7].to_sparse()


@pytest.mark.parametrize("method", ["ap1", "ap2", "adjoint", "covariance"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sparse.mm(_SPARSE, x[:, :8].t()).t(),
        lambda x: torch.sparse.addmm(torch.zeros(7, len(x)).double(), _SPARSE, x[:, :8].t()).t(),
        lambda x: (_SPARSE.float() @ x[:, :8].float().t()).t().double(),
    ],
    ids=["a sparse matrix", "a sparse matrix, and a sum", "single precision"],
)
def test_sparse_matrices_have_the_moments_of_their_jacobian(function: Callable[[Any], Any], method: Any) -> None:
    x, dense = given(), _SPARSE.to_dense()
    out = momentgen.convert(Network(function).eval(), method=method)(x)
    near = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(out.mean, x.mean[:, :8] @ dense.mT, **near)
    torch.testing.assert_close(out.var, x.var[:, :8] @ dense.square().mT * (method != "ap1"), **near)


def test_a_layout_that_transforms_cannot_read_is_refused() -> None:
    """torch 2.14 can read it, earlier ones cannot."""
    rows = _SPARSE.to_sparse_csr()

    def moments_with(matrix: Tensor) -> momentgen.Moments:
        network = Network(lambda x: (matrix @ x[:, :8].t()).t()).eval()
        return momentgen.convert(network, method="adjoint")(given())

    if torch.__version__ < "2.14":
        with pytest.raises(UnsupportedError, match="to_sparse_coo"):
            moments_with(rows)
        return
    found, want = moments_with(rows), moments_with(rows.to_dense())
    torch.testing.assert_close((found.mean, found.var), (want.mean, want.var))
