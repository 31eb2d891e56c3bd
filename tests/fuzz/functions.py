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

_ARITHMETIC = {
    "add": [
        Template("{x} + 0.5", "scaled"), Template("{x} + {y}", "add"), Template("torch.add({x}, {y}, alpha=-2)", "add"),
        Template("{o} = {x}.clone()\n{o} += {y}", "add"), Template("{o} = {x}.clone()\n{o}.add_(1)", "scaled"),
    ],
    "sub": [Template("{x} - {y}", "add"), Template("{x}.sub(0.3)", "scaled")],
    "rsub": [Template("1 - {x}", "scaled"), Template("torch.rsub({x}, {y})", "add")],
    "mul": [
        Template("{x} * {y}", "mul"), Template("{x} * 1.5", "scaled"), Template("{x}.multiply({y})", "mul"),
        Template("{o} = {x}.clone()\n{o} *= {y}", "mul"), Template("{o} = {x}.clone()\n{o}.mul_({y})", "mul"),
        Template("{x} * {w}", "scaled", "torch.linspace(-1, 1, {last})"),
    ],
    "div": [
        Template("{x} / 2", "scaled"), Template("{x} / ({y} * {y} + 1.5)", "mul"),
        Template("-{x}**2 / 2", "pointwise"),
    ],
    "rdiv": [Template("1 / ({x} * {x} + 1.5)", "pointwise")],
    "neg": [Template("-{x}", "scaled"), Template("{x}.negative()", "scaled")],
}  # fmt: skip

_AFFINE = {
    "linear": [Template("{w}({x})", "linear", f"nn.Linear({{last}}, {m})") for m in (1, 2, 3)],
    "conv1d": [Template("{w}({x})", "linear", "nn.Conv1d({channels}, 2, 2, padding=1)")],
    "conv2d": [Template("{w}({x})", "linear", "nn.Conv2d({channels}, 2, 2, padding=1)")],
    "conv3d": [Template("{w}({x}.unsqueeze(-1))", "linear", "nn.Conv3d({channels}, 2, 1)")],
    "conv_transpose1d": [Template("{w}({x})", "linear", "nn.ConvTranspose1d({channels}, 2, 2)")],
    "conv_transpose2d": [Template("{w}({x})", "linear", "nn.ConvTranspose2d({channels}, 2, 2)")],
    "conv_transpose3d": [Template("{w}({x}.unsqueeze(-1))", "linear", "nn.ConvTranspose3d({channels}, 2, 1)")],
    "avg_pool1d": [Template("F.avg_pool1d({x}, 2)", "linear")],
    "avg_pool2d": [Template("F.avg_pool2d({x}, 2, 1)", "linear")],
    "avg_pool3d": [Template("F.avg_pool3d({x}.unsqueeze(-1), (2, 1, 1))", "linear")],
    "adaptive_avg_pool1d": [Template("F.adaptive_avg_pool1d({x}, 1)", "linear")],
    "adaptive_avg_pool2d": [Template("F.adaptive_avg_pool2d({x}, 1)", "linear")],
    "adaptive_avg_pool3d": [Template("F.adaptive_avg_pool3d({x}.unsqueeze(-1), 1)", "linear")],
    "mean": [
        Template("{x}.mean({d})", "linear"),
        Template("{x}.mean({d}, keepdim=True)", "linear"),
        Template("{whole}.mean()", "linear"),
    ],
    "sum": [Template("{x}.sum({d})", "linear"), Template("{x}.sum(-1, keepdim=True)", "linear")],
    "cumsum": [Template("{x}.cumsum({d})", "linear")],
    "diff": [Template("torch.diff({x}, dim={d})", "linear")],
    "interpolate": [Template("F.interpolate({x}, scale_factor=2, mode='nearest')", "repeated")],
    "pad": [Template("F.pad({x}, (1, 0))", "masked"), Template("F.pad({x}, (1, 1), mode='replicate')", "repeated")],
    "embedding_bag": [
        Template("{x} + {w}(torch.zeros(1, 2, dtype=torch.long))[0, :1]", "scaled", "nn.EmbeddingBag(3, 2)")
    ],
    "fold": [Template("F.fold({x}.reshape({x}.shape[0], -1, 1), (2, 1), (2, 1))", "moved")],
}

_PRODUCT = {
    "linalg_vecdot": [
        Template("torch.linalg.vecdot({x}, {y})", "product"),
        Template("torch.linalg.vecdot({x}, {x})", "statistic"),
    ],
    "vdot": [Template("torch.vdot({whole}, {y})", "product"), Template("torch.vdot({whole}, {whole})", "statistic")],
    "cross": [Template("torch.linalg.cross({x}, {y})", "product")],
    "kron": [Template("torch.kron({whole}, {y})", "product")],
    "chain_matmul": [Template("torch.chain_matmul({whole}, {w}.weight)", "linear", "nn.Linear(2, {last})")],
    "linalg_multi_dot": [
        Template("torch.linalg.multi_dot([{whole}, {w}.weight, {w}.weight.mT])", "linear", "nn.Linear(2, {last})"),
        Template("torch.linalg.multi_dot([{whole}, {y}])", "product"),
    ],
    "matmul": [
        Template("{x} @ {w}.weight", "linear", "nn.Linear(2, {last})"),
        Template("{w}.weight @ {matrix}.mT", "linear", "nn.Linear({last}, 2)"),
        Template("{x}.unsqueeze(-2) @ {y}.unsqueeze(-1)", "product"),
        Template("{x}.unsqueeze(-2) @ {x}.unsqueeze(-1)", "statistic"),
        Template("{matrix} @ {matrix}.mT", "statistic"),
        Template("{x} @ {y}", "product"),
    ],
    "rmatmul": [Template("{matrix}.__rmatmul__({w}.weight)", "linear", "nn.Linear({penultimate}, 2)")],
    "mm": [Template("torch.mm({whole}, {w}.weight)", "linear", "nn.Linear(2, {last})")],
    "bmm": [
        Template("torch.bmm({x}, {y})", "product"),
        Template("torch.bmm({x}, {x}.mT)", "statistic"),
        Template("torch.bmm({x}[:, None], {x}[:, :, None])", "statistic"),
    ],
    "mv": [Template("{w}.weight.mv({whole})", "linear", "nn.Linear({last}, 2)")],
    "dot": [Template("torch.dot({whole}, {whole})", "statistic"), Template("torch.dot({whole}, {y})", "product")],
    "inner": [
        Template("torch.inner({x}, {w}.weight)", "linear", "nn.Linear({last}, 2)"),
        Template("torch.inner({whole}, {whole})", "statistic"),
    ],
    "outer": [Template("torch.outer({whole}, {y})", "product"), Template("torch.outer({whole}, {whole})", "mixed")],
    "einsum": [
        Template("torch.einsum('...i,...i->...', {x}, {y})", "product"),
        Template("torch.einsum('...i,...i->...', {x}, {x})", "statistic"),
        Template("torch.einsum('...i,oi->...o', {x}, {w}.weight)", "linear", "nn.Linear({last}, 2)"),
    ],
    "bilinear": [
        Template("{w}({x}, {y})", "product", "nn.Bilinear({last}, {last}, 2)"),
        Template("{w}({x}, {x})", "mixed", "nn.Bilinear({last}, {last}, 2)"),
    ],
    "tensordot": [
        Template("torch.tensordot({x}, {w}.weight, dims=([-1], [-1]))", "linear", "nn.Linear({last}, 2)"),
        Template("torch.tensordot({whole}, {whole}, dims={rank})", "statistic"),
    ],
}

_MAXIMUM = {
    **{
        name: [Template(f"torch.{name}({{x}}, {{y}})", "larger"), Template(f"torch.{name}({{x}}, -{{x}})", "pointwise")]
        for name in ("maximum", "minimum", "fmax", "fmin")
    },
    "max": [
        Template("{x}.max({d}).values", "statistic"), Template("{x}.max({d})[0]", "statistic"),
        Template("{whole}.max()", "statistic"),
        Template("torch.max({x}, {y})", "larger"),
    ],
    "min": [Template("{x}.min({d}, keepdim=True)[0]", "statistic"), Template("torch.min({x}, {y})", "larger")],
    "amax": [Template("{x}.amax({d})", "statistic"), Template("{x}.amax(-1, keepdim=True)", "statistic")],
    "amin": [Template("{x}.amin({d})", "statistic")],
    "max_pool1d": [Template("F.max_pool1d({x}, 2)", "statistic")],
    "max_pool2d": [Template("F.max_pool2d({x}, 2)", "statistic"), Template("F.max_pool2d({x}, 3, 1, 1)", "statistic")],
    "max_pool3d": [Template("F.max_pool3d({x}.unsqueeze(-1), (2, 2, 1))", "statistic")],
    "adaptive_max_pool1d": [Template("F.adaptive_max_pool1d({x}, 1)", "statistic")],
    "adaptive_max_pool2d": [Template("F.adaptive_max_pool2d({x}, 1)", "statistic")],
    "adaptive_max_pool3d": [Template("F.adaptive_max_pool3d({x}.unsqueeze(-1), 1)", "statistic")],
}  # fmt: skip

# --------------------------------------------------- noise, statistics, what is written over others

_NOISE = {
    "dropout": [Template("F.dropout({x}, 0.3, True)", "noise"), Template("F.dropout({w}.weight[0], 0.4, True) * {x}",
                "noise", "nn.Linear({last}, 1)"), Template("nn.Dropout(0.5)({x})", "noise")],
    "dropout1d": [
        Template("F.dropout1d({x}, 0.3, True)", "noise_in_common"),
        Template("{x} + F.dropout1d({w}.weight, 0.3, True)[0]", "noise_in_common", "nn.Linear({last}, 1)"),
    ],
    "dropout2d": [Template("F.dropout2d({x}, 0.3, True)", "noise_in_common")],
    "dropout3d": [Template("F.dropout3d({x}.unsqueeze(-1), 0.3, True)", "noise_in_common")],
    "alpha_dropout": [Template("F.alpha_dropout({x}, 0.3, True)", "noise")],
    "feature_alpha_dropout": [Template("F.feature_alpha_dropout({x}, 0.3, True)", "noise_in_common")],
    "rrelu": [Template("F.rrelu({x}, 0.1, 0.4, True)", "random_slope")],
    "randn_like": [
        Template("{x} + 0.4 * torch.randn_like({x})", "noise"),
        Template("{x} + 0.5 * torch.randn_like({w}.weight[0])", "noise_in_common", "nn.Linear({last}, 1)"),
        Template("{x} + 0.5 * torch.randn({last}, dtype={x}.dtype)", "noise_in_common"),
        Template("{x} + torch.normal({w}.weight[0], 0.3)", "noise_in_common", "nn.Linear({last}, 1)"),
    ],
    "rand_like": [
        Template("{x} * torch.rand_like({x})", "noise"),
        Template("{x} + torch.rand({last}, dtype={x}.dtype)", "noise_in_common"),
    ],
    "bernoulli": [
        Template("{x} * torch.bernoulli(torch.full_like({x}, 0.4))", "noise"),
        Template("{x} * torch.bernoulli({w}.weight[0].sigmoid())", "noise_in_common", "nn.Linear({last}, 1)"),
    ],
    "bernoulli_": [Template("{x} * torch.zeros_like({x}).bernoulli_(0.4)", "noise")],
    "normal_": [
        Template("{x} + torch.zeros_like({x}).normal_(0.2, 0.3)", "noise"),
        Template("{x} + torch.empty({last}, dtype={x}.dtype).normal_()", "noise_in_common"),
    ],
    "uniform_": [Template("{x} + torch.zeros_like({x}).uniform_(-0.5, 0.5)", "noise")],
    "randint_like": [Template("{x} + torch.randint_like({x}, 0, 3)", "noise")],
}  # fmt: skip

_NORMALISE = {
    "layer_norm": [Template("F.layer_norm({x}, {x}.shape[-1:])", "statistic"), Template("{w}({x})", "statistic",
                   "nn.LayerNorm({last})")],
    "rms_norm": [Template("F.rms_norm({x}, {x}.shape[-1:])", "statistic")],
    "group_norm": [Template("F.group_norm({x}, 1)", "statistic")],
    "instance_norm": [Template("F.instance_norm({x})", "statistic")],
    "batch_norm": [
        Template("{w}({x})", "scaled", f"nn.BatchNorm{k}d({{channels}})") for k in (1, 2)
    ],
    "normalize": [Template("F.normalize({x}, dim={d})", "statistic")],
}  # fmt: skip

_SOFTMAX = {
    "softmax": [Template("{x}.softmax({d})", "statistic", tolerance=0.1),
                Template("F.softmax({x}, -1)", "statistic", tolerance=0.1)],
    "log_softmax": [Template("F.log_softmax({x}, {d})", "statistic", tolerance=0.1)],
}  # fmt: skip

_STATISTIC = {
    "var": [Template("{x}.var({d})", "statistic"), Template("{x}.var(-1, unbiased=False)", "statistic")],
    "std": [Template("{x}.std({d})", "statistic")],
    "var_mean": [Template("torch.var_mean({x}, {d})[0]", "statistic")],
    "std_mean": [Template("torch.std_mean({x}, {d})[1]", "linear")],
    "norm": [Template("{x}.norm(dim={d})", "statistic")],
    "vector_norm": [Template("torch.linalg.vector_norm({x}, dim={d})", "statistic")],
    "lp_pool1d": [Template("F.lp_pool1d({x}, 2, 2)", "statistic")],
    "lp_pool2d": [Template("F.lp_pool2d({x}, 2, 2)", "statistic")],
    "lp_pool3d": [Template("F.lp_pool3d({x}.unsqueeze(-1), 2, (2, 2, 1))", "statistic")],
    "logsumexp": [Template("{x}.logsumexp({d})", "statistic")],
    "prod": [Template("{x}.prod({d})", "statistic"), Template("{whole}.prod()", "statistic")],
}

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
    "multi_head_attention_forward": [
        Template(
            "{w}({x}, {x}, {x}, need_weights=False)[0]", "mixed", "nn.MultiheadAttention({last}, 1, batch_first=True)"
        )
    ],
    "lstm": _RECURRENT[:1], "gru": _RECURRENT[1:2], "rnn_tanh": _RECURRENT[2:3], "rnn_relu": _RECURRENT[3:],
    "lstm_cell": [Template("{w}({x})[0]", "mixed", "nn.LSTMCell({last}, 2)")],
    "gru_cell": [Template("{w}({x})", "mixed", "nn.GRUCell({last}, 2)")],
    "rnn_tanh_cell": [Template("{w}({x})", "mixed", "nn.RNNCell({last}, 2)")],
    "rnn_relu_cell": [Template("{w}({x})", "mixed", "nn.RNNCell({last}, 2, nonlinearity='relu')")],
    "glu": [Template("F.glu({x}, {d})", "gated")],
    "addmm": [Template("torch.addmm({w}.bias, {whole}, {w}.weight.mT)", "linear", "nn.Linear({last}, 2)")],
    "addbmm": [Template("torch.addbmm({matrix}[0] * 0, {x}, {x}.mT)", "mixed")],
    "baddbmm": [Template("torch.baddbmm({x}, {x}, {y})", "mixed")],
    "addmv": [Template("torch.addmv({w}.bias, {w}.weight, {whole})", "linear", "nn.Linear({last}, 2)")],
    "addr": [Template("torch.addr({w}.weight, {w}.bias, {whole})", "repeated", "nn.Linear({last}, 2)")],
    "softmin": [Template("F.softmin({x}, {d})", "statistic", tolerance=0.1)],
    "lerp": [Template("torch.lerp({x}, {y}, 0.3)", "add"), Template("{x}.lerp({y}, torch.sigmoid({x}))", "mixed")],
    "addcmul": [
        Template("torch.addcmul({x}, {x}, {x}, value=0.5)", "pointwise"), Template("{x}.addcmul({y}, {y})", "mixed"),
    ],
    "cdist": [Template("torch.cdist({x}.unsqueeze(-2), {w}.weight)", "mixed", "nn.Linear({last}, 2)")],
    "addcdiv": [Template("torch.addcdiv({x}, {y}, {y} * {y} + 1.5)", "mixed")],
}  # fmt: skip

#: sums with certain coefficients, and complex values, which come back as real ones
_LINEAR_COMPOSITE = {
    **{name: [Template(f"torch.{name}({{x}}, dim={{d}})", "linear")]
       for name in ("trapezoid", "trapz", "cumulative_trapezoid")},
    "gradient": [Template("torch.gradient({x}, dim={d})[0]", "linear")],
    "trace": [Template("torch.trace({whole})", "linear")],
    "grid_sample": [Template("F.grid_sample({x}, {w}.expand({x}.shape[0], -1, -1, -1), align_corners=False)", "linear",
                    "torch.tensor([[[[0.1, -0.3], [0.6, 0.2]]]])")],
    "affine_grid": [Template("F.affine_grid({x}, ({x}.shape[0], 1, 2, 2), align_corners=False)", "linear")],
    **{name: [Template(f"torch.fft.{name}({{x}}, dim={{d}}){part}", "linear")
              for part in ([""] if name in ("irfft", "hfft") else [".real", ".imag"])]
       for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{name: [Template(f"torch.fft.{name}({{x}}, dim=({{d}}, {{e}})){part}", "linear")
              for part in ([""] if name[:-1] in ("irfft", "hfft") else [".real", ".imag"])]
       for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for name in (f"{kind}2", f"{kind}n")},
    "complex": [Template("torch.complex({x}, {y}).real", "scaled")],
    "view_as_complex": [Template("torch.view_as_complex(torch.stack([{y}, {x}], -1)).imag", "scaled")],
    "conj": [Template("torch.complex({x}, {x}).conj().imag", "scaled")],
    "conj_physical": [Template("torch.conj_physical(torch.complex({x}, {x})).imag", "scaled")],
    "resolve_conj": [Template("torch.complex({x}, {x}).conj().resolve_conj().imag", "scaled")],
    "resolve_neg": [Template("torch.complex({x}, {x}).conj().imag.resolve_neg()", "scaled")],
}  # fmt: skip

_WRITE = {
    "setitem": [
        Template("{o} = torch.zeros_like({x})\n{o}[..., 0] = {x}[..., -1]", "masked"),
        Template("{o} = {x}.clone()\n{o}[..., 0] = {y}[..., -1]", "together"),
        Template("{o} = {x}.clone()\n{o}[..., -1] = 2.0", "masked"),
        Template("{o} = {x}.clone()\n{o}[..., 0] *= 2", "scaled"),
        Template("{o} = {x} * 1\n{o}.narrow({d}, 0, 1).relu_()", "pointwise"),
        Template("{o} = {x} * 1\nfor part in {o}.unbind(-1):\n    part.mul_(2)", "scaled"),
        Template("{o} = torch.empty_like({x})\n{o}[:] = {x}", "scaled"),
    ],
    "copy_": [Template("{o} = torch.zeros_like({x})\n{o}.copy_({x})", "scaled")],
    "fill_": [Template("{o} = {x}.clone()\n{o}[..., :1].fill_(0.3)", "masked")],
    "zero_": [Template("{o} = {x}.clone()\n{o}.select({d}, {i}).zero_()", "masked")],
    "index_put_": [Template("{o} = {x}.clone()\n{o}.index_put_(({w},), torch.zeros((), dtype={x}.dtype))", "masked",
                            "torch.tensor([0])")],
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
