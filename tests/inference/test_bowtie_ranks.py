"""Simulation-based calibration of the bow tie sampler (Talts et al. 2018): ranks of the truth are uniform.

Parameters and targets are drawn from the model.  Chains that start elsewhere sample the posterior of these targets.  If
they are right and long enough, the truth is as likely below any number of their draws as below any other.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from momentgen.inference.bowtie import gibbs
from momentgen.inference.bowtie.model import BowTieModel, ConjugatePrior, Data, State, preactivations, with_ones

MODEL = BowTieModel((1, 2, 1), 0.5, ConjugatePrior(var=0.8, shape=3.0, rate=1.0))
X = torch.linspace(-1.5, 1.5, 8, dtype=torch.float64)[:, None]
#: data sets, kept draws of each chain, sweeps before and between them
SETS, DRAWS, BURN_IN, THIN = 600, 19, 300, 25
#: chance of a false alarm in all statistics together
LEVEL = 1e-3


def numbers(state: State, data: Data) -> dict[str, Tensor]:
    """What does not depend on the order of the hidden units, ``(sets,)``: outputs, noise, the sum of their weights."""
    gate = (preactivations(state, data, 0) / MODEL.tau).sigmoid()
    mean = (with_ones(gate * preactivations(state, data, 0)) @ state.weights[1].mT)[..., 0]
    return {
        "output at the left": mean[:, 0],
        "output in the middle": mean[:, 4],
        "output at the right": mean[:, -1],
        "noise of the targets": state.precisions[1][:, 0],
        "noise of the units": state.precisions[0].sum(1),
        "slopes": (state.weights[0][:, :, 0] * state.weights[1][:, 0, :-1]).sum(1),
        "bias of the output": state.weights[1][:, 0, -1],
    }


def ranks(truth_scale: float = 1.0) -> dict[str, NDArray[np.int64]]:
    """Of the truth among the draws, for all data sets side by side."""
    draw = torch.Generator().manual_seed(3)
    truth, y = gibbs.simulate(MODEL, X, SETS, draw)
    truth = truth._replace(precisions=tuple(part * truth_scale for part in truth.precisions))
    data = MODEL.data(X, torch.zeros(len(X), 1, dtype=torch.float64))._replace(y=y)
    state, _ = gibbs.simulate(MODEL, X, SETS, draw)  # a start that knows nothing of the targets
    expected = numbers(truth, data)
    below = {name: torch.zeros(SETS, dtype=torch.int64) for name in expected}
    for done in range(1, BURN_IN + DRAWS * THIN + 1):
        state = gibbs.sweep(MODEL, state, data, draw)
        if done > BURN_IN and (done - BURN_IN) % THIN == 0:
            for name, found in numbers(state, data).items():
                below[name] += found < expected[name]
    return {name: count.numpy() for name, count in below.items()}


@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform() -> None:
    """Chi-square of 20 ranks, 30 sets each, below the quantile of 19 degrees of freedom: about 51."""
    most = chi2.isf(LEVEL / 7, DRAWS)
    found = {}
    for name, places in ranks().items():
        counts = np.bincount(places, minlength=DRAWS + 1)
        found[name] = float(((counts - SETS / (DRAWS + 1)) ** 2).sum() / (SETS / (DRAWS + 1)))
    assert len(found) == 7
    assert max(found.values()) < most, found


@pytest.mark.slow
def test_a_noise_that_is_a_third_off_is_seen_in_the_ranks() -> None:
    places = ranks(1.5)["noise of the targets"]
    counts = np.bincount(places, minlength=DRAWS + 1)
    assert ((counts - SETS / (DRAWS + 1)) ** 2).sum() / (SETS / (DRAWS + 1)) > chi2.isf(LEVEL / 7, DRAWS)
