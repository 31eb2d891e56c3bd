"""The order of a program's values: for a reader and a GPU few alive at a time, for a CPU's core long chains early.

The last of the ``passes`` orders a program by :func:`schedule`, which the Triton renderer keeps; the C renderer orders
it by :func:`interleave`.  Bits do not depend on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from momentgen.compiler.ir.op import LEAVES, Op
from momentgen.compiler.ir.program import Program, verify

_PER_CYCLE = 2.0  # operations that begin in a cycle
#: values alive at a time, from where on what ends one comes first: several elements are worked on side by side
_MANY = 4
#: two elements of so many values alive stay in the 255 registers of a GPU's thread
_ALIVE_OF_TWO = 100
#: with so many alive at most, a core of 32 vector registers gains by so many vectors side by side, up to 40 % on all
#: threads; with more, it stores and loads what does not fit
_VECTORS = {4: 40, 2: 60}


def reorder(program: Program, order: Sequence[int]) -> Program:
    """The instructions that ``order`` names, each after its operands, in that order.

    Raises:
        ProgramError: if an operand does not come before its use.
    """
    position = {index: new for new, index in enumerate(order)}
    chosen = (program.instructions[index] for index in order)
    result = replace(
        program,
        instructions=tuple(replace(ins, args=tuple(position[a] for a in ins.args)) for ins in chosen),
        outputs=tuple((name, position[index]) for name, index in program.outputs),
        comments={position[index]: text for index, text in program.comments.items() if index in position},
    )
    verify(result)
    return result


def most_alive(program: Program) -> int:
    """How many computed values there are at most that a later instruction or an output needs.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("f", inputs=("x",))
    >>> x = b.input("x")
    >>> b.output("y", b.add(b.mul(x, x), b.sqrt(x)))
    >>> most_alive(b.build())
    2
    """
    instructions = program.instructions
    last = {a: index for index, ins in enumerate(instructions) for a in ins.args}
    last |= {index: len(instructions) for _, index in program.outputs}
    alive, most = 0, 0
    ends: dict[int, int] = {}
    for index, ins in enumerate(instructions):
        alive -= ends.pop(index, 0)
        if ins.op not in LEAVES and index in last:
            alive += 1
            ends[last[index]] = ends.get(last[index], 0) + 1
        most = max(most, alive)
    return most


def two_fit(program: Program) -> bool:
    """Whether a GPU's thread can work on two elements side by side."""
    return most_alive(program) <= _ALIVE_OF_TWO


def vectors(program: Program) -> int:
    """How many vectors of elements a CPU's core does best to work on side by side, in this order: 1, 2 or 4."""
    alive = most_alive(program)
    return next((count for count, most in _VECTORS.items() if alive <= most), 1)


def schedule(program: Program) -> Program:
    """Each value right before it is needed, or where that keeps fewer alive, what ends values first.

    Depth first from the outputs is local and easy to read; where outputs share much, it holds all
    of that until the last output.
    """
    orders = reorder(program, _depth_first(program)), reorder(program, _frugal(program))
    return min(orders, key=most_alive)


def interleave(program: Program) -> Program:
    """The same program, ordered by the length of what follows; each constant stands before its first use.

    List scheduling: at every step, of the operations whose operands are there, the one with the longest chain of
    latencies after it, or, where many values are alive, the one that ends most of them.  Compilers keep the order of
    arithmetic in a vector loop about as it is written, and a core looks only some hundred operations ahead.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("f", inputs=("x", "y"))
    >>> x, y = b.input("x"), b.input("y")
    >>> b.output("z", b.add(b.mul(b.mul(x, x), x), b.mul(b.mul(y, y), y)))
    >>> [ins.args for ins in interleave(b.build()).instructions if ins.op is Op.MUL]  # x x, y y, then the cubes
    [(0, 0), (1, 1), (0, 2), (1, 3)]
    """

    def crowded(state: _State, index: int) -> tuple[float, ...]:
        return state.ending[index], -state.start[index], state.after[index], -index

    return reorder(program, _State(program).order(crowded))


def _frugal(program: Program) -> list[int]:
    """As :func:`interleave`, but where many values are alive the newest are used first."""

    def crowded(state: _State, index: int) -> tuple[float, ...]:
        newest = max((state.place[a] for a in state.operands[index]), default=-1)
        return state.ending[index], newest, state.after[index], -index

    return _State(program).order(crowded)


def _depth_first(program: Program) -> list[int]:
    """Inputs and parameters, then depth first from the outputs.

    The operand that needs more storage comes before the others (Sethi and Ullman, 1970).
    """
    instructions = program.instructions
    need = [0] * len(instructions)
    for index, ins in enumerate(instructions):
        needs = sorted((need[a] for a in ins.args), reverse=True)
        need[index] = max([1 if ins.args else 0, *(n + i for i, n in enumerate(needs))])
    order = [i for i, ins in enumerate(instructions) if ins.op in (Op.INPUT, Op.PARAM)]
    done = set(order)
    for _, root in program.outputs:
        stack = [root]
        while stack:
            index = stack[-1]
            missing = [a for a in instructions[index].args if a not in done]
            if index in done:
                stack.pop()
            elif missing:
                stack.append(max(missing, key=lambda a: (need[a], -a)))
            else:
                stack.pop()
                done.add(index)
                order.append(index)
    return order


class _State:
    """What a list scheduler knows at a step.

    Attributes:
        operands: of each instruction, those that are computed.
        after: cycles from its beginning to the end of the longest chain that waits for it.
        start: the cycle in which the operands are there.
        ending: how many values each instruction that is not in the order yet is the last to use.
        place: where in the order it stands.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        instructions = program.instructions
        self.operands = [tuple({a for a in ins.args if instructions[a].op not in LEAVES}) for ins in instructions]
        self.users: list[list[int]] = [[] for _ in instructions]
        for index, needed in enumerate(self.operands):
            for a in needed:
                self.users[a].append(index)
        self.latency = [ins.op.latency for ins in instructions]
        self.after = [0] * len(instructions)
        for index in reversed(range(len(instructions))):
            longest = max((self.after[user] for user in self.users[index]), default=0)
            self.after[index] = self.latency[index] + longest
        self.uses = [len(found) for found in self.users]
        self.ending = [sum(self.uses[a] == 1 for a in needed) for needed in self.operands]
        self.start = [0.0] * len(instructions)
        self.place: dict[int, int] = {}

    def order(self, crowded: Callable[[_State, int], tuple[float, ...]]) -> list[int]:
        """The order; ``crowded`` says what comes first, the largest, where many values are alive."""
        instructions = self.program.instructions
        waiting = [len(needed) for needed in self.operands]
        ready = {i for i, ins in enumerate(instructions) if ins.op not in LEAVES and not waiting[i]}
        order: list[int] = []

        def append(index: int) -> None:
            self.place[index] = len(order)
            order.append(index)

        for index, ins in enumerate(instructions):
            if ins.op in (Op.INPUT, Op.PARAM):
                append(index)
        alive, clock = 0, 0.0
        while ready:
            if alive >= _MANY:
                chosen = max(ready, key=lambda i: crowded(self, i))
            else:
                clock = max(clock, min(self.start[i] for i in ready))
                begun = (i for i in ready if self.start[i] <= clock)
                chosen = max(begun, key=lambda i: (self.after[i], self.ending[i], -i))
            ready.remove(chosen)
            for a in instructions[chosen].args:
                if a not in self.place and instructions[a].op in LEAVES:
                    append(a)
            append(chosen)
            alive += 1 - self.ending[chosen]
            done = max(clock, self.start[chosen]) + self.latency[chosen]
            for a in self.operands[chosen]:
                self.uses[a] -= 1
                if self.uses[a] == 1:
                    self.ending[next(user for user in self.users[a] if user not in self.place)] += 1
            for user in self.users[chosen]:
                waiting[user] -= 1
                self.start[user] = max(self.start[user], done)
                if not waiting[user]:
                    ready.add(user)
            clock += 1 / _PER_CYCLE
        for _, index in self.program.outputs:  # an output may be a constant
            if index not in self.place:
                append(index)
        return order
