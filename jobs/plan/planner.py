"""The planner: measure a spec on the actors that would run it, and say what it needs and takes.

`python -m jobs.plan.planner` reads a spec as JSON from standard input and writes the plan, or the error, as
JSON to standard output. The service plans in such a process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError

from actors.actor_errors import ACTOR_DEATH_ERRORS, make_death_error, unwrap_task_error
from actors.coordinator import Status
from actors.plan.measure import Measured, Prober
from actors.resources import (
    ClusterNode,
    Placement,
    count_actors_in_memory,
    parse_ray_nodes,
    reserve_server_gpu,
)
from actors.server_placement import ServerPlacement
from fedsim.engine.experiment import Experiment
from fedsim.errors import DoesNotFit, FedsimError, NoCapacityNow, OutOfMemory, PoolFailed
from jobs.local_ray.machine import count_cpus
from jobs.plan.plan import Plan, PlannedClients, PlannedNode, advise
from jobs.run.placement import choose_placement, count_useful_workers
from jobs.run.ray_connection import connect_to_ray
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.data_checks import use_spec_paths
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord

Listener = Callable[[str], None]


def plan(
    spec: JobSpec, settings: Settings, *, seconds: float = 20.0, on_status: Listener = lambda text: None
) -> Plan:
    """Plan a spec here, in about so many seconds and the set-up; a spec that does not fit has a plan, too.

    Raises:
        SpecError, DataNotFound, DataError: see `resolve_spec`.
        FedsimError: if the measured clients failed.
    """
    on_status("checking the spec")
    experiment, load, nodes = resolve_spec(spec, settings), os.getloadavg()[0], list[ClusterNode]()
    draft = draft_plan(spec, experiment)
    try:
        if settings.ray_address is None and not ray.is_initialized():
            # More workers than this machine can have are refused at once, without a Ray.
            nodes = [_this_machine(settings)]
            choose_placement(experiment, spec, nodes)
        on_status("starting Ray" if settings.ray_address is None else "connecting to Ray")
        began = perf_counter()
        with connect_to_ray(settings):
            started = perf_counter() - began
            nodes = list(reserve_server_gpu(parse_ray_nodes(ray.nodes()), spec.resources.server_gpus))
            placement = choose_placement(experiment, spec, nodes)
            draft = draft_plan(spec, experiment, placement.workers)
            found = measure(experiment, spec, placement, nodes, (seconds, started), on_status)
        return complete_plan(draft, spec, nodes, found, load)
    except NoCapacityNow as error:
        notes = [f"not measured: {error.message}; {error.hint}"]
        return draft.model_copy(update={"nodes": plan_nodes(nodes, spec), "notes": notes})
    except DoesNotFit as error:
        unfit = {"fits": False, "message": error.message, "hint": error.hint}
        return draft.model_copy(update={"nodes": plan_nodes(nodes, spec), **unfit})


def _this_machine(settings: Settings) -> ClusterNode:
    gpus = torch.cuda.device_count() if settings.ray_num_gpus is None else settings.ray_num_gpus
    return ClusterNode("this machine", count_cpus(settings), gpus)


def measure(
    experiment: Experiment,
    spec: JobSpec,
    placement: Placement,
    nodes: Sequence[ClusterNode],
    seconds: tuple[float, float],  # to measure for; that the start of Ray took
    on_status: Listener,
) -> Measured:
    """Measure on the actors of the run, or on fewer actors where others hold a part of the cluster."""
    free, most, size = (
        ray.available_resources(),
        count_useful_workers(experiment),
        (placement.cpus, placement.gpus),
    )
    capacity = ClusterNode(
        "", free.get("CPU", 0.0), free.get("GPU", 0.0), server_gpus=placement.server_gpus
    ).count_fitting_actors(*size)
    workers = (
        placement.workers,
        max(1, min(most, sum(node.count_fitting_actors(*size) for node in nodes))),
        most,
    )
    # Beside this process, on the head, where the data sets are.
    server = ServerPlacement(placement.server_gpus)
    here = replace(placement, workers=max(1, min(capacity, placement.workers)))
    prober: Any = Prober.options(**server.make_actor_options()).remote(experiment, here)
    try:
        server.wait_for_gpu()
        found = None
        # To its end, when the prober has given its actors' room back.
        for reference in prober.measure.options(num_returns="streaming").remote(workers, *seconds):
            step = ray.get(reference)
            if isinstance(step, Measured):
                found = step
            elif isinstance(step, Status):
                on_status(step.text)
            else:
                # As a run does it: this process is then as busy beside the actors as it would be.
                RoundRecord.model_validate(step.record())
    except ACTOR_DEATH_ERRORS as error:
        raise explain_shortage(make_death_error("the process that measured died", 1, error), spec) from error
    except RayTaskError as error:
        raise explain_shortage(
            use_spec_paths(unwrap_task_error(error, "the process that measured")), spec
        ) from None
    finally:
        ray.kill(prober)
        server.close()
    if found is None:
        raise PoolFailed("the process that measured ended without an answer")
    return found


def explain_shortage(error: Exception, spec: JobSpec) -> Exception:
    """An error that tells of too little memory, as a spec that does not fit; any other error unchanged."""
    if not isinstance(error, OutOfMemory):
        return error
    if "CUDA" not in error.message:
        return DoesNotFit(error.message, error.hint, value=spec.resources.workers)
    share = spec.resources.gpus_per_worker
    higher = "set resources.gpus_per_worker higher, or use a smaller local.batch_size or a smaller model"
    message = f"the memory of {share:g} GPU is too small: {error.message}"
    return DoesNotFit(message, higher if share < 1 else error.hint, "resources.gpus_per_worker", share)


def draft_plan(spec: JobSpec, experiment: Experiment, workers: int | None = None) -> Plan:
    """Return the part of a plan that needs no measurement."""
    rounds, every, cohort = spec.rounds, spec.evaluation.every, experiment.cohort_size
    each = -(-cohort // (workers or 1))
    clients = PlannedClients(total=experiment.num_clients, per_round=cohort, per_worker=each)
    return Plan(fits=True, rounds=rounds, evaluations=-(-rounds // every), clients=clients, workers=workers)


def plan_nodes(
    nodes: Sequence[ClusterNode], spec: JobSpec, found: Measured | None = None
) -> list[PlannedNode]:
    """List the nodes of the cluster, with the number of workers that fit on each."""
    cpus, gpus = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    memory = (found.figures["memory"]["worker"], found.figures["memory"]["shared"]) if found else None
    return [
        PlannedNode(
            name=node.name,
            cpus=node.cpus,
            gpus=node.gpus,
            memory=int(node.memory) or None,
            fit=node.count_fitting_actors(cpus, gpus),
            fit_per_gpu=ClusterNode("", node.cpus, 1).count_fitting_actors(0, gpus)
            if 0 < gpus <= 1 and node.gpus
            else None,
            fit_in_memory=count_actors_in_memory(node, *memory) if memory else None,
            workers=found.by_node.get(node.id, 0) if found else None,
        )
        for node in nodes
    ]


def complete_plan(
    draft: Plan, spec: JobSpec, nodes: Sequence[ClusterNode], found: Measured, load: float
) -> Plan:
    """The plan with the measured figures, notes and advice.

    Raises:
        DoesNotFit: if the memory of the cluster is too small for all workers, measured or not.
    """
    planned = plan_nodes(nodes, spec, found)
    full = Plan.model_validate({**draft.model_dump(), **found.figures, "nodes": planned})
    fit = sum(min(node.fit, node.fit if (n := node.fit_in_memory) is None else n) for node in planned)
    if full.memory is not None and full.workers is not None and fit < full.workers:
        raise DoesNotFit(
            f"{full.workers} workers asked, {fit} fit into the memory of the nodes: each takes "
            f"{full.memory.worker / 1e9:.3g} GB, the data {full.memory.shared / 1e9:.3g} GB on each node",
            f"set resources.workers to {fit} or fewer" if fit else "use a smaller model or less data",
        )
    faster = list(advise(full, spec, nodes, found.train, found.longest, found.pieces))
    return full.model_copy(update={"faster": faster, "notes": list(write_notes(full, found.stack, load))})


def write_notes(plan: Plan, stack: int, load: float) -> Iterator[str]:
    """The sentences that the figures need; with more memory, `stack` clients would train at once."""
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
        here = f"{plan.measured.workers} of {plan.workers}"
        yield f"others hold a part of the cluster: measured on {here} workers"
    if not plan.measured.whole_rounds:
        yield "a round is longer than the measuring: its seconds are put together from parts of it"


def main() -> int:
    """Plan the spec on standard input; 0 with the plan on standard output, 1 with the error."""
    output = os.dup(1)
    # Other output goes to standard error, so that standard output holds only the answer.
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
