"""All C that momentgen compiles, except users' own rules: what goes into wheels, and what the runtime asks for.

The two must be the same text, or a wheel's kernels are passed by.  Only the standard library is imported: wheels are
built without torch.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from momentgen.native.includes import whole

__all__ = [
    "collapsed_gates",
    "density_filter",
    "every_source",
    "maximum_of_windows",
    "polya_gamma",
]

_PACKAGE = Path(__file__).parents[1]
_REALS = ("float", "double")


def _text(path: str) -> str:
    return (_PACKAGE / path).read_text(encoding="utf-8")


def collapsed_gates() -> str:
    """Gates of a bow tie network, drawn with their weights integrated out."""
    return _text("inference/bowtie/collapsed_gates.c")


def density_filter(real: str, relu: str) -> str:
    """Probabilistic and expectation backpropagation.

    Args:
        real: ``float`` or ``double``.
        relu: the generated C of ReLU, variant ``exact``, in that type.
    """
    stem, largest = ("relu_exact_float64", "DBL_MAX") if real == "double" else ("relu_exact", "FLT_MAX")
    lines = [
        whole(relu),
        f"#define REAL_MAX {largest}",
        f"#define RELU_FORWARD {stem}_forward",
        f"#define RELU_BACKWARD {stem}_backward",
        _text("inference/adf/filter.c"),
    ]
    return "\n".join(lines)


def maximum_of_windows(definitions: Mapping[str, object]) -> str:
    """Moments of the maximum over windows, with the macros of :mod:`momentgen.laws.numerics.maximum_rule`."""
    macros = [f"#define {name} {value}" for name, value in definitions.items()]
    return "\n".join([*macros, _text("laws/numerics/maximum.c")])


def polya_gamma() -> str:
    """Draws from Pólya-gamma distributions."""
    return _text("inference/polya_gamma_sampler/polya_gamma.c")


def every_source(generated: Path) -> Iterator[tuple[str, str]]:
    """Stem and text of each library.

    Args:
        generated: directory of the built rules.
    """
    for path in sorted(generated.glob("[!.]*/*.c")):
        yield f"{path.parent.name}_{path.stem}", whole(path.read_text(encoding="utf-8"))
    maximum = _module("laws/numerics/maximum_rule.py")
    yield "collapsed_gates", collapsed_gates()
    yield "polya_gamma", polya_gamma()
    for real in _REALS:
        relu = generated / "relu" / ("exact_float64.c" if real == "double" else "exact.c")
        yield f"adf_{real}", density_filter(real, relu.read_text(encoding="utf-8"))
        yield f"maximum_of_windows_{real}", maximum_of_windows(maximum.definitions(real))


def _module(path: str) -> ModuleType:
    """A module by itself, without its package, which imports torch."""
    name = f"_momentgen_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, _PACKAGE / path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look it up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
