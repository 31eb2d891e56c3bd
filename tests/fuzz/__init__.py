"""Random small networks, run by every method, against sampling of the plain network.

A seed makes a :class:`~fuzz.program.Program` (:mod:`~fuzz.generate`) of functions of the table
(:mod:`~fuzz.functions`).  :mod:`~fuzz.judge` runs it by every method and compares.  ``python -m fuzz --count 1000
--start 0`` (from ``tests``) counts; ``python -m fuzz --show 17`` prints the network of a seed as a script.
"""
