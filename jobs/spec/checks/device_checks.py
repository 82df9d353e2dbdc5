"""Checks of the section `devices`: its fleet, its policy, and the algorithms that they do not suit."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.algorithms import ALGORITHMS
from fedsim.clock.asynchronous import Asynchronous, FedBuff, explain_waiting
from fedsim.clock.devices import Devices
from fedsim.clock.fleets import FLEETS
from fedsim.clock.policies import POLICIES, OverSelection, Policy, Tiers
from fedsim.core import Algorithm
from fedsim.core.capabilities import ClientSurvey, CohortSelection
from fedsim.data.places import DataRoots
from fedsim.errors import DataNotFound, FieldError, SpecError
from fedsim.models.net import Net
from jobs.spec.checks.local_checks import find_setting_faults, prefix_paths
from jobs.spec.job_spec import JobSpec

GRADIENT_BYTES = 8
"""Bytes of a parameter and its gradient in single precision: the least that training holds."""


def find_device_faults(spec: JobSpec) -> list[FieldError]:
    """Find every fault of the section that needs no file.

    Args:
        spec: of the right shape.
    """
    if spec.devices is None:
        return []
    chosen = spec.devices
    fleet_faults = find_setting_faults("devices.fleet", chosen.fleet, FLEETS)
    if not fleet_faults:
        try:
            FLEETS[chosen.fleet.name](**chosen.fleet.params)
        except SpecError as error:
            fleet_faults = prefix_paths("devices.fleet", error.errors)
    policy_faults = find_setting_faults("devices.policy", chosen.policy, POLICIES)
    finders = (_find_tier_faults, _find_over_selection_faults, _find_buffer_faults)
    return fleet_faults + (policy_faults or [fault for find in finders for fault in find(spec)])


def _find_tier_faults(spec: JobSpec) -> list[FieldError]:
    """Find what excludes tiers: another choice of the clients, and tiers that are smaller than a cohort."""
    path, clients, policy = "devices.policy", spec.clients, _make_policy(spec)
    if not isinstance(policy, Tiers):
        return []
    faults, algorithm = list[FieldError](), ALGORITHMS.get(spec.algorithm.name)
    if fault := policy.find_fault():
        hint = "such as [0.5, 0.3, 0.2] with count: 3"
        faults.append(FieldError(f"{path}.probabilities", policy.probabilities, fault, hint))
    if algorithm is not None and issubclass(algorithm, CohortSelection | ClientSurvey):
        message = f"{spec.algorithm.name} chooses its clients itself"
        faults.append(FieldError(path, "tiers", message, "use another policy or algorithm"))
    chooses = spec.curriculum.clients is not None or spec.curriculum.phases is not None
    if clients.sampler.name != "uniform" or chooses:
        message = "tiers choose the clients, and so does the sampler or the curriculum"
        faults.append(FieldError(path, "tiers", message, "leave one of them out"))
    if clients.total < policy.count * clients.cohort_size:
        message = f"{policy.count} tiers of {clients.total} clients are smaller than a cohort of "
        message += f"{clients.cohort_size}"
        hint = f"allowed: 1 to {clients.total // clients.cohort_size}"
        faults.append(FieldError(f"{path}.count", policy.count, message, hint))
    return faults


def count_updates_per_round(spec: JobSpec) -> int:
    """Return the number of updates that the server takes in a round: a cohort, or an asynchronous buffer.

    Args:
        spec: without faults in `devices.policy`.
    """
    policy = _make_policy(spec)
    fixed = policy.updates_per_round if isinstance(policy, Asynchronous) else None
    return fixed or spec.clients.cohort_size


def _make_policy(spec: JobSpec) -> Policy | Asynchronous | None:
    chosen = None if spec.devices is None else spec.devices.policy
    return None if chosen is None else POLICIES[chosen.name](**chosen.params)


def _find_over_selection_faults(spec: JobSpec) -> list[FieldError]:
    """Find a client curriculum whose number of clients in a round is not that of the cohort."""
    curriculum = spec.curriculum.clients
    if curriculum is None or not isinstance(_make_policy(spec), OverSelection):
        return []
    if curriculum.batches == "one":
        return []
    way = f"curriculum.clients.batches: {curriculum.batches}"
    message = f"takes the first clients of a cohort, and {way} plans whole ones"
    return [FieldError("devices.policy", "over_selection", message, "use another policy, such as deadline")]


def _find_buffer_faults(spec: JobSpec) -> list[FieldError]:
    """Find a buffer that all clients together cannot fill."""
    policy = _make_policy(spec)
    if not isinstance(policy, FedBuff) or policy.buffer <= spec.clients.total:
        return []
    message = f"{spec.clients.total} clients cannot fill it, because each counts at most once"
    hint = f"allowed: 1 to {spec.clients.total}"
    return [FieldError("devices.policy.buffer", policy.buffer, message, hint)]


def find_asynchronous_faults(spec: JobSpec, algorithm: Algorithm) -> list[FieldError]:
    """Find an asynchronous policy that does not suit the algorithm.

    Args:
        spec: without other faults.
        algorithm: of the spec, with its wrappers.
    """
    chosen = None if spec.devices is None else spec.devices.policy
    if chosen is None or not issubclass(POLICIES[chosen.name], Asynchronous):
        return []
    if not (reason := explain_waiting(algorithm)):
        return []
    message = f"does not suit this run: {reason}"
    hint = "use a policy that waits, such as deadline, or change the setting that the reason names"
    return [FieldError("devices.policy", chosen.name, message, hint)]


def find_memory_faults(spec: JobSpec, devices: Devices | None, nets: Sequence[Net]) -> list[FieldError]:
    """Find devices whose memory cannot hold the weights and the gradients of a model.

    Args:
        spec: of the devices.
        devices: None for none.
        nets: the models; every client may have any of them.
    """
    least = None if devices is None else devices.fleet.find_least_memory()
    need = max((GRADIENT_BYTES * net.count_parameters_of(net.keys) / 1e9 for net in nets), default=0.0)
    if spec.devices is None or least is None or least >= need:
        return []
    message = f"has devices with {least:g} GB, and weights and gradients of the model take {need:.3g} GB"
    hint = "use a smaller model, or devices with more memory_gb"
    return [FieldError("devices.fleet", spec.devices.fleet.name, message, hint)]


def make_devices(spec: JobSpec, places: DataRoots) -> Devices | None:
    """Make the devices of a spec without faults; None without the section.

    Raises:
        SpecError: the file of the fleet is missing or wrong.
    """
    if spec.devices is None:
        return None
    chosen = spec.devices
    try:
        fleet = FLEETS[chosen.fleet.name](**chosen.fleet.params).prepare(places, spec.clients.total)
    except SpecError as error:
        raise error.add_path_prefix("devices.fleet") from None
    except DataNotFound as error:
        path = chosen.fleet.params.get("path")
        raise SpecError([FieldError("devices.fleet.path", path, error.message, error.hint)]) from None
    policy = POLICIES[chosen.policy.name](**chosen.policy.params)
    return Devices(fleet=fleet, policy=policy, dropout=chosen.dropout, server_gflops=chosen.server_gflops)
