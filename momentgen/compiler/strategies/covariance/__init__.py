"""The covariance of f of one input and f of another."""
