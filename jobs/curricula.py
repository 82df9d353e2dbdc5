"""From the `curriculum` section of a spec to the algorithm that it makes of another."""

from __future__ import annotations

from fedsim.algorithms import ALGORITHMS
from fedsim.core import Algorithm
from fedsim.curriculum import DataCurriculum
from fedsim.errors import FieldError
from jobs.spec import JobSpec


def curriculum_faults(spec: JobSpec) -> list[FieldError]:
    """What the method does itself, and so no curriculum can do for it."""
    method = ALGORITHMS.get(spec.algorithm.name)
    if spec.curriculum.data is None or method is None or method.schedule is Algorithm.schedule:
        return []
    message = f"{spec.algorithm.name} decides itself which examples a step sees"
    return [FieldError("curriculum.data", None, message, "leave 'data' out, or choose another algorithm")]


def with_curricula(algorithm: Algorithm, spec: JobSpec) -> Algorithm:
    """The algorithm with the spec's curricula around it."""
    data = spec.curriculum.data
    if data is not None:
        algorithm = DataCurriculum(base=algorithm, **data.model_dump(exclude={"expert_epochs"}))
    return algorithm


def expert_epochs(spec: JobSpec) -> int | None:
    """How long an expert has to be trained for the data curriculum; None if it needs none."""
    data = spec.curriculum.data
    wanted = data is not None and data.score == "expert_loss" and data.order != "random"
    return data.expert_epochs if data is not None and wanted else None
