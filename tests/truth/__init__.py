"""Functions of noisy values whose mean and standard deviation are known, and how well the default finds them."""
