"""Parts of torch.nn that have no rule for moments: why, and what to do instead."""

from __future__ import annotations

__all__ = ["without_rule"]

_INSTEAD = "momentgen.monte_carlo samples the plain network as it is"
_ATTENTION = (
    "its weights are a softmax of products of the random values that they weigh, and no rule takes these together; "
    "momentgen.nn.functional.matmul has the moments of products of independent factors, and " + _INSTEAD
)
_RECURRENT = (
    "its state depends on all earlier inputs, which diagonal moments cannot carry; a step written out with Linear, "
    "Sigmoid, Tanh and Mul propagates with the state taken as independent, and " + _INSTEAD
)
_PARTS = {
    _ATTENTION: (
        "MultiheadAttention",
        "Transformer",
        "TransformerEncoder",
        "TransformerEncoderLayer",
        "TransformerDecoder",
        "TransformerDecoderLayer",
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
    ),
    _RECURRENT: ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"),
}
_WHY = {name: why for why, names in _PARTS.items() for name in names}


def without_rule(name: str) -> str | None:
    """Why the class or function ``name`` of torch.nn has no rule, to end a sentence; None if nothing is known."""
    return _WHY.get(name)
