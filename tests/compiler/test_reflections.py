"""Least squares by reflections: right, and with the same bits by C and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from momentgen.compiler.fit import reflections
from momentgen.compiler.fit.reflections import least_squares
from momentgen.native.c_compiler import find_compiler


@pytest.mark.parametrize(
    ("rows", "columns", "wanted"),
    [(1, 1, 1), (7, 3, 1), (9, 8, 1), (200, 41, 1), (301, 1, 1), (150, 50, 33), (999, 17, 2)],
)
def test_the_solution_is_right_and_its_bits_are_the_same_without_a_compiler(
    rows: int, columns: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(rows)
    matrix = draw.normal(size=(rows, columns)) * np.exp(draw.uniform(-9, 3, (rows, 1)))
    right = draw.normal(size=(rows, wanted))
    if wanted == 1:
        right = right[:, 0]
    found = {}
    for compiler in (find_compiler(), None):
        monkeypatch.setattr(reflections, "find_compiler", lambda compiler=compiler: compiler)
        found[compiler] = least_squares(matrix, right)
    first, *others = found.values()
    assert first.shape == (columns, *right.shape[1:])
    assert np.allclose(first, np.linalg.lstsq(matrix, right, rcond=None)[0], rtol=1e-7, atol=1e-9)
    assert all(other.tobytes() == first.tobytes() for other in others)


def test_a_column_of_zeros_takes_no_part() -> None:
    matrix = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert least_squares(matrix, np.array([1.0, 2.0, 3.0])).tolist() == [pytest.approx(2.0), 0.0]


@pytest.mark.parametrize("compiler", [None, find_compiler()])
def test_fewer_rows_than_columns_are_refused(compiler: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflections, "find_compiler", lambda: compiler)
    with pytest.raises(ValueError, match="at least as many rows as columns, got a matrix 2 x 3"):
        least_squares(np.ones((2, 3)), np.ones(2))
