"""Sums of x^k exp(b x), x^k sin(b x) and x^k cos(b x): moments in closed form."""
