"""Values at the border: moments that are made of tensors, drawn from, checked, and handed back for laws.

Sums of noisy values, and results of :func:`joint` calls, enter a network by their sources.  It adds up sums inside, and
computes earlier results anew.  So every method draws, or propagates, each source once, whichever arguments it is in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.diagonal import Point
from momentgen.laws.law import Law
from momentgen.laws.nests import leaves_of, mapped
from momentgen.laws.notes import note, seen_by_compiler, within
from momentgen.laws.numerics.root import square_root
from momentgen.runtime import DistributedMoments, JointMoments, Moments, NoisyMoments, Term, terms_of
from momentgen.runtime.inputs import DTYPES, HALVES, alike, autocast_in_force, has_elements, kind, readable

if TYPE_CHECKING:
    from jaxtyping import Float

_joint: ContextVar[bool] = ContextVar("momentgen_joint")
_seen: Any = seen_by_compiler(_joint)


def joint() -> within:
    """Within the context, results of converted networks share noise and random weights with those before them.

    A result that is given to another network, or to :func:`momentgen.propagate`, is computed anew in every draw, from
    the same noise and the same weights.  So a rollout of many steps takes many calls, while
    ``momentgen.propagate(rollout, x)`` takes as many as one network.  Results go on sharing after the context.

    >>> import torch, momentgen
    >>> net = momentgen.convert(torch.nn.Identity().eval())
    >>> x = momentgen.noisy(torch.ones(1), std=0.5)
    >>> with momentgen.joint():
    ...     difference = momentgen.propagate(lambda a, b: a - b, net(x), net(x))
    >>> difference.std, momentgen.propagate(lambda a, b: a - b, net(x), net(x)).std.round(decimals=2)
    (tensor([0.]), tensor([0.7100]))
    """
    return within(_joint, True)


@dataclasses.dataclass
class _Call:
    """A call of a network, whose results others share."""

    forward: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass
class _Result:
    """A result of a call among the arguments of another; ``place`` among its leaves."""

    call: _Call
    place: int


@dataclasses.dataclass
class _Sum:
    """A sum among the arguments of a network, with its sources where the border finds them.

    Attributes:
        offset: the certain part.
        terms: the others; inside the network what stands for the source of each is in its place.
        size: its shape; ``dtype`` likewise.
    """

    offset: Tensor
    terms: list[Term]
    size: tuple[int, ...]
    dtype: torch.dtype

    def value(self, of: Callable[[Any], Any]) -> Any:
        """The sum of what stands for the sources, after ``of``."""
        total: Any = self.offset
        for term in self.terms:
            total = total + term.of(of(term.source))
        return total

    def expanded(self, term: Term) -> Moments | None:
        """A source that all examples have in common as one of each example; None where they have not."""
        source, start, shape = term.source, term.start, term.shape
        own = tuple(source.mean.shape) if start is None else (*source.mean.shape[:-1], *shape)
        own = (1,) * (len(self.size) - len(own)) + own
        if not own or own[0] != 1 or self.size[0] == 1 or (start is not None and len(self.size) != 1 + len(shape)):
            return None
        shape = (self.size[0], *(own[1:] if start is None else source.mean.shape[-1:]))
        mean, var = (part.to(self.dtype).expand(shape) for part in tuple.__iter__(source))
        if isinstance(source, JointMoments):
            factor = source.factor.to(self.dtype).reshape(-1, *source.factor.shape[-2:])
            made = JointMoments.of(mean, var, factor.expand(shape[0], -1, -1))
            return made if source.noise is None else made.with_noise(source.noise.expanded(mean))
        if source.noise is None:
            return NoisyMoments(mean, var)
        return DistributedMoments.of(mean, var, source.noise.expanded(mean))


#: what stands in the place of moments among the arguments of a network
_STANDING: Final = (_Sum, _Result)


def _sum(value: Any) -> Any:
    """A sum, or a result of an earlier call, in the place of moments that are one; anything else as it is."""
    if not isinstance(value, Moments):
        return value
    offset, terms = terms_of(value)
    if offset is None:
        made = value._made if isinstance(value, JointMoments) else None
        if made is None:
            return value
        call, place = made
        return _Result(call, place)
    known = [term._replace(source=_sum(term.source)) for term in terms]
    return _Sum(offset, known, tuple(value.mean.shape), value.mean.dtype)


def _evaluated(nest: Any) -> Any:
    """The nest with tensors or laws in the place of sums and results, each call run once."""
    known: dict[int, list[Any]] = {}

    def value(one: Any) -> Any:
        if isinstance(one, _Sum):
            return one.value(value)
        if not isinstance(one, _Result):
            return one
        if id(one.call) not in known:
            args, kwargs = mapped(value, (one.call.args, one.call.kwargs), _STANDING)
            known[id(one.call)] = leaves_of(one.call.forward(*args, **kwargs))
        return known[id(one.call)][one.place]

    return mapped(value, nest, _STANDING)


def remembered(
    method: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Any], Any]:
    """A function that lets the results of a call remember it, within :func:`joint`.

    Raises:
        InputError: for other methods than ``controlled``, and in compiled code.
    """
    if _seen.value is _seen:
        return lambda found: found
    if torch.compiler.is_compiling():
        raise InputError("momentgen.joint: expected calls outside of compiled code; leave torch.compile out there")
    if method != "controlled":
        raise InputError(
            f"momentgen.joint: expected the method controlled, got {method}; call .eval() on the network, or "
            'momentgen.convert(network, "controlled")'
        )
    call = _Call(forward, *mapped(_sum, (args, kwargs)))

    def remember(found: Any) -> Any:
        for place, leaf in enumerate(leaves_of(found)):
            if isinstance(leaf, JointMoments):
                leaf._made = call, place
        return found

    return remember


def with_sources(
    method: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The code of a network and arguments without sums: their sources are there, and the code adds them up.

    Results of :func:`joint` calls likewise: the code computes them anew.
    """
    if all(_sum(leaf) is leaf for leaf in leaves_of((args, kwargs))):
        return forward, args, kwargs
    if method == "ap2":
        _say_what_is_shared(args, kwargs)

    def summed(*args: Any, **kwargs: Any) -> Any:
        own, named = _evaluated((args, kwargs))
        return forward(*own, **named)

    return summed, *mapped(_sum, (args, kwargs))


def _say_what_is_shared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note that ``ap2`` takes noise in common, of several arguments or of the values of one, as independent."""
    values = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Moments)]
    met = [(term.source, term.start, value) for value in values for term in terms_of(value)[1]]
    once = {(id(source), start) for source, start, _ in met}
    if len(once) < len(met) or any(start is None and own.mean.shape != one.mean.shape for own, start, one in met):
        note("ap2: noise that several values share is taken as independent in each; controlled knows better")


def by_example(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Arguments whose noise in common is noise of each example, which has the same moments of independent examples.

    None where no sum has noise that its examples share, or where a source is shared in one value and not in others.
    None too with results of :func:`joint` calls among them.
    """
    found: dict[int, Moments | None] = {}
    leaves: list[Any] = []
    mapped(leaves.append, (args, kwargs), _STANDING)
    for leaf in leaves:
        terms = leaf.terms if isinstance(leaf, _Sum) else [Term(leaf)] if isinstance(leaf, Moments) else []
        if isinstance(leaf, _Result) or not all(isinstance(term.source, Moments) for term in terms):
            return None
        for term in terms:
            expanded = leaf.expanded(term) if isinstance(leaf, _Sum) else None
            if _shape(found.setdefault(id(term.source), expanded)) != _shape(expanded):
                return None
    if all(expanded is None for expanded in found.values()):
        return None

    def apart(value: Any) -> Any:
        if not isinstance(value, _Sum):
            return value
        own = [found[id(term.source)] for term in value.terms]
        known = [term if new is None else term._replace(source=new) for term, new in zip(value.terms, own, strict=True)]
        return dataclasses.replace(value, terms=known)

    made: tuple[tuple[Any, ...], dict[str, Any]] = mapped(apart, (args, kwargs), (_Sum,))
    return made


def _shape(value: Moments | None) -> torch.Size | None:
    return None if value is None else value.mean.shape


def certain(value: Float[Tensor, "*shape"]) -> Moments:
    """A value without uncertainty: its variance is one zero, expanded."""
    return Moments(value, torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape))


def draw(x: Moments) -> Tensor:
    """One sample of ``x``, normal or of its noise's distribution, reparameterised: differentiable in what it is of."""
    if terms_of(x)[0] is not None:  # a sum, each of whose sources is drawn once
        draws: dict[int, Tensor] = {}

        def once(source: Any) -> Any:
            if isinstance(source, Moments) and id(source) not in draws:
                draws[id(source)] = draw(source)
            return draws.get(id(source), source)

        return cast(Tensor, _evaluated(mapped(once, _sum(x))))
    if x.noise is not None:
        return cast(Tensor, x.mean + x.noise.draw())
    if isinstance(x, JointMoments):
        numbers = torch.randn(x.factor.shape[:-1], dtype=x.mean.dtype, device=x.mean.device)
        return x.mean + (numbers.unsqueeze(-2) @ x.factor).reshape(x.mean.shape)
    return x.mean + square_root(x.var) * torch.randn_like(x.mean)


def check(where: object, value: Moments) -> Moments:
    """``value``, its mean and variance of one shape and dtype, the variance not negative.

    Raises:
        InputError: otherwise.  Negative numbers are looked for in eager mode only: compiled code and ``torch.func``
            transforms have no values to look at.
    """
    if not alike(value):
        _check_pair(where, value)
    var = value.var
    if var.numel() and readable(var):
        # Numbers that an expanded tensor repeats are looked at once.
        once = var.detach() if var.requires_grad else var
        if 0 in var.stride():
            once = once[tuple(slice(0, 1) if step == 0 else slice(None) for step in var.stride())]
        least = once.min().item()
        if least < 0:
            raise InputError(
                f"{described(where)}: a variance must not be negative, got {least:g} as the least of shape "
                f"{tuple(var.shape)}"
            )
    return value


def _check_pair(where: object, value: Moments) -> None:
    """Raise for what :func:`check` says but the numbers; mean and variance of several dtypes pass under autocast."""
    mean, var = value
    if not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise InputError(
            f"{described(where)}: expected Moments of two tensors, got {type(mean).__name__} and {type(var).__name__}"
        )
    for tensor in value:
        if not has_elements(tensor) or tensor.layout is not torch.strided:
            raise InputError(f"{described(where)}: expected strided tensors for mean and variance, got {kind(tensor)}")
    if mean.shape != var.shape or mean.device != var.device:
        raise InputError(
            f"{described(where)}: expected mean and variance of one shape and device, got {tuple(mean.shape)} on "
            f"{mean.device} and {tuple(var.shape)} on {var.device}"
        )
    mixed = mean.dtype != var.dtype and not autocast_in_force(mean.device.type)
    if mixed or mean.dtype not in DTYPES or var.dtype not in DTYPES:
        raise InputError(
            f"{described(where)}: expected mean and variance of one floating-point dtype, got {mean.dtype} and "
            f"{var.dtype}"
        )


def as_moments(where: object, value: object) -> Moments:
    """``value`` as moments, checked: a tensor (variance 0), moments or a law.

    Args:
        where: what asks, for the error's text.
        value: a tensor, :class:`~momentgen.Moments` or a law.

    Raises:
        InputError: for another type, and as :func:`check`.
    """
    if isinstance(value, Moments):
        return check(where, value)
    if isinstance(value, Law):
        return cast(Moments, lower(value))
    if isinstance(value, Tensor):
        return certain(value)
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    raise InputError(f"{described(where)}: expected a tensor or Moments, got {type(value).__name__}{length}")


def described(where: object) -> str:
    """A network or function, as errors call it."""
    if isinstance(where, torch.nn.Module):
        return f"{type(where).__name__}({where.extra_repr()})"
    return str(where)


def lower(nest: Any, wide: bool = False) -> Any:
    """What a network returned, with :class:`~momentgen.Moments` for laws and for tensors of floating point.

    Args:
        nest: what it returned.
        wide: whether tensors of half precision become float32.
    """

    def lowered(value: Any) -> Any:
        if isinstance(value, Law):
            value._form()  # of a view of what has been written to, which may now be another law
            if not isinstance(value, Point):
                return Moments(*value._parts())
            value = value._form()
        elif wide and isinstance(value, Tensor) and value.dtype in HALVES:
            value = value.float()
        return certain(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    return mapped(lowered, nest)
