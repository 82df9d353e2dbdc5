"""Which checkpoints belong to which spec."""

from __future__ import annotations

from typing import Any

from actors.coordinator import CheckpointPolicy
from jobs.spec import JobSpec
from jobs.spec.resolve import make_algorithm

CHANGEABLE_FIELDS = ("name", "rounds", "evaluation", "resources", "faults", "checkpoint")
"""Fields of a spec that may differ when a run goes on: as a rule no round depends on them.

`experiment_of` puts back what of them does.
"""


def describe_experiment(spec: JobSpec) -> dict[str, Any]:
    """What makes a run what it is: the spec without what the result of a round does not depend on.

    The names in the spec have to be known, as after `resolve`.
    """
    data = spec.model_dump(mode="json")
    for name in CHANGEABLE_FIELDS:
        data.pop(name, None)
    data["data"].pop("download", None)
    # As it was before there was a choice: a run that began then goes on.
    if spec.data.tests.kind == "global":
        del data["data"]["tests"]
    if spec.local.precision == "float32":
        del data["local"]["precision"]
    if spec.evaluation.validation:
        # Taken away before the rest is dealt out.
        data["validation"] = spec.evaluation.validation
    if make_algorithm(spec).depends_on_num_rounds():
        data["rounds"] = spec.rounds
    if isinstance(spec.resources.stack, int) and spec.resources.stack > 1:
        # The last bits depend on it; left out where it is not said, as before there was a choice.
        data["stack"] = spec.resources.stack
    return data


def make_checkpoint_policy(spec: JobSpec, url: str | None, *, resume: bool) -> CheckpointPolicy | None:
    """How a run of this spec is checkpointed at a place; None where there is no place, or no wish.

    Args:
        spec: of the run.
        url: the folder for its checkpoints, as fsspec knows it.
        resume: whether to go on from those there are.
    """
    if url is None or not spec.checkpoint.every:
        return None
    return CheckpointPolicy(url, spec.checkpoint.every, describe_experiment(spec), resume=resume)
