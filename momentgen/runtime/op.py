"""The op of a rule: what a user calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime import autograd
from momentgen.runtime.described import Generated
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


class Op(Generated):
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
        super().__init__(name, package, variants, default, doc)
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
            if self.learns(params):
                return by_tensors(self, self._scaling, self._affine, inputs, params, variant)
            values = resolve(self.name, self.parameters, params)
        found = autograd.forward(kernel, values, inputs)
        return Moments(*found)

    def learns(self, params: Mapping[str, Any]) -> bool:
        """Whether some of a call's parameters are tensors, and the op can take such."""
        return (self._scaling is not None or bool(self._affine)) and any(isinstance(w, Tensor) for w in params.values())

    def mean_gradients(self, *inputs: Float[Tensor, "*shape"], **params: Any) -> tuple[Float[Tensor, "*shape"], ...]:
        """Derivatives of the mean by each input, elementwise; of the default variant, differentiable.

        Args:
            inputs: as in a call, tensors of one shape, dtype and device.
            params: as in a call.
        """
        if self.learns(params):
            return self._gradients_at_tensors(inputs, params)
        values = resolve(self.name, self.parameters, params) if params or self._defaults is None else self._defaults
        seeds = torch.ones_like(inputs[0]), torch.zeros_like(inputs[0])
        return autograd.backward(self._kernels[self.default], values, (*inputs, *seeds))

    def _gradients_at_tensors(self, inputs: tuple[Tensor, ...], params: Mapping[str, Any]) -> tuple[Tensor, ...]:
        def mean(*at: Tensor) -> Tensor:
            return by_tensors(self, self._scaling, self._affine, at, params).mean

        found: tuple[Tensor, ...] = torch.func.vjp(mean, *inputs)[1](torch.ones_like(inputs[0]))
        return found

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
        call = f"{self.name}({several})"
        return _DOC.format(
            call=call,
            law=law,
            inputs=", ".join(self.input_names),
            variants=self._variants_in_words(),
            parameters="".join(line + "\n" for line in lines),
            accuracy=self._accuracy_in_words(_DTYPES_SAID),
        )

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
