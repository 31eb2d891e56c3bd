"""einops on laws: ``rearrange``, ``repeat``, ``reduce`` and the layers made of them.

einops asks a list of backends which one a value belongs to.  The backend of laws derives from torch's, whose functions
are methods of a tensor and functions of torch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register", "registered"]

#: whether einops knows of laws
registered = False
#: einops finds backends among subclasses, which live only while somebody holds them
_backend: type | None = None


def register() -> None:
    """Tell einops, which is loaded, of laws."""
    global _backend, registered
    from einops._backends import TorchBackend  # type: ignore[import-not-found, unused-ignore]

    from momentgen.laws.law import Law

    class LawBackend(TorchBackend):  # type: ignore[misc, unused-ignore]
        framework_name = "momentgen"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Law)

        def is_float_type(self, x: Any) -> bool:
            return bool(x.dtype.is_floating_point)

    _backend, registered = LawBackend, True
