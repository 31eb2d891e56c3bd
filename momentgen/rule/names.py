"""What may be a name or a text in a rule: all of them end in file names, C, Triton, Python and comments.

Used by :mod:`momentgen.rule` and :mod:`momentgen.rule.files`; like the last of these
it needs the standard library alone.
"""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Iterable

from momentgen.errors import RuleError

__all__ = ["LONGEST_NAME", "LONGEST_TEXT", "check_distinct", "check_name", "check_text", "free_name", "is_taken"]

#: characters: ``NAME_VARIANT_backward_kernel`` stays a name that every tool takes, and a line
LONGEST_NAME = 64
#: characters of a doc or citation; they head every generated file
LONGEST_TEXT = 4000

#: devices of Windows, which no file there can be named after, whatever its suffix
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
#: files of a rule's directory are named after its variants; this one is the build's own
_FILES = frozenset({"manifest"})

_C = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef typeof union unsigned void volatile while
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin
fmod frexp hypot ilogb ldexp lgamma log log10 log1p log2 logb lrint modf nan nearbyint pow remainder rint scalbn sin
sinh sqrt tan tanh tgamma trunc
"""
_OURS = """
ABS BLOCK CELLS FMA INLINE LANES LANE_ELEMENTS SQRT Tensor X acb arb arctan backward c cell_of choice constexpr
exp_mantissa expand fmpq forward h i isnan jit kernel_scalars logistic mask math momentgen mpf mpmath n narrow
normal_cdf npdf number numpy offsets params polylog polynomial self surface surface_slopes surfaces_beside t tl torch
triton truncated_moment u variant where
"""
_FORMULAS = """
Abs Add E Eq Heaviside I Integer LambertW Max Min Mul Piecewise Pow Rational Phi S Symbol a cov m mu mu1 mu2 nan oo phi
pi sigma sign v v1 v2 x x1 x2 zoo
"""
#: what generated code, or a formula, already means by a name
_TAKEN = frozenset({*_C.split(), *_OURS.split(), *_FORMULAS.split(), *dir(builtins)})
_TAKEN_PATTERN = re.compile(r"[crst]\d+|(grad|out|p|sign)_\w+|(mean|var)\d*|\w+_(hi|lo|ptr)")

#: of Unicode: control characters, surrogates, and marks that turn the direction of writing
_UNWRITABLE = {"Cc": "control character", "Cs": "surrogate"}
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_name(name: object, where: str) -> None:
    """Check that ``name`` can name a rule, a variant or a parameter.

    Raises:
        RuleError: if it is not an identifier of ASCII letters, digits and underscores, or starts with an underscore.
            Python keywords, names longer than :data:`LONGEST_NAME` and names that no file can have are refused too.

    >>> check_name("leaky_relu", "here")
    """
    if (
        not isinstance(name, str)
        or not name.isidentifier()
        or not name.isascii()
        or keyword.iskeyword(name)
        or name.startswith("_")
        or len(name) > LONGEST_NAME
    ):
        shown = repr(name)
        shown = shown if len(shown) <= 2 * LONGEST_NAME else f"{shown[: 2 * LONGEST_NAME]}..."
        raise RuleError(
            shown if where == str(name) else where,
            "a rule's name must be a Python identifier, no keyword, not starting with _, of at most "
            f"{LONGEST_NAME} ASCII letters, digits and _, since files and C functions are called so; got {shown}",
        )
    if name.lower() in _DEVICES or name.lower() in _FILES:
        raise RuleError(where, f"a rule's name must be possible for files: {name!r} is a device's, or the build's own")


def is_taken(name: str) -> bool:
    """Whether a name already means something in formulas or in generated code."""
    return name in _TAKEN or _TAKEN_PATTERN.fullmatch(name) is not None


def free_name(name: str) -> str:
    """What formulas and generated code call a parameter: its name, or a longer one where that is taken.

    >>> free_name("slope"), free_name("v"), free_name("sign_at")
    ('slope', 'v_', 'parameter_sign_at')
    """
    candidates = (name, f"{name}_", f"parameter_{name}", f"parameter_{name}_")
    return next(candidate for candidate in candidates if not is_taken(candidate))


def check_distinct(names: Iterable[str], where: str, what: str) -> None:
    """Check that no two names are one where case does not count, as on the file systems of macOS and Windows.

    Raises:
        RuleError: naming the two.

    >>> check_distinct(["relu", "elu"], "here", "rules")
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise RuleError(where, f"{what} {other!r} and {name!r} differ by case only, and their files may be one")


def check_text(text: object, where: str, what: str) -> None:
    """Check that ``text`` can stand in comments and docstrings of generated code.

    Raises:
        RuleError: if it is not a string, is longer than :data:`LONGEST_TEXT`, or has a character that source code
            cannot hold or that hides text.  Such are NUL and its like, surrogates, and marks that turn the direction.

    >>> check_text("backslashes and quotes are fine", "here", "doc")
    """
    if not isinstance(text, str):
        raise RuleError(where, f"{what} must be a string, got {type(text).__name__}")
    if len(text) > LONGEST_TEXT:
        raise RuleError(where, f"{what} must have at most {LONGEST_TEXT} characters, got {len(text)}")
    for position, character in enumerate(text):
        kind = _UNWRITABLE.get(unicodedata.category(character), "mark of direction" if character in _TURNING else "")
        if kind and character not in "\n\t":
            raise RuleError(where, f"{what} has the {kind} U+{ord(character):04X} at position {position}")
