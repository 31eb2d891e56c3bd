"""The border between tensors and laws: how inputs are lifted, and what is handed back.

A network is called with tensors or :class:`~momentgen.Moments` and returns moments.  In between it runs on laws, of
which the method in force, :class:`method`, decides once, as inputs enter.  Inside, nothing knows of methods.

Where no method is said, a single layer or function goes by ``ap2``, which is exact for it or the standard, and a
network by ``ap2`` in training and by ``adjoint`` or ``correlated`` in evaluation, whose variances are right where units
share noise (:mod:`momentgen.laws.two_passes`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, cast, get_args

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError
from momentgen.laws import einops, half, lost
from momentgen.laws.accuracy import ACCURACY, Accuracy, asked
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.draws import Draws, TracedDraws
from momentgen.laws.law import Law, laws_in
from momentgen.laws.nests import leaves_of, mapped
from momentgen.laws.notes import note
from momentgen.laws.numerics.root import matrix_root, square_root
from momentgen.laws.point import Point, point
from momentgen.laws.propagations import DEFAULT, PROPAGATIONS, propagated_by
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.dynamo import keep_order_of_products
from momentgen.runtime.inputs import DTYPES, alike, autocast_in_force, has_elements, kind

__all__ = [
    "METHODS",
    "Border",
    "Method",
    "as_moments",
    "certain",
    "check",
    "current_method",
    "draw",
    "entered",
    "inside",
    "lower",
    "method",
    "noisy",
    "readable",
    "run",
    "set_method",
]

Method = Literal["ap1", "ap2", "sample", "local", "covariance", "adjoint", "correlated", "controlled"]
#: what a user may ask for.
METHODS: Final[tuple[str, ...]] = get_args(Method)
_method: ContextVar[str] = ContextVar("momentgen_method")
_inside: ContextVar[bool] = ContextVar("momentgen_inside")


class _Active:
    """What is in force in this thread and task.

    Properties written in C: ``torch.compile`` reads them while it traces, and guards the compiled code on what they say
    (it can do neither with :meth:`ContextVar.get`).  Where nothing is set the value is this object.
    """

    method = property(_method.get)


class _Tracing:
    """What is in force in code that ``torch.compile`` traces, which cannot set a context variable.

    Attributes:
        depth: how deep inside a network it is; always 0 outside.
        method: of a context that was entered in traced code; always None outside.
    """

    def __init__(self) -> None:
        # Of the object: torch.compile guards on whether they are there, and writes them.
        self.depth = 0
        self.method: str | None = None


_active: Any = _Active()
_tracing = _Tracing()


class method:  # noqa: N801 - a context manager, named as it is used
    """How networks that are called within the context propagate.

    Args:
        name: ``ap1``: means only, the ordinary network bit for bit, the network's own noise by its mean.
            ``ap2``: means and variances, analytically, all values of a layer taken as independent.  ``sample``: every
            stochasticity is drawn.  (Shekhovtsov & Flach 2018, section 4.)  ``local``: as ``sample``, but where a
            parameter is random the outputs of linear maps and convolutions are drawn, each by itself, and not the
            weights (local reparameterisation, Kingma et al. 2015).  ``covariance``: means and the covariance of
            all values of a layer.  ``adjoint``: the covariance of few outputs by one backward pass for each, see
            :func:`momentgen.output_covariance`.  ``correlated``: means, variances, and what the values of a layer have
            in common, by a few directions and samples.

    A context outranks what :func:`convert` or :func:`set_method` gave a network; within contexts, the innermost counts.
    It holds for the thread or asyncio task that entered it; code under ``torch.compile`` is compiled once per method.

    Raises:
        InputError: for another name, and for an accuracy that is none or is asked of another method.

    >>> import torch, momentgen
    >>> layer = momentgen.nn.ReLU()
    >>> x = momentgen.Moments(torch.zeros(1), torch.ones(1))
    >>> with momentgen.method("ap1"):
    ...     layer(x).mean
    tensor([0.])
    >>> layer(x).mean
    tensor([0.3989])
    """

    def __init__(
        self, name: Method, *, rtol: float | None = None, max_rows: int | None = None, seed: int | None = None
    ) -> None:
        _known(name)
        self._name: str = name
        self._accuracy = asked("method", name, rtol, max_rows, seed)
        self._accuracies: list[Token[Any]] = []
        self._tokens: list[Token[str]] = []
        self._outer: list[str | None] = []

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            self._outer.append(_tracing.method)
            _tracing.method = self._name
        else:
            self._tokens.append(_method.set(self._name))
            if self._accuracy is not None:
                self._accuracies.append(ACCURACY.set(self._accuracy))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if torch.compiler.is_dynamo_compiling():
            _tracing.method = self._outer.pop()
        else:
            _method.reset(self._tokens.pop())
            if self._accuracy is not None:
                ACCURACY.reset(self._accuracies.pop())


def _known(name: str) -> None:
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")


def current_method(own: str | None = None) -> str:
    """The method in force: the context's, else the network's ``own``, else ``ap2``."""
    if torch.compiler.is_dynamo_compiling() and _tracing.method is not None:
        return _tracing.method
    found = _active.method
    return own or "ap2" if found is _active else cast(str, found)


# --------------------------------------------------------------------- values


def certain(value: Tensor) -> Moments:
    """A value without uncertainty: its variance is one zero, expanded."""
    return Moments(value, torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape))


def noisy(
    x: Tensor,
    *,
    var: Tensor | float | None = None,
    std: Tensor | float | None = None,
    cov: Tensor | None = None,
) -> Moments:
    """``x`` with noise of that variance, standard deviation or covariance.

    With ``cov`` the values of an example are correlated.  The methods ``adjoint`` and ``covariance`` know that,
    ``sample``, ``local`` and :func:`momentgen.monte_carlo` draw from it; ``ap2`` takes the diagonal alone, and says so
    in a note (:func:`momentgen.laws.listening`).

    Args:
        x: means, any shape.
        var: *variance* of independent noise, a number or a tensor that broadcasts to the shape of ``x``.
        std: standard deviation of independent noise.
        cov: *covariance* of the n values of an example, flattened, of the dtype of ``x``: shape ``(n, n)``, or
            ``(batch, n, n)``.  Dimension 0 of ``x`` is the batch, unless ``x`` is a vector and ``cov`` a matrix.

    Raises:
        InputError: if not exactly one is given, it is negative, its shape does not fit, or ``cov`` is not symmetric
            and positive semidefinite.

    >>> noisy(torch.zeros(2), std=0.5).var
    tensor([0.2500, 0.2500])
    >>> import momentgen
    >>> total = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(total.weight, 1.0)
    >>> x = noisy(torch.zeros(1, 2), cov=torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    >>> momentgen.convert(total, "adjoint")(x).var.detach().round(decimals=3)
    tensor([[3.]])
    """
    if not isinstance(x, Tensor):
        raise InputError(f"noisy: expected a tensor, got {type(x).__name__}")
    if sum(given is not None for given in (var, std, cov)) != 1:
        raise InputError("noisy: expected one of var, std and cov")
    if cov is not None:
        return _correlated_noise(x, cov)
    given = cast(Any, var if std is None else std)
    amount = torch.as_tensor(given, dtype=x.dtype, device=x.device)
    if amount.dim() == 0 and not isinstance(given, Tensor) and not float(given) >= 0:
        raise InputError(f"noisy: expected a variance or standard deviation of at least 0, got {given!r}")
    try:
        amount = (amount if std is None else amount * amount).expand(x.shape)
    except RuntimeError as error:
        raise InputError(
            f"noisy: {'var' if std is None else 'std'} of shape {tuple(amount.shape)} does not broadcast to "
            f"{tuple(x.shape)}"
        ) from error
    return Moments(x, amount)


def _correlated_noise(x: Tensor, cov: Tensor) -> JointMoments:
    """``x`` with noise of a covariance; see :func:`noisy`."""
    alone = x.dim() == 1 and isinstance(cov, Tensor) and cov.dim() == 2
    batch, example = (torch.Size(), x.shape) if alone else (x.shape[:1], x.shape[1:])
    values = example.numel()
    if not isinstance(cov, Tensor) or cov.shape not in ((values, values), (*batch, values, values)):
        came = tuple(cov.shape) if isinstance(cov, Tensor) else type(cov).__name__
        expected = f"({values}, {values})" + "".join(f" or ({size}, {values}, {values})" for size in batch)
        raise InputError(f"noisy: expected cov of shape {expected} for x of shape {tuple(x.shape)}, got {came}")
    if cov.dtype is not x.dtype or cov.device != x.device:
        raise InputError(f"noisy: expected cov as x is, {x.dtype} on {x.device}, got {cov.dtype} on {cov.device}")
    wide = cov.float() if cov.dtype in (torch.float16, torch.bfloat16) else cov
    root = matrix_root((wide + wide.mT) / 2)[0].to(cov.dtype)
    if readable(cov) and cov.numel():
        # What is not the square of its root is no covariance.
        with torch.no_grad():
            given = root.to(wide.dtype)
            away = (given @ given - wide).abs().amax()
            allowed = torch.finfo(cov.dtype).eps ** 0.5 * wide.abs().amax()
        if not bool(away <= allowed):
            raise InputError("noisy: cov is no covariance; it must be finite, symmetric and positive semidefinite")
    var = cov.diagonal(dim1=-2, dim2=-1).reshape(*cov.shape[:-2], *example).expand(x.shape)
    return JointMoments.of(x, var, root.expand(*batch, values, values))


def draw(x: Moments) -> Tensor:
    """One normal sample of ``x``, reparameterised: differentiable in mean and variance, or in what they share."""
    if isinstance(x, JointMoments):
        numbers = torch.randn(x.factor.shape[:-1], dtype=x.mean.dtype, device=x.mean.device)
        return x.mean + (numbers.unsqueeze(-2) @ x.factor).reshape(x.mean.shape)
    return x.mean + square_root(x.var) * torch.randn_like(x.mean)


#: whether a torch.func transform is active; private in torch, and without it values are not looked at.
_transforming: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def readable(value: Tensor) -> bool:
    """Whether the numbers of a tensor can be looked at: not in compiled code, nor in ``torch.func`` transforms."""
    return (
        not torch.compiler.is_compiling()
        and type(value) in (Tensor, torch.nn.Parameter)
        and not value.is_meta
        and not _transforming()
        and not torch._C._len_torch_dispatch_stack()
    )


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
                f"{_name(where)}: a variance must not be negative, got {least:g} as the least of shape "
                f"{tuple(var.shape)}"
            )
    return value


def _check_pair(where: object, value: Moments) -> None:
    """Raise for what :func:`check` says but the numbers; mean and variance of several dtypes pass under autocast."""
    mean, var = value
    if not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise InputError(
            f"{_name(where)}: expected Moments of two tensors, got {type(mean).__name__} and {type(var).__name__}"
        )
    for tensor in value:
        if not has_elements(tensor) or tensor.layout is not torch.strided:
            raise InputError(f"{_name(where)}: expected strided tensors for mean and variance, got {kind(tensor)}")
    if mean.shape != var.shape or mean.device != var.device:
        raise InputError(
            f"{_name(where)}: expected mean and variance of one shape and device, got {tuple(mean.shape)} on "
            f"{mean.device} and {tuple(var.shape)} on {var.device}"
        )
    mixed = mean.dtype != var.dtype and not autocast_in_force(mean.device.type)
    if mixed or mean.dtype not in DTYPES or var.dtype not in DTYPES:
        raise InputError(
            f"{_name(where)}: expected mean and variance of one floating-point dtype, got {mean.dtype} and {var.dtype}"
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
    raise InputError(f"{_name(where)}: expected a tensor or Moments, got {type(value).__name__}{length}")


def _name(where: object) -> str:
    if isinstance(where, torch.nn.Module):
        return f"{type(where).__name__}({where.extra_repr()})"
    return str(where)


# -------------------------------------------------------------- lift and lower


def _lift_value(where: object, value: Any, name: str, training: bool, seen: list[tuple[Any, Any, Any]]) -> Any:
    """A law of one value among the arguments, or what stands for it by the method ``name``."""
    if isinstance(value, Moments):
        for mean, var, known in seen:
            if mean is value.mean and var is value.var:
                return known  # one value given twice is one value
        check(where, value)
        law: Any
        if name == "ap2":
            if isinstance(value, JointMoments):
                note("ap2: the values of an input are correlated, and taken as independent; adjoint knows better")
            law = half.marked(diagonal(*half.widened(value)), value.mean.dtype)
        elif name == "ap1":
            law = point(value.mean)
        else:
            law = draw(value)
        seen.append((value.mean, value.var, law))
        return law
    if isinstance(value, Tensor):
        if not has_elements(value):
            raise InputError(f"{_name(where)}: expected a tensor of one shape, got {kind(value)}")
        # In training even indices are lifted: what they pick may meet dropout before it meets any law.
        if name not in _DRAWN and (value.is_floating_point() or (training and value.dtype is not torch.bool)):
            return half.marked(point(half.widened(value), Diagonal), value.dtype) if name == "ap2" else point(value)
    return value


def lower(nest: Any) -> Any:
    """What a network returned, with :class:`~momentgen.Moments` for laws and for tensors of floating point."""
    return mapped(_lowered, nest)


def _lowered(value: Any) -> Any:
    if isinstance(value, Law):
        if value._dtype is not None:
            dtype, value._dtype = value._dtype, None
            return half.narrowed(_lowered(value), dtype)
        form = value._form()  # of a view of what has been written to, which may now be another law
        if isinstance(value, Point):
            return certain(form) if form.is_floating_point() else form
        return Moments(*value._parts())
    return certain(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def inside() -> bool:
    """Whether a network is running on laws: what is called then is a part of it."""
    if torch.compiler.is_dynamo_compiling():
        return _tracing.depth > 0
    return _inside.get(False)


def run(where: Any, forward: Callable[..., Any], own: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``forward`` on laws of the arguments, and hand back moments.

    Args:
        where: the network or function, for errors.
        forward: what runs on laws.
        own: the method where no context says otherwise; ``default`` for a network's default.
        args: tensors, moments, and whatever else, in any containers (:mod:`~momentgen.laws.nests`).
        kwargs: likewise.
    """
    name = current_method(own)
    if name == DEFAULT and getattr(where, "training", False):
        name = "ap2"
    if name == DEFAULT and not _any((args, kwargs), Moments):
        # Plain tensors are certain unless the network makes noise, which one cheap pass tells.
        found = _on_laws(where, forward, "ap2", args, kwargs)
        if not _any(found, Diagonal):
            return lower(found)
    if name == DEFAULT or name in PROPAGATIONS:
        by_ap2 = functools.partial(_on_laws, where, forward, "ap2", args, kwargs)
        return propagated_by(name, where, forward, args, kwargs, by_ap2)
    return lower(_on_laws(where, forward, name, args, kwargs))


def _any(nest: Any, kind: type) -> bool:
    """Whether a nest of arguments or results has something of ``kind``."""
    return any(isinstance(leaf, kind) for leaf in leaves_of(nest))


def _on_laws(where: Any, forward: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``forward`` makes of laws of the arguments by the method ``name``."""
    training = bool(getattr(where, "training", False))
    seen: list[tuple[Any, Any, Any]] = []

    def lift(value: Any) -> Any:
        return _lift_value(where, value, name, training, seen)

    lifted, named = mapped(lift, args), mapped(lift, kwargs)
    if torch.compiler.is_dynamo_compiling():
        _tracing.depth += 1
        if name in _DRAWN:
            out = forward(*lifted, **named)
        else:
            keep_order_of_products()
            with TracedDraws(_noise_of(name)):
                out = forward(*lifted, **named)
        _tracing.depth -= 1
        return out
    # A single layer or function draws nothing that a law does not meet.
    single = getattr(where, "DEFAULT", None) != DEFAULT
    with entered(None if single else _DRAWS.get(name)):
        return forward(*lifted, **named)


#: methods that run a network on tensors
_DRAWN = ("sample", "local")


def _noise_of(name: str) -> type[Law] | None:
    """What noise of the network's own makes of certain values, by a method that runs it once on laws."""
    return Diagonal if name == "ap2" else None


#: what becomes of draws that meet no law, by methods that run a network once on laws
_DRAWS = {name: Draws(_noise_of(name)) for name in ("ap1", "ap2")}


class entered:  # noqa: N801 - a context manager, named as it is used
    """Within the context a network runs on laws: what is called is a part of it.

    Args:
        draws: what becomes of draws that meet no law; None to leave them as they are.
    """

    def __init__(self, draws: Draws | None = None) -> None:
        self._draws = draws

    def __enter__(self) -> None:
        if not einops.registered and "einops" in sys.modules:
            einops.register()
        self._inside, self._recording = _inside.set(True), lost.RECORDING.set(torch.is_grad_enabled())
        if self._draws is not None:
            self._draws.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._draws is not None:
            self._draws.__exit__(kind, error, trace)
        _inside.reset(self._inside)
        lost.RECORDING.reset(self._recording)
        if isinstance(error, RuntimeError | TypeError) and not isinstance(error, MomentgenError):
            explained = lost.explained(error)
            if explained is not None:
                raise explained from error


class Border:
    """Mixed in before a module's class: its ``forward`` takes tensors or moments and returns moments.

    Inside a network, where it is called with laws, it is the class behind it.

    Attributes:
        propagation: the method where no context sets one, None for the default; see :func:`set_method`.
        accuracy: what is asked of the method ``controlled`` where no context says it; see :func:`convert`.
        DEFAULT: the default, that of networks; single layers have ``ap2``.
    """

    propagation: str | None = None
    accuracy: Accuracy | None = None
    DEFAULT: ClassVar[str] = DEFAULT

    def _forward_inside(self, *args: Any, **kwargs: Any) -> Any:
        """What runs on laws: the forward of the class behind this one."""
        plain = self.__dict__.get("_plain_forward") or super().forward  # type: ignore[misc]
        return plain(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Moments of the output, by the method in force."""
        if args and isinstance(args[0], Law):
            return self._forward_inside(*args, **kwargs)
        return self._cross_border(self._forward_inside, args, kwargs)

    def _cross_border(self, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``inner`` on laws and hand back moments; inside a network, on what comes."""
        if inside() or laws_in(args) or (kwargs and laws_in(kwargs.values())):
            return inner(*args, **kwargs)
        return run(self, inner, self.propagation or self.DEFAULT, args, kwargs)


def set_method(module: torch.nn.Module, name: Method | None) -> torch.nn.Module:
    """Set how ``module`` and every network in it propagate when no :class:`method` context says otherwise.

    Args:
        module: a network over moments, or any module that holds some.
        name: as for :class:`method`; ``None`` goes back to the default, see :func:`convert`.

    Returns:
        ``module``.

    Raises:
        InputError: for another name.
    """
    if name is not None:
        _known(name)
    for part in module.modules():
        if isinstance(part, Border):
            part.propagation = name
    return module
