"""``randomise``: a plain network whose parameters are replaced by posteriors.

The network's code runs as it is.  Each call makes its modules anew over the same parameters and buffers.  Random
parameters become plain attributes: a mean, a draw, or a law of their posterior, as the method decides
(:mod:`momentgen.laws.weights`).  So calls in several threads do not disturb each other, and a recomputation in a
backward pass meets the same draw.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.affine import Affine, Noise
from momentgen.inference.posterior import Posterior
from momentgen.inference.prior import Normal, Prior
from momentgen.inference.trained import Trained
from momentgen.laws.border import entered, inside, set_method
from momentgen.laws.convert import convert
from momentgen.laws.draws import Reads
from momentgen.laws.methods import ALL, current_method, method
from momentgen.laws.nests import Kept, leaves_of, mapped
from momentgen.laws.twins import is_torchs_own, twin
from momentgen.laws.weights import once_in_a_run
from momentgen.runtime import Moments
from momentgen.runtime.inputs import transforming

#: which parameters: a pattern of their names or several, or a function of name and parameter
Only = str | tuple[str, ...] | list[str] | Callable[[str, torch.nn.Parameter], bool]


def randomise(
    network: torch.nn.Module,
    posterior: Posterior | Trained,
    *,
    only: Only | None = None,
    prior: Prior | Mapping[str, Prior] | None = None,
) -> BayesianNetwork:
    """The Bayesian network with posteriors for parameters, over the same means, other parameters and buffers.

    Args:
        network: a plain torch network, or a converted one.  Its modules are not changed.  Its parameters are the
            means, so it stays the network at the mean while the Bayesian network is trained.
        posterior: the family, :class:`~momentgen.inference.MeanField` or :class:`~momentgen.inference.Tridiagonal`;
            each parameter gets one of its own.  A parameter that several modules share has one posterior.  Or what
            another library trained: :func:`~momentgen.inference.from_laplace`, ``from_ivon``, ``from_swag``,
            ``from_vbll``.  Those bring their own means.
        only: the random parameters: a pattern of names (``"head.*"``), several, or a function of name and parameter.
            Any name of a shared one will do.  None chooses all that require a gradient.  Of a trained posterior the
            others stay at its means.
        prior: of each parameter, or a mapping from patterns of names to priors; the first that fits counts.
            None is a standard normal distribution.  Each parameter gets a copy, with the prior's own parameters.

    Raises:
        InputError: where no parameter is chosen, or a chosen one has no prior.

    >>> plain = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> from momentgen.inference import MeanField
    >>> bayes = randomise(plain, MeanField(std=0.1), only="*.weight")
    >>> out = bayes(torch.zeros(2, 3))
    >>> out.mean.shape, sorted(bayes.posteriors)
    (torch.Size([2, 1]), ['0/weight', '2/weight'])
    """
    if not isinstance(network, torch.nn.Module) or isinstance(network, torch.jit.ScriptModule):
        raise InputError(f"randomise: expected a plain torch.nn.Module, got {type(network).__name__}")
    if any(isinstance(part, BayesianNetwork) for part in network.modules()):
        raise InputError(f"randomise: expected a plain network, got {type(network).__name__}, which is random already")
    if isinstance(posterior, Trained):
        network, found = posterior.of(network)
        names = _names(network)
        random = {name: one for name, one in found.items() if only is None or _wanted(names[name], one.mean, only)}
        if not random:
            raise InputError(f"randomise: {posterior.origin} has no parameter that only={only!r} chooses")
        own = dict(network.named_parameters())
        for name, one in found.items():
            if name not in random and not torch.equal(one.mean, own[name]):
                random[name] = Affine(one.mean, [])  # certain, where training has brought it
        return BayesianNetwork(network, random, prior)
    if not isinstance(posterior, Posterior):
        raise InputError(f"randomise: expected a posterior, such as MeanField(), got {type(posterior).__name__}")
    chosen = _chosen(network, only)
    if not chosen:
        raise InputError(f"randomise: {type(network).__name__} has no parameter that only={only!r} chooses")
    return BayesianNetwork(network, {name: posterior.of(value) for name, value in chosen.items()}, prior)


class BayesianNetwork(torch.nn.Module):
    """A network whose parameters are laws while it runs; made by :func:`randomise`.

    Called like the plain network, it returns :class:`~momentgen.Moments` of its output.  The method, set by
    :func:`momentgen.method` or :meth:`set_method`, decides how inputs and parameters propagate:

    - ``ap1`` runs on the means.
    - ``ap2`` propagates the posterior.
    - ``controlled``, the default of evaluation, draws it many times and states its error.
    - ``sample`` draws all parameters once per call.
    - ``local`` draws the outputs of linear maps and convolutions, for each example by itself (Kingma, Salimans &
      Welling 2015).

    Attributes:
        network: the converted network, without the random parameters.
        posteriors: name of a parameter, with ``/`` for dots -> its posterior.
        priors: likewise, its prior.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        posteriors: dict[str, Posterior],
        prior: Prior | Mapping[str, Prior] | None = None,
    ) -> None:
        super().__init__()
        converted = twin(convert(network), {})
        self._is_torchs_own = is_torchs_own(converted)
        places: dict[str, list[tuple[str, str]]] = {}
        orders: dict[str, list[str]] = {}
        named, aliases = dict(network.named_parameters()), _names(network)
        keys = {id(named[name]): name.replace(".", "/") for name in posteriors}
        for path, module in converted.named_modules():
            own = module._parameters
            names = [name for name, value in own.items() if id(value) in keys]
            if not names:
                continue
            if isinstance(module, torch.jit.ScriptModule):
                key = keys[id(own[names[0]])].replace("/", ".")
                raise InputError(
                    f"randomise: expected parameters of plain modules, got {key}, which a module by torch.jit.script "
                    "reads. Pass the module that was scripted, or leave the parameter out by only="
                )
            places[path], orders[path] = [(name, keys[id(own[name])]) for name in names], list(own)
            # dictionaries are shared with the plain network, which keeps its own
            module.__dict__["_parameters"] = {k: v for k, v in own.items() if k not in names}
            for name in names:
                module.__dict__[name] = _Random(keys[id(own[name])])
        #: the plain parameters by their keys, which attributes and code outside of the modules may hold
        self._plain = {key: named[name] for name, key in zip(posteriors, keys.values(), strict=True)}
        #: keys of parameters that may be left unread: nothing else leads to them
        self._optional: set[str] = set()
        self.network = converted
        self.posteriors: Any = torch.nn.ModuleDict({name.replace(".", "/"): one for name, one in posteriors.items()})
        #: per module with random parameters, their names and keys, and the names of all its parameters in order
        self._places, self._orders = places, orders
        self.priors: Any = torch.nn.ModuleDict({keys[id(named[n])]: _prior_of(aliases[n], prior) for n in posteriors})
        self.training = converted.training  # its parts have flags of their own
        for families in (self.posteriors, self.priors):
            families.train(self.training)

    def set_method(self, name: Any) -> BayesianNetwork:
        """Set how the network propagates where no :class:`momentgen.method` context says otherwise."""
        set_method(self.network, name)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Moments of the output, by the method in force.

        Raises:
            InputError: for a random parameter whose plain value the network uses in its place.
        """
        border: Any = self.network
        at_means = ALL[current_method(border.propagation)].of_mean  # the plain values, whoever holds them
        unread = set() if at_means else set(self._plain) - self._optional

        def with_parameters(*args: Any, **kwargs: Any) -> Any:
            name = current_method(border.propagation)

            def lifted() -> dict[str, Any]:
                noises: dict[int, Any] = {}
                return {key: self._lifted(key, name, noises) for key in self.posteriors}

            return self._run(once_in_a_run(self, name, lifted), unread, args, kwargs)

        out = border._cross_border(with_parameters, args, kwargs)
        if unread and not torch.compiler.is_compiling() and not inside() and not transforming():
            self._check_unread(unread, args, kwargs)
        return out

    def _check_unread(self, unread: set[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise if the output depends on the plain value of an unread parameter, where another takes its place."""
        kept = Kept(self.network)
        plain = mapped(lambda value: value.mean if isinstance(value, Moments) else value, (args, kwargs))
        with torch.random.fork_rng(), entered(), method("sample"), torch.inference_mode(False), torch.enable_grad():
            values = {key: value.detach().clone() for key, value in self._plain.items()}
            out = leaves_of(self._run(values, unread, *plain))
        kept.restore()
        total = sum(leaf.sum() for leaf in out if isinstance(leaf, Tensor) and leaf.requires_grad)
        keys = [key for key in unread if self._plain[key].requires_grad]
        if keys and isinstance(total, Tensor):
            found = torch.autograd.grad(total, [self._plain[key] for key in keys], allow_unused=True)
            for key, gradient in zip(keys, found, strict=True):
                if gradient is not None:
                    raise InputError(
                        f"BayesianNetwork: the output depends on the plain value of the random parameter "
                        f"{key.replace('/', '.')!r}, as by what was computed of it before the call. Compute it in the "
                        "call, or leave the parameter out by randomise(..., only=...)"
                    )
        self._optional |= unread

    def _run(self, found: Mapping[str, Any], unread: set[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the network with these parameters; what it reads is no longer ``unread``."""
        # torch.compile cannot make modules, and runs one trace at a time
        compiling = torch.compiler.is_dynamo_compiling()
        values = {id(self._plain[key]): value for key, value in found.items()}
        network = self.network if compiling else twin(self.network, values)
        for path, places in self._places.items():
            module = network.get_submodule(path)
            if compiling:
                for name, key in places:
                    module.__dict__[name] = found[key]
            else:  # among the parameters, which the network's code may ask for
                own = {**module._parameters, **{name: found[key] for name, key in places}}
                ordered = {name: own.pop(name) for name in self._orders[path]} | own
                module.__dict__["_parameters"] = _Parameters(ordered, dict(places), unread) if unread else ordered
                for name, _ in places:
                    del module.__dict__[name]
            if "_flat_weights" in module.__dict__:  # recurrent layers keep a list besides
                flat = module.__dict__["_flat_weights_names"]
                module.__dict__["_flat_weights"] = [getattr(module, part) for part in flat]
        inner: Any = network
        # code of torch reads no other value, and to watch takes some microseconds for each function
        if compiling or self._is_torchs_own:
            return inner._forward_inside(*args, **kwargs)
        plain = {id(own): key.replace("/", ".") for key, own in self._plain.items() if found[key] is not own}
        with Reads(plain):
            return inner._forward_inside(*args, **kwargs)

    def _lifted(self, key: str, method: str, noises: dict[int, Any]) -> Any:
        """What a random parameter is for one run; ``noises`` holds what is known of those that parameters share."""
        posterior = self.posteriors[key]
        if ALL[method].of_mean:
            return posterior.mean
        if isinstance(posterior, Affine) and not posterior.independent:

            def value(noise: Noise) -> Any:
                if id(noise) not in noises:
                    noises[id(noise)] = _lifted_noise(noise, method)
                return noises[id(noise)]

            return posterior.of_noise(value)
        return ALL[method].weight(posterior.mean, lambda: posterior.var, posterior.neighbour, posterior.rsample)

    def kl(self) -> Tensor:
        """Kullback-Leibler divergence of the posteriors from their priors, all parameters together."""
        return torch.stack([one.kl(self.priors[key]) for key, one in self.posteriors.items()]).sum()

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """All parameters for an optimizer, with the learning rates that their families ask for.

        >>> from momentgen.inference import Tridiagonal
        >>> bayes = randomise(torch.nn.Linear(2, 2), Tridiagonal(rate=50))
        >>> [(len(group["params"]), group["lr"]) for group in bayes.parameter_groups(0.01)]
        [(4, 0.01), (2, 0.5)]
        """
        factors = {
            id(value): family.LEARNING_RATES.get(name, 1.0)
            for family in self.posteriors.values()
            for name, value in family.named_parameters(recurse=False)
        }
        groups: dict[float, list[torch.nn.Parameter]] = {}
        for value in self.parameters():
            groups.setdefault(factors.get(id(value), 1.0), []).append(value)
        return [{"params": values, "lr": lr * factor} for factor, values in groups.items()]


class _Random:
    """Stands in a parameter's place while the network does not run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<random parameter {self.name}>"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        raise InputError(
            f"{getattr(func, '__name__', func)}: a parameter is random, and has a value only while the Bayesian "
            "network runs; call that network, not a part of it"
        )


class _Parameters(dict[str, Any]):
    """The parameters of a module in one run; those that are fetched are no longer ``unread``."""

    def __init__(self, values: dict[str, Any], keys: dict[str, str], unread: set[str]) -> None:
        super().__init__(values)
        self._keys, self._unread = keys, unread

    def __getitem__(self, name: str) -> Any:
        self._unread.discard(self._keys.get(name, ""))
        return super().__getitem__(name)

    def values(self) -> Any:
        self._unread.difference_update(self._keys.values())
        return super().values()

    def items(self) -> Any:
        self._unread.difference_update(self._keys.values())
        return super().items()


def _lifted_noise(noise: Noise, method: str) -> Any:
    """What noise is for one run: a draw, or a law of it."""
    used = ALL["sample"] if ALL[method].is_drawn else ALL[method]  # computed from noise, it is drawn as a whole
    return used.weight(noise.zero, lambda: noise.one, lambda: None, noise.draw)


def _names(network: torch.nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first."""
    first = {id(value): name for name, value in network.named_parameters()}
    found: dict[str, list[str]] = {name: [] for name in first.values()}
    for name, value in network.named_parameters(remove_duplicate=False):
        found[first[id(value)]].append(name)
    return found


def _chosen(network: torch.nn.Module, only: Only | None) -> dict[str, torch.nn.Parameter]:
    """Parameters by name, each once, under the first of its names."""
    own = dict(network.named_parameters())
    return {first: own[first] for first, names in _names(network).items() if _wanted(names, own[first], only)}


def _wanted(names: list[str], value: torch.nn.Parameter, only: Only | None) -> bool:
    if only is None:
        return value.requires_grad
    if callable(only):
        return any(only(name, value) for name in names)
    return any(fnmatch.fnmatchcase(name, one) for name in names for one in ([only] if isinstance(only, str) else only))


def _prior_of(names: list[str], prior: Prior | Mapping[str, Prior] | None) -> Prior:
    if prior is None:
        return Normal()
    if not isinstance(prior, Mapping):
        return copy.deepcopy(prior)
    for pattern, one in prior.items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return copy.deepcopy(one)
    raise InputError(f"randomise: no pattern of prior fits the parameter {names[0]!r}; expected one of {list(prior)}")
