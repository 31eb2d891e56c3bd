"""The mode within which rows run, and within which autograd linearises the network.

Rows run on plain tensors, in the shapes of the user's call, or several together in its batch.  Of each function that
meets a random tensor and is not linear they record its slopes.  Then the network is called once more under autograd.
There the function's result has the mean of the recorded slopes as its derivative.  Where rows cannot record what a
function's derivative is, autograd differentiates the network as it is, in a few of the rows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from types import GetSetDescriptorType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from momentgen.laws.controlled.common import Common
from momentgen.laws.controlled.outputs import Softmax
from momentgen.laws.controlled.rules import MAKES_NOISE, decides, drawn, rule_of, without_rule
from momentgen.laws.controlled.state import Call, OtherFactsError, Phase, Record, State
from momentgen.laws.nests import mapped, tensors_in
from momentgen.laws.notes import note_fast_path
from momentgen.laws.table import TABLE, Entry
from momentgen.runtime.autograd import transformed

#: functions that differentiate what autograd has seen; of functions computed beside their slopes it sees nothing
_DIFFERENTIATE: Final = frozenset((torch.autograd.grad, torch.autograd.backward, Tensor.backward))

#: what a function may raise of values with derivatives, or a rule of shapes that change
_ERRORS: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


class Slopes(TorchFunctionMode):
    """Within the context a network runs on plain tensors, and its slopes are recorded or used.

    Args:
        keeps_graph: whether the answer will be differentiated.
        batch: number of examples; 1 where all of the network's values belong to one.
        inputs: certain tensors among the arguments.

    Attributes:
        state: of the rows.
        common: noise that all examples have in common.
        softmaxes: of the present row, by their results.
    """

    def __init__(self, keeps_graph: bool, batch: int = 1, inputs: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.state = State(keeps_graph, batch)
        self.common = Common(self.state, batch, inputs)
        self.softmaxes: dict[int, Softmax] = {}

    def begin(self, rows: int = 1) -> None:
        """The next row begins, or the next rows together."""
        self.state.begin(rows)
        self.common.begin()
        self.softmaxes.clear()

    def forget_draws(self) -> None:
        """What was drawn so far is not needed any more."""
        self.common.forget_draws()
        self.state.forget_draws()

    # ----------------------------------------------------------------- calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, state = kwargs or {}, self.state
        entry = TABLE.get(func)
        if entry is None and isinstance(getattr(func, "__self__", None), GetSetDescriptorType):  # of a tensor's form
            return func(*args, **kwargs)
        noise = func in MAKES_NOISE or (entry is not None and entry.kind == "noise")
        if entry is not None and kwargs:
            args, kwargs = entry.ordered(args, kwargs)
        if state.phase is Phase.DRAWS and not noise:
            out = func(*args, **kwargs)
            self._softmax(entry, out, func, args, kwargs)
            return out
        if transformed():  # of values within torch.func no rule sees the whole; autograd does
            state.ruled = False
            return func(*args, **kwargs)
        if state.phase.linearises:
            with _differentiable(func):
                return self._seen(func, entry, noise, args, kwargs)
        return self._seen(func, entry, noise, args, kwargs)

    def _seen(self, func: Any, entry: Entry | None, noise: bool, args: Any, kwargs: Any) -> Any:
        """The result of a function, which may be random, may draw, or may be to linearise."""
        if entry is not None and entry.kind in ("query", "refusal", "creation"):
            note_fast_path(entry.name)
            return func(*args, **kwargs)
        given = tensors_in((*args, *kwargs.values()))
        if not noise and not any(map(self.state.knows, given)):
            out = func(*args, **kwargs)
            self.common.certain(out, given)
            return out
        if func in _DIFFERENTIATE:
            raise OtherFactsError(differentiates=True)
        if (entry is not None and entry.kind == "write") or kwargs.get("out") is not None:
            return self._native(func, entry, args, kwargs, given)
        if entry is not None and entry.writes(args, kwargs):
            return self._overwritten(func, entry, args, kwargs, given)
        return self._ruled(self.state.call(func, entry, args, kwargs, given), noise)

    def _native(self, func: Any, entry: Entry | None, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """A function that writes, into its first argument or ``out``, and whose derivative is autograd's."""
        call = Call(self.state, Record(), func, entry, args, kwargs, given)
        self._run(call)
        for target in tensors_in((kwargs["out"],)) if "out" in kwargs else args[:1]:
            self._written(target)
        return call.out

    def _overwritten(self, func: Any, entry: Entry, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """A function that writes into its first argument: computed beside it, and copied."""
        if entry.kind == "movement":  # it may change the form alone, as t_
            return self._native(func, entry, args, kwargs, given)
        if "inplace" in kwargs:
            kwargs = {**kwargs, "inplace": False}
        elif entry.flag is not None:
            args = tuple(False if place == entry.flag else value for place, value in enumerate(args))
        target = args[0]
        if self.state.phase.linearises:
            held = target.clone()  # a derivative may need what is overwritten
            if self.state.knows(target):
                self.state.follow(held, self.state.common(target))
            args = (held, *args[1:])
            given = [held if one is target else one for one in given]
        out = self._ruled(self.state.call(entry.call, entry, tuple(args), kwargs, given), entry.kind == "noise")
        if not isinstance(out, Tensor):
            return func(*args, **kwargs)
        if out is not args[0]:
            with self._ends("copy_"):
                target.copy_(out)
            self._written(target)
            if self.state.common(out) is not None:
                self.state.follow(target, self.state.common(out))
        return target

    def _written(self, target: Any) -> None:
        """A tensor is random, and so is what it is a view of."""
        if isinstance(target, Tensor):
            for one in (target, target._base):
                self.state.follow(one)

    def _ruled(self, call: Call, noise: bool) -> Any:
        """The result of a function, with its derivative where the network is linearised."""
        state, added, moves = self.state, None, any(call.moves)
        if noise:
            drawn(call, self.common)
        elif moves:
            self._computed(call)
        else:
            self._run(call)
        self._softmax(call.entry, call.out, call.function, call.args, call.kwargs)
        if call.common:
            added = self.common.rule(call)
        if added is not None and state.phase.linearises:
            with self._ends(call.name):
                more = added()
                call.out = call.out if more is None else call.out + more
        state.computed(call, moves or added is not None)
        return call.out

    def _computed(self, call: Call) -> None:
        """Compute a result, by its rule where there is one."""
        state = self.state
        # of derivatives that are differentiated, each must be that of the values before it
        rule = None if state.phase is Phase.DERIVATIVES and state.keeps_graph else rule_of(call)
        if rule is None:
            self._run(call)
            without_rule(call)
        elif state.phase.linearises:
            with torch.no_grad():
                found = rule(call)
            if found is not None:
                call.out = value = call.out.detach()
                with self._ends(call.name):
                    call.out = value + found()
        else:
            rule(call)

    def _run(self, call: Call) -> None:
        """Compute a result as it is; of values without derivatives where it has none, or refuses these."""
        if not (self.state.phase.linearises and decides(call)):
            with self._ends(call.name):
                call.run()
                if self.state.phase.linearises and call.name in ("detach", "data") and isinstance(call.out, Tensor):
                    call.out = call.args[0].view_as(call.args[0])  # whatever it stops, the values vary
                return
        args, kwargs = mapped(_without, call.args), mapped(_without, call.kwargs)
        call.out = call.function(*args, **kwargs)

    @contextlib.contextmanager
    def _ends(self, name: str) -> Iterator[None]:
        """Where a derivative fails it ends: the answer is right without, what it leaves out is in the rows."""
        try:
            yield
        except _ERRORS as error:
            if not self.state.phase.linearises:
                raise
            self.state.ended.add(f"{name} ({type(error).__name__})")

    def _softmax(self, entry: Entry | None, out: Any, function: Any, args: Any, kwargs: Any) -> None:
        """Remember of what a result is the softmax: it may be the network's."""
        if entry is None or entry.name != "softmax":
            return
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if isinstance(out, Tensor) and isinstance(dim, int):
            again = functools.partial(function, *args, **kwargs)
            self.softmaxes[id(out)] = Softmax(out, args[0], dim, again)


def _without(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


@contextlib.contextmanager
def _differentiable(func: Any) -> Iterator[None]:
    """Makes functions of torch differentiable: cuDNN's recurrent layers in evaluation, fused attention twice."""
    name = getattr(func, "__name__", "")
    with contextlib.ExitStack() as stack:
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if name == "scaled_dot_product_attention":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield
