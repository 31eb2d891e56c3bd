"""Arrays to pictures, as data URIs: vector graphics for lines, PNG for the error maps."""

from __future__ import annotations

import base64
import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from momentgen.commands.report.measurements import MomentCurves, RelativeErrors

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
            axes.set_title({"mean": "mean", "var": "variance"}[name])
            axes.set_xlabel("μ")
        both[0].set_ylabel("σ")
        bar = figure.colorbar(ScalarMappable(norm, "magma_r"), ax=list(both), extend="both", pad=0.01)
        bar.set_label("relative error")
        return _uri(figure, "png")
