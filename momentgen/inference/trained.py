"""Posteriors that other libraries trained, as random weights here: ``randomise(net, from_laplace(la))``.

Nothing is imported from these libraries.  Each function reads the attributes of their objects:

* ``from_laplace``: laplace-torch: diagonal, Kronecker-factored and full, of all weights, the last layer, a subnetwork.
* ``from_ivon``: the optimizer of ivon-opt.
* ``from_swag``: iterates of the weights. SWAG makes a posterior of them (Maddox et al. 2019).
* ``from_vbll``: a last layer of vbll.

Correlations remain, within a parameter and between parameters (:mod:`~momentgen.inference.affine`).  ``controlled``,
the default of evaluation, takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.affine import Affine, Blocks, Each, Noise, Sides
from momentgen.inference.posterior import MeanField, Posterior
from momentgen.laws.twins import twin


@dataclass(frozen=True)
class Trained:
    """Posteriors of parameters that another library trained; :func:`~momentgen.inference.randomise` takes it.

    Attributes:
        origin: the function that made it, for messages.
        found: per parameter the object itself or its mean, its name where it was trained, and its posterior; None of
            one that was not trained.
        replaced: layer of the network -> the layer to run in its place.
    """

    origin: str
    found: list[tuple[Tensor, str, Posterior | None]]
    replaced: dict[torch.nn.Module, torch.nn.Module] = field(default_factory=dict)

    def of(self, network: torch.nn.Module) -> tuple[torch.nn.Module, dict[str, Posterior]]:
        """The network with layers replaced, and the posterior of each of its parameters that has one, by name.

        Raises:
            InputError: for a parameter that the network does not have, or one that was not trained and is another.
        """
        network = self._with_replaced(network)
        own = dict(network.named_parameters(remove_duplicate=False))
        names = {id(value): name for name, value in network.named_parameters()}
        buffers = [name for name, _ in network.named_buffers()]
        placed = {}
        for parameter, trained_as, posterior in self.found:
            name = names.get(id(parameter))
            if name is None:
                # of a copy, or a network within another: the name says which
                named = [trained_as] if trained_as in own else _ending(own, trained_as)
                fits = [n for n in named if own[n].shape == parameter.shape]
                if not fits and _ending(buffers, trained_as):
                    continue  # such as running statistics, which state dicts hold too: the network's own
                if len(fits) != 1:
                    what = f"{trained_as or 'a parameter'} of shape {tuple(parameter.shape)}"
                    raise InputError(
                        f"randomise: {self.origin} has a posterior of {what}, for which {type(network).__name__} has "
                        f"{len(fits)} parameters; expected the network that was trained"
                    )
                name = names[id(own[fits[0]])]  # the first of those that share it
            if posterior is not None:
                placed[name] = posterior.to(own[name])
            elif not torch.equal(own[name], parameter.to(own[name])):
                raise InputError(
                    f"randomise: {name} of {type(network).__name__} was not trained and has other values than in "
                    f"{self.origin}; expected the network that was trained"
                )
        return network, placed

    def _with_replaced(self, network: torch.nn.Module) -> torch.nn.Module:
        if not self.replaced:
            return network
        missing = [layer for layer in self.replaced if all(layer is not one for one in network.modules())]
        if missing:
            raise InputError(
                f"randomise: {type(network).__name__} has not the layer {type(missing[0]).__name__} of {self.origin}; "
                "expected the network that it was trained in"
            )
        return twin(network, {id(layer): new for layer, new in self.replaced.items()})


def _ending(names: Iterable[str], end: str) -> list[str]:
    """Names that are this one, or end in it after a dot; none for an empty one."""
    return [name for name in names if end and f".{name}".endswith(f".{end}")]


def _attribute(where: str, what: str, value: object, name: str) -> Any:
    """An attribute that objects of a library have."""
    try:
        return getattr(value, name)
    except AttributeError as error:
        raise InputError(f"{where}: expected {what}, got {type(value).__name__} without {name}") from error


def _posterior(mean: Tensor, var: Tensor) -> Posterior:
    """Independent elements; some may be certain."""
    if bool((var > 0).all()):
        return MeanField(std=var.sqrt().detach()).of(torch.nn.Parameter(mean.detach().clone()))
    return Affine(mean, [Each(var.clamp_min(0).sqrt().detach())])


# ------------------------------------------------------------------ laplace-torch


def from_laplace(la: Any) -> Trained:
    """The posterior of a fitted Laplace approximation of laplace-torch.

    Args:
        la: ``Laplace(net, ...)`` after ``fit``, of all weights, the last layer or a subnetwork; its Hessian ``diag``,
            ``kron`` or ``full``.

    Returns:
        What :func:`~momentgen.inference.randomise` takes with the network.  Predictions are then of the network itself,
        not of its linearisation; observation noise is not in them.

    Raises:
        InputError: for an object that is not fitted, or of another structure.
    """
    where, what = "from_laplace", "a fitted Laplace approximation of laplace-torch"
    mean, precision = (_attribute(where, what, la, name) for name in ("mean", "posterior_precision"))
    if not isinstance(mean, Tensor) or isinstance(precision, tuple):
        raise InputError(
            f"{where}: expected a diag, kron or full Laplace approximation after fit, got {type(la).__name__}"
        )
    chosen = _attribute(where, what, la, "backend").__dict__.get("subnetwork_indices")
    names, parameters = _laplace_parameters(la)
    sizes = [value.numel() for value in parameters]
    means = [part.view_as(value) for part, value in zip(mean.detach().split(sizes), parameters, strict=True)]
    if hasattr(precision, "eigenvectors"):
        made: list[Posterior] = [Affine(m, [_kronecker(precision, k, m)]) for k, m in enumerate(means)]
    elif precision.dim() == 1:
        var = _spread(1 / precision.detach(), chosen, len(mean))
        made = [_posterior(m, part.view_as(m)) for m, part in zip(means, var.split(sizes), strict=True)]
    else:
        scale = _spread(la.posterior_scale.detach(), chosen, len(mean))
        noise = Noise(scale, (1, scale.shape[1]))
        parts = zip(means, scale.split(sizes), strict=True)
        made = [Affine(m, [Blocks(part[None].clone(), m.shape, noise)]) for m, part in parts]
    return Trained(where, list(zip(parameters, names, made, strict=True)))


def _laplace_parameters(la: Any) -> tuple[list[str], list[Tensor]]:
    """Names and parameters in the order of the posterior's mean."""
    last = getattr(la.model, "_last_layer_name", None)
    if last is None:
        found = [(name, value) for name, value in la.model.named_parameters() if value.requires_grad]
    else:  # of a copy of the network
        found = [(f"{last}.{name}", value) for name, value in la.model.last_layer.named_parameters()]
    return [name for name, _ in found], [value for _, value in found]


def _spread(values: Tensor, chosen: Tensor | None, count: int) -> Tensor:
    """``(count, ...)`` with rows of 0 but for the chosen ones."""
    if chosen is None:
        return values
    found = values.new_zeros((count, *values.shape[1:]))
    found[chosen] = values
    return found


def _kronecker(precision: Any, number: int, mean: Tensor) -> Blocks | Sides:
    """The map of a parameter whose precision has Kronecker factors, given by eigenvectors and eigenvalues."""
    vectors, values, delta = precision.eigenvectors[number], precision.eigenvalues[number], precision.deltas[number]
    vectors, values, delta = [v.detach() for v in vectors], [v.detach() for v in values], delta.detach()
    if len(values) == 1:
        return Blocks((vectors[0] * (values[0] + delta).rsqrt())[None], mean.shape)
    if precision.damping:
        total = torch.outer(values[0] + delta.sqrt(), values[1] + delta.sqrt())
    else:
        total = torch.outer(values[0], values[1]) + delta
    return Sides(vectors[0], total.rsqrt(), vectors[1], mean.shape)


# ------------------------------------------------------------------ ivon-opt


def from_ivon(optimizer: Any) -> Trained:
    """The posterior that the optimizer IVON of ivon-opt has learnt: independent normal weights.

    Args:
        optimizer: after training, and outside ``sampled_params``.

    Returns:
        What :func:`~momentgen.inference.randomise` takes with the network that was trained.

    Raises:
        InputError: for another optimizer.
    """
    found: list[tuple[Tensor, str, Posterior | None]] = []
    for group in _attribute("from_ivon", "the optimizer IVON", optimizer, "param_groups"):
        if not {"hess", "ess", "weight_decay"} <= set(group):
            raise InputError(f"from_ivon: expected the optimizer IVON, got {type(optimizer).__name__}")
        parameters = [value for value in group["params"] if value is not None]
        var = 1 / (group["ess"] * (group["hess"] + group["weight_decay"]))
        for value, part in zip(parameters, var.split([value.numel() for value in parameters]), strict=True):
            found.append((value, "", _posterior(value, part.view_as(value))))
    return Trained("from_ivon", found)


# ------------------------------------------------------------------ SWAG


def from_swag(iterates: Iterable[Mapping[str, Any]], *, rank: int = 20, scale: float = 0.5) -> Trained:
    """The posterior of SWAG: the mean of the weights' iterates, their variances, and their last deviations.

    Args:
        iterates: state dicts of the network, collected along training.
        rank: how many of the last iterates give the correlated part, at least 2; 0 leaves it out.
        scale: factor on the covariance.

    Returns:
        What :func:`~momentgen.inference.randomise` takes with the network.  The correlated part has its noise in common
        between all parameters, as in the paper, whose rank and scale are the defaults.

    Raises:
        InputError: for less than two iterates, iterates that differ in their names, or arguments out of their range.
    """
    if not 0 < scale < float("inf") or rank < 0 or rank == 1:
        raise InputError(f"from_swag: expected a positive scale and a rank of 0 or at least 2, got {scale} and {rank}")
    states = list(iterates) if isinstance(iterates, Iterable) and not isinstance(iterates, Mapping) else []
    if len(states) < 2 or not all(isinstance(one, Mapping) and one.keys() == states[0].keys() for one in states):
        raise InputError(
            f"from_swag: expected at least two state dicts of one network, got {len(states)} of "
            f"{type(iterates).__name__}"
        )
    shared: Noise | None = None
    found: list[tuple[Tensor, str, Posterior | None]] = []
    for name, first in states[0].items():
        if not first.is_floating_point():
            continue
        values = torch.stack([one[name].detach() for one in states])
        if bool((values == values[0]).all()):
            found.append((values[0], name, None))  # a buffer, or a parameter that was not trained
            continue
        mean, var = values.mean(0), scale * values.var(0, correction=0)
        if not rank:
            found.append((mean, name, _posterior(mean, var)))
            continue
        # deviations are from the running mean, as SWAG collects them
        count = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
        running = values.cumsum(0) / count.view(-1, *[1] * first.dim())
        deviations = (values - running)[-rank:] / (min(rank, len(values)) - 1) ** 0.5
        factors = (scale**0.5 * deviations).reshape(len(deviations), -1).mT[None]
        shared = Noise(factors, (1, len(deviations))) if shared is None else shared
        maps = [Each(var.sqrt()), Blocks(factors.contiguous(), mean.shape, shared)]
        found.append((mean, name, Affine(mean, maps)))
    return Trained("from_swag", found)


# ------------------------------------------------------------------ vbll


def from_vbll(layer: Any) -> Trained:
    """The posterior of a last layer of vbll: ``Regression`` or ``DiscClassification``.

    Args:
        layer: the layer within the network, after training.

    Returns:
        What :func:`~momentgen.inference.randomise` takes with the network.  In the layer's place runs a linear map with
        random weights, whose random bias is the layer's noise: outputs are values of targets, or logits.

    Raises:
        InputError: for another layer, also for those with a Student distribution, whose noise is random.
    """
    where, what = "from_vbll", "a layer Regression or DiscClassification of vbll"
    if not callable(_attribute(where, what, layer, "W")):
        raise InputError(f"{where}: expected {what}, got {type(layer).__name__}, whose noise is random")
    weight, noise = layer.W(), _attribute(where, what, layer, "noise")()
    mean = weight.mean.detach()
    if isinstance(weight, torch.distributions.Normal):
        own: Posterior = _posterior(mean, weight.scale.square())
    else:
        own = Affine(mean, [Blocks(weight.scale_tril.detach(), mean.shape)])
    linear = torch.nn.Linear(mean.shape[1], mean.shape[0], dtype=mean.dtype, device=mean.device)
    bias = _posterior(noise.mean.detach(), noise.scale.detach().square())
    found: list[tuple[Tensor, str, Posterior | None]] = [(linear.weight, "weight", own), (linear.bias, "bias", bias)]
    return Trained(where, found, {layer: linear.train(layer.training)})
