"""``momentgen report``, one self-contained HTML page about a built package, and the op pages of the site.

=================  ===================================================================================
``subject``        one rule, its committed kernels and its exact values, ready to be looked at
``measurements``   what is computed about a function of one random variable: pure functions to arrays
``formula``        formulas as MathML
``figures``        arrays to pictures (matplotlib)
``section``        what is shown of one rule: which of all this it has, and its tables
``page``           sections to blocks of HTML
``write``          rules and a package in, the file out; rules in parallel
=================  ===================================================================================

Needs the extra ``momentgen[report]`` (matplotlib); everything up to ``formula`` works without it.
"""
