"""Architectures of other people, trained here for some seconds on small data; used by ``answers_elsewhere.py``."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _elsewhere import Case, fit
from torch import Tensor, nn

__all__ = ["TRAINED"]

#: examples whose answers are looked at
BATCH = 8

# ------------------------------------------------------------------------ data


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits, shape (1797, 8, 8), values in 0..1, and their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.images).float() / 16, torch.tensor(found.target)


@functools.cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """A table that scikit-learn ships, standardised, and its standardised target or its classes."""
    found = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")()
    x, y = torch.tensor(found.data).float(), torch.tensor(found.target)
    y = (y - y.mean()).float() / y.float().std() if name == "diabetes" else y.long()
    return (x - x.mean(0)) / x.std(0), y


@functools.cache
def series(length: int = 96) -> Tensor:
    """Windows of a noisy sum of two seasons, shape (2000, length)."""
    draw = np.random.default_rng(0)
    time = np.arange(2000 + length)
    slow, fast = np.sin(2 * np.pi * time / 31), 0.5 * np.sin(2 * np.pi * time / 7)
    values = torch.tensor(slow * (1 + fast) + 0.1 * draw.standard_normal(len(time))).float()
    return values.unfold(0, length, 1)[:2000]


def batch(*values: Tensor, size: int = 64) -> tuple[Tensor, ...]:
    """Random rows of the values."""
    chosen = torch.randint(len(values[0]), (size,))
    return tuple(value[chosen] for value in values)


def on_digits(net: nn.Module) -> None:
    def loss() -> Tensor:
        x, y = batch(*digits())
        return F.cross_entropy(net(x), y)

    fit(net, loss, 300)


def on_table(name: str, output: Callable[[Any], Tensor], steps: int = 300) -> Callable[[nn.Module], None]:
    """Trains a classifier or a regression."""

    def train(net: nn.Module) -> None:
        def loss() -> Tensor:
            x, y = batch(*table(name))
            out = output(net(x))
            return F.mse_loss(out, y) if y.is_floating_point() else F.cross_entropy(out, y)

        fit(net, loss, steps)

    return train


# ----------------------------------------------------------------- transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL |= {"vocab_size": 40, "num_labels": 3, "pad_token_id": 0}


def transformer(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A sequence classifier of transformers with random weights; those of GPT and Llama read the last token."""

    def make() -> nn.Module:
        library = importlib.import_module("transformers")
        config = getattr(library, f"{name}Config")(**{**SMALL, **settings})
        return getattr(library, f"{name}ForSequenceClassification")(config)

    return make


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Random tokens, and in which of three thirds of the vocabulary most of them are."""
    ids = torch.randint(1, 40, (count, 16))
    return ids, F.one_hot((ids - 1) // 13).sum(1).argmax(1)


def on_sentences(net: nn.Module) -> None:
    def loss() -> Tensor:
        ids, y = sentences(64)
        return F.cross_entropy(net(input_ids=ids).logits, y)

    fit(net, loss, 250)


def embedded(net: Any) -> Tensor:
    torch.manual_seed(0)
    return net.get_input_embeddings()(sentences(BATCH)[0]).detach()


def language(name: str, noises: tuple[float, ...] = (0.01, 0.05), **settings: Any) -> Case:
    """A language model, noise in its embeddings."""
    return Case(
        f"{name}, logits", "transformers", transformer(name, **settings), embedded, noises,
        call=lambda net, x: net(inputs_embeds=x), output=lambda out: out.logits, train=on_sentences,
    )  # fmt: skip


def patch_tst() -> nn.Module:
    library = importlib.import_module("transformers")
    config = library.PatchTSTConfig(
        context_length=64, prediction_length=16, patch_length=8, patch_stride=8, d_model=32, num_attention_heads=4,
        num_hidden_layers=2, ffn_dim=64, num_input_channels=1,
    )  # fmt: skip
    return library.PatchTSTForPrediction(config)


def on_series(net: nn.Module) -> None:
    def loss() -> Tensor:
        (x,) = batch(series())
        return F.mse_loss(net(past_values=x[:, :64, None]).prediction_outputs[..., 0], x[:, 64:80])

    fit(net, loss, 250)


# -------------------------------------------------------------------- sequences


def n_beats() -> nn.Module:
    with contextlib.redirect_stdout(None):
        return importlib.import_module("nbeats_pytorch.model").NBeatsNet(
            forecast_length=16, backcast_length=64, hidden_layer_units=64
        )


def on_forecast(net: nn.Module) -> None:
    def loss() -> Tensor:
        (x,) = batch(series())
        return F.mse_loss(net(x[:, :64])[1], x[:, 64:80])

    fit(net, loss, 300)


class Recurrent(nn.Module):
    """Two layers of an LSTM or a GRU over 36 steps, and the next four values from the last."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.out = kind(1, 32, 2, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)[0][:, -1])


def on_next(net: nn.Module) -> None:
    def loss() -> Tensor:
        (x,) = batch(series())
        return F.mse_loss(net(x[:, :36, None]), x[:, 36:40])

    fit(net, loss, 250)


# ---------------------------------------------------------------- dense outputs


def unet() -> nn.Module:
    library = importlib.import_module("segmentation_models_pytorch")
    return library.Unet(
        encoder_name="resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(32, 16, 8), in_channels=1
    )


def enlarged(x: Tensor) -> Tensor:
    return F.interpolate(x[:, None], size=32, mode="bilinear")


def on_strokes(net: nn.Module) -> None:
    def loss() -> Tensor:
        x = enlarged(batch(digits()[0], size=16)[0])
        return F.binary_cross_entropy_with_logits(net(x + 0.2 * torch.randn_like(x)), (x > 0.5).float())

    fit(net, loss, 100)


class Autoencoder(nn.Module):
    """Convolutions down to 32 numbers and back to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ELU(),
            nn.Flatten(), nn.Linear(128, 32),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Linear(32, 128), nn.Unflatten(1, (32, 2, 2)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ELU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def on_itself(net: nn.Module) -> None:
    def loss() -> Tensor:
        (x,) = batch(digits()[0][:, None])
        return F.mse_loss(net(x), x)

    fit(net, loss, 300)


# -------------------------------------------------------------------- functions


def siren() -> nn.Module:
    return importlib.import_module("siren_pytorch").SirenNet(2, 64, 1, 3, w0_initial=10.0)


def on_a_picture(net: nn.Module) -> None:
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 8)] * 2, indexing="ij"), -1).view(64, 2)
    fit(net, lambda: F.mse_loss(net(grid)[:, 0], digits()[0][0].view(-1)), 300, 1e-3)


def fourier_operator() -> nn.Module:
    return importlib.import_module("neuralop.models").FNO(
        n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=16, n_layers=3
    )


def waves(count: int) -> Tensor:
    """Smooth random functions on 32 points, shape (count, 1, 32)."""
    spectrum = torch.zeros(count, 17, dtype=torch.complex64)
    spectrum[:, 1:6] = torch.randn(count, 5, dtype=torch.complex64) * 8 / torch.arange(1, 6)
    return torch.fft.irfft(spectrum, n=32)[:, None]


def on_waves(net: nn.Module) -> None:
    """What it learns: the function's square, moved on by four points."""

    def loss() -> Tensor:
        x = waves(32)
        return F.mse_loss(net(x), x.square().roll(4, -1))

    fit(net, loss, 250)


def spline_network() -> nn.Module:
    with contextlib.redirect_stdout(None):
        return importlib.import_module("kan").KAN(width=[10, 5, 1], grid=5, k=3, seed=0, auto_save=False)


class LogProbability(nn.Module):
    """A masked autoregressive flow's logarithm of the density, shape (B,)."""

    def __init__(self) -> None:
        super().__init__()
        flows, transforms = importlib.import_module("nflows.flows"), importlib.import_module("nflows.transforms")
        normal = importlib.import_module("nflows.distributions").StandardNormal([13])
        layers = [
            layer
            for _ in range(3)
            for layer in (
                transforms.MaskedAffineAutoregressiveTransform(13, 32),
                transforms.RandomPermutation(13),
            )
        ]
        self.flow = flows.Flow(transforms.CompositeTransform(layers), normal)

    def forward(self, x: Tensor) -> Tensor:
        return self.flow.log_prob(x)


def on_density(net: nn.Module) -> None:
    fit(net, lambda: -net(batch(table("wine")[0])[0]).mean(), 250)


class Flow(nn.Module):
    """A neural ordinary differential equation from time 0 to 1, and two classes from where it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.field, self.out = nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 30)), nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        odeint = importlib.import_module("torchdiffeq").odeint
        return self.out(odeint(lambda _, y: self.field(y), x, torch.tensor([0.0, 1.0]), rtol=1e-3, atol=1e-4)[-1])


def tab_net() -> nn.Module:
    return importlib.import_module("pytorch_tabnet.tab_network").TabNet(30, 2, group_attention_matrix=torch.eye(30))


# ----------------------------------------------------------------------- graphs

NODES = 120


@functools.cache
def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Digits as nodes, each joined to its four nearest: features, edges of shape (2, E), labels."""
    x, y = digits()[0][:NODES].flatten(1), digits()[1][:NODES]
    near = torch.cdist(x, x).topk(5, largest=False).indices
    edges = torch.stack([near.flatten(), torch.arange(NODES).repeat_interleave(5)])
    return x, torch.cat([edges, edges.flip(0)], 1).unique(dim=1), y


class IndexAdd(nn.Module):
    """A graph convolution of two layers: sums over neighbours by ``index_add``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)
        self.register_buffer("edges", graph()[1])
        self.register_buffer("degree", torch.bincount(graph()[1][1]).float()[:, None])

    def around(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, self.edges[1], x[self.edges[0]]) / self.degree

    def forward(self, x: Tensor) -> Tensor:
        return self.around(self.second(F.relu(self.around(self.first(x)))))


class Sparse(IndexAdd):
    """The same by a sparse matrix."""

    def around(self, x: Tensor) -> Tensor:
        ones = torch.ones(self.edges.shape[1])
        return torch.sparse.mm(torch.sparse_coo_tensor(self.edges.flip(0), ones, (NODES, NODES)), x) / self.degree


class Geometric(nn.Module):
    """GCN of PyTorch Geometric."""

    def __init__(self) -> None:
        super().__init__()
        self.net = importlib.import_module("torch_geometric.nn").GCN(64, 32, 2, 10)
        self.register_buffer("edges", graph()[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x, self.edges)


def on_nodes(net: nn.Module) -> None:
    fit(net, lambda: F.cross_entropy(net(graph()[0]), graph()[2]), 200)


# ------------------------------------------------------------- forms of a call


class Price(nn.Module):
    """A number for each example, shape (B,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


@dataclass
class Patient:
    """An example as a dataclass."""

    measured: Any
    where: str = "Boston"


class FromDataclass(Price):
    """A dataclass comes in, a ``UserDict`` goes out."""

    def forward(self, given: Patient) -> Any:
        return UserDict(progress=super().forward(given.measured), where=given.where)


def on_patients(net: nn.Module) -> None:
    def loss() -> Tensor:
        x, y = batch(*table("diabetes"))
        return F.mse_loss(net(Patient(x))["progress"], y)

    fit(net, loss, 300)


def scripted() -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 10))
    return torch.jit.script(layers)


def rows(name: str) -> Callable[[nn.Module], Tensor]:
    return lambda _: table(name)[0][:BATCH]


TRAINED = (
    language("Bert"),
    language("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=32),
    language("Llama"),
    language("Mixtral", num_local_experts=4, num_experts_per_tok=1, num_key_value_heads=4),
    Case(
        "PatchTST", "transformers", patch_tst, lambda _: series()[:BATCH, :64, None], (0.05, 0.5),
        call=lambda net, x: net(past_values=x), output=lambda out: out.prediction_outputs, train=on_series,
    ),
    Case(
        "N-BEATS", "nbeats-pytorch", n_beats, lambda _: series()[:BATCH, :64], (0.05, 0.5),
        output=lambda out: out[1], train=on_forecast,
    ),
    *[
        Case(
            f"{kind.__name__}, 36 steps", "torch", functools.partial(Recurrent, kind),
            lambda _: series()[:BATCH, :36, None], (0.05, 0.5), train=on_next,
        )
        for kind in (nn.LSTM, nn.GRU)
    ],
    Case(
        "U-Net", "segmentation-models-pytorch", unet, lambda _: enlarged(digits()[0][:2]), (0.05, 0.3),
        train=on_strokes, draws=1500,
    ),
    Case("autoencoder", "torch", Autoencoder, lambda _: digits()[0][:BATCH, None], (0.02, 0.1, 0.5), train=on_itself),
    Case(
        "SIREN", "siren-pytorch", siren, lambda _: torch.rand(BATCH, 2) * 2 - 1, (0.005, 0.02, 0.1),
        train=on_a_picture, draws=100_000,
    ),
    Case("GCN by index_add", "torch", IndexAdd, lambda _: graph()[0], (0.05, 0.3), train=on_nodes),
    Case("GCN by torch.sparse", "torch", Sparse, lambda _: graph()[0], (0.05, 0.3), train=on_nodes),
    Case("GCN", "torch-geometric", Geometric, lambda _: graph()[0], (0.05, 0.3), train=on_nodes),
    Case("FNO", "neuraloperator", fourier_operator, lambda _: waves(BATCH), (0.05, 0.3), train=on_waves),
    Case(
        "KAN", "pykan", spline_network, rows("diabetes"), (0.02, 0.1),
        train=on_table("diabetes", lambda out: out[:, 0], 100), draws=40_000,
    ),
    Case("masked autoregressive flow", "nflows", LogProbability, rows("wine"), (0.05, 0.3), train=on_density),
    Case(
        "neural ODE", "torchdiffeq", Flow, rows("breast_cancer"), (0.05, 0.3),
        train=on_table("breast_cancer", lambda out: out, 200),
    ),
    Case(
        "TabNet", "pytorch-tabnet", tab_net, rows("breast_cancer"), (0.02, 0.1), output=lambda out: out[0],
        train=on_table("breast_cancer", lambda out: out[0], 200), draws=12_000,
    ),
    Case("scripted MLP", "torch.jit", scripted, lambda _: digits()[0][:BATCH], (0.05, 0.3), train=on_digits),
    Case("outputs (B,)", "torch", Price, rows("diabetes"), (0.05, 0.3), train=on_table("diabetes", lambda out: out)),
    Case(
        "dataclass and UserDict", "torch", FromDataclass, rows("diabetes"), (0.1,), call=lambda net, x: net(Patient(x)),
        output=lambda out: out["progress"], train=on_patients,
    ),
)  # fmt: skip
