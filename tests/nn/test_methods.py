"""AP1, AP2 and sample: contexts, modules, threads, compiled code, Monte Carlo."""

import copy

import pytest
import torch
from laws.small_networks import Of
from torch.nn import functional as F

import momentgen
import momentgen.generated
from momentgen import Moments, nn
from momentgen.laws.channels import channels
from momentgen.nn.monte_carlo import RunningMoments


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.LeakyReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(27, 4),
    ).eval()


def test_a_context_outranks_a_module_and_ends():
    layer = nn.set_method(nn.ReLU(), "ap1")
    x = Moments(torch.zeros(1), torch.ones(1))
    assert layer(x).mean == 0
    with momentgen.method("ap2"):
        assert layer(x).mean > 0
        with momentgen.method("ap1"):
            assert layer(x).mean == 0
        assert layer(x).mean > 0
    assert layer(x).mean == 0
    assert nn.set_method(layer, None)(x).mean > 0


def test_a_method_may_be_entered_within_code_that_is_compiled_whole():
    torch._dynamo.reset()
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), Moments(torch.randn(4, 3), torch.rand(4, 3))

    def inside(x: Moments) -> Moments:
        with momentgen.method("ap1"):
            return net(x)

    assert torch.compile(inside, backend="aot_eager", fullgraph=True)(x).var.count_nonzero() == 0


def test_sample_sees_one_draw_in_both_branches():
    difference = Of(lambda net, x: net.one(x) - net.other(x), one=nn.Identity(), other=nn.Identity())
    found = momentgen.convert(difference, "sample")(Moments(torch.zeros(6), torch.ones(6)))
    assert found.mean.count_nonzero() == 0


@pytest.mark.parametrize("training", [True, False])
def test_monte_carlo_agrees_with_ap2_where_ap2_is_exact(training):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.4)).train(training)
    x = Moments(0.3 * torch.randn(2, 3), torch.rand(2, 3) + 1)
    n = 10_000
    found = momentgen.monte_carlo(net, x, n, seed=1, rows=4096, progress=False)
    with torch.no_grad(), momentgen.method("ap2"):
        wanted = net(x)
    error = (found.output.var / n).sqrt()
    assert ((found.output.mean - wanted.mean).abs() < 4 * error).all()
    torch.testing.assert_close(found.output.var, wanted.var.double(), rtol=0.1, atol=1e-3)
    assert list(found.layers) == ["0", "1", "2"]
    torch.testing.assert_close(found.layers["2"].var, found.output.var)
    assert net.training is training


def test_monte_carlo_draws_plain_networks_too_and_names_repeated_calls():
    twice = Of(lambda net, x: net.act(net.act(x) - 1), act=torch.nn.ReLU())
    x = Moments(torch.zeros(3, 2), torch.ones(3, 2))
    found = momentgen.monte_carlo(twice, x, 100, seed=0, functions={"square": torch.square})
    assert list(found.layers) == ["act", "act:1"]
    mean, var = found.output
    torch.testing.assert_close(found.expected["square"].mean, mean**2 + var * 99 / 100, rtol=1e-5, atol=1e-6)


def test_chunks_merge_to_the_moments_of_all_samples():
    torch.manual_seed(0)
    samples = torch.randn(1000, 3, dtype=torch.float64) + 1e6
    running = RunningMoments()
    for chunk in samples.split(37):
        running.update(chunk)
    torch.testing.assert_close(running.moments().mean, samples.mean(0))
    torch.testing.assert_close(running.moments().var, samples.var(0), rtol=1e-9, atol=0)


def test_monte_carlo_continues_no_generator_but_its_own():
    net, x = nn.Dropout(0.5), torch.ones(2, 3)
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    first = momentgen.monte_carlo(net, x, 10, seed=5)
    assert torch.equal(torch.rand(4), wanted)
    assert torch.equal(first.output.mean, momentgen.monte_carlo(net, x, 10, seed=5).output.mean)


def test_a_summary_names_every_layer_and_its_ratio(tmp_path):
    x = Moments(torch.randn(3, 1, 8, 8), torch.full((3, 1, 8, 8), 0.1))
    found = momentgen.summary(small_network(), x, samples=2000, seed=0)
    assert [row.kind for row in found.rows] == [type(part).__name__ for part in small_network()]
    assert found.rows[0].ratio == pytest.approx(1, abs=0.02)
    assert found.rows[2].saturation is not None
    assert "LeakyReLU" in str(found)
    pytest.importorskip("matplotlib").use("Agg")
    found.plot(tmp_path / "summary.png")
    assert (tmp_path / "summary.png").stat().st_size > 1000


def test_statistics_of_channels_normalise_what_they_propagate():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.Normalize(4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.Normalize(3),
    )
    mean, var = torch.tensor([0.2, -1.0]), torch.tensor([0.5, 2.0])
    out = nn.propagate_statistics(net, mean, var)
    torch.testing.assert_close(out.mean, torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var, torch.ones(3), atol=1e-3, rtol=0)
    # Independent pixels of those statistics do come out normalised at the first normalisation.
    pixels = mean.view(1, 2, 1, 1) + var.sqrt().view(1, 2, 1, 1) * torch.randn(20_000, 2, 3, 3)
    with momentgen.method("ap1"):
        first = net[:2].eval()(pixels).mean
    assert ((first.mean((0, 2, 3))).abs() < 4 / 20_000**0.5).all()
    torch.testing.assert_close(first.var((0, 2, 3)), torch.ones(4), atol=0.05, rtol=0)


def test_statistics_are_kept_and_weights_are_not():
    net = nn.Sequential(nn.Linear(2, 1), nn.Normalize(1))
    nn.propagate_statistics(net, torch.tensor([0.2, -1.0]), torch.tensor([0.5, 2.0]))
    x = torch.randn(1, 2)
    before = net(x).mean
    net[1].weight.data.mul_(3.0)
    torch.testing.assert_close(net(x).mean, 3 * before)
    copy.deepcopy(net)  # holds no graph


def test_training_differentiates_through_the_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Normalize(4, affine=False, eps=0.0))
    model = nn.AnalyticNormalization(net, torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, 2.0, 0.5])).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    target = torch.randn(5, 4, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return F.mse_loss(model(x).mean, target)

    for _ in range(2):  # a second step needs a graph of its own
        model.zero_grad()
        loss().backward()
    weight = net[0].weight
    gradient = weight.grad.clone()
    # The output does not change with the scale of a row: the gradient is orthogonal to it.
    assert (gradient * weight).sum(1).abs().max() < 1e-12
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_data_statistics_have_the_dtype_of_the_network(dtype: torch.dtype):
    net = nn.Sequential(nn.Linear(3, 4), nn.Normalize(4)).to(dtype)
    model = nn.AnalyticNormalization(net, torch.zeros(3), torch.ones(3))
    assert model(torch.zeros(2, 3, dtype=dtype)).mean.dtype is dtype
    assert {buffer.dtype for buffer in model.buffers()} == {dtype}


def test_moments_of_every_module_by_each_method():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(3, 3), nn.LogisticBernoulli())
    net = nn.Sequential(block, nn.Linear(3, 2)).eval()
    x = torch.randn(4, 3)
    probability = block[0](x).mean.sigmoid()
    for method, atol in (("ap1", 1e-6), ("ap2", 1e-6), ("controlled", 0.3)):
        found = nn.moments(net, x, method=method)
        assert set(found) == {"0", "0.0", "0.1", "1", "output"}
        torch.testing.assert_close(found["0.1"].mean, probability, rtol=0, atol=atol)
        assert torch.equal(found["1"].mean, found["output"].mean)
    torch.testing.assert_close(nn.moments(net, x, method="ap2")["0"].var, probability * (1 - probability))
    assert set(nn.moments(net, x, method="sample")["0.1"].mean.unique().tolist()) <= {0.0, 1.0}
    twice = Of(lambda net, x: net.layer(net.layer(x)), layer=torch.nn.Linear(3, 3))
    found = nn.moments(twice, Moments(x, torch.ones(4, 3)), method="ap2")
    assert torch.equal(found["layer:1"].var, found["output"].var)
    assert not torch.equal(found["layer"].var, found["output"].var)


def test_normalised_networks_are_transformed_by_torch_func():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Normalize(2), nn.LeakyReLU(), nn.Flatten(), nn.Linear(8, 1))
    model = nn.AnalyticNormalization(net, 0.1, 0.2).double()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    x = torch.randn(4, 1, 3, 3, dtype=torch.float64)

    def loss(values: dict[str, torch.Tensor], kept: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, (values, kept), (x,)).mean.square().sum()

    found = torch.func.grad(loss)(parameters, buffers)  # buffers are written to, as batch norm's are
    loss(parameters, buffers).backward()
    for name, value in parameters.items():
        torch.testing.assert_close(found[name], value.grad)


def test_gradients_of_square_weights_are_those_of_finite_differences():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    x = (torch.randn(4, 3).double().requires_grad_(), torch.rand(4, 3).double().requires_grad_())
    one = tuple(part[0].detach().clone().requires_grad_() for part in x)

    def run(mean: torch.Tensor, var: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.func.functional_call(layer, {"weight": weight}, (Moments(mean, var),)))

    def statistics(mean: torch.Tensor, var: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.func.functional_call(layer, {"weight": weight}, (channels(mean, var),)).moments())

    for function, inputs in ((run, x), (statistics, one)):
        assert torch.autograd.gradcheck(function, (*inputs, layer.weight))
        assert torch.autograd.gradgradcheck(function, (*inputs, layer.weight))
    jacobian = torch.func.jacrev(lambda var: layer(Moments(x[0].detach(), var)).var.sum(0))(x[1].detach())
    torch.testing.assert_close(jacobian[:, 0], layer.weight.square())


def test_analytic_initialisation_gives_unit_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.LeakyReLU(), nn.Conv2d(8, 4, 3), nn.LeakyReLU(), nn.Flatten(), nn.Linear(64, 2)
    )
    out = nn.initialise_analytically(net, torch.tensor([0.1]), torch.tensor([0.3]))
    again = nn.propagate_statistics(net, torch.tensor([0.1]), torch.tensor([0.3]))
    torch.testing.assert_close(again.mean, out.mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(again.var, torch.ones(2), atol=1e-4, rtol=0)


# Statistics of a data set: what the rules of Channels do beside the layers that tests/nn looks at.
MEAN, VAR = torch.tensor([0.2, -1.0, 0.5]), torch.tensor([0.5, 2.0, 0.1])


def test_an_activation_written_by_hand_is_its_op():
    x = channels(MEAN, VAR)
    found, wanted = (x * torch.sigmoid(x)).moments(), momentgen.generated.silu(MEAN, VAR)
    torch.testing.assert_close(found, wanted)


def test_the_nominal_shape_is_a_batch_of_one_with_one_place():
    x = F.conv2d(channels(MEAN, VAR, torch.nn.Conv2d(3, 4, 3)), torch.randn(4, 3, 3, 3))
    assert x.shape == (1, 4, 1, 1)
    assert x.flatten(1).shape == (1, 4)
    assert x.view(x.size(0), -1).moments().mean.shape == (4,)


def test_batch_norm_has_its_arguments_in_the_order_of_torch_or_of_functional():
    mean, var, weight, bias = torch.rand(4, 3) + 0.1
    x = channels(MEAN, VAR)
    found = torch.batch_norm(x, weight, bias, mean, var, False, 0.1, 1e-5, False).moments()
    torch.testing.assert_close(found, F.batch_norm(x, mean, var, weight, bias).moments())
