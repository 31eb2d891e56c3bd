"""One variant of one rule: its two opaque torch operators, and which code serves them where.

========================== =====================================================
tensors                    served by
========================== =====================================================
CPU, float32 and float64   the generated C
CPU, bfloat16, float16     the generated C in float32, rounded once
CUDA/HIP, up to 32 bits    the generated Triton kernels, in float32, rounded once
CUDA/HIP, float64          the generated PyTorch code
other devices              copied to the CPU, computed in float64, rounded once and copied back, with a warning
no compiler, no Triton     the generated PyTorch code in float64, rounded once
========================== =====================================================

The PyTorch code runs in slices (:mod:`momentgen.runtime.slices`), so that its memory is bounded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.resources
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import MomentgenError
from momentgen.runtime.dynamo import constant_result
from momentgen.runtime.gpu import TritonKernels
from momentgen.runtime.native import NativeKernels, parameter_block
from momentgen.runtime.one_thread import Lock
from momentgen.runtime.parameters import MEAN_AND_VARIANCE, input_names, split
from momentgen.runtime.slices import VALUES, in_cells, in_slices
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
_lock = Lock()


class Kernel:
    """Forward and backward of one variant of one rule.

    Args:
        name: the rule.
        package: name of its generated package.
        variant: the variant.
        inputs: number of random inputs.
        parameters: names of the scalar parameters, in order.
        covariance: whether the covariance of two inputs comes after their means and variances.
        float64: the variant whose float64 code serves, by default this one.

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
        *,
        float64: str | None = None,
    ) -> None:
        self.name, self.package, self.variant = name, package, variant
        self._float64 = float64 or variant
        self.inputs, self.parameters = input_names(inputs, covariance), parameters
        self.label = f"{name}, variant {variant}"
        self._reference_path = f"{package}.{self._float64}_torch"
        _references.pop(self._reference_path, None)  # the package may have been built anew and imported again
        self._made: dict[object, Any] = {}
        self.scalars = functools.lru_cache(maxsize=64)(self._scalars)
        for which in ("forward", "backward"):
            setattr(self, which, _operator(self, which))

    @property
    def reference(self) -> ModuleType:
        """The generated PyTorch module: ``forward`` and ``backward``, differentiable, in float64."""
        _load_reference(self.label, self._reference_path)
        return _references[self._reference_path]

    def native(self, double: bool = False) -> NativeKernels:
        """The C functions in float32 or, ``double``, in float64, compiled on first use.

        Raises:
            Unavailable: if this machine cannot compile them; found out once.
        """
        found: NativeKernels = self._once(
            double,
            lambda: NativeKernels(
                self.package,
                self.name,
                self._float64 if double else self.variant,
                len(self.inputs),
                len(MEAN_AND_VARIANCE),
                double=double,
            ),
        )
        return found

    def triton(self) -> TritonKernels:
        """The Triton kernels, imported on first use.

        Raises:
            Unavailable: if Triton is not installed.
        """
        found: TritonKernels = self._once("triton", lambda: TritonKernels(self.package, self.name, self.variant))
        return found

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        """What ``make`` gave when it was first asked for under this key, also where that was an error."""
        if key not in self._made:
            with _lock():
                if key not in self._made:
                    try:
                        self._made[key] = make()
                    except Unavailable as error:
                        self._made[key] = error
        if isinstance(found := self._made[key], Unavailable):
            raise found
        return found

    def _scalars(self, params: Scalars) -> Scalars:
        """What the float32 kernels take for ``params``: each as a pair of floats, then derived scalars."""
        pairs = tuple(part for value in params for part in split(self.name, value))
        if not self._derives_scalars():
            return pairs
        derive = self.reference.kernel_scalars
        return pairs + tuple(float(value) for value in derive(**dict(zip(self.parameters, params, strict=True))))

    def _derives_scalars(self) -> bool:
        """Whether the PyTorch code has ``kernel_scalars``; read, since importing it is most of a first call."""
        if found := _references.get(self._reference_path):
            return hasattr(found, "kernel_scalars")
        try:
            file = importlib.resources.files(self.package).joinpath(f"{self._float64}_torch.py")
            return "\ndef kernel_scalars(" in file.read_text(encoding="utf-8")
        except OSError:  # without sources
            return hasattr(self.reference, "kernel_scalars")

    def run(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute on real tensors of one shape, dtype and device; ``which`` is ``forward`` or ``backward``."""
        first = tensors[0]
        if first.layout is torch.strided:
            try:
                if first.is_cpu:
                    return self.run_native(which, tensors, params)
                if first.is_cuda and first.dtype is not torch.float64:
                    return self.run_triton(which, tensors, params)
            except Unavailable as reason:
                warn_once(
                    f"fallback {first.device.type}",
                    f"the slower PyTorch code serves {first.device.type} tensors (met first in {self.label}): {reason}",
                )
        if not has_float64(first.device):
            return self.run_on_cpu(which, tensors, params)
        return self.run_reference(which, tensors, params)

    def run_native(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute by the C functions: CPU tensors.

        Raises:
            Unavailable: as :meth:`native`.
        """
        dtype = tensors[0].dtype
        double = dtype is torch.float64
        native = self._made.get(double)
        if not isinstance(native, NativeKernels):
            native = self.native(double)
        function = native.forward if which == "forward" else native.backward
        rounded = dtype is not torch.float32 and not double
        if rounded:
            tensors = [tensor.float() for tensor in tensors]
        tensors = in_one_layout(tensors)
        first = tensors[0]
        outputs = [torch.empty_like(first) for _ in range(self.outputs(which))]
        # A rule without parameters may have float32 scalars that its constants give.
        scalars = params if double else self.scalars(params)
        block = parameter_block(scalars, double) if scalars else None
        if n := first.numel():
            function(n, *[t.data_ptr() for t in tensors], block, *[t.data_ptr() for t in outputs])
        return tuple([output.to(dtype) for output in outputs] if rounded else outputs)

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
        """Compute by the PyTorch code in float64, slice by slice, and round once."""
        tensors, outputs = in_one_layout(tensors), self.outputs(which)
        with torch.no_grad():
            if getattr(self.reference, "CELLS", 1) == 1 or tensors[0].is_meta:
                return in_slices(self.formula(which, params), tensors, outputs, VALUES)
            cell_of, inputs = self.formula("cell_of", params), len(self.inputs)

            def of_cell(*arguments: Any) -> tuple[Tensor, ...]:
                *tensors, cell = arguments
                return self.formula(which, params, _cell=cell)(*tensors)

            return in_cells(of_cell, lambda *tensors: cell_of(*tensors[:inputs])[0], tensors, outputs)

    def run_on_cpu(self, which: str, tensors: Tensors, params: Scalars) -> tuple[Tensor, ...]:
        """Compute in float64 on the CPU what is on a device without float64, and round once."""
        device, dtype = tensors[0].device, tensors[0].dtype
        warn_once(
            f"device {device.type}",
            f"there are no kernels for {device.type} tensors (met first in {self.label}). They are copied to the CPU, "
            "computed in float64, and copied back, with a wait for the device each time",
        )
        results = self.run(which, [tensor.cpu().to(torch.float64) for tensor in tensors], params)
        return tuple([result.to(dtype).to(device) for result in results])

    def formula(self, which: str, params: Scalars, **more: int) -> Callable[..., tuple[Tensor, ...]]:
        """The PyTorch code as a function of tensors: differentiable, in float64, rounded once."""
        function = getattr(self.reference, which)
        named = {**dict(zip(self.parameters, params, strict=True)), **more}

        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            device, dtype = tensors[0].device, tensors[0].dtype
            if not has_float64(device):
                tensors = tuple([tensor.cpu() for tensor in tensors])
            # Views: under vmap torch.func takes no second derivative in an input that is handed on as it is.
            results = function(*[tensor.to(torch.float64).view_as(tensor) for tensor in tensors], **named)
            return tuple([result.to(dtype).to(device) for result in results])

        return call

    def outputs(self, which: str) -> int:
        """How many tensors ``which`` returns."""
        return len(MEAN_AND_VARIANCE) if which == "forward" else len(self.inputs)


@constant_result  # torch.compile cannot trace an import
def _load_reference(label: str, path: str) -> bool:
    if path not in _references:
        try:
            _references[path] = importlib.import_module(path)
        except ImportError as error:
            raise MomentgenError(f"{label}: the PyTorch code does not load: {error}") from error
    return True


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; where nobody has tried, it is taken not to."""
    return device.type in ("cpu", "cuda", "meta")


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
    with _lock():
        _kernels[name] = kernel
        if name not in _operators:
            _operators[name] = _define(name, which, kernel)
        return _operators[name]


def _define(name: str, which: str, kernel: Kernel) -> Any:
    arguments = [f"Tensor {name}" for name in kernel.inputs]
    arguments += [f"Tensor grad_{name}" for name in MEAN_AND_VARIANCE] if which == "backward" else []
    results = ", ".join(["Tensor"] * kernel.outputs(which))
    qualified = name.removeprefix("momentgen::")
    _library.define(
        f"{qualified}({', '.join(arguments)}, float[] params) -> ({results})", tags=torch.Tag.pt2_compliant_tag
    )

    def compute(*args: Any) -> tuple[Tensor, ...]:
        return _kernels[name].run(which, args[:-1], tuple(args[-1]))

    def fake(first: Tensor, *_: Any) -> tuple[Tensor, ...]:
        # Outputs of the right shape, dtype, device and strides: the first input's if it is dense, as channels last.
        layout = torch.preserve_format if is_dense(first) else torch.contiguous_format
        return tuple([torch.empty_like(first, memory_format=layout) for _ in range(kernel.outputs(which))])

    _library.impl(qualified, compute, "CompositeExplicitAutograd")
    _library.impl(qualified, fake, "Meta")  # register_fake reads source files, a third of the import
    packet, overload = qualified.split(".")
    operator = getattr(getattr(torch.ops.momentgen, packet), overload)

    def batched(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        results = operator(*batch_first(info.batch_size, in_dims, args[:-1]), args[-1])
        return results, (0,) * len(results)

    torch.library.register_vmap(name, batched, lib=_library)
    return operator
