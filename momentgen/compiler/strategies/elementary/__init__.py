"""x, x², exp(b x), sin(b x) and cos(b x), times and plus constants: moments in closed form."""
