"""Pictures of answers, budgets and summaries by matplotlib, which is imported where one is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from momentgen.errors import InputError
from momentgen.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["of_answer", "of_coverage", "of_intervals", "of_layers", "of_parts", "of_shares"]

#: values of an example that have a histogram each, values with a name, draws, and bins
_FEW, _NAMED, _DRAWS, _BINS = 4, 40, 20_000, 60


def _panels(what: str, size: tuple[float, float], rows: int = 1, columns: int = 1) -> list[Axes]:
    """New axes below or beside each other."""
    require("plot", what)
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained")
    return list(figure.subplots(rows, columns, sharex=rows > 1, squeeze=False).flat)


def of_answer(out: Any, labels: str | Sequence[str] | None, level: float, classes: bool) -> list[Axes]:
    """See :meth:`momentgen.Moments.plot`; all values of ``out`` are shown."""
    count, known = out.mean.numel(), getattr(out, "_predictive", None) is not None
    if not 0 < level < 1:
        raise InputError(f"plot: expected level between 0 and 1, got {level!r}")
    if classes and not known:
        raise InputError("plot: probabilities of classes need an answer of the default method, which has draws")
    names, unit = _names(out.mean, labels)
    mean, std = (part.detach().double().cpu().flatten().tolist() for part in (out.mean, out.std))
    if known and count <= _FEW and not classes:
        units = [unit] if count == 1 else names
        panels = _panels("Moments.plot", (max(4.2, 3.2 * count), 3.2), columns=count)
        draws = out.sample(_DRAWS).detach().double().cpu().reshape(_DRAWS, -1)
        ends = [part.detach().double().cpu().flatten().tolist() for part in out.interval(level)[:2]]
        for value, axes in enumerate(panels):
            axes.hist(draws[:, value].tolist(), _BINS, density=True)
            axes.axvspan(ends[0][value], ends[1][value], alpha=0.2, label=f"{level:.4g} interval")
            axes.axvline(mean[value], color="black", label="mean")
            axes.set(title=f"{mean[value]:.5g} ± {std[value]:.2g} (σ)", xlabel=units[value], yticks=[])
        panels[0].legend(fontsize="small")
        return panels
    (axes,) = _panels("Moments.plot", (max(4.5, 1.5 + 0.3 * min(count, _NAMED)), 3.2))
    if classes:
        largest = out.probability(lambda y: y == y.amax(-1, keepdim=True))
        heights, errors = (part.cpu().flatten() for part in largest)
        axes.bar(range(count), heights.tolist(), yerr=(2 * errors).tolist(), capsize=2)
        axes.set(title="probability of being the largest, two standard errors", ylim=(0, None))
    else:
        below, above, title = std, std, "mean ± σ"
        if known:
            lower, upper, *_ = (part.detach().double().cpu().flatten().tolist() for part in out.interval(level))
            below = [max(center - end, 0) for center, end in zip(mean, lower, strict=True)]
            above = [max(end - center, 0) for center, end in zip(mean, upper, strict=True)]
            title = f"mean and {level:.4g} interval"
        axes.errorbar(range(count), mean, (below, above), fmt="o", markersize=3, capsize=2)
        axes.set(title=title, ylabel=unit)
    if count <= _NAMED:
        axes.set_xticks(range(count), names, rotation=0 if max(map(len, names)) < 4 else 60)
    return [axes]


def _names(mean: Tensor, labels: str | Sequence[str] | None) -> tuple[list[str], str]:
    """The name of each value, and the text on the axis of values."""
    if labels is None or isinstance(labels, str):
        shape = mean.shape[1:] if mean.dim() > 1 and mean.shape[0] == 1 else mean.shape
        return [_place(value, tuple(shape)) for value in range(mean.numel())], labels or "output"
    if len(labels) != mean.numel():
        raise InputError(f"plot: expected {mean.numel()} labels, one for each value, got {len(labels)}")
    return [str(label) for label in labels], labels[0] if len(labels) == 1 else "output"


def _place(value: int, shape: tuple[int, ...]) -> str:
    """The index of a value, as text."""
    found = list[str]()
    for size in reversed(shape):
        found.append(str(value % size))
        value //= size
    return ", ".join(reversed(found))


def of_shares(names: Sequence[str], shares: Tensor, errors: Tensor, title: str, image: tuple[int, int] | None) -> Axes:
    """Shares of a variance of shape ``(G,)``: bars with errors, the largest on top, or pixels of an image."""
    if image is not None and math.prod(image) != len(names):
        raise InputError(f"plot: expected an image of {len(names)} groups, got {image[0]} × {image[1]}")
    (axes,) = _panels("Budget.plot", (5, 4 if image else 0.9 + 0.3 * len(names)))
    axes.set_title(title)
    percent = 100 * shares.cpu()
    if image is not None:
        axes.figure.colorbar(axes.imshow(percent.reshape(image).numpy(), cmap="viridis"))
        axes.set_axis_off()
        return axes
    order = percent.argsort().tolist()
    axes.barh([names[group] for group in order], percent[order].tolist(), xerr=(100 * errors.cpu())[order].tolist())
    axes.set_xlabel("share of the variance, %")
    return axes


def of_layers(rows: Sequence[Any], draws: int) -> list[Axes]:
    """Ranges of mean and σ by layer, and with draws how far ``ap2`` is off; rows of a summary."""
    places = range(len(rows))
    panels = _panels("Summary.plot", (max(6, 0.7 * len(rows) + 2), 5 + 2.5 * bool(draws)), 3 if draws else 2)
    for axes, name, text in zip(panels, ("mean", "std"), ("mean", "standard deviation"), strict=False):
        least, average, largest = zip(*(getattr(row, name) for row in rows), strict=True)
        axes.vlines(places, least, largest, color="C0")
        axes.plot(places, average, "o", color="C0")
        axes.set_ylabel(text)
    if draws:
        panels[2].axhline(1, color="black", linewidth=0.8)
        panels[2].plot(places, [math.nan if row.ratio is None else row.ratio for row in rows], "o-", color="C1")
        panels[2].set_ylabel("σ by ap2 / σ of draws")
    panels[0].set_title("least, average and largest over the units of each layer")
    panels[-1].set_xticks(places, [f"{row.name} ({row.kind})" for row in rows], rotation=60, ha="right")
    return panels


def of_intervals(mean: NDArray[Any], low: NDArray[Any], high: NDArray[Any], y: NDArray[Any], coverage: float) -> Axes:
    """Intervals ``(n,)`` in the order of the means, and targets, those outside in another colour."""
    (axes,) = _panels("plot_intervals", (7, 3.5))
    order, places = mean.argsort(), range(len(y))
    missed = (y < low) | (y > high)
    axes.vlines(places, low[order], high[order], color="C0", alpha=0.4, label=f"{coverage:.4g} interval")
    colours = ["C3" if out else "black" for out in missed[order]]
    axes.scatter(places, y[order], s=8, c=colours, zorder=2)
    axes.set(title=f"{1 - missed.mean():.1%} of {len(y)} targets inside", xlabel="row, by its mean", ylabel="target")
    axes.legend(fontsize="small")
    return axes


def of_coverage(nominal: NDArray[Any], observed: Sequence[float], rows: int) -> Axes:
    """Shares of ``rows`` targets inside, over the nominal coverage, and two standard errors of chance."""
    (axes,) = _panels("plot_calibration", (4, 4))
    chance = 2 * (nominal * (1 - nominal) / rows) ** 0.5
    axes.fill_between(nominal, nominal - chance, nominal + chance, alpha=0.2, label="two standard errors of chance")
    axes.plot(nominal, observed, "o-", markersize=3)
    axes.set(title=f"{rows} targets", xlabel="nominal coverage", ylabel="share inside", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize="small")
    return axes


def of_parts(epistemic: NDArray[Any], aleatoric: NDArray[Any]) -> Axes:
    """Two standard deviations ``(n,)`` of each row, in the order of their total."""
    (axes,) = _panels("plot_parts", (6, 3.5))
    order = (epistemic**2 + aleatoric**2).argsort()
    axes.plot(epistemic[order], label="epistemic: more data would reduce it")
    axes.plot(aleatoric[order], label="aleatoric: noise")
    axes.set(xlabel="row, by its σ", ylabel="σ", ylim=(0, None))
    axes.legend(fontsize="small")
    return axes
