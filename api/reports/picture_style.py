"""Colours and sizes of the pictures of a report."""

COLOURS = ("#1a5fb4", "#b3480b", "#1c7c54", "#8a3fa0", "#a51d5b", "#6b6100", "#0b7285", "#5c4b3f")

DPI = 300
WIDTH, HEIGHT = 3.5, 2.4
"""Inches: one column of a paper in two columns."""
