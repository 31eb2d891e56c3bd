"""How far answers of the default are from the truth, in their stated errors."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

import momentgen
from momentgen import noisy
from truth.cases import Case, Function

__all__ = ["Judged", "judged"]

#: seeds of a row
SEEDS = 40


@dataclass
class Judged:
    """What a row of the table says.

    Attributes:
        coverage: share of standard deviations within two stated errors of the truth; ``mean_coverage`` of means.
        z: root mean square of (answer - truth) / stated error; ``mean_z`` of means.
        error: root mean square of log σ over the truth; ``mean_error`` that of the mean, in σ.
        stated: median stated error of σ, as a part of the true one.
        ratio: mean of σ over the truth.
        rows: mean number of plain forward passes per example.
    """

    coverage: float
    z: float
    mean_coverage: float
    mean_z: float
    error: float
    mean_error: float
    stated: float
    ratio: float
    rows: float

    def row(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


def judged(case: Case, seeds: int = SEEDS) -> Judged:
    """The row's answers over seeds; of a z whose error and difference are both lost in rounding, 0 counts."""
    mean, std = case.truth()
    net = momentgen.convert(Function(case.function)).eval()
    inputs = []
    for one in case.inputs:
        centre = one.mean.to(case.dtype).expand(case.batch, -1).clone()
        if one.root is not None:
            inputs.append(noisy(centre, cov=(one.root.T @ one.root).to(case.dtype)))
        else:
            inputs.append(noisy(centre, std=one.std.to(case.dtype).expand(case.batch, -1).clone()))
    found = []
    for seed in range(seeds):
        with momentgen.method("controlled", seed=seed):
            out = net(*inputs)
        assert out.std_error is not None
        assert out.mean_error is not None
        parts = (out.std, out.std_error, out.mean, out.mean_error)
        found.append([part.double().reshape(-1) for part in parts] + [torch.tensor([float(out.rows or 0)])])
    sigma, sigma_error, centre, centre_error = (torch.cat([one[k] for one in found]) for k in range(4))
    rows = torch.cat([one[4] for one in found])
    # what rounding alone makes of a value counts as no difference
    rounding = 4 * torch.finfo(case.dtype).eps * (abs(mean) + std)
    z = (sigma - std) / (sigma_error.square() + rounding**2).sqrt()
    mean_z = (centre - mean) / (centre_error.square() + rounding**2).sqrt()
    size = sigma.clamp_min(1e-12 * std) / std
    return Judged(
        coverage=float((z.abs() <= 2).double().mean()),
        z=float(z.square().mean().sqrt()),
        mean_coverage=float((mean_z.abs() <= 2).double().mean()),
        mean_z=float(mean_z.square().mean().sqrt()),
        error=float(size.log().square().mean().sqrt()),
        mean_error=float(((centre - mean) / std).square().mean().sqrt()),
        stated=float((sigma_error / std).median()),
        ratio=float(size.mean()),
        rows=float(rows.mean()),
    )


def holds(row: dict[str, Any], kind: str) -> bool:
    """Whether a row is as it should be: two stated errors hold 92 to 99 % of answers; of exact ones, all."""
    if kind == "rare event":
        return True
    return all(
        row[f"{prefix}coverage"] >= 0.92 and row[f"{prefix}z"] <= 1.3 and not math.isnan(row[f"{prefix}z"])
        for prefix in ("", "mean_")
    )
