"""The generated PyTorch code of every rule: accurate to float64, and its backward the derivative of its forward."""

from __future__ import annotations

import numpy as np
import torch
from real_rules import ALL, F64, FACTS, FAITHFUL, each, module_of, settings_of, stables

from momentgen.compiler.certify.points import edge_points, in_domain, wide_points
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS

PLAIN = [(n, v) for n, v in FAITHFUL if v == "exact"]


def six64(name: str, variant: str, mean: F64, var: F64, setting: dict[str, float]) -> dict[str, F64]:
    module = module_of(name, variant)
    m, v = torch.from_numpy(mean), torch.from_numpy(var)
    one, zero = torch.ones_like(m), torch.zeros_like(m)
    results = [*module.forward(m, v, **setting)]
    results += [*module.backward(m, v, one, zero, **setting), *module.backward(m, v, zero, one, **setting)]
    return {key: value.numpy() for key, value in zip((*OUTPUTS, *PARTIALS), results, strict=True)}


@each([(n, v) for n, v in PLAIN if not FACTS[n].absolute])
def test_float64_is_accurate_to_some_units_in_its_last_place(name: str, variant: str) -> None:
    stable = stables(name)[variant]
    groups = [wide_points(1_000, 11), edge_points()]
    mean, var = (np.concatenate([group[i] for group in groups]) for i in (0, 1))
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    for setting in settings_of(name):
        exact = stable.truth(mean, var, setting)
        got = six64(name, variant, mean.astype(np.float64), var.astype(np.float64), setting)
        for output, want in exact.items():
            large = np.abs(want) > 1e-60  # far below float32's range exact values are good absolutely only
            error = np.abs(got[output] - want)[large] / np.abs(want)[large]
            if output == "mean" and (ratios := stable.focus(setting)):
                # Here the two terms of the mean cancel in float64.
                ratio = (mean / np.sqrt(var.astype(np.float64)))[large]
                error = error * np.minimum(np.abs(ratio / ratios[0] - 1), 1)
            # exp(-a²/2) magnifies the rounding of a²/2, up to 700, that many times.
            assert error.max(initial=0.0) < 3e-13, (output, setting)
            bulk = np.abs(mean[large]) < 5 * np.sqrt(var[large].astype(np.float64))
            assert error[bulk].max(initial=0.0) < 2e-14, (output, setting)


@each(ALL)
def test_backward_is_the_derivative_of_forward(name: str, variant: str) -> None:
    module, rng = module_of(name, variant), np.random.default_rng(0)
    for setting in settings_of(name)[:2]:
        mean = torch.from_numpy(rng.normal(0, 2, 40)).requires_grad_()
        var = torch.from_numpy(rng.uniform(0.1, 4, 40)).requires_grad_()
        grads = [torch.from_numpy(rng.standard_normal(40)) for _ in range(2)]
        want = torch.autograd.grad(module.forward(mean, var, **setting), (mean, var), grads, allow_unused=True)
        got = module.backward(mean, var, *grads, **setting)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, torch.zeros_like(g) if w is None else w, rtol=1e-9, atol=1e-10)
