"""What `data.tests` of a spec does not go together with."""

from __future__ import annotations

from fedsim.data import PARTITIONS
from fedsim.errors import FieldError
from jobs.curricula import expert_epochs
from jobs.spec import JobSpec


def tests_faults(spec: JobSpec, task: str) -> list[FieldError]:
    """Why clients cannot have tests of their own by this convention.

    Args:
        spec: of the right shape.
        task: of the data set, "classes" or "labels".
    """
    kind, partition = spec.data.tests.kind, spec.data.partition.kind
    if kind == "global":
        return []
    entry, message, hint = PARTITIONS.get(partition), "", "use kind: global"
    if entry is not None and entry.shares:
        message = f"clients of a {partition} partition draw from the whole set"
    elif task == "labels":
        message = f"{spec.data.dataset.name} has several labels per example"
    elif kind == "merged" and (partition == "difficulty" or expert_epochs(spec) is not None):
        message = "an expert knows the training set only, and here clients hold test examples too"
        hint = "use kind: matched, or do without the expert"
    return [FieldError("data.tests.kind", kind, message, hint)] if message else []
