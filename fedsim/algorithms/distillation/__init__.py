"""Algorithms whose clients learn from predictions, of other clients or of the whole cohort."""
