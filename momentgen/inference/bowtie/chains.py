"""Markov chains of a bow tie network: they run, store draws, and go to ArviZ.

The fourth stage of :mod:`momentgen.inference.bowtie`.  All chains of a process advance together, as the first dimension
of every tensor.  Chains that were pickled continue bit for bit, as if they had not been interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.extras import require
from momentgen.inference.bowtie.gibbs import check_collapsed, random_start, relu_start, sweep
from momentgen.inference.bowtie.model import BowTieModel, log_joint
from momentgen.inference.bowtie.prediction import Draws, Predictive, predict
from momentgen.progress import progress_bar

#: name -> where chains start
STARTS = {"relu": relu_start, "random": random_start}


class Chains:
    """Chains of the posterior of a bow tie network's parameters and latent values.

    Args:
        model: sizes, temperature and priors.
        x: features ``(n, model.widths[0])``, best in standard units; computed with in float64, on their device.
        y: targets ``(n, model.widths[-1])``, likewise.
        chains: how many, side by side.
        burn_in: sweeps of which nothing is kept.
        draws: states of each chain to keep.
        thin: sweeps a kept state.
        seed: of all random numbers.
        start: a key of :data:`STARTS`.
        collapsed: see :func:`~momentgen.inference.bowtie.gibbs.sweep`.
        anneal_from: temperature of the first sweep; it falls geometrically to the model's in the first half of
            ``burn_in``.  None: the model's throughout.

    Raises:
        InputError: for data, counts, names or a start that do not fit.

    >>> import torch
    >>> from momentgen.inference.bowtie import BowTieModel
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> chains = Chains(BowTieModel((1, 5, 1)), x, x.abs(), chains=2, burn_in=10, draws=5).run()
    >>> chains.draws.precisions[-1].shape
    torch.Size([2, 5, 1])
    """

    def __init__(
        self,
        model: BowTieModel,
        x: Tensor,
        y: Tensor,
        *,
        chains: int = 4,
        burn_in: int = 3000,
        draws: int = 1000,
        thin: int = 1,
        seed: int = 0,
        start: str = "relu",
        collapsed: Collection[str] = ("gates",),
        anneal_from: float | None = None,
    ) -> None:
        for name, value, least in (
            ("chains", chains, 1),
            ("burn_in", burn_in, 0),
            ("draws", draws, 1),
            ("thin", thin, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise InputError(f"Chains: expected {name} of at least {least}, got {value!r}")
        check_collapsed(collapsed)
        if anneal_from is not None:
            model.at(anneal_from)
        if start not in STARTS:
            raise InputError(f"Chains: expected start among {', '.join(STARTS)}, got {start!r}")
        self.model, self.data = model, model.data(x, y)
        self.burn_in, self.planned, self.thin = burn_in, draws, thin
        self.collapsed, self.anneal_from = tuple(sorted(collapsed)), anneal_from
        #: sweeps made so far
        self.done = 0
        self._kept: list[tuple[Tensor, ...]] = []
        self._generator = torch.Generator(x.device).manual_seed(seed)
        self.state = STARTS[start](model, self.data, chains, self._generator)

    # ------------------------------------------------------------------ running

    def run(self, *, progress: bool = False, sweeps: int | None = None) -> Chains:
        """Make the sweeps that are left of ``burn_in + draws·thin``.

        Args:
            progress: show a bar with the mean log joint of the chains.
            sweeps: how many to make at most; None for all.  Chains that are pickled in between can be gone on with.

        Raises:
            InputError: where float64 cannot go on (see :func:`~momentgen.inference.bowtie.gibbs.sweep`).
        """
        total = self.burn_in + self.planned * self.thin
        last = min(total, self.done + (total if sweeps is None else sweeps))
        with progress_bar("sweeps", total, progress) as advance:
            while self.done < last:
                self._sweep()
                if progress and (self.done % 20 == 0 or self.done == last):
                    advance(self.done, f"sweeps, log joint {self.log_joint().mean().item():.1f}")
        return self

    def go_on(self, draws: int) -> Chains:
        """Plan that many more kept states, and run."""
        self.planned += draws
        return self.run()

    def _temperature(self) -> float:
        last = self.burn_in // 2
        if self.anneal_from is None or self.done >= last:
            return self.model.tau
        return float(self.anneal_from * (self.model.tau / self.anneal_from) ** (self.done / last))

    def _sweep(self) -> None:
        model = self.model.at(self._temperature())
        self.state = sweep(model, self.state, self.data, self._generator, self.collapsed)
        self.done += 1
        after = self.done - self.burn_in
        if after > 0 and after % self.thin == 0:
            self._kept.append((*self.state.weights, *self.state.precisions, self.log_joint()))

    def log_joint(self) -> Tensor:
        """Of the present state, a chain each (:func:`~momentgen.inference.bowtie.model.log_joint`)."""
        return log_joint(self.model, self.state, self.data)

    # --------------------------------------------------------------------- draws

    @property
    def draws(self) -> Draws:
        """What has been kept so far.

        Raises:
            InputError: where nothing has.
        """
        if not self._kept:
            raise InputError(
                f"Chains: expected kept draws, got none: {self.done} sweeps of burn-in {self.burn_in} made"
            )
        parts = [torch.stack(field, 1) for field in zip(*self._kept, strict=True)]
        layers = self.model.depth + 1
        return Draws(tuple(parts[:layers]), tuple(parts[layers:-1]), parts[-1])

    def predict(self, x: Tensor, seed: int = 0) -> Predictive:
        """The predictive distribution at features ``(n, widths[0])``."""
        return predict(self.model, self.draws, x, seed)

    def to_arviz(self, x: Tensor | None = None) -> Any:
        """An ``arviz.InferenceData``: ``weights_k`` and ``sigma_k`` (noise standard deviations), ``lp`` (log joint).

        Hidden units may change places, so R̂ and ESS say little about single weights.  ``x`` adds ``prediction``, the
        mean of the targets at these features for each draw.

        Raises:
            MissingExtraError: if ArviZ is not installed.
        """
        require("chains", "Chains.to_arviz")
        import arviz

        draws = self.draws
        posterior = {f"weights_{k}": part for k, part in enumerate(draws.weights, 1)}
        posterior |= {f"sigma_{k}": part.rsqrt() for k, part in enumerate(draws.precisions, 1)}
        if x is not None:
            posterior["prediction"] = self.predict(x).expected.unflatten(0, draws.log_joint.shape)
        return arviz.from_dict(
            posterior={name: part.cpu().numpy() for name, part in posterior.items()},
            sample_stats={"lp": draws.log_joint.cpu().numpy()},
        )


def split_r_hat(draws: Tensor) -> Tensor:
    """Potential scale reduction R̂ of split chains: √(total variance over variance within chains), 1 where they agree.

    Args:
        draws: ``(chains, draws, ...)``.

    Returns:
        Of the other dimensions' shape; NaN for less than four draws, and of NaN.

    Source: Gelman et al., Bayesian Data Analysis, third edition, section 11.4.
    """
    length = draws.shape[1] // 2
    if length < 2:
        return draws.new_full(draws.shape[2:], math.nan)
    parts = torch.cat([draws[:, :length], draws[:, draws.shape[1] - length :]])
    within, between = parts.var(1).mean(0), parts.mean(1).var(0)
    # A quantity that never moves agrees with itself.
    return torch.where(within + between == 0, 1.0, ((length - 1) / length + between / within).sqrt())
