"""``adjoint``, ``covariance`` and the default as methods of a whole network, and what these cannot run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of, noisy, same, small
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, MomentgenError, UnsupportedError
from momentgen.laws import diagonal, listening
from momentgen.runtime import JointMoments

#: methods that run a network example by example
DEFAULT_RUNS = "controlled, the default of evaluation, runs this network"


# -------------------------------------------------------------- adjoint, joint


def test_adjoint_is_output_covariance_in_the_shape_of_the_output() -> None:
    net, x = nn.Sequential(small(6), nn.Unflatten(1, (2, 3))).eval(), noisy(3, 4)
    found, flat = momentgen.convert(net, "adjoint")(x), momentgen.output_covariance(net, x)
    assert found.mean.shape == found.var.shape == (3, 2, 3)
    same(JointMoments.of(found.mean.flatten(1), found.var.flatten(1), found.factor), flat)
    with momentgen.method("adjoint"):
        same(momentgen.convert(net)(x), found)


@pytest.mark.parametrize("method", ["adjoint", None])
def test_outputs_of_any_structure_have_their_blocks_of_the_covariance(method: Any) -> None:
    def several(net: Any, x: Tensor) -> Any:
        return {"both": (net.a(x), [net.b(x)]), "ones": torch.ones(len(x), 2), "name": "x", "place": None}

    net, x = Of(several, a=nn.Linear(4, 2), b=nn.Linear(4, 3)).eval(), noisy(3, 4)
    found = momentgen.convert(net, method)(x)
    assert found["name"] == "x"
    assert found["place"] is None
    assert torch.equal(found["ones"].mean, torch.ones(3, 2))
    assert not found["ones"].var.any()
    for out, layer in ((found["both"][0], net.a), (found["both"][1][0], net.b)):
        torch.testing.assert_close(out.mean, layer(x.mean))
        expected = (layer.weight * x.var[:, None]) @ layer.weight.T
        torch.testing.assert_close(out.covariance, expected, rtol=1e-4, atol=1e-6)


def test_many_outputs_of_the_method_are_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match=r"101 outputs.*outputs=\[\.\.\.\].*the default of evaluation"):
        momentgen.convert(nn.Linear(4, 101), "adjoint")(noisy(1, 4))


@pytest.mark.parametrize("shape", [(2, 4), (4,)])
@pytest.mark.parametrize("methods", [("adjoint",) * 2, ("covariance",) * 2, ("adjoint", "covariance")])
def test_networks_in_a_row_hand_the_covariance_on(methods: tuple[Any, Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    first, second, x = nn.Linear(4, 5).eval(), nn.Linear(5, 3).eval(), noisy(*shape)
    between = momentgen.convert(first, methods[0])(x)
    assert isinstance(between, JointMoments)
    found = momentgen.convert(second, methods[1])(between)
    weight = second.weight @ first.weight
    torch.testing.assert_close(found.covariance, (weight * x.var[..., None, :]) @ weight.T, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["adjoint", "covariance", None])
def test_one_value_given_twice_is_one_value_and_two_are_independent(method: Any) -> None:
    x, y = noisy(2, 3), Moments(torch.zeros(2, 3), 0.5)
    network = momentgen.convert(Of(lambda x, y: x - y).eval(), method)
    assert not network(x, x).var.any()
    torch.testing.assert_close(network(x, y).var, x.var + y.var)


# ------------------------------------------------------------------ what fails


def time_first() -> nn.Module:
    return Of(lambda net, x: net.net(x)[0], net=nn.GRU(4, 2))


def with_batch_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (lambda: Of(lambda x: x - x.mean(0)), (3, 4), "another result within the batch.*examples interact"),
        (
            lambda: Of(lambda x: x + random.gauss(0, 1)),
            (3, 4),
            "another result within the batch.*draws numbers outside of torch",
        ),
        (time_first, (5, 3, 4), "another result within the batch.*dimension 0 is not the batch"),
        (with_batch_statistics, (3, 4), "1 is a batch norm without running statistics"),
        (
            lambda: Of(lambda x: x.view(3, 4) * 2),
            (3, 4),
            r"alone, as a batch of one, it fails at .*test_joint_methods.py:\d+ with RuntimeError.*shape",
        ),
        (lambda: Of(lambda x: x.sum()), (3, 4), "expected outputs with the batch in dimension 0"),
    ],
)
def test_what_adjoint_cannot_run_the_default_runs_and_the_error_says_so(
    make: Callable[[], nn.Module], shape: Any, said: str
) -> None:
    torch.manual_seed(0)
    net, x = make().eval(), noisy(*shape)
    x = Moments(x.mean, 0.1 * x.var)
    with pytest.raises((InputError, UnsupportedError), match=f"(?s){said}.*method adjoint; {DEFAULT_RUNS}"):
        momentgen.convert(net, "adjoint")(x)
    random.seed(0)
    found = momentgen.convert(net)(x)
    with torch.no_grad():
        drawn = torch.stack([net(x.mean + x.std * torch.randn_like(x.mean)) for _ in range(2000)]).double()
    assert ((found.std - drawn.std(0)).abs() < 4 * found.std_error + 0.05 * drawn.std(0)).all()


def test_what_torch_cannot_run_either_is_its_own_error() -> None:
    for method in (None, "adjoint"):
        with pytest.raises((RuntimeError, MomentgenError), match="shape") as error:
            momentgen.convert(Of(lambda x: x @ torch.ones(5, 5)).eval(), method)(noisy(3, 4))  # type: ignore[arg-type]
        assert "controlled" not in str(error.value)
    with pytest.raises(InputError, match="variance must not be negative"):
        momentgen.convert(small())(Moments(torch.zeros(2, 4), torch.full((2, 4), -1.0)))


INTERACTING = {
    "forwards": lambda x: F.hardshrink(x, 0.3).cumsum(0),
    "backwards": lambda x: F.hardshrink(x, 0.3).flip(0).cumsum(0).flip(0),
    "sum": lambda x: x + F.relu(x - 0.1).sum(0),
    "neighbours": lambda x: x + F.relu(x - 0.1).roll(1, 0),
}


@pytest.mark.parametrize("name", INTERACTING)
@pytest.mark.parametrize("mean", [[0.08, -0.19, -1.04], [-1.04, -0.19, 0.08], [-0.19, -1.04]])
def test_examples_that_interact_are_seen_where_a_kink_hides_it_at_a_draw(name: str, mean: list[float]) -> None:
    network, x = (
        momentgen.convert(Of(lambda x: INTERACTING[name](x)).eval(), "adjoint"),
        momentgen.noisy(torch.tensor(mean), std=0.05),
    )
    found = network(x)  # a vector is one example, unless its values are independent
    at = x.mean + x.std * torch.randn(100_000, len(mean), generator=torch.Generator().manual_seed(0))
    drawn = INTERACTING[name](at.T).T.double()
    assert ((found.mean - drawn.mean(0)).abs() < 0.05 * drawn.std(0) + 1e-3).all()
    assert ((found.std - drawn.std(0)).abs() < 0.05 * drawn.std(0) + 1e-3).all()
    with pytest.raises(InputError, match=r"another result within the batch.*examples interact"):
        network(momentgen.noisy(x.mean[:, None].expand(-1, 2).clone(), std=0.05))


def test_arguments_that_only_look_like_a_batch_are_seen() -> None:
    network, x = momentgen.convert(Of(lambda x, positions: x + positions.sum()).eval(), "adjoint"), noisy(3, 4)
    assert isinstance(network(x, torch.ones(5)), JointMoments)
    with pytest.raises(InputError, match="another result within the batch"):
        network(x, torch.ones(3))


def test_products_of_a_value_with_itself_run_by_the_default() -> None:
    x = momentgen.noisy(torch.linspace(-1, 1, 16, dtype=torch.float64).view(2, 2, 2, 2), std=0.3)
    found = momentgen.convert(Of(lambda x: x @ x.mT).eval())(x)
    mean, var = x.mean, x.var  # of a · b with independent normal a and b, and of a · a
    twice = (2 * var.square() + 4 * var * mean.square()).sum(-1)
    apart = (var[..., 0, :] * var[..., 1, :] + var[..., 0, :] * mean[..., 1, :].square()
             + var[..., 1, :] * mean[..., 0, :].square()).sum(-1)  # fmt: skip
    truth = torch.stack([torch.stack([twice[..., 0], apart], -1), torch.stack([apart, twice[..., 1]], -1)], -2).sqrt()
    assert ((found.std - truth).abs() < 5 * found.std_error + 0.05 * truth).all()


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_an_output_that_needs_other_examples_is_refused_as_that(method: Any) -> None:
    with pytest.raises(InputError, match=r"batch in dimension 0, got shape \(0, 2, 2\)"):
        momentgen.convert(Of(lambda x: torch.diff(x, dim=0)).eval(), method)(noisy(3, 2, 2))


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_a_certain_vector_of_zeros_is_one_example_where_its_values_meet(method: Any) -> None:
    found = momentgen.convert(nn.Linear(2, 2, bias=False).eval(), method)(torch.zeros(2))
    assert not found.mean.any()
    assert not found.var.any()


@pytest.mark.parametrize("named", [True, False])
def test_a_scatter_takes_what_its_index_has_room_for(method: Any, named: bool) -> None:
    def scatters(x: Tensor) -> Tensor:
        index = torch.zeros(len(x), 1, dtype=torch.long)
        return x.scatter(1, index=index, src=2 * x) if named else x.scatter(1, index, 2 * x)

    found = momentgen.convert(Of(scatters).eval(), method)(momentgen.noisy(torch.zeros(2, 4), std=0.3))
    torch.testing.assert_close(found.std, torch.tensor([0.6, 0.3, 0.3, 0.3]).expand(2, 4))


def test_the_covariance_of_a_maximum_of_expanded_values_is_that_of_draws() -> None:
    x = momentgen.noisy(torch.tensor([[0.1, 0.3, 0.2]]), std=0.3)
    found = momentgen.convert(Of(lambda x: x.unsqueeze(1).expand(-1, 2, -1).amax(-1)).eval(), "covariance")(x)
    truth = (x.mean + 0.3 * torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0))).amax(-1).std()
    torch.testing.assert_close(found.std, truth.expand(1, 2), rtol=0.02, atol=0)


MOVES = {
    "moveaxis": lambda x: torch.moveaxis(x, 1, 2),  # torch.vmap cannot run it
    "native_channel_shuffle": lambda x: torch.native_channel_shuffle(x, 2),  # autograd cannot
}


@pytest.mark.parametrize("name", MOVES)
def test_a_movement_that_a_transform_of_torch_cannot_run_has_the_moments_of_what_it_moves(name: str) -> None:
    mean = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 4, 3, 1)
    std = mean.abs() + 0.1
    with listening() as notes:
        found = momentgen.convert(Of(lambda x: MOVES[name](x)).eval(), "adjoint")(momentgen.noisy(mean, std=std))
    torch.testing.assert_close(found.mean, MOVES[name](mean))
    torch.testing.assert_close(found.std, MOVES[name](std))
    assert not notes  # all examples at once


@pytest.mark.parametrize("method", ["ap2", "adjoint", "covariance", "controlled"])
def test_a_network_of_token_ids_in_which_nothing_is_random_is_the_plain_network(method: Any) -> None:
    plain, tokens = nn.Sequential(nn.Embedding(5, 3), nn.ReLU()).eval(), torch.tensor([[0, 1], [4, 2]])
    found = momentgen.convert(plain, method)(tokens)
    torch.testing.assert_close(found.mean, plain(tokens))
    assert not found.var.any()


def test_noise_of_weights_is_refused_rather_than_lost() -> None:
    net = small()
    weight = net[0].weight.detach()  # type: ignore[index]
    del net[0]._parameters["weight"]  # type: ignore[index]
    net[0].weight = diagonal(weight, torch.full_like(weight, 0.1))  # type: ignore[index]
    network = momentgen.convert(net, "adjoint")
    for x in (noisy(3, 4), noisy(3, 4).mean):
        with pytest.raises(InputError, match="weight is a random value"):
            network(x)
        assert momentgen.convert(net.train())(x).var.all()
        net.eval()


def test_a_network_that_vmap_cannot_run_is_run_one_example_after_another() -> None:
    plain = Of(lambda net, x, scale: net.net(x) * scale.max().item(), net=small()).eval()
    x, scale = noisy(3, 4), torch.full((3, 1), 2.0)
    with listening() as notes:
        found = momentgen.convert(plain, "adjoint")(x, scale)
    assert any("one example after another" in text for text in notes)
    torch.testing.assert_close(found.var, 4 * momentgen.convert(plain.net, "adjoint")(x).var)


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
