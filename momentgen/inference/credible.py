"""Credible intervals of class probabilities, and which predictions are quite certain (Posch & Pilz, section IV)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bayesian_network import BayesianNetwork
from momentgen.laws.methods import method
from momentgen.laws.nests import Kept
from momentgen.runtime import Moments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Prediction(NamedTuple):
    """Classes with credible intervals, all from the same draws of the parameters.

    Attributes:
        probabilities: mean of the softmax outputs, shape ``(batch, classes)``.
        lower: the empirical (1 - level)/2 quantile of each output, same shape.
        upper: the empirical (1 + level)/2 quantile.
        label: the most probable class, shape ``(batch,)``.
        certain: whether the interval of ``label`` overlaps no other class's: "quite certain".
    """

    probabilities: Float[Tensor, "batch classes"]
    lower: Float[Tensor, "batch classes"]
    upper: Float[Tensor, "batch classes"]
    label: Int[Tensor, " batch"]
    certain: Bool[Tensor, " batch"]


@torch.no_grad()
def sampled_outputs(network: BayesianNetwork, x: Any, samples: int = 100) -> Float[Tensor, "samples batch *outputs"]:
    """Outputs of the network for draws of its parameters, one draw for the whole batch: ``(samples, batch, ...)``."""
    if samples < 1:
        raise InputError(f"sampled_outputs: expected at least 1 sample, got {samples}")
    args, kept, draws = x if type(x) is tuple else (x,), Kept(network), []
    with method("sample"):
        for _ in range(samples):
            kept.restore()
            draw = network(*args)
            if not isinstance(draw, Moments):
                raise InputError(
                    f"sampled_outputs: expected a network that returns one tensor, got {type(draw).__name__}"
                )
            draws.append(draw.mean.clone())  # a network may return what it keeps
    return torch.stack(draws)


def credible_prediction(probabilities: Float[Tensor, "samples batch classes"], level: float = 0.95) -> Prediction:
    """Predictions from draws of class probabilities.

    Args:
        probabilities: shape ``(samples, batch, classes)``, as ``sampled_outputs(...).softmax(-1)``.
        level: of the intervals; the paper takes 0.95, and also 0.99.

    Raises:
        InputError: for another shape, a single class, fewer than 2 samples, or a level outside (0, 1).

    >>> draws = torch.tensor([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]])
    >>> found = credible_prediction(draws)
    >>> found.label.tolist(), found.certain.tolist()
    ([0, 1], [True, False])
    """
    if probabilities.dim() != 3 or probabilities.shape[0] < 2 or probabilities.shape[2] < 2:
        raise InputError(
            "credible_prediction: expected (samples, batch, classes) with at least 2 samples and 2 classes, got "
            f"{tuple(probabilities.shape)}"
        )
    if not 0 < level < 1:
        raise InputError(f"credible_prediction: expected a level between 0 and 1, got {level}")
    mean = probabilities.mean(0)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=probabilities.dtype, device=probabilities.device)
    lower, upper = torch.quantile(probabilities, ends, dim=0)
    label = mean.argmax(-1)
    own = label[:, None]
    apart = (lower > upper.gather(1, own)) | (upper < lower.gather(1, own))
    apart.scatter_(1, own, True)
    return Prediction(mean, lower, upper, label, apart.all(-1))
