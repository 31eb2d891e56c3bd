"""What follows from an uncertain answer: intervals, quantiles, probabilities, draws, each with its standard error.

:class:`~momentgen.JointMoments` has these methods.  What answers them is the predictive distribution that the method
``controlled`` leaves beside its moments.  Other methods leave none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

from momentgen.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Estimated", "Interval", "Predicted", "Predictive"]


class Estimated(NamedTuple):
    """A number that was estimated, and its standard error, of one shape."""

    value: Tensor
    error: Tensor


class Interval(NamedTuple):
    """Ends of intervals, of the shape of the outputs, and the standard errors of the ends."""

    lower: Tensor
    upper: Tensor
    lower_error: Tensor
    upper_error: Tensor


class Predictive(Protocol):
    """The distribution of an output, as a method leaves it beside the moments."""

    def quantile(self, probability: float, rtol: float | None) -> Estimated: ...

    def interval(self, level: float, shortest: bool, rtol: float | None) -> Interval: ...

    def probability(self, event: Callable[[Tensor], Tensor], rtol: float | None) -> Estimated: ...

    def skewness(self) -> Estimated: ...

    def sample(self, count: int, seed: int) -> Tensor: ...

    def torch_distribution(self) -> torch.distributions.Distribution: ...

    def at(self, place: Any) -> Predictive: ...


class Predicted:
    """The methods of moments with a predictive distribution."""

    #: what answers; None where the method left nothing, or the moments were made anew from mean and variance
    _predictive: Predictive | None = None

    def _found(self, name: str) -> Predictive:
        if self._predictive is None:
            raise InputError(
                f"{name}: expected an answer of the default method, whose draws tell its distribution; these moments "
                "have none. Call the converted network in evaluation mode without a method, and ask its result itself. "
                "What is computed of a result belongs into the call: momentgen.propagate(lambda x: net(x) + 1, x)"
            )
        return self._predictive

    def quantile(self, probability: float, *, rtol: float | None = None) -> Estimated:
        """The value that the output stays below with this probability.

        Args:
            probability: between 0 and 1.
            rtol: run the network on more draws until the error is below this part of the standard deviation.

        Returns:
            Quantiles and their standard errors, of the shape of the output.

        Raises:
            InputError: for a probability outside of (0, 1), and for moments without draws.

        >>> import torch, momentgen
        >>> out = momentgen.convert(torch.nn.Linear(1, 1).eval())(momentgen.noisy(torch.zeros(1, 1), std=1.0))
        >>> bool(((out.quantile(0.975).value - out.mean) / out.std - 1.96).abs() < 0.02)
        True
        """
        _between("quantile", "probability", probability)
        return self._found("quantile").quantile(probability, rtol)

    def interval(self, level: float = 0.95, *, shortest: bool = False, rtol: float | None = None) -> Interval:
        """Intervals that hold each output with this probability.

        Args:
            level: the probability.
            shortest: the shortest interval instead of the one with equal tails.
            rtol: run the network on more draws until the errors are below this part of the standard deviation.

        Returns:
            Ends and their standard errors, of the shape of the output.

        Raises:
            InputError: for a level outside of (0, 1), and for moments without draws.

        >>> import torch, momentgen
        >>> out = momentgen.convert(torch.nn.Linear(1, 1).eval())(momentgen.noisy(torch.zeros(1, 1), std=1.0))
        >>> lower, upper, *_ = out.interval(0.95)
        >>> bool(((upper - lower) / (2 * out.std) - 1.96).abs() < 0.02)
        True
        """
        _between("interval", "level", level)
        return self._found("interval").interval(level, shortest, rtol)

    def probability(self, event: Callable[[Tensor], Tensor], *, rtol: float | None = None) -> Estimated:
        """The probability of an event of the output.

        Args:
            event: takes an output, of the shape of the mean, and returns booleans of any shape.  Torch runs it on all
                draws at once, and on one after another where it branches on values.
            rtol: run the network on more draws until the largest error is below this part of its probability.

        Returns:
            Probabilities and their standard errors, of the shape that the event returns.

        Raises:
            InputError: for an event that returns no booleans, and for moments without draws.

        >>> import torch, momentgen
        >>> out = momentgen.convert(torch.nn.Identity().eval())(momentgen.noisy(torch.zeros(1, 2), std=1.0))
        >>> found = out.probability(lambda y: y[:, 0] > y[:, 1])
        >>> bool((found.value - 0.5).abs() < 4 * found.error + 1e-2)
        True
        """
        if not callable(event):
            raise InputError(f"probability: expected a function of the output, got {type(event).__name__}")
        return self._found("probability").probability(event, rtol)

    @property
    def skewness(self) -> Estimated:
        """Third central moment over the cube of the standard deviation, and its standard error."""
        return self._found("skewness").skewness()

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Draws of the output from its predictive distribution, shape ``(count, *shape)``.

        The linear part makes the values of an example dependent as the network does, and its remainder comes from one
        row.  So draws need not keep exact relations between values, as the order of sorted ones.  Independent examples
        have independent draws.

        Args:
            count: how many.
            seed: of the draws.
        """
        if not isinstance(count, int) or count < 1:
            raise InputError(f"sample: expected a number of draws of at least 1, got {count!r}")
        return self._found("sample").sample(count, seed)

    def distribution(self) -> torch.distributions.Distribution:
        """The predictive distribution as torch's: ``sample``, ``mean``, ``variance``, ``cdf``, ``icdf``.

        It has draws in the place of a density, so ``log_prob`` raises ``NotImplementedError``.  Covariances of low rank
        are no special case.
        """
        return self._found("distribution").torch_distribution()

    @property
    def correlation(self) -> Tensor:
        """Correlations of the values of each example, ``(batch, K, K)`` or ``(K, K)``; NaN for certain values."""
        covariance: Tensor = self.covariance  # type: ignore[attr-defined]
        std = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        return covariance / (std.unsqueeze(-1) * std.unsqueeze(-2))


def _between(where: str, name: str, value: Any) -> None:
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise InputError(f"{where}: expected {name} between 0 and 1, got {value!r}")
