"""Ordered learning: which examples a client sees first, and which clients come first."""
