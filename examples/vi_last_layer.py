"""A network from outside, made Bayesian in its last layer: a vision transformer of Hugging Face on digits.

The transformer is used as it comes; its classifier's weights and biases get a mean-field posterior, all other
parameters are trained as usual.  Under ap2 the bound and its gradients take no sampling.

    python examples/vi_last_layer.py            # needs transformers; seconds to minutes

The predicted standard deviations of the class scores are compared with those over 1,000 draws of the last layer: behind
certain inputs the propagation of one random layer is exact, so that they agree but for the draws' own error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _common import Results, wide_console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from momentgen import Moments
from momentgen.inference import Categorical, MeanField, elbo, randomise, sampled_outputs

# transformers imports torchvision, whose library does not load beside every torch
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from networks.third_party import allow_torchvision

allow_torchvision()
from transformers import ViTConfig, ViTForImageClassification  # noqa: E402


class Logits(nn.Module):
    """What a classifier of Hugging Face answers, less what is beside the scores."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classifier(pixel_values=pixels).logits


def transformer() -> nn.Module:
    """A vision transformer of two blocks for images of 8 × 8, with random weights."""
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
    return ViTForImageClassification(config)


def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)


def main(
    epochs: Annotated[int, typer.Option()] = 20,
    train: Annotated[int, typer.Option(help="training images; the others are for the test")] = 1300,
    seed: Annotated[int, typer.Option()] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="forget an earlier run's results")] = False,
    out: Annotated[Path, typer.Option()] = Path(__file__).parent / "results" / "vi_last_layer.json",
) -> None:
    """A vision transformer with a Bayesian last layer."""
    console = wide_console()
    settings = {"data": "scikit-learn digits", "epochs": epochs, "train": train, "seed": seed}
    results = Results(out, settings, ("networks",), fresh, console)
    if "last layer" not in results["networks"]:
        results.keep("networks", "last layer", run(epochs, train, seed))
    row = results["networks"]["last layer"]
    table = Table("", "here", title="Vision transformer with a Bayesian last layer, digits")
    for name, value in row.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table)
    results.say_where()


def run(epochs: int, train: int, seed: int) -> dict[str, Any]:
    """Train; the test error, and what is said of the uncertainty."""
    torch.manual_seed(seed)
    images, labels = digits()
    x, y = images[:train], labels[:train]
    bayes = randomise(Logits(transformer()), MeanField(std=0.1), only="classifier.classifier.*").set_method("ap2")
    likelihood = Categorical()
    adam = torch.optim.Adam(bayes.parameters(), lr=3e-3)
    for _ in track(range(epochs), "training", transient=True):
        for batch in torch.randperm(train).split(100):
            loss = -elbo(bayes, likelihood, x[batch], y[batch], size=train)
            adam.zero_grad()
            loss.backward()
            adam.step()
    bayes.eval()
    x, y = images[train:], labels[train:]
    with torch.no_grad():
        output: Moments = bayes(x)
    draws = sampled_outputs(bayes, x, 1000)
    probabilities = likelihood.predictive(output)
    wrong = probabilities.argmax(1) != y
    std = output.var.sqrt()
    return {
        "test error": wrong.double().mean().item(),
        "log loss": -probabilities.gather(1, y[:, None]).log().double().mean().item(),
        "std of the scores, mean": std.mean().item(),
        "std over that of draws, median": (std / draws.std(0)).median().item(),
        "parameters that are random": sum(one.mean.numel() for one in bayes.posteriors.values()),
        "parameters that are not": sum(value.numel() for value in bayes.network.parameters()),
    }


if __name__ == "__main__":
    typer.run(main)
