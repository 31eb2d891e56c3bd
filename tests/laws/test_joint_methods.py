"""The default as the method of a whole network, and what it cannot run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws.small_networks import Of, noisy
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import MomentgenError
from momentgen.runtime import JointMoments


def test_outputs_of_any_structure_have_their_blocks_of_the_covariance() -> None:
    def several(net: Any, x: Tensor) -> Any:
        return {"both": (net.a(x), [net.b(x)]), "ones": torch.ones(len(x), 2), "name": "x", "place": None}

    net, x = Of(several, a=nn.Linear(4, 2), b=nn.Linear(4, 3)).eval(), noisy(3, 4)
    found = momentgen.convert(net)(x)
    assert found["name"] == "x"
    assert found["place"] is None
    assert torch.equal(found["ones"].mean, torch.ones(3, 2))
    assert not found["ones"].var.any()
    for out, layer in ((found["both"][0], net.a), (found["both"][1][0], net.b)):
        torch.testing.assert_close(out.mean, layer(x.mean))
        expected = (layer.weight * x.var[:, None]) @ layer.weight.T
        torch.testing.assert_close(out.covariance, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 4), (4,)])
def test_networks_in_a_row_hand_the_covariance_on(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    first, second, x = nn.Linear(4, 5).eval(), nn.Linear(5, 3).eval(), noisy(*shape)
    between = momentgen.convert(first)(x)
    assert isinstance(between, JointMoments)
    found = momentgen.convert(second)(between)
    weight = second.weight @ first.weight
    torch.testing.assert_close(found.covariance, (weight * x.var[..., None, :]) @ weight.T, rtol=1e-4, atol=1e-6)


def test_one_value_given_twice_is_one_value_and_two_are_independent() -> None:
    x, y = noisy(2, 3), Moments(torch.zeros(2, 3), 0.5)
    network = momentgen.convert(Of(lambda x, y: x - y).eval())
    assert not network(x, x).var.any()
    torch.testing.assert_close(network(x, y).var, x.var + y.var)


# ------------------------------------------------------------------ what fails


def test_what_torch_cannot_run_either_is_its_own_error() -> None:
    with pytest.raises((RuntimeError, MomentgenError), match="shape") as error:
        momentgen.convert(Of(lambda x: x @ torch.ones(5, 5)).eval())(noisy(3, 4))
    assert "controlled" not in str(error.value)


def test_products_of_a_value_with_itself_run_by_the_default() -> None:
    x = momentgen.noisy(torch.linspace(-1, 1, 16, dtype=torch.float64).view(2, 2, 2, 2), std=0.3)
    found = momentgen.convert(Of(lambda x: x @ x.mT).eval())(x)
    mean, var = x.mean, x.var  # of a · b with independent normal a and b, and of a · a
    twice = (2 * var.square() + 4 * var * mean.square()).sum(-1)
    apart = (var[..., 0, :] * var[..., 1, :] + var[..., 0, :] * mean[..., 1, :].square()
             + var[..., 1, :] * mean[..., 0, :].square()).sum(-1)  # fmt: skip
    truth = torch.stack([torch.stack([twice[..., 0], apart], -1), torch.stack([apart, twice[..., 1]], -1)], -2).sqrt()
    assert ((found.std - truth).abs() < 5 * found.std_error + 0.05 * truth).all()


@pytest.mark.parametrize("named", [True, False])
def test_a_scatter_takes_what_its_index_has_room_for(method: Any, named: bool) -> None:
    def scatters(x: Tensor) -> Tensor:
        index = torch.zeros(len(x), 1, dtype=torch.long)
        return x.scatter(1, index=index, src=2 * x) if named else x.scatter(1, index, 2 * x)

    found = momentgen.convert(Of(scatters).eval(), method)(momentgen.noisy(torch.zeros(2, 4), std=0.3))
    torch.testing.assert_close(found.std, torch.tensor([0.6, 0.3, 0.3, 0.3]).expand(2, 4))


@pytest.mark.parametrize("method", ["ap2", "controlled"])
def test_a_network_of_token_ids_in_which_nothing_is_random_is_the_plain_network(method: Any) -> None:
    plain, tokens = nn.Sequential(nn.Embedding(5, 3), nn.ReLU()).eval(), torch.tensor([[0, 1], [4, 2]])
    found = momentgen.convert(plain, method)(tokens)
    torch.testing.assert_close(found.mean, plain(tokens))
    assert not found.var.any()


# ------------------------------------------------------------ single outputs


def test_an_example_beyond_the_domain_of_an_op_is_nan_and_leaves_the_others_alone(method: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), Of(lambda x: torch.sin(x)), nn.Linear(4, 5)).eval()
    x = Moments(torch.randn(3, 3), torch.full((3, 3), 0.1))
    far = Moments(torch.cat([x.mean[:2], 1e12 * x.mean[2:]]), x.var)
    expected, found = (momentgen.convert(net, method)(given) for given in (x, far))
    assert found.mean[2].isnan().all()
    assert found.var[2].isnan().all()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a[:2], b[:2])
