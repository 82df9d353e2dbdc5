"""The size of a job, for the queue: whether it is short, and the CPUs and GPUs that it takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import lru_cache

from pydantic import ValidationError

from actors.resources import ClusterNode
from fedsim.errors import SpecError
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import MODELS_LOCK
from jobs.spec.run_size import is_short_unread
from jobs.spec.sections.run_fields import JobSize, Resources, fit_together
from jobs.store.records import Job

log = logging.getLogger("fedsim.dispatch")


def is_short_job(job: Job, settings: Settings) -> bool:
    """Return whether a job trains in the process of its runner, without Ray.

    So does a job of the local Ray that one process ends before Ray would have started its workers. No data
    is opened to tell; see `jobs.spec.run_size.is_short_unread`.
    """
    return settings.ray_address is None and _is_short(json.dumps(job.spec), settings)


@lru_cache(maxsize=512)
def _is_short(spec: str, settings: Settings) -> bool:
    try:
        with MODELS_LOCK:
            return is_short_unread(parse_spec(json.loads(spec)), settings)
    except SpecError:  # of another version of fedsim: the runner reports its faults
        return False
    except Exception:  # one job must not stop the queue: such as a model that does not suit its data any more
        log.exception("the size of a job could not be estimated, and counts as large")
        return False


def measure_job(job: Job, settings: Settings, cluster: JobSize) -> JobSize:
    """Return the resources of a job; see `Resources.measure_job`. A short one takes one CPU."""
    if is_short_job(job, settings):
        return JobSize(1, 0)
    try:
        asked = Resources.model_validate(job.spec.get("resources", {}))
    except ValidationError:
        return cluster
    return asked.measure_job(cluster)


def fits_beside(job: Job, active: Sequence[Job], settings: Settings, nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the cluster has room for a job beside the active ones."""
    cluster = JobSize(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes))
    return fit_together([measure_job(each, settings, cluster) for each in (job, *active)], cluster)
