"""Checks of the section `local`: its optimizer, its schedule, and the algorithms that they do not suit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedsim.algorithms import ALGORITHMS, FedLC, FedROD
from fedsim.base.parameters import find_parameter_faults, suggest_name
from fedsim.core.optimizers import OPTIMIZERS
from fedsim.core.schedules import SCHEDULES, Schedule
from fedsim.errors import FieldError, SpecError
from jobs.spec.fields import Choice
from jobs.spec.job_spec import JobSpec

BETAS_HINT = "its momentum is the first of its betas; leave this out"
NO_MOMENTUM_HINT = "leave it out, or use optimizer: sgd or rmsprop"


def prefix_paths(prefix: str, faults: Iterable[FieldError]) -> list[FieldError]:
    """Return the faults with `prefix.` before each path: `mu` becomes `algorithm.mu`."""
    return [fault._replace(path=f"{prefix}.{fault.path}") for fault in faults]


def make_schedule(spec: JobSpec) -> Schedule:
    """Make the schedule of the learning rate.

    Raises:
        SpecError: its parameters do not suit each other; each path is a parameter's name.
    """
    chosen = spec.local.schedule
    return SCHEDULES[chosen.name](**chosen.params)


def find_local_faults(spec: JobSpec) -> list[FieldError]:
    """Find every fault of the optimizer and of the schedule.

    Args:
        spec: of the right shape.
    """
    return [*_find_optimizer_faults(spec), *_find_smoothing_faults(spec), *_find_schedule_faults(spec)]


def _find_optimizer_faults(spec: JobSpec) -> list[FieldError]:
    chosen, momentum = spec.local.optimizer, spec.local.momentum
    faults = find_setting_faults("local.optimizer", chosen, OPTIMIZERS)
    if faults:
        return faults
    name = chosen.name
    if momentum and not OPTIMIZERS[name].has_momentum:
        hint = BETAS_HINT if name.startswith("adam") else NO_MOMENTUM_HINT
        faults.append(FieldError("local.momentum", momentum, f"has no meaning with optimizer: {name}", hint))
    if chosen.params.get("nesterov") and not momentum:
        hint = "set local.momentum, such as 0.9"
        faults.append(FieldError("local.optimizer.nesterov", True, "needs a momentum above 0", hint))
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    if name != "sgd" and algorithm is not None and algorithm.assumes_sgd:
        message = f"{spec.algorithm.name} computes with the size of the steps of SGD"
        faults.append(FieldError("local.optimizer", name, message, "use sgd, or another algorithm"))
    if name != "sgd" and spec.resources.graphs:
        message, hint = f"cannot replay the steps of {name}", "leave it out, or use optimizer: sgd"
        faults.append(FieldError("resources.graphs", True, message, hint))
    return faults


def _find_smoothing_faults(spec: JobSpec) -> list[FieldError]:
    """Find label smoothing for a loss that gives the classes which a client does not hold no probability."""
    smoothing, algorithm = spec.local.label_smoothing, ALGORITHMS.get(spec.algorithm.name)
    if not smoothing or algorithm is None or not issubclass(algorithm, FedLC | FedROD):
        return []
    message = f"gives every class a share of each label, and {spec.algorithm.name} gives no probability to "
    message += "classes that a client does not hold: the loss would have no bound"
    return [FieldError("local.label_smoothing", smoothing, message, "leave it out, or use another algorithm")]


def _find_schedule_faults(spec: JobSpec) -> list[FieldError]:
    path = "local.schedule"
    if faults := find_setting_faults(path, spec.local.schedule, SCHEDULES):
        return faults
    try:
        return prefix_paths(path, make_schedule(spec).find_faults(spec.rounds))
    except SpecError as error:
        return prefix_paths(path, error.errors)


def find_setting_faults(
    path: str, choice: Choice, entries: Mapping[str, Callable[..., Any]]
) -> list[FieldError]:
    """Find an unknown name, or wrong parameters.

    Args:
        path: of the field, such as `local.optimizer`.
        choice: the name and the parameters.
        entries: by name.
    """
    if choice.name not in entries:
        message, hint = f"no such {path.rpartition('.')[2]}", suggest_name(choice.name, entries)
        return [FieldError(f"{path}.name", choice.name, message, hint)]
    return prefix_paths(path, find_parameter_faults(entries[choice.name], choice.params))
