"""``budget``: which of the noisy values matter, as shares of the variance of an output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.shares import BY_DRAWS, Contributions, Shares
from momentgen.laws.convert import Function, convert, parameters
from momentgen.laws.nests import leaves_of
from momentgen.laws.notes import within
from momentgen.pictures import of_shares
from momentgen.runtime import JointMoments, Moments, terms_of

if TYPE_CHECKING:
    import pandas as pd
    from jaxtyping import Shaped
    from matplotlib.axes import Axes

#: noisy values that have a row of their own where nobody says otherwise
_VALUES: Final = 32
#: groups that are told apart by draws
_GROUPS: Final = 64
#: draws for each group: of formulas, and of networks
_OF_FORMULA, _OF_NETWORK = 4096, 256
#: remainder that is too small to be worth draws, as a part of the variance
_SMALL: Final = 1e-4


class Budget:
    """Shares of the variance of an output, by groups of noisy values.

    Attributes:
        out: the output: its mean, standard deviation, and what else follows from it.
        names: of the groups, G in all.
        first: first-order shares, shape ``(G, *shape)``: the part of the variance that goes when the group is known.
        first_error: their standard errors.
        total: the part that stays when all else is known, of the same shape; None where the draws do not tell.
        total_error: their standard errors; None likewise.
        slope: derivative of the output by the group's value, averaged over the draws; NaN for groups of several.
        own: share of noise that the network draws itself, as of its weights, shape ``(*shape)``.
        nonlinear: share that no linear function of the noise explains, of the same shape.
        dependent: whether inputs are correlated.  Shares then are those of the covariance decomposition, by the linear
            part alone, and may be negative.
    """

    def __init__(self, out: Moments, names: list[str], found: Shares, dependent: bool) -> None:
        shape, var = out.mean.shape, out.var.detach().double()
        relative = 2 * (out.std_error / out.std).detach().double() if out.std_error is not None else torch.zeros(shape)
        if found.var is not None:
            own, by_draws = found.var[0].reshape(shape), (found.var[1] / found.var[0]).reshape(shape)
            var, relative = torch.where(by_draws < relative, own, var), torch.minimum(by_draws, relative)

        def share(value: Tensor) -> Tensor:
            return value.reshape(-1, *shape) / var

        def known(value: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
            """A share and its error: of its variance, and of the output's."""
            return share(value), (share(off).square() + (share(value) * relative).square()).sqrt()

        self.out, self.names, self.dependent = out, names, dependent
        linear = found.linear
        self.first, self.first_error = known(*(found.first or (linear, torch.zeros_like(linear))))
        nothing: tuple[Tensor | None, Tensor | None] = None, None
        self.total, self.total_error = nothing if found.total is None else known(*found.total)
        self.slope, self.own = found.slope.reshape(-1, *shape), share(found.own)[0]
        self.nonlinear = 1 - share(linear).sum(0) - self.own

    def rows(self, at: int | tuple[int, ...] | None = None) -> list[dict[str, Any]]:
        """A row for each group of one value of the output, the largest share first.

        Args:
            at: index of the value; None for the first one.
        """
        shares = {"first": self.first, "first_error": self.first_error}
        if self.total is not None and self.total_error is not None:
            shares |= {"total": self.total, "total_error": self.total_error}
        place = self._place(at)
        found: list[dict[str, Any]] = []
        for group, name in enumerate(self.names):
            numbers = {key: float(value[group, *place]) for key, value in {"slope": self.slope, **shares}.items()}
            found.append({"input": name, **numbers})
        return sorted(found, key=lambda row: -row.get("total", abs(row["first"])))

    def table(self, at: int | tuple[int, ...] | None = None) -> str:
        """The budget of one value of the output as text.

        Args:
            at: index of the value; None for the first one.
        """
        place, rows = self._place(at), self.rows(at)
        mean, std = (float(part.detach()[place]) for part in (self.out.mean, self.out.std))
        wide = max(len("input"), *(len(name) for name in self.names))

        def line(name: str, slope: str, *shares: str) -> str:
            return f"{name:{wide}}  {slope:>10}" + "".join(f"  {share:>15}" for share in shares)

        heads = ["covariance" if self.dependent else "first order", *([] if self.total is None else ["total"])]
        lines = [f"output{list(place) if place else ''}: {mean:.6g} ± {std:.3g}", "", line("input", "slope", *heads)]
        for row in rows:
            shares = [f"{100 * row[k]:.1f} ± {100 * row[f'{k}_error']:.1f} %" for k in ("first", "total") if k in row]
            lines.append(line(row["input"], "" if math.isnan(row["slope"]) else f"{row['slope']:.3g}", *shares))
        if float(self.own[place]):
            lines.append(line("(the network)", "", f"{100 * float(self.own[place]):.1f} %"))
        lines += ["", f"{100 * float(self.nonlinear[place]):.1f} % of the variance is not linear in the inputs"]
        if self.dependent:
            lines.append("inputs are correlated: shares are covariances with the output, of the linear part")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.table()

    def to_pandas(self, at: int | tuple[int, ...] | None = None) -> pd.DataFrame:
        """The rows as a data frame, by input."""
        import pandas as pd

        return pd.DataFrame(self.rows(at)).set_index("input")

    def plot(self, at: int | tuple[int, ...] | None = None, *, image: tuple[int, int] | None = None) -> Axes:
        """A picture of the shares, total ones where they are known: bars, or an image of one group per pixel.

        Args:
            at: index of the value; None for the first one.
            image: height and width, where groups are pixels or blocks of them in order.

        Raises:
            InputError: for an image of another number of groups.
            MissingExtraError: if matplotlib is not installed.
        """
        place = self._place(at)
        known = (self.total, self.total_error) if self.total is not None else (self.first, self.first_error)
        shares, errors = (part.movedim(0, -1)[place] for part in known if part is not None)
        title = f"what makes the variance of output{list(place) if place else ''}"
        return of_shares(self.names, shares, errors, title, image)

    def _place(self, at: int | tuple[int, ...] | None) -> tuple[int, ...]:
        if at is None:
            return (0,) * self.out.mean.dim()
        place = at if isinstance(at, tuple) else (at,)
        if len(place) != self.out.mean.dim():
            raise InputError(
                f"Budget: expected an index of one value of an output of shape {tuple(self.out.mean.shape)}, got {at!r}"
            )
        return place


def budget(
    f: Callable[..., Any],
    *inputs: Any,
    groups: str | Shaped[Tensor, "*example"] | Sequence[Shaped[Tensor, "*example"]] | None = None,
    names: Sequence[str] | None = None,
    draws: int | None = None,
    **options: Any,
) -> Budget:
    """Which noisy values make the variance of an output.

    With independent inputs, the linear part's shares come from the answer itself.  What is not linear is estimated by
    pick and freeze (Saltelli et al. 2010), in ``draws`` further passes for each group.

    Args:
        f: a function of tensors or a network, that returns one tensor.
        inputs: its arguments, as for :func:`momentgen.propagate`.
        groups: ``"value"`` for a group per noisy value of an example.  ``"argument"`` for one per noisy argument.
            ``"channel"`` for one per entry of the first dimension of an example.  Tensors of whole numbers from 0, one
            per noisy argument, of an example's shape.  None for values where there are few, else arguments.
        names: of the groups, in the order of :attr:`Budget.names` without this argument.
        draws: passes for each group, which set the errors of shares.  0 leaves the linear part alone.  None for 4,096
            of a formula and 256 of a network, up to 64 groups, where more than the linear part matters.
        options: ``rtol``, ``max_rows``, ``seed``, as for :func:`momentgen.propagate`.

    Raises:
        InputError: for a function that returns anything else than one random tensor, and for other groups.

    >>> import momentgen
    >>> found = budget(lambda a, b: 3 * a + b, momentgen.noisy(1.0, std=1.0), momentgen.noisy(1.0, std=4.0))
    >>> found.names, found.first.round(decimals=3)
    (['a', 'b'], tensor([0.3600, 0.6400], dtype=torch.float64))
    """
    network = convert(f, "controlled", **options)
    out = network(*inputs)
    if (contributions := _contributions(out)) is None:  # as of nodes, which have no linear part
        with within(BY_DRAWS, True):
            contributions = _contributions(network(*inputs))
    if contributions is None:
        raise InputError(f"budget: expected a function that returns one random tensor, got {type(out).__name__}")
    known = contributions()
    labels, made = _labels(known, groups, list(_values(f, inputs)))
    if names is not None and len(names) != len(made):
        raise InputError(f"budget: expected {len(made)} names of groups, got {len(names)}")
    few = _OF_FORMULA if isinstance(network, Function) and not len(network.parts) else _OF_NETWORK
    linear = known.shares(labels, len(made), 0)
    left = 1 - (linear.linear.sum(0) + linear.own).reshape(out.mean.shape) / out.var.double()
    wanted = (few if len(made) <= _GROUPS and bool((left.abs() > _SMALL).any()) else 0) if draws is None else draws
    found = known.shares(labels, len(made), wanted) if wanted else linear
    return Budget(out, list(names) if names is not None else made, found, known.correlated)


def _contributions(out: Any) -> Callable[[], Contributions] | None:
    """What groups contribute to an answer by draws; None of anything else."""
    made = getattr(out, "_predictive", None) if isinstance(out, JointMoments) else None
    found: Callable[[], Contributions] | None = getattr(made, "contributions", None)
    return found


def _values(f: Callable[..., Any], inputs: tuple[Any, ...]) -> Iterator[list[str]]:
    """Of each source of noise, in the order of the arguments, the names of its values, or one of all."""
    given = list(parameters(f.forward if isinstance(f, torch.nn.Module) else f))
    met: dict[int, list[tuple[int | None, str, str]]] = {}
    for place, value in enumerate(inputs):
        name = given[place] if place < len(given) else f"argument {place + 1}"
        random = [leaf for leaf in leaves_of(value) if isinstance(leaf, Moments)]
        for number, leaf in enumerate(random):
            own = name if len(random) == 1 else f"{name}[{number}]"
            terms = terms_of(leaf)[1]
            for part, term in enumerate(terms):
                text = own if len(terms) == 1 else f"{own}, part {part + 1}"
                met.setdefault(id(term.source), []).append((term.start, text, own))
    alone = [found[0][-1] for found in met.values() if len(found) == 1]  # values by parts that no other has
    for found in met.values():
        starts = [start for start, *_ in found]
        if len(found) == 1 and alone.count(found[0][-1]) == 1:
            yield [found[0][-1]]
        elif all(start is not None for start in starts) and len(set(starts)) == len(starts):
            yield [text for _, text, _ in sorted(found, key=lambda one: one[0] or 0)]
        elif len(sharing := list(dict.fromkeys(own for *_, own in found))) > 1:
            yield [f"common to {', '.join(sharing)}"]
        else:
            yield [found[0][1]]


def _labels(
    known: Contributions, groups: str | Tensor | Sequence[Tensor] | None, named: list[list[str]]
) -> tuple[list[Tensor], list[str]]:
    """The group of each noisy value of each source, and the groups' names."""
    shapes = [shape[1:] if known.batched else shape for shape in known.inputs]
    if isinstance(groups, Tensor):
        groups = [groups]
    if groups is not None and not isinstance(groups, str):
        given = [label.reshape(-1).long() for label in groups]
        if [label.numel() for label in given] != [shape.numel() for shape in shapes]:
            expected = ", ".join(str(tuple(shape)) for shape in shapes)
            raise InputError(
                f"budget: expected groups of the shapes {expected}, got {[tuple(one.shape) for one in groups]}"
            )
        count = int(max(label.max() for label in given)) + 1
        return given, [f"group {group}" for group in range(count)]
    if groups is None:
        groups = "value" if sum(shape.numel() for shape in shapes) <= _VALUES else "argument"
    labels, names = list[Tensor](), list[str]()
    for place, shape in enumerate(shapes):
        own = named[place] if place < len(named) else [f"input {place + 1}"]
        size = shape.numel()
        if groups == "argument":
            labels.append(torch.full((size,), len(names)))
            names.append(", ".join(own))
        elif groups == "value":
            labels.append(torch.arange(size) + len(names))
            indices = itertools.product(*map(range, shape))
            names += own if len(own) == size else [f"{own[0]}{list(index)}" for index in indices]
        elif groups == "channel":
            first = shape[0] if len(shape) else 1
            labels.append((torch.arange(first) + len(names)).repeat_interleave(size // max(first, 1)))
            names += [f"{own[0]}[{channel}]" for channel in range(first)]
        else:
            raise InputError(f'budget: expected groups "value", "argument", "channel", or tensors, got {groups!r}')
    return labels, names
