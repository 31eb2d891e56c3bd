"""A network from outside, a vision transformer of Hugging Face, made Bayesian in its last layer, unmodified."""

from __future__ import annotations

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor, nn

from momentgen.inference import BayesianNetwork, Categorical, MeanField, elbo, randomise, sampled_outputs

pytest.importorskip("transformers")


@pytest.fixture
def transformer() -> nn.Module:
    from networks.third_party import allow_torchvision

    allow_torchvision()
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config).eval()


@pytest.fixture
def bayes(transformer: nn.Module) -> BayesianNetwork:
    logits = Of(lambda net, pixels: net.classifier(pixel_values=pixels).logits, classifier=transformer)
    return randomise(logits, MeanField(std=0.1), only="classifier.classifier.*")


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """Digits of scikit-learn, 8 × 8."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels[:100], dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels[:100])


def features(transformer: nn.Module, x: Tensor) -> Tensor:
    """What the last layer is given."""
    given: list[Tensor] = []
    handle = transformer.classifier.register_forward_pre_hook(lambda module, args: given.append(args[0]))
    with torch.no_grad():
        transformer(pixel_values=x)
    handle.remove()
    return given[0]


def test_moments_of_the_scores_are_those_of_one_random_linear_map(
    transformer: nn.Module, bayes: BayesianNetwork, data: tuple[Tensor, Tensor]
) -> None:
    x = data[0][:8]
    h = features(transformer, x).double()
    weight, bias = (bayes.posteriors[f"classifier/classifier/{name}"] for name in ("weight", "bias"))
    with torch.no_grad():
        output = bayes(x)
        var = h.square() @ weight.var.double().T + bias.var.double()
    torch.testing.assert_close(output.mean, transformer(pixel_values=x).logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.var.double(), var, rtol=1e-5, atol=0)


def test_draws_of_the_scores_scatter_as_their_moments_say(bayes: BayesianNetwork, data: tuple[Tensor, Tensor]) -> None:
    x = data[0][:4]
    with torch.no_grad():
        output = bayes(x)
    torch.manual_seed(1)
    draws = sampled_outputs(bayes, x, 400)
    standard_errors = (draws.mean(0) - output.mean).abs() / (output.var / 400).sqrt()
    assert standard_errors.max() < 4
    # the variance of a sample variance of n normal values is 2 var²/(n - 1)
    assert ((draws.var(0) / output.var - 1).abs() / (2 / 399) ** 0.5).max() < 4


def test_training_raises_the_bound_and_reaches_every_parameter(
    bayes: BayesianNetwork, data: tuple[Tensor, Tensor]
) -> None:
    x, y = data
    likelihood = Categorical()
    before = {name: value.detach().clone() for name, value in bayes.named_parameters()}
    adam = torch.optim.Adam(bayes.parameters(), lr=3e-3)
    bounds = []
    for _ in range(15):
        bound = elbo(bayes, likelihood, x, y, size=len(x))
        adam.zero_grad()
        (-bound).backward()
        adam.step()
        bounds.append(bound.item())
    assert max(bounds[:5]) < min(bounds[-5:])
    still = {name for name, value in bayes.named_parameters() if torch.equal(value, before[name])}
    # the bias of the keys has no gradient: it shifts all scores of a row of attention alike
    assert all("key.bias" in name for name in still)
