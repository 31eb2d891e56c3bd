"""How fine the integral of the maximum is: the constants of its torch code and of ``maximum.c``.

Only the standard library is imported: wheels with compiled kernels are built without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """How fine the integral is.

    Attributes:
        below: where F of one element begins, in standard deviations.
        above: where that of two elements ends.
        few: number of nodes up to four elements.
        more: number of nodes from five on.
    """

    below: float
    above: float
    few: int
    more: int

    def nodes(self, n: int) -> int:
        """How many nodes the integral over n elements has."""
        return self.few if n <= 4 else self.more

    def reach_square(self, n: int) -> float:
        """K² of n elements: one of them is as rarely above K standard deviations as one of two is above ``above``.

        The tail falls as exp(-K²/2): twice the elements take 2 log 2 more of K².
        """
        return self.above**2 + 2 * math.log(max(n, 2) / 2)


#: by C type; searched together with CONSTANTS for the fewest nodes that keep the errors that ``maximum`` names.
RULES = {"float": Rule(3.7, 4.6, 24, 26), "double": Rule(6.0, 7.0, 64, 64)}

CONSTANTS = {
    "RATIO": 1000.0,  # b is at least this part of the interval
    "MANY": 32,  # elements; above, it pays to move lo
    "CROWDED": 2.5,  # b, and t0 - lo, over the smallest standard deviation
    "CENTRE": 4.7,
    "CROWDED_OF_MANY": 1.5,
    "CENTRE_OF_MANY": 5.7,
    "SCOUTS": 6,  # values of F that move lo
    "NEGLIGIBLE": 1e-7,  # of F
    "BEYOND": 40.0,  # standard deviations below lo; what is so far off is left out
    "CERTAIN": 1e-14,  # a variance below so much of the largest changes the moments by less than float32 rounds
}

#: of each C type: integers as wide, bits of the mantissa, bias of the exponent
_FORMATS = {"float": ("uint32_t", "int32_t", 23, 127), "double": ("uint64_t", "int64_t", 52, 1023)}


def definitions(real: str) -> dict[str, object]:
    """The macros of ``maximum.c``, for ``float`` or ``double``."""
    word, signed, mantissa, bias = _FORMATS[real]
    format_ = {"REAL": real, "WORD": word, "SIGNED": signed, "MANTISSA": mantissa, "BIAS": bias}
    return {**format_, "MAGIC": f"0x1.8p{mantissa}", "BELOW": RULES[real].below, **CONSTANTS}
