"""Networks of other people, unmodified, on moments: what variances cost, and how near they are to sampling.

Every network of ``tests/networks``, small and with random weights.  Time is the forward pass without gradients over
the plain one's, medians of rounds in which both take turns; the ratio of standard deviations is AP2's over those of
``--samples`` Monte Carlo passes, the geometric mean over the outputs (their own error is 1 / sqrt(2 n) each); and
whether the means of AP1 are the plain output bit for bit.

    python benchmarks/third_party.py [--networks resnet18,hf_bert] [--rounds 15] [--samples 500] [--threads 1]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from _common import console, environment, interleaved_medians, results_table, save
from torch import Tensor

import momentgen
from momentgen import Moments

# The directory of the tests goes before this one, which has a module of the same name.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from networks.zoo import BY_NAME, NETWORKS, Network


class Plain(torch.nn.Module):
    """The plain network as a function of its random argument alone."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.net = network.build()

    def forward(self, x: Tensor) -> Tensor:
        out = self.network.call(self.net, x)
        assert isinstance(out, Tensor)
        return out


def measure(network: Network, rounds: int, samples: int) -> dict[str, Any]:
    """One row of the table."""
    plain, mean = network.build(), network.mean()
    converted = momentgen.convert(plain, "ap2")
    x = Moments(mean, torch.full_like(mean, network.variance))
    arguments, keywords = network.plain_inputs()
    noisy, noisy_keywords = network.place(x, arguments, keywords)
    with torch.no_grad():
        seconds = interleaved_medians(
            {"plain": lambda: plain(*arguments, **keywords), "ap2": lambda: converted(*noisy, **noisy_keywords)},
            rounds=rounds,
        )
        out = network.call(converted, x)
        with momentgen.method("ap1"):
            means = network.call(converted, x).mean
        expected = network.call(plain, mean)
    # One batch a pass: other arguments are of the batch's size.
    sampled = momentgen.monte_carlo(Plain(network), x, samples, rows=len(mean), seed=0, progress=False).output
    noisy_outputs = (sampled.var > 0) & (out.var > 0)
    logs = (out.var.double()[noisy_outputs] / sampled.var[noisy_outputs]).log() / 2
    return {
        "network": network.name,
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "plain_milliseconds": round(1e3 * seconds["plain"], 3),
        "ap2_milliseconds": round(1e3 * seconds["ap2"], 3),
        "over_plain": round(seconds["ap2"] / seconds["plain"], 2),
        "sigma_over_monte_carlo": round(float(logs.mean().exp()), 3),
        "sigma_spread": round(float(logs.std().exp()), 3) if len(logs) > 1 else 1.0,
        "outputs_without_variance": round(1 - float(noisy_outputs.float().mean()), 4),
        # The network's own noise is drawn in the plain pass and at its mean in AP1.
        "ap1_bit_equal": None if network.noise else torch.equal(means.view(torch.int32), expected.view(torch.int32)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(each.name for each in NETWORKS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.mha.set_fastpath_enabled(False)
    rows = []
    columns = ("network", "plain, ms", "AP2, ms", "over plain", "σ over sampled", "spread", "AP1 equal")
    table = results_table(*columns, words=1)
    table.columns[0].no_wrap = True
    for name in arguments.networks.split(","):
        row = measure(BY_NAME[name], arguments.rounds, arguments.samples)
        rows.append(row)
        table.add_row(
            name,
            f"{row['plain_milliseconds']:.2f}",
            f"{row['ap2_milliseconds']:.2f}",
            f"{row['over_plain']:.1f} ×",
            f"{row['sigma_over_monte_carlo']:.3f}",
            f"{row['sigma_spread']:.2f}",
            {True: "yes", False: "no", None: "-"}[row["ap1_bit_equal"]],
        )
    console.print(table)
    found = {"environment": environment(), "rounds": arguments.rounds, "samples": arguments.samples, "results": rows}
    save("third_party", found)


if __name__ == "__main__":
    main()
