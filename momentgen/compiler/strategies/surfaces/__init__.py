"""Outputs as polynomials of two variables: fitted, and written into graphs, in float32 and float64."""
