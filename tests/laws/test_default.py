"""The default of a network for which no method is given."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from laws.small_networks import Of, noisy, same, small, trained
from torch import Tensor, nn

import momentgen
from momentgen import Moments
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
    assert len(calls) <= 315
