"""Mean and variance of every layer: ``monte_carlo`` by sampling, in bounded memory, ``moments`` by the method in force.

Samples are merged as they come, by the update of Chan, Golub & LeVeque (1979) in
float64.  Memory is that of one chunk and two numbers per unit, for any n.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.facts import facts_of
from momentgen.laws.controlled.network import InputNoise, Network
from momentgen.laws.convert import convert
from momentgen.laws.law import Law
from momentgen.laws.methods import Method, method
from momentgen.laws.nests import Kept, flattened
from momentgen.laws.values import as_moments, draw
from momentgen.progress import progress_bar
from momentgen.runtime import JointMoments, Moments


class RunningMoments:
    """Mean and variance of samples that come in chunks.

    >>> running = RunningMoments()
    >>> for chunk in torch.tensor([1.0, 2.0, 3.0, 6.0]).view(2, 2, 1):
    ...     running.update(chunk)
    >>> running.moments()
    Moments([3.0 ± 2.2], float64)
    """

    def __init__(self) -> None:
        self.count, self._mean, self._squares = 0, torch.zeros(()), torch.zeros(())

    def update(self, chunk: Tensor) -> None:
        """Take in samples along the first dimension."""
        chunk = chunk.detach().double()
        mean, n, before = chunk.mean(0), len(chunk), self.count
        squares = (chunk - mean).square().sum(0)
        self.count = before + n
        if before:
            shift = mean - self._mean
            squares = self._squares + squares + shift.square() * (before * n / self.count)
            mean = self._mean + shift * (n / self.count)
        self._mean, self._squares = mean, squares

    def moments(self) -> Moments:
        """Mean and unbiased variance, in float64.

        Raises:
            InputError: of fewer than two samples.
        """
        if self.count < 2:
            raise InputError(f"RunningMoments: expected at least 2 samples, got {self.count}")
        return Moments(self._mean, self._squares / (self.count - 1))


@dataclass(repr=False)
class MonteCarlo:
    """What sampling found.

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


def monte_carlo(
    model: Callable[..., Any],
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
        model: a network over moments, a function, or a plain torch network, which sees the input's noise and its own
            dropout.  Of a network with more arguments pass a function that calls it with them.
        x: the input, batch first.  Moments are drawn as normals, independent unless they have a covariance, or from
            the distribution that :func:`momentgen.noisy` was given.
        n: samples of every input, at least 2.
        functions: of the output, whose expectations are wanted too, such as ``{"posterior": softmax}``.
        rows: how many inputs go through the model at once; bounds the memory.  A model that draws noise of its own, or
            whose examples interact, has one draw of the batch at a time.
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
    model = model if isinstance(model, torch.nn.Module) else convert(model)
    given = as_moments("monte_carlo", x)
    if not given.mean.dim() or (isinstance(given, JointMoments) and given.factor.dim() == 2):
        raise InputError(f"monte_carlo: expected a batch in dimension 0, got shape {tuple(given.mean.shape)}")
    batch = given.mean.shape[0]
    at_once = max(1, min(n, rows // max(batch, 1)))
    kept = Kept(model)
    if at_once > 1 and not _go_together(model, x if x is given.mean else Moments(given.mean, given.var), at_once):
        at_once = 1
    kept.restore()
    layers: dict[str, RunningMoments] = {}
    asked = [lambda out: out, *(functions or {}).values()]  # the output itself, and what is asked of it
    found = [RunningMoments() for _ in asked]
    devices = [given.mean.device] if given.mean.is_cuda else []
    keeps, done, k = False, 0, at_once

    def take(name: str, out: Any) -> None:
        value = out.mean if isinstance(out, Moments) else out
        # a layer counts where every pass has it
        if (not done or name in layers) and (k == 1 or (value.dim() and value.shape[0] % (k * batch) == 0)):
            layers.setdefault(name, RunningMoments()).update(value.unflatten(0, (k, -1)) if k > 1 else value[None])

    with (
        torch.no_grad(),
        torch.random.fork_rng(devices, enabled=seed is not None),
        each_layer(model, take),
        method("sample"),
        progress_bar("Monte Carlo", n, progress) as advance,
    ):
        if seed is not None:
            torch.manual_seed(seed)
        while done < n:
            k = min(at_once, n - done)
            if keeps:
                kept.restore()
            out = _value(model(_drawn(x, given, k)))
            keeps = keeps or (not done and bool(kept.changed()))
            for running, value in zip(found, (function(out) for function in asked), strict=True):
                running.update(value.unflatten(0, (k, batch)) if k > 1 else value[None])
            done += k
            advance(done)
    output, *expected = (one.moments() for one in found)
    of_layers = {name: running.moments() for name, running in layers.items()}
    return MonteCarlo(n, output, of_layers, dict(zip(functions or (), expected, strict=True)))


def _drawn(x: Moments | Tensor, given: Moments, times: int) -> Tensor:
    """Draws of the batch, one after another; a certain one as it is."""
    if x is given.mean:
        return given.mean.repeat(times, *[1] * (given.mean.dim() - 1))
    if given.noise is not None:
        return torch.cat([draw(given) for _ in range(times)])
    parts = (given.mean, given.var, *([given.factor] if isinstance(given, JointMoments) else []))
    whole = [part.expand(times, *part.shape).reshape(times * part.shape[0], *part.shape[1:]) for part in parts]
    return draw(JointMoments.of(*whole) if len(whole) == 3 else Moments(*whole))


def _go_together(model: torch.nn.Module, x: Moments | Tensor, count: int) -> bool:
    """Whether so many draws may share one call: the network draws no noise, and no draw changes another's output."""
    network = Network(model, model, *flattened(((x,), {})))
    with torch.no_grad():
        facts = facts_of(network, 0)
        noise = [InputNoise(value, place, 0) for place, value in enumerate(network.inputs)]
        return all(facts.by_example or [False]) and not facts.depends and facts.stacks(network, noise, count)


def _value(out: Any) -> Tensor:
    if isinstance(out, Moments):
        return out.mean
    if isinstance(out, Tensor) and out.is_complex():
        raise InputError("monte_carlo: moments are of real values; return torch.view_as_real of a complex output")
    if isinstance(out, Tensor):
        return out
    raise InputError(f"monte_carlo: expected a network with one output, got {type(out).__name__}")


def kind_of(part: torch.nn.Module) -> str:
    """A module's class; that of a converted network has the qualified name of the plain one."""
    return type(part).__qualname__.rpartition(".")[2]


@contextlib.contextmanager
def each_layer(model: torch.nn.Module, take: Callable[[str, Any], None], parents: bool = False) -> Iterator[None]:
    """Within it ``take`` gets every layer's output by its name; that of a later call in a pass is ``NAME:1``, ..."""
    calls: Counter[str] = Counter()

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _inputs: object, out: Any) -> None:
            calls[name] += 1
            value = out.mean if isinstance(out, Moments) else out
            # an encoder's layers have nested tensors where tokens are padded
            if isinstance(value, Tensor | Law) and value.is_floating_point() and not value.is_nested:
                take(name if calls[name] == 1 else f"{name}:{calls[name] - 1}", out)

        return hook

    handles = [
        part.register_forward_hook(hook_of(name or kind_of(part)))
        for name, part in model.named_modules()
        if (parents and name) or not any(part.children())
    ]
    handles.append(model.register_forward_pre_hook(lambda *_: calls.clear()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Modules(torch.nn.Module):
    """Calls a network, and returns the output of each of its modules by name."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def forward(self, *inputs: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with each_layer(self.network, found.__setitem__, parents=True):
            found["output"] = self.network(*inputs)
        return found


def moments(network: torch.nn.Module, *inputs: Any, method: Method | None = None) -> dict[str, Moments]:
    """Mean and *variance* of every module's output, all of one call.

    Of a sigmoid belief network the means of Bernoulli units are the probabilities of its hidden units.

    Args:
        network: over moments, or a plain one.
        inputs: its arguments, tensors or :class:`~momentgen.Moments`, batch first.
        method: as for :func:`momentgen.convert`; None for the method in force.  ``sample`` gives one draw.

    Returns:
        The moments by the module's name in the network, shaped as its output.  A module that is called more than once
        has its later calls as ``NAME:1``, ``NAME:2``.  ``output`` is the network's own.

    Raises:
        InputError: for another method.
        UnsupportedError: at a function that the method has no rule for.

    >>> from momentgen import nn
    >>> network = nn.Sequential(nn.Linear(2, 3), nn.LogisticBernoulli(), nn.Linear(3, 1))
    >>> list(moments(network, torch.zeros(1, 2), method="ap2"))
    ['0', '1', '2', 'output']
    """
    found: dict[str, Moments] = convert(_Modules(network), method)(*inputs)
    return found
