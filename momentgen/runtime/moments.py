"""The pair that flows through a moment network: a mean and a variance."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.fx._pytree
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import InputError
from momentgen.pictures import of_answer
from momentgen.runtime.inputs import has_elements, kind, readable
from momentgen.runtime.predicted import Predicted, Predictive
from momentgen.runtime.shown import Arrays, hint, shown
from momentgen.runtime.variances import changed_source, completed, converted, indexed, norms

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes

__all__ = ["DistributedMoments", "JointMoments", "Moments", "NoisyMoments", "VarianceWarning"]


class VarianceWarning(UserWarning):
    """Variances are 0 or infinite in their dtype where standard deviations are not: read ``.std``, or use float64."""


class Moments(NamedTuple):
    """Mean and variance of independent random variables, elementwise.

    A named tuple, so ``mean, var = x`` unpacks, and it passes through ``torch.compile``, ``torch.export``,
    ``torch.func`` and pytrees as two tensors, and its length is 2.  An index is one of the mean: ``x[0]`` is the first
    example.  Arithmetic with numbers and certain tensors is exact where it is linear.  All else needs to know which
    random values are one, and raises :class:`~momentgen.errors.InputError`: write it as a function of tensors for
    :func:`momentgen.propagate`.

    Args:
        mean: means, any shape.
        var: *variances* (not standard deviations), of the same shape, dtype and device; never negative.  A number or a
            tensor without dimensions is the variance of every value.

    Raises:
        InputError: for a variance given as a number that the mean's dtype does not hold.

    >>> import torch
    >>> x = Moments(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]))
    >>> x.std
    tensor([2., 0.])
    >>> Moments(torch.zeros(2), 0.25).var
    tensor([0.2500, 0.2500])
    >>> x[0], 2 * x + 1
    (Moments(1.0 ± 2.0, float32), Moments([3.0 ± 4.0, 5 ± 0], float32))
    """

    mean: Tensor
    var: Tensor

    @property
    def std_error(self) -> Tensor | None:
        """Standard error of :attr:`std`, of its shape; None where the method is deterministic."""
        return self._stated()[0]

    @property
    def mean_error(self) -> Tensor | None:
        """Standard error of the mean, of its shape; None where the method is deterministic."""
        return self._stated()[1]

    @property
    def rows(self) -> int | None:
        """How many plain forward passes each example took; None where the method is deterministic."""
        return self._stated()[2]

    def _stated(self) -> tuple[Tensor | None, Tensor | None, int | None]:
        """Standard errors of standard deviation and mean, and the number of rows."""
        return (self._errors if isinstance(self, JointMoments) else None) or (None, None, None)

    @property
    def noise(self) -> Any:
        """The distribution of the noise; None where it is taken for normal."""
        return self._noise if isinstance(self, DistributedMoments | JointMoments) else None

    @property
    def notes(self) -> tuple[str, ...] | None:
        """What the call that made it took approximately; None where the method does not record it."""
        return getattr(self, "_notes", None)

    @property
    def shape(self) -> torch.Size:
        """The shape of the mean."""
        return self.mean.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the mean."""
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        """The device of the mean."""
        return self.mean.device

    def __getitem__(self, place: Any) -> Any:
        mean: Any = self.mean
        if not isinstance(mean, Tensor):
            return tuple.__getitem__(self, place)  # pytrees put anything in the places of tensors
        _refuse_scalar(mean, place)
        return Moments(self.mean[place], self.var[place])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Moments has no attribute {name!r}{hint(name)}")

    def __repr__(self) -> str:
        return shown(self)

    def _each(self, key: Any, change: Callable[[Tensor], Tensor]) -> Moments:
        """``change`` of every tensor; a source of noise gives one for equal keys, so that values go on sharing it."""
        mean, var = tuple.__iter__(self)
        return Moments(change(mean), change(var))

    def detach(self) -> Moments:
        """The same without gradients."""
        return self._each("detach", lambda part: part.detach() if part.requires_grad else part)

    def to(self, *args: Any, **kwargs: Any) -> Moments:
        """The same on another device, or in another dtype of floating point; arguments as of ``Tensor.to``.

        Raises:
            InputError: for a dtype that does not hold the variances.
        """
        return self._each((args, tuple(kwargs.items())), lambda part: converted(part, *args, **kwargs))

    def cpu(self) -> Moments:
        """The same on the CPU."""
        return self.to("cpu")

    def numpy(self) -> Arrays:
        """Means and standard deviations as arrays of NumPy, without gradients; they unpack as ``mean, std``."""
        return Arrays(self.mean.detach().cpu().numpy(), self.std.detach().cpu().numpy())

    def plot(
        self,
        *,
        example: int | None = None,
        labels: str | Sequence[str] | None = None,
        level: float = 0.95,
        classes: bool = False,
    ) -> list[Axes]:
        """A picture of one example: histograms of up to four values with draws, else means with error bars.

        Args:
            example: its index in the batch; None where the answer is one example, or for all values of the batch.
            labels: a name for each value, with its unit, as ``"flow, l/s"``; or one text for the axis.
            level: probability of the intervals.  Moments without draws have error bars of one standard deviation.
            classes: the probability that each value is the largest of the last dimension, in the place of values.

        Returns:
            Axes of matplotlib, one for each panel; ``axes[0].figure.savefig(path)`` writes them, notebooks show them.

        Raises:
            InputError: for a wrong number of labels, and for classes of moments without draws.
            MissingExtraError: if matplotlib is not installed.
        """
        return of_answer(self if example is None else self[example], labels, level, classes)

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """Standard deviations, the square root of :attr:`var`, of the shape of the mean.

        Where the variance is 0, the root has an infinite slope.  Its derivatives count as 0 there, as all terms in
        1/sigma do in the ops.  So a loss of standard deviations has finite gradients where values are certain or their
        variance has underflowed.  Negative variances and NaN give NaN.

        Raises:
            InputError: if mean and variance are not tensors, the variance is not of floating point, or shapes differ.
        """
        mean, var = self
        if not isinstance(mean, Tensor) or not isinstance(var, Tensor):
            raise InputError(f"Moments.std: expected two tensors, got {type(mean).__name__} and {type(var).__name__}")
        for tensor in self:
            if not has_elements(tensor):
                raise InputError(f"Moments.std: expected two tensors with elements, got {kind(tensor)}")
        if not var.is_floating_point():
            raise InputError(f"Moments.std: expected variances of floating point, got {var.dtype}")
        if var.shape != mean.shape:
            try:
                var = var.expand(mean.shape)
            except RuntimeError:
                got = f"{tuple(mean.shape)} and {tuple(var.shape)}"
                raise InputError(f"Moments.std: expected mean and variance of one shape, got {got}") from None
        certain = var == 0
        return torch.where(certain, 0.0, torch.where(certain, 1.0, var).sqrt()).to(var.dtype)


class NoisyMoments(Moments):
    """Moments of values that are sources of noise of their own, as :func:`momentgen.noisy` makes them.

    They can be added to other sources of noise, which the outputs of a network cannot.
    """

    def __getitem__(self, place: Any) -> Any:
        raise InputError(
            f"x[{place!r}] of a noisy value: index it in the function, momentgen.propagate(lambda x: x[{place!r}], x), "
            f"or read x.mean[{place!r}] and x.std[{place!r}]"
        )

    def _each(self, key: Any, change: Callable[[Tensor], Tensor]) -> Moments:
        made: Moments = changed_source(self, key, change, lambda: NoisyMoments(*map(change, tuple.__iter__(self))))
        return made


class DistributedMoments(NoisyMoments):
    """Moments of independent values with a distribution, of which methods that draw take their draws.

    Everything that takes :class:`Moments` takes it, and sees mean and variance.
    """

    _noise: Any

    def __getattr__(self, name: str) -> Any:
        if name == "_noise":  # as in JointMoments
            raise InputError(
                "DistributedMoments: expected moments with a distribution, got some made of mean and variance alone, "
                "as tree_map and _replace do. Call noisy anew, or take Moments(mean, var) for normal noise"
            )
        return super().__getattr__(name)

    @classmethod
    def of(cls, mean: Tensor, var: Tensor, noise: Any) -> DistributedMoments:
        """Moments of that mean and *variance*, with a distribution of the noise."""
        made = cls(mean, var)
        made._noise = noise
        return made


class JointMoments(Moments, Predicted):
    """Moments whose values are not independent: the covariance of all values of one example comes along.

    What ``controlled`` returns.  Everything that takes :class:`Moments` takes it; what
    does not ask for the covariance sees mean and variance only.

    Attributes:
        factor: shape ``(batch, r, K)`` with K the values of one example, flattened; ``(r, K)`` without a batch.  The
            covariance is ``factor.mT @ factor``, of rank r at most, and its diagonal is the variance.

    >>> import torch
    >>> x = JointMoments.of(torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([[[1.0, 1.0]]]))
    >>> x.covariance
    tensor([[[1., 1.],
             [1., 1.]]])
    """

    factor: Tensor
    _errors: tuple[Tensor, Tensor, int] | None = None
    _notes: tuple[str, ...] | None = None
    _noise: Any = None
    _predictive: Predictive | None = None
    #: offset and terms, as :func:`momentgen.runtime.sums.terms_of` says them, of what arithmetic made of a value
    _derived: Any = None
    #: the call that made it, where others are to share its noise, and its place among the results
    _made: Any = None
    #: the noise that made it, of its call and of those before, by weak references to its mean and variance
    _origins: frozenset[Any] = frozenset()
    #: whether its network drew noise of its own, as random weights
    _drawn: bool = False
    #: whether some variance has too few digits for its root, and whether one is 0 or infinite; None before anyone asks
    _beyond: tuple[bool, bool] | None = None

    @property
    def var(self) -> Tensor:
        """*Variances*, of the shape of the mean.

        A :class:`VarianceWarning` says where they are 0 or infinite although :attr:`std` is neither.
        """
        self._say_if_beyond()
        return self._pair()[1]

    def _pair(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, without a warning."""
        mean, var = tuple.__iter__(self)
        return mean, var

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """Standard deviations, of the shape of the mean; right where a variance is beyond the range of the dtype."""
        plain = cast(Tensor, Moments.std.fget(Moments(*self._pair())))  # type: ignore[attr-defined]
        if "factor" not in self.__dict__ or (readable(plain) and not self._lost()[0]):
            return plain
        own, lost = self._own_std(plain)
        return torch.where(lost, own, plain)

    def _own_std(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Standard deviations by the factor, and where they count in the place of the variance's root."""
        wide = self.factor.float() if self.factor.dtype in (torch.float16, torch.bfloat16) else self.factor
        own, tiny = norms(wide).reshape(like.shape).to(like.dtype), torch.finfo(like.dtype).tiny
        small = (like.square() < tiny) & (own.square() < tiny) & (own > 0)
        return own, small | (like.isinf() & own.isfinite())

    def _lost(self) -> tuple[bool, bool]:
        """See ``_beyond``, of tensors that can be read."""
        if self._beyond is None:
            with torch.no_grad():
                var = self._pair()[1].detach().expand(self.mean.shape)
                lost = self._own_std(var.sqrt())[1]
                self._beyond = bool(lost.any()), bool((lost & ((var == 0) | var.isinf())).any())
        return self._beyond

    def _say_if_beyond(self) -> None:
        """Warn where a variance is 0 or infinite and the standard deviation is not."""
        var = self._pair()[1]
        if isinstance(var, Tensor) and readable(var) and "factor" in self.__dict__ and self._lost()[1]:
            warnings.warn(
                f"some variances are 0 or infinite in {var.dtype}, where their standard deviations are not; read "
                ".std, or compute in float64",
                VarianceWarning,
                stacklevel=3,
            )

    def __iter__(self) -> Iterator[Tensor]:
        self._say_if_beyond()
        return tuple.__iter__(self)

    def __getitem__(self, place: Any) -> Any:
        self._refuse_shared(f"x[{place!r}]")
        mean, var = self._pair()
        _refuse_scalar(mean, place)
        factor = indexed(self.factor, mean.shape, place)
        mean, var = mean[place], var[place]
        found = self._with(JointMoments.of(mean, var, factor), lambda part: part[place])
        first = place[0] if isinstance(place, tuple) and place else place
        if self.factor.dim() == 3 and not (first is Ellipsis or (isinstance(first, slice) and first == slice(None))):
            found._origins = frozenset()  # other examples may go beside these, and have noise of their own
        found._predictive = None if self._predictive is None else self._predictive.at(place)
        return found

    def _each(self, key: Any, change: Callable[[Tensor], Tensor]) -> Moments:
        def made() -> JointMoments:
            self._refuse_shared(str(key))
            found = self._with(JointMoments.of(*map(change, (*self._pair(), self.factor))), change)
            found._predictive = self._predictive
            return found

        moves = any(change(part) is not part for part in self._pair())
        return self if not moves else made() if self._errors is not None else changed_source(self, key, change, made)

    def _refuse_shared(self, what: str) -> None:
        """Raise where a value that is made of this one would lose what it shares with others."""
        if self._made is not None:
            raise InputError(
                f"{what} of a result of a momentgen.joint() call: read .mean and .std. Or do it in the function "
                "that takes the result, momentgen.propagate(lambda a: a[0], x)"
            )

    def _with(self, made: JointMoments, change: Callable[[Tensor], Tensor]) -> JointMoments:
        """Moments made of these, with a change of the errors and the same notes."""
        if self._errors is not None:
            made = made.with_errors(change(self._errors[0]), change(self._errors[1]), self._errors[2])
        made._notes, made._origins = self._notes, self._origins
        return made

    def __getstate__(self) -> dict[str, Any]:
        """What is stored of an answer: its distribution and its call run the network, and stay behind."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_predictive", "_made", "_origins")
        }

    def __getattr__(self, name: str) -> Any:
        if name == "factor":  # torch's pytrees and other code make a named tuple anew of its two fields
            raise InputError(
                "JointMoments: expected moments with a covariance, got some made of mean and variance alone, as "
                "tree_map and _replace do. JointMoments.of(mean, var, factor) makes them"
            )
        return super().__getattr__(name)

    def with_noise(self, noise: Any) -> JointMoments:
        """The same with the distribution of its noise."""
        made = JointMoments.of(*self._pair(), self.factor)
        made._noise = noise
        return made

    def with_errors(self, std_error: Tensor, mean_error: Tensor, rows: int) -> JointMoments:
        """The same with the standard errors of standard deviation and mean, which came of so many rows."""
        made = JointMoments.of(*self._pair(), self.factor)
        made._errors = (std_error, mean_error, rows)
        return made

    @classmethod
    def of(
        cls, mean: Float[Tensor, "*shape"], var: Float[Tensor, "*#shape"], factor: Float[Tensor, "*batch rank values"]
    ) -> JointMoments:
        """Moments of that mean and *variance*, shape ``(batch, ...)``, with the factor of the covariance.

        A factor of two dimensions is that of one example without a batch, of any shape.

        Raises:
            InputError: if the shapes do not fit.
        """
        alone = factor.dim() == 2 or not mean.dim()
        batch, example = ((), mean.shape) if alone else (tuple(mean.shape[:1]), mean.shape[1:])
        if factor.dim() != 2 + len(batch) or (*factor.shape[:-2], factor.shape[-1]) != (*batch, example.numel()):
            expected = ", ".join(map(str, (*batch, "r", example.numel())))
            raise InputError(f"JointMoments: expected a factor of shape ({expected}), got {tuple(factor.shape)}")
        made = cls(mean, var)
        made.factor = factor
        return made

    @property
    def covariance(self) -> Float[Tensor, "*batch values values"]:
        """Covariance of the values of each example, ``(batch, K, K)`` or ``(K, K)``, symmetric, never negative."""
        found = self.factor.mT @ self.factor
        return (found + found.mT) / 2  # a product of matrices need not be symmetric to the last bit


def _refuse_scalar(mean: Tensor, place: Any) -> None:
    if not mean.dim():
        raise InputError(
            f"Moments[{place!r}]: expected moments of several examples, got those of one value; "
            "mean, var = out takes the pair apart"
        )


def _new(cls: type[Moments], mean: Any, var: Any) -> Moments:
    return tuple.__new__(cls, (mean, completed(mean, var)))


Moments.__new__ = _new  # type: ignore[assignment]
_new.__qualname__ = "Moments"  # as it is called where an argument is missing

# an exported program flattens named tuples by their indices, which are those of examples here
_namedtuple: Any = vars(pytree)["namedtuple"]
torch.fx._pytree.register_pytree_flatten_spec(
    _namedtuple, lambda value, spec: list(value), torch.fx._pytree.SUPPORTED_NODES_EXACT_MATCH[_namedtuple]
)
# torch.export.save, and torch.load of weights only
_register: Any = getattr(pytree, "_register_namedtuple", None)
if _register is not None:
    _register(Moments, serialized_type_name="momentgen.Moments")
    _register(NoisyMoments, serialized_type_name="momentgen.NoisyMoments")
torch.serialization.add_safe_globals([Moments, NoisyMoments, JointMoments, DistributedMoments])
