"""What lowering and certification found, as plain data and back, so that it can be kept for later builds.

Every value comes back equal, bit for bit, except functions: of a :class:`~momentgen.compiler.strategies.Stable` only
what emission needs survives, and the functions that measure it raise an error if called.  A type that is not known here
is refused rather than guessed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NoReturn

import mpmath
import numpy as np
import sympy

from momentgen.compiler.certify.bounds import Bound
from momentgen.compiler.certify.evidence import OutputEvidence, Run
from momentgen.compiler.certify.variant import Certified
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Loop, Node, Patch, Surface
from momentgen.compiler.ir.op import Op, Type
from momentgen.compiler.ir.program import Instruction, Program
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.lower.ablate import Choice
from momentgen.compiler.strategies.domain import DomainEdge
from momentgen.compiler.strategies.elementary.entire_graph import Edge

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Bound,
        Certified,
        Choice,
        DomainEdge,
        Edge,
        Instruction,
        Loop,
        Node,
        OutputEvidence,
        Patch,
        Polynomial,
        Program,
        Run,
        Stable,
        Surface,
    )
}
_ENUMS: dict[str, type[enum.Enum]] = {kind.__name__: kind for kind in (Op, Type)}
_GRAPH = ("inputs", "params", "nodes", "outputs", "comments", "suspects", "surfaces", "loops")
_GRAPH_OWN = {"_seen", "_steps"}  # what a graph finds from the rest
#: what a rule says of itself to readers, and does not compute with
_FOR_READERS = frozenset({"doc", "digest"})


def encoded(value: Any) -> Any:
    """``value`` as JSON can write it.

    Raises:
        TypeError: if it, or something in it, is of a type that cannot be brought back.

    >>> decoded(encoded({"at": (1, -0.0), 2: frozenset({3})}))
    {'at': (1, -0.0), 2: frozenset({3})}
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", *map(encoded, value)]
    if isinstance(value, Mapping):
        return ["dict", *([encoded(key), encoded(item)] for key, item in value.items())]
    if isinstance(value, (set, frozenset)):
        return ["frozenset" if isinstance(value, frozenset) else "set", *map(encoded, sorted(value))]
    if isinstance(value, mpmath.mpf):
        sign, mantissa, exponent, bits = value._mpf_
        return ["mpf", int(sign), hex(mantissa), int(exponent), int(bits)]
    if isinstance(value, enum.Enum) and type(value) is _ENUMS.get(type(value).__name__):
        return ["enum", type(value).__name__, value.value]
    if isinstance(value, Graph):
        if set(vars(value)) != {*_GRAPH, *_GRAPH_OWN}:
            raise TypeError(f"expected a graph of {', '.join(_GRAPH)}, got also {set(vars(value)) - {*_GRAPH}}")
        return ["graph", *(encoded(getattr(value, name)) for name in _GRAPH)]
    if type(value) is _CLASSES.get(type(value).__name__):
        names = [entry.name for entry in dataclasses.fields(value)]
        return ["class", type(value).__name__, *([name, encoded(getattr(value, name))] for name in names)]
    if callable(value):
        return ["function"]
    raise TypeError(f"expected plain data, got {type(value).__module__}.{type(value).__qualname__}")


def decoded(data: Any) -> Any:
    """What :func:`encoded` was given.

    Raises:
        ValueError: if ``data`` is not from there.
    """
    if not isinstance(data, list):
        return data
    kind, *rest = data
    if kind in ("list", "tuple", "set", "frozenset"):
        made: Mapping[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return made[kind](map(decoded, rest))
    if kind == "dict":
        return {decoded(key): decoded(item) for key, item in rest}
    if kind == "mpf":
        sign, mantissa, exponent, bits = rest
        return mpmath.mp.make_mpf((sign, mpmath.libmp.MPZ(int(mantissa, 16)), exponent, bits))
    if kind == "enum":
        return _ENUMS[rest[0]](rest[1])
    if kind == "graph":
        return _graph(dict(zip(_GRAPH, map(decoded, rest), strict=True)))
    if kind == "class":
        return _CLASSES[rest[0]](**{name: decoded(item) for name, item in rest[1:]})
    if kind == "function":
        return _gone
    raise ValueError(f"expected a kind of value, got {kind!r}")


def _graph(fields: Mapping[str, Any]) -> Graph:
    graph = Graph(fields["inputs"], fields["params"])
    for name in _GRAPH:
        setattr(graph, name, fields[name])
    graph._seen = {node: index for index, node in enumerate(graph.nodes)}
    return graph


def _gone(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a result that was kept has no functions to measure it by: compile the rule anew")


def rule_data(value: Any) -> Any:
    """All that a rule computes with, as JSON can write it; equal for equal rules, whatever they say to their readers.

    Raises:
        TypeError: if there is something in it that cannot be told apart by what it prints.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return ["float", float(value).hex()]
    if isinstance(value, sympy.Basic):
        return ["sympy", sympy.srepr(value)]
    if isinstance(value, (list, tuple)):
        return ["list", *map(rule_data, value)]
    if isinstance(value, Mapping):
        return ["dict", *([rule_data(key), rule_data(item)] for key, item in value.items())]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [entry.name for entry in dataclasses.fields(value) if entry.name not in _FOR_READERS]
        return [type(value).__name__, *([name, rule_data(getattr(value, name))] for name in names)]
    raise TypeError(f"expected what a rule is made of, got {type(value).__module__}.{type(value).__qualname__}")
