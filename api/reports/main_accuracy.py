"""Which metric tells at a glance how good a job is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAIN_ACCURACIES = ("global_accuracy", "personal_accuracy")
"""The first that a job has: where all models are clients' own there is no global one. So does the page."""


def find_main_accuracy(metrics: Mapping[str, Any]) -> str | None:
    """Name the accuracy that stands for a job in a list.

    Args:
        metrics: its values by name.

    Returns:
        The name; None where there is no such accuracy.
    """
    return next((name for name in MAIN_ACCURACIES if isinstance(metrics.get(name), int | float)), None)
