"""The picture of an uncertain answer, one example of it: ``JointMoments.plot`` draws it.  Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from momentgen.errors import InputError
from momentgen.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["picture"]

#: values of an example up to which each has a histogram of its own, and the draws in one
_HISTOGRAMS, _DRAWS = 4, 4000


def picture(out: Any, labels: Sequence[str] | None, level: float, classes: bool) -> Figure:
    """The figure of a :class:`momentgen.JointMoments`, all of whose values are shown; arguments as in its ``plot``."""
    require("report", "plot")
    from matplotlib.figure import Figure

    count = out.mean.numel()
    names = [str(place) for place in range(count)] if labels is None else [str(label) for label in labels]
    if len(names) != count:
        raise InputError(f"plot: expected {count} labels, one for each value, got {len(names)}")
    histograms = count <= _HISTOGRAMS and not classes
    width = 3.2 * count if histograms else max(4.0, 0.35 * count + 1.5)
    figure = Figure(figsize=(width, 3.2), layout="constrained")
    if histograms:
        _draw_histograms(figure, out, names if labels is not None else [""] * count, level)
        return figure
    axes = figure.add_subplot()
    if classes:
        largest = out.probability(lambda y: y == y.amax(-1, keepdim=True))
        heights, errors = (part.flatten().tolist() for part in largest)
        axes.bar(names, heights, yerr=[2 * error for error in errors])
        axes.set(title="Probability that a class is the largest, and two standard errors", ylim=(0, None))
    else:
        lower, upper, *_ = out.interval(level)
        mean = out.mean.detach().flatten()
        reach = torch.stack([mean - lower.flatten(), upper.flatten() - mean]).clamp_min(0)
        axes.errorbar(names, mean.tolist(), yerr=reach.tolist(), fmt="o", capsize=3)
        axes.set_title(f"Mean and {level:.4g} interval")
    if max(map(len, names)) > 3:
        axes.tick_params(axis="x", rotation=60)
    return figure


def _draw_histograms(figure: Figure, out: Any, names: Sequence[str], level: float) -> None:
    """One histogram of draws for each value, with its mean and its interval."""
    draws = out.sample(_DRAWS).reshape(_DRAWS, -1)
    lower, upper, *_ = (part.flatten().tolist() for part in out.interval(level))
    for place, axes in enumerate(figure.subplots(1, len(names), squeeze=False)[0]):
        axes.hist(draws[:, place].tolist(), bins=50, density=True)
        axes.axvspan(lower[place], upper[place], alpha=0.2, label=f"{level:.4g} interval")
        axes.axvline(out.mean.flatten()[place].item(), color="black", label="mean")
        axes.set(title=f"{out.mean.flatten()[place]:.4g} ± {out.std.flatten()[place]:.2g} (σ)", xlabel=names[place])
        axes.set_yticks([])
    figure.axes[0].legend(fontsize="small")
