"""Networks that hold their own parts otherwise than as modules: σ is that of the same network by modules alone."""

import copy
import functools
import itertools
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

import momentgen
from momentgen.errors import InputError, UnsupportedError
from momentgen.inference import MeanField, randomise
from momentgen.laws.border import set_method

STD = 0.3


class Network(nn.Module):
    """Two layers and dropout; ``act`` runs them."""

    def __init__(self, hold: Callable[[Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.dropout = nn.Linear(2, 4), nn.Linear(4, 1), nn.Dropout(0.5)
        self.double()
        hold(self)

    def body(self, x: Any) -> Any:
        return self.second(self.dropout(torch.tanh(self.first(x))))

    def forward(self, x: Any) -> Any:
        return self.act(x)


class Modules(Network):
    """The same by modules alone, with a hook, as one of the ways has: it decides how many rows go together."""

    def __init__(self, way: str = "") -> None:
        super().__init__(lambda network: None)
        if way == "hook":
            self.dropout.register_forward_pre_hook(lambda _, args: args)

    def forward(self, x: Any) -> Any:
        return self.body(x)


class Runner:
    def __init__(self, network: Any) -> None:
        self.network = network

    def run(self, x: Any) -> Any:
        return self.network.body(x)


class Caller(Runner):
    def __call__(self, x: Any) -> Any:
        return self.run(x)


def act(make: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda network: setattr(network, "act", make(network))


def run(first: Any, second: Any, dropout: Any, x: Any) -> Any:
    return second(dropout(torch.tanh(first(x))))


def list_of_layers(network: Any) -> None:
    network.layers = [network.first, network.second, network.dropout]
    network.act = lambda x: run(*network.layers, x)


def closure_over_layers(network: Any) -> None:
    layers = {"all": (network.first, network.second, network.dropout)}
    network.act = lambda x: run(*layers["all"], x)


def lists_of_weights(network: Any) -> None:
    network.weights = [network.first.weight, network.second.weight]
    network.biases = {"first": network.first.bias, "second": network.second.bias}
    apply = nn.functional.linear
    network.act = lambda x: apply(
        network.dropout(torch.tanh(apply(x, network.weights[0], network.biases["first"]))),
        network.weights[1],
        network.biases["second"],
    )


def replaced_forward(network: Any) -> None:
    before = network.first.forward
    network.first.forward = lambda x: before(x)
    network.act = types.MethodType(Network.body, network)


def replaced_outermost(network: Any) -> None:
    network.forward = network.body


def hook_over_a_layer(network: Any) -> None:
    network.dropout.register_forward_pre_hook(lambda _, args: (torch.tanh(network.first(args[0])),))
    network.act = lambda x: network.second(network.dropout(x))


def compiled(network: Any) -> None:
    network.act = network.body
    network.compile()


def compiled_layers(network: Any) -> None:
    network.act = network.body
    network.first.compile()
    network.second = torch.compile(network.second)


#: how a network may hold its parts
WAYS: dict[str, Callable[[Any], None]] = {
    "bound method": act(lambda network: network.body),
    "bound method of a part": lambda network: (
        setattr(network, "layer", network.first.forward),
        setattr(network, "act", lambda x: run(network.layer, network.second, network.dropout, x)),
    ),
    "partial over the network": act(lambda network: functools.partial(Network.body, network)),
    "partial over layers": act(lambda network: functools.partial(run, network.first, network.second, network.dropout)),
    "lambda": act(lambda network: lambda x: network.body(x)),
    "default of a lambda": act(lambda network: lambda x, own=network: own.body(x)),
    "nested closure": act(lambda network: functools.wraps(run)(lambda x: (lambda y: network.body(y))(x))),
    "callable object": act(Caller),
    "method of a callable object": act(lambda network: Caller(network).run),
    "namespace": lambda network: (
        setattr(network, "parts", types.SimpleNamespace(run=network.body)),
        setattr(network, "act", lambda x: network.parts.run(x)),
    ),
    "list of layers": list_of_layers,
    "closure over layers": closure_over_layers,
    "lists of weights": lists_of_weights,
    "replaced forward": replaced_forward,
    "replaced forward of the outermost": replaced_outermost,
    "hook": hook_over_a_layer,
    "compiled in place": compiled,
    "compiled layers": compiled_layers,
    "compiled method": act(lambda network: torch.compile(network.body)),
}
OUTSIDE: Any = None


def global_variable(network: Any) -> None:
    global OUTSIDE
    OUTSIDE = network
    network.act = lambda x: OUTSIDE.body(x)


#: what no twin can follow
REFUSED: dict[str, Callable[[Any], None]] = {
    "global variable": global_variable,
    "method of an object": act(lambda network: Runner(network).run),
    "cached function": act(lambda network: functools.cache(lambda x: network.body(x))),
}
X = torch.linspace(-1, 1, 6, dtype=torch.float64).view(3, 2)
ways = pytest.mark.parametrize("way", WAYS)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.var, expected.var)


@ways
@pytest.mark.parametrize("method", [None, "ap1"])  # by others in both modes below
def test_a_network_gives_what_it_gives_by_modules_alone(way: str, method: Any) -> None:
    x = momentgen.noisy(X, std=0.2)
    for made in (momentgen.convert, lambda network: randomise(network, MeanField(std=STD))):
        found, expected = made(Network(WAYS[way])).eval(), made(Modules(way)).eval()
        for network in (found, expected):
            set_method(network, method)
        answers = []
        for network in (expected, found):
            torch.manual_seed(1)
            answers.append(network(x))
        same(*answers)


@ways
@pytest.mark.parametrize("training", [True, False])
def test_dropout_follows_the_flag_of_the_converted_network(way: str, training: bool) -> None:
    plain, alone = Network(WAYS[way]).train(not training), Modules()
    for method, made in itertools.product(
        ("ap2", "sample"), (momentgen.convert, lambda network: randomise(network, MeanField(std=STD)))
    ):
        answers = []
        for network in (made(alone).train(training), made(plain).train(training)):
            set_method(network, method)
            torch.manual_seed(1)
            answers.append(network(momentgen.noisy(X, std=0.2)))
        same(*answers)
    assert plain.dropout.training is not training


@pytest.mark.parametrize("way", ["global variable", "method of an object"])
@pytest.mark.parametrize("made", [momentgen.convert, lambda network: randomise(network, MeanField(), only="head")])
@pytest.mark.parametrize("method", [None, "ap2", "sample"])
def test_a_plain_part_with_another_training_flag_is_refused(way: str, made: Any, method: Any) -> None:
    plain: Any = Network(REFUSED[way])
    plain.head = nn.Parameter(torch.ones(1))
    network = made(plain)
    set_method(network, method)
    network(momentgen.noisy(X, std=0.1))
    with pytest.raises(InputError, match=r"training=False.*eval\(\) of the plain network"):
        network.eval()(momentgen.noisy(X, std=0.1))
    plain.eval()
    assert network(momentgen.noisy(X, std=0.1)).mean.shape == (3, 1)


@ways
def test_the_bound_trains_all_parameters(way: str) -> None:
    gradients = []
    for network in (Modules(), Network(WAYS[way])):
        bayes = randomise(network, MeanField(std=STD)).eval()
        with momentgen.method("sample"):
            torch.manual_seed(1)
            bayes(X).mean.square().sum().backward()
        gradients.append([value.grad for value in bayes.posteriors.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("way", REFUSED)
@pytest.mark.parametrize("method", [None, "ap2", "sample", "local"])
def test_a_plain_parameter_in_the_place_of_a_random_one_is_an_error_that_names_it(way: str, method: Any) -> None:
    bayes = randomise(Network(REFUSED[way]).eval(), MeanField(std=STD)).eval()
    set_method(bayes, method)
    with pytest.raises(InputError, match=r"first\.weight"):
        bayes(X)
    with momentgen.method("ap1"):  # which runs on the same values
        bayes(X)


@pytest.mark.parametrize("place", ["hook", "forward"])
def test_a_function_in_a_network_of_torchs_modules_is_watched_too(place: str) -> None:
    global OUTSIDE
    OUTSIDE = plain = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double().eval()
    if place == "hook":
        plain[1].register_forward_hook(lambda module, args, out: out @ OUTSIDE[2].weight)
    else:
        plain[2].forward = lambda x: x @ OUTSIDE[2].weight
    bayes = randomise(plain, MeanField(std=STD)).eval()
    with pytest.raises(InputError, match=r"2\.weight"):
        bayes(X)


def test_a_law_that_meets_a_plain_parameter_by_an_operator_raises() -> None:
    network = Network(act(lambda network: None)).eval()
    network.act = Runner(network).run
    outside = network.second.weight
    network.body = functools.cache(lambda x: network.first(x) @ outside.T)
    bayes = randomise(network, MeanField(std=STD), only="second.weight").eval()
    network.act = None
    with momentgen.method("ap2"), pytest.raises(InputError, match=r"second\.weight"):
        bayes(momentgen.noisy(X, std=0.1))


class Computed(nn.Module):
    """Keeps what it has computed of its weight by the first call."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.layer, self.head, self.kept = nn.Linear(2, 2), nn.Linear(2, 1), None
        self.keeps = keeps

    def forward(self, x: Any) -> Any:
        weight = self.layer.weight.tanh() if self.kept is None else self.kept
        if self.keeps:
            self.kept = weight
        return torch.tanh(x @ weight)


@pytest.mark.parametrize("method", [None, "ap2", "sample"])
def test_a_parameter_that_is_not_read_but_counts_is_an_error_that_names_it(method: Any) -> None:
    plain, x = Computed(keeps=True).eval(), X.float()
    plain(x)  # now it holds a value of the weight
    bayes = randomise(plain, MeanField(std=STD)).eval()
    set_method(bayes, method)
    with pytest.raises(InputError, match=r"layer\.weight"):
        bayes(x)


@pytest.mark.parametrize("method", [None, "ap2", "sample"])
def test_parameters_that_a_network_does_not_read_may_be_random(method: Any) -> None:
    class Routes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: Any, left: bool) -> Any:
            return (self.left if left else self.right)(x)

    bayes = randomise(Routes(), MeanField(std=STD)).eval()
    set_method(bayes, method)
    for left in (True, False, True):
        assert bayes(X.float(), left).mean.shape == (3, 1)
    assert randomise(Computed(keeps=False).eval(), MeanField(std=STD))(X.float()).std.min() > 0.01


#: networks of torch that keep or compute their parameters in ways of their own
OF_TORCH: dict[str, Callable[[], nn.Module]] = {
    "tied weights": lambda: tied(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))),
    "recurrent": lambda: nn.LSTM(2, 3, batch_first=True),
    "attention": lambda: nn.TransformerEncoderLayer(2, 1, 4, batch_first=True),
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 1)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(2, 2)),
    "parameters in a list": lambda: Listed(),
}


def tied(network: Any) -> nn.Module:
    network[2].weight = network[0].weight
    return network  # type: ignore[no-any-return]


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))])
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return functools.reduce(torch.matmul, [x, *self.weights])


@pytest.mark.parametrize("name", OF_TORCH)
def test_parameters_that_torch_keeps_in_its_own_ways_may_be_random(name: str) -> None:
    torch.manual_seed(0)
    bayes = randomise(OF_TORCH[name]().eval(), MeanField(std=STD)).eval()
    x = X.float()[:, None] if name in ("recurrent", "attention") else X.float()
    with momentgen.method("sample"), torch.no_grad():
        one, other = (bayes(x) for _ in range(2))
    first, second = (found[0] if isinstance(found, tuple) and name == "recurrent" else found for found in (one, other))
    assert not torch.equal(first.mean, second.mean)


def test_distributed_tensors_are_refused_and_a_sharded_network_converts(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        plain, sharded = (nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).eval() for _ in range(2))
        sharded.load_state_dict(plain.state_dict())
        for part in (sharded[0], sharded[2], sharded):
            fully_shard(part, mesh=mesh)
        with pytest.raises(InputError, match="DTensor"):
            randomise(sharded, MeanField(std=STD))
        x = momentgen.noisy(X.float(), std=0.1)
        same(momentgen.convert(sharded, "ap2")(x), momentgen.convert(plain, "ap2")(x))
        given = distribute_tensor(X.float(), mesh, [Replicate()])
        with pytest.raises(InputError, match="full_tensor"):
            momentgen.convert(plain)(momentgen.Moments(given, given.square()))
    finally:
        distributed.destroy_process_group()


@torch.compile
def compiled_function(x: Any) -> Any:
    return torch.tanh(x) * x


@pytest.mark.parametrize("method", [None, "ap2", "sample"])
def test_compiled_networks_and_functions_give_the_numbers_of_eager_ones(method: Any) -> None:
    class Calls(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.function = nn.Linear(2, 3).double(), function

        def forward(self, x: Any) -> Any:
            return self.function(self.layer(x))

    def through_global(x: Any) -> Any:
        return compiled_function(x)

    eager = compiled_function._torchdynamo_orig_callable  # type: ignore[attr-defined]
    x, answers = momentgen.noisy(X, std=0.2), []
    for plain in (Calls(eager), torch.compile(Calls(eager)), Calls(compiled_function), Calls(through_global)):
        own: Any = plain.eval()
        for network in (momentgen.convert(own), randomise(own, MeanField(std=STD)).eval()):
            set_method(network, method)
            torch.manual_seed(1)
            answers.append(network(x))
        assert list(momentgen.convert(own).state_dict()) == list(own.state_dict())
    for place, found in enumerate(answers):
        same(found, answers[place % 2])


def test_a_copy_of_a_converted_compiled_network_runs_as_the_network_does() -> None:
    x = momentgen.noisy(X, std=0.2)
    plain: Any = torch.compile(Modules())
    for network in (momentgen.convert(plain), randomise(plain, MeanField(std=STD))):
        answers = []
        for one in (network.eval(), copy.deepcopy(network)):
            torch.manual_seed(1)
            answers.append(one(x))
        same(*answers)


def test_compiled_functions_compile_again_after_a_call() -> None:
    compiled_function(X)
    before = torch._dynamo.eval_frame._stance
    network = momentgen.convert(Network(act(lambda network: compiled_function))).eval()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(network, [momentgen.noisy(X, std=0.1)] * 8))
    assert torch._dynamo.eval_frame._stance == before


def test_the_module_of_an_exported_program_runs_by_methods_that_draw() -> None:
    plain = Modules().eval()
    exported = torch.export.export(plain, (X,)).module()
    x = momentgen.noisy(X, std=0.2)
    for network, other in (
        (momentgen.convert(exported), momentgen.convert(plain)),
        (randomise(exported, MeanField(std=STD)), randomise(plain, MeanField(std=STD))),
    ):
        found, expected = network(x), other.eval()(x)
        assert ((found.std - expected.std).abs() < 4 * (found.std_error + expected.std_error)).all()
        with momentgen.method("ap2"), pytest.raises(UnsupportedError, match="exported"):
            network(x)
