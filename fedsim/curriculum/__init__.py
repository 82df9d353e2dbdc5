"""Wrappers around any algorithm: curricula of data, clients, layers and phases, and a rate for plateaus."""

from fedsim.curriculum.clients import ClientCurriculum, ClientCurriculumState, age_losses
from fedsim.curriculum.data import DataCurriculum
from fedsim.curriculum.layers import LayerCurriculum
from fedsim.curriculum.pacing import FAMILIES, count_open
from fedsim.curriculum.phases import PhaseCurriculum, PhaseCurriculumState
from fedsim.curriculum.plateau import PlateauDecay, PlateauState
from fedsim.curriculum.scores import RULES, judge_examples, rank_by_easiness

__all__ = [
    "FAMILIES",
    "RULES",
    "ClientCurriculum",
    "ClientCurriculumState",
    "DataCurriculum",
    "LayerCurriculum",
    "PhaseCurriculum",
    "PhaseCurriculumState",
    "PlateauDecay",
    "PlateauState",
    "age_losses",
    "count_open",
    "judge_examples",
    "rank_by_easiness",
]
