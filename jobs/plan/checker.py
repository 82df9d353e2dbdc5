"""The checks that a service makes of a spec, and the class maps of its jobs.

A check that reads data runs in a process of its own, whose memory is limited: `python -m jobs.plan.checker`,
see `jobs.json_process`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from actors.resources import ClusterNode
from fedsim.base.error_attribution import is_out_of_memory
from fedsim.base.memory_usage import machine_bytes
from fedsim.errors import DataError, FieldError
from jobs.json_process import answer_standard_input, limit_memory
from jobs.plan.long_runs import describe_long_run
from jobs.run.class_map import load_class_map
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.initial_weights import pin_initial_weights
from jobs.spec.resolve import MODELS_LOCK, check_spec


class CheckedSpec(NamedTuple):
    """A spec that can run.

    Attributes:
        spec: with the SHA-256 of its initial weights.
        warning: for a run of hours; None for a shorter one.
    """

    spec: JobSpec
    warning: str | None


def check_submission(
    spec: JobSpec, settings: Settings, nodes: Sequence[ClusterNode] | None = None
) -> CheckedSpec:
    """Check that a spec can run on a cluster.

    Args:
        spec: of the right shape.
        settings: the data roots.
        nodes: of the cluster; None if they are unknown.

    Raises:
        SpecError, DataNotFound, DataError, DoesNotFit: as `jobs.spec.resolve.check_spec`.
    """
    with MODELS_LOCK:
        experiment = check_spec(spec, settings, nodes)
        warning = describe_long_run(spec, settings, sum(node.cpus for node in nodes or ()))
    return CheckedSpec(pin_initial_weights(spec, experiment.initial), warning)


def answer_question(question: Mapping[str, Any], settings: Settings) -> Any:
    """Answer a question of the service.

    Args:
        question: `work` ("check" or "class_map") and `spec`; for a check `nodes`, for a class map `job`.
        settings: the data roots, and the limit of memory.

    Returns:
        `{"spec": ..., "warning": ...}`, or the class map.

    Raises:
        SpecError, DataError, DoesNotFit: as `check_submission` and `load_class_map`; DataError also if the
            memory is too small.
    """
    spec = parse_spec(question["spec"])
    try:
        if question["work"] == "class_map":
            return load_class_map(spec, settings, question["job"])
        nodes = question["nodes"]
        checked = check_submission(spec, settings, nodes and [ClusterNode(**node) for node in nodes])
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise make_memory_error(spec, settings) from error
    return {"spec": checked.spec.model_dump(mode="json"), "warning": checked.warning}


def read_check(answer: Mapping[str, Any]) -> CheckedSpec:
    """Return the checked spec of an answer to a check."""
    return CheckedSpec(parse_spec(answer["spec"]), answer["warning"])


def make_memory_error(spec: JobSpec, settings: Settings) -> DataError:
    """Make the error for a spec whose data or model needs more memory than one check may use."""
    most = count_check_bytes(settings) / 1e9
    message = f"the data or the model needs more than the {most:,.3g} GB of memory that a check may use"
    error = DataError(message, "use less data; or let the operator of the service raise FEDSIM_CHECK_MEMORY")
    error.errors = [FieldError("data.dataset.name", spec.data.dataset.name, error.message, error.hint)]
    return error


def count_check_bytes(settings: Settings) -> int:
    """Return the memory that one check may use, in bytes."""
    gigabytes = settings.limits.check_gigabytes
    return machine_bytes() // 2 if gigabytes is None else gigabytes * 10**9


def main() -> int:
    """Answer questions of the service until it closes standard input."""
    settings = Settings.from_env()
    limit_memory(count_check_bytes(settings))
    return answer_standard_input(lambda question: answer_question(question, settings))


if __name__ == "__main__":
    sys.exit(main())
