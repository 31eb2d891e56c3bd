"""float64 and the code for machines without a compiler: bounded memory, derivatives of every order, other devices."""

import math
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from other_processes import growth, needs_linux
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

import momentgen
import momentgen.generated
from momentgen.generated import leaky_relu, square
from momentgen.runtime import FallbackWarning, autograd, kernel, slices, toolchain
from momentgen.runtime.slices import Steps, in_cells, in_slices
from momentgen.runtime.surfaces import Surface, surface, surface_slopes

RUN = """
import warnings
warnings.simplefilter("ignore")
import torch
from momentgen.generated import {name} as op

def run(size):
    leaves = [torch.randn(size, dtype=torch.float64), torch.rand(size, dtype=torch.float64) + 0.1]
    out = op(*[leaf.requires_grad_() for leaf in leaves])
    for _ in range({derivatives}):
        out = torch.autograd.grad(sum((o * o).sum() for o in out), leaves, create_graph=True)

run(100)
"""


def bytes_an_element(name: str, size: int, derivatives: int, *, compiler: bool) -> float:
    changes = {} if compiler else {"CC": "/nonexistent"}
    return growth(RUN.format(name=name, derivatives=derivatives), f"run({size})", **changes) / size


@needs_linux
@pytest.mark.parametrize(
    ("name", "size", "compiler"),
    [
        ("silu", 1_000_000, True),
        ("gelu", 200_000, False),
        pytest.param("silu", 1_000_000, False, marks=pytest.mark.slow),
        pytest.param("gelu", 1_000_000, False, marks=pytest.mark.slow),
    ],
)
def test_forward_and_backward_take_two_hundred_bytes_an_element(name: str, size: int, compiler: bool) -> None:
    assert bytes_an_element(name, size, 1, compiler=compiler) < 200


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "no compiler"])
@pytest.mark.parametrize(("name", "size"), [("silu", 200_000), ("silu", 1_000_000), ("gelu", 1_000_000)])
def test_second_derivatives_take_two_hundred_bytes_an_element(name: str, size: int, compiler: bool) -> None:
    assert bytes_an_element(name, size, 2, compiler=compiler) < 200


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # slices are larger for several
    monkeypatch.setattr(kernel, "VALUES", Steps(3, 3, 1, 3))
    monkeypatch.setattr(slices, "_ORDERED", Steps(7, 7, 1, 7))
    monkeypatch.setattr(slices, "_WITHIN", Steps(2, 2, 1, 2))
    monkeypatch.setattr(autograd, "DERIVATIVES", Steps(2, 2, 1, 2))


#: f', f'' and f''' away from kinks
SMOOTH: dict[str, Callable[[float], tuple[float, float, float]]] = {
    "elu": lambda m: (math.exp(m),) * 3 if m < 0 else (1.0, 0.0, 0.0),
    "celu": lambda m: (math.exp(m),) * 3 if m < 0 else (1.0, 0.0, 0.0),
    "threshold": lambda m: (0.0, 0.0, 0.0) if m < 0 else (1.0, 0.0, 0.0),
    "square": lambda m: (2 * m, 2.0, 0.0),
    "relu": lambda m: (float(m > 0), 0.0, 0.0),
    "exp": lambda m: (math.exp(m),) * 3,
}


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        (name, mean)
        for name in SMOOTH
        for mean in (-700.0, -40.0, -3.0, -0.5, 0.5, 3.0, 40.0, 1e6)
        if (name, mean) != ("exp", 1e6)  # beyond range
    ],
)
def test_second_derivatives_of_certain_values_are_those_of_the_function(name: str, mean: float) -> None:
    """At variance 0: E f = f + f'' v/2, Var f = f'² v + (f''²/2 + f' f''') v² + ..."""
    given = [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (mean, 0.0)]
    first, second, third = SMOOTH[name](mean)
    expected = {
        "mean": [[second, third / 2], [third / 2, None]],
        "var": [[0.0, 2 * first * second], [2 * first * second, second**2 + 2 * first * third]],
    }
    for output, rows in zip(getattr(momentgen.generated, name)(*given), expected.values(), strict=True):
        for gradient, row in zip(torch.autograd.grad(output, given, create_graph=True), rows, strict=True):
            found = torch.autograd.grad(gradient, given, retain_graph=True)
            assert torch.stack(found).isfinite().all()
            for a, b in zip(found, row, strict=True):
                assert b is None or a.item() == pytest.approx(b, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t,
        lambda t: t.reshape(3, 4),
        lambda t: t.reshape(4, 3).T,
        lambda t: t.repeat_interleave(2)[::2],
        lambda t: t.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last),
    ],
    ids=["vector", "matrix", "transposed", "strided", "channels last"],
)
def test_slices_give_each_element_its_own_value(layout, small_slices: None) -> None:  # type: ignore[no-untyped-def]
    mean, var = (layout(t) for t in (torch.randn(12, dtype=torch.float64), torch.rand(12, dtype=torch.float64)))
    sliced = square.kernel("forward", backend="torch")(mean, var)
    torch.testing.assert_close(sliced, (mean**2 + var, 2 * var**2 + 4 * mean**2 * var))


def of_var(mean: Tensor, var: Tensor) -> Tensor:
    return square(mean, var).var.sum()


def test_derivatives_of_every_order_in_slices(small_slices: None) -> None:
    """Var of X² is 2 v² + 4 m² v: by m twice 8 v, by m, m and v 8, by m three times 0."""
    mean = torch.randn(7, dtype=torch.float64, requires_grad=True)
    var = torch.rand(7, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(of_var(mean, var), mean, create_graph=True)
    second = torch.autograd.grad(first.sum(), mean, create_graph=True)[0]
    torch.testing.assert_close(second, 8 * var)
    third = torch.autograd.grad(second.sum(), (mean, var), create_graph=True, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(third, (torch.zeros(7, dtype=torch.float64), torch.full((7,), 8.0, dtype=torch.float64)))
    assert torch.autograd.gradgradcheck(lambda m, v: tuple(square(m, v)), (mean, var))


def test_transforms_in_slices(small_slices: None) -> None:
    mean, var = torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    torch.testing.assert_close(vmap(grad(grad(of_var)))(mean, var), 8 * var)
    torch.testing.assert_close(jacrev(grad(of_var))(mean, var), torch.diag(8 * var))
    third = jvp(lambda v: vmap(grad(grad(of_var)))(mean, v), (var,), (torch.ones_like(var),))[1]
    torch.testing.assert_close(third, torch.full_like(var, 8.0))


def test_elements_are_computed_by_cell_and_come_back_in_their_places(small_slices: None) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)  # dense, not contiguous
    seen: list[int] = []

    def function(x: Tensor, y: Tensor, cell: int) -> tuple[Tensor, ...]:
        assert (x % 3 == cell).all()
        seen.append(cell)
        return x + 100 * cell, x * y

    results = in_cells(function, lambda x, _: x % 3, [x, 2 * x], 2)
    for got, want in zip(results, (x + 100 * (x % 3), 2 * x * x), strict=True):
        assert got.stride() == x.stride()
        assert torch.equal(got, want)
    assert len(seen) > 12
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize("name", ["tanh", "bow_tie", "gelu"])
def test_by_cell_and_for_all_elements_at_once_pytorch_computes_the_same(name: str, small_slices: None) -> None:
    op, generator = getattr(momentgen.generated, name), torch.Generator().manual_seed(1)
    mean = 4 * torch.randn(60, generator=generator, dtype=torch.float64)
    var = torch.exp(3 * torch.randn(60, generator=generator, dtype=torch.float64))
    params = {p.name: p.default for p in op.parameters}
    by_cell = op.kernel("forward", backend="torch")(mean, var, **params)
    at_once = vmap(lambda m, v: op(m, v))(mean, var)
    for got, want in zip(by_cell, at_once, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_slices_are_bounded_and_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    steps, sizes = Steps(least=4, most=16, share=2, device=100), []

    def noted(x: Tensor) -> tuple[Tensor]:
        sizes.append(x.numel())
        return (x + 1,)

    for n in (3, 9, 20, 100):
        sizes.clear()
        (result,) = in_slices(noted, [torch.arange(float(n))], 1, steps)
        assert result.tolist() == [i + 1.0 for i in range(n)]
        assert sum(sizes) == n
        assert max(sizes) <= max(4, min(16, n // 2))


def test_parameters_reach_the_c_in_float64_whole() -> None:
    mean, var = torch.tensor([-3.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    slope = 0.1  # no float32 number
    by_c = leaky_relu.kernel("forward", variant="identity_delta", backend="c")(mean, var, negative_slope=slope)
    torch.testing.assert_close(by_c, (slope * mean, slope**2 * var), rtol=1e-15, atol=0)


def test_a_package_from_before_there_was_c_in_float64_is_served_by_pytorch_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toolchain, "_warned", set())
    monkeypatch.setattr(
        "momentgen.runtime.native.importlib.resources.files", lambda package: Path("/nowhere") / package
    )
    old = kernel.Kernel("old_square", "momentgen.generated.square", "exact", 1, ())
    mean = torch.tensor([3.0], dtype=torch.float64)
    with pytest.warns(FallbackWarning, match=r"no exact_float64\.c; build it again"):
        assert old.run("forward", [mean, mean], ())[0].tolist() == [12.0]


# No machine of the tests has MPS or XPU: what follows shows the way such tensors take, not such a device.
class Elsewhere:
    """Stands for a tensor on a device that is neither the CPU nor CUDA, as far as the runtime asks one."""

    is_cpu = is_cuda = False
    layout, device = torch.strided, torch.device("meta")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype

    def cpu(self) -> Tensor:
        return self.tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_devices_are_computed_in_float64_on_the_cpu_with_one_warning(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "_warned", set())
    monkeypatch.setattr(kernel, "has_float64", lambda device: device.type == "cpu")
    mean, var = torch.randn(50).to(dtype), torch.rand(50).to(dtype)
    seen: list[Tensor] = []
    real = square._kernels["exact"].run_native

    def noted(which: str, tensors: list[Tensor], params: tuple[float, ...]) -> tuple[Tensor, ...]:
        seen.extend(tensors)
        return real(which, tensors, params)

    monkeypatch.setattr(square._kernels["exact"], "run_native", noted)
    pair = [Elsewhere(mean), Elsewhere(var)]
    with pytest.warns(FallbackWarning, match="there are no kernels for meta tensors") as caught:
        results = [square._kernels["exact"].run("forward", pair, ()) for _ in range(2)]  # type: ignore[arg-type]
    assert len(caught) == 1
    assert {t.dtype for t in seen} == {torch.float64}
    assert all(t.dtype is dtype and t.device.type == "meta" for result in results for t in result)


def test_what_is_computed_on_the_cpu_for_others_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, var = torch.randn(500).bfloat16(), torch.rand(500).bfloat16()
    exact = (mean.double() ** 2 + var.double()).to(torch.bfloat16)
    with warnings.catch_warnings(action="ignore", category=FallbackWarning):
        got = square._kernels["exact"].run_on_cpu("forward", [mean, var], ())[0]
    assert torch.equal(got, exact)


def test_second_derivatives_on_other_devices_go_through_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_float64", lambda device: False)
    mean, var = (t.requires_grad_() for t in (torch.randn(5), torch.rand(5)))
    (first,) = torch.autograd.grad(of_var(mean, var), mean, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), mean)[0], 8 * var.detach())


def test_only_known_devices_are_taken_to_have_float64() -> None:
    has = [name for name in ("cpu", "cuda", "mps", "xpu") if kernel.has_float64(types.SimpleNamespace(type=name))]  # type: ignore[arg-type]
    assert has == ["cpu", "cuda"]


# Polynomials by cell in PyTorch: a table for each element is the same as one for all, under transforms, too.
#: three cells, of which two have the same polynomial
OF: Surface = (
    (1, 0, 1),
    ((0.5, 2.0, -1.0, 0.5, 0.25), (1e-3, 1.0, 0.0, -1.0, 2.0)),
    (((3.0, -2.0, 5.0), (1.0,), (4.0, 7.0)), ((1000.0, 2000.0),)),
)


def expected(cell: int, y: Tensor, z: Tensor) -> Tensor:
    """By NumPy."""
    unit, y_scale, y_shift, z_scale, z_shift = OF[1][OF[0][cell]]
    rows = OF[2][OF[0][cell]]
    table = np.zeros((len(rows), max(map(len, rows))))
    for j, row in enumerate(rows):
        table[j, : len(row)] = row
    at_z, at_y = (z * z_scale + z_shift).numpy(), (y * y_scale + y_shift).numpy()
    return torch.from_numpy(unit * np.polynomial.polynomial.polyval2d(at_z, at_y, table))


def points() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    y, z = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    return torch.arange(20.0, dtype=torch.float64).reshape(4, 5) % 3, y, z


def test_each_element_has_the_polynomial_of_its_cell() -> None:
    cell, y, z = points()
    found = surface(OF, cell, y, z)
    for number in range(3):
        here = cell == number
        torch.testing.assert_close(found[here], expected(number, y[here], z[here]), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(surface(OF, number, y, z), expected(number, y, z), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("of_all", [True, False])
def test_slopes_are_the_derivatives(of_all: bool) -> None:
    cell, y, z = points()
    place: Tensor | int = 1 if of_all else cell
    leaves = [y.clone().requires_grad_(), z.clone().requires_grad_()]
    value = surface(OF, place, *leaves)
    slopes = torch.autograd.grad(value.sum(), leaves)
    for got, want in zip(surface_slopes(OF, place, y, z), (value.detach(), *slopes), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_transforms_see_an_element_at_a_time() -> None:
    cell, y, z = (tensor.flatten() for tensor in points())
    slopes = vmap(grad(lambda y, c, z: surface(OF, c, y, z)))(y, cell, z)
    torch.testing.assert_close(slopes, surface_slopes(OF, cell, y, z)[1], rtol=1e-12, atol=1e-12)
