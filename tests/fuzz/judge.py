"""A program by every method, against draws of the plain network.

A method's result is right, noted as approximate, refused in an error of momentgen, or a fault.  Which methods must be
right about which value follows from what they document:

* all: a result in the form, shapes and dtypes of the plain network's, with float32 for half precision by ``ap2`` and
  the default; no exception but momentgen's; no NaN where draws have none; no σ of 0 where draws vary, and none where
  they do not.
* ``ap1``: the plain network's output bit for bit but rounding, unless the network makes noise.
* ``sample``, ``local`` without random parameters: the plain network on the same draw.
* ``ap2``: a value that is a function of values which it may take as independent (``Value.exact``).
* the default: every value, within its stated errors.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import momentgen
from fuzz.program import Program, Value, leaves_of
from momentgen import Moments
from momentgen.errors import MomentgenError
from momentgen.inference import MeanField, randomise
from momentgen.laws import draw, listening

__all__ = ["METHODS", "Verdict", "judged", "minimal"]

METHODS = ("ap1", "ap2", "sample", "local", "default")

#: draws at first, and where a result differs from them
_FEW, _MANY = 2_000, 100_000
#: draws at a time
_CHUNK = 20_000
#: draws of a network that torch.vmap cannot run
_SLOW = 1_000
#: standard errors within which draws may be off, of the few and of the many
_ERRORS = {False: 1.0, True: 5.0}
#: relative error of σ that draws must not exceed to tell anything, of the few and of the many
_SHARP = {False: 0.1, True: 0.02}
#: stated errors by which an answer that has some may be off
_STATED = 5.0
#: in refusals that say that examples interact, or that a network cannot run on one
_ABOUT_BATCHES = ("run on each example alone", "another result within the batch", "batch in front")
#: in the note on values that no row changed
_STILL = "the same in all"
#: notes that do not say that numbers are approximate
_NOT_APPROXIMATE = ("run one example after another", "integrated by quadrature", "controlled: ")


@dataclass(frozen=True)
class Verdict:
    """What came of one method.

    Attributes:
        method: its name.
        outcome: ``right``, ``noted``, ``refused``, ``not judged`` (neither documented nor decided by draws), ``fault``.
        kind: of a fault: ``exception``, ``form``, ``nan``, ``zero``, ``mean``, ``std``, ``refusal`` (which says
            what is not so); of a refusal: its error.
        text: what was found, and what draws say.
        place: of a fault, the output.
    """

    method: str
    outcome: str
    kind: str = ""
    text: str = ""
    place: int = 0


class Draws:
    """Draws of the plain network in float64, as many as were asked for.

    Attributes:
        noisy: whether the network makes noise of its own.
    """

    def __init__(self, program: Program) -> None:
        net, arguments = program.made()
        self.program = program
        self.net = copy.deepcopy(net).double()
        self.parameters = {name: value.detach() for name, value in self.net.named_parameters()}
        self.form = arguments
        self.given = list({id(leaf): leaf for leaf in leaves_of(arguments)}.values())
        self.noisy = any(root.startswith("k") for value in program.outputs for root in value.roots)

    def with_values(self, values: list[Tensor]) -> Any:
        """The arguments with these in the place of moments and tensors."""
        known = {id(old): new for old, new in zip(self.given, values, strict=True)}
        return _replaced(self.form, known)

    def one(self, values: list[Tensor], parameters: dict[str, Tensor]) -> list[Tensor]:
        out = torch.func.functional_call(self.net, parameters, tuple(self.with_values(values)))
        return [leaf.double() for leaf in leaves_of(out)]

    def samples(self, n: int) -> tuple[list[Tensor], list[Tensor]]:
        """Draws of what is random, flattened, shape ``(n, all)``, and of every output, shape ``(n, ...)``."""
        generator = torch.Generator().manual_seed(n)
        random: list[Tensor] = []
        values: list[Tensor] = []
        places: list[int | None] = []
        for part in self.given:
            if isinstance(part, Moments):
                noise = torch.randn((n, *part.mean.shape), generator=generator, dtype=torch.float64)
                random.append(noise.reshape(n, -1))
                values.append(part.mean.double() + part.var.double().sqrt() * noise)
                places.append(0)
            else:
                values.append(_wide(part))
                places.append(None)
        parameters = dict(self.parameters)
        of_parameters: dict[str, int | None] = dict.fromkeys(parameters)
        if self.program.randomised is not None:
            for name, value in self.parameters.items():
                noise = torch.randn((n, *value.shape), generator=generator, dtype=torch.float64)
                random.append(noise.reshape(n, -1))
                parameters[name], of_parameters[name] = value + self.program.randomised * noise, 0
        if not random:  # something must have a dimension of draws
            random.append(torch.zeros(n, 1, dtype=torch.float64))

        def run(_: Tensor, values: list[Tensor], parameters: dict[str, Tensor]) -> list[Tensor]:
            return self.one(values, parameters)

        in_dims = (0, places, of_parameters)
        try:
            found = torch.vmap(run, in_dims=in_dims, randomness="different")(random[0], values, parameters)
        except RuntimeError:  # some functions cannot be vectorised: fewer draws
            random = [part[:_SLOW] for part in random]
            rows = [
                run(
                    random[0][k],
                    [value if place is None else value[k] for value, place in zip(values, places, strict=True)],
                    {name: v if of_parameters[name] is None else v[k] for name, v in parameters.items()},
                )
                for k in range(len(random[0]))
            ]
            found = [torch.stack(parts) for parts in zip(*rows, strict=True)]
        return random, [part.expand(len(random[0]), *part.shape[1:]) for part in found]

    def first(self) -> Tensor:
        """The argument whose first dimension may be the batch, at its mean."""
        found = next((part for part in self.given if isinstance(part, Moments)), self.given[0])
        return found.mean if isinstance(found, Moments) else found

    def is_one_example(self) -> bool:
        """Whether the arguments are one example, so that nothing is about a batch: a number, or a vector as a whole."""
        return self.first().dim() == 0 or (self.first().dim() == 1 and not self.apart())

    def apart(self) -> bool:
        """Whether each example of a batch, run alone as a batch of one, has the result that it has in the batch."""
        generator = torch.Generator().manual_seed(1)
        first = self.first()
        batch = first.shape[0] if first.dim() else 0
        values = []
        for part in self.given:
            mean = _wide(part.mean if isinstance(part, Moments) else part)
            if isinstance(part, Moments):
                mean = mean + torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            values.append(mean)
        try:
            together = self.one(values, self.parameters)
            for k in range(batch):
                mine = [v[k : k + 1] if v.dim() and len(v) == batch else v for v in values]
                alone = self.one(mine, self.parameters)
                if not all(_same(a, b[k : k + 1]) for a, b in zip(alone, together, strict=True)):
                    return False
        except Exception:
            return False
        return batch > 0


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _replaced(nest: Any, known: dict[int, Any]) -> Any:
    """A nest of arguments with some leaves replaced."""
    if id(nest) in known:
        return known[id(nest)]
    if type(nest) in (tuple, list):
        return type(nest)([_replaced(item, known) for item in nest])
    if hasattr(nest, "keys"):
        return type(nest)({key: _replaced(value, known) for key, value in nest.items()})
    if hasattr(nest, "__dataclass_fields__"):
        return type(nest)(*[_replaced(getattr(nest, name), known) for name in nest.__dataclass_fields__])
    return nest


@dataclass
class Truth:
    """Moments of one output by draws.

    Attributes:
        mean: of each element.
        std: likewise.
        error: standard error of the mean.
        share: relative standard error of σ.
        finite: whether all draws are.
        errors: standard errors within which they may be off.
    """

    mean: Tensor
    std: Tensor
    error: Tensor
    share: Tensor
    finite: bool
    errors: float


def truths(draws: Draws, n: int) -> list[Truth]:
    """Of every output."""
    chunks = [draws.samples(min(n, _CHUNK) + k) for k in range(max(1, n // _CHUNK))]
    return [_truth(torch.cat(parts)) for parts in zip(*(chunk[1] for chunk in chunks), strict=True)]


def _truth(out: Tensor) -> Truth:
    n = len(out)
    if not out.isfinite().all():
        gone = torch.full(out.shape[1:], torch.nan, dtype=torch.float64)
        return Truth(gone, gone, gone, gone, False, 0.0)
    mean = out.mean(0)
    off = out - mean
    var = off.square().mean(0)
    fourth = off.square().square().mean(0)
    share = ((fourth - var.square()).clamp_min(0) / n).sqrt() / (2 * var)
    return Truth(mean, var.sqrt(), (var / n).sqrt(), share.nan_to_num(torch.inf), True, _ERRORS[n > _FEW])


# ------------------------------------------------------------------- verdicts


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"), torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def judged(program: Program, methods: tuple[str, ...] = METHODS) -> list[Verdict]:
    """Verdicts on a program, one per method."""
    with _quiet():
        draws = Draws(program)
        found = truths(draws, _FEW)
        many: list[list[Truth]] = []

        def sharper() -> list[Truth]:
            if not many:
                many.append(truths(draws, _MANY))
            return many[0]

        return [_judged(program, draws, method, found, sharper) for method in methods]


def _judged(
    program: Program, draws: Draws, method: str, few: list[Truth], sharper: Callable[[], list[Truth]]
) -> Verdict:
    net, arguments = program.made()
    plain, plain_arguments = program.made()
    network = net if program.randomised is None else randomise(net, MeanField(std=program.randomised))
    network = momentgen.convert(network, None if method == "default" else method)  # type: ignore[arg-type]
    if program.randomised is not None and method != "default":
        network.set_method(method)  # type: ignore[operator]
    torch.manual_seed(1)
    try:
        with listening() as notes:
            out = network(*arguments)
    except MomentgenError as error:
        of_batches = any(words in str(error) for words in _ABOUT_BATCHES)
        if of_batches and not draws.noisy and (draws.is_one_example() or draws.apart()):
            return Verdict(method, "fault", "refusal", f"untrue: {error}")
        return Verdict(method, "refused", type(error).__name__, str(error))
    except Exception as error:
        if _plain_dtypes(plain, plain_arguments) is None:
            return Verdict(method, "not judged", text="plain torch cannot run it in this dtype")
        return Verdict(method, "fault", "exception", f"{type(error).__name__}: {error}")
    leaves = leaves_of(out)
    form = _form_of(program, draws, out, leaves, few)
    if form is not None:
        return Verdict(method, "fault", "form", form)
    if method in ("ap1", "sample", "local"):
        return _as_plain(program, draws, method, leaves, plain, plain_arguments)
    dtypes, own = _plain_dtypes(plain, plain_arguments), [leaf.mean.dtype for leaf in leaves]
    if dtypes is not None:  # moments of half-precision outputs are float32
        dtypes = [torch.promote_types(dtype, torch.float32) for dtype in dtypes]
    if dtypes is not None and dtypes != own:
        return Verdict(method, "fault", "form", f"{own}, plain torch has {dtypes}")
    approximate = [note for note in notes if not any(words in note for words in _NOT_APPROXIMATE)]
    still = any(_STILL in note for note in notes)
    outcomes = []
    for place, (value, leaf) in enumerate(zip(program.outputs, leaves, strict=True)):
        verdict = _compared(program, method, value, leaf, few[place], place, bool(approximate), still)
        if verdict.outcome == "fault" and verdict.kind != "nan":
            verdict = _compared(program, method, value, leaf, sharper()[place], place, bool(approximate), still)
        if verdict.outcome == "fault":
            return verdict
        outcomes.append(verdict)
    worst = min(outcomes, key=lambda verdict: ("noted", "not judged", "right").index(verdict.outcome))
    return Verdict(method, worst.outcome, text="; ".join(approximate))


def _plain_dtypes(plain: torch.nn.Module, arguments: Any) -> list[torch.dtype] | None:
    """The dtypes that plain torch returns at the means; None where it cannot run the network in its dtype."""
    means = {id(leaf): leaf.mean for leaf in leaves_of(arguments) if isinstance(leaf, Moments)}
    try:
        return [leaf.dtype for leaf in leaves_of(plain(*_replaced(arguments, means)))]
    except Exception:
        return None


def _form_of(program: Program, draws: Draws, out: Any, leaves: list[Any], truth: list[Truth]) -> str | None:
    """What is wrong with the form of a result."""
    if len(leaves) != len(truth):
        return f"{len(leaves)} results, expected {len(truth)}"
    kinds = {"list": "list", "dict": "dict", "UserDict": "UserDict", "dataclass": "Parts", "tuple": "tuple"}
    expected = kinds.get(program.returned)
    if expected is not None and type(out).__name__ != expected:
        return f"{type(out).__name__} for a {expected}"
    for leaf, known in zip(leaves, truth, strict=True):
        if not isinstance(leaf, Moments):
            return f"{type(leaf).__name__} where Moments were expected"
        if leaf.mean.shape != known.mean.shape or leaf.var.shape != known.mean.shape:
            return f"shapes {tuple(leaf.mean.shape)} and {tuple(leaf.var.shape)}, expected {tuple(known.mean.shape)}"
        if leaf.mean.dtype != leaf.var.dtype:
            return f"a mean of {leaf.mean.dtype} and a variance of {leaf.var.dtype}"
    return None


def _rounding(program: Program, scale: float) -> float:
    """How far rounding may carry a result in the program's dtype."""
    return 8 * torch.finfo(getattr(torch, program.dtype)).eps * max(scale, 1.0)


def _as_plain(
    program: Program, draws: Draws, method: str, leaves: list[Moments], plain: torch.nn.Module, arguments: Any
) -> Verdict:
    """A method that computes what the plain network does: at the means, or on a draw."""
    if program.randomised is not None or (method == "ap1" and draws.noisy):
        finite = all(bool(leaf.mean.isfinite().all()) for leaf in leaves)
        return Verdict(method, "not judged") if finite else Verdict(method, "fault", "nan", "not finite")
    torch.manual_seed(1)
    given = list({id(leaf): leaf for leaf in leaves_of(arguments)}.values())
    values = [
        part if isinstance(part, Tensor) and not isinstance(part, Moments)
        else part.mean if method == "ap1" else draw(part)
        for part in given
    ]  # fmt: skip
    try:
        out = plain(*_replaced(arguments, {id(old): new for old, new in zip(given, values, strict=True)}))
    except Exception:
        return Verdict(method, "not judged", text="plain torch cannot run it in this dtype")
    for place, (leaf, truth) in enumerate(zip(leaves, leaves_of(out), strict=True)):
        if leaf.var.abs().max() != 0:
            return Verdict(method, "fault", "std", f"variance {leaf.var.max():.3g}, documented 0", place)
        if leaf.mean.dtype != truth.dtype:
            return Verdict(method, "fault", "form", f"{leaf.mean.dtype}, plain torch has {truth.dtype}", place)
        allowed = _rounding(program, float(truth.abs().nan_to_num(0).max()))
        if not torch.allclose(leaf.mean, truth, rtol=0, atol=allowed, equal_nan=True):
            text = f"{_shown(leaf.mean)}, the plain network {_shown(truth)}"
            return Verdict(method, "fault", "mean", text, place)
    return Verdict(method, "right")


def _compared(
    program: Program,
    method: str,
    value: Value,
    found: Moments,
    truth: Truth,
    place: int,
    approximate: bool,
    still: bool,
) -> Verdict:
    """One output against draws; ``still`` where a note says that a σ of 0 may be that of a rare event."""
    if not truth.finite:
        return Verdict(method, "not judged", text="draws are not finite")
    mean, std = found.mean.double(), found.var.double().sqrt()
    if not bool(mean.isfinite().all() and found.var.isfinite().all() and (found.var >= 0).all()):
        return Verdict(method, "fault", "nan", f"mean {_shown(mean)}, variance {_shown(found.var)}", place)
    rounding = _rounding(program, float((truth.mean.abs() + truth.std).max()))
    told = (truth.share < _SHARP[truth.errors > 1]) & (truth.std > rounding)
    off_mean, off_std = (mean - truth.mean).abs(), (std - truth.std).abs()
    text = f"mean {_shown(mean)}, σ {_shown(std)}; draws {_shown(truth.mean)}, {_shown(truth.std)}"
    gone = told & (std < 1e-3 * truth.std)
    if gone.any() and not still:
        return Verdict(method, "fault", "zero", text, place)
    told = told & ~gone
    # The default must be right about every value, and states how nearly.
    strict, allowed = (True, 0.0) if method == "default" else (value.exact, value.tolerance)
    stated_mean, stated_std = _stated(found)
    within_mean = off_mean <= allowed * truth.std + truth.errors * truth.error + stated_mean + rounding
    within_std = off_std <= (allowed + truth.errors * truth.share.clamp_max(1)) * truth.std + stated_std + rounding
    for kind, within in (("mean", within_mean), ("std", within_std)):
        if strict and (told & ~within).any():
            return Verdict(method, "noted") if approximate else Verdict(method, "fault", kind, text, place)
    if not value.roots and bool((std > rounding).any()):
        return Verdict(method, "fault", "std", text, place)
    if approximate or bool(gone.any()):
        return Verdict(method, "noted")
    return Verdict(method, "right" if (strict and bool(told.any())) or not value.roots else "not judged")


def _stated(found: Moments) -> tuple[Tensor | float, Tensor | float]:
    """How far mean and σ may be off by the errors that the method states; 0 of a method that states none."""
    if found.std_error is None or found.mean_error is None:
        return 0.0, 0.0
    return _STATED * found.mean_error.double(), _STATED * found.std_error.double()


def _shown(numbers: Tensor) -> str:
    flat = numbers.flatten().tolist()
    return "[" + ", ".join(f"{number:.4g}" for number in flat[:6]) + (", …]" if len(flat) > 6 else "]")


def minimal(program: Program, verdict: Verdict) -> tuple[Program, Verdict]:
    """The part of a program up to the first value at which a fault shows, and what shows there."""
    candidates = [program.cone(step.value) for step in program.steps] + [program]
    plain = [_plain(one) for one in candidates]
    for candidate in (*plain, *candidates):
        if not candidate.steps and candidate.taken == candidate.returned == "plain":
            continue
        found = judged(candidate, (verdict.method,))[0]
        if found.outcome == "fault" and found.kind == verdict.kind:
            return candidate, found
    return program, verdict


def _plain(program: Program) -> Program:
    """A program without containers."""
    return replace(program, taken="plain", returned="plain" if len(program.outputs) == 1 else "tuple")
