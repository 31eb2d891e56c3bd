"""Closed-form approximations of the literature, taken as they are; from sympy to a graph."""
