"""The default of a network for which no method is given."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from laws.small_networks import Of, noisy, same, small, trained
from torch import Tensor, nn
from torch_networks import NETWORKS

import momentgen
from momentgen import Moments
from momentgen.errors import MomentgenError
from momentgen.laws import TrainingModeWarning, notes
from momentgen.laws.methods import ALL
from momentgen.runtime import JointMoments

SAMPLES = 4000


def sampled_sigma(net: nn.Module, x: Moments) -> Tensor:
    drawn = x.mean + x.std * torch.randn(SAMPLES, *x.mean.shape, generator=torch.Generator().manual_seed(1))
    return net(drawn.flatten(0, 1)).unflatten(0, (SAMPLES, -1)).double().std(0)


# ----------------------------------------------------------------- the default


@pytest.mark.parametrize("outputs", [1, 10])
def test_sigma_of_a_trained_network_is_that_of_sampling_where_ap2_is_off_by_a_factor(outputs: int) -> None:
    net, images = trained(outputs)
    x = Moments(images, 0.01)
    truth = sampled_sigma(net, x)
    logs = {
        name: (momentgen.convert(net, name)(x).std.double() / truth).log()  # type: ignore[arg-type]
        for name in (None, "ap2")
    }
    assert logs["ap2"].mean().exp() < 0.5
    assert 0.97 < logs[None].mean().exp() < 1.03
    assert logs[None].std() < 0.07


@pytest.mark.parametrize("outputs", [1, 10])
def test_the_default_in_evaluation_is_controlled_whatever_the_outputs(outputs: int) -> None:
    net, x = small(outputs), noisy(3, 4)
    found = momentgen.convert(net)(x)
    same(found, momentgen.convert(net, "controlled")(x))
    assert found.std_error is not None
    assert found.std_error.shape == found.mean_error.shape == (3, outputs)
    few = momentgen.convert(net, rtol=1.0, max_rows=8)(x)
    assert few.rows == 8


def test_training_is_by_ap2_and_the_outermost_network_decides() -> None:
    net, x = small(), noisy(3, 4)
    network = momentgen.convert(net)
    by_ap2, by_default = momentgen.convert(net, "ap2")(x), network(x)
    network[0].train()  # type: ignore[index]
    same(network(x), by_default)
    network.train()
    network[0].eval()  # type: ignore[index]
    same(network(x), by_ap2)


def test_a_method_that_is_said_counts_and_can_be_taken_back() -> None:
    network, x = momentgen.convert(small()), noisy(3, 4)
    by_default, by_ap2 = network(x), momentgen.convert(small(), "ap2")(x)
    with momentgen.method("ap2"):
        same(network(x), by_ap2)
    momentgen.nn.set_method(network, "ap2")
    same(network(x), by_ap2)
    momentgen.nn.set_method(network, None)
    same(network(x), by_default)


def test_networks_of_converted_networks_are_one_network() -> None:
    first, second, x = small(4), small(), noisy(3, 4)
    whole = momentgen.convert(nn.Sequential(first, second).eval())(x)
    same(momentgen.convert(nn.Sequential(momentgen.convert(first), momentgen.convert(second)).eval())(x), whole)
    inner = momentgen.convert(second, "ap1")  # within a network its own method does not count
    same(momentgen.convert(nn.Sequential(first, inner).eval())(x), whole)


def test_networks_of_our_own_layers_have_the_same_default_and_single_layers_ap2() -> None:
    class Own(momentgen.nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            return self.net(x)

    net, x = small(), noisy(3, 4)
    expected = momentgen.convert(net)(x)
    layers = momentgen.nn.Sequential(
        momentgen.nn.Linear(4, 8),
        momentgen.nn.ReLU(),
        momentgen.nn.Linear(8, 3),  # type: ignore[attr-defined]
    ).eval()
    layers.load_state_dict(net.state_dict())
    same(layers(x), expected)
    same(Own(net).eval()(x), expected)
    relu = momentgen.nn.ReLU().eval()  # type: ignore[attr-defined]
    assert type(relu(x)) is type(momentgen.nn.functional.relu(x)) is Moments


def test_what_is_certain_costs_one_pass() -> None:
    def counted(net: Any, x: Tensor) -> Tensor:
        net.passes += 1
        return net.net(x)

    plain, x = Of(counted, net=small(), passes=0).eval(), noisy(3, 4).mean
    network = momentgen.convert(plain)
    found = network(x)
    assert network.passes == 1
    assert torch.equal(found.mean, plain(x))
    assert not found.var.any()
    assert torch.equal(network(x[0]).mean, plain(x[0]))  # without a batch too


@pytest.mark.parametrize("method", [None, "ap2"])
def test_inference_mode_around_a_call_changes_nothing(method: Any) -> None:
    network, x = momentgen.convert(small(), method), noisy(3, 4)
    with torch.no_grad():
        expected = network(x)
    with torch.inference_mode():
        same(network(Moments(x.mean.clone(), x.var.clone())), expected)


def test_noise_of_the_network_itself_is_met_and_taken_right() -> None:
    net = nn.Sequential(nn.Linear(4, 8), momentgen.nn.InjectedNoise(0.1), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = noisy(3, 4).mean
    found = momentgen.convert(net)(x)
    assert isinstance(found, JointMoments)
    weight = net[3].weight.detach()
    hidden = momentgen.convert(net[:3].eval(), "ap2")(x)  # independent units, of which the last layer is linear
    exact = ((weight * hidden.var[:, None]) @ weight.T).diagonal(dim1=1, dim2=2).sqrt()
    assert ((found.std - exact).abs() < 4 * found.std_error).all()


def test_a_second_call_enters_few_files_and_seldom_goes_from_one_to_another() -> None:
    net, x = momentgen.convert(nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3)).eval()), noisy(2, 4)
    root, files, calls = str(momentgen.__path__[0]), set[str](), list[str]()

    def entered(frame: Any, event: str, _: Any) -> None:
        file, before = frame.f_code.co_filename, frame.f_back and frame.f_back.f_code.co_filename
        if event == "call" and file.startswith(root):
            files.add(file)
            calls.extend([file] if str(before).startswith(root) and before != file else [])

    net(x)
    sys.setprofile(entered)
    net(x)
    sys.setprofile(None)
    assert len(files) <= 28, sorted(files)
    assert len(calls) <= 309


# The default as the method of a whole network, and what it cannot run.
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


# What every method promises, of every network of torch's own layers.
METHODS: tuple[Any, ...] = tuple(ALL)


def _run(name: str, method: Any, std: float) -> tuple[Moments, torch.Tensor]:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    plain = make().eval()
    x = momentgen.noisy(torch.randn(shape), std=std)
    with torch.no_grad():
        return momentgen.convert(plain, method)(x), plain(x.mean)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_an_output_has_the_plain_shape_and_the_variance_and_errors_that_its_method_states(
    method: Any, name: str
) -> None:
    out, plain = _run(name, method, 0.3)
    assert out.mean.shape == out.var.shape == plain.shape
    assert out.mean.dtype is plain.dtype
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert bool((out.var > 0).any()) is ALL[method].is_distribution
    for stated in (out.std_error, out.mean_error, out.rows):
        assert (stated is not None) is (method == "controlled")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_of_a_certain_input_every_method_returns_the_plain_output(method: Any, name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    plain, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        out = momentgen.convert(plain, method)(x)
        torch.testing.assert_close(out.mean, plain(x), rtol=1e-4, atol=1e-4)
    assert out.var.abs().max() < 1e-8


# A network left in training mode, or in two modes at once: one warning, and the method in its repr.
@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    before = set(notes._warned)
    notes._warned.clear()
    yield
    notes._warned.update(before)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _told(network: nn.Module, calls: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(calls):
            network(momentgen.noisy(torch.randn(2, 3), std=0.1))
    return [str(one.message) for one in found if one.category is TrainingModeWarning]


def wrapped(module: nn.Module) -> nn.Module:
    """As DDP does: a module around another one, with a flag of its own."""
    return Of(lambda net, x: net.module(x), module=module)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_training_mode_without_gradients_warns_once(without: Any) -> None:
    with without():
        told = _told(momentgen.convert(_network()))
    assert len(told) == 1
    assert "training mode and needs no gradient" in told[0]
    assert ".eval()" in told[0]


def test_training_mode_of_frozen_parameters_warns() -> None:
    assert len(_told(momentgen.convert(_network().requires_grad_(False)))) == 1


@pytest.mark.parametrize("outer", [True, False], ids=["outer in training", "inner in training"])
def test_a_wrapper_in_another_mode_than_all_within_warns_once(outer: bool) -> None:
    wrapper = wrapped(_network()).train(not outer)
    wrapper.training = outer
    told = _told(momentgen.convert(wrapper))
    assert len(told) == 1
    assert f"the default method is {'ap2' if outer else 'controlled'}" in told[0]


def test_a_wrapper_around_a_converted_network_in_evaluation_answers_by_controlled() -> None:
    wrapper = wrapped(momentgen.convert(_network().eval()))
    assert wrapper.training
    assert _told(wrapper) == []
    assert wrapper(momentgen.noisy(torch.randn(2, 3), std=0.1)).rows is not None


def test_what_fits_its_use_does_not_warn() -> None:
    dropout_drawn = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2)).eval()
    dropout_drawn[1].train()
    for network in (
        momentgen.convert(_network()),
        momentgen.convert(_network().eval()),
        momentgen.convert(dropout_drawn),
    ):
        assert _told(network) == []
    with torch.no_grad():
        assert _told(momentgen.convert(_network(), "ap2")) == []
        assert _told(momentgen.nn.ReLU().train()) == []
        with momentgen.method("controlled"):
            assert _told(momentgen.convert(_network())) == []


def test_reprs_name_the_method() -> None:
    network = momentgen.convert(_network())
    assert repr(network).endswith("# method: ap2, the default in training mode")
    assert repr(network.eval()).endswith("# method: controlled, the default in evaluation mode")
    assert repr(momentgen.convert(_network(), "local")).endswith("# method: local")
    assert "method" not in repr(momentgen.nn.ReLU())
    found = network(momentgen.noisy(torch.randn(2, 3), std=0.1))
    assert repr(found).endswith(f", controlled, {found.rows} rows)")
