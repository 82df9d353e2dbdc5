"""The planner: measure a spec on the actors that would run it; return its resources, time and traffic.

The service plans in a process: `python -m jobs.plan.planner`, see `jobs.json_process`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError

from actors.actor_errors import ACTOR_DEATH_ERRORS, make_death_error, unwrap_task_error
from actors.plan.measure import Measured, Prober
from actors.resources import (
    ClusterNode,
    Placement,
    count_actors_in_memory,
    parse_ray_nodes,
    reserve_server_gpu,
)
from actors.server_placement import ServerPlacement
from fedsim.base.error_attribution import is_out_of_memory
from fedsim.checkpoints.experiment_run import Status
from fedsim.engine.experiment import Experiment
from fedsim.errors import DoesNotFit, NoCapacityNow, OutOfMemory, PoolFailed
from jobs.json_process import answer_standard_input, limit_memory
from jobs.local_ray.keeper_files import read_addresses
from jobs.local_ray.machine import count_cpus
from jobs.plan.checker import count_check_bytes, make_memory_error
from jobs.plan.plan import Plan, PlannedClients, PlannedNode, advise_on_rounds, advise_on_workers
from jobs.run.placement import choose_placement, count_useful_workers
from jobs.run.ray_connection import connect_to_ray
from jobs.run.without_ray.in_process_attempt import InProcessAttempt
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.checks.data_checks import use_spec_paths
from jobs.spec.resolve import resolve_spec
from jobs.spec.run_size import is_short
from jobs.store.records import RoundRecord

Listener = Callable[[str], None]


def plan(
    spec: JobSpec, settings: Settings, *, seconds: float = 20.0, on_status: Listener = lambda text: None
) -> Plan:
    """Plan a spec on this cluster, in about this many seconds and the set-up.

    A spec that does not fit has a plan, too.

    Raises:
        SpecError, DataNotFound, DataError: see `resolve_spec`.
        FedsimError: if the measured clients failed.
    """
    on_status("checking the spec")
    experiment, load = resolve_spec(spec, settings, fetch=True), os.getloadavg()[0]
    draft, nodes = draft_plan(spec, experiment), list[ClusterNode]()
    try:
        if settings.ray_address is None and not ray.is_initialized():
            # More workers than this machine can have are refused at once, without a Ray.
            nodes = [describe_this_machine(settings)]
            choose_placement(experiment, spec, nodes)
        on_status("starting Ray" if settings.ray_address is None else "connecting to Ray")
        began = perf_counter()
        with connect_to_ray(settings):
            started = perf_counter() - began
            nodes = list(reserve_server_gpu(parse_ray_nodes(ray.nodes()), spec.resources.server_gpus))
            placement = choose_placement(experiment, spec, nodes)
            draft = draft_plan(spec, experiment, placement.workers)
            size = (placement.cpus, placement.gpus)
            fit = sum(node.count_fitting_actors(*size) for node in nodes)
            useful = count_useful_workers(experiment)
            workers = [placement.workers, min(useful, fit), useful]
            found = measure(experiment, placement, workers, seconds, started, on_status)
        return add_note_on_short_run(
            complete_plan(draft, spec, nodes, found, load), spec, settings, seconds / 4
        )
    except NoCapacityNow as error:
        notes = [f"not measured: {error.message}; {error.hint}"]
        return draft.model_copy(update={"nodes": plan_nodes(nodes, spec), "notes": notes})
    except (DoesNotFit, OutOfMemory) as error:
        unfit = {"fits": False, "message": error.message, "hint": error.hint}
        return draft.model_copy(update={"nodes": plan_nodes(nodes, spec), **unfit})


def add_note_on_short_run(found: Plan, spec: JobSpec, settings: Settings, seconds: float) -> Plan:
    """Add to a plan that the run is short, and how long it takes: it trains without the workers of the plan.

    Args:
        found: the plan.
        spec: of the run.
        settings: the address of another Ray than that of their home means that all runs train there.
        seconds: for the measurement.
    """
    own = read_addresses(settings.home)
    if settings.ray_address not in (None, own and own.gcs) or not is_short(spec, settings):
        return found
    taken = time_rounds(spec, settings, seconds)
    note = f"this run is short: it trains in one process without Ray, in about {taken:.1f} s"
    note += "; the other figures are of workers on Ray"
    return found.model_copy(update={"faster": [], "notes": [note, *found.notes]})


def time_rounds(spec: JobSpec, settings: Settings, seconds: float) -> float:
    """Return the seconds of a run in one process, from as many of its rounds as fit in these seconds."""
    experiment = resolve_spec(spec, settings, fetch=True)
    began, first, last = perf_counter(), 0.0, 0.0
    with closing(iter(InProcessAttempt(experiment, spec))) as steps:
        for step in steps:
            if not isinstance(step, RoundRecord):
                continue
            last = perf_counter() - began
            first = first or last
            if last > seconds and step.round < spec.rounds:
                # Until the end of round 1 is also the set-up.
                each = (last - first) / (step.round - 1) if step.round > 1 else first
                return first + (spec.rounds - 1) * each
    return last


def describe_this_machine(settings: Settings) -> ClusterNode:
    """Describe the node that a local Ray of these settings would have."""
    gpus = torch.cuda.device_count() if settings.ray_num_gpus is None else settings.ray_num_gpus
    return ClusterNode("this machine", count_cpus(settings), gpus)


def measure(
    experiment: Experiment,
    placement: Placement,
    workers: list[int],
    seconds: float,
    started: float,
    on_status: Listener,
) -> Measured:
    """Measure on the actors of the run, or on fewer actors where other jobs hold a part of the cluster."""
    server, free = ServerPlacement(placement.server_gpus), ray.available_resources()
    rest = ClusterNode("", free.get("CPU", 0.0), free.get("GPU", 0.0), server_gpus=placement.server_gpus)
    capacity = rest.count_fitting_actors(placement.cpus, placement.gpus)
    placement = replace(placement, workers=max(1, min(capacity, placement.workers)))
    prober: Any = Prober.options(**server.make_actor_options()).remote()
    found = None
    try:
        server.wait_for_gpu()
        stream = prober.measure.options(num_returns="streaming")
        # To its end, when the prober has given back its actors' resources.
        for reference in stream.remote(experiment, placement, workers, seconds, started):
            step = ray.get(reference)
            if isinstance(step, Measured):
                found = step
            elif isinstance(step, Status):
                on_status(step.text)
            else:
                # As a run does it, so that this process competes with the actors in the same way.
                RoundRecord.model_validate(step.record())
    except ACTOR_DEATH_ERRORS as error:
        raise make_death_error("the process that measured died", 1, error) from error
    except RayTaskError as error:
        raise use_spec_paths(unwrap_task_error(error, "the process that measured")) from None
    finally:
        ray.kill(prober)
        server.close()
    if found is None:
        raise PoolFailed("the process that measured ended without an answer")
    return found


def draft_plan(spec: JobSpec, experiment: Experiment, workers: int | None = None) -> Plan:
    """Return the part of a plan that needs no measurement."""
    rounds, every, cohort = spec.rounds, spec.evaluation.every, experiment.updates_per_round
    each = -(-cohort // (workers or 1))
    clients = PlannedClients(total=experiment.num_clients, per_round=cohort, per_worker=each)
    return Plan(fits=True, rounds=rounds, evaluations=-(-rounds // every), clients=clients, workers=workers)


def plan_nodes(
    nodes: Sequence[ClusterNode], spec: JobSpec, found: Measured | None = None
) -> list[PlannedNode]:
    """List the nodes of the cluster, with the number of workers that fit on each."""
    cpus, gpus = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    planned = []
    for node in nodes:
        values: dict[str, Any] = {"name": node.name, "cpus": node.cpus, "gpus": node.gpus}
        values |= {"memory": int(node.memory) or None, "fit": node.count_fitting_actors(cpus, gpus)}
        if 0 < gpus <= 1 and node.gpus:
            values["fit_per_gpu"] = ClusterNode("", node.cpus, 1).count_fitting_actors(0, gpus)
        if found is not None:
            memory = found.figures["memory"]
            values["fit_in_memory"] = count_actors_in_memory(node, memory["worker"], memory["shared"])
            values["workers"] = found.by_node.get(node.id, 0)
        planned.append(PlannedNode(**values))
    return planned


def complete_plan(
    draft: Plan, spec: JobSpec, nodes: Sequence[ClusterNode], found: Measured, load: float
) -> Plan:
    """Return the plan with the measured figures, notes and advice.

    Raises:
        DoesNotFit: if the memory of the cluster is too small for all workers, measured or not.
    """
    planned = plan_nodes(nodes, spec, found)
    full = Plan.model_validate({**draft.model_dump(), **found.figures, "nodes": planned})
    known = (node.fit if node.fit_in_memory is None else node.fit_in_memory for node in planned)
    fit = sum(min(node.fit, limit) for node, limit in zip(planned, known, strict=True))
    if full.memory is not None and full.workers is not None and fit < full.workers:
        raise DoesNotFit(
            f"{full.workers} workers asked, {fit} fit into the memory of the nodes: each takes "
            f"{full.memory.worker / 1e9:.3g} GB, the data {full.memory.shared / 1e9:.3g} GB on each node",
            f"set resources.workers to {fit} or fewer" if fit else "use a smaller model or less data",
        )
    faster = [*advise_on_workers(full, spec, nodes, found.train, found.busy)]
    faster += advise_on_rounds(full, spec, found.longest)
    return full.model_copy(update={"faster": faster, "notes": list(write_notes(full, found.stack, load))})


def write_notes(plan: Plan, stack: int, load: float) -> Iterator[str]:
    """Yield the limits of the figures; with more memory, `stack` clients would train at once."""
    if plan.measured is None:
        return
    if (plan.stack or 1) < stack:
        yield f"{stack} clients at once need more memory than an actor has: {plan.stack} train at once"
    if load > (cores := os.cpu_count() or 1):
        yield (
            f"this machine was busy before it was measured (load {load:.1f} on {cores} CPUs): "
            "where it is idle, rounds are shorter"
        )
    if plan.measured.workers < (plan.workers or 0):
        workers = f"{plan.measured.workers} of {plan.workers} workers"
        yield f"others hold a part of the cluster: measured on {workers}"
    if not plan.measured.whole_rounds:
        yield "a round is longer than the measuring: its seconds are put together from parts of it"


def answer_question(data: Mapping[str, Any], settings: Settings) -> Plan:
    """Plan the spec of a caller of the service.

    Raises:
        FedsimError: as `plan`; DataError also if the memory of this process is too small.
    """
    spec = parse_spec(data)
    try:
        return plan(spec, settings)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise make_memory_error(spec, settings) from error


def main() -> int:
    """Answer the service. This process reads data, as a check does, and may take no more memory."""
    settings = Settings.from_env()
    limit_memory(count_check_bytes(settings))
    return answer_standard_input(lambda data: answer_question(data, settings))


if __name__ == "__main__":
    sys.exit(main())
