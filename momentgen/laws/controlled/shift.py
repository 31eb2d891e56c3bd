"""The shift: a network linearised beside its rows, with slopes averaged over them.

:class:`Shift` is a function mode.  Within it the network runs on plain tensors, row after row, in the shapes of the
user's call.  Several rows may also go together in its batch.  Each of torch's functions that meets a random tensor is
computed as it is.  Its *rule* (:mod:`momentgen.laws.controlled.rules`) adds the rows' slope to a record.  In the last
row the rules also compute the shift of the result from those of the arguments.  All shifts are 0.  What counts is their
graph, of which vector-Jacobian products are rows of A.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from types import GetSetDescriptorType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from momentgen.laws.controlled.call import Call, Record, Rule, Shifted, has_derivative, has_kinks
from momentgen.laws.controlled.common import Common
from momentgen.laws.controlled.noise import Source
from momentgen.laws.controlled.softmax import Softmax
from momentgen.laws.controlled.stack import Stack, UnstackedError
from momentgen.laws.nests import tensors_in
from momentgen.laws.notes import note_fast_path
from momentgen.laws.table import METHODS, Entry, entry_of, names
from momentgen.runtime.autograd import transformed

__all__ = ["DifferentiatesError", "Shift", "draws"]

#: functions of a tensor's form, and others that torch asks while it runs: nothing to do
_FORM: Final = frozenset(
    getattr(Tensor, name).__get__
    for name in names(
        "shape dtype device layout ndim is_cuda is_mps is_cpu is_meta is_sparse is_quantized is_nested is_leaf "
        "requires_grad grad grad_fn names itemsize nbytes is_mkldnn is_xla is_xpu output_nr _version"
    )
    if isinstance(getattr(Tensor, name, None), GetSetDescriptorType)
)


def _property(func: Any) -> Entry | None:
    """What is known of reading a property that computes, as ``T``."""
    owner = getattr(func, "__self__", None)
    return METHODS.get(owner.__name__) if isinstance(owner, GetSetDescriptorType) else None


#: functions that differentiate what autograd has seen; of functions computed beside their slopes it sees nothing
_DIFFERENTIATE: Final = frozenset((torch.autograd.grad, torch.autograd.backward, Tensor.backward))

#: functions that draw and take no tensor
_MAKES_NOISE = frozenset({torch.randn, torch.rand})


class DifferentiatesError(Exception):
    """A network differentiates within itself, so that its functions are not to be watched."""


def draws(func: Any) -> bool:
    """Whether a function may draw noise that joins A."""
    entry = entry_of(func)
    return func in _MAKES_NOISE or (entry is not None and entry.kind == "noise")


class Shift(TorchFunctionMode):
    """Within the context a network runs on plain tensors, and its slopes are recorded.

    Args:
        rule: the rule of a function, by what the table knows of it.
        rows: how many will run.
        pairs: how many rows' graphs are stored for functions whose slope no rule averages.
        keeps_graph: whether the answer will be differentiated.
        batch: number of examples; 1 where all of the network's values belong to one.
        inputs: certain tensors among the arguments.
    """

    def __init__(
        self,
        rule: Callable[[Any, Entry | None], Rule],
        rows: int,
        pairs: int,
        keeps_graph: bool,
        batch: int = 1,
        inputs: Iterable[Tensor] = (),
    ) -> None:
        super().__init__()
        #: noise that all examples have in common
        self.common = Common(self, batch, list(inputs))
        self._rule, self.rows, self.pairs, self.keeps_graph = rule, rows, pairs, keeps_graph
        #: the present rows, and the number of the last of them
        self.stack, self.row = Stack(1, batch), -1
        #: noise that has entered; complete after the last row
        self.sources: list[Source] = []
        #: softmaxes of the present row, by their results
        self.softmaxes: dict[int, Softmax] = {}
        #: whether slopes are known, and further rows are watched for what they draw alone
        self.draws_only = False
        #: whether any function was not linear in what is random, and whether one has kinks or jumps
        self.curved = self.kinked = False
        #: functions at which the shift ended
        self.ended: set[str] = set()
        self._records: dict[tuple[Any, ...], list[Record]] = {}
        self._met: dict[tuple[Any, ...], int] = {}
        self._known: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        self._constants: dict[int, Tensor] = {}

    # ------------------------------------------------------------------ rows

    def draws_now(self) -> None:
        """The network draws, which rows do by themselves."""
        if self.stack.rows > 1:
            raise UnstackedError

    def begin(self, rows: int = 1) -> None:
        """The next row begins, or the next rows together."""
        self.stack, self.row = self.stack._replace(rows=rows), self.row + rows
        self.common.begin()
        self._met.clear()
        self._known.clear()
        self.softmaxes.clear()

    @property
    def last(self) -> bool:
        """Whether this is the row beside which the shift goes."""
        return self.row == self.rows - 1

    @property
    def graphs(self) -> bool:
        """Whether the graphs of this row are stored."""
        return self.row < self.pairs

    # --------------------------------------------------------------- tensors

    def knows(self, value: Tensor) -> bool:
        """Whether a tensor is random."""
        found = self._known.get(id(value))
        return found is not None and found[0]() is value

    def of(self, value: Tensor) -> Tensor:
        """The shift of a random tensor, in the last row."""
        shift: Tensor = self._known[id(value)][1]
        return shift

    def follow(self, value: Any, shift: Any) -> None:
        """From now on the tensor is random, and has this shift; tuples in step."""
        if isinstance(value, Tensor):
            if has_derivative(value):
                self._known[id(value)] = weakref.ref(value), shift
        elif isinstance(value, list | tuple):
            for place, part in enumerate(value):
                self.follow(part, shift[place] if isinstance(shift, list | tuple) else None)

    def forget(self, value: Tensor) -> None:
        """The tensor is certain from now on, as far as the shift goes."""
        self._known.pop(id(value), None)

    def fix(self, values: Iterable[Tensor]) -> None:
        """These tensors are the same in every row: parameters, buffers, certain inputs."""
        self._constants.update((id(value), value) for value in values)

    def constant(self, value: Tensor) -> bool:
        """Whether a tensor is known to be the same in every row."""
        return self._constants.get(id(value)) is value

    def record_of(self, call: Call) -> Record:
        """The record of a call: of the n-th call in a row of this function on this shape."""
        first = call.args[0] if call.args else None
        shape = self.stack.of_row(first.shape) if isinstance(first, Tensor) else None
        key = (call.function if call.entry is None else call.entry.name, shape)
        count = self._met.get(key, 0)
        self._met[key] = count + 1
        records = self._records.setdefault(key, [])
        while len(records) <= count:
            records.append(Record())
        return records[count]

    def softmax(self, out: Any, entry: Entry, function: Any, args: Any, kwargs: Any) -> None:
        """Remember of what a result is the softmax: it may be the network's."""
        logits = args[0]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if isinstance(out, Tensor) and isinstance(dim, int):
            again = functools.partial(function, *args, **kwargs)
            self.softmaxes[id(out)] = Softmax(out, logits, dim, entry.name == "log_softmax", again)

    def release(self) -> None:
        """Slopes and graphs are not needed any more: A is known.  They are most of what a call holds."""
        self._known.clear()
        for records in self._records.values():
            for record in records:
                record.release()

    def forget_draws(self) -> None:
        """What was drawn so far is not needed any more."""
        self.common.forget_draws()
        for records in self._records.values():
            for record in records:
                record.noise.clear()

    # ----------------------------------------------------------------- calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FORM or transformed():  # of values within torch.func autograd keeps no graph; the rows have them
            return func(*args, **kwargs)
        entry = entry_of(func)
        if entry is not None and kwargs:
            args, kwargs = entry.ordered(args, kwargs)
        if self.draws_only and not draws(func):
            out = func(*args, **kwargs)
            if entry is not None and entry.kind == "softmax":
                self.softmax(out, entry, func, args, kwargs)
            return out
        entry = entry or _property(func)
        if entry is not None and entry.kind in ("query", "refusal", "creation"):
            note_fast_path(entry.name)
            return func(*args, **kwargs)
        random = any(map(self.knows, tensors_in(args))) or (
            bool(kwargs) and any(map(self.knows, tensors_in(kwargs.values())))
        )
        if not random and not draws(func):
            out = func(*args, **kwargs)
            self.common.certain(out, args, kwargs)
            return out
        if func in _DIFFERENTIATE:
            raise DifferentiatesError
        if kwargs.get("out") is not None:
            return self._written_out(func, entry, args, kwargs)
        flag = self._in_place_flag(entry, args, kwargs)
        if entry is None or not (entry.overwrites or flag or entry.kind == "write"):
            return self._ruled(Call(self, func, entry, args, kwargs))
        return self._written(func, entry, args, kwargs, flag)

    @staticmethod
    def _in_place_flag(entry: Entry | None, args: Any, kwargs: Any) -> bool:
        if entry is None or entry.flag is None:
            return False
        return bool(kwargs.get("inplace", args[entry.flag] if len(args) > entry.flag else False))

    def _ruled(self, call: Call) -> Any:
        """The result of a function, with its shift in the last row."""
        given = tensors_in((*call.args, *call.kwargs.values()))
        common = [value for value in given if self.common.knows(value)]
        shifted: Shifted | None = None
        if common and not any(map(call.random, given)) and not draws(call.function):
            call.run()
        else:
            shifted = self._rule(call.function, call.entry)(call)
        added: Shifted | None = None
        if common:
            added = self.common.rule(call, common, [value for value in given if not self.common.knows(value)])
        out, entry = call.out, call.entry
        self.kinked |= has_kinks(entry, out)
        if shifted is None and added is None:
            return out
        shift: Any = None
        if self.last:
            with torch.enable_grad():
                shift = self._computed(call, shifted)
                more = self._computed(call, added)
                shift = more if shift is None else shift if more is None else shift + more
            if shift is None:
                return out
        self.follow(out, shift)
        return out

    def _computed(self, call: Call, shifted: Shifted | None) -> Any:
        """A shift; None where it ends."""
        if shifted is None:
            return None
        try:
            return shifted()
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            # The answer is right without: what the shift leaves out is in the rows.
            self.ended.add(f"{call.name} ({type(error).__name__})")
        return None

    def _written(self, func: Any, entry: Entry, args: Any, kwargs: Any, flag: bool) -> Any:
        """A function that writes into its first argument: computed beside it, and copied."""
        target = args[0]
        if entry.kind == "write":
            return self._assigned(func, entry, args, kwargs)
        if flag:
            if "inplace" in kwargs:
                kwargs = {**kwargs, "inplace": False}
            else:
                args = tuple(False if place == entry.flag else value for place, value in enumerate(args))
        out = self._ruled(Call(self, entry.call, entry, tuple(args), kwargs))
        if not isinstance(out, Tensor):
            return func(*args, **kwargs)
        if entry.kind == "movement":  # it may change the form alone, as t_
            func(*args, **kwargs)
        else:
            target.copy_(out)
        self._moved(out, target)
        return target

    def _written_out(self, func: Any, entry: Entry | None, args: Any, kwargs: Any) -> Any:
        """A function with ``out=``: its result is computed without it, then copied."""
        rest, given = {name: value for name, value in kwargs.items() if name != "out"}, kwargs["out"]
        found = self._ruled(Call(self, func, entry, args, rest))
        for value, target in zip(tensors_in((found,)), tensors_in((given,)), strict=True):
            if target.shape != value.shape:
                target.resize_(value.shape)
            target.copy_(value)
            self._moved(value, target)
        return given if isinstance(given, Tensor) else type(found)(given)

    def _moved(self, value: Tensor, target: Tensor) -> None:
        """A value has been written into another tensor."""
        random = self.knows(value)
        shift = self.of(value) if self.last and random else None
        self.common.moved(value, target)
        self._rewritten(target, random, shift)

    def _rewritten(self, target: Tensor, random: bool, shift: Tensor | None) -> None:
        """The tensor has another value now; where it is a view of another its shift is written into that one's."""
        if not random:
            self.forget(target)
        elif not self.last or shift is None:
            self.follow(target, None)
            self._follow_base(target)
        else:
            shift = shift.to(target.dtype)
            if target._is_view():
                self._follow_base(target)
                if self.knows(target):
                    with torch.enable_grad():
                        try:
                            self.of(target).copy_(shift.expand(target.shape))
                            return
                        except RuntimeError:  # a view on which autograd allows no writing
                            pass
            with torch.enable_grad():  # else views of it have no derivative
                self.follow(target, shift.expand(target.shape))

    def _follow_base(self, target: Tensor) -> None:
        """A certain tensor of which a view becomes random is random."""
        base = target._base
        if base is None or self.knows(base) or base.shape.numel() == 0:
            return
        if not self.last:
            self.follow(base, None)
            return
        if not base.is_contiguous():
            return
        with torch.enable_grad():
            shift = torch.zeros_like(base).add_(0)
            self.follow(base, shift)
            self.follow(target, shift.as_strided(target.size(), target.stride(), target.storage_offset()))

    def _assigned(self, func: Any, entry: Entry, args: Any, kwargs: Any) -> Any:
        """A value is written: ``setitem``, ``copy_``, ``fill_`` and their like."""
        target, *rest = args
        self.common.forget(target)
        out = func(*args, **kwargs)
        random = any(map(self.knows, tensors_in(rest))) or any(map(self.knows, tensors_in(kwargs.values())))
        if not random and not self.knows(target):
            return out
        if not self.last:
            self.follow(target, None)
            self._follow_base(target)
            return out
        self._follow_base(target)
        with torch.enable_grad():
            old = self.of(target) if self.knows(target) else torch.zeros_like(target)
            new = old if target._is_view() else old.clone()
            values = [self._zero_or_shift(value) for value in rest]
            if entry.name == "setitem":
                values[0] = rest[0]  # an index is an index
            try:
                func(new, *values, **kwargs)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                self.ended.add(f"{entry.name} ({type(error).__name__})")
                new = old
        self.follow(target, new)
        return out

    def _zero_or_shift(self, value: Any) -> Any:
        if has_derivative(value):
            return self.of(value) if self.knows(value) else torch.zeros_like(value)
        if isinstance(value, float | int | complex) and not isinstance(value, bool):
            return 0
        return value
