"""The op of a rule: what a user calls.

What an op is accurate to is in its certificates.  Importing a package of ops reads none of them, so the documentation
of an op is made when it is read.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime import autograd
from momentgen.runtime.certificate import Certificate, CertificateError
from momentgen.runtime.inputs import alike, reconciled
from momentgen.runtime.kernel import Kernel
from momentgen.runtime.learned import Scaling, by_tensors
from momentgen.runtime.moments import Moments
from momentgen.runtime.parameters import MEAN_AND_VARIANCE, Parameter, input_names, resolve

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Op"]

_DTYPES_SAID = (
    "Results in bfloat16 and float16 are these, rounded once more; those in float64, rounded to float32, keep the same "
    "bounds, and need not be better.  ``certificate(variant)`` has all of it."
)

_DOC = """Mean and variance of ``{call}``, elementwise, for {law}.

Args:
    {inputs}: float32, float64, bfloat16 or float16 tensors of one shape, dtype and device; ``var`` is a
        *variance*, not a standard deviation.
    variant: {variants}.
{parameters}
Returns:
    :class:`~momentgen.Moments` of the same shape, dtype and device, differentiable in every input.

    Where the variance is 0 the result is the activation at the mean, and 0; where it is negative, or an input is
    NaN, the result is NaN.  An infinite mean or variance gives the limit or NaN.  Gradients are finite for finite
    input, but where ``certificate().domain["nan"]`` says otherwise: at a variance of 0, terms in 1/sigma count as 0,
    and at a mean of 0 as well a kink's slopes are averaged (ReLU's derivative in the mean is 1/2 there).

Accuracy:
{accuracy}
Raises:
    InputError: for inputs that differ in shape, dtype or device, are not floating point, or a parameter out of range.
"""


_INDENT = "    "


class _Described:
    """The documentation of a class; of an instance what its ``_describe()`` returns."""

    def __init__(self, of_the_class: str | None) -> None:
        self.of_the_class = of_the_class

    def __get__(self, instance: Any, owner: type) -> str | None:
        return self.of_the_class if instance is None else instance._describe()


class Op:
    """The moments of one activation, as a callable; generated packages make them.

    Args:
        name: the rule.
        package: name of the generated package, which holds the code and certificates of each variant.
        inputs: number of random inputs, each given as a mean and a variance.
        parameters: the rule's scalar parameters, in order.
        variants: names of the variants.
        default: the variant used when none is asked for.
        doc: one line on the activation, for the documentation.
        covariance: whether the covariance of two inputs comes after their means and variances.
        float64: variants that are another one in float64, whose code serves them there.
        scaling: the function in other units, which its parameters are: these may be tensors.
        affine: parameters in which the function is affine, all together: these may be tensors.
    """

    #: names of what it returns
    outputs: ClassVar[tuple[str, ...]] = MEAN_AND_VARIANCE

    def __init__(
        self,
        name: str,
        package: str,
        inputs: int = 1,
        parameters: tuple[Parameter, ...] = (),
        variants: tuple[str, ...] = ("exact",),
        default: str = "exact",
        doc: str = "",
        covariance: bool = False,
        float64: Mapping[str, str] | None = None,
        scaling: Scaling | None = None,
        affine: tuple[str, ...] = (),
    ) -> None:
        if default not in variants:
            raise InputError(f"{name}: the default variant {default!r} is not among {', '.join(variants)}")
        self.name, self.package, self.variants, self.default, self._doc = name, package, tuple(variants), default, doc
        self.__name__ = self.__qualname__ = name
        self.__module__ = package
        self.inputs, self.parameters = inputs, tuple(parameters)
        self._scaling, self._affine = scaling, affine
        #: the tensors it takes, in order
        self.input_names = input_names(inputs, covariance)
        names = tuple(parameter.code or parameter.name for parameter in self.parameters)
        self._kernels = {
            variant: Kernel(
                name,
                package,
                variant,
                inputs,
                names,
                covariance,
                float64=(float64 or {}).get(variant, variant),
            )
            for variant in self.variants
        }
        # Without keyword arguments nothing is left to check or convert on the way.
        required = any(parameter.default is None for parameter in self.parameters)
        self._defaults = None if required else resolve(name, self.parameters, {})
        self._covariance = covariance
        self.__signature__ = self._signature()

    def __call__(self, *inputs: Float[Tensor, "*shape"], variant: str | None = None, **params: Any) -> Any:
        """See the op's own documentation, ``help(op)``."""
        if len(inputs) != len(self.input_names):
            inputs, params = self._bind(inputs, params)
        kernel = self._kernels[self._chosen(variant)]
        if not alike(inputs):
            inputs = reconciled(self.name, self.input_names, inputs)
        values = self._defaults
        if params or values is None:
            takes_tensors = self._scaling is not None or self._affine
            if takes_tensors and any(isinstance(value, Tensor) for value in params.values()):
                return by_tensors(self, self._scaling, self._affine, inputs, params, variant)
            values = resolve(self.name, self.parameters, params)
        return Moments(*autograd.differentiable("forward", kernel, values, inputs))

    def certificate(self, variant: str | None = None) -> Certificate:
        """The certificate of a variant: bounds on its error, the domain they hold on, and how they were found.

        Raises:
            InputError: if there is no such variant.
            CertificateError: if its file is missing or damaged.
        """
        return Certificate.read(self.package, self.name, self._chosen(variant))

    def kernel(
        self, which: str = "forward", *, variant: str | None = None, backend: str = "c"
    ) -> Callable[..., tuple[Tensor, ...]]:
        """The bare code of one backend, for benchmarks and tests: no checks, no derivatives, no fallback.

        Args:
            which: ``forward`` or ``backward``.
            variant: as in a call.
            backend: ``c``, ``triton`` or ``torch``.

        Returns:
            A function of the inputs (for ``backward`` then the gradients of the outputs) and parameters by name.

        Raises:
            InputError: if there is no such variant, direction or backend.
        """
        kernel = self._kernels[self._chosen(variant)]
        runs = {"c": Kernel.run_native, "triton": Kernel.run_triton, "torch": Kernel.run_reference}
        if which not in ("forward", "backward") or not isinstance(backend, str) or backend not in runs:
            raise InputError(
                f"{self.name}: expected forward or backward, and a backend of {', '.join(runs)}; got {which!r}, "
                f"{backend!r}"
            )
        run = runs[backend]

        def call(*tensors: Tensor, **params: float) -> tuple[Tensor, ...]:
            return run(kernel, which, tensors, resolve(self.name, self.parameters, params))

        return call

    def _chosen(self, variant: str | None) -> str:
        """The variant asked for, or the default.

        Raises:
            InputError: if there is no such variant.
        """
        chosen = self.default if variant is None else variant
        if not isinstance(chosen, str) or chosen not in self.variants:
            raise InputError(f"{self.name}: no variant {chosen!r}; expected one of {', '.join(self.variants)}")
        return chosen

    def _bind(self, inputs: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Inputs that came by name."""
        params = dict(given)
        wanted = self.input_names
        if len(inputs) < len(wanted) and all(name in params for name in wanted[len(inputs) :]):
            named = tuple(params.pop(name) for name in wanted[len(inputs) :])
            return (*inputs, *named), params
        got = [type(value).__name__ for value in inputs]
        raise InputError(f"{self.name}: expected tensors {', '.join(wanted)}, got {len(got)}: {', '.join(got)}")

    def _describe(self) -> str:
        lines = [f"    {p.name}: {p.doc}{'; ' if p.doc else ''}{self._kind(p)} in {p.range}." for p in self.parameters]
        several = ", ".join(f"X{i + 1}" for i in range(self.inputs)) if self.inputs > 1 else "X"
        law = "N(mean, var)" if self.inputs == 1 else "N(mean_i, var_i)"
        law = f"jointly normal X_i ~ {law} of covariance cov" if self._covariance else f"independent {several} ~ {law}"
        described = _DOC.format(
            call=f"{self.name}({several})",
            law=law,
            inputs=", ".join(self.input_names),
            variants=", ".join(f"``{v}``" + (" (the default)" if v == self.default else "") for v in self.variants),
            parameters="".join(line + "\n" for line in lines),
            accuracy=self._accuracy_in_words(),
        )
        return f"{self._doc}\n\n{described}" if self._doc else described

    def _accuracy_in_words(self) -> str:
        """The certificates of all variants in words, for the docstring."""
        said = ""
        for variant in self.variants:
            try:
                words = " ".join(self.certificate(variant).words)
            except CertificateError as error:
                words = f"unknown: {error}"
            said += _filled(f"``{variant}``: {words}", 2 * _INDENT)
        return said + _filled(_DTYPES_SAID, _INDENT)

    def _kind(self, parameter: Parameter) -> str:
        """What values a parameter takes, in words."""
        tensors = parameter.name in self._affine or self._scaling is not None
        return "a float or a tensor that broadcasts to the mean, which may be learned," if tensors else "a float"

    def _signature(self) -> inspect.Signature:
        kind = inspect.Parameter
        signature = [kind(name, kind.POSITIONAL_OR_KEYWORD, annotation=Tensor) for name in self.input_names]
        signature.append(kind("variant", kind.KEYWORD_ONLY, default=self.default, annotation=str))
        for p in self.parameters:
            default = kind.empty if p.default is None else p.default
            signature.append(kind(p.name, kind.KEYWORD_ONLY, default=default, annotation=float))
        return inspect.Signature(signature, return_annotation=Moments)

    def __repr__(self) -> str:
        return f"<op {self.package}.{self.name}{self.__signature__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: copies and pickles of a network refer to the op, they do not carry it.
        return _find, (self.package, self.name)


# A class's own __doc__ is a string to a type checker.
setattr(Op, "__doc__", _Described(Op.__doc__))  # noqa: B010


def _filled(text: str, indent: str) -> str:
    return textwrap.fill(text, 116, initial_indent=_INDENT, subsequent_indent=indent) + "\n"


def _find(package: str, name: str) -> Op:
    found = getattr(importlib.import_module(package), name)
    if not isinstance(found, Op):
        raise InputError(f"{package}.{name} is not an op, but {type(found).__name__}")
    return found
