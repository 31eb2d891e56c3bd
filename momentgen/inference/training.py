"""Training a Bayesian network by its evidence lower bound: the loop of the estimators, which can be interrupted.

It is the loop of :func:`~momentgen.inference.elbo`'s example, with shuffled batches and a progress bar.  From its state
a later run continues with the same numbers.  Write your own loop for data loaders of your own.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bayesian_network import BayesianNetwork
from momentgen.inference.likelihood import Gaussian, Likelihood
from momentgen.inference.lower_bound import elbo
from momentgen.laws.methods import Method, method
from momentgen.progress import progress_bar
from momentgen.runtime.one_thread import one_thread

#: steps over which the bound is averaged to see whether it rises
_WINDOW = 100
#: windows without a rise that are waited for before the learning rate falls, falls again, and training ends
_PATIENCE = (2, 1, 1)
#: steps over which the divergence comes in: from the start it would switch off units that have not learnt yet
_WARM_UP = 500
#: a rise at the end that is worth a warning, in nats per example, and in standard errors of its own
_RISE, _ERRORS = 0.03, 3
#: epochs from which their bounds tell a rise, and parts of the steps whose bounds tell it before
_FEW_EPOCHS, _PARTS = 5, 16
#: steps up to which the whole training is compared half by half, later its last two quarters
_FEW_STEPS = 100


def warn_of_fit(text: str) -> None:
    """Warn that a fit cannot be relied on, at the line that called this package.

    The warning is scikit-learn's ``ConvergenceWarning``, or its base class where scikit-learn is not installed.
    """
    kind: type[Warning] = UserWarning
    with contextlib.suppress(ImportError):
        from sklearn.exceptions import ConvergenceWarning

        kind = ConvergenceWarning
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("momentgen."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within the context torch's random numbers follow from the seed; outside they go on as if it had not been.

    All threads share torch's generator, so that one of them at a time is within.
    """
    with one_thread(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        # torch.manual_seed would keep a traceback for each kind of device that is not there
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


class Trainer:
    """Maximises the evidence lower bound by Adam, on batches of data in memory.

    Args:
        network: made by :func:`~momentgen.inference.randomise`.
        likelihood: of its outputs; its own parameters are learnt too.
        propagation: method by which the network runs in training.
        lr: learning rate; the families' factors on it count.
        batch_size: examples per step.
        kl_weight: factor on the divergence, see :func:`~momentgen.inference.elbo`.
        seed: of the order of the data and of draws; torch's own generator is left as it is.
        callback: called with the trainer after each epoch; training ends where it returns True.

    Attributes:
        history: the bound per example, averaged over each epoch so far.
        steps: how many steps were taken.
        ended: whether the callback ended the last training.
    """

    def __init__(
        self,
        network: BayesianNetwork,
        likelihood: Likelihood,
        *,
        propagation: Method = "ap2",
        lr: float = 0.01,
        batch_size: int = 128,
        kl_weight: float = 1.0,
        seed: int = 0,
        callback: Callable[[Trainer], bool | None] | None = None,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"Trainer: expected a batch size of at least 1, got {batch_size}")
        if not 0 < lr < math.inf:
            raise InputError(f"Trainer: expected a positive, finite lr, got {lr}")
        self.network, self.likelihood = network, likelihood
        self.propagation, self.batch_size, self.kl_weight = propagation, batch_size, kl_weight
        self.callback = callback
        groups = network.parameter_groups(lr)
        known = {id(value) for group in groups for value in group["params"]}
        own = [value for value in likelihood.parameters() if id(value) not in known]
        plain = next((group for group in groups if group["lr"] == lr), None)
        if plain is not None:  # one group takes one call
            plain["params"] += own
        elif own:
            groups.append({"params": own, "lr": lr})
        self.optimizer = torch.optim.Adam(groups, fused=True)
        self.history: list[float] = []
        self.steps = 0
        self.ended = False
        #: of the divergence that counts at present
        self._part = 1.0
        #: the bound of each step
        self._bounds: list[float] = []
        self._seed = seed

    def run(
        self,
        x: Tensor,
        y: Tensor,
        epochs: int,
        *,
        size: int | None = None,
        weights: Tensor | None = None,
        falling: float = 0.0,
        progress: bool = False,
        warn: bool = True,
    ) -> None:
        """Train for so many epochs more; a ``ConvergenceWarning`` says so where the bound still rises at the end.

        Args:
            x: the network's inputs, shape ``(n, ...)``.
            y: what was observed, ``n`` of them, as the likelihood takes it.
            epochs: passes over the data.
            size: examples of the whole data set, for which the divergence counts once; None for ``n``.
            weights: how often each example counts, shape ``(n,)``; None for once.
            falling: last part of the epochs, over which the learning rate falls linearly to 0.  At a constant rate the
                last step leaves the network as far from the optimum as single batches and draws throw it.
            progress: show a bar, with the bound of the last epoch.
            warn: whether to warn.  A loop that calls this for each epoch judges for itself.

        Raises:
            InputError: for no data, or numbers of inputs and observations that differ.
            FloatingPointError: where the bound is not finite, which no later step would mend.
        """
        rates = [group["lr"] for group in self.optimizer.param_groups]
        try:
            for done in self._epochs(x, y, epochs, size, weights, progress):
                left = (epochs - done) / (falling * epochs) if falling else 1.0
                for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * min(1.0, left)
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        rise, is_clear = last_rise(self)
        if warn and is_clear:
            found = f"the bound still rises, by {rise:.2g} per example at last"
            self._warn(f"Trainer.run: {found}", f"epochs above {epochs}")

    def _warn(self, found: str, more: str) -> None:
        warn_of_fit(f"{found}; {'a callback that ends training later' if self.ended else more} may help")

    def settle(
        self,
        x: Tensor,
        y: Tensor,
        *,
        steps: int = 10_000,
        tolerance: float = 0.003,
        size: int | None = None,
        weights: Tensor | None = None,
        score: Callable[[], float] | None = None,
        progress: bool = False,
        warn: bool = True,
    ) -> bool:
        """Train until the bound stays where it is, with a learning rate that then falls twice, to a ninth.

        A ``ConvergenceWarning`` says so where it does not within the steps.

        Args:
            x: as in :meth:`run`.
            y: as in :meth:`run`.
            steps: most steps to take; at least one epoch.
            tolerance: in nats per example.  Smaller rises between windows of about 100 steps do not count.
            size: as in :meth:`run`.
            weights: as in :meth:`run`.
            score: what is to rise in place of the bound, such as a score of held-out data.  The network and likelihood
                end as they were at the highest one.
            progress: show a bar.
            warn: whether to warn.

        Returns:
            Whether the bound settled within the steps.

        Raises:
            InputError: as :meth:`run`.
            FloatingPointError: as :meth:`run`.
        """
        per_epoch = -(-max(len(x), 1) // self.batch_size)
        window = -(-_WINDOW // per_epoch)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        warm = -(-_WARM_UP // per_epoch)
        best, stale, falls = -math.inf, 0, 0
        epochs = max(1, steps // per_epoch)
        self._part = 0.0 if not self.history else 1.0
        kept: Any = None
        try:
            for number in self._epochs(x, y, epochs, size, weights, progress):
                self._part = max(self._part, min(1.0, number / warm))
                if number % window or number < warm + window:
                    continue
                level = float(np.mean(self.history[-window:])) if score is None else score()
                stale = 0 if level > best + tolerance else stale + 1
                if score is not None and level > best:
                    kept = copy.deepcopy((self.network.state_dict(), self.likelihood.state_dict()))
                best = max(best, level)
                if stale < _PATIENCE[falls]:
                    continue
                if falls == len(_PATIENCE) - 1:
                    return True
                falls, stale = falls + 1, 0
                for group in self.optimizer.param_groups:
                    group["lr"] /= 3
            if warn:
                what, taken = "bound" if score is None else "score", epochs * per_epoch
                self._warn(f"Trainer.settle: the {what} has not settled after {taken} steps", f"steps above {steps}")
            return False
        finally:
            self._part = 1.0
            if kept is not None:
                self.network.load_state_dict(kept[0])
                self.likelihood.load_state_dict(kept[1])
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _epochs(
        self, x: Tensor, y: Tensor, epochs: int, size: int | None, weights: Tensor | None, progress: bool
    ) -> Iterator[int]:
        """Train, and yield how many epochs are done after each."""
        if not len(x) or len(x) != len(y):
            raise InputError(f"Trainer.run: expected as many observations as inputs, got {len(y)} and {len(x)}")
        noise = self.likelihood.var if isinstance(self.likelihood, Gaussian) else torch.zeros(())
        if noise.dim() >= y.dim() and len(noise) > 1:
            raise InputError(
                f"Trainer: expected a {type(self.likelihood).__name__} whose noise is that of all rows, got one of "
                "each row. Training shuffles rows; y_std of an estimator's fit is for those"
            )
        with progress_bar("training", epochs, progress) as advance:
            for done in range(1, epochs + 1):
                # A seed for each epoch: what goes on later draws the same numbers, on any device.
                seed = np.random.SeedSequence([self._seed, len(self.history)]).generate_state(1)
                self.network.train()
                try:
                    with seeded(int(seed[0]), x.device):
                        self.history.append(self._epoch(x, y, size or len(x), weights))
                finally:
                    self.network.eval()  # scores and callbacks predict
                advance(done, f"bound {self.history[-1]:.4g} per example")
                yield done
                self.ended = self.callback is not None and bool(self.callback(self))
                if self.ended:
                    return

    def _epoch(self, x: Tensor, y: Tensor, size: int, weights: Tensor | None) -> float:
        total = 0.0
        batches = list(torch.randperm(len(x)).to(x.device).split(self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:  # batch norm refuses a single row
            batches[-2:] = [torch.cat(batches[-2:])]
        for batch in batches:
            self.optimizer.zero_grad()
            with method(self.propagation):
                bound = elbo(
                    self.network,
                    self.likelihood,
                    x[batch],
                    y[batch],
                    size=size,
                    kl_weight=self.kl_weight * self._part,
                    weights=None if weights is None else weights[batch],
                )
            if not bool(bound.isfinite()):
                raise FloatingPointError(
                    f"Trainer: the bound is {bound.item()} in epoch {len(self.history) + 1}; a smaller learning rate, "
                    "or inputs of another scale, may help"
                )
            (-bound).backward()
            self.optimizer.step()
            self._bounds.append(bound.item())
            total += self._bounds[-1] * len(batch)
            self.steps += 1
        return total / len(x)

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on with the same numbers, for ``torch.save``."""
        return {
            "network": self.network.state_dict(),
            "likelihood": self.likelihood.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": list(self.history),
            "steps": self.steps,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` gave."""
        self.network.load_state_dict(state["network"])
        self.likelihood.load_state_dict(state["likelihood"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history, self._bounds = list(state["history"]), []
        self.steps = state["steps"]
        self._seed = state["seed"]


def last_rise(trainer: Trainer) -> tuple[float, bool]:
    """By how much the bound rose at last, in nats per example, and whether that is clearly more than chance.

    It is the mean of the last quarter of all epochs so far, less that of the quarter before.  A training of fewer
    than 100 steps is compared half by half, and one of fewer than four has NaN.
    """
    levels = np.array(trainer.history)
    if len(levels) < _FEW_EPOCHS:
        parts = np.array_split(trainer._bounds, max(1, min(_PARTS, len(trainer._bounds))))
        levels = np.array([part.mean() for part in parts if len(part)])
    half = len(levels) // 2
    count = half if trainer.steps < _FEW_STEPS else max(len(levels) // 4, min(half, 4))
    if count < 2:
        return math.nan, False
    last = levels[-2 * count :]
    rise = float(last[count:].mean() - last[:count].mean())
    # Second differences have six times the variance of a level, and nothing of a steady rise.
    error = math.sqrt(np.square(np.diff(last, 2)).mean() / 6 * 2 / count)
    return rise, rise > max(_RISE, _ERRORS * error)
