"""Ordered learning around any algorithm: which examples a client sees first, which clients come first."""

from fedsim.curriculum.clients import ClientCurriculum, Selection, aged
from fedsim.curriculum.data import DataCurriculum
from fedsim.curriculum.pacing import FAMILIES, opened
from fedsim.curriculum.scores import RULES, judge, ranked

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
