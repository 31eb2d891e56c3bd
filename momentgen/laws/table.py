"""The table of torch's functions: under which name, and of what kind, each is known to the laws.

torch hands a law every function that meets it, as one of several objects: ``torch.add``, ``Tensor.add``,
``Tensor.__radd__`` and ``Tensor.add_`` are one function.  :data:`TABLE` maps each object to its :class:`Entry`,
which says the name, the kind, and which object computes the same out of place on plain tensors.  A law has one rule
for each kind (:mod:`momentgen.laws.diagonal` and its neighbours); a few functions have rules of their own, by name.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import GetSetDescriptorType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """What is known of one function object.

    Args:
        name: the function's one name, as ``add`` of ``Tensor.__iadd__``.
        kind: the row of :data:`KINDS` that the name is in.
        call: computes it on plain tensors, out of place.
        overwrites: whether the object works in place, as ``Tensor.add_``.
        rebinds: whether it is an operator such as ``+=``, after which Python binds the name anew.
        flag: place of a positional argument ``inplace``, or None.
    """

    name: str
    kind: str
    call: Callable[..., Any]
    overwrites: bool = False
    rebinds: bool = False
    flag: int | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    def writes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call with these arguments overwrites its first one."""
        given = self.flag is not None and len(args) > self.flag and args[self.flag]
        return self.overwrites or bool(kwargs.get("inplace", given))

    def ordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a call, operands that were given by name in their places."""
        for name in _OPERANDS.get(self.name, _FIRST)[len(args) :]:
            if name not in kwargs:
                break
            args, kwargs = (*args, kwargs[name]), {other: value for other, value in kwargs.items() if other != name}
        return args, kwargs


def names(text: str) -> tuple[str, ...]:
    """The words of a text, as the names of a table."""
    return tuple(text.split())


#: kind -> names of functions.  The kinds are what a law has rules for.
KINDS: dict[str, tuple[str, ...]] = {
    # affine in the first argument, with certain coefficients
    "affine": names(
        "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d avg_pool1d avg_pool2d "
        "avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean sum cumsum interpolate pad fold"
    ),
    # values are moved, copied or converted, never computed
    "movement": names(
        "view reshape view_as reshape_as flatten ravel unflatten permute transpose t T mT H mH swapaxes swapdims "
        "movedim moveaxis squeeze unsqueeze expand expand_as broadcast_to broadcast_tensors repeat tile "
        "repeat_interleave roll flip fliplr flipud rot90 contiguous clone detach data narrow select index_select "
        "gather take_along_dim chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind to float double "
        "half bfloat16 type_as type cpu cuda pixel_shuffle pixel_unshuffle channel_shuffle cat stack hstack vstack "
        "dstack column_stack unfold diagonal diag_embed tril triu masked_fill where getitem scatter select_scatter "
        "slice_scatter index_fill take atleast_1d atleast_2d atleast_3d real adjoint positive native_channel_shuffle "
        "embedding requires_grad_ masked_select index_copy index_add scatter_add diag diagflat fftshift ifftshift conj "
        "conj_physical resolve_conj resolve_neg"
    ),
    "arithmetic": ("add", "sub", "rsub", "mul", "div", "rdiv", "neg"),
    # one value at a time; momentgen.laws.activations says how each is computed
    "pointwise": names(
        "relu leaky_relu sigmoid tanh silu gelu elu celu selu softplus softsign softshrink hardshrink tanhshrink mish "
        "hardtanh relu6 hardsigmoid hardswish logsigmoid threshold abs erf cos exp sin square normal_cdf atan expm1 "
        "exp2 sinh cosh asinh erfc sinc clamp clamp_min clamp_max prelu pow sqrt rsqrt reciprocal log log2 log10 "
        "log1p acos asin acosh atanh tan lgamma digamma logit erfinv"
    ),
    "product": names("matmul rmatmul mm bmm mv dot inner outer einsum tensordot"),
    "maximum": names(
        "maximum minimum fmax fmin max min amax amin max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
        "adaptive_max_pool2d adaptive_max_pool3d"
    ),
    "noise": names(
        "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu randn_like rand_like "
        "bernoulli normal_ uniform_ bernoulli_ randint_like"
    ),
    "normalise": names("layer_norm rms_norm group_norm instance_norm batch_norm normalize"),
    "softmax": ("softmax", "log_softmax"),
    # sample statistics of a random input
    "statistic": names("var std var_mean std_mean norm vector_norm"),
    # written over other functions
    "composite": names(
        "scaled_dot_product_attention multi_head_attention_forward glu addmm addbmm baddbmm addmv addr softmin lerp "
        "addcmul addcdiv trace linalg_vecdot vdot"
    ),
    # without a rule for random values: few networks train with them, and the default samples them
    "sampled": names(
        "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn "
        "complex view_as_complex view_as_real imag trapezoid trapz cumulative_trapezoid gradient cross kron "
        "chain_matmul linalg_multi_dot grid_sample affine_grid bilinear embedding_bag diff cdist prod logsumexp "
        "lp_pool1d lp_pool2d lp_pool3d lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"
    ),
    # a tensor's form, not its values
    "query": names(
        "size dim ndimension numel nelement stride is_floating_point is_complex element_size is_contiguous get_device "
        "storage_offset is_inference is_signed is_conj is_neg isnan isinf isfinite isposinf isneginf is_same_size "
        "dim_order result_type"
    ),
    # new tensors like another
    "creation": names(
        "zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full new_empty_strided new_tensor"
    ),
    # a value is overwritten
    "write": ("setitem", "copy_", "fill_", "zero_", "index_put_", "set_"),
    # what depends on the value that was drawn
    "decision": names(
        "gt ge lt le eq ne greater greater_equal less less_equal not_equal isclose allclose equal argmax argmin "
        "argsort sort topk kthvalue median mode nonzero item tolist numpy bool float_of int_of index_of complex_of "
        "long int short any all logical_not logical_and logical_or logical_xor sign round floor ceil trunc frac "
        "floor_divide remainder fmod searchsorted bucketize multinomial bincount histc unique cummax cummin array "
        "contains dlpack dlpack_device is_nonzero signbit count_nonzero"
    ),
    # torch asks whether a fast path may be taken: never
    "refusal": ("_nested_tensor_from_mask_left_aligned", "_has_compatible_shallow_copy_type"),
}

#: other names for the same function
_ALIASES: dict[str, str] = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add",
    "__sub__": "sub", "__isub__": "sub", "subtract": "sub", "__rsub__": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul",
    "__truediv__": "div", "__div__": "div", "__itruediv__": "div", "__idiv__": "div", "divide": "div",
    "true_divide": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv",
    "__neg__": "neg", "negative": "neg", "__pos__": "positive", "__abs__": "abs", "absolute": "abs",
    "__pow__": "pow", "__ipow__": "pow", "__matmul__": "matmul", "__rmatmul__": "rmatmul",
    "__getitem__": "getitem", "__setitem__": "setitem", "concat": "cat", "concatenate": "cat",
    "clip": "clamp", "arctan": "atan", "expit": "sigmoid", "ndtr": "normal_cdf", "special_ndtr": "normal_cdf",
    "special_expit": "sigmoid", "special_erf": "erf", "special_exp2": "exp2", "special_expm1": "expm1",
    "special_softmax": "softmax", "special_log_softmax": "log_softmax", "_softmax": "softmax",
    "__gt__": "gt", "__ge__": "ge", "__lt__": "lt", "__le__": "le", "__eq__": "eq", "__ne__": "ne",
    "__bool__": "bool", "__nonzero__": "bool", "__float__": "float_of", "__int__": "int_of", "__long__": "int_of",
    "__index__": "index_of", "__complex__": "complex_of", "__array__": "array", "__contains__": "contains",
    "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__mod__": "remainder", "__rmod__": "remainder",
    "__dlpack__": "dlpack", "__dlpack_device__": "dlpack_device", "__and__": "logical_and", "__or__": "logical_or",
    "__xor__": "logical_xor", "__invert__": "logical_not", "_dropout": "dropout",
    "row_stack": "vstack", "vecdot": "linalg_vecdot", "multi_dot": "linalg_multi_dot", "ger": "outer",
    "unsafe_split_with_sizes": "split_with_sizes",
    "linalg_vector_norm": "vector_norm", "linalg_norm": "norm",
    "unsafe_chunk": "chunk", "unsafe_split": "split", "_max_pool1d": "max_pool1d",
    "_max_pool2d": "max_pool2d", "_max_pool3d": "max_pool3d", "upsample": "interpolate",
    "feature_dropout": "dropout2d",
}  # fmt: skip

#: names of the operands of functions that take several, in order; of others the first is the input
_FIRST = names("input")
_OPERANDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(names("add sub rsub mul div matmul inner vdot"), names("input other")),
    **dict.fromkeys(names("mm bmm"), names("input mat2")), "mv": names("input vec"), "dot": names("input tensor"),
    "outer": names("input vec2"), "linalg_vecdot": names("x y"), "vector_norm": names("x"),
    "addmm": names("input mat1 mat2"),
    **dict.fromkeys(names("addbmm baddbmm"), names("input batch1 batch2")), "addmv": names("input mat vec"),
    "addr": names("input vec1 vec2"), **dict.fromkeys(names("addcmul addcdiv"), names("input tensor1 tensor2")),
    "lerp": names("input end weight"), "fill_": names("input value"), "copy_": names("input other"),
    "index_put_": names("input indices values"), "masked_fill": names("input mask value"),
    **dict.fromkeys(names("scatter scatter_add"), names("input dim index src")), "where": (), "split": names("tensor"),
    **dict.fromkeys(names("cat stack hstack vstack dstack column_stack"), names("tensors")),
    "scaled_dot_product_attention": names("query key value"),
}  # fmt: skip

#: operators after which Python binds the left name to what they return
_REBINDING = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__")
#: methods that end in an underscore and are names of their own
_OWN_NAMES = ("requires_grad_", "normal_", "uniform_", "bernoulli_", "copy_", "fill_", "zero_", "index_put_", "set_")
_NAMESPACES: tuple[Any, ...] = (
    torch, F, torch.special, torch.linalg, torch._C._nn, torch._VF, torch.functional, torch.fft, torch.sparse,
    torch.Tensor,
)  # fmt: skip

#: function object -> what is known of it
TABLE: dict[Any, Entry] = {}
#: name of a Tensor's method -> what is known of it
METHODS: dict[str, Entry] = {}


def _known_as(attribute: str) -> tuple[str, bool]:
    """The one name of an attribute of torch, and whether it works in place."""
    if attribute in _OWN_NAMES:
        return attribute, attribute != "requires_grad_"
    if attribute in _ALIASES:
        return _ALIASES[attribute], attribute in _REBINDING
    if attribute.endswith("_") and not attribute.startswith("_"):
        return _ALIASES.get(attribute[:-1], attribute[:-1]), True
    return attribute, False


#: functions that torch.vmap or autograd cannot run, and the same ones that they can
_STAND_INS: dict[str, Callable[..., Any]] = {"moveaxis": torch.movedim, "native_channel_shuffle": F.channel_shuffle}


def _out_of_place(attribute: str, name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    """The object that computes the same without overwriting anything.

    Operators and methods written in Python give way to functions of torch, which ``torch.compile`` traces.
    """
    if name in ("getitem", "setitem"):
        return operator.getitem if name == "getitem" else operator.setitem
    if name in _STAND_INS:
        return _STAND_INS[name]
    if attribute in _OWN_NAMES:
        return found
    if attribute.startswith("__"):
        return getattr(torch, name, found)
    in_python = inspect.isfunction(found) and getattr(Tensor, attribute, None) is found
    if attribute in ("split", "norm") or not (attribute.endswith("_") or in_python):
        return found
    plain = attribute.rstrip("_")
    for space in (torch, F, Tensor):
        if callable(function := getattr(space, plain, None)):
            return function
    return found


@functools.cache
def _attributes() -> dict[str, list[tuple[Any, str, bool]]]:
    """The attributes of torch by their one name: namespace, attribute, and whether it works in place."""
    found: dict[str, list[tuple[Any, str, bool]]] = {}
    for space in _NAMESPACES:
        for attribute in dir(space):
            name, overwrites = _known_as(attribute)
            found.setdefault(name, []).append((space, attribute, overwrites))
    return found


def _objects(kind: str, name: str) -> Iterator[tuple[Any, Entry, str | None]]:
    for space, attribute, overwrites in _attributes().get(name, ()):
        found: Any = getattr(space, attribute, None)
        if isinstance(found, GetSetDescriptorType):  # a property that computes, as ``T``
            found = found.__get__
        if not callable(found) or isinstance(found, type):
            continue
        # of functions written in Python
        is_own = inspect.isfunction(found) and not attribute.endswith("_")
        words = inspect.signature(found).parameters if is_own else ()
        entry = Entry(
            name,
            kind,
            _out_of_place(attribute, name, found),
            overwrites,
            attribute in _REBINDING,
            list(words).index("inplace") if "inplace" in words else None,
        )
        yield found, entry, attribute if space is Tensor else None


for _kind, _names in KINDS.items():
    for _found, _entry, _method in itertools.chain.from_iterable(_objects(_kind, _name) for _name in _names):
        TABLE.setdefault(_found, _entry)
        if _method is not None:
            METHODS.setdefault(_method, _entry)


def list_for_compile(functions: Iterable[Any]) -> None:
    """Let ``torch.compile`` hand laws, and modes of functions, every one of these.

    It asks ``torch.overrides`` which functions ask ``__torch_function__``, and there a few are missing, hardswish and
    hardsigmoid among them.
    """
    listed = torch.overrides.get_overridable_functions()
    known = {function for functions in listed.values() for function in functions}
    listed[F].extend(function for function in functions if function not in known)
    compiler = sys.modules.get("torch._dynamo.variables.torch")
    if compiler is not None:  # it keeps the list
        compiler.get_overridable_functions.cache_clear()


list_for_compile(TABLE)
