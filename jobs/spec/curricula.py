"""From the `curriculum` section of a spec to the algorithm that it makes of another."""

from __future__ import annotations

from fedsim.algorithms import ALGORITHMS
from fedsim.core import Algorithm
from fedsim.core.capabilities import BatchPacing, ClientSurvey, CohortSelection
from fedsim.curriculum import ClientCurriculum, DataCurriculum
from fedsim.errors import FieldError
from jobs.spec.job_spec import JobSpec


def curriculum_faults(spec: JobSpec) -> list[FieldError]:
    """What the method does itself, and so no curriculum can do for it."""
    method, asked = ALGORITHMS.get(spec.algorithm.name), spec.curriculum
    if method is None:
        return []
    errors = []
    if asked.data is not None and issubclass(method, BatchPacing):
        errors.append(_make_conflict_error(spec, "data", "decides itself which examples a step sees"))
    if asked.clients is not None and issubclass(method, CohortSelection | ClientSurvey):
        errors.append(_make_conflict_error(spec, "clients", "chooses its clients itself"))
    elif (
        asked.clients is not None
        and asked.clients.scores == "all"
        and asked.clients.order != "random"  # which asks nobody
        and not method.deploys_models
    ):
        message = f"{spec.algorithm.name} has no model for everybody that clients could be asked about"
        errors.append(FieldError("curriculum.clients.scores", "all", message, "set it to 'kept'"))
    return errors


def _make_conflict_error(spec: JobSpec, field: str, what: str) -> FieldError:
    hint = f"leave '{field}' out, or choose another algorithm"
    return FieldError(f"curriculum.{field}", None, f"{spec.algorithm.name} {what}", hint)


def make_algorithm(spec: JobSpec) -> Algorithm:
    """The spec's algorithm, with its curricula around it."""
    algorithm: Algorithm = ALGORITHMS[spec.algorithm.name](**spec.algorithm.params)
    data, clients = spec.curriculum.data, spec.curriculum.clients
    if data is not None:
        algorithm = DataCurriculum(base=algorithm, **data.model_dump(exclude={"expert_epochs"}))
    if clients is not None:
        algorithm = ClientCurriculum(base=algorithm, **clients.model_dump())
    return algorithm


def expert_epochs(spec: JobSpec) -> int | None:
    """How long an expert has to be trained for the data curriculum; None if it needs none."""
    data = spec.curriculum.data
    wanted = data is not None and data.score == "expert_loss" and data.order != "random"
    return data.expert_epochs if data is not None and wanted else None
