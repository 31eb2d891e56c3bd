"""``max_rows=0``: the linear part of a network alone, for those who must not sample.

The network is linearised at the mean of its inputs.  The covariance is A Σ Aᵀ.  The mean is that of ``ap2`` where that
knows the network's functions, else the plain output.  No error is known, and two calls have the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.accuracy import Accuracy
from momentgen.laws.controlled.facts import Facts
from momentgen.laws.controlled.linear import Linear
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.noise import InputNoise
from momentgen.laws.controlled.runs import Runs
from momentgen.laws.nests import flattened
from momentgen.laws.notes import note
from momentgen.runtime import JointMoments, Moments

__all__ = ["LinearAlone"]


class _AtMean(InputNoise):
    """An input without its noise."""

    def values(self, rows: range) -> Tensor:
        return self.value.mean.expand(len(rows), *self.value.mean.shape).clone()

    def rows(self, rows: range) -> Tensor:
        return torch.zeros_like(self.values(rows))


class LinearAlone:
    """The linear answer of one call.

    Args:
        network: with its arguments.
        spent: what the caller asks for.
        facts: what is known of the network.
    """

    def __init__(self, network: Network, spent: Accuracy, facts: Facts) -> None:
        self._network, self._facts = network, facts
        noise: list[InputNoise] = [_AtMean(value, place, spent.seed) for place, value in enumerate(network.inputs)]
        self._runs = Runs(network, facts, noise, logits=False)

    def outputs(self) -> Any:
        """What the network returns, with moments for tensors of floating point.

        Raises:
            UnsupportedError: for networks that draw, and for outputs that vary and have no derivative.
        """
        name = type(self._network.where).__name__
        runs, outputs, keeps = self._runs, self._runs.outputs, self._runs.state.keeps_graph
        runs.first(1)
        if self._facts.draws or runs.draws:
            raise UnsupportedError(
                f"{name}: max_rows=0 linearises at the mean of the inputs. This network draws noise of its own, as of "
                'weights or dropout; leave max_rows out, or use method="ap2"'
            )
        means = self._means()
        leaves: list[Any] = list(outputs.rows[0])
        for place in outputs.real():
            leaf, shift = leaves[place], runs.shifts[place]
            if shift is None:
                raise UnsupportedError(
                    f"{name}: max_rows=0 needs the derivative of each output, and the one of shape "
                    f"{tuple(leaf.shape)} has none; leave max_rows out"
                )
            with torch.set_grad_enabled(keeps):
                with torch.enable_grad():
                    flat = outputs.flat(place, shift)
                    linear = Linear(flat, runs.state.sources, outputs.of(place), keeps, every=True)
                root = linear.root.to(leaf.dtype)
                var = root.square().sum(-2).reshape(leaf.shape)
                factor = root if outputs.batched(place) else root[0]
                leaves[place] = JointMoments.of(leaf if means is None else means[place], var, factor)
        assert outputs.form is not None
        return outputs.form.of(leaves)

    def _means(self) -> list[Tensor] | None:
        """Means of the outputs by ``ap2``; None where it does not know a function."""
        try:
            found = flattened(self._network.by("ap2"))[0]
        except UnsupportedError as error:
            note(f"controlled: the mean is the plain output, for ap2 does not run this network: {error}")
            return None
        return [leaf.mean if isinstance(leaf, Moments) else leaf for leaf in found]
