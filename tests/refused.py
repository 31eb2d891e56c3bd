"""Refusals as tables: what an error says, and the calls that raise it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

Call = Callable[[], Any]


def each(make: Callable[..., Any], *given: Any) -> list[Call]:
    """A call with each of these: a dict has keywords, a tuple positions."""
    return [
        partial(make, **one) if type(one) is dict else partial(make, *one) if type(one) is tuple else partial(make, one)
        for one in given
    ]


def rows(*tables: Iterable[tuple[str, Call | list[Call]]]) -> pytest.MarkDecorator:
    """A test of ``said`` and ``call`` for each call of the tables."""
    found = [
        (said, call)
        for table in tables
        for said, calls in table
        for call in (calls if isinstance(calls, list) else [calls])
    ]
    return pytest.mark.parametrize(
        ("said", "call"), found, ids=[f"{place} {said[:30]}" for place, (said, _) in enumerate(found)]
    )
