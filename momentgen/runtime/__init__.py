"""The runtime: generated ops, their dispatch to C, Triton or PyTorch, and their derivatives.

It needs torch, and two small libraries for its cache of compiled C; sympy and the
compiler stay out of a training process.
"""

from __future__ import annotations

from momentgen.runtime.certificate import Certificate, CertificateError
from momentgen.runtime.kernel_cache import cache_directory
from momentgen.runtime.learned import Scaling, rescaled
from momentgen.runtime.moments import DistributedMoments, JointMoments, Moments, NoisyMoments, VarianceWarning
from momentgen.runtime.op import Op
from momentgen.runtime.parameters import Parameter
from momentgen.runtime.sums import SumMoments, Term, terms_of
from momentgen.runtime.toolchain import FallbackWarning
from momentgen.runtime.variances import norms

__all__ = [
    "Certificate",
    "CertificateError",
    "DistributedMoments",
    "FallbackWarning",
    "JointMoments",
    "Moments",
    "NoisyMoments",
    "Op",
    "Parameter",
    "Scaling",
    "SumMoments",
    "Term",
    "VarianceWarning",
    "cache_directory",
    "norms",
    "rescaled",
    "terms_of",
]
