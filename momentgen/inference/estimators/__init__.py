"""scikit-learn estimators over the methods of :mod:`momentgen.inference`; ``base`` has what they share."""

from momentgen.extras import require

require("estimators", "An estimator of momentgen.inference")
