"""``Complex``: a complex random value, made of the laws of its two parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.laws.law import Law, new_law, tensor_of
from momentgen.laws.unsupported import unsupported

__all__ = ["Complex", "complex_of"]

COMPLEX = (
    "a complex random value has rules for linear functions and products; go on with its .real and .imag, or with "
    "torch.view_as_real"
)


class Complex(Law):
    """A complex random value, made of the laws of its two parts; lives within a network only."""

    __slots__ = ()
    RANK = 8
    BY_PARTS = False

    @property
    def real(self) -> Any:
        return self._joint[0]

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return self._joint[1]

    def _form(self) -> Tensor:
        return torch.complex(tensor_of(self.real), tensor_of(self.imag))

    def _parts(self) -> tuple[Tensor, ...]:
        raise unsupported(torch.complex, self, COMPLEX)

    def _assign(self, new: Any) -> None:
        raise unsupported(Tensor.copy_, self, "it cannot be written in place; use the result")

    def _written_into(self, target: Law) -> None:
        raise unsupported(Tensor.copy_, self, "it cannot be written into a tensor; put values together by torch.cat")


def complex_of(real: Any, imag: Any) -> Any:
    """A complex value of the laws, or tensors, of its parts."""
    law: Complex = new_law(Complex, None)  # type: ignore[arg-type]
    law._joint = (real, imag)
    return law
