"""A small network as text: lines of plain torch, from which both the network and a script for the reader are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from momentgen import Moments

__all__ = ["Given", "Program", "Step", "Value", "leaves_of"]


@dataclass(frozen=True)
class Value:
    """What is known of a value of the network, from which follows which methods must be right about it.

    Attributes:
        name: in the listing.
        shape: of the tensor.
        roots: the inputs, parameters and draws that it is a function of.
        line: key of the normal value of which each element is a function, element for element; None if of none.
        affine: whether that function is affine, so that the elements are normal.
        independent: whether the elements are independent of each other.
        exact: whether a method that takes units as independent knows mean and variance of each element: at most one
            function of several random values, which were independent and normal where it is not affine.
        tolerance: relative, of σ; of the mean in σ.
    """

    name: str
    shape: tuple[int, ...]
    roots: frozenset[str] = frozenset()
    line: tuple[str, ...] | None = None
    affine: bool = False
    independent: bool = False
    exact: bool = True
    tolerance: float = 0.05


@dataclass(frozen=True)
class Step:
    """Lines that compute one value.

    Attributes:
        lines: of ``forward``; the last value that they bind is ``value``.
        parts: lines of ``__init__``.
        value: what they compute.
        operands: names of the values that they read.
        function: the name in the table, or of the pattern.
    """

    lines: tuple[str, ...]
    parts: tuple[str, ...]
    value: Value
    operands: tuple[str, ...]
    function: str


@dataclass(frozen=True)
class Given:
    """An argument of the network.

    Attributes:
        name: in the listing.
        text: makes the tensor or moments.
        same: name of the argument that it is the same random value as.
    """

    name: str
    text: str
    same: str | None = None


@dataclass(frozen=True)
class Program:
    """A network and its input.

    Attributes:
        seed: what it was made from; also of its weights.
        dtype: name in torch.
        given: its arguments.
        steps: in order.
        outputs: values that it returns.
        taken: how arguments are passed: ``plain``, or the name of a container.
        returned: how outputs are returned: ``plain`` for one tensor, or the name of a container.
        randomised: standard deviation of all parameters, or None.
        batched: whether dimension 0 of inputs and outputs is the batch.
    """

    seed: int
    dtype: str
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]
    taken: str = "plain"
    returned: str = "plain"
    randomised: float | None = None
    batched: bool = True

    def cone(self, *outputs: Value) -> Program:
        """The part of the network that these values need."""
        needed = {value.name for value in outputs}
        kept: list[Step] = []
        for step in reversed(self.steps):
            if step.value.name in needed:
                kept.append(step)
                needed.update(step.operands)
        returned = self.returned if len(outputs) == len(self.outputs) else ("plain" if len(outputs) == 1 else "tuple")
        randomised = self.randomised if any("nn." in part for step in kept for part in step.parts) else None
        steps = tuple(reversed(kept))
        return replace(self, steps=steps, outputs=outputs, returned=returned, randomised=randomised)

    @property
    def functions(self) -> list[str]:
        """Names of the functions in it."""
        return [step.function for step in self.steps]

    def listing(self, method: str | None = None) -> str:
        """The program as a script; with a method, also a call by it."""
        text = _HEAD
        if self.randomised is not None and method is not None:
            text += "from momentgen.inference import MeanField, randomise\n"
        text += "\n\n"
        if "dataclass" in (self.taken, self.returned):
            text += _DATACLASS
        body = "".join(f"        {line}\n" for line in self._body())
        text += (
            f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {self._parts()}\n\n"
            f"    def forward(self, {self._arguments()}):\n{body}\n\n"
            f"torch.manual_seed({self.seed})\nnet = Net().eval().to(torch.{self.dtype})\n"
        )
        for given in self.given:
            text += f"{given.name} = {given.same or given.text}\n"
        text += f"arguments = ({self._passed()},)\n"
        if method is None:
            return text
        made = "net" if self.randomised is None else f"randomise(net, MeanField(std={self.randomised}))"
        call = f"print(momentgen.convert({made})(*arguments))\n"
        return text + (call if method == "default" else f"with momentgen.method({method!r}):\n    {call}")

    def _parts(self) -> str:
        parts = [part for step in self.steps for part in step.parts]
        return "\n        ".join(parts or ["pass"])

    def _arguments(self) -> str:
        return ", ".join(given.name for given in self.given) if self.taken == "plain" else "given"

    def _passed(self) -> str:
        return _packed(self.taken, [given.name for given in self.given]) or ", ".join(g.name for g in self.given)

    def _body(self) -> list[str]:
        unpacked = {
            "plain": None,
            "tuple": "{n}, = given",
            "list": "{n}, = given",
            "dict": "{n}, = given.values()",
            "UserDict": "{n}, = given.values()",
            "dataclass": "{n}, = (item for item in (given.first, given.second, given.third) if item is not None)",
        }[self.taken]
        body = [] if unpacked is None else [unpacked.format(n=", ".join(given.name for given in self.given))]
        body += [line for step in self.steps for line in step.lines]
        names = [value.name for value in self.outputs]
        return [*body, f"return {_packed(self.returned, names) or ', '.join(names)}"]

    def made(self) -> tuple[torch.nn.Module, tuple[Any, ...]]:
        """The network and its arguments."""
        scope: dict[str, Any] = {"__name__": __name__}  # dataclasses look their module up
        with torch.random.fork_rng():
            exec(compile(self.listing(), f"<seed {self.seed}>", "exec"), scope)
        return scope["net"], scope["arguments"]


_HEAD = """\
from collections import UserDict
from dataclasses import dataclass

import momentgen
import torch
import torch.nn.functional as F
from momentgen import noisy
from torch import nn
"""

_DATACLASS = """\
@dataclass
class Parts:
    first: object
    second: object = None
    third: object = None


"""


def _packed(container: str, names: list[str]) -> str | None:
    """Names in a container, as Python writes it; None for none."""
    named = ", ".join(f"{key!r}: {name}" for key, name in zip("abc", names, strict=False))
    listed = ", ".join(names)
    return {
        "plain": None,
        "tuple": f"({listed},)",
        "list": f"[{listed}]",
        "dict": f"{{{named}}}",
        "UserDict": f"UserDict({{{named}}})",
        "dataclass": f"Parts({listed})",
        "nested": f"{{'only': [({listed},)]}}",
    }[container]


def leaves_of(nest: Any) -> list[Any]:
    """Tensors, moments and whatever else, in order: of tuples, lists, mappings and dataclasses."""
    if isinstance(nest, Moments | Tensor):
        return [nest]
    if isinstance(nest, tuple | list):
        return [leaf for item in nest for leaf in leaves_of(item)]
    if isinstance(nest, Mapping):
        return [leaf for item in nest.values() for leaf in leaves_of(item)]
    if is_dataclass(nest):
        return [leaf for part in fields(nest) for leaf in leaves_of(getattr(nest, part.name)) if leaf is not None]
    return [nest]
