r"""The Pólya-gamma distribution PG(b, z): exact draws.

PG(1, z) is a quarter of Jacobi's variable J*(1, h), h = |z|/2.  Its density is cosh(h) exp(-h²x/2) f(x), where f has
two alternating series (Polson, Scott and Windle, 2013, section 4; Devroye, 2009)::

    f(x) = a(x) (1 - 3r + 5r³ - 7r⁶ + ...),   a(x) = √(2/π) x^(-3/2) exp(-1/2x)  and r = exp(-4/x),  or
                                              a(x) = (π/2) exp(-π²x/8)           and r = exp(-π²x).

Both hold for all x.  By Jacobi's triple product the bracket is Π (1 - rᵏ)³, so that each a(x) lies above f.  Devroye
accepts a draw from the first up to x = 0.64 and from the second beyond, with the bracket as the probability.  There r
is at most exp(-6.25): the first term left out, 9r¹⁰, is below 1e-26, and four terms are the bracket in float64.
No series loop is needed.  Two envelopes, by h, are accepted with probability 0.858 or more:

* **h < 0.9**, two pieces.  Beyond x = 0.64 the exponential (π/2) exp(-Kx), K = π²/8 + h²/2, of mass π/(2K) exp(-0.64K).
  Up to it, x = 1/n² turns the first form into 2√(2/π) exp(-n²/2) dn on n ≥ 1.25.
  This lies below 2√(2/π) exp(α²/2 - αn), of mass 2√(2/π) exp(α²/2 - 1.25α)/α; the best α solves α² - 1.25α = 1.
  The probability to accept is exp(-(n - α)²/2 - h²x/2) times the bracket.
  A rejected draw begins anew with the choice of the piece.
  The masses are those of the envelope, so that no integral of the inverse Gaussian is needed.
* **h ≥ 0.9**, one piece.  cosh(h) exp(-h²x/2) times the first a(x) is 1 + exp(-2h) times the inverse Gaussian density
  of mean 1/h and shape 1, for all x.
  Proposals from it (Michael, Schucany and Haas, 1976) are accepted with probability f(x)/a(x).
  That is the bracket up to 0.64, and (π/2)^(3/2) x^(3/2) exp(1/2x - π²x/8) times the other bracket beyond.
  On average it is 1/(1 + exp(-2h)).  Nothing over- or underflows at any h.
  For |z| ≥ 40 all proposals except one in exp(|z|) are accepted.
  The draw is then IG(2/|z|, 1)/4 up to a total variation distance of exp(-|z|) ≤ 4.3e-18.

Random numbers come from Philox 4x32-10, a function of a key and a counter (Salmon et al., 2011).  The key is 64 bits of
the caller's generator.  The counter has the element's number, the number of the draw among its b, and the attempt.  So
the draws do not depend on threads or strides.
"""

from __future__ import annotations

from momentgen.inference.polya_gamma_sampler.function import polya_gamma

__all__ = ["polya_gamma"]
