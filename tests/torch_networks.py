"""Small networks, and what the tests with torch's own machinery (compile, export, func, ...) share."""

import gc
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

import momentgen
from momentgen import Moments


class ResidualCNN(nn.Module):
    """Convolutions with batch norm, a residual, dropout of channels and of units, a mean over space."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.drop, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout2d(0.2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        y = y + self.drop(self.second(y))
        return self.head(F.dropout(y.mean((2, 3)), 0.3, self.training))


class Recurrent(nn.Module):
    """A recurrent layer whose last output is read."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class ViT(nn.Module):
    """A vision transformer: patches by a convolution, a class token, pre-norm blocks by torch's attention."""

    def __init__(self, depth: int = 1, width: int = 16, heads: int = 2, size: int = 8, patch: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(
            nn.ModuleList((nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
                           nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)))
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.place
        for norm, qkv, out, second, up, down in self.blocks:
            q, k, v = qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = x + down(F.gelu(up(second(x))))
        return self.head(x[:, 0])


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))


def pooled() -> nn.Sequential:
    """A convolution, a maximum, a softmax, for images of 6 by 6."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3), nn.Softmax(-1))


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


#: name -> network, and the shape of an input of two examples
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (2, 4)),
    "cnn": (lambda: ResidualCNN().eval(), (2, 3, 6, 6)),
    "pooled": (pooled, (2, 3, 6, 6)),
    "vit": (ViT, (2, 3, 8, 8)),
    "encoder layer": (encoder_layer, (2, 3, 8)),
}


def moments(*shape: int, noise: float = 0.3, grad: bool = False) -> Moments:
    """A random input."""
    return Moments(torch.randn(shape).requires_grad_(grad), (noise * torch.rand(shape)).requires_grad_(grad))


def close(found: Any, expected: Any, relative: float = 1e-5) -> None:
    """Tensors equal within a share of the largest number of each."""
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=relative * float(b.detach().abs().max()) + 1e-12)


def gradients(network: Callable[..., Any], x: Moments, parameters: Iterable[Tensor]) -> list[Tensor | None]:
    """Output, and the gradients in input and parameters of a sum over it."""
    parameters = list(parameters)
    leaves = Moments(*(part.detach().clone().requires_grad_() for part in x))
    out = network(leaves)
    found = torch.autograd.grad(out.mean.sum() + out.std.sum(), [*leaves, *parameters], allow_unused=True)
    return [*(part.detach() for part in out), *found]


def _in_group(rank: int, folder: str, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        work(rank, folder, *args)
        torch.distributed.barrier()  # a rank that leaves while another still talks to it leaves that one waiting
    finally:
        # DDP joins threads of the group when it dies, holding the lock that these wait for: it dies first.
        gc.collect()
        torch.distributed.destroy_process_group()


def two_processes(folder: Path, work: Callable[..., None], *args: Any, seconds: float = 240) -> None:
    """``work(rank, folder, *args)`` in two processes that can talk to each other, which are killed after ``seconds``.

    ``work`` drops the networks that it wraps in DDP: it returns None, and keeps none in globals.
    """
    running = torch.multiprocessing.spawn(_in_group, (str(folder), work, args), nprocs=2, join=False)
    end = time.monotonic() + seconds
    while not running.join(timeout=max(end - time.monotonic(), 0)):
        if time.monotonic() > end:
            for process in running.processes:
                process.kill()
                process.join()
            raise TimeoutError(f"{work.__name__}: two processes took more than {seconds:.0f} s")


def train_distributed(rank: int, folder: str, state: dict[str, Tensor], x: tuple[Tensor, Tensor]) -> None:
    """One of two processes: gradients over its half of the batch, which DDP averages; the first one writes them."""
    plain = mlp()
    plain.load_state_dict(state)
    network = nn.parallel.DistributedDataParallel(momentgen.convert(plain, "ap2"), find_unused_parameters=True)
    half = Moments(*(part.chunk(2)[rank] for part in x))
    out = network(half)
    (out.mean.square().mean() + out.var.mean()).backward()
    if rank == 0:
        torch.save([part.grad for part in plain.parameters()], f"{folder}/gradients.pt")


def bound_of_half(rank: int, folder: str, state: dict[str, Tensor], x: Tensor, y: Tensor) -> None:
    """One of two processes: gradients of the lower bound over its half of the batch; the first one writes them."""
    from momentgen.inference import Gaussian, MeanField, elbo, randomise

    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    plain.load_state_dict(state)
    bayes = randomise(plain, MeanField())
    network = torch.nn.parallel.DistributedDataParallel(bayes)
    with momentgen.method("ap2"):
        bound = elbo(network, Gaussian(var=0.1), x.chunk(2)[rank], y.chunk(2)[rank], size=len(x))
    (-bound).backward()
    if rank == 0:
        torch.save({name: value.grad for name, value in bayes.named_parameters()}, f"{folder}/bound.pt")
