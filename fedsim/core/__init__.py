"""The types that every algorithm speaks: `Algorithm`, `Context`, a client's task and update, `Reduction`."""

from fedsim.base.wire import Traffic
from fedsim.core.algorithm import Algorithm, Examination, LossFunction
from fedsim.core.client_task import Batch, Batches, Effort, Local, Pacing, Report, Visit
from fedsim.core.context import Context
from fedsim.core.exchange import Progress, Reduced, Reduction, Score, ServerState, Survey
from fedsim.core.personal_scores import PersonalScores

__all__ = [
    "Algorithm",
    "Batch",
    "Batches",
    "Context",
    "Effort",
    "Examination",
    "Local",
    "LossFunction",
    "Pacing",
    "PersonalScores",
    "Progress",
    "Reduced",
    "Reduction",
    "Report",
    "Score",
    "ServerState",
    "Survey",
    "Traffic",
    "Visit",
]
