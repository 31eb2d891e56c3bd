"""``monte_carlo``: mean and variance of every layer by sampling, in bounded memory.

Samples are merged as they come, by the update of Chan, Golub & LeVeque (1979) in
float64.  Memory is that of one chunk and two numbers per unit, for any n.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from momentgen.errors import InputError
from momentgen.laws.border import method
from momentgen.laws.controlled.facts import close
from momentgen.laws.controlled.network import generators
from momentgen.laws.kept import Kept
from momentgen.laws.law import Law
from momentgen.laws.nests import tensors_in
from momentgen.laws.values import as_moments, certain, draw, lower
from momentgen.nn.tables import Table, range_of, shown
from momentgen.progress import progress_bar
from momentgen.runtime import JointMoments, Moments

__all__ = ["MonteCarlo", "RunningMoments", "monte_carlo"]

#: how far off a draw is that should change no other, in differences of draws
_FAR: Final = 1e3


class RunningMoments:
    """Mean and variance of samples that come in chunks.

    >>> running = RunningMoments()
    >>> for chunk in torch.tensor([1.0, 2.0, 3.0, 6.0]).view(2, 2, 1):
    ...     running.update(chunk)
    >>> running.moments()
    Moments(mean=tensor([3.], dtype=torch.float64), var=tensor([4.6667], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def update(self, chunk: Tensor) -> None:
        """Take in samples along the first dimension."""
        chunk = chunk.detach().double()
        mean = chunk.mean(0)
        self._merge(chunk.shape[0], mean, (chunk - mean).square().sum(0))

    def add(self, found: Moments, count: int) -> None:
        """Take in what so many samples gave, as :meth:`moments` says it."""
        self._merge(count, found.mean, found.var * (count - 1))

    def _merge(self, n: int, mean: Tensor, squares: Tensor) -> None:
        if self._mean is None or self._squares is None:
            self.count, self._mean, self._squares = n, mean, squares
            return
        total = self.count + n
        shift = mean - self._mean
        self._mean = self._mean + shift * (n / total)
        self._squares = self._squares + squares + shift.square() * (self.count * n / total)
        self.count = total

    def moments(self) -> Moments:
        """Mean and unbiased variance, in float64.

        Raises:
            InputError: of fewer than two samples.
        """
        if self._mean is None or self._squares is None or self.count < 2:
            raise InputError(f"RunningMoments: expected at least 2 samples, got {self.count}")
        return Moments(self._mean, self._squares / (self.count - 1))


@dataclass(repr=False)
class MonteCarlo:
    """What sampling found; prints as a table of ranges, with the largest standard error of a mean.

    Args:
        n: number of samples.
        output: moments of the network's output, float64, shaped as the output.
        layers: moments of each layer's output by its name in the network; a layer called more than once has its later
            calls as ``NAME:1``, ``NAME:2``.  Where several draws went through in one call, layers without the batch in
            front of their output are left out.
        expected: means and variances of the functions asked for.
    """

    n: int
    output: Moments
    layers: dict[str, Moments]
    expected: dict[str, Moments] = field(default_factory=dict)

    def __repr__(self) -> str:
        more = f", expected={list(self.expected)}" if self.expected else ""
        shape = tuple(self.output.mean.shape)
        return f"MonteCarlo(n={self.n}, output of shape {shape}, {len(self.layers)} layers{more})"

    def __str__(self) -> str:
        columns = (
            "layer",
            "shape",
            "mean: least",
            "average",
            "largest",
            "± at most",
            "std: least",
            "average",
            "largest",
        )
        made = Table(columns, words=2, title=f"{self.n:,} samples")
        rows = [*self.layers.items(), ("(output)", self.output), *((f"E {k}", m) for k, m in self.expected.items())]
        for name, found in rows:
            std = found.var.sqrt()
            error = range_of(std)[2] / math.sqrt(self.n)
            shape = " × ".join(map(str, found.mean.shape))
            made.add_row(name, shape, *shown((*range_of(found.mean), error, *range_of(std))))
        return str(made)


def monte_carlo(
    model: torch.nn.Module,
    x: Moments | Tensor,
    n: int = 1000,
    *,
    functions: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    rows: int = 4096,
    seed: int | None = None,
    progress: bool | None = None,
) -> MonteCarlo:
    """Moments of every layer by ``n`` passes that draw everything random.

    Args:
        model: a network over moments, or a plain torch network, which sees the input's noise and its own dropout.  Of
            a network with more arguments pass a module that calls it with them.
        x: the input, batch first.  Moments are drawn as normals, independent unless they have a covariance, or from
            the distribution that :func:`momentgen.noisy` was given.
        n: samples of every input, at least 2.
        functions: of the output, whose expectations are wanted too, such as ``{"posterior": softmax}``.
        rows: how many inputs go through the model at once; bounds the memory.  A model whose examples interact has
            one draw of the batch at a time.  So has one whose examples share noise, as that of random weights, and one
            that takes no other size of batch.
        seed: of the draws; None continues torch's generators.
        progress: whether to show a bar; None shows it on a terminal, where rich is installed.

    Returns:
        :class:`MonteCarlo`; standard errors of its means are ``sqrt(var / n)``.

    The model keeps its training or evaluation mode.  What it keeps from call to call, as a state, is the same before
    every pass; what the last one leaves stays.

    Raises:
        InputError: for bad moments, ``n`` below 2, or an output that is not one tensor or moments.

    >>> layer = torch.nn.ReLU()
    >>> found = monte_carlo(layer, Moments(torch.zeros(1, 1), torch.ones(1, 1)), 100_000, seed=0)
    >>> bool((found.output.mean - 0.3989).abs() < 4 * (found.output.var / found.n).sqrt())
    True
    """
    if n < 2:
        raise InputError(f"monte_carlo: expected n of at least 2, got {n}")
    given = as_moments("monte_carlo", x)
    if not given.mean.dim() or (isinstance(given, JointMoments) and given.factor.dim() == 2):
        raise InputError(f"monte_carlo: expected a batch in dimension 0, got shape {tuple(given.mean.shape)}")
    batch = given.mean.shape[0]
    at_once = max(1, min(n, rows // max(batch, 1)))
    if at_once > 1 and not _independent(model, x, given):
        at_once = 1
    layers: dict[str, RunningMoments] = {}
    expected = {name: RunningMoments() for name in functions or {}}
    output = RunningMoments()
    devices = [given.mean.device] if given.mean.is_cuda else []
    kept, keeps = Kept(model), False
    together: list[int] = []
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices, enabled=seed is not None),
        _recording(model, layers, batch, together),
        method("sample"),
        progress_bar("Monte Carlo", n, progress) as advance,
    ):
        if seed is not None:
            torch.manual_seed(seed)
        done = 0
        while done < n:
            k = min(at_once, n - done)
            together.append(k)
            if keeps:
                kept.restore()
            out = _value(model(_drawn(x, given, k)))
            keeps = keeps or (not done and bool(kept.changed()))
            output.update(out.unflatten(0, (k, batch)) if k > 1 else out[None])
            for name, function in (functions or {}).items():
                value = function(out)
                expected[name].update(value.unflatten(0, (k, batch)) if k > 1 else value[None])
            done += k
            advance(done)
    return MonteCarlo(
        n,
        output.moments(),
        {name: running.moments() for name, running in layers.items()},
        {name: running.moments() for name, running in expected.items()},
    )


def _drawn(x: Moments | Tensor, given: Moments, times: int) -> Tensor:
    """Draws of the batch, one after another; a certain one as it is."""
    if x is given.mean:
        return given.mean.repeat(times, *[1] * (given.mean.dim() - 1))
    if given.noise is not None:
        return torch.cat([draw(given) for _ in range(times)])
    return draw(_repeated(given, times))


class _Watch(TorchFunctionMode):
    """Finds the functions that draw random numbers.

    Attributes:
        sizes: number of values in the result of each; -1 for draws outside of torch's functions.
    """

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._devices, self._state = devices, generators(devices)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.met()
        out = func(*args, **(kwargs or {}))
        self.met(sum(value.numel() for value in tensors_in((out,))))
        return out

    def met(self, size: int = -1) -> None:
        """Record whether anything was drawn since the last look, by a function with so many values in its result."""
        state = generators(self._devices)
        if state != self._state:
            self.sizes.append(size)
        self._state = state


def _independent(model: torch.nn.Module, x: Moments | Tensor, given: Moments) -> bool:
    """Whether several draws may share one call.

    No draw may change the output of another, and the noise that the network draws must grow with their number.
    """
    kept, devices = Kept(model), [given.mean.device] if given.mean.is_cuda else []

    def found(*parts: Tensor) -> tuple[Tensor, list[int]]:
        torch.manual_seed(0)
        with _Watch(devices) as watch:
            out = _value(model(torch.cat(parts)))
        watch.met()
        return out.unflatten(0, (len(parts), -1)), watch.sizes

    with torch.no_grad(), torch.random.fork_rng(devices), method("sample"):
        try:
            first, second = _drawn(x, given, 1), _drawn(x, given, 1)
            away = _FAR * (second - first if x is not given.mean else second + 1)
            besides = second, (second + away).to(first.dtype), (second - away).to(first.dtype)
            fronts = [found(first, beside)[0][0] for beside in besides]
            backs = [found(beside, first)[0][1] for beside in besides]
            alike = all(close(one, part[0]) for part in (fronts, backs) for one in part[1:])
            two, three = found(first, second)[1], found(first, second, second)[1]
            alike = alike and [3 * size for size in two] == [2 * size for size in three] and -1 not in two
            return alike and fronts[0].shape[0] == given.mean.shape[0]
        except Exception:  # whatever it raises of two draws; what it raises of one, it raises again
            return False
        finally:
            kept.restore()


@dataclass(frozen=True)
class DrawnLayers:
    """Moments from draws, each of them a call of the network as the user makes it.

    Args:
        output: moments of the output.
        layers: of each layer, as :class:`MonteCarlo` has them.
        std_errors: of each layer, the standard error of its average standard deviation.
    """

    output: Moments
    layers: dict[str, Moments]
    std_errors: dict[str, float]


#: blocks of draws of which one at a time is left out, for the errors
_BLOCKS = 8


def drawn_layers(
    model: torch.nn.Module, x: Moments | Tensor, n: int, *, seed: int | None, progress: bool | None
) -> DrawnLayers:
    """Moments of every layer from ``n`` draws, and the error of its average standard deviation by a jackknife."""
    batch = as_moments("summary", x).mean.shape[:1].numel()
    count = max(1, min(_BLOCKS, n // 2))
    sizes = [n // count + (block < n % count) for block in range(count)]
    kept, found = Kept(model), []
    for block, size in enumerate(sizes):
        own = None if seed is None else seed + block
        found.append(monte_carlo(model, x, size, rows=batch, seed=own, progress=progress))
        kept.restore()
    names = [name for name in found[0].layers if all(name in one.layers for one in found)]
    errors = {}
    for name in names:
        blocks = [one.layers[name] for one in found]
        left_out = torch.stack(
            [
                _pooled(blocks[:block] + blocks[block + 1 :], sizes[:block] + sizes[block + 1 :]).var.sqrt().mean()
                for block in range(count if count > 1 else 0)
            ]
            or [torch.tensor(math.nan)]
        )
        errors[name] = ((count - 1) * (left_out - left_out.mean()).square().mean()).sqrt().item()
    layers = {name: _pooled([one.layers[name] for one in found], sizes) for name in names}
    return DrawnLayers(_pooled([one.output for one in found], sizes), layers, errors)


def _pooled(blocks: list[Moments], sizes: list[int]) -> Moments:
    """Moments of all draws of some blocks together."""
    running = RunningMoments()
    for one, size in zip(blocks, sizes, strict=True):
        running.add(one, size)
    return running.moments()


def _repeated(x: Moments, times: int) -> Moments:
    """The batch so many times, one after another."""

    def whole(part: Tensor) -> Tensor:
        return part.expand(times, *part.shape).reshape(times * part.shape[0], *part.shape[1:])

    if isinstance(x, JointMoments):
        return JointMoments.of(whole(x.mean), whole(x.var), whole(x.factor))
    return Moments(whole(x.mean), whole(x.var))


def _value(out: Any) -> Tensor:
    if isinstance(out, Moments):
        return out.mean
    if isinstance(out, Tensor) and out.is_complex():
        raise InputError("monte_carlo: moments are of real values; return torch.view_as_real of a complex output")
    if isinstance(out, Tensor):
        return out
    raise InputError(f"monte_carlo: expected a network with one output, got {type(out).__name__}")


def layer_names(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """The modules whose outputs are looked at: those without children."""
    found = {part: name for name, part in model.named_modules() if not any(part.children())}
    # A converted network has the qualified name of the plain one.
    return {part: name or type(part).__qualname__.rpartition(".")[2] for part, name in found.items()}


@contextlib.contextmanager
def _each_layer(model: torch.nn.Module, take: Callable[[str, Any], None]) -> Iterator[None]:
    """Within it ``take`` gets every layer's output by its name; that of a later call in a pass is ``NAME:1``, ..."""
    calls: Counter[str] = Counter()

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _inputs: object, out: object) -> None:
            calls[name] += 1
            take(name if calls[name] == 1 else f"{name}:{calls[name] - 1}", out)

        return hook

    handles = [part.register_forward_hook(hook_of(name)) for part, name in layer_names(model).items()]
    handles.append(model.register_forward_pre_hook(lambda *_: calls.clear()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recording(
    model: torch.nn.Module, layers: dict[str, RunningMoments], batch: int, together: list[int]
) -> contextlib.AbstractContextManager[None]:
    """Within it, every layer's output is merged into ``layers``.

    Args:
        model: the network.
        layers: what is known of each layer; empty before the first pass.
        batch: number of examples of a draw.
        together: of the passes so far, how many draws went together.  Of several, layers without them in front are
            left out.
    """

    def take(name: str, out: Any) -> None:
        value, draws = out.mean if isinstance(out, Moments) else out, together[-1]
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_nested:
            return  # an encoder's layers have nested tensors where tokens are padded
        if draws > 1 and (not value.dim() or value.shape[0] % (draws * batch)):
            return
        if len(together) == 1 or name in layers:
            rows = value[None] if draws == 1 else value.unflatten(0, (draws, -1))
            layers.setdefault(name, RunningMoments()).update(rows)

    return _each_layer(model, take)


def propagated(model: torch.nn.Module, x: Moments | Tensor) -> tuple[Moments, dict[str, Moments]]:
    """One pass by the method in force: the output, and every layer's output under the names of ``monte_carlo``."""
    found: dict[str, Moments] = {}

    def take(name: str, out: Any) -> None:
        dense = isinstance(out, Tensor) and out.is_floating_point() and not out.is_nested
        if dense or isinstance(out, Moments | Law):
            found[name] = lower(out)

    with torch.no_grad(), _each_layer(model, take):
        out = model(x)
    return out if isinstance(out, Moments) else certain(_value(out)), found
