"""C: the machine's compiler, the sources of kernels, and the libraries that a wheel brings.

Without torch and without sympy: the compiler measures by it, and the runtime calls what it makes.
"""
