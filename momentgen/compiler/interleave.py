"""An order that keeps a superscalar core busy: what comes next is what the longest chain waits for.

Between ``passes``, whose order (depth first) is read, evaluated and given to the GPU's assembler, and the C renderer:
compilers keep the order of arithmetic in a vector loop about as it is written, and a core looks only some hundred
operations ahead.  Bits do not depend on the order.
"""

from __future__ import annotations

from momentgen.compiler.passes import reorder
from momentgen.compiler.program import Op, Program

__all__ = ["interleave"]

#: cycles until a result can be used, about what x86 cores of the last ten years take
_LATENCY = {Op.DIV: 12, Op.SQRT: 20, Op.SELECT: 2, **dict.fromkeys((Op.ADD, Op.SUB, Op.MUL, Op.FMA), 4)}
_LATENCY |= dict.fromkeys((Op.LT, Op.LE, Op.EQ), 4)
_LEAVES = (Op.INPUT, Op.PARAM, Op.CONST_F32, Op.CONST_I32)
_PER_CYCLE = 2.0  # operations that begin in a cycle
#: values alive at a time, from where on what ends one comes first: 32 registers hold constants too
_ALIVE = 20


def interleave(program: Program) -> Program:
    """The same program, ordered by the length of what follows; each constant stands before its first use.

    List scheduling: at every step, of the operations whose operands are there, the one with the longest chain of
    latencies after it, or, where many values are alive, the one that ends most of them.

    >>> from momentgen.compiler.program import Builder
    >>> b = Builder("f", inputs=("x", "y"))
    >>> x, y = b.input("x"), b.input("y")
    >>> b.output("z", b.add(b.mul(b.mul(x, x), x), b.mul(b.mul(y, y), y)))
    >>> [ins.args for ins in interleave(b.build()).instructions if ins.op is Op.MUL]  # x x, y y, then the cubes
    [(0, 0), (1, 1), (0, 2), (1, 3)]
    """
    instructions = program.instructions
    users: list[list[int]] = [[] for _ in instructions]
    operands = [tuple({a for a in ins.args if instructions[a].op not in _LEAVES}) for ins in instructions]
    for index, needed in enumerate(operands):
        for a in needed:
            users[a].append(index)
    latency = [_LATENCY.get(ins.op, 1) for ins in instructions]
    after = [0] * len(instructions)
    for index in reversed(range(len(instructions))):
        after[index] = latency[index] + max((after[u] for u in users[index]), default=0)

    waiting = [len(needed) for needed in operands]
    uses = [len(found) for found in users]
    start = [0.0] * len(instructions)  # when the operands are there
    ready = {i for i, ins in enumerate(instructions) if ins.op not in _LEAVES and not waiting[i]}
    order: list[int] = [i for i, ins in enumerate(instructions) if ins.op in (Op.INPUT, Op.PARAM)]
    placed = set(order)
    alive, clock = 0, 0.0

    def ended(index: int) -> int:
        return sum(uses[a] == 1 for a in operands[index])

    while ready:
        if alive >= _ALIVE:
            chosen = max(ready, key=lambda i: (ended(i), -start[i], after[i], -i))
        else:
            clock = max(clock, min(start[i] for i in ready))
            chosen = max((i for i in ready if start[i] <= clock), key=lambda i: (after[i], ended(i), -i))
        ready.remove(chosen)
        for a in instructions[chosen].args:
            if a not in placed and instructions[a].op in _LEAVES:
                placed.add(a)
                order.append(a)
        placed.add(chosen)
        order.append(chosen)
        alive += 1 - ended(chosen)
        for a in operands[chosen]:
            uses[a] -= 1
        done = max(clock, start[chosen]) + latency[chosen]
        for user in users[chosen]:
            waiting[user] -= 1
            start[user] = max(start[user], done)
            if not waiting[user]:
                ready.add(user)
        clock += 1 / _PER_CYCLE
    order += [index for _, index in program.outputs if index not in placed]  # an output that is a constant
    return reorder(program, order)
