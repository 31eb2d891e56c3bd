"""Any f with a second moment, by sums over nodes in float64."""
