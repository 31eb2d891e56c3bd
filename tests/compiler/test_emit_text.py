"""Text that renderers share: what is written in another form reads back as the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from momentgen.compiler.emit._text import LINE_LENGTH, json_text, table_lines, whole_numbers

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40)


@given(_VALUES)
def test_json_in_wide_lines_is_the_same_json(value: Any) -> None:
    assert json.loads(json_text(value)) == value


def test_json_of_many_numbers_has_lines_that_are_full_and_not_too_long() -> None:
    lines = json_text({"numbers": [k / 7 for k in range(400)]}).splitlines()
    assert max(map(len, lines)) <= LINE_LENGTH
    assert len(lines) < 90


@given(st.lists(st.lists(st.floats(-1e6, 1e6).map(lambda c: round(c, 8)), min_size=1), min_size=1))
def test_whole_numbers_times_their_unit_are_the_decimal_fractions(rows: list[list[float]]) -> None:
    whole, unit = whole_numbers(rows)
    for row, made in zip(rows, whole, strict=True):
        assert np.allclose(np.array(made, float) * unit, row, rtol=2.0**-51, atol=0)
        assert unit == 1.0 or all(abs(number) < 2**53 for number in made)


def test_numbers_of_too_many_digits_stay_as_they_are() -> None:
    assert whole_numbers([[1 / 3, 1e10]]) == ([[1 / 3, 1e10]], 1.0)


@given(st.lists(st.integers().map(str), min_size=1, max_size=200))
def test_lines_of_a_table_are_its_numbers_with_commas(values: list[str]) -> None:
    lines = table_lines(values)
    assert "".join(line.strip() for line in lines) == ",".join(values)
    assert all(len(line) <= LINE_LENGTH or line.count(",") <= 1 for line in lines)
