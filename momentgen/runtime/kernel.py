"""One variant of one rule: its two opaque torch operators, and which code serves them where.

========================== =====================================================
tensors                    served by
========================== =====================================================
CPU, float32               the generated C
CPU, bfloat16, float16     the generated C in float32, rounded once
CUDA/HIP, up to 32 bits    the generated Triton kernels, in float32, rounded once
float64; other devices     the generated PyTorch code
no compiler, no Triton     the generated PyTorch code in float64, rounded once
========================== =====================================================
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import MomentgenError
from momentgen.runtime.gpu import TritonKernels
from momentgen.runtime.native import NativeKernels, parameter_block
from momentgen.runtime.parameters import input_names, split
from momentgen.runtime.toolchain import Unavailable, warn_once

__all__ = ["Kernel"]

Tensors = Sequence[Tensor]
Scalars = tuple[float, ...]

#: operators by qualified name; importing a package again puts a new kernel behind the same operator.
_operators: dict[str, Any] = {}
_kernels: dict[str, Kernel] = {}
#: the generated PyTorch modules that have been needed so far, by import path.
_references: dict[str, ModuleType] = {}
_library: Any = torch.library.Library("momentgen", "FRAGMENT")  # type: ignore[no-untyped-call]
_lock = threading.RLock()


class Kernel:
    """Forward and backward of one variant of one rule.

    Args:
        name: the rule.
        package: name of its generated package.
        variant: the variant.
        inputs: number of random inputs.
        parameters: names of the scalar parameters, in order.
        covariance: whether the covariance of two inputs comes after their means and variances.

    Attributes:
        forward: torch operator ``(mean, var, ..., float[] params) -> (mean, var)``.
        backward: torch operator ``(mean, var, ..., grad_mean, grad_var, float[] params) -> gradients``.

    Both are opaque to torch: no derivative of their own (see :mod:`momentgen.runtime.autograd`), nothing traced inside.
    """

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., tuple[Tensor, ...]]

    def __init__(
        self,
        name: str,
        package: str,
        variant: str,
        inputs: int,
        parameters: tuple[str, ...],
        covariance: bool = False,
    ) -> None:
        self.name, self.package, self.variant = name, package, variant
        self.inputs, self.parameters = input_names(inputs, covariance), parameters
        self.label = f"{name}, variant {variant}"
        self._reference_path = f"{package}.{variant}_torch"
        _references.pop(self._reference_path, None)  # the package may have been built anew and imported again
        self._native: NativeKernels | Unavailable | None = None
        self._triton: TritonKernels | Unavailable | None = None
        self.scalars = functools.lru_cache(maxsize=64)(self._scalars)
        for which in ("forward", "backward"):
            setattr(self, which, _operator(self, which))

    @property
    def reference(self) -> ModuleType:
        """The generated PyTorch module: ``forward`` and ``backward``, differentiable, in any float dtype."""
        _load_reference(self.label, self._reference_path)
        return _references[self._reference_path]

    def native(self) -> NativeKernels:
        """The C functions, compiled on first use.

        Raises:
            Unavailable: if this machine cannot compile them; found out once.
        """
        if self._native is None:
            with _lock:
                if self._native is None:
                    try:
                        self._native = NativeKernels(self.package, self.name, self.variant, len(self.inputs))
                    except Unavailable as error:
                        self._native = error
        if isinstance(self._native, Unavailable):
            raise self._native
        return self._native

    def triton(self) -> TritonKernels:
        """The Triton kernels, imported on first use.

        Raises:
            Unavailable: if Triton is not installed.
        """
        if self._triton is None:
            with _lock:
                if self._triton is None:
                    try:
                        self._triton = TritonKernels(self.package, self.name, self.variant)
                    except Unavailable as error:
                        self._triton = error
        if isinstance(self._triton, Unavailable):
            raise self._triton
        return self._triton

    def _scalars(self, params: Scalars) -> Scalars:
        """What the float32 kernels take for ``params``: each as a pair of floats, then derived scalars."""
        pairs = tuple(part for value in params for part in split(self.name, value))
        derive = getattr(self.reference, "kernel_scalars", None)
        if derive is None:
            return pairs
        return pairs + tuple(float(value) for value in derive(**dict(zip(self.parameters, params, strict=True))))

    def run(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute on real tensors of one shape, dtype and device; ``which`` is ``forward`` or ``backward``."""
        first = tensors[0]
        if first.dtype is not torch.float64 and first.layout is torch.strided:
            try:
                if first.is_cpu:
                    return self.run_native(which, tensors, params)
                if first.is_cuda:
                    return self.run_triton(which, tensors, params)
            except Unavailable as reason:
                warn_once(
                    f"fallback {first.device.type}",
                    f"the slower PyTorch code serves {first.device.type} tensors (met first in {self.label}): {reason}",
                )
        return self.run_reference(which, tensors, params)

    def run_native(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute by the C functions: CPU tensors of at most 32 bits.

        Raises:
            Unavailable: as :meth:`native`.
        """
        native = self._native if type(self._native) is NativeKernels else self.native()
        function = native.forward if which == "forward" else native.backward
        dtype = tensors[0].dtype
        if dtype is not torch.float32:
            tensors = [tensor.float() for tensor in tensors]
        tensors = in_one_layout(tensors)
        first = tensors[0]
        outputs = [torch.empty_like(first) for _ in range(self.outputs(which))]
        scalars = self.scalars(params)  # a rule without parameters may have some that its constants give
        block = parameter_block(scalars) if scalars else None
        if n := first.numel():
            function(n, *[t.data_ptr() for t in tensors], block, *[t.data_ptr() for t in outputs])
        return tuple(outputs) if dtype is torch.float32 else tuple([output.to(dtype) for output in outputs])

    def run_triton(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute by the Triton kernels: GPU tensors of at most 32 bits (CPU tensors under TRITON_INTERPRET=1).

        Raises:
            Unavailable: as :meth:`triton`.
        """
        kernels = self.triton()
        tensors = in_one_layout(tensors)
        outputs = tuple([torch.empty_like(tensors[0]) for _ in range(self.outputs(which))])
        kernels.launch(which, tensors, outputs, self.scalars(params))
        return outputs

    def run_reference(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute by the PyTorch code, in float64 where the device has it, and round once."""
        first = tensors[0]
        dtype = first.dtype
        wide = torch.float64 if first.device.type in ("cpu", "cuda") else torch.promote_types(dtype, torch.float32)
        function = getattr(self.reference, which)
        results = function(*[tensor.to(wide) for tensor in tensors], **dict(zip(self.parameters, params, strict=True)))
        return tuple([result.to(dtype) for result in results])

    def run_differentiable(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """The same in float32 at least and rounded once, for torch to differentiate."""
        first = tensors[0]
        # Views, for torch.func cannot take the derivative of a derivative under vmap in an input handed on as it is.
        wide = [tensor.to(torch.promote_types(first.dtype, torch.float32)).view_as(tensor) for tensor in tensors]
        return tuple([result.to(first.dtype) for result in self.run_reference(which, wide, params)])

    def run_fake(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Outputs of the right shape, dtype, device and strides, without values."""
        return tuple([empty_output(tensors[0]) for _ in range(self.outputs(which))])

    def outputs(self, which: str) -> int:
        """How many tensors ``which`` returns."""
        return 2 if which == "forward" else len(self.inputs)


def _load_reference(label: str, path: str) -> bool:
    if path not in _references:
        try:
            _references[path] = importlib.import_module(path)
        except ImportError as error:
            raise MomentgenError(f"{label}: the PyTorch code does not load: {error}") from error
    return True


# torch.compile cannot trace an import; so marked it runs the function instead.  This is what
# torch.compiler.assume_constant_result does, without loading all of torch._dynamo to do so.
_load_reference._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def empty_output(first: Tensor) -> Tensor:
    """An output for inputs of which ``first`` is the first: its layout if dense (channels last stays so)."""
    return (
        torch.empty_like(first) if is_dense(first) else torch.empty_like(first, memory_format=torch.contiguous_format)
    )


def in_one_layout(tensors: Tensors) -> Tensors:
    """The same tensors, dense and all strided alike, copied only where they are not."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            break
    else:
        return tensors
    first = tensors[0] if is_dense(tensors[0]) else tensors[0].contiguous()
    strides = first.stride()
    rest = [t if t.stride() == strides else torch.empty_like(first, dtype=t.dtype).copy_(t) for t in tensors[1:]]
    return [first, *rest]


def batch_first(size: int, in_dims: Sequence[int | None], tensors: Tensors) -> Tensors:
    """For ``vmap``: the tensors with their batch dimension first, expanded where they have none."""
    pairs = zip(tensors, in_dims, strict=False)
    return [t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in pairs]


def _operator(kernel: Kernel, which: str) -> Any:
    """The torch operator behind which ``kernel`` works, made once a process for each package, rule and variant."""
    stem = kernel.name
    if kernel.package != f"momentgen.generated.{kernel.name}":
        # A user's rule may be called as one of ours, or as one in another package of theirs.
        stem += "_" + hashlib.sha256(f"{kernel.package} {len(kernel.inputs)}".encode()).hexdigest()[:8]
    name = f"momentgen::{stem}_{which}.{kernel.variant}"
    with _lock:
        _kernels[name] = kernel
        if name not in _operators:
            _operators[name] = _define(name, which, kernel)
        return _operators[name]


def _define(name: str, which: str, kernel: Kernel) -> Any:
    arguments = [f"Tensor {name}" for name in kernel.inputs]
    arguments += ["Tensor grad_mean", "Tensor grad_var"] if which == "backward" else []
    results = ", ".join(["Tensor"] * kernel.outputs(which))
    qualified = name.removeprefix("momentgen::")
    _library.define(
        f"{qualified}({', '.join(arguments)}, float[] params) -> ({results})", tags=torch.Tag.pt2_compliant_tag
    )

    def compute(*args: Any) -> tuple[Tensor, ...]:
        return _kernels[name].run(which, args[:-1], tuple(args[-1]))

    def fake(*args: Any) -> tuple[Tensor, ...]:
        return _kernels[name].run_fake(which, args[:-1], ())

    _library.impl(qualified, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=_library)
    packet, overload = qualified.split(".")
    operator = getattr(getattr(torch.ops.momentgen, packet), overload)

    def batched(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        results = operator(*batch_first(info.batch_size, in_dims, args[:-1]), args[-1])
        return results, (0,) * len(results)

    torch.library.register_vmap(name, batched, lib=_library)
    return operator
