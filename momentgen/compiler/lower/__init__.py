"""Lower: a real graph to a program, of which some values have two words; which, is decided by measured ablation."""
