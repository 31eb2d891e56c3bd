"""Running a network example by example, for laws that keep what the units of one example have in common.

A law that knows covariances has one matrix, or one set of directions, per example.  Networks reshape and merge the
batch as they like.  So a network is run on a batch of one, under ``torch.vmap`` over the examples.  Where vmap cannot
run it, examples run one after another.  The result for one example does not depend on the others; a first check makes
sure that this holds in the plain network too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from momentgen.errors import InputError, MomentgenError
from momentgen.laws.border import entered, method
from momentgen.laws.covariance_graph import Narrower
from momentgen.laws.draws import Draws
from momentgen.laws.law import Law
from momentgen.laws.nests import Nest, flattened, leaves_of, mapped
from momentgen.laws.notes import note
from momentgen.laws.numerics.root import square_root
from momentgen.laws.point import point
from momentgen.laws.precision import HALVES
from momentgen.laws.propagations import FailsAlone
from momentgen.laws.values import certain, check, readable
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.inputs import autocast_in_force

__all__ = [
    "batch_of",
    "first_tensor",
    "has_batch",
    "is_moments",
    "is_real",
    "lifted",
    "per_example",
    "stacked",
    "with_moments",
    "without_batch",
]

#: a network on laws of one example: (arguments, keyword arguments) -> a nest of tuples, lists, dicts and tensors
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def is_moments(value: object) -> bool:
    """Whether a value is moments, which are one leaf of the arguments."""
    return isinstance(value, Moments)


def is_real(value: object) -> bool:
    """Whether a value is a tensor of floating point."""
    return isinstance(value, Tensor) and value.is_floating_point()


def with_moments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of which one at least is moments: the first tensor, if none is."""
    leaves, form = flattened((args, kwargs))
    if not any(map(is_moments, leaves)):
        for place, leaf in enumerate(leaves):
            if is_real(leaf) and leaf.dim():
                leaves[place] = certain(leaf)
                break
    found: tuple[tuple[Any, ...], dict[str, Any]] = form.of(leaves)
    return found


def lifted(nest: Any, law: Callable[[Moments], Any], noise: type[Law], indices: bool = False) -> Any:
    """Arguments with laws in the place of moments and of floating-point tensors.

    Args:
        nest: of arguments.
        law: makes a law of moments; called once for moments that are there twice.
        noise: what noise of the network's own makes of a certain value.
        indices: whether whole numbers are lifted too: what they pick may meet dropout before it meets any law.
    """
    known: dict[int, Any] = {}

    def lift(value: Any) -> Any:
        if isinstance(value, Moments):
            if id(value) not in known:
                known[id(value)] = law(value)
            return known[id(value)]
        is_index = indices and isinstance(value, Tensor) and value.dtype is not torch.bool
        return point(value, noise) if is_real(value) or is_index else value

    return mapped(lift, nest)


def stacked(parts: Any, form: Nest) -> Any:
    """What a network returned, of the tensors of each output: mean, *variance* and a factor of the covariance.

    Args:
        parts: of each output; mean and variance of one without a covariance, one tensor of a certain one.
        form: of what was returned.
    """
    found: list[Any] = []
    for tensors in parts:
        if len(tensors) == 1:
            found.append(certain(tensors[0]) if is_real(tensors[0]) else tensors[0])
        else:
            found.append(JointMoments.of(*tensors) if len(tensors) == 3 else Moments(*tensors))
    return form.of(found)


def per_example(
    where: object,
    forward: Callable[..., Any],
    run: Run,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chunk_size: int | None = None,
    rows: Callable[[int], int] | None = None,
) -> Any:
    """Call ``run`` for each example of a batch, and stack what it returns.

    Args:
        where: the network, for errors.
        forward: what runs on laws; called on certain values, to see whether examples are independent of each other.
        run: called with the arguments of one example, a batch of one; it returns a nest of tensors without the batch.
            Moments that were given twice are one object.
        args: tensors and moments; those whose first dimension is that of the first moments are split, others shared.
        kwargs: likewise.
        chunk_size: how many examples are computed at once; None for as many as ``rows`` says.
        rows: how many numbers ``run`` keeps for each value of the network, by how many values an example's outputs
            have.  On a CPU as many examples are computed at once as keep a layer's rows within 16 MiB; None for all.

    Returns:
        What ``run`` returned, each tensor with the batch in front.

    Raises:
        InputError: if moments are bad, the batch is empty, or examples interact.  They do in a batch norm that takes
            its statistics from the batch.
    """
    examples = _Examples(where, args, kwargs)
    for leaf in filter(is_moments, examples.leaves):
        check(where, leaf)
    _check_norms(where)
    batch, squeezed = examples.batch, False
    if not batch:
        raise InputError(f"{type(where).__name__}: expected a batch of at least one example in dimension 0")
    if batch > 1 and examples.readable:
        # Examples that interact do so in a few of them, too; unless the network was written for this size of batch.
        for count in sorted({min(batch, _ALONE), batch}):
            seen = _check_alone(where, forward, examples.first(count), chunk_size)
            if seen is not None:
                if seen.unbatched is not None:
                    raise _without_front(where, seen.unbatched)
                squeezed = seen.squeezed
                if chunk_size is None and rows is not None and examples.device == "cpu":
                    chunk_size = _at_once(batch, seen.widest * rows(seen.outputs))
                break
    token = _SQUEEZED.set(squeezed)
    try:
        return examples.alone(run, chunk_size)
    except (MomentgenError, Narrower):
        raise
    except Exception as error:
        if batch > 1 and examples.readable and _fails_alone(where, forward, examples):
            raise FailsAlone from error
        raise
    finally:
        _SQUEEZED.reset(token)


def _fails_alone(where: object, forward: Callable[..., Any], examples: _Examples) -> bool:
    """Whether the plain network, in its own precision, cannot run on the first example alone."""
    parameters = where.parameters() if isinstance(where, torch.nn.Module) else ()
    half = next((value.dtype for value in parameters if value.dtype in HALVES), None)

    def plain(value: Any) -> Any:
        value = value.mean if isinstance(value, Moments) else value
        return value.to(half) if half is not None and is_real(value) else value

    args, kwargs = mapped(plain, examples.first(1).arguments())
    try:
        with torch.no_grad(), torch.random.fork_rng(), entered(), method("sample"):
            forward(*args, **kwargs)
    except Exception:
        return True
    return False


def has_batch(where: object, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether dimension 0 of the arguments is a batch: the network computes each example independently of the others.

    Moments of two or more dimensions are assumed to have a batch. For a vector, two plain forward passes decide.
    Where values cannot be read, a vector counts as one example, which is right for any network.
    """
    examples = _Examples(where, args, kwargs)
    place = first_tensor(examples.leaves)
    if place is None:
        return False
    leaf = examples.leaves[place]
    dimensions = _parts(leaf)[0].dim()
    if dimensions != 1 or not examples.batch:
        return bool(dimensions)
    if (isinstance(leaf, JointMoments) and leaf.factor.dim() == 2) or not examples.readable:
        return False
    try:
        seen = _check_alone(where, forward, examples.first(min(examples.batch, _ALONE)))
    except InputError:
        return False
    return seen is not None and seen.unbatched is None


def first_tensor(leaves: list[Any]) -> int | None:
    """The position of the argument whose first dimension is the batch: moments, else a tensor; None without any."""
    for belongs in (is_moments, is_real, lambda leaf: isinstance(leaf, Tensor)):
        for place, leaf in enumerate(leaves):
            if belongs(leaf):
                return place
    return None


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of examples in the arguments."""
    return _Examples(None, args, kwargs).batch


class _Examples:
    """The arguments of a network, split by example: a tensor is split if its first dimension is the batch.

    Attributes:
        leaves: the tensors and moments among the arguments.
        batch: the number of examples.
    """

    def __init__(self, where: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.where = where
        self.leaves, self._form = flattened((args, kwargs))
        place = first_tensor(self.leaves)
        first = None if place is None else _parts(self.leaves[place])[0]
        self.batch = first.shape[0] if isinstance(first, Tensor) and first.dim() else 1
        self._split: list[Tensor] = []
        self._places: list[tuple[int, slice]] = []
        known: dict[tuple[int, ...], slice] = {}
        for place, leaf in enumerate(self.leaves):
            parts = _parts(leaf)
            if not all(isinstance(part, Tensor) and part.dim() and part.shape[0] == self.batch for part in parts):
                continue
            key = tuple(map(id, parts))
            if key not in known:
                known[key] = slice(len(self._split), len(self._split) + len(parts))
                self._split.extend(parts)
            self._places.append((place, known[key]))

    @property
    def readable(self) -> bool:
        """Whether the values of the arguments can be read."""
        return all(map(readable, self._split))

    @property
    def device(self) -> str:
        """The type of the device on which the examples are."""
        return self._split[0].device.type

    def arguments(self, tensors: list[Tensor] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with these tensors in the place of those that are split."""
        mine = list(self.leaves)
        made: dict[int, Any] = {}
        for place, own in self._places:
            if own.start not in made:
                made[own.start] = _whole((self._split if tensors is None else tensors)[own])
            mine[place] = made[own.start]
        own_args, own_kwargs = self._form.of(mine)
        return own_args, own_kwargs

    def first(self, count: int) -> _Examples:
        """The first ``count`` of the examples, each at a draw: of equal ones nothing would tell that they interact."""
        parts = [part[:count] for part in self._split]
        with torch.no_grad():
            for own in {place: own for place, own in self._places if is_moments(self.leaves[place])}.values():
                mean, var = parts[own.start : own.start + 2]
                drawn = torch.randn(mean.shape, generator=torch.Generator().manual_seed(own.start), dtype=torch.float32)
                parts[own.start] = mean + square_root(var) * drawn.to(mean)
        return _Examples(self.where, *self.arguments(parts))

    def beside_nan(self, kept: list[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, random ones, or without any the first, NaN in all examples but those at ``kept``."""
        parts, first = list(self._split), first_tensor(self.leaves)
        for place, own in self._places:
            if (place == first and is_real(self.leaves[place])) or is_moments(self.leaves[place]):
                parts[own.start] = torch.full_like(parts[own.start], torch.nan)
                parts[own.start][kept] = self._split[own.start][kept]
        return self.arguments(parts)

    def alone(self, run: Run, chunk_size: int | None) -> Any:
        """What ``run`` returns for each of them as a batch of one, stacked."""

        def one(*own: Tensor) -> Any:
            return run(*self.arguments([part.unsqueeze(0) for part in own]))

        return _mapped(self.where, one, self._split, chunk_size)


#: whether the network drops the dimension of a batch of one, but not of a larger batch, as ``squeeze()`` does
_SQUEEZED: ContextVar[bool] = ContextVar("momentgen_squeezed", default=False)


def without_batch(where: object, value: Tensor) -> Tensor:
    """An output of a network on a batch of one, without that dimension.

    Raises:
        InputError: if it has no batch in front.
    """
    if value.dim() and value.shape[0] == 1:
        return value[0]
    if _SQUEEZED.get():
        return value
    raise _without_front(where, value.shape)


def _without_front(where: object, shape: torch.Size) -> InputError:
    return InputError(
        f"{type(where).__name__}: expected outputs with the batch in dimension 0, got shape {tuple(shape)} for a "
        "batch of one; a network that squeezes names the dimension, squeeze(-1)"
    )


#: examples that are computed together and alone, to see whether they interact
_ALONE = 8
#: bytes of a layer's rows: temporaries of more are returned to the system and mapped anew, a page fault for every 4 KiB
_ROWS = 2**24
#: examples below which a call's overhead counts for more
_FEWEST = 8


def _at_once(batch: int, size: int) -> int:
    """How many examples to compute at once, whose widest layer takes ``size`` bytes each, in parts of like length."""
    most = max(_ROWS // max(size, 1), _FEWEST)
    return -(-batch // -(-batch // most))


def _parts(leaf: Any) -> tuple[Any, ...]:
    return (*leaf, leaf.factor) if isinstance(leaf, JointMoments) else tuple(leaf) if is_moments(leaf) else (leaf,)


def _whole(parts: list[Tensor]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return Moments(*parts) if len(parts) == 2 else JointMoments.of(*parts)


def _mapped(where: object, one: Callable[..., Any], split: list[Tensor], chunk_size: int | None) -> Any:
    """``one`` of the parts of each example, stacked."""
    batch = len(split[0]) if split else 1
    if batch > 1:
        try:
            with _quiet():
                return torch.vmap(one, randomness="different", chunk_size=chunk_size)(*split)
        except (RuntimeError, IndexError) as error:
            # of a number torch.vmap takes its own dimension for that of the number: an IndexError of flip
            is_vmaps = isinstance(error, IndexError) or any(words in str(error) for words in _OF_VMAP)
            if isinstance(error, MomentgenError) or not is_vmaps:
                raise
            note(f"{type(where).__name__}: run one example after another, since torch.vmap cannot run it")
    found = [one(*[tensor[example] for tensor in split]) for example in range(batch)]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *found)


#: in messages of what torch.vmap cannot run
_OF_VMAP = ("vmap", "Batching rule not implemented")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings of functions that vmap loops over, which change no number.  Private in torch."""
    functorch: Any = getattr(torch._C, "_functorch", None)
    enabled = getattr(functorch, "_is_vmap_fallback_warning_enabled", None)
    if enabled is None or not enabled():
        yield
        return
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)


# --------------------------------------------------------------------- checks


def _check_norms(where: object) -> None:
    for name, module in where.named_modules() if isinstance(where, torch.nn.Module) else ():
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            continue
        if module.training or module.running_mean is None:
            cause = "in training" if module.training else "without running statistics"
            raise InputError(
                f"{type(where).__name__}: {name or 'it'} is a batch norm {cause}, whose statistics need the whole "
                "batch; call eval() on one that has running statistics, or use ap2"
            )


#: this share of the examples or more must differ, so that a step function's rounding is no difference
_DIFFERING = 0.25


class _Seen(NamedTuple):
    """What is seen of a network on a batch.

    Attributes:
        widest: how many bytes an example has in the widest layer.
        outputs: how many values it has in the outputs.
        unbatched: the shape, for a batch of one, of an output that has no batch in front; None if all have one.
        squeezed: whether they have it but of a batch of one.
    """

    widest: int
    outputs: int
    unbatched: torch.Size | None
    squeezed: bool


def _check_alone(
    where: object, forward: Callable[..., Any], examples: _Examples, chunk_size: int | None = None
) -> _Seen | None:
    """Compare the plain network at a draw, on a batch and on each of its examples alone: two plain forward passes.

    Args:
        where: the network, for errors.
        forward: what runs on laws.
        examples: of the batch.
        chunk_size: how many examples are computed alone at once; None for all.

    Returns:
        What is seen of the network; None if the network could not be run.

    Raises:
        InputError: if the results differ by more than rounding.
    """
    lacking: set[int] = set()
    parameters = where.parameters() if isinstance(where, torch.nn.Module) else ()
    coarsest = max((_eps(value.dtype) for value in parameters if value.dtype in HALVES), default=0.0)

    def plain(own_args: tuple[Any, ...], own_kwargs: dict[str, Any], is_alone: bool = True) -> list[Tensor]:
        own_args, own_kwargs = mapped(_certain, (own_args, own_kwargs))
        with entered(Draws(None)):
            found = forward(*own_args, **own_kwargs)
        values = [leaf._form() if isinstance(leaf, Law) else leaf for leaf in leaves_of(found)]
        real = [value for value in values if is_real(value)]
        if not is_alone:
            return real
        lacking.update(place for place, value in enumerate(real) if not value.dim() or len(value) != 1)
        return [value if place in lacking else value[0] for place, value in enumerate(real)]

    with torch.no_grad():
        try:
            with _Widest(examples.batch) as widest:
                together = plain(*examples.arguments(), is_alone=False)
            apart: list[Tensor] = examples.alone(plain, chunk_size)
        except Exception:
            return None  # the run to come fails in its own words, or the network was written for a batch of one
    unbatched: torch.Size | None = None
    compared: dict[int, Tensor] = {}
    for place, (whole, single) in enumerate(zip(together, apart, strict=True)):
        if place in lacking and whole.shape != single.shape:
            unbatched = single.shape[1:]
            continue
        if whole.shape[:1] == (1,):  # the same for all examples
            whole = whole.expand(len(single), *whole.shape[1:])
        differing = 1.0
        if whole.shape == single.shape:
            rounding = max(_rounding(whole), _rounding(single), coarsest**0.5)
            whole, single = (value.to(torch.promote_types(whole.dtype, single.dtype)) for value in (whole, single))
            tolerance = rounding * whole.abs().nan_to_num(0, 0, 0).amax().item() if whole.numel() else 0.0
            away = ~torch.isclose(whole, single, rtol=0, atol=tolerance, equal_nan=True)
            differing = away.reshape(len(away), -1).any(1).double().mean().item() if away.numel() else 0.0
        if differing >= _DIFFERING:
            raise _interacting(where, f"{differing:.0%} of them have", whole)
        if whole.shape[:1] == (examples.batch,):
            compared[place] = whole
    with torch.no_grad():
        for place in _depending(lambda args, kwargs: plain(args, kwargs, False), examples, compared):
            raise _interacting(where, "some of them, as those beside them change, have", compared[place])
    outputs = sum(whole.numel() // examples.batch for whole in together)
    return _Seen(widest.size, outputs, unbatched, unbatched is None and bool(lacking))


def _interacting(where: object, how_many: str, out: Tensor) -> InputError:
    return InputError(
        f"{type(where).__name__}: examples of a batch are computed alone, but {how_many} another result within the "
        f"batch, an output of shape {tuple(out.shape)}; either examples interact, or dimension 0 is not the batch in "
        "every argument (pass batch_first=True), or the network draws numbers outside of torch"
    )


def _depending(plain: Callable[..., list[Tensor]], examples: _Examples, outputs: dict[int, Tensor]) -> list[int]:
    """The outputs in which the first or last example becomes NaN as those between do: at a draw a ReLU may hide that.

    Args:
        plain: the plain network of arguments.
        examples: at a draw.
        outputs: by their place among all, with the batch in front.
    """
    found = set()
    for kept in ([0, -1],) if examples.batch > 2 else ([0], [-1]):
        try:
            values = plain(*examples.beside_nan(kept))
        except Exception:  # the network's own objection to NaN
            continue
        found |= {place for place, out in outputs.items() if (values[place][kept].isnan() & ~out[kept].isnan()).any()}
    return sorted(found)


class _Widest(TorchDispatchMode):
    """Within it the bytes that an example has in the widest tensor with the batch in front are found."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch, self.size = batch, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for part in found if isinstance(found, tuple | list) else (found,):
            if isinstance(part, Tensor) and part.dim() and part.shape[0] == self.batch:
                self.size = max(self.size, part.numel() // self.batch * part.element_size())
        return found


def _certain(value: Any) -> Any:
    if isinstance(value, Moments):
        return point(value.mean)
    return point(value) if is_real(value) else value


def _rounding(value: Tensor) -> float:
    """How far rounding may carry two results apart, relative to the largest number."""
    kind = value.device.type
    dtypes = [value.dtype, torch.get_autocast_dtype(kind)] if autocast_in_force(kind) else [value.dtype]
    return max(map(_eps, dtypes)) ** 0.5


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
