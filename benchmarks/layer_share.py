"""What each exact kernel costs: over a memory copy, and as a share of the layer that it follows.

The layer is moment-linear, 1024 wide, on a batch of 256: mean and variance by one matrix product each, the squared
weights made beforehand (so the layer is as cheap, and the share as large, as can be).  Its backward pass has four
products: gradients of both inputs and of both weights.  Baselines are torch's own product and, where torch has it,
oneDNN's, which is faster on some processors; the share of the faster one is what counts.  The copy is at 4M elements,
as in cpu_ops.py.  Everything is measured in turns in one run, and medians are compared.  On a machine that does other
work, ``--threads 1`` keeps threads from waiting for one another.

    python benchmarks/layer_share.py [--rules relu,abs] [--rounds 20] [--threads 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from _common import console, environment, interleaved_medians, results_table, save
from cpu_ops import bare_kernel, copy_of, tensors_for
from torch import Tensor

import momentgen.generated
from momentgen.runtime import Op

WIDTH, BATCH, COPIED = 1024, 256, 1 << 22
BASELINES = ("torch", "onednn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default=",".join(momentgen.generated.__all__), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    table = results_table("rule", "direction", "over copy", "of the layer", *BASELINES, words=2)
    for rule in arguments.rules.split(","):
        op = getattr(momentgen.generated, rule)
        if not isinstance(op, Op):
            console.print(f"{rule}: no elementwise op; left out", highlight=False)
            continue
        for direction in ("forward", "backward"):
            row = measure(op, direction, arguments.rounds)
            rows.append(row)
            layers = [f"{row['layer_microseconds'].get(name, float('nan')):.0f} µs" for name in BASELINES]
            table.add_row(rule, direction, f"{row['over_copy']:.2f} ×", f"{100 * row['share_of_layer']:.1f} %", *layers)
    console.print(table)
    layer = {"width": WIDTH, "batch": BATCH, "products": {"forward": 2, "backward": 4}}
    save(
        "layer_share",
        {
            "environment": environment(),
            "rounds": arguments.rounds,
            "layer": layer,
            "copied_elements": COPIED,
            "results": rows,
        },
    )


def measure(op: Op, direction: str, rounds: int) -> dict[str, object]:
    """Times of the exact kernel at both sizes, of the copy and of the layer."""
    contestants: dict[str, Callable[[], object]] = {}
    for label, n in (("large", COPIED), ("layer", WIDTH * BATCH)):
        inputs, outputs = tensors_for(op, direction, n)
        contestants[f"kernel {label}"] = bare_kernel(op, "exact", direction, inputs, outputs)
        if label == "large":
            contestants["copy"] = copy_of(inputs, outputs)
    contestants |= layers(direction)
    seconds = interleaved_medians(contestants, rounds=rounds)
    found = {name: seconds[name] for name in BASELINES if name in seconds}
    return {
        "rule": op.name,
        "variant": "exact",
        "direction": direction,
        "over_copy": round(seconds["kernel large"] / seconds["copy"], 3),
        "share_of_layer": round(seconds["kernel layer"] / min(found.values()), 4),
        "kernel_microseconds": round(1e6 * seconds["kernel layer"], 1),
        "layer_microseconds": {name: round(1e6 * spent, 1) for name, spent in found.items()},
    }


def layers(direction: str) -> dict[str, Callable[[], object]]:
    """The matrix products of a moment-linear layer, by torch and, where it is there, by oneDNN."""
    generator = torch.Generator().manual_seed(1)
    weight, mean, gradient = (
        torch.randn(*shape, generator=generator) for shape in ((WIDTH, WIDTH), (BATCH, WIDTH), (BATCH, WIDTH))
    )
    squared, var = weight * weight, torch.rand(BATCH, WIDTH, generator=generator)
    if direction == "forward":
        pairs = [(mean, weight), (var, squared)]
    else:
        # y = x Wᵀ: dx = g W and dW = gᵀ x, for the mean and for the variance.
        pairs = [(gradient, m.t().contiguous()) for m in (weight, squared)]
        pairs += [(gradient.t().contiguous(), m.t().contiguous()) for m in (mean, var)]
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"torch": torch.nn.functional.linear}
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        ways["onednn"] = lambda a, w: torch.ops.mkldnn._linear_pointwise(a, w, None, "none", [], "")
    return {name: lambda product=product: [product(a, w) for a, w in pairs] for name, product in ways.items()}


if __name__ == "__main__":
    main()
