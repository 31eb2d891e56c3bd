"""Rules of the activations: data and citations, one a file."""
