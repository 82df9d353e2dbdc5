"""From measurements to the figures of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from actors.plan.measured import Measured
from actors.resources import ClusterNode, Placement, count_actors_in_memory
from fedsim.engine.experiment import Experiment
from fedsim.errors import DoesNotFit
from jobs.plan.plan import (
    Measurement,
    Plan,
    PlannedBytes,
    PlannedClients,
    PlannedMemory,
    PlannedNode,
    PlannedSeconds,
)
from jobs.spec import JobSpec
from jobs.store.records import RoundTraffic, Seconds


def drafted(spec: JobSpec, experiment: Experiment) -> Plan:
    """The plan as far as it is known without a cluster."""
    every, rounds, cohort = spec.evaluation.every, spec.rounds, experiment.cohort_size
    return Plan(
        fits=True,
        rounds=rounds,
        evaluations=rounds // every + (rounds % every > 0),
        clients=PlannedClients(total=experiment.num_clients, per_round=cohort, per_worker=cohort),
    )


def with_workers(plan: Plan, placement: Placement) -> Plan:
    """The plan with its workers, and what that means for their clients."""
    share = -(-plan.clients.per_round // placement.workers)
    clients = plan.clients.model_copy(update={"per_worker": share})
    return plan.model_copy(update={"workers": placement.workers, "clients": clients})


def with_nodes(
    plan: Plan, spec: JobSpec, nodes: Sequence[ClusterNode], found: Measured | None = None
) -> Plan:
    """The plan with the cluster's nodes, and what fits on each."""
    return plan.model_copy(update={"nodes": [_node(node, spec, found) for node in nodes]})


def _node(node: ClusterNode, spec: JobSpec, found: Measured | None) -> PlannedNode:
    cpus, gpus = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    on_each_gpu = (
        ClusterNode(node.name, node.cpus, 1).count_fitting_actors(0, gpus)
        if 0 < gpus <= 1 and node.gpus
        else None
    )
    return PlannedNode(
        name=node.name,
        cpus=node.cpus,
        gpus=node.gpus,
        memory=int(node.memory) or None,
        fit=node.count_fitting_actors(cpus, gpus),
        fit_per_gpu=on_each_gpu,
        fit_in_memory=count_actors_in_memory(node, found.usage.private, found.shared_bytes)
        if found
        else None,
        workers=found.by_node.get(node.id, 0) if found else None,
    )


def check_room(plan: Plan) -> None:
    """Make sure that the cluster's memory holds all workers, also those that were not measured.

    Raises:
        DoesNotFit: if it does not.
    """
    fit = [
        node.fit if node.fit_in_memory is None else min(node.fit, node.fit_in_memory) for node in plan.nodes
    ]
    if plan.memory is not None and plan.workers is not None and sum(fit) < plan.workers:
        raise DoesNotFit(
            f"{plan.workers} workers asked, {sum(fit)} fit into the memory of the nodes: each takes "
            f"{plan.memory.worker / 1e9:.3g} GB, the data {plan.memory.shared / 1e9:.3g} GB on each node",
            f"set resources.workers to {sum(fit)} or fewer"
            if sum(fit)
            else "use a smaller model or less data",
        )


def with_figures(plan: Plan, placement: Placement, found: Measured) -> Plan:
    """The plan with memory, seconds and bytes as measured."""
    usage, each = found.usage, _seconds(plan, placement, found)
    return plan.model_copy(
        update={
            "device": found.device,
            "stack": found.stack[0],
            "personal_evaluations": found.examinations,
            "memory": PlannedMemory(
                worker=usage.private, shared=found.shared_bytes, gpu=usage.gpu, gpu_cap=usage.gpu_cap
            ),
            "seconds": PlannedSeconds(
                startup=round(found.startup, 3),
                round=each,
                overhead=round(found.overhead, 6),
                evaluation=round(found.evaluation, 6),
                personal=round(found.examination, 6),
                total=round(found.startup + plan.rounds * each.total, 3),
            ),
            "bytes": _bytes(plan, found),
            "measured": Measurement(
                seconds=round(found.seconds, 3), workers=found.workers, whole_rounds=found.whole_rounds
            ),
            "notes": _notes(placement, found),
        }
    )


def _seconds(plan: Plan, placement: Placement, found: Measured) -> Seconds:
    """Of a round, the mean over the run."""
    train = found.train[placement.workers]
    evaluate = found.evaluation * plan.evaluations / plan.rounds
    personal = found.examination * found.examinations / plan.rounds
    parts = {"survey": found.survey, "train": train, "server": found.server, "learn": found.learn}
    parts |= {"evaluate": evaluate, "personal": personal}
    parts["total"] = sum(parts.values())
    return Seconds(**{name: round(value, 6) for name, value in parts.items()})


def _bytes(plan: Plan, found: Measured) -> PlannedBytes:
    """Of a round and of the run: whole rounds as they were measured, those to come as the last of them tells.

    What comes down changes as the server's messages do. What goes up under the same name as something that
    comes down changes with it, as a model of which another part travels; all else goes up as it did.
    """
    each, rest = found.traffic, plan.rounds - len(found.sent)
    before = found.sent or [found.once]
    last, later = found.change
    # What the messages say and the round did not send is asked for in some rounds, nobody knows in which.
    told = [name for name in {**last, **later} if not last.get(name) or name in each.by_payload]
    more = {name: later.get(name, 0.0) - last.get(name, 0.0) for name in told}
    back = {
        name: (each.by_payload[name] - last[name]) * more[name] / last[name]
        for name in told
        if last.get(name)
    }
    both = Counter({name: round(rest * size) for name, size in each.by_payload.items()})
    for change in (more, back):
        both.update({name: round(rest * size) for name, size in change.items()})
    for sent in before:
        both.update(sent.by_payload)
    down = round(rest * (each.down + sum(more.values()))) + sum(sent.down for sent in before)
    up = round(rest * (each.up + sum(back.values()))) + sum(sent.up for sent in before)
    return PlannedBytes(
        round=RoundTraffic(down=each.down, up=each.up, by_payload=dict(each.by_payload)),
        total=RoundTraffic(
            down=down, up=up, by_payload=dict(both), personal=found.examinations * found.examination_bytes
        ),
    )


def _notes(placement: Placement, found: Measured) -> list[str]:
    notes, (width, asked) = [], found.stack
    if width < asked:
        notes.append(f"{asked} clients at once need more memory than an actor has: {width} train at once")
    if found.load > found.cores:
        notes.append(
            f"this machine was busy before it was measured (load {found.load:.1f} on {found.cores} CPUs): "
            "where it is idle, rounds are shorter"
        )
    if found.workers < placement.workers:
        notes.append(
            f"others hold a part of the cluster: measured on {found.workers} of {placement.workers} workers"
        )
    if found.at_most:
        notes.append(
            "how much is sent depends on how the run goes: rounds that were not measured, and what goes down "
            "for the clients' own models, are counted with the most that it can be"
        )
    if not found.traffic.down or not found.traffic.up:
        way = "up" if found.traffic.down else "down" if found.traffic.up else "up or down"
        notes.append(
            f"nothing went {way} in the round that later ones are counted by: where something does, as after "
            "a first state that has nothing to say, the run sends more than is counted"
        )
    if not found.whole_rounds:
        notes.append("a round is longer than the measuring: its seconds are put together from parts of it")
    return notes
