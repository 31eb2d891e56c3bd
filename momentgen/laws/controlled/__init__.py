"""The method ``controlled``: Monte Carlo over the plain network, with a linear map as control variate.

The network runs as it is, on plain tensors, once for each *row*: a draw of its noise.  Rows of small networks go
together through one call, where that gives the same.  Then autograd linearises the network, with slopes that are
averaged over the rows.  The linear map A carries what can be known exactly: the covariance of A e is A Σ Aᵀ.  What A
leaves over, f(x + e) less A e, is estimated from the rows, and so is the error of the answer.  A may be anything and
the answer is right; the nearer it is, the smaller is the error.

* :mod:`~momentgen.laws.controlled.network`: the network with its arguments, and the noise of its inputs.
* :mod:`~momentgen.laws.controlled.facts`: which examples are independent, and which rows may go together.
* :mod:`~momentgen.laws.controlled.state`: which tensors are random, and what the rows say of each function.
* :mod:`~momentgen.laws.controlled.rules`: functions whose slopes are averaged, and noise that the network draws.
* :mod:`~momentgen.laws.controlled.common`: noise that all examples have in common, as that of weights.
* :mod:`~momentgen.laws.controlled.slopes`: the mode that records slopes, and puts them in the place of derivatives.
* :mod:`~momentgen.laws.controlled.runs`: the rows as they run, and the linearised network.
* :mod:`~momentgen.laws.controlled.linear`: A, by vector-Jacobian products.
* :mod:`~momentgen.laws.controlled.regression`: sums over pairs of rows, and the rows' regression on A e.
* :mod:`~momentgen.laws.controlled.estimate`: moments and errors from rows and A.
* :mod:`~momentgen.laws.controlled.outputs`: what the network returned in each row, and whether larger noise moves more.
* :mod:`~momentgen.laws.controlled.answer`: how many rows run, and what they say, or the linear part alone.
* :mod:`~momentgen.laws.controlled.cubature`: nodes in the place of rows, of few noisy values.
* :mod:`~momentgen.laws.controlled.surrogates`: distributions near that of an output, from rows or nodes.
* :mod:`~momentgen.laws.controlled.predictive`: quantiles, probabilities and draws by a surrogate, with errors.
* :mod:`~momentgen.laws.controlled.indexed`: the same of a part of an output, and of examples that share noise.
* :mod:`~momentgen.laws.controlled.shares`: what groups of noisy values contribute to the variance.
* :mod:`~momentgen.laws.controlled.propagate`: the method, and a batch in parts, which take less memory.
"""
