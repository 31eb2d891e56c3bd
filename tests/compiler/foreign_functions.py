"""Activations of other projects and papers, from their f alone: a table, and what builds of it.

``python tests/compiler/foreign_functions.py [NAME ... | 1/2 | 2/2]`` builds those named, every second one, or all: each
in a process of its own, as a build does.  It compares them with quadrature, and writes
``benchmarks/results/foreign_functions.json`` and ``docs/results/functions.md``; several may run at once.

Numbers are the defaults of their source.  Functions that a rule here has at some setting are left out.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from sympy import (
    Abs,
    Expr,
    Heaviside,
    Max,
    Min,
    Piecewise,
    Rational,
    asinh,
    atan,
    cos,
    cosh,
    erf,
    exp,
    log,
    pi,
    sign,
    sin,
    sqrt,
    tanh,
)

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script
from compiler.forms import op_in
from quadrature_truth import moments, partials

from momentgen.build.processors import same_bits_environment
from momentgen.build.workers import Lost, run_all
from momentgen.compiler.pipeline import compile_rule
from momentgen.errors import BuildError
from momentgen.rule import Phi, Rule, S, x

__all__ = ["FOREIGN", "LIMIT", "PAGE", "RESULT", "Foreign", "built", "page"]

#: seconds of the processor that a build may take; those on the clock after which it is given up
LIMIT, _PATIENCE = 120.0, 2400.0
RESULT = Path(__file__).parents[2] / "benchmarks/results/foreign_functions.json"
BLIND = "\n## Blind lists\n"
PAGE = Path(__file__).parents[2] / "docs/results/functions.md"


@dataclass(frozen=True)
class Foreign:
    """One function.

    Attributes:
        name: of a rule.
        source: library or paper.
        f: the function.
        diverges: from which variance on there is no second moment; None where there always is one.
    """

    name: str
    source: str
    f: Expr
    diverges: float | None = None


def _softplus(z: Expr) -> Expr:
    return log(1 + exp(z))


_TORCH, _JAX, _KERAS, _TF, _ECHO = "torch.nn", "jax.nn", "keras.activations", "tensorflow_addons", "echoAI"
_AF = "Kunc & Kléma 2024, Three Decades of Activations"
_half = Rational(1, 2)
_q = Rational

FOREIGN = (
    # torch.nn, jax.nn, keras
    Foreign("leaky_negative", _TORCH + ".PReLU, learned below 0", Piecewise((x, x >= 0), (-x / 4, True))),
    Foreign("sparse_plus", _JAX, Piecewise((0, x <= -1), (x, x >= 1), ((x + 1) ** 2 / 4, True))),
    Foreign("sparse_sigmoid", _JAX, Max(0, Min(1, (x + 1) / 2))),
    Foreign("squareplus", _JAX, (x + sqrt(x**2 + 4)) / 2),
    Foreign("hard_sigmoid_fifth", _KERAS + ", 2", Max(0, Min(1, x / 5 + _half))),
    Foreign("keras_relu_threshold", _KERAS + ".relu(threshold=1)", Piecewise((x, x > 1), (0, True))),
    # tensorflow_addons, echoAI
    Foreign("lisht", _TF, x * tanh(x)),
    Foreign("snake", _TF, x + sin(x) ** 2),
    Foreign("tanhshrink_2", _TF, x - tanh(2 * x)),
    Foreign("beta_mish", _ECHO, x * tanh(log((1 + exp(x)) ** _q(3, 2)))),
    Foreign("sqnl", _ECHO, Piecewise((-1, x < -2), (x + x**2 / 4, x < 0), (x - x**2 / 4, x <= 2), (1, True))),
    Foreign("silu_inverse_root", _ECHO + ", ISRU", x / sqrt(1 + x**2)),
    Foreign("isrlu", _ECHO, Piecewise((x, x >= 0), (x / sqrt(1 + x**2), True))),
    Foreign("soft_exponential", _ECHO + ", alpha = 1/2", 2 * (exp(x / 2) - 1) + _half),
    Foreign("aria2", _ECHO + ", alpha = 3/2, beta = 2", x * (1 + exp(-2 * x)) ** -_q(3, 2)),
    Foreign("elish", _ECHO, Piecewise((x * S(x), x >= 0), ((exp(x) - 1) * S(x), True))),
    Foreign("hard_elish", _ECHO, Piecewise((x, x >= 1), (x * (x + 1) / 2, x >= 0), ((exp(x) - 1) * (x + 1) / 2, x > -1),
        (0, True))),
    Foreign("flatten_swish", _ECHO + ", FTS", Piecewise((x * S(x) - _q(1, 5), x >= 0), (-_q(1, 5), True))),
    Foreign("srelu", _ECHO, Piecewise((1 + (x - 1) / 2, x >= 1), (-1 + (x + 1) / 5, x <= -1), (x, True))),
    Foreign("bent_identity", _ECHO, (sqrt(x**2 + 1) - 1) / 2 + x),
    Foreign("sine_relu", _ECHO, Piecewise((x, x > 0), ((sin(x) - cos(x)) / 4, True))),
    Foreign("gaussian", _ECHO, exp(-(x**2))),
    Foreign("sinc", _ECHO, sin(x) / x),
    # papers
    Foreign("tanhexp", "Liu & Di 2020", x * tanh(exp(x))),
    Foreign("serf", "Nag & Bhattacharyya 2021", x * erf(log(1 + exp(x)))),
    Foreign("phish", "Naveen 2022", x * tanh(x * Phi(x))),
    Foreign("logish", "Zhu et al. 2021", x * log(1 + S(x))),
    Foreign("smish", "Wang et al. 2022", x * tanh(log(1 + S(x)))),
    Foreign("pelu", "Trottier et al. 2016, a = 2, b = 1/2", Piecewise((4 * x, x >= 0), (2 * (exp(2 * x) - 1), True))),
    Foreign("selu_twice", "Klambauer et al. 2017, twice", 2 * Piecewise((x, x > 0), (_q(5, 3) * (exp(x) - 1), True))),
    Foreign("starrelu", "Yu et al. 2022, MetaFormer", _q("0.8944") * Max(x, 0) ** 2 - _q("0.4472")),
    Foreign("relu_cubed", "So et al. 2021, Primer, cubed", Max(x, 0) ** 3),
    Foreign("smu", "Biswas et al. 2021, alpha = 1/4, mu = 1", (_q(5, 4) * x + _q(3, 4) * x * erf(_q(3, 4) * x)) / 2),
    Foreign("smu_1", "Biswas et al. 2021, alpha = 1/4, mu = 1", (_q(5, 4) * x + sqrt(_q(9, 16) * x**2 + 1)) / 2),
    Foreign("acon_c", "Ma et al. 2021, p1 = 1, p2 = 1/4", _q(3, 4) * x * S(_q(3, 4) * x) + x / 4),
    Foreign("xatlu", "Huang 2024, alpha = 1/5", x * ((atan(x) / pi + _half) * _q(7, 5) - _q(1, 5))),
    Foreign("xsilu", "Huang 2024, alpha = 1/5", x * (S(x) * _q(7, 5) - _q(1, 5))),
    Foreign("xgelu", "Huang 2024, alpha = 1/5", x * (Phi(x) * _q(7, 5) - _q(1, 5))),
    Foreign("atlu", "Huang 2024, alpha = 0", x * (atan(x) / pi + _half)),
    Foreign("xielu", "Huang & Schlag 2024, alpha_p = alpha_n = 0.8, beta = 1/2",
        Piecewise((_q(4, 5) * x**2 + x / 2, x > 0), (_q(4, 5) * (exp(x) - 1 - x) + x / 2, True))),
    Foreign("polyrelu", "Zhuo et al. 2024, PolyReLU", (Max(x, 0) + Max(x, 0) ** 2 + Max(x, 0) ** 3) / 3),
    Foreign("gcu", "Noel et al. 2021", x * cos(x)),
    Foreign("morlet", "Sitzmann et al. 2020, compared there; w = 5", exp(-(x**2) / 2) * cos(5 * x)),
    Foreign("mexican_hat", "Bodyanskiy & Vynokurova 2013", (1 - x**2) * exp(-(x**2) / 2)),
    Foreign("hermite_2", "Ma & Khorasani 2005", (4 * x**2 - 2) * exp(-(x**2) / 2)),
    Foreign("gaussian_sine", "Ramasinghe & Lucey 2022", sin(3 * x) * exp(-(x**2))),
    Foreign("quadratic_rational", "Ramasinghe & Lucey 2022", 1 / (1 + x**2)),
    Foreign("multiquadratic", "Ramasinghe & Lucey 2022", 1 / sqrt(1 + x**2)),
    Foreign("laplacian", "Ramasinghe & Lucey 2022", exp(-Abs(x))),
    Foreign("symlog", "Hafner et al. 2023, DreamerV3", sign(x) * log(1 + Abs(x))),
    Foreign("asinh", "Lupton et al. 1999", asinh(x)),
    Foreign("log_relu", "Liu et al. 2019, Natural-Logarithm-ReLU", log(1 + Max(x, 0))),
    Foreign("log_square", "Kunc & Kléma 2024, logarithmic", log(1 + x**2)),
    Foreign("softexp_2", "Huber loss", Piecewise((x**2 / 2, Abs(x) <= 1), (Abs(x) - _half, True))),
    Foreign("log_cosh", _KERAS + ", losses", log(cosh(x))),
    Foreign("pinball", "Koenker & Bassett 1978, tau = 3/10", Max(_q(3, 10) * x, -_q(7, 10) * x)),
    Foreign("crossing", "maxout of two lines", Max(x / 4, 2 * x)),
    Foreign("call", "Black & Scholes 1973", Max(exp(x) - 1, 0)),
    Foreign("put", "Black & Scholes 1973", Max(1 - exp(x), 0)),
    Foreign("relu_sine", _AF + ", SinLU-like", Max(x, 0) * sin(x)),
    Foreign("sinlu", "Paul et al. 2022", (x + sin(x)) * S(x)),
    Foreign("window", _AF + ", cosine window", Piecewise((cos(pi * x / 2) ** 2, Abs(x) <= 1), (0, True))),
    Foreign("clipped_sine", _AF + ", piecewise sine", Piecewise((-1, x < -1), (sin(pi * x / 2), x <= 1), (1, True))),
    Foreign("hat", _AF + ", Mexican hat linear", Max(0, 1 - Abs(x))),
    Foreign("ternary", "Li et al. 2016, ternary weights", Heaviside(x - _half, 1) - Heaviside(-x - _half, 1)),
    Foreign("quantised", "Hubara et al. 2017, two bits", sum(Heaviside(x - k - _half, 1) for k in range(3))),
    Foreign("sign_step", "Courbariaux et al. 2016", Piecewise((1, x >= 0), (-1, True))),
    Foreign("relu6_cubed", _AF + ", cubes of ReLU6", Max(0, Min(6, x)) ** 3),
    Foreign("quadratic_unit", _AF, x**2 + x),
    Foreign("cubic", _AF, x**3),
    Foreign("softclip", "Klimek & Perelstein 2020, p = 5", (_softplus(5 * x) - _softplus(5 * (x - 1))) / 5),
    Foreign("penalised_tanh", "Xu et al. 2016", Piecewise((tanh(x), x > 0), (tanh(x) / 4, True))),
    Foreign("root_relu", "Yang & Zhang 2021, square-root ReLU", sqrt(Max(x, 0))),
    Foreign("tanh_lecun", "LeCun et al. 1998", _q("1.7159") * tanh(2 * x / 3)),
    Foreign("dyt", "Zhu et al. 2025, alpha = 1/2", tanh(x / 2)),
    Foreign("lorentz", _AF + ", Cauchy", x / (1 + x**2)),
    Foreign("elliott", "Elliott 1993", x / (2 * (1 + Abs(x))) + _half),
    Foreign("rational", "Molina et al. 2020, Padé", (x**3 + x) / (1 + x**2 + x**4)),
    Foreign("soft_cap", "Gemma 2, attention", 50 * tanh(x / 50)),
    Foreign("sigmf", "MATLAB, sigmf at 2 and 4", S(2 * (x - 4))),
    Foreign("gaussmf", "MATLAB, gaussmf at 2 and 5", exp(-((x - 5) ** 2) / 8)),
    Foreign("sech", "statistics, hyperbolic secant", 1 / cosh(x)),
    Foreign("smooth_step", "Hazimeh et al. 2020",
        Piecewise((0, x < -_half), (_half + 3 * x / 2 - 2 * x**3, x < _half), (1, True))),
    Foreign("smoother_step", "Perlin 2002",
        Piecewise((0, x < 0), (6 * x**5 - 15 * x**4 + 10 * x**3, x < 1), (1, True))),
    Foreign("exp_square", "a function without a second moment", exp(x**2), diverges=0.25),
    Foreign("reciprocal", "a function without a second moment", 1 / x, diverges=0.0),
    Foreign("double_exponential", "a function without a second moment", exp(exp(x)), diverges=0.0),
)  # fmt: skip

_MEANS, _VARIANCES = (-3.1, -0.4, 0.3, 2.6), (0.01, 1.0, 25.0)


def _seconds() -> float:
    """Seconds of the processor so far, those of the C compiler among them."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def built(name: str) -> dict[str, Any]:
    """How a build ended: its seconds of the processor, strategy, operations and largest errors, or why there is none.

    Errors are those of mean, *variance* and partials against quadrature of f itself, at means and variances of a grid:
    of max(1, |mean|), and of the others of the largest value that they take over the grid's means at that variance;
    of partials at least of 1e-9 of the output's own σ, or variance, over that of the input.
    """
    foreign = next(f for f in FOREIGN if f.name == name)
    begun = _seconds()
    try:
        compiled = compile_rule(Rule(name, f=foreign.f))
    except BuildError as error:
        return {"seconds": round(_seconds() - begun, 1), "refused": str(error).split("\n")[0]}
    seconds = _seconds() - begun
    certificate = json.loads(compiled.files["exact.json"])
    errors: dict[str, float] = {}
    op = op_in(Path(tempfile.mkdtemp()), compiled, f"foreign_{name}")
    for var in map(np.float32, _VARIANCES):
        at = [(float(np.float32(m)), float(var)) for m in _MEANS]
        mean, variance = (np.array(values, np.float32) for values in zip(*at, strict=True))
        try:
            want = [_truth(foreign.f, *point) for point in at]
        except ArithmeticError:  # the comparison's quadrature does not settle, so nothing is compared
            errors.clear()
            break
        for output, values in _values(op, mean, variance).items():
            if output not in want[0]:
                continue
            exact = np.array([float(w[output]) for w in want])
            size = np.maximum(1.0, np.abs(exact)) if output == "mean" else np.maximum(np.abs(exact).max(), 1e-30)
            if "_d" in output:  # of a wave that is averaged out hardly a slope is left
                std = max(float(w["var"]) for w in want) ** 0.5
                natural = std ** (2 if output.startswith("dvar") else 1) / float(var) ** (
                    1 if "dvar" in output[5:] else 0.5
                )
                size = np.maximum(size, 1e-9 * natural)
            errors[output] = max(errors.get(output, 0.0), float((np.abs(values - exact) / size).max()))
    return {
        "seconds": round(seconds, 1),
        "strategy": certificate["method"]["way"],
        "operations": [program.operations for program in compiled.programs["exact"]],
        **({"errors": {output: float(f"{error:.2g}") for output, error in errors.items()}} if errors else {}),
    }


def _truth(f: Expr, mean: float, var: float) -> dict[str, Any]:
    own = dict(zip(("mean", "var"), moments(f, mean, var, digits=12), strict=True))
    try:
        return own | partials(f, mean, var, digits=12)
    except ZeroDivisionError:  # the slope of a root is infinite at 0, which no quadrature of it sees
        return own


def _values(op: Callable[..., Any], mean: Any, var: Any) -> dict[str, Any]:
    """Mean, *variance* and the four partials, float32."""
    inputs = [torch.from_numpy(values).requires_grad_() for values in (mean, var)]
    found = {}
    for output, values in zip(("mean", "var"), op(*inputs), strict=True):
        slopes = torch.autograd.grad(values.sum(), inputs, retain_graph=True)
        found |= {output: values, f"d{output}_dmu": slopes[0], f"d{output}_dvar": slopes[1]}
    return {output: values.detach().numpy() for output, values in found.items()}


def summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """How many of the functions with a second moment build, and in what time."""
    wanted = [f.name for f in FOREIGN if f.diverges is None and f.name in rows]
    seconds = [rows[name]["seconds"] for name in wanted if "strategy" in rows[name]]
    return {
        "with_a_second_moment": len(wanted),
        "built": len(seconds),
        "compared_with_quadrature": sum("errors" in rows[name] for name in wanted),
        "within_two_minutes": sum(second <= LIMIT for second in seconds),
        "median_seconds": statistics.median(seconds) if seconds else 0.0,
        "most_seconds": max(seconds, default=0.0),
    }


def page(result: Mapping[str, Any]) -> str:
    """The page of the documentation that shows a result."""
    said, rows = result["summary"], result["functions"]
    lines = [
        "# Functions of other projects",
        "",
        "Activations of other libraries and papers, built from f alone, with the numbers of their source.",
        f"Of {said['with_a_second_moment']} with a second moment {said['built']} build.",
        f"The median takes {said['median_seconds']:g} s, the slowest {said['most_seconds']:g} s.",
        "Seconds are of one processor.",
        f"{said['compared_with_quadrature']} of them were compared with quadrature of f, and hold.",
        "Operations are those of the float32 kernels, forward and backward.",
        "Kernels by `quadrature` have a loop over nodes besides, which is not counted.",
        "`tests/compiler/foreign_functions.py` has the table and makes this page.",
        "",
        "| function | source | f | seconds | operations | strategy, or the reason of the refusal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        made = "strategy" in row
        operations = " / ".join(f"{n:,}" for n in row["operations"]) if made else ""
        said_of = row["strategy"] if made else _shortened(row["refused"])
        formula = row["f"].replace("|", "\\|")
        lines.append(f"| {name} | {row['source']} | `{formula}` | {row['seconds']:g} | {operations} | `{said_of}` |")
    return "\n".join(lines) + "\n"


def _shortened(reason: str) -> str:
    """A reason without the rule's name and f, which stand beside it."""
    text = reason.partition(": ")[2] if reason.startswith("rule ") else reason
    return text.partition(" in `")[0].removesuffix(":").replace("|", "\\|").replace("`", "")


def _worked(name: str, stage: Callable[[str], None]) -> dict[str, Any]:
    return built(name)


def _chosen(arguments: Sequence[str]) -> list[Foreign]:
    """The functions that a command's arguments name: all of them, those of a share such as 1/2, or by name."""
    if len(arguments) == 1 and "/" in arguments[0]:
        number, of = map(int, arguments[0].split("/"))
        return list(FOREIGN[number - 1 :: of])
    return [foreign for foreign in FOREIGN if not arguments or foreign.name in arguments]


def main() -> None:
    """Measure the functions named, a share of them or all, and write what came of it."""
    lock = FileLock(Path(tempfile.gettempdir()) / "foreign_functions.lock")  # another share may run beside this one
    for foreign in _chosen(sys.argv[1:]):
        environment = {**same_bits_environment(), "OMP_NUM_THREADS": "1"}
        # a worker for each: what one function leaves in caches makes the next one cheaper
        for _, found in run_all([foreign.name], 1, _worked, timeout=_PATIENCE, environment=environment):
            row = {"seconds": LIMIT, "refused": str(found)} if isinstance(found, Lost) else found
            print(foreign.name, row, flush=True)
            with lock:
                known = json.loads(RESULT.read_text(encoding="utf-8"))["functions"] if RESULT.exists() else {}
                known[foreign.name] = {"source": foreign.source, "f": str(foreign.f), **row}
                write({f.name: known[f.name] for f in FOREIGN if f.name in known})


def write(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what came of the functions, and the page."""
    result = {"summary": summary(rows), "functions": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _, mark, blind = PAGE.read_text(encoding="utf-8").partition(BLIND)  # which benchmarks/blind.py writes
    PAGE.write_text(f"{page(result)}{mark}{blind}", encoding="utf-8")


if __name__ == "__main__":
    main()
