"""What a value remembers of its source: until one of them is written to, and no longer than it is needed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sampling import assert_agrees, law_of, normal_input


def _after(write: Callable[[Any], Any], use: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        x = x.clone()
        y = torch.sigmoid(x)
        write(x)
        return use(x, y)

    return program


def test_what_is_written_to_is_no_longer_the_source() -> None:
    # After x is overwritten by something certain, x·sigmoid(old x) is not SiLU.
    program = _after(lambda x: x.zero_().add_(2.0), lambda x, y: x * y)
    assert_agrees(program, normal_input(1, 4))
    # After one is added, sigmoid(old x) is taken as independent: no history is better than a stale one.
    x = normal_input(1, 4)
    found = _after(lambda x: x.add_(1), lambda x, y: x * y)(law_of(x)).moments()
    separate = ((law_of(x) + 1) * torch.sigmoid(law_of(x))).moments()
    torch.testing.assert_close(found, separate)


@pytest.mark.parametrize("through", [lambda x: x, lambda x: x[:, :], lambda x: x.view(1, 4), lambda x: x[0][None]])
def test_what_is_put_off_is_computed_before_its_source_is_written_to(through: Callable[[Any], Any]) -> None:
    x = normal_input(1, 4)
    law = law_of(x)
    view = through(law)
    y = view * torch.cos(view)
    law.mul_(100.0)
    want = law_of(x)
    want = (want * torch.cos(want)).moments()
    assert torch.equal(y.moments().mean, want.mean)
    assert torch.equal(y.moments().var, want.var)


def test_a_view_is_no_source_after_its_base_was_written_to() -> None:
    x = normal_input(1, 4)
    law = law_of(x)
    view = law.view(4)
    y = torch.sigmoid(view)
    law.zero_()
    assert (y * view).moments().mean.abs().max() == 0
    assert (y * view).moments().var.abs().max() == 0


def test_a_constant_that_is_overwritten_later_is_not_looked_at_again() -> None:
    x, factor = normal_input(1, 4), torch.full((4,), 0.5).double()
    law = law_of(x)
    y = law * factor
    z = y * torch.cos(law)
    factor.zero_()
    again = law_of(x)
    want = ((again * 0.5) * torch.cos(again)).moments()
    torch.testing.assert_close(z.moments().mean, want.mean)
    found = (y * torch.sin(law)).moments()  # the history of y is not to be used
    assert (found.mean != 0).all()


def test_a_law_is_freed_after_the_next_affine_map() -> None:
    law = law_of(normal_input(2, 4))
    reference = weakref.ref(law)
    out = F.linear(torch.relu(law), torch.ones(3, 4).double())
    del law
    gc.collect()
    assert reference() is None
    assert out.moments().var.shape == (2, 3)


@pytest.mark.parametrize(
    "step", [torch.relu, lambda x: x + 1, torch.expm1, lambda x: 0.5 * (x * torch.cos(x)), lambda x: x.view(2, 4)]
)
def test_long_chains_are_cut(step: Callable[[Any], Any]) -> None:
    law = law_of(normal_input(2, 4, least=0.01, spread=0.01))
    reference = weakref.ref(law)
    for _ in range(300):
        law = step(0.1 * law)
    gc.collect()
    assert reference() is None
    assert law.moments().mean.isfinite().all()
