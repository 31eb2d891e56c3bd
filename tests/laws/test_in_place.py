"""Programs that write in place: on points bit for bit torch's, on moments those of the same program without views."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from sampling import law_of, normal_input
from torch import Tensor

import momentgen
from momentgen import convert, noisy
from momentgen.errors import UnsupportedError
from momentgen.laws import Diagonal, point

_C = torch.linspace(-1, 1, 6).double().view(2, 3)
_INDEX = torch.tensor([2, 0])
_MASK = torch.tensor([[True, False, True], [False, False, True]])


#: programs that bind ``y``, without anything nonlinear, and in which no two values that depend on each other are added
LINEAR = {
    "view": "y = x * 2; y.view(-1).add_(1)",
    "unbind": "y = x.clone()\nfor k, row in enumerate(y.unbind(0)): row.mul_(k + 1)",
    "iterate": "y = x.clone()\nfor row in y: row += 1",
    "setitem, slice": "y = torch.zeros_like(x); y[:, 1:] = x[:, :2] * 2",
    "setitem, integer": "y = x.clone(); y[0] = y[1]; y[1, -1] = 4.0",
    "setitem, mask": "y = x.clone(); y[_MASK] = 0.5",
    "setitem, mask by values": "y = torch.zeros_like(x); y[_MASK] = x[_MASK] * 3",
    "setitem, index": "y = x.new_zeros(2, 4); y[:, _INDEX] = x[:, 1:]",
    "setitem, tensors": "y = x.clone(); y[torch.tensor([0, 1]), _INDEX] = x[:, 1] + 1",
    "setitem, ellipsis": "y = x.clone(); y[..., None, 0] = 2.0; y[...] += 1",
    "augmented view": "y = x.clone(); view = y[:, :2]; view += 1; view *= 2",
    "after a view": "y = x * 1; view = y[0]; y += 10; y = torch.cat([view, y[1]])",
    "after a view, rebound": "y = x * 1; view = y.t(); y = y + 10; y = torch.cat([view, y.t()], 1)",
    "view of a view": "y = x.clone(); y.view(3, 2)[1:][0, 1].fill_(7.0); y.view(6)[::2].zero_()",
    "two views": "y = x.clone(); a, b = y[:, :2], y[:, 1:]; a.mul_(2); b.add_(1); y = torch.stack([a, b, y[:, ::2]])",
    "transposed": "y = x.clone(); y.t()[0].copy_(y.t()[2])",
    "fill, zero": "y = x.clone(); y[0].zero_(); y[1, :2].fill_(3)",
    "copy": "y = torch.empty_like(x); y.copy_(x); y[:, 0].copy_(_C[:, 0])",
    "masked_fill": "y = x.clone(); y.masked_fill_(_MASK, -1.0); y[0].masked_fill_(_MASK[1], 2.0)",
    "buffer seen early": "y = x.new_zeros(2, 3); early = y[1]; y[1] = x[1]; y = early + 0",
    "index_put": "y = x.clone(); y.index_put_((torch.tensor([0, 0]), _INDEX), x[1, :2])",
    "index_add": """y = x.new_zeros(2, 3); y.index_add_(1, _INDEX, x[:, :2])
y.scatter_add_(1, torch.tensor([[0], [2]]), x[:, 2:])""",
    "scatter": """y = x.clone(); y.scatter_(1, torch.tensor([[2], [0]]), x[:, 1:2])
y.index_fill_(1, torch.tensor([1]), 0.25)""",
    "shapes": "y = x.clone(); y.unsqueeze_(1); y.add_(1); y.squeeze_(1).mul_(2); y = y.t_()",
    "shape of a view": "y = x.clone(); view = y[0]; view.unsqueeze_(0); view.mul_(3)",
    "flattened": """y = x.clone(); y.flatten()[1] = 9.0; y.reshape(3, 2)[0].mul_(2)
y.t().reshape(-1)[0] = 5.0  # a copy: nothing is written""",
    "broadcast": "y = x.clone(); y.add_(_C[0]).mul_(_C[:, :1]); y[:] = y[0] * 2",
    "unfolded": """image = x.view(1, 1, 2, 3); patches = F.unfold(image, (1, 2)); patches.mul_(2)
y = torch.cat([patches.flatten(), image.flatten()])""",
    "rolled": """state, outputs = x.new_zeros(3), []
for k in range(2): state.mul_(0.5).add_(x[k]); outputs.append(state.clone())
y = torch.stack(outputs)""",
    "diagonal": "y = x.clone(); y.diagonal().fill_(1.0); y.narrow(1, 2, 1).add_(2); y.select(1, 1).neg_()",
    "split": "y = x.clone(); a, b = y.split([1, 2], dim=1); b[:, 0] = a[:, 0]; a.sub_(b[:, 1:])",
    "dropped": "y = x.clone(); F.dropout(y[0], 0.5, training=False, inplace=True).add_(1)",
}
#: program -> the same without a write
SAME: dict[str, Callable[[Any], Any]] = {
    "y = x + 0; a, _, c = y.chunk(3, 1); F.relu(a, inplace=True); c.mul_(3)": lambda x: torch.cat(
        [x[:, :1].relu(), x[:, 1:2], 3 * x[:, 2:]], 1
    ),
    "y = x.clone(); y[:, 0] += 5; y[:, 1] *= _C[:, 0]; y[1] -= y[0]": lambda x: (
        lambda y: torch.stack([y[0], y[1] - y[0]])
    )(torch.stack([x[:, 0] + 5, x[:, 1] * _C[:, 0], x[:, 2]], 1)),
    "y = x.new_zeros(2, 3)\nfor k in range(2): y[k] = torch.tanh(x[k])": torch.tanh,
    "y = torch.zeros_like(x); one, two = y[0], y[1]; one.add_(x[0]); two.copy_(x[1]).mul_(2); y = y + one": lambda x: (
        torch.stack([x[0], 2 * x[1]]) + x[0].clone()
    ),
    "y = x + 1; torch.relu_(y); torch.nn.ReLU(True)(y[:, 1]); torch.nn.Hardtanh(inplace=True)(y)": lambda x: F.hardtanh(
        _relu_again(F.relu(x + 1))
    ),
    "y = F.linear(x, _C.T @ _C); y += x; y = F.relu(y, inplace=True)": lambda x: F.relu(F.linear(x, _C.T @ _C) + x),
    "y = torch.expm1(x * 0.1); y.add_(1); y[0].mul_(2)": lambda x: (
        (torch.expm1(x * 0.1) + 1) * torch.tensor([[2.0], [1.0]]).double()
    ),
    "y = torch.asinh(x); y *= 2; y = y + 1": lambda x: 2 * torch.asinh(x) + 1,
    "y = x.clone(); y.detach().mul_(2); y.data[0] = 1.0": lambda x: torch.stack([x[0] * 0 + 1, x[1] * 2]),
}


def _relu_again(x: Any) -> Any:
    first, second, third = x.unbind(1)
    return torch.stack([first, F.relu(second), third], 1)


def run(program: str, x: Any) -> Any:
    """``y`` of a program of ``x``."""
    known = {**globals(), "x": x}
    exec(program, known)
    return known["y"]


@pytest.mark.parametrize("program", LINEAR.values(), ids=LINEAR)
def test_a_linear_program_has_the_variance_of_its_jacobian(program: str) -> None:
    x = normal_input(2, 3)
    law = law_of(x)
    found = run(program, law).moments()
    origin = run(program, torch.zeros(2, 3).double())
    columns = [run(program, unit.view(2, 3)) - origin for unit in torch.eye(6).double()]
    torch.testing.assert_close(found.mean, run(program, x.mean.clone()))
    torch.testing.assert_close(found.var, torch.stack(columns, -1).square() @ x.var.flatten())
    assert torch.equal(law.moments().mean, x.mean)
    assert torch.equal(law.moments().var, x.var)


@pytest.mark.parametrize("program", [*LINEAR.values(), *SAME])
def test_a_program_on_points_is_the_program_on_tensors_bit_for_bit(program: str) -> None:
    x = normal_input(2, 3).mean
    before = x.clone()
    assert torch.equal(run(program, point(x)).value, run(program, before))
    assert torch.equal(x, before)  # laws never write to the tensors that they were made of


@pytest.mark.parametrize("program", SAME)
def test_a_program_in_place_has_the_moments_of_the_program_out_of_place(program: str) -> None:
    x = normal_input(2, 3)
    torch.testing.assert_close(run(program, x.mean.clone()), SAME[program](x.mean.clone()))
    torch.testing.assert_close(tuple(run(program, law_of(x)).moments()), tuple(SAME[program](law_of(x)).moments()))


def test_a_buffer_of_points_becomes_random_with_what_is_written_to_it() -> None:
    buffer = point(torch.zeros(2, 3).double(), Diagonal)
    early = buffer[0]
    x = normal_input(3)
    buffer[0] = law_of(x)
    assert isinstance(buffer, Diagonal)
    assert torch.equal(buffer.moments().var[0], x.var)
    assert torch.equal((early * 2).moments().var, 4 * x.var)  # a view that was taken while the buffer was certain


def test_an_index_that_is_a_point_writes_variances_too() -> None:
    buffer = law_of(normal_input(3, 2))
    x = normal_input(2)
    buffer[point(torch.tensor([1]))] = law_of(x)
    assert torch.equal(buffer.moments().var[1], x.var)
    buffer[point(torch.tensor([1]))] = 0.0
    assert (buffer.moments().var[1] == 0).all()
    assert (buffer.moments().var[0] > 0).all()


def test_other_names_of_a_value_see_the_write() -> None:
    law = law_of(normal_input(3))
    name = law
    law += 1
    assert name is law
    kept = law.clone()
    law.mul_(2)
    assert torch.equal(law.moments().mean, 2 * kept.moments().mean)


# -------------------------------------------------------------------- errors

ERRORS: dict[str, tuple[Callable[[Tensor, Any], Any], str]] = {
    "tensor.add_(law)": (lambda t, x: t.add_(x), "add"),
    "tensor.copy_(law)": (lambda t, x: t.copy_(x), "copy_"),
    "tensor.masked_fill_(law)": (lambda t, x: t.masked_fill_(torch.tensor(True), x.sum()), "masked_fill"),
    "tensor.index_put_(law)": (lambda t, x: t.index_put_((torch.tensor([0]),), x[0]), "index_put_"),
    "tensor.scatter_(law)": (lambda t, x: t.scatter_(0, torch.tensor([0]), x), "scatter"),
    "tensor[...] = law": (lambda t, x: t.__setitem__(..., x), "setitem"),
    "tensor[0] = law": (lambda t, x: t.__setitem__(0, x[0]), "setitem"),
    "out=": (lambda t, x: torch.add(x, 1, out=t), "out="),
    "out= of matmul": (lambda t, x: torch.matmul(x, torch.ones(3, 3).double(), out=t), "out="),
    "out=, a law": (lambda t, x: torch.mul(t, 2, out=x), "out="),
    "law[law] = 0": (lambda t, x: x.__setitem__(x, 0.0), "setitem"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_tensor_cannot_be_overwritten_by_a_random_value(name: str) -> None:
    write, match = ERRORS[name]
    t = torch.zeros(3).double()
    with pytest.raises(UnsupportedError, match=match):
        write(t, law_of(normal_input(3)))
    assert (t == 0).all()


def test_a_write_does_not_change_a_shape() -> None:
    x = law_of(normal_input(3))
    with pytest.raises(RuntimeError):
        x.add_(torch.zeros(2, 3).double())
    assert x.shape == (3,)


def test_what_is_written_keeps_the_dtype() -> None:
    x = law_of(normal_input(3)).float()
    x.add_(torch.ones(3).double())
    assert x.dtype == torch.float32
    assert x.moments().var.dtype == torch.float32


COPIES = [
    "y = torch.empty_like(x); y.copy_(x)",
    "y = torch.zeros_like(x); y[:] = x",
    "y = x.new_empty(x.shape); y[...] = x",
]


@pytest.mark.parametrize("copied", COPIES)
def test_what_is_copied_whole_stays_the_function_of_its_source_that_it_is(copied: str, method: Any) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    powers = np.cos(0.4 + 0.3 * nodes) ** 6
    mean = np.average(powers, weights=weights)
    std = np.average((powers - mean) ** 2, weights=weights) ** 0.5
    found = convert(Of(lambda x: run(copied, torch.cos(x).square()) ** 3).eval(), method)(
        noisy(torch.full((1, 1), 0.4, dtype=torch.float64), std=0.3)
    )
    assert abs(found.mean.item() - mean) < 1e-3 * std
    assert abs(found.std.item() / std - 1) < 1e-3


@pytest.mark.parametrize("certain", [True, False])
def test_a_product_in_place_of_two_values_keeps_the_linear_part(certain: bool) -> None:
    """The derivative of a product needs the factor that it overwrites."""

    def product(x: Tensor) -> Tensor:
        y = torch.ones_like(x) if certain else 1 + 0.1 * x.sin()
        y *= 2 + x
        return y @ torch.ones(20, 1)

    with momentgen.laws.listening() as notes:
        out = momentgen.convert(Of(product).eval())(momentgen.noisy(torch.zeros(1, 20), std=0.1))
    assert not any("rows stand alone" in str(note) for note in notes)
    slope = 1.0 if certain else 1.2
    assert out.std.item() == pytest.approx(0.1 * slope * 20**0.5, rel=0.02)
    assert out.std_error.item() < 0.02 * out.std.item()
