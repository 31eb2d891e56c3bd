"""Numerical rules on plain tensors: mean and variance in, mean and variance out."""
