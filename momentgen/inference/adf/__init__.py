"""Assumed density filtering for ReLU networks: probabilistic and expectation backpropagation.

* :mod:`~momentgen.inference.adf.filter`: :class:`DensityFilter`, a batch of networks that learn datum by datum.
* :mod:`~momentgen.inference.adf.network`: moments of the network's output.
* :mod:`~momentgen.inference.adf.evidence`: how the filter takes each likelihood.
* :mod:`~momentgen.inference.adf.gamma`: gamma laws of precisions, and the refinement of the prior.
* :mod:`~momentgen.inference.adf.native`: the updates in C (``filter.c``).
"""

from momentgen.inference.adf.filter import DensityFilter

__all__ = ["DensityFilter"]
