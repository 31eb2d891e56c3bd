"""What a few calls of a network tell: which examples are independent, and which rows may go together.

Networks whose examples are independent may be called with the rows of the noise stacked in the batch.  Rows go one by
one where a network would notice:

- it reads values out and decides by them, for all rows at once;
- it keeps state from call to call, or draws noise of its own;
- it counts its examples, or is of a fixed size.

The results are remembered per module, its settings, shapes of arguments, and those that are no tensors, until its
parameters are written to.  What else may have changed, as the edges of a graph, is not compared.  Instead a later call
looks whether examples of one row, beside those of another, have the outputs of their own rows.  It also looks whether
the network now reads values out.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from momentgen.laws.controlled.network import InputNoise, Network
from momentgen.laws.controlled.state import OtherFactsError, has_kinks
from momentgen.laws.nests import Kept, leaves_of, same, tensors_in
from momentgen.laws.table import TABLE, names
from momentgen.laws.twins import is_compiled

#: rows of a stack, at most
_ROWS: Final = 64
#: bytes of a stack's widest tensor: beyond it leaves a CPU's cache, and costs more than rows one by one
_BYTES, _BYTES_OF_ACCELERATORS = 2**22, 2**25
#: rows that go together, and bytes of their widest tensor: where a call takes its time for no more than being one
_FREE, _FREE_BYTES = 64, 2**18
#: values of an example's widest tensor up to which rows may all miss an event; of more, some rows meet some events
_FEW: Final = 64
#: functions that read values out
_READS: Final = frozenset(
    names(
        "__bool__ __int__ __float__ __index__ __complex__ __contains__ __array__ __dlpack__ item tolist numpy "
        "is_nonzero equal allclose data_ptr untyped_storage"
    )
)
#: values that are not of the noise, in units of the input's own size
_WILD: Final = 1e3


class Facts:
    """What is known of a network.

    Attributes:
        by_example: for each tensor of the outputs, whether dimension 0 counts independent examples, as in the inputs;
            empty where examples interact in any output.
        most: rows that may go together; 1 for none.
        narrow: whether an example has few values in the network, so that there may be a single event for rows to miss.
        free: rows that together cost hardly more than one, as those of small networks do; 0 for none.
        keeps: whether the module keeps of a call what depends on the draw; every row then starts from the same.
        seldom: whether examples interact in some draws only.
        differentiates: whether the network calls ``torch.autograd.grad``, for which autograd must see all of it.
        ends_alike: whether all rows end in a softmax, or none does.
        writes: what the module kept of a call, where that did not depend on the draw.
        draws: whether the network draws noise.
        reads: whether it reads out what follows from its inputs.
        widest: bytes of the largest tensor that follows from the inputs; ``computed`` of all, ``returned`` of outputs.
        fresh: whether they were found for this call.
    """

    def __init__(self) -> None:
        self.by_example: list[bool] = []
        self.most, self.free, self.narrow, self.seldom = 1, 0, True, False
        self.differentiates, self.ends_alike, self.keeps = False, True, True
        self.draws, self.reads, self.fresh = False, False, True
        self.widest = self.computed = self.returned = 0
        self.writes: dict[str, Any] = {}
        self._sizes: dict[int, bool] = {}
        self._meet = False  # whether rows of a stack changed each other

    @property
    def depends(self) -> bool:
        """Whether a call depends on more than its arguments, or on values of all of them."""
        return self.reads or self.keeps or self.draws

    def kept(self, found: dict[str, Any]) -> bool:
        """Whether that is what the module kept before; numbers that are no tensors may count calls."""
        return found.keys() <= self.writes.keys() and all(
            same(value, self.writes[name]) for name, value in found.items() if isinstance(value, Tensor)
        )

    def together(self, network: Network, noise: list[InputNoise], count: int) -> int:
        """How many of so many rows may go together.

        Raises:
            OtherFactsError: where rows change each other, as examples then do in some draws.
        """
        size = min(count, self.most)
        fit = size < 2 or self.stacks(network, noise, size)
        if self._meet and self.by_example:  # whoever found it, as shares of an earlier answer
            raise OtherFactsError(by_example=[], seldom=True)
        return size if fit else 1

    def stacks(self, network: Network, noise: list[InputNoise], rows: int) -> bool:
        """Whether so many rows together have the outputs that they have one by one; looked at once for each number.

        Every other row is then moved far off, which must not change the others.
        """
        if rows not in self._sizes:
            # Whatever a network raises of a stack, or the outputs it then has, it may not be stacked.
            try:
                with torch.no_grad():
                    self._sizes[rows], self._meet = _stacks(network, noise, rows)
            except Exception:
                self._sizes[rows] = False
            if not self._sizes[rows]:
                self.most = 1
        return self._sizes[rows]


#: per module: its numbers, and facts by settings, shapes of the arguments, and arguments that are no tensors.
#: Other numbers may mean other facts: examples may interact once a factor is no longer 0.
_FACTS: Final[weakref.WeakKeyDictionary[Any, tuple[Any, dict[Any, Facts]]]] = weakref.WeakKeyDictionary()


def _numbers(where: nn.Module) -> tuple[int, str]:
    """How often parameters have been written to, and attributes that are floats; integers may count calls."""
    known = [value for value in where.parameters() if not is_lazy(value) and not value.is_inference()]
    versions = sum(value._version for value in known)
    floats = [value for part in where.modules() for value in vars(part).values() if isinstance(value, float)]
    return versions, repr(floats)


def facts_of(network: Network, seed: int, anew: bool = False) -> Facts:
    """What is known of a network, by some plain forward passes at first, or ``anew``."""
    batch, where = network.batch, network.where
    known: dict[Any, Facts] = {}
    if isinstance(where, nn.Module):
        numbers = _numbers(where)
        if where not in _FACTS or _FACTS[where][0] != numbers:
            _FACTS[where] = numbers, known
        known = _FACTS[where][1]
    if not known or any(facts.keeps for facts in known.values()):
        network.kept = Kept(where)
    shapes = [(tuple(value.mean.shape), value.mean.dtype) for value in network.inputs]
    if not batch or any(not shape or shape[0] != batch for shape, _ in shapes):
        return Facts()
    key: tuple[Any, ...] = (
        *shapes,
        *[(tuple(leaf.shape), leaf.dtype) for leaf in network.leaves if isinstance(leaf, Tensor)],
        *network.settings,
        network.device,
        network.spans_examples,
    )
    if isinstance(where, nn.Module):
        settings = (value for part in where.modules() for value in vars(part).values())
        key = (*key, network.differentiable, *(value for value in settings if isinstance(value, bool | str)))
    if key in known:
        known[key].fresh = False
    if key not in known or anew or not _holds(known[key], network, seed):
        kept = network.kept or Kept(where)
        network.kept = None
        with torch.no_grad():
            known[key] = _found(network, seed, kept)
        network.kept = kept
    network.before = None if known[key].fresh or known[key].keeps else network.kept or Kept(where)
    if not known[key].keeps:
        network.kept = None
    return known[key]


def _holds(facts: Facts, network: Network, seed: int) -> bool:
    """Whether examples of a network that draws noise, held fixed here, are still independent; of others rows tell."""
    if not facts.draws or not facts.by_example or network.batch < 2:
        return True
    noise = [InputNoise(value, place, seed) for place, value in enumerate(network.inputs)]
    first, second = (_row(noise, row) for row in (0, 2))
    changed = halves(network.batch)[0]
    with torch.no_grad():
        one, other, both = (_tensors(network, x, seed) for x in (first, second, mixed(changed, second, first)))
    return _stay(one, other, both, changed, network.batch)


def _found(network: Network, seed: int, kept: Kept) -> Facts:
    """See the module's head.

    Noise of some examples is changed: their outputs must be those of where all of it is, and outputs of the others must
    stay.  Of any two examples one is changed without the other.  Noise that is changed to be far off finds what few
    draws meet, such as a limit on how many examples go one way.
    """
    batch, facts = network.batch, Facts()
    noise = [InputNoise(value, place, seed) for place, value in enumerate(network.inputs)]
    generator = torch.Generator().manual_seed(seed)
    parts = halves(batch)
    first, second, third = (_row(noise, row) for row in (0, 2, 4))
    watch = Watch(first)
    kept.restore()
    with watch:
        base = _tensors(network, first, seed)
    facts.reads, facts.widest, facts.computed = watch.reads, watch.widest, watch.computed
    facts.returned = sum(leaf.nbytes for leaf in base)
    facts.narrow = watch.widest <= _FEW * batch * base[0].element_size() if base else True
    state = kept.changed()
    facts.keeps, facts.writes = bool(state), state
    if facts.keeps:  # what another draw leaves behind, and a call after that one
        kept.restore()
        left = []
        for values in (second, first):
            _tensors(network, values, seed)
            left.append(kept.changed())
        facts.keeps = not all(same(state, one) for one in left)
        network.kept = kept if facts.keeps else None
    with network.own_draws():
        facts.draws = network.and_draws([value.clone() for value in first])[1]
    signs = (torch.randint(2, (batch,), generator=generator) * 2 - 1).to(network.device)
    away = [_WILD * (_along(signs, value) * (other - value)) for value, other in zip(first, second, strict=True)]
    far, opposite = ([value + sign * part for value, part in zip(first, away, strict=True)] for sign in (1, -1))
    tried = ((second, parts), (third, parts), (far, parts[:1]), (opposite, parts[:1]))
    for others, changes in tried if batch > 1 else ():
        try:
            expected = _tensors(network, others, seed)
            found = [_tensors(network, mixed(changed, others, first), seed) for changed in changes]
        except Exception:
            if others is second or others is third:
                raise
            continue  # a network may refuse what is far off
        if not all(_stay(base, expected, one, changed, batch) for one, changed in zip(found, changes, strict=True)):
            return facts
    if network.spans_examples:  # their noise is correlated, though the network keeps them apart
        return facts
    flags = [leaf.shape[:1] == (batch,) for leaf in base]
    facts.by_example = flags if any(flags) else []
    if all(flags) and flags and not facts.depends and _transparent(network.where):
        bound = _BYTES if network.device.type == "cpu" else _BYTES_OF_ACCELERATORS
        facts.most = max(min(_ROWS, bound // max(watch.widest, 1)), 1)
        facts.free = _FREE if watch.widest * _FREE <= _FREE_BYTES else 0
    return facts


class Watch(TorchFunctionMode):
    """Looks at what becomes of some values.

    Attributes:
        reads: whether one that follows from them is read out.
        kinked: whether a function of one that follows from them has kinks or jumps.
        widest: bytes of the largest; ``computed`` of all that are no views.
    """

    def __init__(self, values: list[Tensor]) -> None:
        super().__init__()
        self.reads, self.kinked, self.widest = False, False, max((value.nbytes for value in values), default=0)
        self.computed = 0
        self._followed = {id(value): value for value in values}  # held, so that an identity stays its own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = tensors_in((*args, *(kwargs or {}).values()))
        if any(id(value) in self._followed for value in given):
            self.reads |= getattr(func, "__name__", "") in _READS
            self.kinked |= has_kinks(TABLE.get(func), out)
            made = tensors_in((out,))
            self.computed += sum(value.nbytes for value in made if value._base is None)
            for value in (*given[:1], *made):  # the first may have been written to
                self._followed[id(value)] = value
                self.widest = max(self.widest, value.numel() * value.element_size())
        return out


def halves(batch: int) -> list[Tensor]:
    """Random halves of the examples, flags of shape ``(batch,)``: of any two examples one is in some half alone."""
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(0))
    return [order >> bit & 1 > 0 for bit in range(max((batch - 1).bit_length(), 1))]


def _row(noise: list[InputNoise], row: int) -> list[Tensor]:
    """The values of inputs in a row."""
    return [one.values(range(row, row + 1))[0] for one in noise]


def _along(numbers: Tensor, value: Tensor) -> Tensor:
    """A number for each example, to go with the values of all of them."""
    return numbers.to(value.device).view(-1, *[1] * (value.dim() - 1))


def mixed(chosen: Tensor, ours: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """Values of these for the examples that are chosen, and of the others for the rest."""
    return [torch.where(_along(chosen, one), one, other) for one, other in zip(ours, others, strict=True)]


def _transparent(where: Any) -> bool:
    """Whether all that a module does is seen: none is scripted or compiled, or shows values to a hook."""
    return isinstance(where, nn.Module) and not any(
        isinstance(part, torch.jit.ScriptModule) or is_compiled(part) or part._forward_hooks or part._forward_pre_hooks
        for part in where.modules()
    )


def _stacks(network: Network, noise: list[InputNoise], rows: int) -> tuple[bool, bool]:
    """Whether a stack has the outputs of its rows, and whether those of some rows follow from others."""
    values = [one.values(range(rows)) for one in noise]
    together = [value.flatten(0, 1).clone() for value in values]
    far = [torch.arange(rows, device=value.device).repeat_interleave(network.batch) % 2 > 0 for value in together]
    wild = [
        torch.where(_along(away, value), value + _WILD * (value - value.roll(1, 0)), value)
        for value, away in zip(together, far, strict=True)
    ]
    kept = Kept(network.where)
    try:
        found = leaves_of(network.call(together, rows))
        apart = leaves_of(network.call(wild, rows))
    finally:
        changed = kept.changed()
        kept.restore()  # as if it had not been called
    alone = [leaves_of(network.call([value[row] for value in values])) for row in (0, -1)]
    if changed or any(leaf.shape[:1] != (rows * network.batch,) for leaf in (*found, *apart)):
        return False, False
    for place, leaf in enumerate(found):
        parts = leaf.unflatten(0, (rows, -1))
        ends, others = torch.stack([parts[0], parts[-1]]), apart[place].unflatten(0, (rows, -1))
        meet = not close(parts[::2], others[::2])
        if meet or not close(ends, torch.stack([one[place] for one in alone])):
            return False, meet
    return True, False


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two are the same up to rounding, also beside what differs along dimension 0."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not found.is_floating_point() and not found.is_complex():
        return torch.equal(found, expected)
    eps = torch.finfo(found.dtype).eps
    known = expected.isfinite()
    if not torch.equal(known, found.isfinite()) or not bool(known.any()):
        return bool((~known).all())
    size = expected[known].abs().max()
    first = expected[:1] if expected.dim() else expected
    spread = torch.where(known, expected - first, 0).abs().nan_to_num().max()
    off = (found - expected)[known].abs().max()
    return bool(off <= (32 if eps < 1e-6 else 4) * eps * size + 1e-4 * spread)


def _tensors(network: Network, values: list[Tensor], seed: int) -> list[Tensor]:
    """The tensors among the outputs, the noise of the network's own held fixed."""
    with network.own_draws():
        network.seed(seed)
        # what the module keeps is written over, and may be an output
        found = network.call([value.clone() for value in values])
        return [leaf.clone() for leaf in leaves_of(found) if isinstance(leaf, Tensor)]


def _stay(base: list[Tensor], others: list[Tensor], found: list[Tensor], changed: Tensor, batch: int) -> bool:
    """Whether examples that were changed have the outputs of where all were, and the rest those of where none was."""
    return _still(base, found, changed, batch) and _still(others, found, ~changed, batch)


def _still(base: list[Tensor], found: list[Tensor], changed: Tensor, batch: int) -> bool:
    """Whether outputs with the batch in front are the same for examples that were not changed."""
    if [leaf.shape for leaf in base] != [leaf.shape for leaf in found]:
        return False
    for one, other in zip(base, found, strict=True):
        if one.shape[:1] != (batch,) or not one.is_floating_point() or not one.numel():
            continue
        change = (one.double() - other.double()).abs().reshape(batch, -1).nan_to_num().amax(1)
        own = changed.to(change.device)
        if batch > 1:
            # by how much those that were changed did: a change far off may be beyond their own size, or NaN, here 0
            size, moved = one.double().abs().nan_to_num(0, 0, 0).amax(), change[own].amax()
            if bool(change[~own].amax() > 1e-4 * torch.where(moved > 0, moved.minimum(size), size)):
                return False
    return True
