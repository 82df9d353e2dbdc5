"""Ordered learning around any algorithm: which examples a client sees first, which clients come first."""

from .data import DataCurriculum
from .pacing import FAMILIES, opened
from .scores import RULES, judge, ranked

__all__ = ["FAMILIES", "RULES", "DataCurriculum", "judge", "opened", "ranked"]
