"""Built variants as they lie on disk: the certificate, and the outputs of the C that would ship.

For commands that look at a package from outside (``verify``, ``report``).  The C file is compiled as it is, never
rendered anew, so what is measured is what was committed.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.build.native_kernel import NativeKernel
from momentgen.build.output import Output
from momentgen.compiler.toolchain.float32 import split_float32
from momentgen.errors import MomentgenError
from momentgen.rule import Rule

F32 = npt.NDArray[np.float32]

#: the inputs of a kernel of one random variable
UNIVARIATE = ("mean", "var")


@dataclass(frozen=True)
class Built:
    """One variant of one rule, as it was committed.

    Attributes:
        rule, variant: names.
        certificate: what its JSON file says.
        source: its C file.
        inputs: names of the kernel's input arrays, from the C.
        outputs: names of what it returns, from the C as well.
        folder: where its files are.
    """

    rule: str
    variant: str
    certificate: Mapping[str, Any] = field(repr=False)
    source: str = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    folder: Path = Path()

    @property
    def is_univariate(self) -> bool:
        """Whether it is a function of one random variable."""
        return self.inputs == UNIVARIATE

    @property
    def unit(self) -> str:
        """The unit of the goal and of the bounds, e.g. ``ulp``."""
        return str(next(iter(self.certificate["goal"])))

    @property
    def goal(self) -> float:
        """The largest error allowed, in :attr:`unit`."""
        return float(self.certificate["goal"][self.unit])

    @property
    def way(self) -> str:
        """The strategy that the exact moments are by; empty for approximations."""
        return str(self.certificate.get("method", {}).get("way", ""))

    @property
    def bounds(self) -> dict[str, float]:
        """Output or partial -> the largest error certified, in :attr:`unit`."""
        return {name: float(bound[self.unit]) for name, bound in self.certificate["bounds"].items()}

    def parameters(self, setting: Mapping[str, float]) -> list[float]:
        """What the kernels read as ``params``: two words a parameter, then what the committed Python code derives.

        Args:
            setting: the rule's parameters by name, in its order.

        Raises:
            MomentgenError: if that code is missing or cannot be imported, or the C reads another number of values.
        """
        values = [word for value in setting.values() for word in split_float32(value)]
        values += self._scalars(setting)
        read = 1 + max(map(int, re.findall(r"\bparams\[(\d+)\]", self.source)), default=-1)
        if read != len(values):
            raise MomentgenError(
                f"rule {self.rule}, variant {self.variant}: expected the {read} values that the C reads as params, "
                f"got {len(values)} for {dict(setting)}; build the rule again"
            )
        return values

    def _scalars(self, setting: Mapping[str, float]) -> tuple[float, ...]:
        # A variant that is another one in float64 has no Python code of its own.
        code = self.certificate.get("float64_code", self.variant)
        path = self.folder / f"{code}_torch.py"
        try:
            derive = runpy.run_path(str(path)).get("kernel_scalars")
        except (ImportError, OSError, SyntaxError) as error:
            raise MomentgenError(f"{path}: cannot be imported: {error}") from error
        return () if derive is None else tuple(float(value) for value in derive(**setting))


def read_built(package: Path, rule: str) -> tuple[Built, ...]:
    """Every variant of ``rule`` in the built package, in the order of the build.

    Raises:
        MomentgenError: if the rule is not built there, or one of its files is missing or damaged.
    """
    manifest = Output(package).manifest(rule)
    if manifest is None:
        raise MomentgenError(f"expected the built rule {rule} in {package}, found none; run `momentgen build` first")
    found = []
    for variant in manifest.variants:
        stem = package / rule / variant.name
        try:
            certificate = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
            source = stem.with_suffix(".c").read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise MomentgenError(
                f"expected {error.filename}, which the build of {rule} wrote; build it again"
            ) from None
        except (OSError, ValueError) as error:
            raise MomentgenError(f"{stem}: cannot be read: {error}") from error
        missing = [key for key in ("goal", "bounds", "method") if not certificate.get(key)]
        if missing:
            raise MomentgenError(f"certificate {stem}.json: missing {', '.join(missing)}; build the rule again")
        inputs, outputs = _arrays(source, f"{rule}_{variant.name}_forward")
        found.append(Built(rule, variant.name, certificate, source, inputs, outputs, package / rule))
    return tuple(found)


def check_source(rule: Rule, variants: Sequence[Built]) -> None:
    """Check that ``variants`` were built from ``rule`` as it is now.

    Raises:
        MomentgenError: if a certificate is of another state of the rule file.
    """
    for built in variants:
        if built.certificate.get("digest") != rule.digest:
            raise MomentgenError(
                f"rule {rule.name}, variant {built.variant}: the certificate is of another state of the rule file; "
                "run `momentgen build` first"
            )


def _arrays(source: str, symbol: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Input and output arrays of an exported kernel: the read-only pointers before ``params``, and those after it.

    >>> _arrays("void f_forward(int64_t n, in_ptr mean, in_ptr var, in_ptr params, out_ptr out_mean)", "f_forward")
    (('mean', 'var'), ('mean',))
    """
    signature = re.search(rf"^void {re.escape(symbol)}\s*\(([^)]*)\)", source, re.MULTILINE)
    if signature is None:
        return (), ()
    names = re.findall(r"\bin_ptr (\w+)", signature[1])
    if "params" not in names:
        return (), ()
    outputs = re.findall(r"\bout_ptr out_(\w+)", signature[1])
    return tuple(names[: names.index("params")]), tuple(outputs)


class CommittedKernel:
    """Outputs and partials of one built variant, by its own C.

    Args:
        built: the variant.
        setting: the rule's parameters by name, in its order.

    Raises:
        BuildError: if there is no C compiler, it fails, or the C lacks a kernel.
        MomentgenError: if what the kernels read as ``params`` cannot be computed.
    """

    def __init__(self, built: Built, setting: Mapping[str, float]) -> None:
        self.params = built.parameters(setting)
        name, inputs = f"{built.rule}_{built.variant}", len(built.inputs)
        count = len(self.params)
        self._names = built.outputs
        self._forward = NativeKernel(built.source, f"{name}_forward", inputs, count, len(self._names))
        self._backward = NativeKernel(built.source, f"{name}_backward", inputs + len(self._names), count, inputs)
        self._partials = [
            [key for key in built.certificate["bounds"] if key.startswith(f"d{output}_")] for output in self._names
        ]

    def outputs(self, *inputs: F32) -> dict[str, F32]:
        """The outputs at contiguous float32 arrays of one shape."""
        return dict(zip(self._names, self._forward(*inputs, params=self.params), strict=True))

    def __call__(self, *inputs: F32) -> dict[str, F32]:
        """The outputs and all partials, named as in the certificate."""
        result = self.outputs(*inputs)
        for place, names in enumerate(self._partials):
            seeds = [np.full_like(inputs[0], place == other) for other in range(len(self._partials))]
            result |= dict(zip(names, self._backward(*inputs, *seeds, params=self.params), strict=True))
        return result
