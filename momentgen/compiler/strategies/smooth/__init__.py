"""Smooth f that follow a line on either side, by polynomials of two variables or in closed form."""
