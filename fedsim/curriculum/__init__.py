"""Ordered learning around any algorithm: which examples a client sees first, which clients come first."""

from .clients import ClientCurriculum, Selection, aged
from .data import DataCurriculum
from .pacing import FAMILIES, opened
from .scores import RULES, judge, ranked

__all__ = [
    "FAMILIES",
    "RULES",
    "ClientCurriculum",
    "DataCurriculum",
    "Selection",
    "aged",
    "judge",
    "opened",
    "ranked",
]
