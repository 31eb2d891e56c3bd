"""Likelihoods: against mpmath's quadrature and closed forms, in the tails, and gradients."""

import math

import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from inference.normal_truth import log_over_normal, over_normal
from torch.autograd import gradcheck

from momentgen import Moments
from momentgen.errors import InputError
from momentgen.inference.likelihood import Bernoulli, Categorical, Gamma, Gaussian, Likelihood, Probit
from momentgen.inference.normal_expectations import log_mean_sigmoid, log_ndtr, mean_at_nodes
from momentgen.runtime import JointMoments

MEANS = (-300.0, -20.0, -3.0, -0.4, 0.0, 1.0, 5.0, 40.0)
VARS = (0.0, 0.01, 0.5, 1.0, 1.001, 3.0, 30.0, 1e3)


def mean_log_ndtr(mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return mean_at_nodes(log_ndtr, mean, var)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------- expectations


@pytest.mark.parametrize("var", VARS)
@pytest.mark.parametrize(
    ("function", "quadrature"),
    [
        (mean_log_ndtr, lambda mean, var: over_normal(scipy.special.log_ndtr, mean, var)),
        (log_mean_sigmoid, lambda mean, var: log_over_normal(scipy.special.log_expit, mean, var)),
    ],
)
def test_expectations_are_the_quadrature_in_the_tails_too(function, quadrature, var):
    for mean in MEANS:
        truth = quadrature(mean, var)
        # nodes of a large variance are coarse beside the bend of log Phi
        near = 1e-12 if function is log_mean_sigmoid or var < 100 else 3e-5
        assert abs(function(double(mean), double(var)).item() - truth) <= near * max(1, abs(truth)), (mean, var)


@pytest.mark.parametrize("function", [mean_log_ndtr, log_mean_sigmoid])
def test_partials_obey_price_at_variance_0(function):
    mean, var = double(-90.0, -20.0, -2.0, 0.0, 3.0).requires_grad_(), torch.zeros(5, dtype=torch.float64)
    in_mean, in_var = torch.autograd.grad(function(mean, var.requires_grad_()).sum(), (mean, var))
    for m, d_mean, d_var in zip(mean.tolist(), in_mean.tolist(), in_var.tolist(), strict=True):
        with mpmath.workdps(60):
            p = mpmath.ncdf if function is mean_log_ndtr else lambda x: 1 / (1 + mpmath.exp(-x))
            slope, bend = (mpmath.diff(lambda x: mpmath.log(p(x)), m, n, h=mpmath.mpf("1e-12")) for n in (1, 2))  # noqa: B023
        # log E p has the curvature of p itself
        expected = bend / 2 if function is mean_log_ndtr else (bend + slope**2) / 2
        assert abs(d_mean - slope) <= 1e-6 * max(1, abs(slope))
        assert abs(d_var - expected) <= 1e-6 * max(1, abs(expected))


def test_gamma_noise_has_the_evidence_of_its_expected_variance_and_no_bound():
    likelihood, output, y = Gaussian(precision=Gamma(3.5, 2.0)), Moments(double(0.4), double(0.8)), double(1.3)
    expected = scipy.stats.norm(0.4, math.sqrt(2 / 2.5 + 0.8))
    assert likelihood.predictive(output).var.item() == pytest.approx(expected.var(), rel=1e-12)
    assert likelihood.log_z(output, y).item() == pytest.approx(expected.logpdf(1.3), rel=1e-12)
    for call in (likelihood.expected_log_prob, likelihood.log_prob):
        with pytest.raises(InputError, match="expected var; a Gamma precision is for DensityFilter"):
            call(output.mean, y)


def test_gaussian_evidence_of_correlated_outputs_is_that_of_all_together():
    torch.manual_seed(0)
    mean, factor, y = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 2), (3, 4, 2), (3, 2)))
    covariance = factor.mT @ factor
    output = JointMoments.of(mean, covariance.diagonal(dim1=1, dim2=2), factor)
    found = Gaussian(double(0.3, 0.6)).log_z(output, y)
    for n in range(3):
        joint = scipy.stats.multivariate_normal(mean[n].numpy(), covariance[n].numpy() + np.diag([0.3, 0.6]))
        assert found[n].item() == pytest.approx(joint.logpdf(y[n].numpy()), rel=1e-12)


def test_learnt_noise_has_a_gradient_and_stays_positive():
    likelihood = Gaussian(0.5, learn=True)
    assert [name for name, _ in likelihood.named_parameters()] == ["log_var"]
    likelihood.expected_log_prob(Moments(torch.zeros(1), torch.zeros(1)), torch.ones(1)).backward()
    assert likelihood.log_var.grad.item() == pytest.approx(0.5 / 0.5 - 0.5, rel=1e-6)  # of -log(var)/2 - 1/(2 var)


# ---------------------------------------------------------------------- labels


@pytest.mark.parametrize("expectation", ["quadrature", "bound", "mean_predictor"])
def test_categorical_expectation_of_two_classes_is_that_of_their_difference(expectation):
    means, variances = (0.8, -0.3), (0.5, 0.4)
    output = Moments(double(*means), double(*variances))
    for label, sign in ((0, 1), (1, -1)):
        truth = over_normal(lambda f, s=sign: scipy.special.log_expit(s * f), means[0] - means[1], sum(variances))
        found = Categorical(expectation).expected_log_prob(output, torch.tensor(label)).item()
        if expectation == "quadrature":
            assert found == pytest.approx(float(truth), abs=2e-3)
            many = Categorical(points=16384).expected_log_prob(output, torch.tensor(label)).item()
            assert many == pytest.approx(float(truth), abs=2e-5)
        else:
            assert found < truth


def test_categorical_quadrature_takes_the_covariance_along():
    # two logits that move together leave their softmax alone
    factor = torch.full((1, 1, 2), 3.0, dtype=torch.float64)
    output = JointMoments.of(double(1.0, 0.0)[None], double(9.0, 9.0)[None], factor)
    truth = torch.log_softmax(output.mean, -1)[:, 1]
    y = torch.tensor([1])
    assert torch.allclose(Categorical().expected_log_prob(output, y), truth, rtol=1e-12)
    assert torch.allclose(Categorical().log_z(output, y), truth, rtol=1e-12)
    apart = Moments(output.mean, output.var)
    assert Categorical().expected_log_prob(apart, y) < truth - 0.3


@pytest.mark.parametrize("expectation", ["quadrature", "bound"])
def test_categorical_expectation_of_an_almost_certain_class_keeps_its_digits(expectation):
    output = Moments(torch.tensor([1e4 + 12.0, 1e4]), torch.full((2,), 0.01))
    found = Categorical(expectation).expected_log_prob(output, torch.tensor(0)).item()
    truth = over_normal(scipy.special.log_expit, 12.0, 0.02)
    assert abs(found - truth) < (1e-6 if expectation == "quadrature" else 0.006)  # the bound has y's own variance


def test_categorical_evidence_is_that_of_its_predictive():
    torch.manual_seed(0)
    output, y = Moments(torch.randn(4, 3), torch.rand(4, 3)), torch.tensor([0, 2, 1, 1])
    for posterior in (None, "simplified", "normal"):
        likelihood = Categorical(posterior=posterior)
        probabilities = likelihood.predictive(output)
        assert torch.allclose(probabilities.sum(-1), torch.ones(4))
        assert torch.allclose(likelihood.log_predictive(output), probabilities.log(), atol=1e-6)
        assert torch.allclose(likelihood.log_z(output, y), probabilities[range(4), y].log(), atol=1e-6)
    certain = torch.tensor([[900.0, 0.0, -900.0]], dtype=torch.float64)
    np.testing.assert_allclose(Categorical().log_predictive(certain), [[0.0, -900.0, -1800.0]])


def test_mean_predictor_is_the_papers_form():
    output, y = Moments(double(0.7, -1.2), double(0.5, 2.0)), torch.tensor([1, 0])
    logits = (scipy.special.log_expit(0.7), scipy.special.log_expit(1.2))
    found = Bernoulli("mean_predictor").expected_log_prob(output, y).item()
    assert found == pytest.approx(sum(logits) - 1.25, rel=1e-12)
    assert found < Bernoulli().expected_log_prob(output, y).item()
    probit = Probit("mean_predictor").expected_log_prob(output, y).item()
    assert probit == pytest.approx(scipy.special.log_ndtr(0.7) + scipy.special.log_ndtr(1.2) - 1.25, rel=1e-12)
    assert probit < Probit().expected_log_prob(output, y).item()


# --------------------------------------------------------- gradients and extremes

LIKELIHOODS: dict[str, tuple[Likelihood, torch.Tensor]] = {
    "gaussian": (Gaussian(0.3), double(0.2, -1.0, 3.0)),
    "probit": (Probit(), torch.tensor([0, 1, 1])),
    "bernoulli": (Bernoulli(), torch.tensor([0, 1, 1])),
    "bernoulli mean_predictor": (Bernoulli("mean_predictor"), torch.tensor([0, 1, 1])),
    "categorical": (Categorical(), torch.tensor(1)),
    "categorical bound": (Categorical("bound"), torch.tensor(1)),
    "categorical mean_predictor": (Categorical("mean_predictor", posterior="simplified"), torch.tensor(1)),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("method", ["expected_log_prob", "log_z"])
@pytest.mark.parametrize("scale", [0.3, 6.0])
def test_gradients_in_mean_and_variance(name, method, scale):
    likelihood, y = LIKELIHOODS[name]
    mean, var = double(0.4, -2.0, 1.5).requires_grad_(), (scale * double(0.5, 1.2, 2.0)).requires_grad_()
    assert gradcheck(lambda m, v: getattr(likelihood, method)(Moments(m, v), y), (mean, var), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_extreme_outputs_give_finite_values_and_gradients(name, dtype):
    likelihood, y = LIKELIHOODS[name]
    y = y.to(dtype) if y.is_floating_point() else y
    for size in (0.0, 1e4):
        for variance in (0.0, 1e-30, 1.0, 1e8, 1e30):
            mean = (size * torch.tensor([1.0, -1.0, 0.5], dtype=dtype)).requires_grad_()
            var = torch.full((3,), variance, dtype=dtype, requires_grad=True)
            for method in ("expected_log_prob", "log_z"):
                value = getattr(likelihood, method)(Moments(mean, var), y)
                found = (value, *torch.autograd.grad(value, (mean, var)))
                assert all(bool(t.isfinite().all()) for t in found), (method, size, variance, found)
                assert value.dtype is dtype
                assert value.shape == ()


def test_categorical_quadrature_has_the_derivative_at_variance_0():
    mean, var = double(0.4, -2.0, 1.5), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(Categorical().expected_log_prob(Moments(mean, var), torch.tensor(1)), var)
    p = torch.softmax(mean, -1)
    assert torch.allclose(found, -p * (1 - p) / 2, rtol=1e-5)  # Price: half the second derivative


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_samples_in_front_are_taken_one_by_one(name):
    likelihood, y = LIKELIHOODS[name]
    torch.manual_seed(0)
    mean, var = torch.randn(5, 4, 3, dtype=torch.float64), torch.rand(5, 4, 3, dtype=torch.float64)
    y = y.expand(4, *y.shape)
    for method in ("expected_log_prob", "log_z"):
        whole = getattr(likelihood, method)(Moments(mean, var), y)
        alone = getattr(likelihood, method)(Moments(mean[2, 1], var[2, 1]), y[1])
        assert whole.shape == (5, 4)
        assert torch.allclose(whole[2, 1], alone, rtol=1e-12)
    assert torch.allclose(likelihood.log_prob(mean, y)[2, 1], likelihood.log_prob(mean[2, 1], y[1]), rtol=1e-12)


@pytest.mark.parametrize("name", ["bernoulli", "categorical"])
def test_compiled_terms_are_the_eager_ones(name):
    likelihood, y = LIKELIHOODS[name]
    mean, var = double(0.4, -2.0, 1.5).requires_grad_(), double(0.5, 1.2, 2.0).requires_grad_()

    def terms(mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        found = likelihood.expected_log_prob(Moments(mean, var), y)
        return found if name == "categorical" else found + likelihood.log_z(Moments(mean, var), y)

    torch.compiler.reset()
    compiled, eager = torch.compile(terms, fullgraph=True, backend="aot_eager")(mean, var), terms(mean, var)
    assert torch.allclose(compiled, eager, rtol=1e-12)
    for found, truth in zip(*(torch.autograd.grad(each, (mean, var)) for each in (compiled, eager)), strict=True):
        assert torch.allclose(found, truth, rtol=1e-10)


@pytest.mark.parametrize(("likelihood", "cdf"), [(Probit(), scipy.stats.norm.logcdf), (Bernoulli(), None)])
def test_log_predictive_holds_both_tails(likelihood, cdf) -> None:
    mean = torch.tensor([[0.3], [60.0], [-60.0]], dtype=torch.float64)
    var = torch.full_like(mean, 2.0)
    found = likelihood.log_predictive(Moments(mean, var))
    assert found.shape == (3, 1, 2)
    np.testing.assert_allclose(found.exp().sum(-1), 1)
    if cdf is not None:
        np.testing.assert_allclose(found[..., 1], cdf(mean.numpy() / np.sqrt(3)), rtol=1e-12)
    else:  # far out p = exp(f), whose mean is exp(m + v/2)
        np.testing.assert_allclose(found[2, 0, 1], -59.0, rtol=1e-9)
        np.testing.assert_allclose(found[1, 0, 0], -59.0, rtol=1e-9)
