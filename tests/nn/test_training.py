"""Training end to end: optimisers, autocast, torch.compile, checkpoints, distributed."""

import json
import math
from pathlib import Path

import pytest
import torch
from other_processes import noise_images, run_example

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional


def blobs(n: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (n,), generator=draw)
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])
    return centres[y] + 0.5 * torch.randn(n, 2, generator=draw), y


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def step(net: torch.nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimiser.zero_grad()
    loss = functional.nll_loss(net(Moments(x, torch.full_like(x, 0.05))), y)
    loss.backward()
    optimiser.step()
    return loss.item()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_ordinary_optimisers_learn(make):
    x, y = blobs()
    net = network()
    optimiser = make(net.parameters(), lr=0.02)
    losses = [step(net, optimiser, x, y) for _ in range(50)]
    assert losses[-1] < 0.5 * losses[0]
    assert (functional.class_posterior(net.eval()(x)).argmax(1) == y).double().mean() > 0.95


@pytest.mark.parametrize("approximation", ["logistic", "simplified"])
def test_losses_of_certain_logits_are_cross_entropy(approximation):
    logits, y = torch.randn(6, 4, 3), torch.randint(0, 4, (6, 3))
    found = functional.nll_loss(logits, y, approximation=approximation)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, y))


@pytest.mark.parametrize("approximation", ["logistic", "simplified"])
def test_the_class_posterior_is_nearer_to_the_expected_softmax_than_that_of_the_means(approximation):
    torch.manual_seed(0)
    x = Moments(2 * torch.randn(20, 4), 4 * torch.rand(20, 4))
    samples = (x.mean + x.std * torch.randn(20_000, 20, 4)).softmax(-1).mean(0)
    error = (functional.class_posterior(x, approximation=approximation) - samples).abs().mean()
    assert error < (x.mean.softmax(-1) - samples).abs().mean()


def test_the_normal_posterior_of_two_classes_is_the_normal_distribution_function():
    x = Moments(torch.tensor([1.0, -0.5]).double(), torch.tensor([2.0, 0.3]).double())
    wanted = torch.special.ndtr(torch.tensor(1.5 / (2.3 + math.pi**2 / 3) ** 0.5, dtype=torch.float64))
    torch.testing.assert_close(functional.class_posterior(x, approximation="normal")[0], wanted)


def test_the_gaussian_likelihood_is_that_of_torch_distributions():
    x, target = Moments(torch.randn(5), torch.rand(5)), torch.randn(5)
    wanted = -torch.distributions.Normal(x.mean, (x.var + 0.3).sqrt()).log_prob(target).mean()
    torch.testing.assert_close(functional.gaussian_nll_loss(x, target, 0.3), wanted)


def test_normalised_networks_train_compiled():
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.Normalize(4), nn.LeakyReLU(), nn.Flatten(),
        nn.Linear(64, 3, bias=False), nn.Normalize(3),
    )  # fmt: skip
    model = nn.AnalyticNormalization(net, 0.1, 0.2)
    x = Moments(torch.rand(50, 1, 6, 6), torch.rand(50, 1, 6, 6))
    gradients = []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        functional.nll_loss(run(x), torch.zeros(50, dtype=torch.long)).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_checkpoints_resume_to_the_same_bits(tmp_path: Path):
    x, y = blobs()
    net = network()
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.02)
    step(net, optimiser, x, y)
    torch.save({"net": net.state_dict(), "optimiser": optimiser.state_dict()}, tmp_path / "checkpoint.pt")
    again = network()
    other = torch.optim.AdamW(again.parameters(), lr=0.02)
    saved = torch.load(tmp_path / "checkpoint.pt")
    again.load_state_dict(saved["net"])
    other.load_state_dict(saved["optimiser"])
    assert step(net, optimiser, x, y) == step(again, other, x, y)
    for one, two in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_momentgen_names_load_lazily():
    assert momentgen.nn.Linear is nn.Linear
    assert {"convert", "method", "monte_carlo", "summary"} <= set(dir(momentgen))


# The examples run as they stand, and go on where they stopped.
QUICK = {
    "dropout_training.py": ("networks", "analytic 0.3 | 0", 9),
    "stability.py": ("networks", "Bernoulli, AP2", 6),
    "nine_layer.py": ("table3", "LReLU, dropout 0.2 | trained", 8),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "dropout_training.py" else pytest.mark.slow) for name in QUICK]
)
def test_quick_runs_write_every_row_a_picture_and_what_the_paper_says(name: str, tmp_path: Path):
    section, key, rows = QUICK[name]
    results, text = run_example(name, noise_images(tmp_path), tmp_path / "results.json", "--quick")
    assert len(results[section]) == rows
    assert key in results[section]
    assert "paper" in text
    assert (tmp_path / "results.png").stat().st_size > 1000


def test_belief_networks_come_near_their_exact_sums(tmp_path: Path):
    settings = ["--networks", "2", "--draws", "100", "--train", "200", "--epochs", "1"]
    found, _ = run_example("belief_network.py", noise_images(tmp_path), tmp_path / "out.json", *settings)
    for layer in ("hidden 2", "output"):
        off = found["accuracy"]["0.5"][layer]
        assert off["AP2"][0] < 1e-3 < off["AP1"][0] < off["draws"][0]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path):
    out = tmp_path / "results.json"
    first, text = run_example("from_scratch.py", noise_images(tmp_path), out, "--quick")
    assert "all numbers finite" in text
    rows = first["networks"]
    assert len(rows) == 4
    kept = {name: row for name, row in rows.items() if name != "ReLU, noise 1e-4"}
    out.write_text(json.dumps({**first, "networks": kept}))
    again, _ = run_example("from_scratch.py", tmp_path, out, "--quick")
    assert again["networks"].keys() == rows.keys()
    for name, row in kept.items():
        assert again["networks"][name]["seconds"] == row["seconds"]
    assert again["networks"]["ReLU, noise 1e-4"]["losses"] == rows["ReLU, noise 1e-4"]["losses"]


@pytest.mark.slow
def test_lenet_writes_every_case_and_resumes(tmp_path: Path):
    settings = ["--samples", "20", "--inputs", "2", "--train", "256", "--epochs", "1", "--statistics", "50"]
    out = tmp_path / "results.json"
    results, _ = run_example("lenet_mnist.py", noise_images(tmp_path), out, *settings)
    assert len(results["table2"]) == 12
    assert len(results["table4"]) == 6
    del results["table2"]["LReLU, noise 0.1 | plain"]
    out.write_text(json.dumps(results))
    again, _ = run_example("lenet_mnist.py", tmp_path, out, *settings)
    assert len(again["table2"]) == 12
    for case, row in results["table2"].items():
        assert again["table2"][case]["seconds"] == row["seconds"]
