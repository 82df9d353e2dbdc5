"""The accuracy that represents a job in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAIN_ACCURACIES = ("global_accuracy", "personal_accuracy")
"""In order of preference: a job with only personal models has no global accuracy. The page has them too."""


def find_main_accuracy(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of the accuracy that represents a job; None if it has no accuracy."""
    return next((name for name in MAIN_ACCURACIES if isinstance(metrics.get(name), int | float)), None)
