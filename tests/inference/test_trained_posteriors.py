"""Posteriors that other libraries trained: a network's moments are those of many draws by the library itself."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor, nn
from torch.func import functional_call

from momentgen import method
from momentgen.errors import InputError
from momentgen.inference import BayesianNetwork, from_ivon, from_laplace, from_swag, from_vbll, randomise
from momentgen.inference.affine import Affine, Blocks, Each, Noise, Sides

DRAWS = 20_000


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 2)).double()


def data(rows: int = 80) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(rows, 3, dtype=torch.float64)
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(1).sin()], 1)


def fitted(network: nn.Module) -> nn.Module:
    x, y = data()
    adam = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(150):
        adam.zero_grad()
        (network(x) - y).square().mean().backward()
        adam.step()
    return network


def agree_by_default(bayes: BayesianNetwork, draws: Tensor, x: Any, rtol: float = 0.015) -> None:
    """Under the default mean and σ are those of draws but for five of their stated errors, and of the draws'."""
    with method("controlled", rtol=rtol, max_rows=20_000), torch.no_grad():
        found = bayes.eval()(x)
    spread, error = draws.std(0), len(draws) ** -0.5
    of_mean, of_std = (found.mean - draws.mean(0)).abs(), (found.var.sqrt() - spread).abs()
    assert (of_mean / (found.mean_error + error * spread)).max() < 5
    assert (of_std / (found.std_error + error * spread)).max() < 5


# ------------------------------------------------------------------ stand-ins and closed forms, without any package


def laplace_like(network: nn.Module, precision: Any, **more: Any) -> Any:
    """What a fitted Laplace approximation of laplace-torch holds."""
    values = [value for value in network.parameters() if value.requires_grad]
    mean = nn.utils.parameters_to_vector(values).detach()
    return SimpleNamespace(mean=mean, posterior_precision=precision, model=network, backend=SimpleNamespace(), **more)


def test_the_exact_posterior_of_a_linear_model_gives_its_exact_predictive_variance() -> None:
    """Bayesian linear regression in closed form; ``ap2`` takes weights as independent, and is exact for these."""
    x, _ = data()
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    precision = (design.T @ design / 0.3 + torch.eye(4, dtype=x.dtype)).diag().diag()
    plain = nn.Linear(3, 1).double()
    scale = torch.linalg.inv(torch.linalg.cholesky(precision)).T
    bayes = randomise(plain, from_laplace(laplace_like(plain, precision, posterior_scale=scale)))
    exact = (design @ torch.linalg.inv(precision) * design).sum(1)
    with method("ap2"):
        found = bayes(x)
    assert torch.allclose(found.var[:, 0], exact, rtol=1e-10)
    assert torch.allclose(found.mean, plain(x), rtol=1e-12)


def test_a_last_layer_whose_covariance_is_nearly_singular_is_taken_by_its_own_root() -> None:
    root = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-6, 0.0], [0.5, 0.2, 0.1]]).expand(2, 3, 3)

    class Last(nn.Module):  # as of vbll
        def W(self) -> Any:  # noqa: N802
            return torch.distributions.MultivariateNormal(torch.ones(2, 3), scale_tril=root)

        def noise(self) -> Any:
            return torch.distributions.Normal(torch.zeros(2), torch.full((2,), 0.1))

    plain = nn.Sequential(Last())
    x = torch.tensor([[1.0, -1.0, 0.0]])
    with method("controlled"):
        found = randomise(plain, from_vbll(plain[0]))(x)
    assert torch.allclose(found.std, torch.full((1, 2), 0.1), rtol=1e-4)


def test_a_posterior_of_all_weights_is_taken_as_such_where_the_network_has_a_last_layer() -> None:
    plain = nn.Sequential()
    plain.add_module("first", nn.Linear(3, 4))
    plain.add_module("last_layer", nn.Linear(4, 2))
    bayes = randomise(plain, from_laplace(laplace_like(plain, torch.linspace(1, 2, 26))))
    assert len(bayes.posteriors) == 4


def test_kronecker_factors_give_the_variance_of_the_matrix_they_stand_for() -> None:
    torch.manual_seed(2)
    shape = (4, 2, 1, 2)  # of a convolution
    left, right = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for n in (4, 4))
    std = torch.rand(4, 4, dtype=torch.float64) + 0.1
    root = torch.kron(left, right)
    dense = root @ (std.flatten().square()[:, None] * root.T)
    posterior = Affine(torch.zeros(shape, dtype=torch.float64), [Sides(left, std, right, shape)])
    assert torch.allclose(posterior.var.flatten(), dense.diag(), rtol=1e-12)
    draws = posterior.sample(DRAWS, torch.Generator().manual_seed(0)).reshape(DRAWS, -1)
    assert (draws.T.cov() - dense).abs().max() < 0.05


@pytest.mark.parametrize("how", ["controlled", "sample", "local"])
def test_parameters_that_share_noise_move_together(how: Any) -> None:
    """y = (1 + ξ)·x - ξ·x for noise ξ that two weights have in common: certain, whatever ξ is."""

    parts = {"a": nn.Parameter(torch.ones(1, 1)), "b": nn.Parameter(torch.zeros(1, 1))}
    plain, one = Of(lambda net, x: x @ net.a.T + x @ net.b.T, **parts), torch.ones(1, 1, 1)
    noise = Noise(one, (1, 1))
    posteriors = {
        "a": Affine(plain.a, [Blocks(one, (1, 1), noise)]), "b": Affine(plain.b, [Blocks(-one, (1, 1), noise)]),
    }  # fmt: skip
    x = torch.tensor([[2.0], [5.0]])
    bayes = BayesianNetwork(plain, posteriors).eval()
    with method(how):
        assert torch.allclose(bayes(x).mean, x, rtol=1e-5)
        assert bool((bayes(x).var < 1e-8).all())
    other = BayesianNetwork(plain, {**posteriors, "b": Affine(plain.b, [Each(torch.ones(1, 1))])}).eval()
    with method("controlled"):
        assert torch.allclose(other(x).var, 2 * x.square(), rtol=0.2)


def test_iterates_of_weights_give_the_distribution_of_swag() -> None:
    torch.manual_seed(3)
    plain, iterates = fitted(net()), []
    x, y = data()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.2)
    for _ in range(30):
        rows = torch.randint(len(x), (10,))
        sgd.zero_grad()
        (plain(x[rows]) - y[rows]).square().mean().backward()
        sgd.step()
        iterates.append(copy.deepcopy(plain.state_dict()))
    values = torch.stack([torch.cat([one.flatten() for one in state.values()]) for state in iterates])
    # Maddox et al. 2019, algorithm 1 and (1): deviations are from the running mean
    running = values.cumsum(0) / torch.arange(1, 31, dtype=values.dtype)[:, None]
    last, var = (values - running)[-20:], values.var(0, correction=0)
    noise = torch.randn(DRAWS, len(var), dtype=var.dtype)
    drawn = values.mean(0) + (0.5 * var).sqrt() * noise
    drawn = drawn + torch.randn(DRAWS, 20, dtype=var.dtype) @ last / (2 * 19) ** 0.5
    bayes = randomise(plain, from_swag(iterates))
    agree_by_default(bayes, many(plain, drawn, x[:6]), x[:6])
    # Without its correlated part it is a mean field.
    drawn = values.mean(0) + (0.5 * var).sqrt() * noise
    agree_by_default(randomise(plain, from_swag(iterates, rank=0)), many(plain, drawn, x[:6]), x[:6])


def test_iterates_of_shared_weights_and_of_buffers_within_another_network_are_taken() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    plain[2].weight = plain[0].weight
    state = plain.state_dict()
    moved = {name: value + 0.1 if value.is_floating_point() else value for name, value in state.items()}
    bayes = randomise(nn.Sequential(plain, nn.ReLU()), from_swag([state, moved]))
    assert set(bayes.posteriors) == {"0/0/weight", "0/0/bias", "0/1/weight", "0/1/bias", "0/2/bias"}
    assert torch.equal(bayes.posteriors["0/0/weight"].mean, torch.stack([state["0.weight"], moved["0.weight"]]).mean(0))


def test_iterates_are_placed_by_their_full_names() -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))  # 0.weight and 1.0.weight
    state = plain.state_dict()
    bayes = randomise(plain, from_swag([state, {name: value + 1 for name, value in state.items()}]))
    assert torch.allclose(bayes.posteriors["1/0/weight"].mean, state["1.0.weight"] + 0.5)


@pytest.mark.parametrize("how", ["ap1", "ap2", "sample", "controlled"])
def test_parameters_that_only_leaves_out_stay_at_the_trained_means(how: Any) -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    first = {name: value.clone() for name, value in plain.state_dict().items()}
    second = {name: value + (2 if name == "0.weight" else 1e-3) for name, value in first.items()}
    x = data()[0][:5]
    with method(how):
        found = randomise(plain, from_swag([first, second], rank=0), only="1.*")(x)
    mean = {name: (first[name] + second[name]) / 2 for name in first}
    assert torch.allclose(found.mean, functional_call(plain, mean, (x,)), atol=0.05)


def many(plain: nn.Module, drawn: Tensor, x: Tensor) -> Tensor:
    """Outputs of the plain network for parameter vectors ``(n, count)``."""
    names, sizes = zip(*((name, value.numel()) for name, value in plain.named_parameters()), strict=True)
    shapes = [value.shape for value in plain.parameters()]

    def run(vector: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(vector.split(sizes), shapes, strict=True)]
        return functional_call(plain, dict(zip(names, parts, strict=True)), (x,))

    with torch.no_grad():
        return torch.vmap(run, chunk_size=2000)(drawn)


# ------------------------------------------------------------------ the packages themselves


def laplace(network: nn.Module, which: str, structure: str, x: Tensor, y: Tensor, **more: Any) -> Any:
    pytest.importorskip("laplace", exc_type=ImportError)
    from laplace import Laplace

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=40)
    found = Laplace(
        network,
        "regression",
        subset_of_weights=which,
        hessian_structure=structure,
        prior_precision=3.0,
        sigma_noise=0.3,
        **more,
    )
    found.fit(loader)
    return found


@pytest.fixture
def torchvision() -> None:
    pytest.importorskip("asdl")
    from networks.third_party import allow_torchvision

    allow_torchvision()


LAPLACES = [("all", "diag"), ("all", "kron"), ("all", "full"), ("last_layer", "full"), ("last_layer", "kron"),
            ("last_layer", "diag"), ("subnetwork", "full"), ("subnetwork", "diag")]  # fmt: skip


@pytest.mark.parametrize(("which", "structure"), LAPLACES)
@pytest.mark.filterwarnings("ignore")
def test_a_laplace_approximation_predicts_as_its_own_draws(which: str, structure: str, torchvision: None) -> None:
    plain = fitted(net())
    x, y = data()
    more = {"subnetwork_indices": torch.arange(5, 45, 2)} if which == "subnetwork" else {}
    torch.set_default_dtype(torch.float64)
    try:
        la = laplace(plain, which, structure, x, y, **more)
        drawn = la.sample(DRAWS).detach()
    finally:
        torch.set_default_dtype(torch.float32)
    bayes = randomise(plain, from_laplace(la))
    if which == "last_layer":
        drawn = torch.cat([nn.utils.parameters_to_vector(plain[0].parameters()).expand(DRAWS, -1), drawn], 1)
    draws = many(plain, drawn, x[:5])
    agree_by_default(bayes, draws, x[:5])


def test_weights_of_a_token_model_that_ivon_trained_are_random() -> None:
    ivon = pytest.importorskip("ivon")
    torch.manual_seed(4)

    embedding, block = nn.Embedding(12, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain = Of(
        lambda net, tokens: net.head(net.block(net.embedding(tokens)).mean(1)),
        embedding=embedding,
        block=block,
        head=nn.Linear(8, 3),
    )
    tokens = torch.randint(12, (64, 6))
    labels = tokens[:, 0] % 3
    optimizer = ivon.IVON(plain.parameters(), lr=0.05, ess=64, hess_init=1.0)
    for _ in range(60):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(plain(tokens), labels).backward()
        optimizer.step()
    draws = []
    plain.eval()
    with torch.no_grad():
        for _ in range(2000):
            with optimizer.sampled_params():
                draws.append(plain(tokens[:4]))
    agree_by_default(randomise(plain, from_ivon(optimizer)), torch.stack(draws), tokens[:4], rtol=0.03)


@pytest.mark.parametrize("form", ["diagonal", "dense", "lowrank", "dense_precision"])
def test_a_layer_of_vbll_gives_its_own_predictive_moments(form: str) -> None:
    vbll = pytest.importorskip("vbll")
    torch.manual_seed(5)
    more = {"cov_rank": 2} if form == "lowrank" else {}
    plain = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), vbll.Regression(10, 2, 0.01, form, **more))
    x = torch.randn(5, 3)
    own = plain(x).predictive
    bayes = randomise(plain, from_vbll(plain[-1]))
    with method("controlled"):
        found = bayes(x)
    assert torch.allclose(found.mean, own.mean, atol=1e-5)
    assert torch.allclose(found.var, own.covariance.diagonal(dim1=-2, dim2=-1), rtol=1e-4)
    assert isinstance(plain[-1], vbll.Regression)


def test_student_layers_of_vbll_are_refused() -> None:
    vbll = pytest.importorskip("vbll")
    with pytest.raises(InputError, match="whose noise is random"):
        from_vbll(vbll.tRegression(4, 1, 0.01))
