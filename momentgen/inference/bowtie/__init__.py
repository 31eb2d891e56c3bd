"""Bow tie networks: networks with random gates and activations, sampled by block Gibbs with Pólya-gamma variables.

* ``model``: sizes and priors, the state of chains, the un-normalised log joint.
* ``conditionals``: each block given the others.
* ``collapsed``: gates and weights of the topmost hidden layer with its activations integrated out.
* ``gibbs``: the sweep, where chains start, draws from the model itself.
* ``chains``: chains that run and store draws, and whether they agree.
* ``prediction``: the predictive distribution.

Source: Smith, Lawson & Linderman, Bayesian Inference in Augmented Bow Tie Networks.
"""

from momentgen.inference.bowtie.chains import Chains
from momentgen.inference.bowtie.gibbs import simulate
from momentgen.inference.bowtie.model import BowTieModel, ConjugatePrior

__all__ = ["BowTieModel", "Chains", "ConjugatePrior", "simulate"]
