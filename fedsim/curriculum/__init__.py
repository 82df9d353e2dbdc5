"""Curricula around any algorithm: the order of a client's examples, and the order of the clients."""

from fedsim.curriculum.clients import ClientCurriculum, ClientCurriculumState, age_losses
from fedsim.curriculum.data import DataCurriculum
from fedsim.curriculum.pacing import FAMILIES, count_open
from fedsim.curriculum.scores import RULES, judge_examples, rank_by_easiness

__all__ = [
    "FAMILIES",
    "RULES",
    "ClientCurriculum",
    "ClientCurriculumState",
    "DataCurriculum",
    "age_losses",
    "count_open",
    "judge_examples",
    "rank_by_easiness",
]
