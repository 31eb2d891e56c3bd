"""The method ``controlled``: Monte Carlo over the plain network, with a linear map as control variate.

The network runs as it is, on plain tensors, once for each *row*: a draw of its noise.  Rows of small networks go
together through one call, where that gives the same.  Then autograd linearises the network, with slopes that are
averaged over the rows.  The linear map A carries what can be known exactly: the covariance of A e is A Σ Aᵀ.  What A
leaves over, f(x + e) less A e, is estimated from the rows, and so is the error of the answer.  A may be anything and
the answer is right; the nearer it is, the smaller is the error.

A call goes through ``propagate``, ``network`` and ``facts``; ``answer`` and ``runs``; ``slopes``, ``rules``, ``common``
and ``state``, for each function that the network calls; then ``linear``, ``estimate`` and ``outputs``.
"""
