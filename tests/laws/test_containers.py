"""What networks take and return, in whatever containers: moments cross the border, and laws never do."""

import collections
import dataclasses
import functools
import types
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from laws.small_networks import Of
from networks.third_party import allow_torchvision
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError
from momentgen.laws.law import Law
from momentgen.laws.nests import leaves_of, mapped

METHODS = ("ap1", "ap2", "sample", "local", None)


class Pair(NamedTuple):
    x: Any
    other: Any = None


@dataclasses.dataclass
class Record:
    x: Any
    other: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    other: Any = None


class Plain:
    def __init__(self, x: Any, other: Any = None) -> None:
        self.x, self.other = x, other


@dataclasses.dataclass
class CallableRecord(Record):
    def __call__(self) -> Any:
        return self.x


class Graph:
    """As graphs of graph libraries: a mapping behind attributes, which is also callable."""

    def __init__(self, x: Any, other: Any = None) -> None:
        self._store = {"x": x, "other": other}

    def __getattr__(self, name: str) -> Any:
        store = self.__dict__.get("_store", {})
        if name not in store:
            raise AttributeError(name)
        return store[name]

    def __call__(self, *names: str) -> Any:
        return ((name, self._store[name]) for name in names)


class Registered:
    __slots__ = ("other", "x")

    def __init__(self, x: Any, other: Any = None) -> None:
        self.x, self.other = x, other


pytree.register_pytree_node(
    Registered, lambda value: ([value.x, value.other], None), lambda found, _: Registered(*found)
)


class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """Keeps each item as an attribute too, as outputs of transformers do."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Items(list):  # type: ignore[type-arg]
    pass


def output(x: Any, other: Any) -> Output:
    made = Output()
    made["x"], made["other"] = x, other
    return made


#: name -> (makes the container of two values, takes them out)
CONTAINERS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda x, y: (x, y), tuple),
    "dict": (lambda x, y: {"x": x, "y": y}, lambda c: tuple(c.values())),
    "user dict": (lambda x, y: collections.UserDict(x=x, y=y), lambda c: tuple(c.values())),
    "user list": (lambda x, y: collections.UserList([x, y]), tuple),
    "list of a class": (lambda x, y: Items([x, y]), tuple),
    "default dict": (lambda x, y: collections.defaultdict(list, x=x, y=y), lambda c: tuple(c.values())),
    "read-only mapping": (lambda x, y: types.MappingProxyType({"x": x, "y": y}), lambda c: tuple(c.values())),
    "deque": (lambda x, y: collections.deque([x, y]), tuple),
    "named tuple": (Pair, tuple),
    "dataclass": (Record, lambda c: (c.x, c.other)),
    "frozen dataclass with slots": (Frozen, lambda c: (c.x, c.other)),
    "dataclass in a list": (lambda x, y: [Record(x, {"y": y})], lambda c: (c[0].x, c[0].other["y"])),
    "object": (Plain, lambda c: (c.x, c.other)),
    "callable dataclass": (CallableRecord, lambda c: (c(), c.other)),
    "callable graph": (Graph, lambda c: tuple(value for _, value in c("x", "other"))),
    "registered": (Registered, lambda c: (c.x, c.other)),
    "items that are attributes": (output, lambda c: (c["x"], c.other)),
}


def through(name: str) -> nn.Module:
    """Takes a container of two values and returns one of two: twice the first, and the sum."""
    make, take = CONTAINERS[name]

    def run(given: Any) -> Any:
        x, y = take(given)
        return make(2 * x, x + y)

    return Of(run).eval()


def pair() -> tuple[Moments, Moments]:
    torch.manual_seed(0)
    return Moments(torch.randn(3, 2), torch.rand(3, 2)), Moments(torch.randn(3, 2), torch.rand(3, 2))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_moments_in_a_container_go_in_and_come_out(name: str, method: Any) -> None:
    x, y = pair()
    make, take = CONTAINERS[name]
    given = make(x, y)
    found = momentgen.convert(through(name), method)(given)
    assert type(found) is type(given)
    assert all(part is own for part, own in zip(take(given), (x, y), strict=True))  # what was given is as it was
    twice, total = take(found)
    assert isinstance(twice, Moments)
    assert isinstance(total, Moments)
    if method in ("sample", "local"):
        assert not twice.var.any()
        assert (twice.mean != 2 * x.mean).all()
        return
    certain = method == "ap1"
    torch.testing.assert_close(twice.mean, 2 * x.mean)
    torch.testing.assert_close(total.mean, x.mean + y.mean)
    torch.testing.assert_close(twice.var, 0 * x.var if certain else 4 * x.var)
    torch.testing.assert_close(total.var, 0 * x.var if certain else x.var + y.var)


def test_a_value_that_is_there_twice_is_one_and_objects_may_hold_themselves() -> None:
    held = Plain(torch.ones(1))
    held.other = held
    made = mapped(lambda value: value + 1 if isinstance(value, Tensor) else value, [held, held])
    assert made[0] is made[1]
    assert made[0] is not held
    assert made[0].other is made[0]
    assert made[0].x == 2
    assert held.x == 1


def test_what_holds_nothing_that_changes_is_handed_on_as_it_is() -> None:
    settings = Plain("a", 3)
    module, given = nn.Linear(1, 1), [settings, Plain]
    made = mapped(lambda value: value, [*given, module])
    assert made[0] is settings
    assert made[1] is Plain
    assert made[2] is module
    assert leaves_of(module) == []


def closure(x: Any) -> Any:
    return lambda: x


#: what holds a value where no walk can replace it
HOLDERS: dict[str, Any] = {
    "closure": closure,
    "default of a function": lambda x: lambda given=x: given,
    "partial": lambda x: functools.partial(Record, x),
    "bound method": lambda x: CallableRecord(x).__call__,
    "cached function": lambda x: functools.cache(closure(x)),
    "iterator": lambda x: iter([x]),
    "generator": lambda x: (part for part in [x]),
    "set": lambda x: {x},
    "module": lambda x: Of(closure(x)),
    "closure in an object": lambda x: Plain({"call": closure(Record(x))}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", HOLDERS)
def test_moments_that_no_walk_can_replace_are_refused(name: str, method: Any) -> None:
    x, _ = pair()
    network = momentgen.convert(Of(lambda given: torch.zeros(3)), method)
    with pytest.raises(InputError, match="as arguments of their own"):
        network(HOLDERS[name](x))
    assert network(HOLDERS[name](x.mean)).mean.shape == (3,)


class Cache:
    """Keys that a network has met, as caches of transformers keep them: an object that the network changes."""

    def __init__(self) -> None:
        self.layers: list[Any] = []

    def update(self, keys: Any) -> Any:
        if self.layers:
            keys = torch.cat([self.layers[0].x, keys], 1)
        self.layers[:] = [Plain(keys)]
        return keys


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample", "local"])
def test_a_cache_that_the_network_fills_comes_back_with_moments_and_can_be_given_again(method: Any) -> None:
    x, y = pair()
    network, empty = (
        momentgen.convert(Of(lambda x, cache: Record(cache.update(x).sum(1), cache)).eval(), method),
        Cache(),
    )
    first = network(x, empty)
    assert empty.layers == []  # the network has a copy
    second = network(y, first.other)
    assert not any(isinstance(leaf, Law) for leaf in leaves_of([first, second]))
    assert second.other.layers[0].x.mean.shape == (3, 4)
    assert first.other.layers[0].x.mean.shape == (3, 2)
    if method == "ap2":
        torch.testing.assert_close(second.x.var, (x.var + y.var).sum(1))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ap1", "ap2"])
def test_the_cache_of_a_model_of_transformers_has_moments(method: Any) -> None:
    allow_torchvision()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 11,
    }
    configuration = transformers.LlamaConfig(**small, attn_implementation="eager")
    plain = transformers.LlamaModel(configuration).eval()
    x = momentgen.noisy(torch.randn(1, 3, 8), std=0.1)
    network = momentgen.convert(plain, method)
    cache = transformers.DynamicCache()
    first = network(inputs_embeds=x, past_key_values=cache, use_cache=True)
    assert not any(isinstance(leaf, Law) for leaf in leaves_of(first))
    assert cache.get_seq_length() == 0
    keys = first.past_key_values.layers[0].keys
    assert isinstance(keys, Moments)
    assert keys.mean.shape == (1, 2, 3, 4)
    assert bool(keys.var.any()) == (method != "ap1")
    again = network(inputs_embeds=x, past_key_values=first.past_key_values, use_cache=True)
    assert again.past_key_values.layers[1].keys.mean.shape == (1, 2, 6, 4)
