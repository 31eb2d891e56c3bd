"""How a random program may call each function of the table.

A template is a line of Python with the names of values and sizes left open: ``{x}`` and ``{y}`` are values, ``{d}`` and
``{e}`` two dimensions other than the batch, ``{n}`` the size of ``{d}``, ``{free}`` the first dimension that is not the
batch, ``{w}`` a module or buffer of the template's own.  One that cannot be filled in, or does not run, is passed over.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.table import KINDS

__all__ = ["LEFT_OUT", "PATTERNS", "TEMPLATES", "Template"]


@dataclass(frozen=True)
class Template:
    """A call.

    Attributes:
        text: an expression; or statements, one a line, that bind ``{o}``.
        effect: what the result is, given what its operands are: a function of :mod:`fuzz.effects`.
        part: what ``{w}`` is, an expression, if the call has a part.
        tolerance: relative, of σ.
    """

    text: str
    effect: str
    part: str | None = None
    tolerance: float = 0.05


# ------------------------------------------------------------- one value at a time

#: arguments beside the first; where a function has none of its own, the name alone serves
_ARGUMENTS = {
    "leaky_relu": "0.2", "elu": "0.5", "celu": "0.7", "softplus": "2.0", "softshrink": "0.3", "hardshrink": "0.3",
    "hardtanh": "-0.8, 0.6", "threshold": "0.1, -0.5", "clamp": "-0.5, 0.8", "clamp_min": "-0.3", "clamp_max": "0.4",
    "pow": "3", "prelu": "{w}.weight",
}  # fmt: skip
#: functions that are not defined everywhere -> what they are called with
_INSIDE = {
    **dict.fromkeys(
        ["sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p", "lgamma", "digamma"], "(F.softplus({x}) + 0.5)"
    ),
    "acosh": "(F.softplus({x}) + 1.5)",
    **dict.fromkeys(["acos", "asin", "atanh", "tan", "erfinv"], "(0.6 * torch.tanh({x}))"),
    "logit": "(0.2 + 0.6 * torch.sigmoid({x}))",
}
_SPACES = (("torch", torch), ("F", F), ("torch.special", torch.special))


def _pointwise(name: str) -> list[Template]:
    inside, more = _INSIDE.get(name, "{x}"), _ARGUMENTS.get(name)
    tail = "" if more is None else f", {more}"
    part = "nn.PReLU()" if name == "prelu" else None
    plain = "ndtr" if name == "normal_cdf" else name
    found = [
        Template(f"{label}.{plain}({inside}{tail})", "pointwise", part)
        for label, space in _SPACES
        if callable(getattr(space, plain, None)) and not (space is F and hasattr(torch, plain))
    ]
    if callable(getattr(Tensor, plain, None)):
        found.append(Template(f"{inside}.{plain}({more or ''})", "pointwise", part))
    if callable(getattr(Tensor, f"{plain}_", None)) and name != "prelu":
        found.append(Template(f"{{o}} = {inside}.clone()\n{{o}}.{plain}_({more or ''})", "pointwise"))
    if name == "pow":
        found += [Template(f"{{x}} ** {k}", "pointwise") for k in (2, 3, 4)]
        found += [Template("(F.softplus({x}) + 0.5) ** 0.5", "pointwise"), Template("{x} ** 0.3", "pointwise")]
    return found


# ------------------------------------------------------------------------- movement

_MOVEMENT: dict[str, tuple[str, ...]] = {
    "view": ("{x}.contiguous().view(*{x}.shape[:{free}], -1)",),
    "reshape": ("{x}.reshape(*{x}.shape[:{free}], -1)", "torch.reshape({x}, (*{x}.shape, 1))"),
    "view_as": ("{x}.clone().view_as({x})",),
    "reshape_as": ("{x}.reshape_as({x})",),
    "flatten": ("{x}.flatten({free})", "torch.flatten({x}, {d})"),
    "ravel": ("{whole}.ravel()",),
    "unflatten": ("{x}.unflatten({d}, (1, {n}))",),
    "permute": ("{x}.permute({permutation})",),
    "transpose": ("{x}.transpose({d}, {e})",),
    "t": ("{whole}.t()",),
    "T": ("{whole}.T",),
    "mT": ("{matrix}.mT",),
    "mH": ("{matrix}.mH",),
    "H": ("{whole}.H",),
    "adjoint": ("{matrix}.adjoint()",),
    "swapaxes": ("{x}.swapaxes({d}, {e})",),
    "swapdims": ("torch.swapdims({x}, {d}, {e})",),
    "movedim": ("{x}.movedim({d}, {e})",),
    "moveaxis": ("torch.moveaxis({x}, {d}, {e})",),
    "squeeze": ("{x}.squeeze(-1)", "{x}.unsqueeze({d}).squeeze({d})"),
    "unsqueeze": ("{x}.unsqueeze(-1)", "{x}.unsqueeze({d})"),
    "narrow": ("{x}.narrow({d}, {i}, 1)",),
    "select": ("{x}.select({d}, {i})",),
    "index_select": ("{x}.index_select({d}, {w})",),
    "chunk": ("{x}.chunk(2, {d})[-1]",),
    "split": ("{x}.split(1, {d})[0]", "torch.split({x}, [1, {n} - 1], {d})[0]"),
    "split_with_sizes": ("{x}.split_with_sizes([1, {n} - 1], {d})[0]",),
    "tensor_split": ("{x}.tensor_split(2, {d})[0]",),
    "hsplit": ("{matrix}.hsplit([1])[0]",),
    "vsplit": ("{whole}.vsplit([1])[0]",),
    "dsplit": ("{x}.dsplit([1])[0]",),
    "unbind": ("{x}.unbind({d})[{i}]",),
    "roll": ("{x}.roll(1, {d})",),
    "flip": ("{x}.flip({d})",),
    "fliplr": ("{matrix}.fliplr()",),
    "flipud": ("{whole}.flipud()",),
    "rot90": ("torch.rot90({x}, 1, ({d}, {e}))",),
    "contiguous": ("{x}.contiguous()",),
    "clone": ("{x}.clone()",),
    "detach": ("{x}.detach()",),
    "data": ("{x}.data",),
    "to": ("{x}.to({x}.dtype)",),
    "float": ("{x}.float().to({x}.dtype)",),
    "double": ("{x}.double().to({x}.dtype)",),
    "type_as": ("{x}.type_as({x})",),
    "type": ("{x}.type({x}.dtype)",),
    "cpu": ("{x}.cpu()",),
    "pixel_shuffle": ("F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)",),
    "pixel_unshuffle": ("F.pixel_unshuffle({x}, 2)",),
    "channel_shuffle": ("F.channel_shuffle({x}, 2)",),
    "diagonal": ("torch.diagonal({x}, 0, {d}, {e})",),
    "take": ("{whole}.take({w})",),
    "atleast_1d": ("torch.atleast_1d({x})",),
    "atleast_2d": ("torch.atleast_2d({x})",),
    "atleast_3d": ("torch.atleast_3d({x})",),
    "real": ("{x}.real",),
    "positive": ("+{x}",),
    "masked_select": ("{whole}.masked_select({mask})",),
    "requires_grad_": ("{x}.clone().requires_grad_()",),
    "native_channel_shuffle": ("torch.native_channel_shuffle({x}, 2)",),
    "fftshift": ("torch.fft.fftshift({x}, {d})",),
    "ifftshift": ("torch.fft.ifftshift({x}, {d})",),
    "imag": ("torch.complex({y}, {x}).imag",),
    "getitem": ("{x}[..., 0]", "{x}[..., [0, -1]]", "{x}[..., None]", "{x}[..., ::2]", "{x}[{index}]"),
}
_REPEATING: dict[str, tuple[str, ...]] = {
    "expand": ("{x}.unsqueeze(-1).expand(*{x}.shape, 2)",),
    "expand_as": ("{x}.narrow({d}, 0, 1).expand_as({x})",),
    "broadcast_to": ("torch.broadcast_to({x}.unsqueeze(-1), (*{x}.shape, 2))",),
    "broadcast_tensors": ("torch.broadcast_tensors({x}, {x}.narrow({d}, 0, 1))[1]",),
    "repeat": ("{x}.repeat(*[1] * ({x}.dim() - 1), 2)",),
    "tile": ("{x}.tile((2,))",),
    "repeat_interleave": ("{x}.repeat_interleave(2, {d})",),
    "gather": ("{x}.gather({d}, torch.zeros_like({x}, dtype=torch.long))",),
    "take_along_dim": ("torch.take_along_dim({x}, torch.zeros_like({x}, dtype=torch.long), {d})",),
    "unfold": ("{x}.unfold({d}, 2, 1)",),
}
_TOGETHER: dict[str, tuple[str, ...]] = {
    "cat": ("torch.cat([{x}, {y}], {d})",),
    "stack": ("torch.stack([{x}, {y}], -1)",),
    "hstack": ("torch.hstack([{matrix}, {y}])",),
    "vstack": ("torch.vstack([{whole}, {y}])",),
    "dstack": ("torch.dstack([{matrix}, {y}])",),
    "column_stack": ("torch.column_stack([{x}, {y}])",),
    "view_as_real": ("torch.view_as_real(torch.complex({x}, {y}))",),
    "where": ("torch.where({mask}, {x}, {y})", "{x}.where({mask}, {y})"),
    "select_scatter": ("{x}.select_scatter({y}.select({d}, 0), {d}, {i})",),
    "slice_scatter": ("{x}.slice_scatter({y}.narrow({d}, 0, 1), {d}, {i}, {i} + 1)",),
    "scatter": ("{x}.scatter({d}, torch.zeros_like({y}.narrow({d}, 0, 1), dtype=torch.long), {y})",),
    "index_copy": ("{x}.index_copy({d}, {w}, {y}.index_select({d}, {w}))",),
}
_MASKED: dict[str, tuple[str, ...]] = {
    "tril": ("{matrix}.tril()",),
    "triu": ("torch.triu({matrix})",),
    "masked_fill": ("{x}.masked_fill({mask}, 0.7)",),
    "index_fill": ("{x}.index_fill({d}, {w}, 0.3)",),
    "diag_embed": ("torch.diag_embed({x})",),
    "diag": ("torch.diag({whole})",),
    "diagflat": ("torch.diagflat({whole})",),
}
#: buffers of indices
_INDEX = {
    "index_select": "torch.tensor([{n} - 1, 0])",
    "take": "torch.tensor([1, 0])",
    "index_copy": "torch.tensor([0])",
    "index_fill": "torch.tensor([0])",
}


def _movement(name: str) -> list[Template]:
    rows = ((_MOVEMENT, "moved"), (_REPEATING, "repeated"), (_TOGETHER, "together"), (_MASKED, "masked"))
    found = [Template(text, effect, _INDEX.get(name)) for row, effect in rows for text in row.get(name, ())]
    if name in ("half", "bfloat16"):  # of values whose rounding is small beside their noise
        found.append(Template(f"torch.tanh({{x}}).{name}().to({{x}}.dtype)", "pointwise"))
    if name in ("index_add", "scatter_add"):
        index = "{w}" if name == "index_add" else "torch.zeros_like({y}, dtype=torch.long)"
        part = "torch.arange({n})" if name == "index_add" else None
        found.append(Template(f"{{x}}.{name}({{d}}, {index}, {{y}})", "mixed", part))
    return found


# ------------------------------------------------------- arithmetic, products, reductions


def _calls(*rows: str) -> list[Template]:
    """Templates of rows ``effect: text``, or ``effect: text | part``."""
    pairs = [row.split(": ", 1) for row in rows]
    return [Template(text, effect, *part) for effect, rest in pairs for text, *part in [rest.split(" | ")]]


_ARITHMETIC = {
    "add": _calls("scaled: {x} + 0.5", "add: {x} + {y}", "add: torch.add({x}, {y}, alpha=-2)",
        "add: {o} = {x}.clone()\n{o} += {y}", "scaled: {o} = {x}.clone()\n{o}.add_(1)"),
    "sub": _calls("add: {x} - {y}", "scaled: {x}.sub(0.3)"),
    "rsub": _calls("scaled: 1 - {x}", "add: torch.rsub({x}, {y})"),
    "mul": _calls("mul: {x} * {y}", "scaled: {x} * 1.5", "mul: {x}.multiply({y})",
        "mul: {o} = {x}.clone()\n{o} *= {y}", "mul: {o} = {x}.clone()\n{o}.mul_({y})",
        "scaled: {x} * {w} | torch.linspace(-1, 1, {last})"),
    "div": _calls("scaled: {x} / 2", "mul: {x} / ({y} * {y} + 1.5)", "pointwise: -{x}**2 / 2"),
    "rdiv": _calls("pointwise: 1 / ({x} * {x} + 1.5)"),
    "neg": _calls("scaled: -{x}", "scaled: {x}.negative()"),
}  # fmt: skip

_AFFINE = {
    "linear": [Template("{w}({x})", "linear", f"nn.Linear({{last}}, {m})") for m in (1, 2, 3)],
    "conv1d": _calls("linear: {w}({x}) | nn.Conv1d({channels}, 2, 2, padding=1)"),
    "conv2d": _calls("linear: {w}({x}) | nn.Conv2d({channels}, 2, 2, padding=1)"),
    "conv3d": _calls("linear: {w}({x}.unsqueeze(-1)) | nn.Conv3d({channels}, 2, 1)"),
    "conv_transpose1d": _calls("linear: {w}({x}) | nn.ConvTranspose1d({channels}, 2, 2)"),
    "conv_transpose2d": _calls("linear: {w}({x}) | nn.ConvTranspose2d({channels}, 2, 2)"),
    "conv_transpose3d": _calls("linear: {w}({x}.unsqueeze(-1)) | nn.ConvTranspose3d({channels}, 2, 1)"),
    "avg_pool1d": _calls("linear: F.avg_pool1d({x}, 2)"),
    "avg_pool2d": _calls("linear: F.avg_pool2d({x}, 2, 1)"),
    "avg_pool3d": _calls("linear: F.avg_pool3d({x}.unsqueeze(-1), (2, 1, 1))"),
    "adaptive_avg_pool1d": _calls("linear: F.adaptive_avg_pool1d({x}, 1)"),
    "adaptive_avg_pool2d": _calls("linear: F.adaptive_avg_pool2d({x}, 1)"),
    "adaptive_avg_pool3d": _calls("linear: F.adaptive_avg_pool3d({x}.unsqueeze(-1), 1)"),
    "mean": _calls("linear: {x}.mean({d})", "linear: {x}.mean({d}, keepdim=True)", "linear: {whole}.mean()"),
    "sum": _calls("linear: {x}.sum({d})", "linear: {x}.sum(-1, keepdim=True)"),
    "cumsum": _calls("linear: {x}.cumsum({d})"),
    "diff": _calls("linear: torch.diff({x}, dim={d})"),
    "interpolate": _calls("repeated: F.interpolate({x}, scale_factor=2, mode='nearest')"),
    "pad": _calls("masked: F.pad({x}, (1, 0))", "repeated: F.pad({x}, (1, 1), mode='replicate')"),
    "embedding_bag": _calls("scaled: {x} + {w}(torch.zeros(1, 2, dtype=torch.long))[0, :1] | nn.EmbeddingBag(3, 2)"),
    "fold": _calls("moved: F.fold({x}.reshape({x}.shape[0], -1, 1), (2, 1), (2, 1))"),
}  # fmt: skip

_PRODUCT = {
    "linalg_vecdot": _calls("product: torch.linalg.vecdot({x}, {y})", "statistic: torch.linalg.vecdot({x}, {x})"),
    "vdot": _calls("product: torch.vdot({whole}, {y})", "statistic: torch.vdot({whole}, {whole})"),
    "cross": _calls("product: torch.linalg.cross({x}, {y})"),
    "kron": _calls("product: torch.kron({whole}, {y})"),
    "chain_matmul": _calls("linear: torch.chain_matmul({whole}, {w}.weight) | nn.Linear(2, {last})"),
    "linalg_multi_dot": _calls(
        "linear: torch.linalg.multi_dot([{whole}, {w}.weight, {w}.weight.mT]) | nn.Linear(2, {last})",
        "product: torch.linalg.multi_dot([{whole}, {y}])"),
    "matmul": _calls("linear: {x} @ {w}.weight | nn.Linear(2, {last})",
        "linear: {w}.weight @ {matrix}.mT | nn.Linear({last}, 2)", "product: {x}.unsqueeze(-2) @ {y}.unsqueeze(-1)",
        "statistic: {x}.unsqueeze(-2) @ {x}.unsqueeze(-1)", "statistic: {matrix} @ {matrix}.mT", "product: {x} @ {y}"),
    "rmatmul": _calls("linear: {matrix}.__rmatmul__({w}.weight) | nn.Linear({penultimate}, 2)"),
    "mm": _calls("linear: torch.mm({whole}, {w}.weight) | nn.Linear(2, {last})"),
    "bmm": _calls("product: torch.bmm({x}, {y})", "statistic: torch.bmm({x}, {x}.mT)",
        "statistic: torch.bmm({x}[:, None], {x}[:, :, None])"),
    "mv": _calls("linear: {w}.weight.mv({whole}) | nn.Linear({last}, 2)"),
    "dot": _calls("statistic: torch.dot({whole}, {whole})", "product: torch.dot({whole}, {y})"),
    "inner": _calls("linear: torch.inner({x}, {w}.weight) | nn.Linear({last}, 2)",
        "statistic: torch.inner({whole}, {whole})"),
    "outer": _calls("product: torch.outer({whole}, {y})", "mixed: torch.outer({whole}, {whole})"),
    "einsum": _calls("product: torch.einsum('...i,...i->...', {x}, {y})",
        "statistic: torch.einsum('...i,...i->...', {x}, {x})",
        "linear: torch.einsum('...i,oi->...o', {x}, {w}.weight) | nn.Linear({last}, 2)"),
    "bilinear": _calls("product: {w}({x}, {y}) | nn.Bilinear({last}, {last}, 2)",
        "mixed: {w}({x}, {x}) | nn.Bilinear({last}, {last}, 2)"),
    "tensordot": _calls("linear: torch.tensordot({x}, {w}.weight, dims=([-1], [-1])) | nn.Linear({last}, 2)",
        "statistic: torch.tensordot({whole}, {whole}, dims={rank})"),
}  # fmt: skip

_MAXIMUM = {
    **{
        name: [Template(f"torch.{name}({{x}}, {{y}})", "larger"), Template(f"torch.{name}({{x}}, -{{x}})", "pointwise")]
        for name in ("maximum", "minimum", "fmax", "fmin")
    },
    "max": _calls("statistic: {x}.max({d}).values", "statistic: {x}.max({d})[0]", "statistic: {whole}.max()",
        "larger: torch.max({x}, {y})"),
    "min": _calls("statistic: {x}.min({d}, keepdim=True)[0]", "larger: torch.min({x}, {y})"),
    "amax": _calls("statistic: {x}.amax({d})", "statistic: {x}.amax(-1, keepdim=True)"),
    "amin": _calls("statistic: {x}.amin({d})"),
    "max_pool1d": _calls("statistic: F.max_pool1d({x}, 2)"),
    "max_pool2d": _calls("statistic: F.max_pool2d({x}, 2)", "statistic: F.max_pool2d({x}, 3, 1, 1)"),
    "max_pool3d": _calls("statistic: F.max_pool3d({x}.unsqueeze(-1), (2, 2, 1))"),
    "adaptive_max_pool1d": _calls("statistic: F.adaptive_max_pool1d({x}, 1)"),
    "adaptive_max_pool2d": _calls("statistic: F.adaptive_max_pool2d({x}, 1)"),
    "adaptive_max_pool3d": _calls("statistic: F.adaptive_max_pool3d({x}.unsqueeze(-1), 1)"),
}  # fmt: skip

# --------------------------------------------------- noise, statistics, what is written over others

_NOISE = {
    "dropout": _calls("noise: F.dropout({x}, 0.3, True)",
        "noise: F.dropout({w}.weight[0], 0.4, True) * {x} | nn.Linear({last}, 1)", "noise: nn.Dropout(0.5)({x})"),
    "dropout1d": _calls("noise_in_common: F.dropout1d({x}, 0.3, True)",
        "noise_in_common: {x} + F.dropout1d({w}.weight, 0.3, True)[0] | nn.Linear({last}, 1)"),
    "dropout2d": _calls("noise_in_common: F.dropout2d({x}, 0.3, True)"),
    "dropout3d": _calls("noise_in_common: F.dropout3d({x}.unsqueeze(-1), 0.3, True)"),
    "alpha_dropout": _calls("noise: F.alpha_dropout({x}, 0.3, True)"),
    "feature_alpha_dropout": _calls("noise_in_common: F.feature_alpha_dropout({x}, 0.3, True)"),
    "rrelu": _calls("random_slope: F.rrelu({x}, 0.1, 0.4, True)"),
    "randn_like": _calls("noise: {x} + 0.4 * torch.randn_like({x})",
        "noise_in_common: {x} + 0.5 * torch.randn_like({w}.weight[0]) | nn.Linear({last}, 1)",
        "noise_in_common: {x} + 0.5 * torch.randn({last}, dtype={x}.dtype)",
        "noise_in_common: {x} + torch.normal({w}.weight[0], 0.3) | nn.Linear({last}, 1)"),
    "rand_like": _calls("noise: {x} * torch.rand_like({x})",
        "noise_in_common: {x} + torch.rand({last}, dtype={x}.dtype)"),
    "bernoulli": _calls("noise: {x} * torch.bernoulli(torch.full_like({x}, 0.4))",
        "noise_in_common: {x} * torch.bernoulli({w}.weight[0].sigmoid()) | nn.Linear({last}, 1)"),
    "bernoulli_": _calls("noise: {x} * torch.zeros_like({x}).bernoulli_(0.4)"),
    "normal_": _calls("noise: {x} + torch.zeros_like({x}).normal_(0.2, 0.3)",
        "noise_in_common: {x} + torch.empty({last}, dtype={x}.dtype).normal_()"),
    "uniform_": _calls("noise: {x} + torch.zeros_like({x}).uniform_(-0.5, 0.5)"),
    "randint_like": _calls("noise: {x} + torch.randint_like({x}, 0, 3)"),
}  # fmt: skip

_NORMALISE = {
    "layer_norm": _calls("statistic: F.layer_norm({x}, {x}.shape[-1:])", "statistic: {w}({x}) | nn.LayerNorm({last})"),
    "rms_norm": _calls("statistic: F.rms_norm({x}, {x}.shape[-1:])"),
    "group_norm": _calls("statistic: F.group_norm({x}, 1)"),
    "instance_norm": _calls("statistic: F.instance_norm({x})"),
    "batch_norm": [
        Template("{w}({x})", "scaled", f"nn.BatchNorm{k}d({{channels}})") for k in (1, 2)
    ],
    "normalize": _calls("statistic: F.normalize({x}, dim={d})"),
}  # fmt: skip

_SOFTMAX = {
    "softmax": [Template("{x}.softmax({d})", "statistic", tolerance=0.1),
                Template("F.softmax({x}, -1)", "statistic", tolerance=0.1)],
    "log_softmax": [Template("F.log_softmax({x}, {d})", "statistic", tolerance=0.1)],
}  # fmt: skip

_STATISTIC = {
    "var": _calls("statistic: {x}.var({d})", "statistic: {x}.var(-1, unbiased=False)"),
    "std": _calls("statistic: {x}.std({d})"),
    "var_mean": _calls("statistic: torch.var_mean({x}, {d})[0]"),
    "std_mean": _calls("linear: torch.std_mean({x}, {d})[1]"),
    "norm": _calls("statistic: {x}.norm(dim={d})"),
    "vector_norm": _calls("statistic: torch.linalg.vector_norm({x}, dim={d})"),
    "lp_pool1d": _calls("statistic: F.lp_pool1d({x}, 2, 2)"),
    "lp_pool2d": _calls("statistic: F.lp_pool2d({x}, 2, 2)"),
    "lp_pool3d": _calls("statistic: F.lp_pool3d({x}.unsqueeze(-1), 2, (2, 2, 1))"),
    "logsumexp": _calls("statistic: {x}.logsumexp({d})"),
    "prod": _calls("statistic: {x}.prod({d})", "statistic: {whole}.prod()"),
}  # fmt: skip

_RECURRENT = [
    Template("{w}({x}.unsqueeze(-1))[0]", "mixed", f"nn.{kind}(1, 2, batch_first=True{more})")
    for kind, more in (("LSTM", ""), ("GRU", ""), ("RNN", ""), ("RNN", ", nonlinearity='relu'"))
]  # fmt: skip
_COMPOSITE = {
    "scaled_dot_product_attention": [
        Template("F.scaled_dot_product_attention({x}, {y}, {y})", "mixed"),
        Template("F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)", "mixed"),
        Template("F.scaled_dot_product_attention({x}, {x}, {x}, attn_mask={w})", "mixed",
                 "torch.arange({penultimate} ** 2).reshape({penultimate}, -1) > 1"),
    ],
    "multi_head_attention_forward": _calls(
        "mixed: {w}({x}, {x}, {x}, need_weights=False)[0] | nn.MultiheadAttention({last}, 1, batch_first=True)"),
    "lstm": _RECURRENT[:1], "gru": _RECURRENT[1:2], "rnn_tanh": _RECURRENT[2:3], "rnn_relu": _RECURRENT[3:],
    "lstm_cell": _calls("mixed: {w}({x})[0] | nn.LSTMCell({last}, 2)"),
    "gru_cell": _calls("mixed: {w}({x}) | nn.GRUCell({last}, 2)"),
    "rnn_tanh_cell": _calls("mixed: {w}({x}) | nn.RNNCell({last}, 2)"),
    "rnn_relu_cell": _calls("mixed: {w}({x}) | nn.RNNCell({last}, 2, nonlinearity='relu')"),
    "glu": _calls("gated: F.glu({x}, {d})"),
    "addmm": _calls("linear: torch.addmm({w}.bias, {whole}, {w}.weight.mT) | nn.Linear({last}, 2)"),
    "addbmm": _calls("mixed: torch.addbmm({matrix}[0] * 0, {x}, {x}.mT)"),
    "baddbmm": _calls("mixed: torch.baddbmm({x}, {x}, {y})"),
    "addmv": _calls("linear: torch.addmv({w}.bias, {w}.weight, {whole}) | nn.Linear({last}, 2)"),
    "addr": _calls("repeated: torch.addr({w}.weight, {w}.bias, {whole}) | nn.Linear({last}, 2)"),
    "softmin": [Template("F.softmin({x}, {d})", "statistic", tolerance=0.1)],
    "lerp": _calls("add: torch.lerp({x}, {y}, 0.3)", "mixed: {x}.lerp({y}, torch.sigmoid({x}))"),
    "addcmul": _calls("pointwise: torch.addcmul({x}, {x}, {x}, value=0.5)", "mixed: {x}.addcmul({y}, {y})"),
    "cdist": _calls("mixed: torch.cdist({x}.unsqueeze(-2), {w}.weight) | nn.Linear({last}, 2)"),
    "addcdiv": _calls("mixed: torch.addcdiv({x}, {y}, {y} * {y} + 1.5)"),
}  # fmt: skip

#: sums with certain coefficients, and complex values, which come back as real ones
_LINEAR_COMPOSITE = {
    **{name: [Template(f"torch.{name}({{x}}, dim={{d}})", "linear")]
       for name in ("trapezoid", "trapz", "cumulative_trapezoid")},
    "gradient": _calls("linear: torch.gradient({x}, dim={d})[0]"),
    "trace": _calls("linear: torch.trace({whole})"),
    "grid_sample": [Template("F.grid_sample({x}, {w}.expand({x}.shape[0], -1, -1, -1), align_corners=False)", "linear",
                    "torch.tensor([[[[0.1, -0.3], [0.6, 0.2]]]])")],
    "affine_grid": _calls("linear: F.affine_grid({x}, ({x}.shape[0], 1, 2, 2), align_corners=False)"),
    **{name: [Template(f"torch.fft.{name}({{x}}, dim={{d}}){part}", "linear")
              for part in ([""] if name in ("irfft", "hfft") else [".real", ".imag"])]
       for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{name: [Template(f"torch.fft.{name}({{x}}, dim=({{d}}, {{e}})){part}", "linear")
              for part in ([""] if name[:-1] in ("irfft", "hfft") else [".real", ".imag"])]
       for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for name in (f"{kind}2", f"{kind}n")},
    "complex": _calls("scaled: torch.complex({x}, {y}).real"),
    "view_as_complex": _calls("scaled: torch.view_as_complex(torch.stack([{y}, {x}], -1)).imag"),
    "conj": _calls("scaled: torch.complex({x}, {x}).conj().imag"),
    "conj_physical": _calls("scaled: torch.conj_physical(torch.complex({x}, {x})).imag"),
    "resolve_conj": _calls("scaled: torch.complex({x}, {x}).conj().resolve_conj().imag"),
    "resolve_neg": _calls("scaled: torch.complex({x}, {x}).conj().imag.resolve_neg()"),
}  # fmt: skip

_WRITE = {
    "setitem": _calls("masked: {o} = torch.zeros_like({x})\n{o}[..., 0] = {x}[..., -1]",
        "together: {o} = {x}.clone()\n{o}[..., 0] = {y}[..., -1]", "masked: {o} = {x}.clone()\n{o}[..., -1] = 2.0",
        "scaled: {o} = {x}.clone()\n{o}[..., 0] *= 2", "pointwise: {o} = {x} * 1\n{o}.narrow({d}, 0, 1).relu_()",
        "scaled: {o} = {x} * 1\nfor part in {o}.unbind(-1):\n    part.mul_(2)",
        "scaled: {o} = torch.empty_like({x})\n{o}[:] = {x}"),
    "copy_": _calls("scaled: {o} = torch.zeros_like({x})\n{o}.copy_({x})"),
    "fill_": _calls("masked: {o} = {x}.clone()\n{o}[..., :1].fill_(0.3)"),
    "zero_": _calls("masked: {o} = {x}.clone()\n{o}.select({d}, {i}).zero_()"),
    "index_put_": _calls(
        "masked: {o} = {x}.clone()\n{o}.index_put_(({w},), torch.zeros((), dtype={x}.dtype)) | torch.tensor([0])"),
}  # fmt: skip

_CREATION = {name: [Template(f"{{x}} + torch.{name}({{x}})", "scaled")] for name in ("zeros_like", "ones_like")} | {
    "full_like": [Template("{x} * torch.full_like({x}, 0.5)", "scaled")],
    "empty_like": [Template("{o} = torch.empty_like({x})\n{o}.copy_({x})", "scaled")],
    "new_zeros": [Template("{x} + {x}.new_zeros({x}.shape)", "scaled")],
    "new_ones": [Template("{x} * {x}.new_ones(1)", "scaled")],
    "new_empty": [Template("{o} = {x}.new_empty({x}.shape)\n{o}.copy_({x})", "scaled")],
    "new_empty_strided": [Template("{o} = {x}.new_empty_strided({x}.shape, {x}.stride())\n{o}.copy_({x})", "scaled")],
    "new_full": [Template("{x} * {x}.new_full(({last},), 0.5)", "scaled")],
    "new_tensor": [Template("{x} * {x}.new_tensor([0.5])", "scaled")],
}

#: functions of the table that no program calls, and why
LEFT_OUT: dict[str, str] = {
    "cuda": "needs a GPU",
    "set_": "shares storage, which torch.vmap cannot sample",
}


def _by_hand() -> dict[str, list[Template]]:
    found: dict[str, list[Template]] = {}
    for row in (_ARITHMETIC, _AFFINE, _PRODUCT, _MAXIMUM, _NOISE, _NORMALISE, _SOFTMAX, _STATISTIC, _COMPOSITE,
                _LINEAR_COMPOSITE, _WRITE, _CREATION):  # fmt: skip
        found.update(row)
    found["embedding"] = [Template("{x} + {w}(torch.zeros({x}.shape[-1:], dtype=torch.long))[..., 0]", "scaled",
                                   "nn.Embedding(3, 2)")]  # fmt: skip
    return found


#: kinds of which no program is made: they have no value, or every program has them
_WITHOUT_VALUE = ("query", "decision", "refusal")
#: function -> its calls
TEMPLATES: dict[str, dict[str, list[Template]]] = {
    kind: {
        name: _pointwise(name) if kind == "pointwise" else _movement(name) or _by_hand().get(name, [])
        for name in known
        if name not in LEFT_OUT
    }
    for kind, known in KINDS.items()
    if kind not in _WITHOUT_VALUE
}

_SMOOTH = (
    "torch.tanh({0})",
    "torch.sigmoid({0})",
    "F.relu({0})",
    "torch.sin({0})",
    "F.gelu({0})",
    "({0} + 0.5)",
    "{0}",
)
#: one value met twice, and chains of pointwise functions
PATTERNS: dict[str, list[Template]] = {
    "twice": [
        Template(f"{first.format('{x}')} {sign} {second.format('{x}')}", "pointwise")
        for sign in "*+-"
        for first in _SMOOTH
        for second in _SMOOTH
        if (first != second or sign == "*")
    ],
    "chain": [
        *(Template(text, "pointwise") for text in (
            "F.relu({x}) ** 2", "torch.exp(-{x} ** 2 / 2)", "torch.exp(-{x} * {x})", "torch.cos({x}).square()",
            "F.softplus({x}).log()", "torch.sin(3 * {x} + 0.5) * {x}", "torch.tanh(torch.relu({x}))",
            "{x}.abs().sqrt()",
            "torch.sigmoid({x}.abs() - 1)", "torch.relu(torch.relu({x}) - 0.5)", "{x}.square().exp().reciprocal()",
            "{x} ** 4 - {x} ** 2", "torch.tanh({x}) ** 2 + torch.cos({x}) ** 2",
            "with torch.no_grad():\n    {o} = torch.tanh({x})",
        )),
    ],
    "over_a_dimension": [
        Template("{x} - {x}.mean(-1, keepdim=True)", "linear"), Template("({x} ** 2).sum(-1)", "statistic"),
        Template("torch.exp(-({x} ** 2).sum(-1) / 2)", "mixed"),
        Template("{x} / {x}.norm(dim=-1, keepdim=True)", "mixed"),
        Template("{x} - {x}.amax(-1, keepdim=True)", "mixed"),
        Template("torch.fft.rfft({x}).real", "linear"), Template("torch.as_tensor({x})", "scaled"),
        Template("torch.sparse.mm({w}.to_sparse(), {whole})", "linear", "torch.eye({first})"),
    ],
}  # fmt: skip
