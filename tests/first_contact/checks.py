"""The programs, by what they try; each raises an ``AssertionError`` or another exception where the fault is there.

Truth is a closed form, or draws of the plain network.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import MomentgenError
from momentgen.inference import MeanField, randomise
from momentgen.laws import listening

__all__ = ["APART", "CHECKS", "said"]

Check = Callable[[], None]
#: what is tried -> a program
CHECKS: dict[str, Check] = {}
#: those that start processes or take time; tests of their own hold them
APART: set[str] = set()
METHODS = ("ap2", "adjoint", "covariance", None)


def check(name: str, apart: bool = False) -> Callable[[Check], Check]:
    def known(function: Check) -> Check:
        CHECKS[name] = function
        if apart:
            APART.add(name)
        return function

    return known


class Net(nn.Module):
    """A function as a network, with a few layers that it may use."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def run(function: Callable[..., Any], *args: Any, method: Any = None) -> Any:
    return momentgen.convert(Net(function).eval(), method)(*args)


def near(found: Any, truth: Any, part: float = 0.05) -> None:
    truth = torch.as_tensor(truth, dtype=torch.float64)
    found = torch.as_tensor(found).detach().double()
    assert found.shape == truth.shape or truth.dim() == 0, f"shape {tuple(found.shape)}, expected {tuple(truth.shape)}"
    off = ((found - truth).abs() / truth.abs().clamp_min(1e-12)).max()
    assert off < part, f"{found.flatten()[:3].tolist()}, truth {truth.flatten()[:3].tolist()}"


def near_draws(function: Callable[..., Any], x: Moments, method: Any, part: float = 0.05, n: int = 100_000) -> None:
    """Within a part of σ of draws, noted as approximate, or refused in an error of the package."""
    with listening() as notes:
        try:
            found = run(function, x, method=method)
        except MomentgenError:
            return
    generator = torch.Generator().manual_seed(0)
    mean, std = x.mean.double(), x.var.double().sqrt()
    drawn = mean + std * torch.randn(n, *mean.shape, generator=generator, dtype=torch.float64)
    truth = torch.vmap(function)(drawn)
    sigma = truth.std(0)
    stated = found.std_error.double() if getattr(found, "std_error", None) is not None else torch.zeros_like(sigma)
    off = ((found.std.double() - sigma).abs() / (part * sigma + 4 * stated + 1e-9)).max()
    away = ((found.mean.double() - truth.mean(0)).abs() / (part * sigma + 4 * stated + 1e-9)).max()
    text = f"{method}: σ {found.std.flatten()[:3].tolist()}, draws {sigma.flatten()[:3].tolist()}"
    assert notes or (off < 1 and away < 1), text


def child(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
    return done.stdout


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def command(*arguments: str, columns: int = 100, cwd: Path | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "momentgen", *arguments],
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}, capture_output=True, text=True, timeout=600,
        cwd=cwd,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).replace("│", " ").split())


RULES = str(Path(momentgen.__file__).parents[1] / "rules")

# -------------------------------------------------------------- the install and the start


@check("networks import on a torch whose Function.apply has no __code__", apart=True)
def _() -> None:
    child("import torch; torch.autograd.Function.apply = torch._C._FunctionBase.apply; import momentgen.laws")


@check("clang compiles the ops", apart=True)
def _() -> None:
    with tempfile.TemporaryDirectory() as cache:
        child(
            "import warnings; warnings.simplefilter('error'); import torch, momentgen.nn as mn, momentgen\n"
            "mn.ReLU()(momentgen.Moments(torch.zeros(64), torch.ones(64)))",
            CC="clang",
            MOMENTGEN_CACHE=cache,
        )


@check("importing networks does not load torch._dynamo", apart=True)
def _() -> None:
    found = child("import sys, momentgen.laws; print('torch._dynamo' in sys.modules)").strip()
    assert found == "False", "torch._dynamo is loaded"


class _Subnormal(TorchDispatchMode):
    """Within it, subnormal numbers that go into matrix products are counted."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            for value in args:
                if isinstance(value, Tensor):
                    small = (value != 0) & (value.abs() < torch.finfo(value.dtype).tiny)
                    self.found += int(small.sum())
        return func(*args, **(kwargs or {}))


@check("no subnormal number goes into a matrix product at noise 0.1")
def _() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    with _Subnormal() as counted:
        out = momentgen.convert(net, "ap2")(noisy(torch.randn(64, 784), std=0.1))
        (out.mean.sum() + out.var.sum()).backward()
    assert not counted.found, f"{counted.found} of them, each of which a processor may take 100 cycles for"


def step_time(net: nn.Module, x: Tensor, std: float) -> float:
    network = momentgen.convert(net, "ap2")
    times = []
    for _ in range(5):
        start = time.perf_counter()
        out = network(noisy(x, std=std))
        (out.mean.sum() + out.var.sum()).backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def with_pools(pool: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), pool(2), nn.Conv2d(6, 16, 5), nn.ReLU(), pool(2), nn.Flatten(),
                         nn.Linear(256, 10))  # fmt: skip


@check("max pools take at most 4 times the time of average pools", apart=True)
def _() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 1, 28, 28)
    ratio = step_time(with_pools(nn.MaxPool2d), x, 1.0) / step_time(with_pools(nn.AvgPool2d), x, 1.0)
    assert ratio < 4, f"{ratio:.1f} times"


@check("every test has a time limit")
def _() -> None:
    assert "\ntimeout = " in (Path(momentgen.__file__).parents[1] / "pyproject.toml").read_text()


# ---------------------------------------------------- one value met twice, and chains

TWICE = {
    "x*x": (lambda x: x * x, (), math.sqrt(2)),
    "x**4": (lambda x: x**4, (), math.sqrt(96)),
    "x.var(-1)": (lambda x: x.var(-1), (3,), 1.0),
    "einsum of x and x": (lambda x: torch.einsum("bi,bi->b", x, x), (3,), math.sqrt(6)),
    "cosh": (torch.cosh, (), math.exp(0.5) * math.sqrt(math.cosh(1) - 1)),
    "x*tanh(x)": (lambda x: x * torch.tanh(x), (), 0.62531),
}
for _name, (_function, _shape, _sigma) in TWICE.items():

    @check(f"{_name} at mean 0 by adjoint")
    def _(function: Any = _function, shape: Any = _shape, sigma: float = _sigma) -> None:
        x = noisy(torch.zeros(1, *(shape or (1,))), std=1.0)
        try:
            found = run(function, x, method="adjoint")
        except MomentgenError:
            return
        near(found.std, sigma)


@check("maximum(x, -x) by adjoint")
def _() -> None:
    found = run(lambda x: torch.maximum(x, -x), noisy(torch.zeros(1, 1), std=1.0), method="adjoint")
    near(found.mean, math.sqrt(2 / math.pi))


for _method in METHODS:

    @check(f"exp(-x**2/2) at (1, 1) by {_method or 'the default'}")
    def _(method: Any = _method) -> None:
        near_draws(lambda x: torch.exp(-(x**2) / 2), noisy(torch.ones(1, 1), std=1.0), method)

    @check(f"relu(x)**2 at (-0.7, 0.8) by {_method or 'the default'}")
    def _(method: Any = _method) -> None:
        near_draws(lambda x: F.relu(x) ** 2, noisy(torch.full((1, 1), -0.7), var=0.8), method)


@check("x[:, None] @ x[:, :, None] of three normal values: the mean")
def _() -> None:
    found = run(lambda x: x[:, None] @ x[:, :, None], noisy(torch.zeros(1, 3), std=1.0), method="adjoint")
    near(found.mean, 3.0)


@check("x @ x.mT by adjoint")
def _() -> None:
    found = run(lambda x: x @ x.mT, noisy(torch.zeros(1, 1, 3), std=1.0), method="adjoint")
    near(found.std, math.sqrt(6))


@check("cdist and an RBF")
def _() -> None:
    centres = torch.tensor([[0.5, -0.5, 0.0], [1.0, 0.0, 0.3]], dtype=torch.float64)
    x = noisy(torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64), std=0.3)
    near_draws(lambda v: ((v[:, None] - centres) ** 2).sum(-1).div(-2).exp(), x, "covariance")
    found = run(lambda v: torch.cdist(v, centres), x, method="ap2")
    drawn = x.mean + x.std * torch.randn(50_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near(found.std, torch.cdist(drawn, centres).std(0)[None])


# ------------------------------------------------------- shapes, containers, functions


@check("outputs of shape (B,) by the default")
def _() -> None:
    net = nn.Linear(3, 1)
    assert run(lambda x: net(x).squeeze(-1), noisy(torch.zeros(4, 3), std=1.0)).mean.shape == (4,)


@check("random weights of an embedding")
def _() -> None:
    network = randomise(nn.Embedding(5, 3), MeanField(std=0.3))
    network.set_method("adjoint")
    near(network.eval()(torch.tensor([[0, 1]])).std, 0.3)


@check("random weights of nn.Bilinear")
def _() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Bilinear(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.both(x, x)

    network = randomise(Both(), MeanField(std=0.1)).eval()
    network.set_method("ap2")
    try:
        found = network(torch.tensor([[1.0, 2.0]]))
    except MomentgenError:
        return
    near(found.std, 0.1 * math.sqrt(26))  # of x xᵀ, whose norm is 5, and of the bias


@check("a row of attention that is masked in full is 0")
def _() -> None:
    mask = torch.tensor([[False, False], [True, True]])
    x = noisy(torch.randn(1, 2, 2, generator=torch.Generator().manual_seed(0)), std=0.3)
    found = run(lambda v: F.scaled_dot_product_attention(v, v, v, attn_mask=mask), x, method="ap2")
    assert not found.mean[0, 0].any(), str(found.mean[0, 0].tolist())
    assert not found.var[0, 0].any()


for _layer in (nn.Hardswish, nn.Hardsigmoid):

    @check(f"{_layer.__name__} under torch.compile(fullgraph=True)")
    def _(layer: Any = _layer) -> None:
        network, x = momentgen.convert(nn.Sequential(layer()), "ap2"), noisy(torch.zeros(1, 2), std=1.0)

        def of(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
            out = network(Moments(mean, var))
            return out.mean, out.var

        with quiet():
            found = torch.compile(of, fullgraph=True, backend="eager")(*x)
        torch.testing.assert_close(found[0], network(x).mean)


@dataclass
class Given:
    first: Any
    second: Any = None


@dataclass
class Returned:
    only: Any


class Cache:
    """As a cache of keys and values: an object that a network writes to and returns."""

    def __init__(self) -> None:
        self.keys: list[Any] = []


@check("a UserDict and a dataclass as inputs")
def _() -> None:
    x = noisy(torch.zeros(2, 2), std=1.0)
    for given, taken in ((UserDict(x=x), lambda g: 2 * g["x"]), (Given(x), lambda g: 2 * g.first)):
        near(run(taken, given, method="ap2").std, 2.0)


@check("a dataclass as output")
def _() -> None:
    found = run(lambda v: Returned(2 * v), noisy(torch.zeros(2, 2), std=1.0), method="ap2")
    assert isinstance(found.only, Moments), type(found.only).__name__


@check("an object that holds values as output")
def _() -> None:
    def forward(v: Any) -> Any:
        cache = Cache()
        cache.keys.append(2 * v)
        return v, cache

    try:
        found = run(forward, noisy(torch.zeros(2, 2), std=1.0), method="ap2")
    except MomentgenError:
        return
    assert isinstance(found[1].keys[0], Moments), type(found[1].keys[0]).__name__


@check("an input without a batch")
def _() -> None:
    for method in ("adjoint", None):
        assert run(lambda v: v.cumsum(0), noisy(torch.ones(2), std=1.0), method=method).mean.shape == (2,)


@check("class_posterior(out, dim=1) of images by the default")
def _() -> None:
    out = run(lambda v: torch.cat([v, -v], 1), noisy(torch.zeros(2, 1, 3, 3), std=1.0))
    assert momentgen.class_posterior(out, dim=1).shape == (2, 2, 3, 3)


@check("torch.as_tensor of a random value")
def _() -> None:
    near(run(lambda v: 2 * torch.as_tensor(v), noisy(torch.zeros(2, 2), std=1.0), method="ap2").std, 2.0)


@check("torch.sparse.mm")
def _() -> None:
    weight = torch.eye(2).to_sparse()
    near(run(lambda v: torch.sparse.mm(weight, v), noisy(torch.zeros(2, 2), std=1.0), method="ap2").std, 1.0)


@check("torch.fft")
def _() -> None:
    near(run(lambda v: torch.fft.fft(v).real, noisy(torch.zeros(2, 2), std=1.0)).std, math.sqrt(2))


@check("a write into zeros_like(x) by the default")
def _() -> None:
    def forward(x: Any) -> Any:
        z = torch.zeros_like(x)
        z[:, 0] = x[:, 1]
        return z

    near(run(forward, noisy(torch.zeros(3, 30), std=1.0)).std[:, 0], 1.0)


@check("float16 by the default: σ within 10 % of float32's")
def _() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)).eval()
    x = noisy(torch.randn(2, 256).half().float(), std=0.01)
    truth = momentgen.convert(net, "covariance")(x).std
    half = momentgen.convert(net.half())(Moments(x.mean.half(), x.var.half()))
    near(half.std, truth, 0.1)


@check("dropout of a parameter")
def _() -> None:
    weight = nn.Parameter(torch.ones(2))
    for method in ("ap2", "adjoint", "covariance"):
        with contextlib.suppress(MomentgenError):
            near(run(lambda v: v + F.dropout(weight, 0.5, True), noisy(torch.zeros(1, 2), std=1.0), method=method).std,
                 math.sqrt(2))  # fmt: skip


@check("noise drawn like a parameter")
def _() -> None:
    weight = nn.Parameter(torch.ones(2))
    for method in ("ap2", "adjoint", "covariance"):
        with contextlib.suppress(MomentgenError):
            near(run(lambda v: v + torch.randn_like(weight), noisy(torch.zeros(1, 2), std=1.0), method=method).std,
                 math.sqrt(2))  # fmt: skip


@check("one dropout in training mode, on token ids")
def _() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Dropout(0.5)).eval()
    net[1].train()
    tokens = torch.tensor([[0, 1], [2, 3]])
    for method in ("ap2", "adjoint", "covariance"):
        with contextlib.suppress(MomentgenError):
            near(momentgen.convert(net, method)(tokens).std, net[0](tokens).detach().abs())  # type: ignore[arg-type]


@check("noisy(x, cov=...)")
def _() -> None:
    cov = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    for given in (cov, cov.expand(3, 2, 2)):
        near(run(lambda v: v.sum(-1, keepdim=True), noisy(torch.zeros(3, 2), cov=given)).std, math.sqrt(3.8))


@check("summary of a certain input says that nothing is random")
def _() -> None:
    try:
        out = str(momentgen.summary(momentgen.convert(nn.Sequential(nn.Linear(2, 2)).eval()), torch.zeros(1, 2)))
    except MomentgenError as error:
        out = str(error)
    assert "noisy" in out, out[:80]


@check("summary converts a plain network")
def _() -> None:
    momentgen.summary(nn.Sequential(nn.Linear(2, 2)).eval(), noisy(torch.zeros(1, 2), std=1.0))


# -------------------------------------------------------------- command line and report


@check("report --only softmax says what softmax is", apart=True)
def _() -> None:
    text = command("report", RULES, "--only", "softmax")[1]
    assert "no such rule" not in text, text[:100]


@check("derive reluu suggests relu", apart=True)
def _() -> None:
    text = command("derive", "reluu", "--rules", RULES)[1]
    assert "did you mean relu" in text, text[:100]


@check("a directory that is not there is not called a rule", apart=True)
def _() -> None:
    text = command("verify", "nowhere")[1]
    assert "rule nowhere" not in text, text[:100]


@check("tables at 60 columns lose no header", apart=True)
def _() -> None:
    text = command("verify", RULES, "--only", "abs", columns=60)[1]
    assert "…" not in text, text[:200]


@check("new relu says that an installed rule has the name", apart=True)
def _() -> None:
    with tempfile.TemporaryDirectory() as place:
        text = command("new", "relu", cwd=Path(place))[1]
    assert "of its own" in text, text[:200]


def page() -> str:
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "page.html"
        status, text = command("report", RULES, "--only", "gelu", "--page", str(out), cwd=Path(place))
        assert not status, text[-200:]
        return out.read_text()


@check("the report's errors of a rule with a tolerance are shares of it", apart=True)
def _() -> None:
    text = page()
    assert "as shares of the goal" in text
    assert "largest ulp" not in text


@check("no number of the report breaks in two", apart=True)
def _() -> None:
    found = re.search(r"\d[e^]-\d\d-?", page())
    assert not found, found[0] if found else ""


def said(function: Check) -> tuple[bool, str]:
    """Whether a program finds no fault, and what it says."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        try:
            function()
        except AssertionError as error:
            return False, str(error)
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"
    return True, ""
