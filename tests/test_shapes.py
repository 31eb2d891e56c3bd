"""Public functions take and give tensors of the shapes that their annotations state, and the checker refuses others.

Annotations stay strings when users run the code: jaxtyping and beartype are needed here alone.
"""

import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import beartype
from torch import ones, zeros

import momentgen
from momentgen import generated, inference, nn
from momentgen.inference import Bernoulli, Categorical, DensityFilter, Gaussian, MeanField, Normal, Probit, randomise
from momentgen.runtime import JointMoments, Moments

SHAPES = {name: getattr(jaxtyping, name) for name in ("Bool", "Float", "Int", "Integer", "Num", "Shaped")}
MODULES = ("momentgen", "momentgen.laws", "momentgen.nn", "momentgen.nn.functional", "momentgen.inference")
#: functions whose tensors have any shape, or that of a network's input
ANY_SHAPE = {"activation", "draw", "log_alpha", "monte_carlo", "point", "summary"}


def has_shape(annotation: object) -> bool:
    return isinstance(annotation, str) and any(f"{kind}[" in annotation for kind in SHAPES)


def checked(function: Any) -> Any:
    """The function, or a bound method, with its annotated shapes checked in each call."""
    if isinstance(function, types.MethodType):
        return types.MethodType(checked(function.__func__), function.__self__)
    function = inspect.unwrap(function)
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    names = {**function.__globals__, **SHAPES}
    copy.__annotations__ = {k: eval(v, names) for k, v in function.__annotations__.items() if has_shape(v)}
    assert copy.__annotations__, f"{function.__qualname__} states no shapes"
    return jaxtyping.jaxtyped(copy, typechecker=beartype)


X, LABELS = zeros(3, 4), torch.tensor([0, 1, 3])
JOINT = JointMoments.of(zeros(2, 3), ones(2, 3), torch.eye(3).expand(2, 3, 3))
FILTER = DensityFilter([2, 3, 1], Gaussian(1.0))
NET = nn.Sequential(nn.Linear(4, 2))
BAYES = randomise(torch.nn.Linear(4, 2), MeanField(0.1))
F = nn.functional

#: what is called, arguments of a right shape, and of a wrong one
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "noisy": (lambda *a: checked(momentgen.noisy)(a[0], std=a[1]), (X, ones(4)), (X, ones(3))),
    "noisy, cov": (lambda *a: checked(momentgen.noisy)(a[0], cov=a[1]), (X, torch.eye(4).expand(3, 4, 4)),
        (X, zeros(4, 3))),
    "certain": (checked(momentgen.laws.certain), (X,), (LABELS.bool(),)),
    "diagonal": (checked(momentgen.laws.diagonal), (X, ones(3, 4)), (X, ones(4, 3))),
    "class_posterior": (checked(F.class_posterior), (X,), (LABELS,)),
    "log_class_posterior": (checked(F.log_class_posterior), (X,), (LABELS,)),
    "nll_loss": (checked(F.nll_loss), (X, LABELS), (X, LABELS.float())),
    "nll_loss, weight": (checked(F.nll_loss), (X, LABELS, ones(4)), (X, LABELS, ones(4, 1))),
    "gaussian_nll_loss": (checked(F.gaussian_nll_loss), (X, X, 0.1), (X, zeros(4), 0.1)),
    "propagate_statistics": (checked(nn.propagate_statistics), (NET, zeros(4), ones(4)), (NET, zeros(4), ones(3))),
    "initialise_analytically": (checked(nn.initialise_analytically), (NET, zeros(4), ones(4)),
        (NET, zeros(2, 2), ones(2, 2))),
    "polya_gamma": (checked(inference.polya_gamma), (LABELS, zeros(2, 3)), (zeros(3), zeros(2, 3))),
    "elbo": (lambda y: checked(inference.elbo)(BAYES, Gaussian(1.0), X, y, size=3), (zeros(3, 2),), ("not a tensor",)),
    "sampled_outputs": (checked(inference.sampled_outputs), (BAYES, X, 2), (BAYES, X, 0)),
    "credible_prediction": (checked(inference.credible_prediction), (X.expand(2, 3, 4),), (X,)),
    "Normal.kl_normal": (checked(Normal(std=1.0).kl_normal), (X, ones(3, 4)), (X, ones(4))),
    "Gaussian.expected_log_prob": (checked(Gaussian(1.0).expected_log_prob), (X, X), (LABELS, X)),
    "Gaussian.log_z": (checked(Gaussian(1.0).log_z), (X, X), (LABELS, X)),
    "Gaussian.log_prob": (checked(Gaussian(1.0).log_prob), (X, X), (zeros(()), X)),
    "Probit.log_z": (checked(Probit().log_z), (X, ones(3, 4)), (LABELS, X)),
    "Bernoulli.expected_log_prob": (checked(Bernoulli().expected_log_prob), (X, ones(3, 4)), (zeros(()), X)),
    "Categorical.log_prob": (checked(Categorical().log_prob), (X, LABELS), (LABELS, X)),
    "DensityFilter.update": (checked(FILTER.update), (zeros(1, 5, 2), zeros(1, 5)), (zeros(1, 5, 2), zeros(1, 4))),
    "DensityFilter.fit": (checked(FILTER.fit), (zeros(1, 5, 2), zeros(1, 5), 2), (zeros(5, 2), zeros(1, 5), 2)),
    "DensityFilter.output": (checked(FILTER.output), (zeros(1, 5, 2),), (zeros(5, 2),)),
    "an op": (lambda *a: checked(type(generated.gelu).__call__)(generated.gelu, *a), (X, ones(3, 4)), (X, ones(4))),
    "JointMoments.of": (checked(JointMoments.of), (zeros(2, 3), ones(2, 3), ones(2, 5, 3)),
        (zeros(2, 3), ones(2, 3), ones(3))),
    "Moments.std": (checked(Moments.std.fget), (Moments(X, ones(3, 4)),), (Moments(X, LABELS),)),  # type: ignore[attr-defined]
    "JointMoments.covariance": (checked(JointMoments.covariance.fget), (JOINT,), (Moments(X, X),)),  # type: ignore[attr-defined]
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_stated_shapes_passes_and_one_of_others_fails(name: str) -> None:
    call, right, wrong = CALLS[name]
    torch.manual_seed(0)
    call(*right)
    with pytest.raises((jaxtyping.TypeCheckError, momentgen.errors.InputError, AttributeError)):
        call(*wrong)


def test_the_checker_refuses_and_not_only_the_function() -> None:
    refused = 0
    for call, _, wrong in CALLS.values():
        try:
            call(*wrong)
        except jaxtyping.TypeCheckError:
            refused += 1
        except Exception:
            continue
    assert refused >= len(CALLS) - 4


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_states_the_shapes_of_its_tensors(module: str) -> None:
    names = importlib.import_module(module).__all__
    functions = [getattr(importlib.import_module(module), name) for name in names]
    bare = [
        f"{function.__name__}: {parameter}"
        for function in functions
        if inspect.isfunction(function) and function.__module__.startswith("momentgen")
        for parameter, annotation in function.__annotations__.items()
        if "Tensor" in str(annotation) and not has_shape(annotation) and function.__name__ not in ANY_SHAPE
    ]
    assert bare == []


def test_code_that_runs_does_not_import_the_checker() -> None:
    text = inspect.getsource(momentgen.laws.values)
    assert "if TYPE_CHECKING:\n    from jaxtyping import Float\n" in text
    assert not hasattr(momentgen.laws.values, "Float")
