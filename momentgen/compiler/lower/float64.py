"""Real graphs as float64 programs: one value a node, and polynomials of two values between two programs.

A polynomial of two values takes hundreds of coefficients, which stand in tables: it is a call of a function for many
elements.  A first program computes what it is of, and what else the rest needs of that; a second one takes its results
as further inputs.  Where there is a polynomial for each cell of a plane, a program finds the number of the cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from momentgen.compiler.ir.graph import LEAVES, Graph, Node, Patch, Surface, madd, reached
from momentgen.compiler.ir.kinds import CONDITIONS
from momentgen.compiler.ir.op import Op, Type
from momentgen.compiler.ir.program import Builder, Program, ProgramError
from momentgen.compiler.ir.stable import Stable
from momentgen.rule.inputs import partial_names

#: what there is of a polynomial of two values: itself, and its derivatives
SLOPES = ("surface", "surface_y", "surface_z")


@dataclass(frozen=True)
class Sheet:
    """A polynomial of two values between two programs.

    Attributes:
        patches: by cell.
        y, z: the first program's outputs that it is of.
        results: of ``SLOPES``, those that are wanted -> the second program's inputs.
        size, after: how many cells its grid has; how many all grids after its own have together.
    """

    patches: tuple[Patch, ...]
    y: str
    z: str
    results: Mapping[str, str]
    size: int
    after: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of ``SLOPES``, what the function for it computes: all of them where a derivative is wanted."""
        return SLOPES[:1] if set(self.results) == {SLOPES[0]} else SLOPES

    @property
    def function(self) -> str:
        """The name of that function."""
        return "surface" if len(self.kinds) == 1 else "surface_slopes"

    def cell(self, number: str, over: str) -> str:
        """The text of the number in its grid, of that in all; ``over`` is the sign of a whole quotient."""
        text = f"{number} {over} {self.after}" if self.after > 1 else number
        return f"{text} % {self.size}" if self.size > 1 else "0"


@dataclass(frozen=True)
class Summation:
    """Sums between two programs, as :class:`momentgen.compiler.ir.graph.Loop`.

    Attributes:
        term: from what is shared, what a row has, and numbers of the table, to the terms.
        shared, rows: the first program's outputs that it is of.
        table: the numbers, for each term of a row.
        results: the second program's inputs, in the order of the term's outputs.
    """

    term: Program
    shared: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    table: tuple[tuple[float, ...], ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """One direction of a variant.

    Attributes:
        name: of the kernel, and of its last program.
        inputs: names of the arrays that it takes.
        program: from inputs, and what ``sheets`` and ``points`` give, to the results.
        points: what ``sheets`` are of, and other values that both programs need; None without ``sheets``.
        sheets: the polynomials of two values.
        number: from the inputs to the number of the cell; None where there is one cell.
        cells: how many there are.
        sums: the sums; None where there are none.
    """

    name: str
    inputs: tuple[str, ...]
    program: Program
    points: Program | None = None
    sheets: tuple[Sheet, ...] = ()
    number: Program | None = None
    cells: int = 1
    sums: Summation | None = None

    @property
    def program_inputs(self) -> tuple[str, ...]:
        """The inputs but for the gradients of outputs."""
        return tuple(name for name in self.inputs if not name.startswith("grad_"))

    @property
    def programs(self) -> tuple[Program, ...]:
        """In the order in which they run."""
        every = self.number, self.points, self.sums.term if self.sums else None, self.program
        return tuple(program for program in every if program is not None)


def parameter(name: str) -> str:
    """What a program calls a parameter: a name that is none of C's, nor of a loop's."""
    return f"p_{name}"


def kernels_of(stable: Stable, name: str) -> tuple[Kernel, Kernel]:
    """Forward and backward of a variant in float64; ``name`` is what the programs' names begin with.

    Raises:
        ProgramError: if a polynomial of two values is of what comes of another, or a graph is one for float32.
    """
    outputs = {output: {"": index} for output, index in stable.forward64.outputs.items()}
    of_input = partial_names(stable.partials64.inputs, tuple(stable.forward64.outputs))
    gradients = {
        f"grad_{of}": {
            f"grad_{output}": stable.partials64.outputs[partial]
            for output, partial in zip(stable.forward64.outputs, partials, strict=True)
        }
        for of, partials in of_input.items()
    }
    forward = _kernel(stable.forward64, f"{name}_forward", outputs)
    backward = _kernel(stable.partials64, f"{name}_backward", gradients)
    if forward.number and backward.number and replace(backward.number, name=forward.number.name) == forward.number:
        backward = replace(backward, number=forward.number)
    return forward, backward


#: output -> name of an input that a node is multiplied by, or none -> the node: the output is the sum of these
_Outputs = Mapping[str, Mapping[str, int]]


def _kernel(graph: Graph, name: str, outputs: _Outputs) -> Kernel:
    seeds = tuple(dict.fromkeys(seed for terms in outputs.values() for seed in terms if seed))
    inputs, params = (*graph.inputs, *seeds), tuple(map(parameter, graph.params))
    wanted = [index for terms in outputs.values() for index in terms.values()]
    surfaces = {i: graph.surfaces[i] for i in _needed(graph, wanted, graph.surfaces) if i in graph.surfaces}
    program = _Writer(graph, Builder(name, inputs, params, real=Type.F64))
    sums = {i: graph.nodes[i] for i in _needed(graph, wanted, ()) if graph.nodes[i].kind == "sum"}
    if sums:
        return _summing(graph, program, outputs, sums)
    if not surfaces:
        return Kernel(name, inputs, program.built(outputs))
    values = [index for surface in surfaces.values() for index in (surface.y, surface.z)]
    given, shared, of_points = _before(program, values, wanted, surfaces)
    grids = _grids(graph.surfaces.values())
    results: dict[tuple[int, int, int, tuple[Patch, ...]], dict[str, str]] = {}
    for k, (index, surface) in enumerate(surfaces.items()):
        results.setdefault((surface.y, surface.z, surface.cell, surface.patches), {})[surface.kind] = f"r{k}"
        program.given[index] = f"r{k}"
    sizes = list(grids.items())
    sheets = []
    for (y, z, cell, patches), found in results.items():
        place = next((k for k, (node, _) in enumerate(sizes) if node == cell), len(sizes))
        after = math.prod(count for _, count in sizes[place + 1 :])
        sheets.append(Sheet(patches, given[y], given[z], found, len(patches), after))
    program.given |= {index: given[index] for index in shared}
    program.builder.inputs = (*inputs, *dict.fromkeys(program.given.values()))
    cells = math.prod(grids.values())
    number: Program | None = None
    if cells > 1:
        of_cell = numbered(graph)
        writer = _Writer(of_cell, Builder(f"{name}_cell", graph.inputs, params, real=Type.F64))
        number = _reading(writer.built({"cell": {"": of_cell.outputs["number"]}}))
    return Kernel(name, inputs, _reading(program.built(outputs)), _reading(of_points), tuple(sheets), number, cells)


def _before(
    program: _Writer, values: Sequence[int], wanted: Sequence[int], later: Mapping[int, object]
) -> tuple[dict[int, str], list[int], Program]:
    """What is computed before the ``later`` nodes: names of what is handed on, what the rest shares, and the program.

    ``program`` is that of the rest, ``values`` what the later nodes are of, and ``wanted`` is wanted in the end.
    """
    graph, builder = program.graph, program.builder
    needed = set(_needed(graph, values, later))
    if not needed.isdisjoint(later):
        kind = graph.nodes[next(iter(later))].kind
        raise ProgramError(f"{builder.name}: a node of the kind {kind!r} is of what comes of another")
    stops = {i for i in needed if graph.nodes[i].kind not in (*LEAVES, *CONDITIONS)} | set(later)
    shared = [i for i in _needed(graph, wanted, stops) if i in stops and i not in later]
    given = {index: f"s{k}" for k, index in enumerate(dict.fromkeys([*values, *shared]))}
    points = _Writer(graph, Builder(f"{builder.name}_points", graph.inputs, builder.params, real=Type.F64))
    return given, shared, points.built({text: {"": index} for index, text in given.items()})


def _summing(graph: Graph, program: _Writer, outputs: _Outputs, sums: Mapping[int, Node]) -> Kernel:
    """The kernel of a graph with sums."""
    b = program.builder
    name, inputs = b.name, b.inputs
    ((number, operands),) = {(node.payload[0], node.args) for node in sums.values()}
    loop = graph.loops[number]
    wanted = [index for terms in outputs.values() for index in terms.values()]
    if graph.surfaces:
        raise ProgramError(f"{name}: expected sums or polynomials of two values, got both")
    given, shared, of_points = _before(program, operands, wanted, sums)
    results = {of: f"r{k}" for k, of in enumerate(loop.body.outputs)}
    term = _Writer(loop.body, Builder(f"{name}_term", loop.body.inputs, (), real=Type.F64))
    of_term = term.built({result: {"": loop.body.outputs[of]} for of, result in results.items()})
    program.given = {index: results[node.payload[1]] for index, node in sums.items()}
    program.given |= {index: given[index] for index in shared}
    b.inputs = (*inputs, *dict.fromkeys(program.given.values()))
    mine, rows = loop.split([given[a] for a in operands])
    summation = Summation(of_term, tuple(mine), tuple(map(tuple, rows)), loop.table, tuple(results.values()))
    return Kernel(name, inputs, _reading(program.built(outputs)), _reading(of_points), sums=summation)


def _reading(program: Program) -> Program:
    """The same, without inputs that it does not read."""
    read = {ins.name for ins in program.instructions}
    return replace(program, inputs=tuple(name for name in program.inputs if name in read))


def numbered(graph: Graph) -> Graph:
    """The same nodes with one output: the number of an element's cell, in all grids at once."""
    found = graph.without_outputs()
    number = found.const(0)
    for cell, count in _grids(graph.surfaces.values()).items():
        number = madd(number, count, found.real(cell))
    found.output("number", number)
    return found


def _grids(surfaces: Iterable[Surface]) -> dict[int, int]:
    """The nodes that are numbers of cells -> how many there are."""
    return {surface.cell: len(surface.patches) for surface in surfaces if len(surface.patches) > 1}


def _needed(graph: Graph, wanted: Iterable[int], stops: Iterable[int]) -> list[int]:
    """The nodes that some need, in order; of ``stops`` themselves alone."""
    ends = set(stops)
    return reached(wanted, lambda index: () if index in ends else graph.nodes[index].args)


@dataclass
class _Writer:
    """Writes nodes of a graph; ``given`` are those that are inputs of the program."""

    graph: Graph
    builder: Builder
    given: dict[int, str] = field(default_factory=dict)

    def built(self, outputs: _Outputs) -> Program:
        """The program of some outputs."""
        b, made = self.builder, dict[int, int]()
        wanted = [index for terms in outputs.values() for index in terms.values()]
        for index in _needed(self.graph, wanted, self.given):
            made[index] = b.input(self.given[index]) if index in self.given else self._node(index, made)
            if text := self.graph.comments.get(index):
                b.comment(made[index], text)
        for name, terms in outputs.items():
            total: int | None = None
            for seed, index in reversed(list(terms.items())):
                value = made[index]
                if seed:
                    grad = b.input(seed)
                    value = b.mul(grad, value) if total is None else b.fma(grad, value, total)
                total = value
            if total is None:
                raise ProgramError(f"{b.name}: output {name} is a sum of nothing")
            b.output(name, total)
        return b.build()

    def _node(self, index: int, made: Mapping[int, int]) -> int:
        node, b = self.graph.nodes[index], self.builder
        if node.kind == "input":
            return b.input(node.payload)
        if node.kind == "param":
            return b.param(parameter(node.payload))
        if node.kind == "const":
            return b.f64(float(node.payload))
        if node.kind == "exp_factor":  # the mantissa carries the whole exponential here
            return b.f64(1.0)
        if node.kind not in _KINDS:
            raise ProgramError(f"{b.name}: {node.kind} is an operation for float32")
        return _KINDS[node.kind](b, *(made[a] for a in node.args))


def _mul(b: Builder, x: int, y: int) -> int:
    """A product; of an exponential's factor, which is 1, the other."""
    one = b.f64(1.0)
    return y if x == one else x if y == one else b.mul(x, y)


def _primitive(op: Op) -> Callable[..., int]:
    return lambda b, *args: b.emit(op, *args)


#: kind of node -> what is written of it
_KINDS: Mapping[str, Callable[..., int]] = {
    **{kind: _primitive(Op[kind.upper()]) for kind in ("add", "sub", "sqrt", "neg", "abs", "round", "lt", "le", "eq")},
    **{kind: _primitive(Op[kind.upper()]) for kind in ("and", "or", "not")},
    "mul": _mul,
    "madd": _primitive(Op.FMA),
    "over": _primitive(Op.DIV),
    "recip": lambda b, a: b.div(b.f64(1.0), a),
    "over_one_plus": lambda b, a, h: b.div(a, b.add(b.f64(1.0), h)),
    "half_square": lambda b, a: b.mul(b.mul(b.f64(-0.5), a), a),
    "exp_mantissa": _primitive(Op.EXP),
    "log": _primitive(Op.LOG),
    "times_exp_mantissa": lambda b, a, x: b.mul(a, b.exp(x)),
    "select": lambda b, c, x, y: b.select(c, x, y),
}
