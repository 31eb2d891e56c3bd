"""A program of a seed: what it takes, a few calls, what it returns."""

import random
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.effects import EFFECTS
from fuzz.functions import PATTERNS, TEMPLATES, Template
from fuzz.program import Given, Program, Step, Value
from momentgen.laws.activations import UNDEFINED

__all__ = ["program"]

#: how often a call is of a kind
_KINDS = {
    "pointwise": 6, "twice": 3, "chain": 2, "over_a_dimension": 2, "arithmetic": 4, "movement": 4, "affine": 4,
    "product": 3, "maximum": 2, "statistic": 2, "normalise": 1, "softmax": 1, "noise": 1, "composite": 1, "write": 2,
    "creation": 0.5,
}  # fmt: skip
_SHAPES_OF_BATCHES = ((2, 3), (2, 3), (3, 1), (2, 4), (1, 3), (2,), (2, 2, 3), (2, 1, 4), (2, 1, 4, 4), (2, 2, 2, 2))
_OTHER_SHAPES = ((3,), (2,), (), (3, 2, 2), (3, 3), (1,))
_DTYPES = {"float32": 12, "float64": 5, "bfloat16": 1.5, "float16": 2}
_CONTAINERS = {"plain": 30, "tuple": 1, "list": 1, "dict": 1, "UserDict": 1, "dataclass": 1}
_MOST_VALUES = 64
_NAMES = "abcdefghijklmnopqrstuvw"


def program(seed: int) -> Program:
    """The program of ``seed``: one to five calls on one to three inputs, one or two outputs."""
    return _Maker(seed).program()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.parts = SimpleNamespace()
        self.scope: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, "self": self.parts}
        self.batched = self.random.random() < 0.8
        self.randomised = self.random.choice((0.05, 0.2)) if self.random.random() < 0.1 else None

    def of(self, weights: dict[str, float]) -> str:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def program(self) -> Program:
        dtype = self.of(_DTYPES)
        given = self.inputs(dtype)
        wanted = self.random.choice((1, 1, 2, 2, 3, 3, 4, 5))
        with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
            torch.manual_seed(self.seed)
            for _ in range(60):
                if len(self.steps) >= wanted:
                    break
                self.call()
        made = [step.value for step in self.steps] or self.values[-1:]
        outputs = made[-1:]
        if len(made) > 1 and self.random.random() < 0.2:
            outputs = [self.random.choice(made[:-1]), *outputs]
        returned = self.of({**_CONTAINERS, "nested": 1})
        if len(outputs) > 1 and returned == "plain":
            returned = "tuple"
        whole = Program(
            self.seed, dtype, tuple(given), tuple(self.steps), tuple(outputs), self.of(_CONTAINERS), returned,
            self.randomised, self.batched,
        )  # fmt: skip
        return whole.cone(*outputs)

    # ------------------------------------------------------------------ inputs

    def inputs(self, dtype: str) -> list[Given]:
        shape = self.random.choice(_SHAPES_OF_BATCHES if self.batched else _OTHER_SHAPES)
        if self.random.random() < 0.06:
            return [self.tokens(shape[:1] + shape[-1:])]
        found: list[Given] = []
        for name in "xyz"[: self.random.choices((1, 2, 3), (6, 3, 1))[0]]:
            text, numbers = self.tensor(shape, dtype)
            known = frozenset((name,))
            if self.random.random() < (0.6 if self.randomised else 0.12):
                known, value = frozenset(), text  # certain
            else:
                value = f"noisy({text}, std={self.random.choice((0.05, 0.3, 0.3, 1.0))})"
            line = (name,) if known else None
            found.append(Given(name, value))
            self.values.append(Value(name, shape, known, line, bool(known), bool(known)))
            self.scope[name] = numbers
        if len(found) > 1 and self.random.random() < 0.2:  # one value, given twice
            found[1] = replace(found[1], same=found[0].name)
            self.values[1] = replace(self.values[0], name=found[1].name)
            self.scope[found[1].name] = self.scope[found[0].name]
        return found

    def tensor(self, shape: tuple[int, ...], dtype: str) -> tuple[str, Tensor]:
        kind = self.random.choice(("zero", "grid", "any", "any"))
        count = int(torch.Size(shape).numel())
        if kind == "zero":
            text = f"torch.zeros({shape}, dtype=torch.{dtype})"
            return text, torch.zeros(shape, dtype=torch.float64)
        draw = (
            (lambda: self.random.choice((-1.0, -0.5, 0.5, 1.0)))
            if kind == "grid"
            else (lambda: self.random.gauss(0, 1))
        )
        numbers = [round(draw(), 2) for _ in range(count)]
        text = f"torch.tensor({numbers}, dtype=torch.{dtype}).reshape({shape})"
        return text, torch.tensor(numbers, dtype=torch.float64).reshape(shape)

    def tokens(self, shape: tuple[int, ...]) -> Given:
        numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5
        self.scope["x"] = numbers
        self.scope["a"] = nn.Embedding(5, 3).double()(numbers).detach()
        self.parts.k0 = None
        known = frozenset(("embedding",) if self.randomised else ())
        line = ("embedding",) if known else None
        value = Value("a", (*shape, 3), known, line, bool(known), False)
        self.steps.append(Step(("a = self.k0(x)",), ("self.k0 = nn.Embedding(5, 3)",), value, ("x",), "embedding"))
        self.values.append(value)
        return Given("x", f"torch.tensor({numbers.tolist()})")

    # ------------------------------------------------------------------- calls

    def call(self) -> None:
        """Try to add one call."""
        kind = self.of(_KINDS)
        if kind in PATTERNS:
            name, templates = kind, PATTERNS[kind]
        else:
            name = self.random.choice(list(TEMPLATES[kind]))
            templates = TEMPLATES[kind][name]
        if not templates or (name in UNDEFINED and self.random.random() < 0.8):
            return
        self.attempt(name, self.random.choice(templates))

    def attempt(self, name: str, template: Template) -> None:
        x, y = self.recent(), self.recent()
        out, part = _NAMES[len(self.steps)], f"k{len(self.steps)}"
        context = dict(self.context(x, y, part), o=out)
        try:
            made = None if template.part is None else template.part.format_map(context)
            lines = template.text.format_map(context).split("\n")
        except KeyError:
            return
        if "{o}" not in template.text:
            lines = [f"{out} = {lines[0]}"]
        known = EFFECTS[template.effect](part, x, y if "{y}" in template.text else x)
        try:
            if made is not None:
                module = eval(made, self.scope)
                real = isinstance(module, nn.Module) or module.is_floating_point()
                setattr(self.parts, part, module.double() if real else module)
            exec("\n".join(lines), self.scope)
        except Exception:
            return
        found = self.scope[out]
        if not self.fits(found):
            return
        if self.randomised and isinstance(getattr(self.parts, part, None), nn.Module) and made is not None:
            exact = known.exact and (template.effect == "linear" or not x.roots)
            normal = not x.roots and template.effect == "linear"
            known = replace(
                known, roots=known.roots | {part}, line=(part,) if normal else None, affine=normal, exact=exact,
                independent=False,
            )  # fmt: skip
        shape = tuple(found.shape)
        if shape != x.shape and template.effect in ("add", "mul", "larger", "pointwise", "scaled"):
            known = replace(known, independent=False, line=None if known.line is None else (*known.line, str(shape)))
        known = replace(known, name=out, shape=shape, tolerance=max(known.tolerance, template.tolerance))
        setup = () if made is None else (_assigned(part, made, module),)
        operands = (x.name, y.name) if "{y}" in template.text else (x.name,)
        self.steps.append(Step(tuple(lines), setup, known, operands, name))
        self.values.append(known)

    def recent(self) -> Value:
        return self.random.choice(self.values[-2:] if self.random.random() < 0.7 else self.values)

    def fits(self, found: Any) -> bool:
        return (
            isinstance(found, Tensor)
            and found.dtype is torch.float64
            and 0 < found.numel() <= _MOST_VALUES
            and bool(found.isfinite().all())
            and found.abs().max().item() < 1e3
        )

    def context(self, x: Value, y: Value, part: str) -> dict[str, Any]:
        free = 1 if self.batched else 0
        rank = len(x.shape)
        context: dict[str, Any] = {"x": x.name, "y": y.name, "w": f"self.{part}", "free": free, "rank": rank, "m": 2}
        context.update({} if rank == 0 else {"last": x.shape[-1], "first": x.shape[0]})
        context.update({} if rank < 2 else {"penultimate": x.shape[-2], "channels": x.shape[1]})
        context["mask"] = f"torch.ones_like({x.name}).cumsum(-1) > 1.5"
        if not self.batched:
            context["whole"] = x.name
        if rank - free >= 2:
            context["matrix"] = x.name
        dims = list(range(free, rank))
        if dims:
            d = self.random.choice(dims)
            context.update(d=d, n=x.shape[d], i=self.random.randrange(x.shape[d]))
            context["index"] = ", ".join([":"] * d + ["-1:"])
            shuffled = dims[:]
            self.random.shuffle(shuffled)
            context["permutation"] = ", ".join(map(str, [*range(free), *shuffled]))
            if len(dims) > 1:
                context["e"] = self.random.choice([k for k in dims if k != d])
        return context


def _assigned(part: str, made: str, module: Any) -> str:
    return f"self.{part} = {made}" if isinstance(module, nn.Module) else f"self.register_buffer({part!r}, {made})"
