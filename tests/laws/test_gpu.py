"""Networks on a GPU say what they say on the CPU; skipped where there is none."""

import copy

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor, nn
from torch_networks import Recurrent

import momentgen
from momentgen import Moments
from momentgen.inference import MeanField, randomise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICE = "cuda"


def attention() -> nn.Module:
    def attending(net: nn.Module, x: Tensor) -> Tensor:
        x = net.norm(x)
        return net.head((x + net.heads(x, x, x)[0]).mean(1))

    heads = nn.MultiheadAttention(16, 4, batch_first=True)
    return Of(attending, norm=nn.LayerNorm(16), heads=heads, head=nn.Linear(16, 3))


def perceptron() -> nn.Module:
    layers = [nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)]
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    pool = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*pool, nn.Linear(8 * 9, 3), nn.LogSoftmax(-1))


NETWORKS = {
    "perceptron": (perceptron, (12,)),
    "convolutional": (convolutional, (1, 8, 8)),
    "attention": (attention, (5, 16)),
    "recurrent": (lambda: Recurrent(nn.GRU), (6, 4)),
}


def noisy(shape: tuple[int, ...], device: str, joint: bool = False) -> Moments:
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1)).to(device)
    if joint:
        n = x[0].numel()
        root = 0.1 * torch.randn(n, n, generator=torch.Generator().manual_seed(2))
        return momentgen.noisy(x, cov=(root @ root.T).to(device))
    return momentgen.noisy(x, std=0.2)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in NETWORKS
        for method in ("controlled", "ap2", "ap1")
        if (name, method) != ("recurrent", "ap2")  # which has no rule for it
    ],
)
def test_moments_are_those_of_the_cpu(name: str, method: str, joint: bool) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = make().eval()
    here = momentgen.convert(net, method)(noisy(shape, "cpu", joint))
    there = momentgen.convert(copy.deepcopy(net).to(DEVICE), method)(noisy(shape, DEVICE, joint))
    assert there.mean.device.type == there.var.device.type == DEVICE
    torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(there.std.cpu(), here.std, rtol=2e-3, atol=1e-5)
    if here.std_error is not None:
        torch.testing.assert_close(there.std_error.cpu(), here.std_error, rtol=0.05, atol=1e-5)


def test_dropout_is_drawn_on_the_gpu_and_its_sigma_is_that_of_draws() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3)).to(DEVICE)
    x = torch.randn(4, 12, device=DEVICE)
    net.train()
    with torch.no_grad():
        expected = torch.stack([net(x) for _ in range(20_000)]).std(0)
    found = momentgen.convert(net, "controlled")(Moments(x, torch.zeros_like(x)))
    off = (found.std - expected).abs() / (found.std_error.square() + (0.01 * expected).square()).sqrt()
    assert off.max() < 4.5


def test_drawn_weights_are_sources_on_the_gpu() -> None:
    torch.manual_seed(0)
    net = randomise(perceptron(), MeanField(std=0.1)).to(DEVICE).eval()
    x = torch.randn(4, 12, device=DEVICE)
    found = momentgen.convert(net, "controlled")(Moments(x, torch.zeros_like(x)))
    sampled = momentgen.convert(net, "sample")
    with torch.no_grad():
        expected = torch.stack([sampled(x).mean for _ in range(4_000)]).std(0)
    off = (found.std - expected).abs() / (found.std_error.square() + (0.02 * expected).square()).sqrt()
    assert off.max() < 4.5


def test_same_bits_twice_and_half_precision_runs() -> None:
    net = perceptron().to(DEVICE).eval()
    x = noisy((12,), DEVICE)
    one, two = (momentgen.convert(net)(x) for _ in range(2))
    assert torch.equal(one.std, two.std)
    low = Moments(x.mean.bfloat16(), x.var.bfloat16())
    half = momentgen.convert(perceptron().bfloat16().to(DEVICE).eval())(low)
    assert half.std.isfinite().all()


def test_gradients_are_those_of_the_cpu() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        net = perceptron().to(device)
        out = momentgen.convert(net, "ap2")(noisy((12,), device))
        (out.mean.square().mean() + out.var.log().mean()).backward()
        grads.append([part.grad.cpu() for part in net.parameters() if part.grad is not None])
    assert len(grads[0]) == len(grads[1]) == 6
    for here, there in zip(*grads, strict=True):
        torch.testing.assert_close(there, here, rtol=2e-3, atol=1e-5)
