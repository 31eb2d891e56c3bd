"""What the sampler takes, what it refuses, and how torch may hold it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import momentgen
from momentgen.errors import InputError
from momentgen.inference.polya_gamma_sampler import polya_gamma


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


_Z = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("b", "z", "said"),
    [
        (1.0, _Z, "got 1.0"),
        (True, _Z, "got True"),
        (None, _Z, "got None"),
        (-1, _Z, "got -1"),
        (2**31, _Z, "from 0 to 2147483647, got 2147483648"),
        (torch.tensor(1.0), _Z, "float32"),
        (torch.tensor([True, False, True]), _Z, "bool"),
        (torch.eye(3, dtype=torch.int64).to_sparse(), _Z, "sparse_coo"),
        (torch.tensor([1, -3, 2]), _Z, "got -3"),
        (torch.tensor(2**40), _Z, f"got {2**40}"),
        (torch.ones(4, dtype=torch.int64), _Z, "broadcast to the shape of z, (2, 3), got (4,)"),
        (torch.ones(5, 2, 3, dtype=torch.int64), _Z, "broadcast to the shape of z, (2, 3), got (5, 2, 3)"),
        (torch.ones(2, 3, dtype=torch.int64, device="meta"), _Z, "one device"),
        (1, 1.0, "got float"),
        (1, np.ones(3), "got ndarray"),
        (1, momentgen.Moments(torch.ones(2), torch.ones(2)), "got Moments"),
        (1, torch.ones(3, dtype=torch.int64), "got int64"),
        (1, torch.ones(3, dtype=torch.float16), "got float16"),
        (1, torch.ones(3, dtype=torch.complex64), "got complex64"),
        (1, torch.eye(3).to_sparse(), "got sparse_coo"),
        (1, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "got nested"),
        (1, torch.tensor([[1.0, 2.0], [math.nan, math.inf]]), "got nan at element 2"),
        (1, torch.tensor([0.0, -math.inf], dtype=torch.float64), "got -inf at element 1"),
    ],
)
def test_other_b_and_z_are_refused(b: Any, z: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        polya_gamma(b, z)
    assert said in str(caught.value)


def test_other_generators_are_refused() -> None:
    with pytest.raises(InputError, match=r"must be a torch\.Generator, got int"):
        polya_gamma(1, torch.ones(2), generator=3)  # type: ignore[arg-type]


def test_a_draw_has_no_derivative() -> None:
    z = torch.ones(3, requires_grad=True)
    with pytest.raises(InputError, match="z requires a gradient"):
        polya_gamma(1, z)
    with torch.no_grad():
        assert not polya_gamma(1, z).requires_grad
    assert not polya_gamma(1, z.detach()).requires_grad
    with forward_ad.dual_level(), pytest.raises(InputError, match="z requires a gradient"):
        polya_gamma(1, forward_ad.make_dual(z.detach(), torch.ones(3)))


def test_transforms_of_torch_func_are_refused() -> None:
    z = torch.ones(3, 2)

    def draw(x: Tensor) -> Tensor:
        return polya_gamma(1, x)

    calls = (
        lambda: torch.vmap(draw, randomness="same")(z),
        lambda: torch.func.grad(lambda x: draw(x).sum())(z),
        lambda: torch.func.jvp(draw, (z,), (z,)),
    )
    for call in calls:
        with pytest.raises(InputError, match="call it on the whole batch"):
            call()


def test_meta_and_fake_tensors_have_results_of_their_kind() -> None:
    state = torch.get_rng_state()
    meta = polya_gamma(torch.ones(3, dtype=torch.int64, device="meta"), torch.ones(2, 3, device="meta"))
    assert (meta.device.type, meta.shape) == ("meta", (2, 3))
    assert torch.equal(torch.get_rng_state(), state)
    with FakeTensorMode() as mode:
        fake = polya_gamma(1, mode.from_tensor(torch.ones(3, 2, dtype=torch.float64).T))
    assert (fake.shape, fake.dtype, fake.is_contiguous()) == ((2, 3), torch.float64, True)


def test_the_operator_keeps_the_contract_of_torch() -> None:
    operator = torch.ops.momentgen.polya_gamma.default
    z, b = torch.randn(4, 3), torch.ones(1, dtype=torch.int8).expand(3, 4)
    for arguments in ((z, None, 2, torch.tensor(5)), (z.T, b, 0, torch.tensor(5)), (z[:0], None, 1, torch.tensor(5))):
        torch.library.opcheck(operator, arguments)


def test_compiled_code_holds_the_sampler() -> None:
    z = torch.linspace(-3, 3, 1000)
    compiled = torch.compile(lambda x: polya_gamma(1, x) + 1, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    want = polya_gamma(1, z) + 1
    torch.manual_seed(0)
    assert torch.equal(compiled(z), want)
    assert not torch.equal(compiled(z), want)


def test_exported_code_holds_the_sampler() -> None:
    class Draw(torch.nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return polya_gamma(1, z)

    z = torch.linspace(-3, 3, 50)
    run = torch.export.export(Draw(), (z,)).module()
    torch.manual_seed(0)
    want = polya_gamma(1, z)
    torch.manual_seed(0)
    assert torch.equal(run(z), want)
