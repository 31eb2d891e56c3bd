"""``convert``: a plain torch network as a network over moments, by ``torch.fx``, over the same parameters.

Every node that a random value reaches is replaced by its twin
(:mod:`momentgen.nn.twins`) or named in one error; nothing is passed through
because it was not understood.
"""

from __future__ import annotations

import builtins
import itertools
import operator
import re
import traceback
from typing import Any

import torch
from torch import fx
from torch.nn.utils import parametrize

import momentgen.nn
from momentgen.errors import MomentgenError
from momentgen.nn import twins
from momentgen.nn.activation import generated_op, missing
from momentgen.nn.layer import Layer
from momentgen.nn.method import Method, set_method
from momentgen.nn.unsupported import without_rule

__all__ = ["ConvertError", "convert"]

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


class ConvertError(MomentgenError):
    """A network cannot be converted; the text names each part that cannot, and its place."""


def convert(module: torch.nn.Module, method: Method = "ap2") -> torch.nn.Module:
    """The network over moments that computes what ``module`` computes, over the same parameters and buffers.

    Args:
        module: a plain torch module; functional calls, residuals, concatenation, pooling, batch norm, dropout and
            modules used twice are understood.  It is not changed.
        method: how it propagates where no :class:`momentgen.method` context says otherwise.

    Returns:
        A module that takes tensors or :class:`~momentgen.Moments` where the original takes tensors, and returns
        moments.  Parameters are the same objects, state dicts have the same keys.  Training and evaluation mode are
        its own.  The module's hooks are not called.

    Raises:
        ConvertError: naming every node without a rule and its place, or the line at which Python control flow depends
            on a value.

    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> network = convert(plain)
    >>> network(torch.zeros(1, 2)).mean.shape, network.state_dict().keys() == plain.state_dict().keys()
    (torch.Size([1, 3]), True)
    """
    if isinstance(module, Layer):
        return set_method(module, method)
    _refuse_hooks(module)
    if twins.module_twin(module) or _is_torchs(module):
        try:
            return set_method(_checked_twin(module, method), method)
        except MomentgenError as error:
            raise ConvertError(f"convert: {error}") from error
    graph, fixed_mode = _trace_both_modes(module)
    root = _shadow(module, {})
    _Rewriter(module, root, graph, method).run(fixed_mode)
    network = fx.GraphModule(root, graph, class_name=f"Moments{type(module).__name__}")
    network._modules, network._parameters, network._buffers = root._modules, root._parameters, root._buffers
    network.train(module.training)
    flags = {name: part.training for name, part in module.named_modules()}
    for name, part in network.named_modules():
        part.training = flags.get(name, module.training)
    return set_method(network, method)


# --------------------------------------------------------------------- tracing


class _Proxy(fx.Proxy):
    """Keeps `x += y` apart from `x + y`, which fx does not: other names of x see the one and not the other."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(self) -> None:
        # A pickled network is traced again when it is loaded: what stands in it must then stay whole.
        super().__init__(autowrap_functions=(twins.function_rule, twins.item, twins.moved, twins.query))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, Layer) or twins.module_twin(m):
            return True
        if parametrize.is_parametrized(m) or isinstance(m, _CONTAINERS):
            return False
        return super().is_leaf_module(m, module_qualified_name)


def _trace(module: torch.nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(module)
    except fx.proxy.TraceError as error:
        raise ConvertError(
            f"convert: Python control flow in {type(module).__name__} depends on a value, at {_user_line(error)} "
            f"({error}); a network over moments has one graph for all values"
        ) from error
    except MomentgenError:
        raise
    except Exception as error:
        raise ConvertError(
            f"convert: {type(module).__name__} cannot be traced, at {_user_line(error)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _user_line(error: BaseException) -> str:
    inner = f"{torch.__path__[0]}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((inner, "<"))]
    frames = [f for f in frames if f.filename != __file__]
    if not frames:
        return "an unknown line"
    return f"{frames[-1].filename}:{frames[-1].lineno}: `{frames[-1].line}`"


def _trace_both_modes(module: torch.nn.Module) -> tuple[fx.Graph, bool | None]:
    """The graph, and the mode to which it is bound if the two modes have different graphs."""
    flags = [(part, part.training) for part in module.modules()]
    try:
        present = _trace(module)
        for part, flag in flags:
            part.training = not flag
        try:
            other = _trace(module)
        except ConvertError:
            return present, module.training
    finally:
        for part, flag in flags:
            part.training = flag
    if len(present.nodes) != len(other.nodes):
        return present, module.training
    for node, twin in zip(present.nodes, other.nodes, strict=True):
        if (node.op, node.target) != (twin.op, twin.target):
            return present, module.training
        if str(node.args) == str(twin.args) and str(node.kwargs) == str(twin.kwargs):
            continue
        if twins.NAMES.get(node.target) not in twins.DROPOUTS:
            return present, module.training
        node.meta["follows_training"] = True
    return present, None


def _shadow(module: torch.nn.Module, seen: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """The module's tree: layers replaced by their twins, all else by bare modules that hold the same parameters."""
    if id(module) in seen:
        return seen[id(module)]
    twin = twins.module_twin(module)
    if isinstance(module, Layer) or (twin is None and _is_torchs(module)):
        shadow = module
    elif twin is not None:
        shadow = twins.make_twin(module, twin)
    else:
        shadow = torch.nn.Module()
        shadow.__dict__.update(
            {
                name: value
                for name, value in module.__dict__.items()
                if not isinstance(value, torch.nn.Module) and "hooks" not in name and not callable(value)
            }
        )
        seen[id(module)] = shadow
        shadow._modules = {
            name: None if child is None else _shadow(child, seen) for name, child in module._modules.items()
        }
    seen[id(module)] = shadow
    return shadow


def _is_torchs(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, _CONTAINERS)


def _refuse_hooks(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise ConvertError(
                f"convert: {name or 'the module'} ({type(part).__name__}) has forward hooks, which would not be called;"
                " remove them first (torch.nn.utils.parametrizations replace the hooks of the old weight_norm)"
            )


def _checked_twin(module: torch.nn.Module, method: str, made: torch.nn.Module | None = None) -> Layer:
    """The module's twin (``made``, if there is one); raises if its rule is not built, or it has none as it is."""
    if error := missing(type(module).__name__):
        raise error
    kind = twins.module_twin(module)
    if kind is None:
        why = without_rule(type(module).__name__) if _is_torchs(module) else None
        name = f"{type(module).__module__}.{type(module).__qualname__}"
        raise ConvertError(f"no layer over moments for {name}{f': {why}' if why else ''}")
    twin = made if isinstance(made, Layer) else twins.make_twin(module, kind)
    if method == "ap2":
        twin.check_rule()
    return twin


# ------------------------------------------------------------------- rewriting


class _Rewriter:
    """Replaces the nodes that random values reach."""

    def __init__(self, module: torch.nn.Module, root: torch.nn.Module, graph: fx.Graph, method: str) -> None:
        self.module, self.root, self.graph, self.method = module, root, graph, method
        self.problems: list[str] = []
        self.random: set[fx.Node] = set()

    def run(self, fixed_mode: bool | None) -> None:
        entry = self.add_module("entry", twins.Entry(fixed_mode))
        nodes = list(self.graph.nodes)
        self.resolve_in_place(nodes)
        for node in nodes:
            node.type = None  # annotated as tensors; and as strings they would not pickle
            if node.op == "placeholder":
                self.enter(node, entry)
            elif any(source in self.random for source in node.all_input_nodes) and node.op != "output":
                self.rewrite(node)
        if self.problems:
            listed = "\n".join(f"  {problem}" for problem in self.problems)
            raise ConvertError(f"convert: {type(self.module).__name__} has parts without a rule:\n{listed}")
        self.graph.lint()

    def add_module(self, stem: str, module: torch.nn.Module) -> str:
        name, n = stem, 1
        while hasattr(self.root, name):
            name, n = f"{stem}_{n}", n + 1
        self.root.add_module(name, module)
        return name

    def enter(self, node: fx.Node, entry: str) -> None:
        with self.graph.inserting_after(node):
            entered = self.graph.call_module(entry, (node,))
        node.replace_all_uses_with(entered, delete_user_cb=lambda user: user is not entered)
        self.random.add(entered)

    def resolve_in_place(self, nodes: list[fx.Node]) -> None:
        """Let what is overwritten in place be read from the overwriting node by those that read it later."""
        order = {node: place for place, node in enumerate(nodes)}
        for node in nodes:
            if not self.in_place(node) or not node.all_input_nodes:
                continue
            overwritten = node.all_input_nodes[0]
            for user in list(overwritten.users):
                if order[user] > order[node]:
                    user.replace_input_with(overwritten, node)

    def in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.module.get_submodule(str(node.target)), "inplace", False))
        if node.op == "call_method":
            return bool(re.fullmatch(r"[a-z]\w*[a-z0-9]_", str(node.target)))
        if node.op != "call_function":
            return False
        name = getattr(node.target, "__name__", "")
        own = bool(re.fullmatch(r"[a-z]\w*[a-z0-9]_", name)) or node.target in (
            operator.iadd,
            operator.isub,
            operator.imul,
            operator.itruediv,
        )
        return own or bool(node.kwargs.get("inplace", False))

    def rewrite(self, node: fx.Node) -> None:
        try:
            if node.op == "call_module":
                self.rewrite_module(node)
            else:
                self.rewrite_function(node)
        except (MomentgenError, TypeError) as error:
            self.problems.append(f"{self.place(node)}: {error}")

    def rewrite_module(self, node: fx.Node) -> None:
        module = self.module.get_submodule(str(node.target))
        self.random.add(node)
        if isinstance(module, Layer):
            return
        _checked_twin(module, self.method, self.root.get_submodule(str(node.target)))

    def rewrite_function(self, node: fx.Node) -> None:
        if node.op == "call_function" and node.target is builtins.getattr:
            name, source = str(node.args[1]), node.args[0]
            if name not in twins.QUERIES:
                raise ConvertError(f"no rule for the attribute {name!r} of a random value")
            self.replace(node, twins.query, (name, source), {}, random=False)
            return
        name = str(node.target) if node.op == "call_method" else twins.NAMES.get(node.target, "")
        args, kwargs = node.args, dict(node.kwargs)
        if node.target is operator.getitem:
            self.replace(node, twins.item, args, kwargs)
        elif name in twins.QUERIES:
            self.replace(node, twins.query, (name, *args), kwargs, random=False)
        elif name in twins.DROPOUTS:
            self.dropout(node, name, args, kwargs)
        elif name in twins.MOVES:
            if "input" in kwargs:
                args = (kwargs.pop("input"), *args)
            self.replace(node, twins.moved, (name, *args), kwargs)
        elif self.as_layer(node, name, args, kwargs):
            pass
        elif name in twins.RULES:
            if name == "max":
                operands = (*args, *kwargs.values())
                if len(operands) != 2 or not all(isinstance(x, fx.Node) for x in operands):
                    raise ConvertError("no rule for a maximum along a dimension; use a max pool, or torch.maximum")
            if name in ("maximum", "max"):
                generated_op("maximum", "torch.maximum")
            if "out" in kwargs:
                raise ConvertError("no rule for `out=`")
            self.replace(node, twins.function_rule, (name, *args), kwargs)
        else:
            called = getattr(node.target, "__name__", str(node.target))
            why = without_rule(called)
            raise ConvertError(f"no rule for {called!r} of a random value{f': {why}' if why else ''}")

    def as_layer(self, node: fx.Node, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        source = kwargs.pop("input") if "input" in kwargs else args[0] if args else None
        rest = args if "input" in node.kwargs else args[1:]
        layer = twins.layer_for(name, rest, kwargs)
        if layer is None:
            return False
        if self.method == "ap2":
            layer.check_rule()
        self.replace_by_layer(node, layer, source)
        return True

    def dropout(self, node: fx.Node, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        p = bound.get("p", 0.5)
        training = bound.get("training", name != "alpha_dropout" and name != "feature_alpha_dropout")
        if isinstance(p, fx.Node) or isinstance(training, fx.Node):
            raise ConvertError(f"{name}: expected p and training as numbers")
        if node.meta.get("follows_training"):
            layer: torch.nn.Module = getattr(momentgen.nn, twins.DROPOUTS[name])(p)
        elif not training:
            layer = momentgen.nn.Identity()
        elif name == "dropout":
            layer = twins.AlwaysDropout(p)
        else:
            raise ConvertError(f"{name}: no rule for training=True in evaluation mode")
        self.replace_by_layer(node, layer, bound["input"])

    def replace_by_layer(self, node: fx.Node, layer: torch.nn.Module, source: Any) -> None:
        with self.graph.inserting_before(node):
            new = self.graph.call_module(self.add_module(node.name, layer), (source,))
        self.swap(node, new)

    def replace(self, node: fx.Node, function: Any, args: Any, kwargs: dict[str, Any], random: bool = True) -> None:
        with self.graph.inserting_before(node):
            new = self.graph.call_function(function, tuple(args), kwargs)
        self.swap(node, new, random)

    def swap(self, node: fx.Node, new: fx.Node, random: bool = True) -> None:
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)
        if random:
            self.random.add(new)

    def place(self, node: fx.Node) -> str:
        """Where a node comes from: its module and its line."""
        stack = node.meta.get("nn_module_stack") or {}
        module = next((str(key) for key in reversed(list(stack))), "") if node.op != "call_module" else str(node.target)
        lines = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip()]
        where = ""
        for header, code in itertools.pairwise(lines):
            if header.startswith("File") and not code.startswith("File") and torch.__path__[0] not in header:
                found = re.match(r'File "(.*)", line (\d+)', header)
                where = f", {found[1]}:{found[2]}: `{code}`" if found else ""
        return f"node {node.name!r}{f' in {module}' if module else ''}{where}"
