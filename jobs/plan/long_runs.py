"""A warning for runs that take hours on CPUs, from a count of their FLOPs.

Nothing is measured: `jobs.plan.planner` measures a run, which takes too long for a submission.
"""

from __future__ import annotations

from fedsim.algorithms import ALGORITHMS
from fedsim.core.capabilities import ServerTraining
from fedsim.errors import DataNotFound
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.checks.device_checks import count_updates_per_round
from jobs.spec.dataset_facts import look_up_facts
from jobs.spec.run_size import FLOPS_PER_CORE, count_flops, count_personal_flops, count_scored_clients

WARN_ABOVE_HOURS = 1.0

WARN_ABOVE_HOURS_BESIDE_SERVER = 0.1
"""The same for algorithms that train on the server too, such as a generator: that is not counted, and often
takes longer than the clients."""


def describe_long_run(spec: JobSpec, settings: Settings, cpus: float) -> str | None:
    """Return a warning if local steps and evaluations, also personal ones, take more than an hour on CPUs.

    What else an algorithm computes, such as the training of a generator, does not count.

    Args:
        spec: checked.
        settings: the data roots.
        cpus: CPUs that the run can use.

    Returns:
        The warning; None for a shorter run, for clients on GPUs, and for data that is not here yet.
    """
    facts = look_up_facts(spec, settings)
    if facts is None or spec.resources.gpus_per_worker or cpus < 1:
        return None
    workers = min(cpus, count_updates_per_round(spec))
    try:
        personal = count_personal_flops(spec, facts, settings)
        flops = count_flops(spec, facts, settings) + personal
    except DataNotFound:  # weights that only the run downloads
        return None
    hours = flops / (FLOPS_PER_CORE * workers * 3600)
    algorithm = ALGORITHMS[spec.algorithm.name]
    trains_server = issubclass(algorithm, ServerTraining)
    if hours < (WARN_ABOVE_HOURS_BESIDE_SERVER if trains_server else WARN_ABOVE_HOURS):
        return None
    rest = f", without the training of {spec.algorithm.name} on the server" if trains_server else ""
    time = f"roughly {_format_hours(hours)} on {cpus:g} CPUs, by a count of its FLOPs{rest}"
    less = "fewer rounds or local.epochs, a smaller model, or a preset that ends in -small"
    if personal > flops / 2:
        scored = f"the personal models of {count_scored_clients(spec):,} clients"
        less = f"evaluation.personal_clients: most of it scores {scored}"
    return f"this run takes {time}; fedsim plan measures it. Less work: {less}"


def _format_hours(hours: float) -> str:
    if hours < 2:
        return f"{60 * hours:.0f} minutes"
    return f"{hours:.0f} hours" if hours < 72 else f"{hours / 24:,.0f} days"
