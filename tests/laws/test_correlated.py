"""``correlated`` and ``output_covariance``: what values share is carried to the outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from laws.two_pass_networks import Attention, Gated, Residual, perceptron
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import effort
from momentgen.runtime import JointMoments

SAMPLES = 20_000


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def padded() -> nn.Module:
    """A max pool over padding, which counts as a value below all others."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(96, 3),
    )


def ending(last: nn.Module) -> nn.Module:
    """A classifier that returns probabilities or their logarithms."""
    return nn.Sequential(perceptron(nn.Tanh), last)


#: network, inputs, variance of the noise, tolerance of σ, of the covariance and of the mean in σ, each relative
CASES = {
    "relu": (lambda: perceptron(nn.ReLU), 8, 0.05, 0.1, 0.15, 0.1),
    "tanh": (lambda: perceptron(nn.Tanh), 8, 0.05, 0.1, 0.15, 0.1),
    "gelu": (lambda: perceptron(nn.GELU), 8, 0.05, 0.06, 0.15, 0.1),
    "residual": (Residual, 8, 0.05, 0.06, 0.15, 0.1),
    "gated": (Gated, 8, 0.05, 0.06, 0.15, 0.1),
    "convolutional": (convolutional, 64, 0.05, 0.08, 0.2, 0.15),
    "attention": (Attention, 32, 0.01, 0.08, 0.2, 0.15),
    "softmax": (lambda: ending(nn.Softmax(-1)), 8, 0.02, 0.1, 0.15, 0.1),
    "log softmax": (lambda: ending(nn.LogSoftmax(-1)), 8, 0.02, 0.1, 0.15, 0.1),
}


def built(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose units share much, as those of a trained one."""
    torch.manual_seed(3)
    net = make().eval()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Linear) and module.in_features > 3:
                shared = torch.randn(module.out_features, 1) * torch.randn(1, module.in_features)
                module.weight.add_(shared / module.in_features**0.5)
    return net


def sampled(net: nn.Module, x: Moments) -> Tensor:
    """Outputs of the plain network, shape (samples, batch, K)."""
    torch.manual_seed(7)
    with torch.no_grad():
        drawn = x.mean + x.std * torch.randn(SAMPLES, *x.mean.shape)
        return net(drawn.flatten(0, 1)).unflatten(0, drawn.shape[:2]).double()


def far_off(found: JointMoments, truth: Tensor) -> tuple[float, float, float]:
    """Root mean square error of log σ, mean Frobenius error of the covariance, worst error of the mean in σ."""
    sigma = truth.std(0)
    of_sigma = (found.var.double().sqrt() / sigma).log().square().mean().sqrt().item()
    covariance = torch.stack([torch.cov(truth[:, k].T) for k in range(truth.shape[1])])
    away = (found.covariance - covariance).flatten(1).norm(dim=1) / covariance.flatten(1).norm(dim=1)
    return of_sigma, away.mean().item(), ((found.mean - truth.mean(0)) / sigma).abs().max().item()


@pytest.mark.parametrize("name", CASES)
def test_sigma_covariance_and_mean_are_those_of_sampling(name: str) -> None:
    make, inputs, variance, of_sigma, of_covariance, of_mean = CASES[name]
    net = built(make)
    x = Moments(torch.randn(2, inputs), variance)
    with torch.no_grad():
        found = momentgen.convert(net, method="correlated")(x)
    errors = far_off(found, sampled(net, x))
    assert errors[0] < of_sigma, errors
    assert errors[1] < of_covariance, errors
    assert errors[2] < of_mean, errors


@pytest.mark.parametrize("name", ["relu", "tanh", "residual", "convolutional"])
def test_the_adjoint_covariance_is_that_of_sampling(name: str) -> None:
    make, inputs, variance, *_ = CASES[name]
    net = built(make)
    x = Moments(torch.randn(2, inputs), variance / 5)
    with torch.no_grad():
        found = momentgen.output_covariance(net, x)
    errors = far_off(found, sampled(net, x))
    assert errors[0] < 0.1, errors
    assert errors[1] < 0.2, errors


@pytest.mark.parametrize("method", ["correlated", "adjoint"])
def test_a_linear_network_is_exact(method: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double()
    mean, var = torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64)
    weight = (net[1].weight @ net[0].weight).detach()
    with torch.no_grad():
        if method == "adjoint":
            found = momentgen.output_covariance(net, Moments(mean, var))
        else:
            found = momentgen.convert(net, method="correlated")(Moments(mean, var))
    torch.testing.assert_close(found.covariance, (weight * var[:, None]) @ weight.T, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.mean, net(mean).detach())


def test_noise_of_the_network_itself_is_carried_with_its_correlations() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    built(lambda: net)
    net.train()
    x = torch.randn(2, 8)
    with torch.no_grad():
        found = momentgen.convert(net, method="correlated")(Moments(x, torch.zeros_like(x)))
        truth = net(x.expand(SAMPLES, 2, 8).flatten(0, 1)).unflatten(0, (SAMPLES, 2)).double()
    errors = far_off(found, truth)
    assert errors[0] < 0.06, errors
    assert errors[1] < 0.15, errors


def test_the_same_bits_twice_and_each_example_by_itself() -> None:
    net = built(convolutional)
    x = Moments(torch.randn(3, 64), 0.1)
    with torch.no_grad():
        converted = momentgen.convert(net, method="correlated")
        first, second = converted(x), converted(x)
        alone = converted(Moments(x.mean[1:2], x.var[1:2]))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.var, second.var)
    assert torch.equal(first.factor, second.factor)
    torch.testing.assert_close(alone.var, first.var[1:2], rtol=1e-4, atol=0)


def test_no_noise_gives_none() -> None:
    net = built(convolutional)
    x = torch.randn(2, 64)
    with torch.no_grad():
        found = momentgen.convert(net, method="correlated")(Moments(x, 0.0))
        adjoint = momentgen.output_covariance(net, Moments(x, 0.0))
        torch.testing.assert_close(found.mean, net(x))
    assert not found.var.any()
    assert not adjoint.var.any()


def test_covariances_are_symmetric_and_positive_semidefinite() -> None:
    net = built(Attention)
    x = Moments(torch.randn(3, 32), 0.5)
    with torch.no_grad():
        for found in (momentgen.convert(net, method="correlated")(x), momentgen.output_covariance(net, x)):
            matrix = found.covariance
            assert torch.equal(matrix, matrix.mT)
            assert (torch.linalg.eigvalsh(matrix.double()) > -1e-6 * matrix.diagonal(dim1=-2, dim2=-1).amax()).all()
            assert (found.var >= 0).all()


def test_a_network_learns_through_it() -> None:
    torch.manual_seed(0)
    net = built(lambda: perceptron(nn.ReLU))
    converted = momentgen.convert(net, method="correlated")
    x, y = torch.randn(8, 8), torch.randn(8, 3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(6):
        out = converted(Moments(x, 0.05))
        loss = ((out.mean - y).square() + out.var).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_many_outputs_share_the_directions() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 200))
    x = Moments(torch.randn(1, 6), 0.05)
    with torch.no_grad():
        found = momentgen.convert(net, method="correlated")(x)
    assert found.factor.shape == (1, 10, 200)
    assert far_off(found, sampled(net, x))[1] < 0.15


@pytest.mark.parametrize(
    ("samples", "directions"), [pytest.param(1, 10, id="one sample"), pytest.param(8, 0, id="no direction")]
)
def test_too_little_effort_is_refused(samples: int, directions: int) -> None:
    with pytest.raises(InputError, match="at least 1 direction, 2 samples and 1 example"), effort(directions, samples):
        pass


def test_means_of_linear_networks_are_those_of_the_plain_network() -> None:
    """Also of more outputs than directions, where samples alone know the rest."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 30)).double()
    x = Moments(torch.randn(2, 50).double(), torch.ones(2, 50).double())
    with torch.no_grad():
        torch.testing.assert_close(momentgen.convert(net, method="correlated")(x).mean, net(x.mean))


def test_more_effort_is_spent_where_it_is_asked_for() -> None:
    net = built(lambda: perceptron(nn.ReLU))
    x = Moments(torch.randn(1, 8), 0.05)
    with torch.no_grad(), effort(directions=2, samples=16):
        assert momentgen.convert(net, method="correlated")(x).factor.shape == (1, 2, 3)


def test_many_outputs_of_the_adjoint_must_be_chosen() -> None:
    net = nn.Linear(4, 101)
    x = Moments(torch.zeros(1, 4), 1.0)
    with pytest.raises(InputError, match=r"has 101 outputs.*outputs=.*correlated"):
        momentgen.output_covariance(net, x)
    assert momentgen.output_covariance(net, x, outputs=[3, 100]).covariance.shape == (1, 2, 2)
    with pytest.raises(InputError, match="expected outputs from 0 to 100, got 101"):
        momentgen.output_covariance(net, x, outputs=[101])


def test_what_depends_on_the_draw_is_refused_with_its_place() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(1)

    for run in (
        lambda: momentgen.convert(Picks(), method="correlated")(Moments(torch.zeros(2, 3), 1.0)),
        lambda: momentgen.output_covariance(Picks(), Moments(torch.zeros(2, 3), 1.0)),
    ):
        with pytest.raises(UnsupportedError, match="argmax of a random value"):
            run()


def test_outputs_without_the_batch_in_front_are_refused() -> None:
    class Total(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum()

    with pytest.raises(InputError, match="batch in dimension 0"):
        momentgen.convert(Total(), method="correlated")(Moments(torch.zeros(2, 3), 1.0))


def test_batch_norm_in_training_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    with pytest.raises(InputError, match="1 is a batch norm in training"):
        momentgen.convert(net, method="correlated")(Moments(torch.zeros(2, 3), 1.0))


def test_the_class_posterior_of_correlated_logits_is_that_of_sampling() -> None:
    torch.manual_seed(0)
    logits = JointMoments.of(3 * torch.randn(4, 10), torch.zeros(4, 10), 2 * torch.randn(4, 6, 10))
    logits = JointMoments.of(logits.mean, logits.factor.square().sum(1), logits.factor)
    drawn = logits.mean[:, None] + torch.randn(4, 200_000, 6) @ logits.factor
    truth = torch.softmax(drawn, -1).double().mean(1)
    found = momentgen.class_posterior(logits).double()
    divergence = (truth * (truth.log() - found.log())).sum(1)
    assert divergence.max() < 1e-3
    independent = momentgen.class_posterior(logits, approximation="logistic").double()
    assert divergence.mean() < 0.1 * (truth * (truth.log() - independent.log())).sum(1).mean()
    with pytest.raises(InputError, match="quadrature takes JointMoments"):
        momentgen.class_posterior(Moments(logits.mean, logits.var), approximation="quadrature")


def test_summary_sets_the_methods_beside_each_other_and_says_where_the_diagonal_is_off() -> None:
    net = momentgen.convert(built(lambda: perceptron(nn.ReLU)))
    x = Moments(torch.randn(4, 8), 0.01)
    found = momentgen.summary(net, x, 2000, methods=("ap2", "adjoint", "correlated"), seed=0, progress=False)
    ratios = {row.method: row.ratio for row in found.methods}
    assert abs(ratios["correlated"] - 1) < 0.05  # type: ignore[operator]
    assert abs(ratios["adjoint"] - 1) < 0.1  # type: ignore[operator]
    assert abs(ratios["ap2"] - 1) > 0.2  # type: ignore[operator]
    assert "since it takes units as independent" in str(found)
    assert "output by" in str(found)
    with pytest.raises(InputError, match="expected methods of ap2, adjoint, correlated, covariance, got 'magic'"):
        momentgen.summary(net, x, methods=("magic",))


class Doubled(nn.Module):
    """Every value twice, and then two layers."""

    def __init__(self, twice: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.twice = nn.Linear(12, 24), nn.Linear(24, 3), twice

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.twice(x))))


@pytest.mark.parametrize(
    "twice",
    [
        lambda x: torch.cat([x, x], 1),
        lambda x: torch.stack([x, x], 2).flatten(1),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: x.index_select(1, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])),
        lambda x: x.unsqueeze(2).expand(-1, -1, 2).flatten(1),
    ],
    ids=["cat", "stack", "repeat_interleave", "index_select", "expand"],
)
def test_copies_of_a_value_are_not_taken_as_independent(twice: Callable[[Tensor], Tensor]) -> None:
    """In hidden layers, whose variances the outputs' few directions do not explain by themselves."""
    net = Doubled(twice)
    found: list[Tensor] = []
    converted = momentgen.convert(net, method="correlated")
    handle = converted.first.register_forward_hook(lambda _module, _inputs, out: found.append(out._var))
    x = Moments(torch.randn(1, 6), 0.1)
    with torch.no_grad():
        converted(x)
        weight = net.first.weight
        # What a value meets twice counts twice: weights of copies are added before they are squared.
        copies = torch.stack([net.twice(torch.eye(6)[k][None])[0] for k in range(6)], 1)
        truth = 0.1 * (weight @ copies).square().sum(1)
    handle.remove()
    assert ((found[-1][0] / truth).log() / 2).square().mean().sqrt() < 0.35
    assert abs((found[-1].sum() / truth.sum()).item() - 1) < 0.2


def test_functions_with_several_results_stay_correlated() -> None:
    class Spread(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            var, mean = torch.var_mean(x, 1, keepdim=True)
            return torch.cat([var, mean], 1)

    x = Moments(torch.randn(2, 8), 0.05)
    with torch.no_grad():
        found = momentgen.convert(Spread(), method="correlated")(x)
    assert far_off(found, sampled(Spread(), x))[0] < 0.1


@pytest.mark.parametrize("write", [lambda x: x.view(-1).mul_(2), lambda x: x[:, :2].relu_()])
def test_a_write_that_other_names_must_see_is_refused(write: Callable[[Tensor], object]) -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x * 1.0
            write(x)
            return x

    with pytest.raises(UnsupportedError, match="cannot be written to; write x = f"):
        momentgen.convert(Writes(), method="correlated")(Moments(torch.zeros(2, 4), 1.0))


def test_a_write_that_nobody_else_sees_is_done() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = (x * 1.0).view(len(x), -1)
            x.mul_(3.0)
            x.unsqueeze_(1)
            return x.squeeze(1)

    with torch.no_grad():
        found = momentgen.convert(Writes(), method="correlated")(Moments(torch.ones(2, 4), 1.0))
    torch.testing.assert_close(found.var, torch.full((2, 4), 9.0))


def test_an_empty_batch_is_refused() -> None:
    empty, net = Moments(torch.zeros(0, 3), torch.zeros(0, 3)), nn.Linear(3, 2)
    with pytest.raises(InputError, match="a batch of at least one"):
        momentgen.convert(net, method="correlated")(empty)
    with pytest.raises(InputError, match="a batch of at least one"):
        momentgen.output_covariance(net, empty)


@pytest.mark.parametrize("name", [*CASES, "padded"])
def test_noise_below_the_rounding_of_values_gives_the_sigma_of_larger_noise(name: str) -> None:
    """There a network is linear, so that σ over that of the input is one number, however small the noise."""
    net = built(padded if name == "padded" else CASES[name][0])
    inputs = 64 if name == "padded" else CASES[name][1]
    mean = torch.randn(2, inputs, generator=torch.Generator().manual_seed(5))
    wanted = None
    for sigma in (1e-4, 1e-6, 1e-8, 1e-12):
        with torch.no_grad():
            found = momentgen.convert(net, "correlated")(Moments(mean, torch.full_like(mean, sigma**2)))
        relative = found.var.sqrt() / sigma
        wanted = relative if wanted is None else wanted
        torch.testing.assert_close(relative, wanted, rtol=0.02, atol=0.0)


#: where float32 decides another way: pools over means that differ by less than a rounding, and gates that are open or
#: shut but for few samples
_OTHERWISE = {1e-12: ("convolutional", "padded"), 1e6: ("gated", "softmax", "log softmax"), 1e12: ("gated",)}


@pytest.mark.parametrize(
    ("scale", "name"),
    [(s, n) for s in (1e-12, 1e-6, 1e6, 1e12) for n in (*CASES, "padded") if n not in _OTHERWISE.get(s, ())],
)
def test_inputs_of_any_size_give_the_sigma_of_float64(scale: float, name: str) -> None:
    """Small inputs beside large biases, in residual connections and norms; large ones whose squares overflow."""
    net = built(padded if name == "padded" else CASES[name][0])
    inputs = 64 if name == "padded" else CASES[name][1]
    mean = scale * torch.randn(2, inputs, generator=torch.Generator().manual_seed(5))
    x = Moments(mean, torch.full_like(mean, (0.2 * scale) ** 2))
    with torch.no_grad():
        found = momentgen.convert(net, "correlated")(x)
        exact = momentgen.convert(net.double(), "correlated")(Moments(x.mean.double(), x.var.double()))
    torch.testing.assert_close(found.var.double().sqrt(), exact.var.sqrt(), rtol=0.02, atol=1e-12 * scale)


def test_a_softmax_takes_as_many_directions_and_samples_as_are_asked_for() -> None:
    net = built(lambda: ending(nn.Softmax(-1)))
    x = Moments(torch.randn(2, 8), torch.full((2, 8), 0.02))
    with torch.no_grad(), effort(directions=10, samples=300):
        found = momentgen.convert(net, "correlated")(x)
    assert found.var.isfinite().all()
    assert (found.var > 0).all()
