"""Splits a batch into parts: independent examples can run one after another, in less memory."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.accuracy import Accuracy
from momentgen.laws.controlled.facts import Facts
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.predictive import OfOutput, joined_predictive
from momentgen.laws.nests import flattened
from momentgen.runtime import JointMoments, Moments

__all__ = ["joined", "parts"]

#: how many times what a plain pass computes the first rows hold: outputs, slopes, and the graphs of some rows
_OF_PASS: Final = 8
#: how many times all rows of the outputs an estimate holds
_OF_OUTPUTS: Final = 24
#: bytes of a call where the user asks for none: so many, and so many times those of a plain call at least
_LEAST: Final = 2**28
_PLAIN: Final = 8
#: how many of its widest tensor a plain call holds
_WIDEST: Final = 3


def parts(network: Network, spent: Accuracy, facts: Facts) -> list[Network]:
    """The network with parts of its batch, such that a call by each stays below ``memory``; one of all where it does.

    An answer that may be differentiated holds its graph, and is not divided.  Neither is noise with a distribution.
    """
    batch = network.batch
    most = spent.memory or max(_LEAST, _PLAIN * _WIDEST * facts.widest)
    held = _OF_PASS * facts.computed + _OF_OUTPUTS * spent.max_rows * facts.returned
    divided = len(facts.by_example) > 0 and all(facts.by_example) and batch > 1 and held > most
    if (
        not divided
        or network.spans_examples
        or network.differentiable
        or any(value.noise is not None for value in network.inputs)
    ):
        return [network]
    size = max(int(most * batch // held), 1)
    return [network.part(range(first, min(first + size, batch))) for first in range(0, batch, size)]


def joined(found: list[Any]) -> Any:
    """What the network returned for each part of the batch, as if for all of it.

    Rows are those of the part that took most.  What is no tensor is the first part's.
    """
    leaves, forms = zip(*(flattened(one) for one in found), strict=True)
    return forms[0].of([_joined(list(part)) for part in zip(*leaves, strict=True)])


def _joined(leaves: list[Any]) -> Any:
    if isinstance(leaves[0], JointMoments):
        rank = max(leaf.factor.shape[-2] for leaf in leaves)
        factor = torch.cat([F.pad(leaf.factor, (0, 0, 0, rank - leaf.factor.shape[-2])) for leaf in leaves])
        # by the tuple itself: reading a variance that the dtype does not hold would warn
        mean, var = (torch.cat(field) for field in zip(*map(tuple.__iter__, leaves), strict=True))
        made = JointMoments.of(mean, var, factor)
        errors = [(leaf.std_error, leaf.mean_error, leaf.rows) for leaf in leaves]
        made = made.with_errors(
            torch.cat([one[0] for one in errors]), torch.cat([one[1] for one in errors]), max(one[2] for one in errors)
        )
        predictives = [one for one in (leaf._predictive for leaf in leaves) if isinstance(one, OfOutput)]
        if len(predictives) == len(leaves):
            made._predictive = joined_predictive(predictives, [len(leaf.mean) for leaf in leaves])
        return made
    if isinstance(leaves[0], Moments):
        return Moments(*(torch.cat(field) for field in zip(*leaves, strict=True)))
    if isinstance(leaves[0], Tensor) and leaves[0].dim() and leaves[0].shape[1:] == leaves[-1].shape[1:]:
        return torch.cat(leaves)
    return leaves[0]
