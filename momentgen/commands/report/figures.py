"""Arrays to pictures, as data URIs: vector graphics for lines, PNG for the error maps."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from momentgen.commands.report.measurements import Curves, MomentCurves, RelativeErrors

_STYLE = {
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched
    "svg.hashsalt": "momentgen",  # the same figure gives the same bytes
}
_OUTPUT_NAMES = {
    "mean": "mean",
    "partials": "worst partial",
    "var": "variance",
    "dmean_dmu": "∂mean/∂μ",
    "dmean_dvar": "∂mean/∂v",
    "dvar_dmu": "∂var/∂μ",
    "dvar_dvar": "∂var/∂v",
}


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _uri(figure: Figure, kind: str = "svg") -> str:
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    return f"data:{mime};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def moments_figure(curves: MomentCurves) -> str:
    """Mean and standard deviation of f(X) over the input's mean, a line for each standard deviation of the input."""
    with matplotlib.rc_context(_STYLE):
        figure = _figure(9.6, 3.2)
        left, right = figure.subplots(1, 2)
        left.plot(curves.mu, curves.f, color="black", linewidth=1, linestyle="--", label="f")
        for sigma, mean, deviation in zip(curves.sigmas, curves.means, curves.deviations, strict=True):
            left.plot(curves.mu, mean, label=f"σ = {sigma:g}")
            right.plot(curves.mu, deviation, label=f"σ = {sigma:g}")
        left.set_title("mean of f(X)")
        right.set_title("standard deviation of f(X)")
        for axes in (left, right):
            axes.set_xlabel("μ, X ~ N(μ, σ²)")
        left.legend(fontsize=7.5)
        return _uri(figure)


def relative_figure(relative: RelativeErrors) -> str:
    """Relative errors over (mu, sigma) of mean and variance; lines where 1 % and all of the value is lost."""
    with matplotlib.rc_context(_STYLE):
        figure = _figure(9.6, 2.9)
        norm, both = LogNorm(1e-8, 1), figure.subplots(1, 2, sharey=True)
        for axes, (name, values) in zip(both, relative.errors.items(), strict=True):
            shown = np.clip(values, 1e-9, None)
            axes.pcolormesh(relative.mu, relative.sigma, shown, norm=norm, cmap="magma_r", shading="nearest")
            if np.nanmax(shown) >= 0.01:
                axes.contour(
                    relative.mu, relative.sigma, np.nan_to_num(shown, nan=1e-9), [0.01, 0.999], colors="tab:cyan"
                )
            axes.set_yscale("log")
            axes.set_title(_OUTPUT_NAMES[name])
            axes.set_xlabel("μ")
        both[0].set_ylabel("σ")
        bar = figure.colorbar(ScalarMappable(norm, "magma_r"), ax=list(both), extend="both", pad=0.01)
        bar.set_label("relative error")
        return _uri(figure, "png")


def histogram_figure(histograms: Mapping[str, Mapping[str, int]], label: str) -> str:
    """Share of points by error, a line an output.

    Args:
        histograms: output -> bin -> count, the bins alike.
        label: what the bins are.
    """
    with matplotlib.rc_context(_STYLE):
        figure = _figure(4.9, 3.2)
        axes = figure.subplots()
        for name, bins in histograms.items():
            counts = np.array(list(bins.values()), np.float64)
            share = np.where(counts > 0, counts, np.nan) / max(counts.sum(), 1)
            axes.plot(
                range(counts.size), share, marker="o", markersize=3, linewidth=1, label=_OUTPUT_NAMES.get(name, name)
            )
        bins = next(iter(histograms.values()))
        axes.set_xticks(range(len(bins)), [label.replace("<= ", "≤ ") for label in bins], rotation=45)
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("share of points")
        axes.legend(fontsize=7.5, ncols=2)
        return _uri(figure)


def curves_figure(curves: Mapping[str, Curves], sigma: float) -> str:
    """Variants against the exact moments over mu: mean error, ratio of standard deviations, KL."""
    with matplotlib.rc_context(_STYLE):
        figure = _figure(9.6, 2.8)
        panels: Sequence[tuple[str, str]] = (
            ("mean_error", "(mean − exact) / exact σ′"),
            ("sigma_ratio", "σ′ / exact σ′"),
            ("kl", "KL(exact ‖ variant), nats"),
        )
        all_axes = figure.subplots(1, 3)
        for axes, (attribute, title) in zip(all_axes, panels, strict=True):
            for name, curve in curves.items():
                values = getattr(curve, attribute)
                axes.plot(curve.mu, np.where(np.isfinite(values), values, np.nan), linewidth=1.2, label=name)
            axes.set_title(title)
            axes.set_xlabel(f"μ, at σ = {sigma:g}")
        all_axes[2].set_yscale("log")
        all_axes[2].set_ylim(bottom=1e-8)
        all_axes[1].legend(fontsize=7.5)
        return _uri(figure)
