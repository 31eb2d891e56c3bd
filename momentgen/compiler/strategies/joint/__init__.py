"""Rules of two inputs, or of one and a noise: products, maxima, polynomials."""
