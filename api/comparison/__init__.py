"""Comparison of runs: groups of seeds, scores, paired differences, curves, names and notes."""
