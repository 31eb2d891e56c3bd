"""Polynomials of one degree on either side of a kink at 0: graphs without cancellation, measured in ulp."""
