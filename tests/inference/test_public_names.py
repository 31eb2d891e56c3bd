"""The public names of momentgen.inference load, are all listed, and load no more than they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import momentgen.inference


@pytest.mark.parametrize("name", momentgen.inference.__all__)
def test_a_public_name_loads(name: str) -> None:
    assert getattr(momentgen.inference, name).__name__.strip("_") == name


def test_names_are_in_order_and_every_estimator_has_a_home() -> None:
    assert momentgen.inference.__all__ == sorted(momentgen.inference.__all__)
    estimators = [name for name in momentgen.inference.__all__ if name.endswith(("Classifier", "Regressor"))]
    assert sorted(momentgen.inference._HOMES) == estimators


def test_posteriors_load_without_scikit_learn() -> None:
    code = "import sys; from momentgen.inference import MeanField, elbo, randomise; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
