"""The PyTorch renderer: a real graph, accurate to float64, as plain tensor operations.

The form works in any floating dtype and on any device, and autograd runs through
it; the runtime uses it for float64, for second derivatives, and where there is
no compiler.
"""

from __future__ import annotations

from momentgen.compiler.emit._text import with_arguments, with_comment
from momentgen.compiler.emit.header import Header
from momentgen.compiler.real import CONDITIONS, Graph, Node
from momentgen.compiler.stabilise import Stable
from momentgen.rule_inputs import partial_names

__all__ = ["render_torch"]

_INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "=="}


def render_torch(stable: Stable, header: Header, summary: str) -> str:
    """A Python module with ``forward`` and ``backward``, and ``kernel_scalars`` where the float32 kernels need any.

    Args:
        stable: the variant.
        header: the comment that opens the file.
        summary: one line on what the module computes.
    """
    forward, partials = stable.forward64, stable.partials64
    first, first_scalars = _body(forward)
    second, second_scalars = _body(partials)
    outputs = {name: f"t{index}" for name, index in partials.outputs.items()}
    lines = [header.python(), f'"""{summary}"""', "", "from __future__ import annotations", ""]
    if first_scalars | second_scalars:
        lines += ["import math", ""]
    lines += ["import torch", "from torch import Tensor", "", '__all__ = ["backward", "forward"]', "", ""]
    keywords = ["*", *(f"{p}: float" for p in forward.params)] if forward.params else []
    lines += with_arguments(
        "def forward", [*(f"{i}: Tensor" for i in forward.inputs), *keywords], ") -> tuple[Tensor, Tensor]:"
    )
    several = "each input" if len(forward.inputs) > 2 else "the input"
    lines += [f'    """Mean and variance of the output, from mean and variance of {several}."""', *first]
    lines += [f"    return {', '.join(f't{index}' for index in forward.outputs.values())}", "", ""]
    gradients = ["grad_mean: Tensor", "grad_var: Tensor"]
    lines += with_arguments(
        "def backward",
        [*(f"{i}: Tensor" for i in partials.inputs), *gradients, *keywords],
        f") -> tuple[{', '.join(['Tensor'] * len(partials.inputs))}]:",
    )
    several = "each input" if len(partials.inputs) > 2 else "the input"
    lines += [
        f'    """Gradients in mean and variance of {several}, from those in mean and variance of the output."""',
        *second,
    ]
    pairs = partial_names(partials.inputs)
    for name, (mean, var) in pairs.items():
        lines.append(f"    grad_{name}_in = grad_mean * {outputs[mean]} + grad_var * {outputs[var]}")
    lines += [f"    return {', '.join(f'grad_{name}_in' for name in pairs)}", ""]
    if stable.scalars_source:
        lines[lines.index('__all__ = ["backward", "forward"]')] = '__all__ = ["backward", "forward", "kernel_scalars"]'
        lines += ["", *with_arguments("def kernel_scalars", keywords, ") -> tuple[float, ...]:")]
        lines.append(
            '    """Numbers that the float32 kernels take after the parameters, as pairs of hi and lo words."""'
        )
        lines += [f"    {line}".rstrip() for line in stable.scalars_source.splitlines()]
        lines.append("")
    return "\n".join(lines)


def _body(graph: Graph) -> tuple[list[str], bool]:
    """One line a node, and whether the standard math module is needed (for nodes of parameters alone)."""
    lines: list[str] = []
    names: dict[int, str] = {}
    tensors: set[int] = set()
    scalars = False
    for index in graph.live():
        node = graph.nodes[index]
        tensor = node.kind == "input" or any(a in tensors for a in node.args)
        if tensor:
            tensors.add(index)
        if node.kind in ("input", "param"):
            names[index] = node.payload
        elif node.kind == "const":
            names[index] = repr(float(node.payload))
        elif node.kind == "exp_factor":
            names[index] = "1.0"  # the mantissa carries the whole exponential here
        else:
            text, needs_math = _expression(
                node, [names[a] for a in node.args], [a in tensors for a in node.args], tensor, graph.inputs[0]
            )
            scalars |= needs_math
            names[index] = f"t{index}"
            lines += with_comment(f"t{index} = {text}", graph.comments.get(index), "#")
    for index in dict.fromkeys(graph.outputs.values()):
        if graph.nodes[index].kind == "input":  # an output must not be the input's own tensor
            lines.append(f"    t{index} = {names[index]} * 1.0")
        if index not in tensors:  # an output that does not depend on the input still has its shape
            lines.append(f"    t{index} = torch.full_like({graph.inputs[0]}, {names[index]})")
    return lines, scalars


def _expression(node: Node, args: list[str], of_tensor: list[bool], tensor: bool, like: str) -> tuple[str, bool]:
    kind = node.kind
    if kind in _INFIX:
        return f"{args[0]} {_INFIX[kind]} {args[1]}", False
    if kind == "madd":
        return f"{args[0]} * {args[1]} + {args[2]}", False
    if kind == "recip":
        return f"1.0 / {args[0]}", False
    if kind == "over":
        return f"{args[0]} / {args[1]}", False
    if kind == "over_one_plus":
        return f"{args[0]} / (1.0 + {args[1]})", False
    if kind == "times_exp_mantissa":
        return f"{args[0]} * {'torch' if of_tensor[1] else 'math'}.exp({args[1]})", not of_tensor[1]
    if kind == "half_square":
        return f"-0.5 * {args[0]} * {args[0]}", False
    if kind == "neg":
        return f"-{args[0]}", False
    if kind in CONDITIONS:
        if not tensor:
            word = {"and": f"{args[0]} and {args[-1]}", "or": f"{args[0]} or {args[-1]}", "not": f"not {args[0]}"}
            return word[kind], False
        return {"and": f"{args[0]} & {args[-1]}", "or": f"{args[0]} | {args[-1]}", "not": f"~{args[0]}"}[kind], False
    if kind == "select":
        if not of_tensor[0]:
            return f"{args[1]} if {args[0]} else {args[2]}", False
        if not any(of_tensor[1:]):  # of two numbers, torch.where makes the default dtype, float32
            return f"torch.where({args[0]}, torch.full_like({like}, {args[1]}), {args[2]})", False
        return f"torch.where({args[0]}, {args[1]}, {args[2]})", False
    if (
        kind == "abs" and tensor
    ):  # not torch.abs, whose derivative at 0 is 0: at a mean of 0 all selects are on this side
        return f"torch.where({args[0]} < 0.0, -{args[0]}, {args[0]})", False
    function = {"round": "round", "sqrt": "sqrt", "exp_mantissa": "exp", "abs": "abs"}[kind]
    if tensor:
        return f"torch.{function}({args[0]})", False
    return (f"abs({args[0]})", False) if kind == "abs" else (f"math.{function}({args[0]})", True)
