"""Smooth f that follow a line on either side, by surfaces; those that near it slowly, by multi-scale expansions."""
