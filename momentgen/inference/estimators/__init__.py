"""scikit-learn estimators over the methods of :mod:`momentgen.inference`; ``base`` has what they share."""
