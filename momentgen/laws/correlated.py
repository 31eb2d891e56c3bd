"""``Correlated``: mean and variance of each value, and what values have in common, by a few directions and samples.

A law has tangents S_j, the derivatives of its mean along r directions of the joint noise (chosen so that the outputs
depend on them most), and k samples.  h = Σ_j S_j² is the variance that the directions explain, D = V - h the rest.

* A function of each value by itself takes mean and variance from the generated op, exact for a normal value; tangents
  are multiplied by E f', samples go through f.
* A function of several values maps tangents linearly and samples as it is.  Its variance is h, plus what the rule of
  independent values makes of D, multiplied by a factor that the samples' remainder X_s - Σ_j S_j c_sj tells
  (:mod:`momentgen.laws.numerics.shrinkage`).

So variances stay right where values share noise, and functions without a rule of their own need none.  How a network is
run on such laws is in :mod:`momentgen.laws.two_passes`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine, composite, noise
from momentgen.laws.adjoint import gain_of
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.law import Law, Rule, laws_in, new_law, register_pytree, tensor_of, tensors_of
from momentgen.laws.maxima import is_monotone
from momentgen.laws.numerics.shrinkage import shrunk
from momentgen.laws.point import Point
from momentgen.laws.rules import diagonal_rule
from momentgen.laws.slopes import slope_of
from momentgen.laws.table import KINDS, Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["RUN", "Correlated", "Run", "correlated"]


@dataclass
class Run:
    """What the laws of one run share: the directions, and the samples' coordinates in them.

    Attributes:
        directions: q, of all values of all sources of noise, shape (r, n).
        draws: z, samples of a normal variable of variance 1 for each, shape (k, n).
        coordinates: c = z qᵀ, shape (k, r).
        met: of how many values sources have been met.
    """

    directions: Tensor
    draws: Tensor
    coordinates: Tensor
    met: int = 0

    def source(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Tangents and deviations of the samples of the next source, of that *variance*."""
        start, self.met = self.met, self.met + mean.numel()
        tangents, draws = self.directions[:, start : self.met], self.draws[:, start : self.met]
        positive = var > 0
        root = torch.where(positive, torch.where(positive, var, 1).sqrt(), 0)
        return tangents.view(-1, *mean.shape) * root, draws.view(-1, *mean.shape) * root


#: the run that is under way in this thread and task
RUN: ContextVar[Run] = ContextVar("momentgen_run")


@dataclass(frozen=True)
class Joint:
    """What a law knows besides mean and variance.

    Attributes:
        tangents: S, shape ``(r, *shape)``.
        deviations: samples minus mean, shape ``(k, *shape)``.
        explained: h = Σ_j S_j², of the law's shape.
        alone: the same mean and variance as of independent values, with the history that tells functions of one value.
        independent: whether the values are independent, so that a linear map's variance is exact without samples.
        monotone: (entry, other arguments, law) of the monotone function and its argument that made this.
    """

    tangents: Tensor
    deviations: Tensor
    explained: Tensor
    alone: Diagonal
    independent: bool = False
    monotone: tuple[Entry, tuple[Any, ...], dict[str, Any], Any] | None = None


@register_pytree
class Correlated(Law):
    """Mean and variance of values that share noise; see the module."""

    __slots__ = ()
    RANK = 4

    _joint: Joint

    def moments(self) -> Any:
        """Mean and variance."""
        return self._joint.alone.moments()

    def _assign(self, new: Any) -> None:
        if not isinstance(new, Correlated):
            zero = torch.zeros_like(self._mean)
            new = correlated(
                tensor_of(new).expand(zero.shape), zero, self._joint.tangents * 0, self._joint.deviations * 0
            )
        self._mean, self._var, self._joint = new._mean, new._var, new._joint
        self._version += 1

    def _overwrite(self, new: Any) -> None:
        self._assign(new)

    def _like(self, *parts: Tensor) -> Law:
        raise NotImplementedError("a correlated law is not made of its mean and variance alone")


def correlated(
    mean: Tensor, var: Tensor, tangents: Tensor, deviations: Tensor, explained: Tensor | None = None, **more: Any
) -> Correlated:
    """A law; ``more`` are fields of :class:`Joint`."""
    law: Correlated = new_law(Correlated, mean, var)
    law._noise = Correlated
    alone = more.pop("alone", None)
    if explained is None:
        explained = squared_length(tangents)
    law._joint = Joint(tangents, deviations, explained, diagonal(mean, var) if alone is None else alone, **more)
    return law


def squared_length(rows: Tensor) -> Tensor:
    """Σ_j S_j²."""
    return rows.square().sum(0)


def remainder(law: Correlated) -> Tensor:
    """The samples without what the directions explain, shape ``(k, *shape)``."""
    joint = law._joint
    return joint.deviations - torch.tensordot(RUN.get().coordinates, joint.tangents, 1)


# -------------------------------------------------------------------- pieces


def _with(value: Any, given: Callable[[Correlated], Any]) -> Any:
    """Arguments with something in the place of each correlated law, and the tensor of each certain one."""
    if isinstance(value, Correlated):
        return given(value)
    if isinstance(value, Point):
        return value._form()
    if type(value) in (tuple, list):
        return type(value)([_with(item, given) for item in value])
    return value


def _arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], given: Callable[[Correlated], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple([_with(value, given) for value in args]), {key: _with(v, given) for key, v in kwargs.items()}


def _random(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Correlated]:
    found = {id(law): law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Correlated)}
    return list(found.values())


def _called(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Correlated], values: Any
) -> Any:
    """``call`` on tensors in the place of laws."""
    place = {id(law): value for law, value in zip(laws, values, strict=True)}
    own, named = _arguments(args, kwargs, lambda law: place[id(law)])
    return call(*own, **named)


def _by_rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], given: Callable[[Correlated], Any]) -> Any:
    """The rule of independent values, on laws that ``given`` makes of the correlated ones."""
    own = diagonal_rule(entry.name, entry.kind)
    if own is None:
        raise unsupported(entry.call, laws_in((*args, *kwargs.values()))[0], None, entry)
    rest, named = _arguments(args, kwargs, given)
    return own(entry, rest, named)


def _rest(law: Correlated) -> Diagonal:
    """The mean with D, the variance that the directions do not explain."""
    return diagonal(law._mean, (law._var - law._joint.explained).clamp_min(0))


def _each_sample(entry: Entry, x: Correlated, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A pointwise function of each sample."""
    samples = x._mean + x._joint.deviations
    if entry.name == "prelu":  # which has a channel dimension
        return cast(Tensor, torch.vmap(lambda sample: entry.call(sample, *rest, **kwargs))(samples))
    return cast(Tensor, entry.call(samples, *rest, **kwargs))


def _sampled(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Correlated]) -> Any:
    """The function of each sample."""
    return torch.vmap(lambda *xs: _called(call, args, kwargs, laws, xs), randomness="different")(
        *[law._mean + law._joint.deviations for law in laws]
    )


def _pushed(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    laws: list[Correlated],
    tangents: list[Tensor],
) -> Any:
    """Directional derivatives of ``call`` at the means."""
    at = tuple(law._mean.contiguous() for law in laws)  # forward mode writes beside it

    def along(*direction: Tensor) -> Any:
        return torch.func.jvp(lambda *xs: _called(call, args, kwargs, laws, xs), at, direction)[1]

    return torch.vmap(along, randomness="different")(*tangents)


def _split(both: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return both[:count], both[count:]


def _stacked(law: Correlated) -> Tensor:
    return torch.cat([law._joint.tangents, law._joint.deviations])


def _channel(entry: Entry, mean: Tensor) -> int:
    """The dimension along which units are alike: channels of a convolution, features of all else."""
    of_space = entry.name.startswith(("conv", "avg_pool", "max_pool", "adaptive")) or mean.dim() == 4
    return 1 if of_space and mean.dim() > 2 else -1


def _mixed(entry: Entry, mean: Tensor, prior: Tensor, tangents: Tensor, deviations: Tensor) -> Correlated:
    """The law of a function of several values: its variance from ``prior``, that of an independent remainder."""
    h = squared_length(tangents)
    own = deviations - torch.tensordot(RUN.get().coordinates, tangents, 1)
    prior = prior.expand(mean.shape)
    return correlated(mean, h + shrunk(prior, own, _channel(entry, mean)) * prior, tangents, deviations, h)


# --------------------------------------------------------------------- rules


#: affine functions whose first dimension is the batch
_BATCHED = frozenset(
    ["linear", "batch_norm"]
    + [f"{name}{d}d" for name in ("conv", "conv_transpose", "avg_pool", "adaptive_avg_pool") for d in (1, 2, 3)]
)


def _linear_part(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """An affine function without its constant, of rows of values."""
    own, named = _arguments(args[1:], kwargs, tensor_of)
    shape = args[0]._mean.shape
    if entry.name == "linear" or entry.name.startswith("conv"):
        bound = {**affine.bind(entry.name, own, named), "bias": None}

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, **bound))

    else:
        zero = entry.call(torch.zeros_like(args[0]._mean), *own, **named)

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, *own, **named) - zero)

    if entry.name in _BATCHED and len(shape) > 1 and shape[0] == 1:
        # An example is a batch of one, and rows may take the batch's place.
        return lambda rows: linear(rows.squeeze(1)).unsqueeze(1)
    return torch.vmap(linear)


def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if (dims := affine.pooled_to_one(entry.name, args, kwargs)) is not None:
        return x.mean(dims, keepdim=True)
    if not isinstance(x, Correlated) or len(_random(args, kwargs)) > 1 or entry.name == "diff":
        return _general(entry, args, kwargs)
    joint = x._joint
    alone = entry.name == "batch_norm"  # a function of each value by itself
    found = _by_rule(entry, args, kwargs, (lambda law: law._joint.alone) if joint.independent or alone else _rest)
    mean, prior = found._parts()
    both = _linear_part(entry, args, kwargs)(_stacked(x))
    tangents, deviations = _split(both, len(joint.tangents))
    if joint.independent or alone:
        h = squared_length(tangents)
        return correlated(
            mean, torch.maximum(prior, h), tangents, deviations, h, independent=alone and joint.independent
        )
    return _mixed(entry, mean, prior, tangents, deviations)


def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    laws = _random(args, kwargs)
    if entry.name == "cat" and isinstance(args[0], Law):
        return args[0]
    moved = _by_rule(entry, args, kwargs, lambda law: diagonal(law._mean, law._var))

    def call(*values: Tensor) -> Any:
        return _called(entry.call, args, kwargs, laws, values)

    zero = call(*[torch.zeros_like(law._mean) for law in laws])

    def part(*values: Tensor) -> Any:
        out = call(*values)
        if isinstance(out, Tensor):
            return _less(out, zero)
        return tuple(_less(a, b) for a, b in zip(out, zero, strict=True))

    both = torch.vmap(part)(*[_stacked(law) for law in laws])
    count = len(laws[0]._joint.tangents)
    independent = (
        len(laws) == 1 and laws[0]._joint.independent and entry.name not in ("expand", "repeat", "tile", "getitem")
    )

    def law(alone: Diagonal, rows: Tensor) -> Correlated:
        mean, var = alone._parts()
        return correlated(mean, var, *_split(rows, count), independent=independent)

    if isinstance(moved, tuple | list):
        return type(moved)([law(one, rows) for one, rows in zip(moved, both, strict=True)])
    if not isinstance(moved, Law):
        return moved
    return law(cast(Diagonal, moved), both)


def _less(value: Tensor, constant: Tensor) -> Tensor:
    """A moved value without what is put beside it, which may be infinite."""
    return torch.where(constant.isfinite(), value - constant, 0)


def _elementwise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of each value by itself: its own rule is exact for a normal value, however values hang together."""
    x = args[0]
    if not isinstance(x, Correlated) or len(_random(args, kwargs)) != 1:
        return _general(entry, args, kwargs)
    alone = _by_rule(entry, args, kwargs, lambda law: law._joint.alone)
    if isinstance(alone, Law) and alone is x._joint.alone:
        return x
    mean, var = alone._parts()
    rest, named = _arguments(args[1:], kwargs, tensor_of)
    gain = gain_of(x._joint.alone, entry, entry.kind, rest, named)
    joint = x._joint
    tangents = gain * joint.tangents
    deviations = _each_sample(entry, x, rest, named) - mean
    monotone = None
    if is_monotone(entry, args, kwargs):
        snapshot = correlated(x._mean, x._var, joint.tangents, joint.deviations, joint.explained, alone=joint.alone)
        monotone = (entry, args[1:], kwargs, snapshot)
    return _exact(alone, mean, var, tangents, deviations, independent=joint.independent, monotone=monotone)


def _exact(alone: Diagonal, mean: Tensor, var: Tensor, tangents: Tensor, deviations: Tensor, **more: Any) -> Correlated:
    """A law whose marginals are known: the variance is at least what the directions explain."""
    h = squared_length(tangents)
    least = torch.maximum(var, h)
    return correlated(mean, least, tangents, deviations, h, alone=_companion(alone, mean, least), **more)


def _companion(alone: Diagonal, mean: Tensor, var: Tensor) -> Diagonal:
    """``alone`` with that variance, and the same history."""
    law = diagonal(mean, var)
    law._call, law._of, law._depth = alone._call, alone._of, alone._depth
    if alone._call is not None:
        law._seen = alone._seen
    return law


def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    laws = _random(args, kwargs)
    if len(laws) == 1 and entry.name == "rdiv":
        return _general(entry, args, kwargs)
    alone = _by_rule(entry, args, kwargs, lambda law: law._joint.alone)
    if len(laws) == 1:
        occurrences = sum(isinstance(value, Correlated) for value in (*args, *kwargs.values()))
        if occurrences == 1 and not (
            entry.name == "div" and isinstance(args[-1], Correlated) and args[0] is not laws[0]
        ):
            mean, var = alone._parts()
            both = _pushed(entry.call, args, kwargs, laws, [_stacked(laws[0])])
            tangents, deviations = _split(both, len(laws[0]._joint.tangents))
            return _exact(alone, mean, var, tangents, deviations, independent=laws[0]._joint.independent)
    if alone._made is not None and alone._of is not None:
        # One source: its rule is exact, as it is for a function written in one.
        mean, var = alone._parts()
        tangents = _pushed(entry.call, args, kwargs, laws, [law._joint.tangents for law in laws])
        return _exact(alone, mean, var, tangents, _sampled(entry.call, args, kwargs, laws) - mean)
    return _general(entry, args, kwargs)


def _general(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any function that independent values have a rule for."""
    laws = _random(args, kwargs)
    found = _by_rule(entry, args, kwargs, lambda law: diagonal(law._mean, law._var))
    if not isinstance(found, Law):
        return found
    mean, whole = found._parts()
    starts = tuple(law._mean.contiguous() for law in laws)
    slope = slope_of(entry, args, kwargs, laws[0]._var, mean, whole) if len(laws) == 1 and args[0] is laws[0] else None

    def at(*means: Tensor) -> Any:
        if slope is not None:
            return slope(*means)
        place = {id(law): diagonal(m, law._var) for law, m in zip(laws, means, strict=True)}
        return _by_rule(entry, args, kwargs, lambda law: place[id(law)])._parts()[0]

    tangents = torch.vmap(lambda *t: torch.func.jvp(at, starts, t)[1])(*[law._joint.tangents for law in laws])
    if entry.kind in ("product", "arithmetic") and entry.name in _BILINEAR and len(laws) == 2:
        mean = mean + _shared(entry, args, kwargs, laws)
    if entry.kind == "normalise":
        before, after = laws[0]._var, _rest(laws[0])._var
        usable = before > 0
        prior = torch.where(usable, whole * after / torch.where(usable, before, 1), whole)
    else:
        prior = _by_rule(entry, args, kwargs, _rest)._parts()[1]
    return _mixed(entry, mean, prior, tangents, _sampled(entry.call, args, kwargs, laws) - mean)


#: functions that are linear in each of two factors
_BILINEAR = frozenset(("mul", "matmul", "mm", "bmm", "mv", "dot", "inner", "outer"))


def _shared(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Correlated]) -> Tensor:
    """What the covariance of two factors adds to the mean of their product."""
    together = torch.vmap(lambda *rows: _called(entry.call, args, kwargs, laws, rows))
    of_directions = together(*[law._joint.tangents for law in laws]).sum(0)
    return cast(Tensor, of_directions + together(*[remainder(law) for law in laws]).mean(0))


def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        return _elementwise(entry, args, kwargs) if entry.name == "rrelu" else x
    run = RUN.get()
    if isinstance(x, Point):
        found = diagonal_rule(entry.name, "noise")(entry, args, kwargs)  # type: ignore[misc]
        mean, var = found._parts()
        return correlated(mean, var, *run.source(mean, var), independent=True)
    alone = _by_rule(entry, args, kwargs, lambda law: law._joint.alone)
    mean, var = alone._parts()
    gain = gain_of(x._joint.alone, entry, "noise", *_arguments(args[1:], kwargs, tensor_of))
    tangents, draws = run.source(mean, (var - gain.square() * x._var).clamp_min(0))
    joint = x._joint
    return _exact(
        alone,
        mean,
        var,
        gain * joint.tangents + tangents,
        gain * joint.deviations + draws,
        independent=joint.independent,
    )


def _creation(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = laws_in((*args, *kwargs.values()))[0]
    values, named = tensors_of(args, kwargs)
    out = entry.call(*values, **named)
    if not out.is_floating_point() or not isinstance(x, Correlated):
        return out
    joint, zero = x._joint, torch.zeros_like(out)
    return correlated(
        out,
        zero,
        *[zero.expand(len(rows), *out.shape) for rows in (joint.tangents, joint.deviations)],
        independent=True,
    )


def _query(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, named = tensors_of(args, kwargs)
    return entry.call(*values, **named)


def _refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _attention(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention by its parts, so that what queries, keys and values share is carried on."""
    return composite.attention_by_parts(entry, args, kwargs)


def _rules() -> dict[str, Rule]:
    from momentgen.laws.correlated_maximum import maximum

    rules: dict[str, Rule] = {kind: _general for kind in KINDS if kind not in ("decision", "write")}
    rules.update(
        affine=_affine, movement=_movement, pointwise=_elementwise, arithmetic=_arithmetic, noise=_noise,
        creation=_creation, query=_query, refusal=_refused, maximum=maximum,
    )  # fmt: skip
    rules.update(composite.RULES)
    rules["batch_norm"] = _affine
    rules["scaled_dot_product_attention"] = _attention
    return rules


def install() -> None:
    """Give the law its rules."""
    Correlated.RULES = _rules()
