"""Wrappers around any algorithm: curricula of data, clients, layers and phases, and a rate for plateaus."""

from fedsim.curriculum.clients import ClientCurriculum
from fedsim.curriculum.data import DataCurriculum
from fedsim.curriculum.layers import LayerCurriculum
from fedsim.curriculum.phases import PhaseCurriculum
from fedsim.curriculum.plateau import PlateauDecay

__all__ = ["ClientCurriculum", "DataCurriculum", "LayerCurriculum", "PhaseCurriculum", "PlateauDecay"]
