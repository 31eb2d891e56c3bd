"""Posteriors that other libraries trained: what a network then says of its σ, beside draws of the plain network.

    python examples/trained_posteriors.py       # SWAG alone; with laplace-torch, ivon-opt and vbll where installed

A network of one hidden layer learns scikit-learn's digits, a transformer of one block learns sequences of token ids.
Per posterior and method the table has the σ of the scores over that of 4,000 draws, and the time over theirs.  Draws
take the library's posterior and the plain network.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _common import Results, wide_console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from momentgen import method
from momentgen.inference import from_ivon, from_laplace, from_swag, from_vbll, randomise

DRAWS = 4000


class Tokens(nn.Module):
    """Classes of sequences of token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(tokens)).mean(1))


def digits() -> tuple[nn.Module, Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    return net, torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


def sequences() -> tuple[nn.Module, Tensor, Tensor]:
    tokens = torch.randint(20, (1200, 8))
    return Tokens(), tokens, (tokens < 10).sum(1) % 3


def steps(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> Iterator[tuple[int, Callable[[], Tensor]]]:
    """Epoch and loss of each batch."""
    for epoch in range(epochs):
        for rows in torch.randperm(1000).split(100):
            yield epoch, lambda rows=rows: nn.functional.cross_entropy(net(x[rows]), y[rows])


def of_swag(net: nn.Module, x: Tensor, y: Tensor, rank: int) -> tuple[Any, nn.Module]:
    states, optimizer, last = [], torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 0
    for epoch, loss in steps(net, x, y, 40):
        if epoch != last and epoch > 15:
            states.append(copy.deepcopy(net.state_dict()))
        last = epoch
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return from_swag(states, rank=rank), net


def of_ivon(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Any, nn.Module]:
    import ivon

    optimizer = ivon.IVON(net.parameters(), lr=0.1, ess=1000, hess_init=0.5)
    for _, loss in steps(net, x, y, 40):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            loss().backward()
        optimizer.step()
    return from_ivon(optimizer), net


def of_laplace(net: nn.Module, x: Tensor, y: Tensor, which: str, structure: str) -> tuple[Any, nn.Module]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from networks.third_party import allow_torchvision

    allow_torchvision()
    from laplace import Laplace

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
    for _, loss in steps(net, x, y, 30):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:1000], y[:1000]), batch_size=100)
    la = Laplace(net, "classification", subset_of_weights=which, hessian_structure=structure)
    la.fit(loader)
    la.optimize_prior_precision(method="marglik")
    return from_laplace(la), net


def of_vbll(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Any, nn.Module]:
    from vbll import DiscClassification

    net = nn.Sequential(net[0], nn.ReLU(), DiscClassification(50, 10, 1 / 1000))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for rows in [part for _ in range(30) for part in torch.randperm(1000).split(100)]:
        optimizer.zero_grad()
        net(x[rows]).train_loss_fn(y[rows]).backward()
        optimizer.step()
    return from_vbll(net[-1]), net


def cases() -> dict[str, tuple[Callable[[], Any], Callable[..., Any], tuple[Any, ...]]]:
    """Data, and how a posterior is trained, by name."""
    found: dict[str, Any] = {}
    for data, name in ((digits, "digits"), (sequences, "tokens")):
        found[f"{name}, SWAG diagonal"] = data, of_swag, (0,)
        found[f"{name}, SWAG"] = data, of_swag, (20,)
        if find_spec("ivon"):
            found[f"{name}, IVON"] = data, of_ivon, ()
    if find_spec("laplace"):
        for which, structure in (("all", "diag"), ("all", "kron"), ("last_layer", "full")):
            found[f"digits, Laplace {which} {structure}"] = digits, of_laplace, (which, structure)
    if find_spec("vbll"):
        found["digits, VBLL"] = digits, of_vbll, ()
    return found


@torch.no_grad()
def compare(posterior: Any, net: nn.Module, x: Tensor) -> dict[str, Any]:
    """σ by the default, over that of draws, and its time over theirs."""
    bayes = randomise(net, posterior).eval()
    started = time.perf_counter()
    with method("sample"):
        draws = torch.stack([bayes(x).mean for _ in range(DRAWS)])
    of_draws, truth = time.perf_counter() - started, draws.std(0)
    row: dict[str, Any] = {"draws": DRAWS, "seconds of draws": of_draws, "σ of draws, median": truth.median().item()}
    bayes(x)
    started = time.perf_counter()
    found = bayes(x)
    seconds, ratio = time.perf_counter() - started, (found.var.sqrt() / truth).flatten()
    off = (ratio - 1).abs()
    row["controlled"] = {
        "σ over that of draws": ratio.median().item(),
        "off, median": off.median().item(),
        "off, 95 %": off.quantile(0.95).item(),
        "draws' time over its": of_draws / seconds,
    }
    return row


def main(
    rows: Annotated[int, typer.Option(help="test rows")] = 64,
    fresh: Annotated[bool, typer.Option("--fresh", help="forget an earlier run's results")] = False,
    out: Annotated[Path, typer.Option()] = Path(__file__).parent / "results" / "trained_posteriors.json",
) -> None:
    """Trained posteriors as random weights."""
    console = wide_console()
    results = Results(out, {"rows": rows, "draws": DRAWS}, ("posteriors",), fresh, console)
    for name, (data, train, options) in cases().items():
        if name in results["posteriors"]:
            continue
        torch.manual_seed(0)
        net, x, y = data()
        results.keep("posteriors", name, compare(*train(net, x, y, *options), x[-rows:]))
    table = Table("posterior", "σ over draws'", "off, median", "off, 95 %", "draws' time over its")
    for name, row in results["posteriors"].items():
        table.add_row(name, *[f"{value:.3g}" for value in row["controlled"].values()])
    console.print(table)
    results.say_where()


if __name__ == "__main__":
    typer.run(main)
