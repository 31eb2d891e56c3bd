"""Probabilistic and expectation backpropagation: a batch of ReLU networks that learn datum by datum.

Every network of the batch, a *replicate*, has data of its own (the splits of a data set) or shares them (seeds, an
ensemble).  The compiled ``filter.c`` runs the updates, on the CPU.

Sources:

- Hernández-Lobato & Adams 2015, Probabilistic Backpropagation (PBP);
- Soudry, Hubara & Meir 2014, Expectation Backpropagation (EBP), here with ReLU and real weights as in Ghosh, Delle
  Fave & Yedidia 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.adf.evidence import output_model
from momentgen.inference.adf.gamma import PriorFactors
from momentgen.inference.adf.native import update
from momentgen.inference.adf.network import count_weights, propagate, unflatten
from momentgen.inference.likelihood import Likelihood
from momentgen.progress import progress_bar
from momentgen.runtime import Moments

if TYPE_CHECKING:
    from jaxtyping import Float, Num


Rule = Literal["pbp", "ebp"]
_RULES = ("pbp", "ebp")
#: numbers of data and draws that one call of the filter takes, and products of weights and data
_VALUES, _PRODUCTS = 2**22, 2**29


class DensityFilter:
    """ReLU networks with normal weights, updated by assumed density filtering.

    Args:
        sizes: widths of the layers, features first and outputs last.
        likelihood: how targets follow from outputs, of :mod:`momentgen.inference.likelihood`.  ``Gaussian`` has a
            known variance, or a ``Gamma`` precision as the noise's prior.  ``Probit`` of one output is for labels 0
            and 1.  ``Categorical`` is for labels 0, 1, ..., with Z by samples; ``Categorical("bound")`` uses the log
            bound.
        rule: ``pbp``, probabilistic, or ``ebp``, expectation backpropagation.
        samples: draws of the outputs in each update, for ``Categorical`` by samples.
        replicates: networks in the batch.
        prior: shape and rate of the gamma law of the weights' prior precision.
        learn_prior: whether :meth:`fit` refines the prior before each pass but the first.  Leave it False with classes:
            separable labels drive weights to ever larger values, and the prior would follow.
        spread: standard deviation of the first means of the weights.  None, as published, is 1/√(inputs + 1) per
            layer.  A network of several hundred units hardly leaves that point, and needs 1, the prior's.
        seed: of the first means, the order of the data and the samples.
        dtype: float32 or float64, of weights and data; gamma laws are in float64.

    Attributes:
        weights: flat means and *variances* of the weights, ``(replicates, weights)``.
        noise: shape and rate of the noise precision's gamma law, ``(replicates, 2)``.
        prior: the prior's factors.
        passes: how often :meth:`fit` has gone over data so far.
        information: data of all passes, each over the noise variance at the time, ``(replicates,)``.
        skipped: how many updates of weights, of the noise and of prior factors were skipped, ``(replicates, 3)``.
            They would have made a variance non-positive or a number infinite.

    Raises:
        InputError: for sizes, a likelihood, a rule, a prior, a spread or a dtype other than these.
        MissingCompilerError: by updates, on a machine without a C compiler and without a wheel's kernels.

    >>> import torch
    >>> from momentgen.inference.likelihood import Gamma, Gaussian
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(1, 50, 1)
    >>> net = DensityFilter((1, 20, 1), Gaussian(precision=Gamma(6.0, 6.0)), seed=0)
    >>> log_z = net.fit(x, 2 * x, passes=20)
    >>> net.output(x[:, -1:]).mean.round().item()
    2.0
    """

    def __init__(
        self,
        sizes: Sequence[int],
        likelihood: Likelihood,
        *,
        rule: Rule = "pbp",
        samples: int = 100,
        replicates: int = 1,
        prior: tuple[float, float] = (6.0, 6.0),
        learn_prior: bool = True,
        spread: float | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if len(self.sizes) < 2 or min(self.sizes) < 1 or replicates < 1:
            raise InputError(
                f"DensityFilter: expected two or more widths and a number of replicates of at least 1, got {sizes}, "
                f"{replicates}"
            )
        if rule not in _RULES:
            raise InputError(f"DensityFilter: expected a rule of {', '.join(_RULES)}, got {rule!r}")
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"DensityFilter: expected float32 or float64, got {dtype}")
        shape, rate = prior
        if not (1 < shape < math.inf and 0 < rate < math.inf):
            raise InputError(f"DensityFilter: expected a prior with shape above 1 and rate above 0, got {prior}")
        if spread is not None and not 0 <= spread < math.inf:
            raise InputError(f"DensityFilter: expected a spread of at least 0, or None, got {spread}")
        self.learn_prior, self.passes = learn_prior, 0
        self.information = torch.zeros(replicates, dtype=torch.float64)
        self.rule, self.likelihood = rule, likelihood
        self._model = output_model(likelihood, samples)
        self.generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(replicates, count_weights(self.sizes), generator=self.generator, dtype=torch.float64)
        for part in unflatten(drawn, self.sizes):
            part *= 1 / math.sqrt(part.shape[1]) if spread is None else spread
        mean = drawn.to(dtype)
        self.weights = Moments(mean, torch.full_like(mean, rate / (shape - 1)))
        # Factors begin where the weights do: what is left without them is what the data say.  As published, at 0.
        self.prior = PriorFactors(shape, rate, mean if spread is not None else torch.zeros_like(mean), self.weights.var)
        first = torch.tensor(self._model.start, dtype=torch.float64)
        self.noise = first.repeat(replicates, 1)
        self.skipped = torch.zeros(replicates, 3, dtype=torch.int64)

    @property
    def replicates(self) -> int:
        return len(self.weights.mean)

    def update(
        self,
        x: Float[Tensor, "#replicates n features"],
        y: Num[Tensor, "#replicates n *outputs"],
        draws: Float[Tensor, "replicates n samples outputs"] | None = None,
    ) -> Float[Tensor, "replicates n"]:
        """Take in data one after another.

        A step that would make a variance non-positive or a number infinite is left out, and counted in ``skipped``.

        Args:
            x: features ``(replicates, n, features)``, or ``(1, n, features)`` for all replicates.
            y: targets ``(replicates, n)`` or ``(replicates, n, outputs)``; labels 0, 1, ... ``(replicates, n)``.
            draws: the standard normal numbers of a likelihood that samples, ``(replicates, n, samples, outputs)``;
                by default new ones.

        Returns:
            log Z of each datum before it was taken in, ``(replicates, n)``, float64.

        Raises:
            InputError: for data of other shapes, not finite, labels out of range, or targets so far from standard
                units that outputs leave the dtype's range.
        """
        return self._update(*self._checked(x, y), draws)

    def fit(
        self,
        x: Float[Tensor, "#replicates n features"],
        y: Num[Tensor, "#replicates n *outputs"],
        passes: int,
        progress: bool = False,
        weights: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "replicates {passes}"]:
        """Go over the data, in a new order each time, and refine the prior's factors between passes if it is learnt.

        Args:
            x: as in :meth:`update`.
            y: as in :meth:`update`.
            passes: how often.
            progress: show a bar.
            weights: how often each datum counts, positive; None for once.  A pass has a datum of weight 2.3 twice or
                three times, at random, with a mean of 2.3.

        Returns:
            The mean log Z of each pass, ``(replicates, passes)``.

        Raises:
            InputError: as :meth:`update`.
        """
        x, y = self._checked(x, y)
        ends = torch.arange(1, y.shape[1] + 1) if weights is None else weights.double().cpu().cumsum(0)
        if ends[-1] < 1:
            raise InputError(f"DensityFilter: expected weights that add up to 1 row at least, got {ends[-1]:.3g}")
        per_datum = self.replicates * (self.sizes[0] + self._model.samples * self.sizes[-1])
        products = self.weights.mean.numel()
        step = max(1, min(_VALUES // per_datum, _PRODUCTS // products))
        rows = torch.arange(self.replicates)[:, None]
        found = torch.zeros(self.replicates, passes, dtype=torch.float64)
        done = 0
        with progress_bar(
            f"{self.rule.upper()}, {passes} passes", round(passes * ends[-1].item()), progress
        ) as advance:
            for number in range(passes):
                if self.learn_prior and self.passes:
                    self.refine_prior()  # before a pass, which mends what the new prior disturbs
                order = self._order(ends)
                n = order.shape[1]
                before = self.noise_var
                for places in order.split(step, 1):
                    log_z = self._update(x[rows if len(x) > 1 else 0, places], y[rows, places], None)
                    found[:, number] += log_z.sum(1) / n
                    done += places.shape[1]
                    advance(done)
                self.passes += 1
                self.information += 0.5 * n * (1 / before + 1 / self.noise_var)
        return found

    def _order(self, ends: Tensor) -> Tensor:
        """Data of one pass in a random order, ``(replicates, n)``; ``ends`` are cumulated weights of the data."""
        places = torch.arange(len(ends))
        if ends.is_floating_point():  # systematic sampling: as many of each as its weight, up to one
            at = torch.rand((), generator=self.generator, dtype=torch.float64)
            places = torch.searchsorted(ends, torch.arange(math.ceil(ends[-1] - at)) + at, right=True)
        return places[torch.rand(self.replicates, len(places), generator=self.generator).argsort(1)]

    def refine_prior(self) -> None:
        """Recompute the prior's factors by one step of expectation propagation."""
        mean, var, skipped = self.prior.refine(*self.weights)
        self.weights = Moments(mean, var)
        self.skipped[:, 2] += skipped

    def output(
        self, x: Float[Tensor, "#replicates n features"], power: float | Float[Tensor, " replicates"] = 1.0
    ) -> Moments:
        """Mean and *variance* of the outputs, noise left out: ``(replicates, n, outputs)``.

        Args:
            x: features ``(replicates, n, features)`` or ``(1, n, features)``.
            power: of what the data say, for the variance: the posterior over the prior's factors.  Each pass counts all
                data; 1/passes counts them once.  A number, or one per replicate.  Means stay what they are.

        Raises:
            InputError: for features of another shape, or not finite, or a power that is not above 0 and at most 1.
        """
        part = torch.as_tensor(power, dtype=torch.float64)
        if not bool(((part > 0) & (part <= 1)).all()):
            raise InputError(f"DensityFilter.output: expected a power above 0 and at most 1, got {power}")
        x = self._features(x)
        found = self._propagated(x, self.weights.var)
        if bool((part == 1).all()):
            return found
        precision = torch.lerp(self.prior.precision, 1 / self.weights.var.double(), part.reshape(-1, 1))
        # A factor of negative precision says that the weight is larger than the prior has it: its variance stays.
        wide = torch.where(precision > 0, 1 / precision, self.weights.var.double()).to(self.weights.var)
        return Moments(found.mean, self._propagated(x, torch.maximum(wide, self.weights.var)).var)

    def _propagated(self, x: Tensor, weight_var: Tensor) -> Moments:
        mean, var = (unflatten(part, self.sizes) for part in (self.weights.mean, weight_var))
        chunks = x.split(max(1, _VALUES // (self.replicates * max(self.sizes))), 1)
        parts = [propagate(mean, var, chunk) for chunk in chunks]
        return Moments(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))

    @property
    def noise_var(self) -> Tensor:
        """Expected *variance* of the noise of regression, ``(replicates,)``."""
        return self.noise[:, 1] / (self.noise[:, 0] - 1)

    def _features(self, x: Tensor) -> Tensor:
        x = x.to(self.weights.mean)
        if x.dim() != 3 or x.shape[0] not in (1, self.replicates) or x.shape[2] != self.sizes[0]:
            raise InputError(
                f"DensityFilter: expected features of shape ({self.replicates}, n, {self.sizes[0]}), got "
                f"{tuple(x.shape)}"
            )
        if not bool(x.isfinite().all()):
            raise InputError("DensityFilter: expected finite features")
        return x

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self._features(x)
        y = y.to(self.weights.mean)
        if not bool(y.isfinite().all()):
            raise InputError("DensityFilter: expected finite targets")
        y = self._model.targets(y, self.sizes[-1])
        if y.shape[1] != x.shape[1] or y.shape[0] not in (1, self.replicates):
            raise InputError(
                f"DensityFilter: expected {x.shape[1]} targets for {self.replicates} replicates, got {tuple(y.shape)}"
            )
        return x, y.expand(self.replicates, -1, -1)

    def _update(self, x: Tensor, y: Tensor, draws: Tensor | None) -> Tensor:
        shape = (self.replicates, y.shape[1], self._model.samples, self.sizes[-1])
        if self._model.samples and draws is None:
            draws = torch.randn(shape, generator=self.generator, dtype=x.dtype)
        if draws is not None and draws.shape != shape:
            raise InputError(f"DensityFilter: expected draws of shape {shape}, got {tuple(draws.shape)}")
        self.weights = Moments(*(part.contiguous() for part in self.weights))
        self.noise = self.noise.contiguous()
        draws = None if draws is None else draws.contiguous()
        settings = _RULES.index(self.rule), self._model.code, self._model.samples
        log_z, skipped = update(
            self.sizes, settings, (*self.weights, self.noise, x.contiguous(), y.contiguous(), draws)
        )
        self.skipped[:, :2] += skipped
        if not bool(log_z.isfinite().all()):
            raise InputError(
                f"DensityFilter: expected features and targets about in standard units, and outputs left the range of "
                f"{self.weights.mean.dtype}"
            )
        return log_z
