"""Activations of other projects and papers, from f alone: why not, and what builds.

The slow test builds all of them: ``pytest -m slow tests/compiler/test_foreign_functions.py``.
"""

from __future__ import annotations

import pytest
from compiler.foreign_functions import FOREIGN, Foreign, built

from momentgen.compiler.derive import derive
from momentgen.compiler.strategies import ways
from momentgen.errors import BuildError
from momentgen.rule import Rule

#: functions that no strategy takes -> the first reason
REFUSED = {
    "exp_square": "the moment diverges for v >= 1/(2p), p the factor of x**2 in `exp(2*x**2)`",
    "reciprocal": "the second moment diverges for every v > 0: f has a pole at x = 0",
    "double_exponential": "the second moment diverges for every v > 0",
}
BY_NAME = {foreign.name: foreign for foreign in FOREIGN}


def test_the_table_has_sixty_functions_of_several_sources() -> None:
    assert len(BY_NAME) == len(FOREIGN) >= 60
    assert len({foreign.source.split(",")[0].split(".")[0] for foreign in FOREIGN}) >= 8
    assert set(REFUSED) <= set(BY_NAME)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_gives_one_true_reason_first_and_nothing_internal(name: str) -> None:
    with pytest.raises(BuildError) as refused:
        next(ways(derive(Rule(name, f=BY_NAME[name].f))))
    first = str(refused.value).split("\n")[0]
    assert REFUSED[name] in first
    assert not any(word in str(refused.value) for word in ("Pieces(", "Piece(", "np.float", "<momentgen"))


@pytest.mark.slow
@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda f: f.name)
def test_what_builds_holds_and_what_does_not_says_so(foreign: Foreign) -> None:
    found = built(foreign.name)
    assert ("refused" in found) == (foreign.name in REFUSED), found
    if "errors" in found:
        assert found["errors"].pop("mean") < 3e-6
        assert found["errors"].pop("var") < 1e-4
        assert all(error < 1e-3 for error in found["errors"].values()), found
