"""Algorithms whose clients learn from features that a generator makes."""
