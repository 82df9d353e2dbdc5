"""What a spec needs and what it will take, measured on the actors that would run it.

`python -m jobs.plan.planner` reads a spec as JSON from standard input and writes the plan, or the error, as
JSON to standard output: so the service measures in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError

from actors.actor_errors import ACTOR_DEATH_ERRORS, make_death_error, unwrap_task_error
from actors.coordinator import Status
from actors.plan.measured import Measured
from actors.plan.prober import Prober
from actors.resources import ClusterNode, Placement, parse_ray_nodes, reserve_server_gpu
from actors.server_placement import ServerPlacement
from fedsim.engine.experiment import Experiment
from fedsim.errors import DoesNotFit, FedsimError, NoCapacityNow, OutOfMemory, PoolFailed
from jobs.local_ray.machine import count_cpus
from jobs.plan.advice import advice
from jobs.plan.figures import check_room, drafted, with_figures, with_nodes, with_workers
from jobs.plan.plan import Plan
from jobs.run.placement import choose_placement, count_useful_workers
from jobs.run.ray_connection import connect_to_ray
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.data_checks import use_spec_paths
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord

MEASURING_SECONDS = 20.0
"""How long rounds are measured by default."""


def _nothing(_: Any) -> None:
    """The default listener."""


def plan(
    spec: JobSpec,
    settings: Settings,
    *,
    seconds: float = MEASURING_SECONDS,
    on_phase: Callable[[str], None] = _nothing,
) -> Plan:
    """Find out what a spec needs here, and what it will take.

    Args:
        spec: what would run.
        settings: where data and Ray are.
        seconds: how long to measure, about; setting up comes on top.
        on_phase: called with what is being waited for.

    Returns:
        The plan; a spec that does not fit is one whose plan says so.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve`.
        FedsimError: if the measured clients failed.
    """
    on_phase("checking the spec")
    experiment = resolve_spec(spec, settings)
    draft, nodes = drafted(spec, experiment), list[ClusterNode]()
    try:
        if settings.ray_address is None and not ray.is_initialized():
            # What this machine cannot hold is said at once, without starting a Ray on it.
            nodes = [_this_machine(settings)]
            choose_placement(experiment, spec, nodes)
        on_phase("starting Ray" if settings.ray_address is None else "connecting to Ray")
        began = perf_counter()
        with connect_to_ray(settings):
            started = perf_counter() - began
            nodes = list(reserve_server_gpu(parse_ray_nodes(ray.nodes()), spec.resources.server_gpus))
            placement = choose_placement(experiment, spec, nodes)
            draft = with_workers(draft, placement)
            measured = _measure(experiment, spec, placement, nodes, seconds, on_phase)
        found = replace(measured, startup=measured.startup + started)
        full = with_figures(with_nodes(draft, spec, nodes, found), placement, found)
        check_room(full)
    except NoCapacityNow as error:
        notes = [f"not measured: {error.message}; {error.hint}"]
        return with_nodes(draft, spec, nodes).model_copy(update={"notes": notes})
    except DoesNotFit as error:
        unfit = {"fits": False, "message": error.message, "hint": error.hint}
        return with_nodes(draft, spec, nodes).model_copy(update=unfit)
    return full.model_copy(update={"faster": advice(full, spec, nodes, found)})


def _this_machine(settings: Settings) -> ClusterNode:
    gpus = torch.cuda.device_count() if settings.ray_num_gpus is None else settings.ray_num_gpus
    return ClusterNode("this machine", count_cpus(settings), gpus)


def _measure(
    experiment: Experiment,
    spec: JobSpec,
    placement: Placement,
    nodes: Sequence[ClusterNode],
    seconds: float,
    on_phase: Callable[[str], None],
) -> Measured:
    """Measure on the actors of the run; on fewer where others hold the room."""
    free = ray.available_resources()
    room = ClusterNode("", free.get("CPU", 0.0), free.get("GPU", 0.0), server_gpus=placement.server_gpus)
    here = min(placement.workers, room.count_fitting_actors(placement.cpus, placement.gpus))
    smaller = replace(placement, workers=max(1, here))
    counts = (placement.workers, _room(spec, nodes, experiment), count_useful_workers(experiment))
    # Beside this process, on the head, where the data sets are.
    server = ServerPlacement(placement.server_gpus)
    prober: Any = Prober.options(**server.make_actor_options()).remote(experiment, smaller)
    found: Measured | None = None
    try:
        server.wait_for_gpu()
        # To its end, when the prober has given its actors' room back.
        stream = prober.measure.options(num_returns="streaming").remote(seconds, counts)
        for reference in stream:
            step = ray.get(reference)
            if isinstance(step, Status):
                on_phase(step.text)
            elif isinstance(step, Measured):
                found = step
            else:
                # As a run does it: this process is then as busy beside the actors as it would be.
                RoundRecord.model_validate(step.record())
    except ACTOR_DEATH_ERRORS as error:
        raise shortage(make_death_error("the process that measured died", 1, error), spec) from error
    except RayTaskError as error:
        raise shortage(use_spec_paths(unwrap_task_error(error, "the process that measured")), spec) from None
    finally:
        ray.kill(prober)
        server.close()
    if found is None:
        raise PoolFailed("the process that measured ended without an answer")
    return found


def _room(spec: JobSpec, nodes: Sequence[ClusterNode], experiment: Experiment) -> int:
    """As many workers of this size as fit and have a client to train."""
    asked = spec.resources
    room = sum(node.count_fitting_actors(asked.cpus_per_worker, asked.gpus_per_worker) for node in nodes)
    return max(1, min(room, count_useful_workers(experiment)))


def shortage(error: Exception, spec: JobSpec) -> Exception:
    """An error that tells of too little memory, as a spec that does not fit; any other as it is."""
    if not isinstance(error, OutOfMemory):
        return error
    share = spec.resources.gpus_per_worker
    if "CUDA" not in error.message:
        return DoesNotFit(error.message, error.hint, value=spec.resources.workers)
    if share < 1:
        hint = "set resources.gpus_per_worker higher, or use a smaller local.batch_size or a smaller model"
        message = f"{share:g} of a GPU's memory is too little: {error.message}"
        return DoesNotFit(message, hint, "resources.gpus_per_worker", share)
    return DoesNotFit(error.message, error.hint, "resources.gpus_per_worker", share)


def main() -> int:
    """Plan the spec on standard input; 0 with the plan on standard output, 1 with the error."""
    output = os.dup(1)
    # Whatever else speaks must not get into the answer.
    os.dup2(2, 1)
    try:
        found = plan(parse_spec(json.load(sys.stdin)), Settings.from_env())
        answer, code = found.model_dump(mode="json"), 0
    except FedsimError as error:
        faults = [fault._asdict() for fault in error.errors]
        answer = {"code": error.code, "message": error.message, "hint": error.hint, "errors": faults}
        code = 1
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        json.dump(answer, stream, default=repr)
    return code


if __name__ == "__main__":
    sys.exit(main())
