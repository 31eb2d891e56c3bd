"""``summary``: what each layer does to the uncertainty, as a table, and as a picture.

Tables that results print as, in plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError
from momentgen.laws.activations import ACTIVATIONS
from momentgen.laws.convert import convert
from momentgen.laws.law import Law
from momentgen.laws.methods import DEFAULT, by_flag
from momentgen.laws.nests import Kept
from momentgen.laws.notes import listening
from momentgen.laws.values import as_moments, lower
from momentgen.nn.monte_carlo import kind_of, moments, monte_carlo
from momentgen.pictures import of_layers
from momentgen.runtime import Moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: an activation's unit is saturated where it passes on less than this part of its input's standard deviation.
_PASSED_ON = 0.01
#: draws of a layer where none are asked for
_DRAWS = 64
#: a σ by ap2 that is off by more than this factor is said to be
_OFF = 1.2
_ACTIVATIONS = frozenset(row.layer for row in ACTIVATIONS)


@dataclass(frozen=True)
class Row:
    """One layer.

    Args:
        name: its name in the network.
        kind: its class.
        mean: least, average and largest mean of its units over the batch.
        std: least, average and largest standard deviation.
        saturation: share of an activation's units whose standard deviation is below a hundredth of their input's.
            None for other layers, and where the input was certain.
        ratio: geometric mean of σ by ``ap2`` over σ of draws.  None without draws, and where ``ap2`` cannot run the
            network.  Units whose σ is below a hundredth of the layer's average are left out: they hardly ever moved.
    """

    name: str
    kind: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    saturation: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Summary:
    """The rows of :func:`summary`; prints as a table.

    Args:
        rows: one per layer.
        draws: of the network, of which the rows and their ratios are; 0 for none.
        notes: how far ``ap2`` is off, and what it took approximately, as expressions integrated by quadrature,
            quotients by random values, and attention.
    """

    rows: tuple[Row, ...]
    draws: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        ends = ["average", "largest"]
        columns = ["layer", "class", "mean: least", *ends, "std: least", *ends, "saturated"]
        table = Table(columns + ([f"ap2's σ / σ\nof {self.draws} draws"] if self.draws else []), words=2)
        for row in self.rows:
            shares = [
                "" if one is None else f"{one:{form}}" for one, form in ((row.saturation, ".1%"), (row.ratio, ".3f"))
            ]
            table.add_row(row.name, row.kind, *shown((*row.mean, *row.std)), *shares[: 1 + bool(self.draws)])
        notes = ["", "taken approximately:", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([str(table), *notes])

    def plot(self, path: str | Path | None = None) -> list[Axes]:
        """A picture of the ranges, layer by layer, in panels below each other; needs matplotlib.

        Args:
            path: of a file to write it to; None for none.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        panels = of_layers(self.rows, self.draws)
        if path is not None:
            cast(Any, panels[0].figure).savefig(path, dpi=110)
        return panels


def summary(
    model: torch.nn.Module,
    x: Moments | Tensor,
    samples: int = 0,
    *,
    seed: int | None = None,
    progress: bool | None = None,
) -> Summary:
    """Ranges of mean and standard deviation of every layer, saturation, and how far off ``ap2`` is.

    A network that uses ``ap2``, as in training, shows the layers of one such pass.  Layers of any other network come
    from draws: ``samples`` of them, or 64, each an ordinary call.  The average σ of n draws is known to 1/√(2n) at
    least, 9 % for 64.  Beside them stands how far ``ap2`` is off.  A note says so where its σ of the output is off by
    more than a fifth.

    Args:
        model: a network over moments, or a plain one, which is converted.
        x: the input, batch first.
        samples: of Monte Carlo to compare with; 0 for none, otherwise at least 2.
        seed: of the draws.
        progress: as in :func:`momentgen.monte_carlo`.

    Raises:
        InputError: if the network has no layers, if nothing is random, and where :func:`momentgen.monte_carlo` raises.
        UnsupportedError: for a network that uses ``ap2`` and cannot be run by it.

    >>> from momentgen import nn
    >>> x = Moments(torch.tensor([[-1.0, 9.0]]), torch.tensor([[1.0, 4.0]]))
    >>> rows = summary(nn.Sequential(nn.ReLU(), nn.Flatten()).train(), x).rows
    >>> rows[0].name, rows[0].kind, [round(value, 3) for value in rows[0].mean]
    ('0', 'ReLU', [0.083, 4.542, 9.0])
    """
    model = convert(model)
    single = getattr(model, "DEFAULT", DEFAULT) != DEFAULT
    own = str(getattr(model, "propagation", None) or ("ap2" if single else by_flag(model.training)))
    given, saturations, notes = as_moments("summary", x), dict[str, float](), list[str]()
    of_ap2, drawn = dict[str, Moments](), dict[str, Moments]()
    parts = {name or kind_of(part): part for name, part in model.named_modules()}
    hooked = [(name, part) for name, part in parts.items() if kind_of(part) in _ACTIVATIONS]
    handles = [part.register_forward_hook(_saturation(name, saturations)) for name, part in hooked]
    kept = Kept(model)
    try:
        with listening() as heard, torch.no_grad():
            of_ap2 = moments(model, x, method="ap2")
        notes += heard
    except MomentgenError as error:
        if own == "ap2":
            raise
        notes.append(f"ap2 does not run this network: {error}")
    finally:
        kept.restore()
        for handle in handles:
            handle.remove()
    if draws := samples or (0 if own == "ap2" else _DRAWS):
        batch = given.mean.shape[:1].numel()
        found = monte_carlo(model, x, draws, rows=batch, seed=seed, progress=progress)  # each draw a call
        kept.restore()
        drawn = {**found.layers, "output": found.output}
    every = of_ap2 if own == "ap2" else drawn
    ratios = {name: _ratio(of_ap2[name], drawn[name]) for name in of_ap2.keys() & drawn.keys()}
    bases = {name: name.partition(":")[0] for name in every}  # of later calls too
    layers = {name: every[name] for name, base in bases.items() if base in parts and not any(parts[base].children())}
    if not layers:
        raise InputError(f"summary: {type(model).__name__} has no layers")
    if not any(bool(one.var.any()) for one in every.values()):
        raise InputError(
            "summary: nothing is random: the input is certain, and the network makes no noise of its own. Pass "
            "momentgen.noisy(x, std=...), or Moments of a variance that is not 0"
        )
    rows = []
    for name, one in layers.items():
        ranges, base = (range_of(one.mean), range_of(one.var.sqrt())), bases[name]
        rows.append(Row(name, kind_of(parts[base]), *ranges, saturations.get(base), ratios.get(name)))
    off = ratios.get("output")
    if off is not None and not 1 / _OFF < off < _OFF:
        notes.append(f"ap2: its σ of the output is {off:.2g} of that of draws, since it takes units as independent")
    return Summary(tuple(rows), draws, tuple(notes))


def _saturation(name: str, found: dict[str, float]) -> Any:
    def hook(_module: torch.nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
        given, found_out = (lower(value) if isinstance(value, Law) else value for value in (inputs[0], out))
        if isinstance(given, Moments) and isinstance(found_out, Moments) and bool((given.var > 0).any()):
            before = given.var
            stuck = (found_out.var < _PASSED_ON**2 * before)[before > 0]
            found[name] = stuck.double().mean().item()

    return hook


def _ratio(found: Moments, truth: Moments) -> float | None:
    std = truth.var.sqrt()
    measured = (std > 0.01 * std.mean()) & (found.var.reshape(std.shape) > 0)
    if not bool(measured.any()):
        return None
    logs = found.var.double().reshape(std.shape)[measured].log() - truth.var[measured].log()
    return (0.5 * logs).mean().exp().item()


class Table:
    """Text in columns: ``str(table)``.

    Args:
        columns: their headings; a line break begins a second line of the heading.
        words: how many columns at the left are text; the others are numbers, set to the right.
        title: a line above.

    >>> table = Table(["layer", "std"], words=1)
    >>> table.add_row("0", "0.25")
    >>> print(table)
    layer    std
    ────────────
    0       0.25
    """

    def __init__(self, columns: Sequence[str], words: int, title: str = "") -> None:
        heading = [column.split("\n") for column in columns]
        lines = max(map(len, heading))
        self._head = list(zip(*([""] * (lines - len(column)) + column for column in heading), strict=True))
        self._words, self._title, self._rows = words, title, list[tuple[str, ...]]()

    def add_row(self, *cells: str) -> None:
        """Append a row; cells that are left out at its end are empty."""
        self._rows.append(cells + ("",) * (len(self._head[0]) - len(cells)))

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._head, *self._rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            sides = "<" * self._words + ">" * (len(widths) - self._words)
            cut = zip(cells, sides, widths, strict=True)
            return "   ".join(f"{cell:{side}{width}}" for cell, side, width in cut).rstrip()

        rule = "─" * (sum(widths) + 3 * (len(widths) - 1))
        title = [self._title, ""] if self._title else []
        return "\n".join([*title, *map(line, self._head), rule, *map(line, self._rows)])


def range_of(values: Tensor) -> tuple[float, float, float]:
    """Least, average and largest value; NaN of none."""
    if not values.numel():
        return (float("nan"),) * 3
    return values.min().item(), values.double().mean().item(), values.max().item()


def shown(values: Sequence[float]) -> list[str]:
    """Numbers in three digits.

    >>> shown((0.12345, 2000.0))
    ['0.123', '2e+03']
    """
    return [f"{value:.3g}" for value in values]
