"""``summary``: what each layer does to the uncertainty, as a table, and as a picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError
from momentgen.laws.activations import ACTIVATIONS
from momentgen.laws.border import method
from momentgen.laws.convert import convert
from momentgen.laws.kept import Kept
from momentgen.laws.law import Law
from momentgen.laws.methods import ALL, DEFAULT, by_flag
from momentgen.laws.notes import listening
from momentgen.laws.values import as_moments, lower
from momentgen.nn.monte_carlo import kind_of, monte_carlo, propagated
from momentgen.nn.tables import Table, range_of, shown
from momentgen.pictures import of_layers
from momentgen.runtime import Moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Row", "Summary", "summary"]

#: an activation's unit is saturated where it passes on less than this part of its input's standard deviation.
_PASSED_ON = 0.01


@dataclass(frozen=True)
class Row:
    """One layer.

    Args:
        name: its name in the network.
        kind: its class.
        mean: least, average and largest mean of its units over the batch.
        std: least, average and largest standard deviation.
        std_error: standard error of the average standard deviation; None where the network uses ``ap2``.
        saturation: share of an activation's units whose standard deviation is below a hundredth of their input's.
            None for other layers, and where the input was certain.
        ratio: geometric mean of σ by ``ap2`` over σ of draws.  None without draws, and where ``ap2`` cannot run the
            network.  Units whose σ is below a hundredth of the layer's average are left out: they hardly ever moved.
    """

    name: str
    kind: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    std_error: float | None = None
    saturation: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class MethodRow:
    """What one method says of the output.

    Args:
        method: ``ap2`` or ``controlled``.
        std: least, average and largest standard deviation over the output; None where the method cannot say.
        std_error: root mean square of its standard errors; None of a method that states none.
        ratio: geometric mean of σ over that of the samples; None without samples.
        cost: seconds over those of a plain forward pass, of one call.
        problem: why the method cannot say.
    """

    method: str
    std: tuple[float, float, float] | None
    std_error: float | None = None
    ratio: float | None = None
    cost: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Summary:
    """The rows of :func:`summary`; prints as a table.

    Args:
        rows: one per layer.
        draws: of the network, of which the rows and their ratios are; 0 for none.
        samples: of Monte Carlo that were asked for, to compare the methods with.
        methods: what each method says of the output; empty where that was not asked for.
        default: the method that the network uses for this input where no context sets another.
        notes: what the pass took approximately: expressions integrated by quadrature, with the rule that would make
            them exact, quotients by random values, attention.
    """

    rows: tuple[Row, ...]
    draws: int
    samples: int
    notes: tuple[str, ...] = ()
    methods: tuple[MethodRow, ...] = ()
    default: str = "ap2"

    def __str__(self) -> str:
        has_errors = any(row.std_error is not None for row in self.rows)
        columns = ["layer", "class", "mean: least", "average", "largest", "std: least", "average"]
        columns += [*(["±"] if has_errors else []), "largest", "saturated"]
        layers = Table(columns + ([f"ap2's σ / σ\nof {self.draws} draws"] if self.draws else []), words=2)
        for row in self.rows:
            std = _with_error(row.std, row.std_error)
            cells = [*shown(row.mean), *(std if has_errors else [*std[:2], std[3]]), _cell(row.saturation, ".1%")]
            layers.add_row(row.name, row.kind, *cells, *([_cell(row.ratio, ".3f")] if self.draws else []))
        parts = [str(layers)]
        if self.methods:
            columns = ["output by", "std: least", "average", "±", "largest", "time over a\nplain pass"]
            compared = Table(columns + ([f"σ / σ of\n{self.samples} samples"] if self.samples else []), words=1)
            for one in self.methods:
                name = f"{one.method} (this network's)" if one.method == self.default else one.method
                cells = [one.problem] if one.std is None else _with_error(one.std, one.std_error)
                ratio = [_cell(one.ratio, ".3f")] if self.samples and one.std is not None else []
                compared.add_row(name, *cells, *([] if one.std is None else [_cell(one.cost, ".3g")]), *ratio)
            parts += ["", str(compared)]
        if self.notes:
            parts += ["", "taken approximately:", *(f"- {note}" for note in self.notes)]
        return "\n".join(parts)

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
    methods: Sequence[str] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Summary:
    """Ranges of mean and standard deviation of every layer with their errors, saturation, and the output by method.

    A network that uses ``ap2``, as in training, shows the layers of one such pass.  Layers of any other network come
    from draws: ``samples`` of them, or 64, each an ordinary call.  Beside them stands how far ``ap2`` is off.  A note
    says so where its σ of the output is off by more than a fifth.

    Args:
        model: a network over moments, or a plain one, which is converted.
        x: the input, batch first.
        samples: of Monte Carlo to compare with; 0 for none, otherwise at least 2.
        methods: of ``ap2`` and ``controlled``; empty for none.  None stands for ``ap2`` and the network's own: the
            method that it was given, else its default in the present mode.
        seed: of the draws.
        progress: as in :func:`momentgen.monte_carlo`.

    Raises:
        InputError: for a network with no layers, where nothing is random, for another method, and as
            :func:`momentgen.monte_carlo`.
        UnsupportedError: for a network that uses ``ap2`` and cannot be run by it.

    >>> from momentgen import nn
    >>> x = Moments(torch.tensor([[-1.0, 9.0]]), torch.tensor([[1.0, 4.0]]))
    >>> rows = summary(nn.Sequential(nn.ReLU(), nn.Flatten()).train(), x).rows
    >>> rows[0].name, rows[0].kind, [round(value, 3) for value in rows[0].mean]
    ('0', 'ReLU', [0.083, 4.542, 9.0])
    """
    model = convert(model)
    unknown = [name for name in methods or () if name not in _METHODS]
    if unknown:
        raise InputError(f"summary: expected methods of {', '.join(_METHODS)}, got {unknown[0]!r}")
    single = getattr(model, "DEFAULT", DEFAULT) != DEFAULT
    own = str(getattr(model, "propagation", None) or ("ap2" if single else by_flag(model.training)))
    given, problem, saturations = as_moments("summary", x), "", dict[str, float]()
    of_ap2, drawn, errors = dict[str, Moments](), dict[str, Moments](), dict[str, float]()
    kinds = {name: kind_of(part) for name, part in model.named_modules()}
    hooked = [(name, part) for name, part in model.named_modules() if kinds[name] in _ACTIVATIONS]
    handles = [part.register_forward_hook(_saturation(name, saturations)) for name, part in hooked]
    kept = Kept(model)
    with listening() as heard:
        try:
            with method("ap2"):
                output, of_ap2 = propagated(model, x)
        except MomentgenError as error:
            if own == "ap2":
                raise
            problem = str(error)
        finally:
            kept.restore()
            for handle in handles:
                handle.remove()
    notes = [] if problem else list(heard)
    if draws := samples or (0 if own == "ap2" else _DRAWS):
        batch = given.mean.shape[:1].numel()
        found = monte_carlo(model, x, draws, rows=batch, seed=seed, progress=progress)  # each draw a call
        kept.restore()
        output, drawn, errors = found.output, found.layers, found.errors
    layers = of_ap2 if own == "ap2" else drawn
    if not layers:
        raise InputError(f"summary: {type(model).__name__} has no layers")
    if not any(bool(one.var.any()) for one in (output, *layers.values())):
        raise InputError(
            "summary: nothing is random: the input is certain, and the network makes no noise of its own. Pass "
            "momentgen.noisy(x, std=...), or Moments of a variance that is not 0"
        )
    rows = []
    for name, one in layers.items():
        base = name.partition(":")[0]
        ratio = _ratio(of_ap2[name], drawn[name]) if name in of_ap2 and name in drawn else None
        own_error = None if own == "ap2" else errors.get(name)
        ranges = range_of(one.mean), range_of(one.var.sqrt())
        rows.append(Row(name, kinds.get(base, base), *ranges, own_error, saturations.get(base), ratio))
    compared: list[MethodRow] = []
    if wanted := ("ap2", own) if methods is None else methods:
        compared, off = _by_method(model, given, wanted, output if samples else None, problem)
        if off is not None and not 1 / _OFF < off < _OFF:
            notes.append(
                f"ap2: its σ of the output is {off:.2g} of that of controlled, since it takes units as independent"
            )
    return Summary(tuple(rows), draws, samples, tuple(notes), tuple(compared), own)


#: draws of a layer where none are asked for
_DRAWS = 64
_METHODS = tuple(one.name for one in ALL.values() if one.is_distribution)
#: a diagonal σ that is off by more than this factor is said to be
_OFF = 1.2
_ACTIVATIONS = frozenset(row.layer for row in ACTIVATIONS)


def _by_method(
    model: torch.nn.Module, given: Moments, methods: Sequence[str], truth: Moments | None, problem: str
) -> tuple[list[MethodRow], float | None]:
    """The output's σ, and the time it takes, by each method; and by which factor the diagonal one is off."""
    outputs: dict[str, Moments] = {}
    rows: list[MethodRow] = []

    def seconds(x: Moments | Tensor, name: str) -> float:
        kept, start = Kept(model), time.perf_counter()
        try:
            with torch.no_grad(), method(name):  # type: ignore[arg-type]
                out = model(x)
            taken = time.perf_counter() - start
        finally:
            kept.restore()
        if not isinstance(out, Moments):
            raise InputError(f"summary: methods are compared on one output, got {type(out).__name__}")
        outputs[name] = out
        return taken

    base = min(seconds(given.mean.clone(), "sample") for _ in range(3))
    for name in ("ap2", *(name for name in _METHODS if name in methods and name != "ap2")):
        try:
            if name == "ap2" and problem:
                raise MomentgenError(problem)
            cost = seconds(given, name) / base
        except MomentgenError as error:
            rows.append(MethodRow(name, None, problem=str(error)))
            continue
        out = outputs[name]
        ratio = None if truth is None else _ratio(out, Moments(truth.mean, truth.var.reshape(out.var.shape)))
        stated = None if out.std_error is None else out.std_error.square().mean().sqrt().item()
        rows.append(MethodRow(name, range_of(out.var.sqrt()), stated, ratio, cost))
    both = [outputs[name] for name in _METHODS if name in outputs]
    return rows, _ratio(*both) if len(both) == len(_METHODS) else None


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _with_error(std: tuple[float, float, float], error: float | None) -> list[str]:
    """Least, average, its error, and largest."""
    least, average, largest = shown(std)
    return [least, average, _cell(error, ".2g"), largest]


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
    measured = (std > 0.01 * std.mean()) & (found.var > 0)
    if not bool(measured.any()):
        return None
    return (0.5 * (found.var.double()[measured].log() - truth.var[measured].log())).mean().exp().item()
