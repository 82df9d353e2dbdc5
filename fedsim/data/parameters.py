"""Moved to `fedsim.parameters`, because algorithms and models describe themselves in the same way."""

from fedsim.parameters import (
    Count,
    Parameter,
    Positive,
    Range,
    Share,
    check,
    mismatch,
    parameters,
    refuse,
    require,
    unknown,
)

__all__ = [
    "Count",
    "Parameter",
    "Positive",
    "Range",
    "Share",
    "check",
    "mismatch",
    "parameters",
    "refuse",
    "require",
    "unknown",
]
