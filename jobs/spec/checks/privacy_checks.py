"""Checks of `privacy` and `secure_aggregation`: what they exclude, and the budget of the run."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor

from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameters import find_parameter_faults, list_defaults
from fedsim.base.shares import ceil_share
from fedsim.clock.policies import OverSelection
from fedsim.core.capabilities import CohortSelection, SentUpdates
from fedsim.data import PARTITIONS
from fedsim.errors import FieldError
from fedsim.samplers import SAMPLERS
from fedsim.uploads import ATTACKS
from fedsim.uploads.accounting import (
    ClientMechanism,
    compute_epsilon,
    count_affordable_rounds,
    find_noise_multiplier,
)
from fedsim.uploads.model_updates import explain_other_uploads
from fedsim.uploads.private_examples import explain_other_training
from fedsim.uploads.private_updates import AdaptiveClip, explain_count_noise
from fedsim.uploads.server_view import explain_answers, explain_single_reads
from jobs.spec.dataset_facts import DatasetFacts
from jobs.spec.job_spec import JobSpec


def find_privacy_faults(spec: JobSpec) -> list[FieldError]:
    """Find what privacy excludes, and a budget that the rounds exceed.

    Args:
        spec: of the right shape.
    """
    chosen = spec.privacy
    if chosen is None:
        return []
    if chosen.kind == "examples":
        return [*_find_example_conflicts(spec), *_find_common_conflicts(spec)] or _find_example_budget_faults(
            spec
        )
    faults = [*_find_conflicts(spec), *_find_common_conflicts(spec)]
    if chosen.delta >= 1 / spec.clients.total:
        message = (
            "is not below 1 / clients.total: a mechanism that publishes one client would have this delta"
        )
        faults.append(
            FieldError("privacy.delta", chosen.delta, message, f"such as {0.1 / spec.clients.total:.0e}")
        )
    return faults or _find_budget_faults(spec)


def _find_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    name, algorithm = spec.algorithm.name, ALGORITHMS.get(spec.algorithm.name)
    if algorithm is not None and (reason := explain_other_uploads(algorithm) or explain_answers(algorithm)):
        hint = "choose an algorithm whose clients send models alone, such as fedavg"
        yield FieldError(
            "privacy", spec.privacy and spec.privacy.kind, f"does not cover {name}: {reason}", hint
        )
    elif algorithm is not None and issubclass(algorithm, CohortSelection):
        yield from _find_cohort_conflicts(spec)
    if spec.aggregation is not None:
        message = "has no known sensitivity, and the noise of privacy is made for a mean"
        yield FieldError("aggregation", spec.aggregation.name, message, "leave one of them out")
    if spec.attack is not None and spec.attack.name in ATTACKS and ATTACKS[spec.attack.name].colludes:
        message = "needs the single updates of a cohort, which privacy keeps from the server"
        yield FieldError("attack", spec.attack.name, message, "use another attack, such as sign_flip")
    if spec.clients.sampler.name != "uniform":
        message = "selects clients in a way for which the budget does not hold"
        yield FieldError("clients.sampler", spec.clients.sampler.name, message, "leave it out")
    if spec.privacy is not None and spec.privacy.kind == "tree" and _changes_layout(spec):
        message = "sends other parts of the model as the rounds go on, and the noise of a tree's node is one "
        message += "vector for all its rounds"
        path = "algorithm" if spec.curriculum.layers is None else "curriculum.layers"
        yield FieldError(path, name, message, "use privacy.kind: central")
    if spec.privacy is not None and spec.privacy.shuffled:
        yield from _find_shuffler_conflicts(spec)
    elif spec.privacy is not None and spec.privacy.kind == "local":
        yield from _find_timing_conflicts(spec)
    else:
        yield from _find_device_conflicts(spec)
    if len(spec.models) > 1:
        names = [model.name for model in spec.models]
        yield FieldError("model", names, "several models do not go together with privacy", "name one model")


def _find_cohort_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    """Find a budget that holds for the cohorts of privacy alone.

    Args:
        spec: with an algorithm that chooses its clients itself.
    """
    if spec.privacy is not None and (spec.privacy.kind != "local" or spec.privacy.shuffled):
        message = f"{spec.algorithm.name} chooses its clients itself, and the budget does not hold for them"
        hint = "use kind: local without shuffled, or an algorithm without select_cohort, such as fedavg"
        yield FieldError("privacy", spec.privacy.kind, message, hint)


def _changes_layout(spec: JobSpec) -> bool:
    """Whether clients send other parts of the model as the rounds go on."""
    return spec.algorithm.name in ("layer_schedule", "cd2_pfed") or spec.curriculum.layers is not None


def _find_timing_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    """Find a policy by which the server learns how many examples a client has."""
    policy = None if spec.devices is None else spec.devices.policy.name
    if policy in ("deadline", "over_selection") and spec.local.steps is None:
        message = "leaves out slow clients, and with local.epochs times tell numbers of examples"
        hint = "set local.steps, which is the same for all, or use wait"
        yield FieldError("devices.policy", policy, message, hint)


def _find_device_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    """Find devices that let one client decide whether another one counts, or that choose the clients."""
    if spec.devices is None:
        return
    message = "chooses the clients, or lets one client's time decide whether another counts, and the budget "
    message += "holds for clients that take part by chance or in turn alone"
    if spec.devices.policy.name != "wait":
        hint = "use wait, or privacy.kind: local"
        yield FieldError("devices.policy", spec.devices.policy.name, message, hint)
    if spec.devices.dropout:
        message = "keeps one client if all vanish, so that one client decides whether another counts"
        yield FieldError("devices.dropout", spec.devices.dropout, message, "leave it out")


def _find_shuffler_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    """Find what makes cohorts smaller than the budget assumes, and what needs the names of clients."""
    if spec.faults.client_error == "skip":
        message = "makes cohorts smaller, and the budget of a shuffler is that of whole cohorts"
        yield FieldError("faults.client_error", "skip", message, "use fail or retry")
    if spec.devices is not None:
        message = "may leave clients out, and the budget of a shuffler is that of whole cohorts"
        yield FieldError("devices", None, message, "leave it out")
    if spec.secure_aggregation is not None:
        message = "needs the names of clients, which the shuffler of privacy.shuffled hides"
        yield FieldError("secure_aggregation", None, message, "leave one of them out")
    if spec.compression is not None:
        message = "lets the server tell clients apart by what they choose or left out before, and the "
        message += "shuffler of privacy.shuffled hides who they are"
        yield FieldError("compression", spec.compression.name, message, "leave one of them out")
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    if algorithm is not None and issubclass(algorithm, SentUpdates):
        message = f"does not cover {spec.algorithm.name}, whose clients keep the noise of what they sent"
        hint = "leave it out, or choose an algorithm whose clients keep nothing of it, such as fedavg"
        yield FieldError("privacy.shuffled", True, message, hint)


def _find_common_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    """Find what says something about clients' examples without noise, whatever the kind of privacy."""
    if spec.curriculum.clients is not None:
        message = "asks clients for their losses without noise"
        yield FieldError("curriculum.clients", None, message, "leave it out")
    if spec.curriculum.data is not None and spec.curriculum.data.needs_expert:
        message = "trains on the examples of all clients without noise, and so one client's data change the "
        message += "updates of all others"
        hint = "use another score, such as global_loss, or an order at random"
        yield FieldError("curriculum.data.score", spec.curriculum.data.score, message, hint)
    if spec.curriculum.phases is not None:
        message = "asks clients for the losses of their examples without noise"
        yield FieldError("curriculum.phases", None, message, "leave it out")
    if spec.algorithm.name == "layer_schedule" and spec.algorithm.params.get("times") == "plateau":
        message = "follows the clients' training losses, which have no noise"
        yield FieldError("algorithm.times", "plateau", message, "set it to even")
    if spec.local.schedule.name == "plateau":
        message = "follows the clients' training losses, which have no noise"
        yield FieldError("local.schedule", "plateau", message, "use another schedule, such as cosine")
    metric = spec.stop.metric or ""
    if metric == "train_loss" or metric.startswith("personal_") or "_members" in metric:
        message = "comes from the clients' examples without noise"
        yield FieldError("stop.metric", spec.stop.metric, message, "use a metric on the test set")
    elif metric and "_validation_" not in metric and spec.data.tests.kind == "merged":
        message = "is measured on examples cut off the clients' own (data.tests: merged), without noise"
        hint = "stop by another data.tests, or by a global_validation_ metric"
        yield FieldError("stop.metric", spec.stop.metric, message, hint)


def _find_example_conflicts(spec: JobSpec) -> Iterator[FieldError]:
    """Find what privacy for examples excludes."""
    name, algorithm = spec.algorithm.name, ALGORITHMS.get(spec.algorithm.name)
    if algorithm is not None and (reason := explain_other_training(algorithm)):
        hint = "choose an algorithm whose clients train by plain local steps, such as fedavg or scaffold"
        yield FieldError("privacy", "examples", f"does not cover {name}: {reason}", hint)
    if spec.local.clip_norm is not None:
        message = "limits the gradient of a batch, and privacy.clip limits that of each example"
        yield FieldError("local.clip_norm", spec.local.clip_norm, message, "leave it out")
    if spec.curriculum.data is not None:
        message = "orders examples by their losses, and the budget holds for random batches"
        yield FieldError("curriculum.data", None, message, "leave it out")
    if spec.fairness is not None:
        message = "weighs clients by their losses, which have no noise"
        yield FieldError("fairness.tilt", spec.fairness.tilt, message, "leave it out")
    sampler = SAMPLERS.get(spec.clients.sampler.name)
    if sampler is not None and (sampler.score is not None or sampler.surveys):
        message = "asks clients for their losses, which have no noise"
        yield FieldError("clients.sampler", spec.clients.sampler.name, message, "use another sampler")
    if spec.aggregation is not None and spec.aggregation.name == "fltrust":
        message = "lets the server train as a client, whose steps are private"
        yield FieldError("aggregation", "fltrust", message, "use another rule, such as geometric_median")
    if spec.devices is not None and spec.devices.policy.name != "wait":
        message = "leaves out clients that are late, and these have spent their budget too"
        yield FieldError("devices.policy", spec.devices.policy.name, message, "use wait")
    if spec.resources.graphs:
        message = "would repeat the noise of a recorded step"
        yield FieldError("resources.graphs", True, message, "leave it out")


def find_secure_aggregation_faults(spec: JobSpec) -> list[FieldError]:
    """Find what needs more than the sum of a cohort's uploads.

    Args:
        spec: of the right shape.
    """
    return [] if spec.secure_aggregation is None else list(_find_single_reads(spec))


def _find_single_reads(spec: JobSpec) -> Iterator[FieldError]:
    name, path, algorithm = spec.algorithm.name, "secure_aggregation", ALGORITHMS.get(spec.algorithm.name)
    if algorithm is not None and (reason := explain_single_reads(algorithm)):
        hint = "choose an algorithm whose server needs sums alone, such as fedavg or scaffold"
        yield FieldError(path, None, f"hides from the server what {name} needs: {reason}", hint)
    if spec.aggregation is not None:
        message = "reads the single updates of a cohort, which secure aggregation hides from the server"
        yield FieldError("aggregation", spec.aggregation.name, message, "leave one of them out")
    if spec.compression is not None:
        message = "sends fewer numbers, and masks hide only whole vectors of numbers"
        yield FieldError("compression", spec.compression.name, message, "leave one of them out")
    sampler = SAMPLERS.get(spec.clients.sampler.name)
    if spec.curriculum.clients is not None or (sampler and (sampler.score is not None or sampler.surveys)):
        field = "clients.sampler" if spec.curriculum.clients is None else "curriculum.clients"
        message = "asks single clients for their losses, which secure aggregation hides from the server"
        yield FieldError(field, None, message, "leave it out")
    if spec.curriculum.phases is not None:
        message = "asks single clients for their difficulties, which secure aggregation hides from the server"
        yield FieldError("curriculum.phases", None, message, "leave it out")
    yield from _find_threshold_faults(spec)
    k = None if spec.secure_aggregation is None else spec.secure_aggregation.neighbours
    if k is not None and k >= spec.clients.cohort_size:
        message = f"is more than the other clients of a cohort, which are {spec.clients.cohort_size - 1}"
        yield FieldError(f"{path}.neighbours", k, message, "leave it out for all others")


def _find_threshold_faults(spec: JobSpec) -> Iterator[FieldError]:
    """Find a policy that asks so many clients that those who count are always too few to unmask a sum."""
    policy = None if spec.devices is None else spec.devices.policy
    if policy is None or policy.name != "over_selection" or spec.secure_aggregation is None:
        return
    if find_parameter_faults(OverSelection, policy.params):
        return  # `find_device_faults` names them
    clients, threshold = spec.clients, spec.secure_aggregation.threshold
    asked = OverSelection(**policy.params).count_asked(clients.cohort_size, clients.total)
    if clients.cohort_size < ceil_share(threshold, asked):
        message = f"has {clients.cohort_size} of {asked} clients count, less than the share "
        message += f"{threshold:g} that secure_aggregation.threshold needs"
        factor = policy.params.get("factor", OverSelection().factor)
        most = floor(100 * floor(clients.cohort_size / threshold) / clients.cohort_size) / 100
        yield FieldError("devices.policy.factor", factor, message, f"allowed: up to {most:g}")


def find_delta_faults(spec: JobSpec, facts: DatasetFacts) -> list[FieldError]:
    """Find a delta of privacy for examples that is too large for the clients of a data set."""
    chosen = spec.privacy
    if chosen is None or chosen.kind != "examples" or not facts.examples:
        return []
    mean = facts.examples / spec.clients.total
    if spec.data.partition.kind == "sampled":
        taken = list_defaults(PARTITIONS["sampled"].make) | dict(spec.data.partition.params)
        mean = float(taken["size"])
    if chosen.delta < 1 / max(1.0, mean):
        return []
    message = f"is not below 1 / {mean:g}, and {mean:g} is the mean number of examples of a client: "
    message += "a mechanism that publishes one example would have this delta"
    return [FieldError("privacy.delta", chosen.delta, message, f"such as {0.1 / max(1.0, mean):.0e}")]


def _find_example_budget_faults(spec: JobSpec) -> list[FieldError]:
    """Find a missing package, and a budget that no noise keeps for a client with a single batch."""
    chosen, local = spec.privacy, spec.local
    assert chosen is not None
    steps = spec.rounds * (local.steps or local.epochs or 1)
    try:
        if chosen.epsilon is None:
            compute_epsilon(chosen.accountant, 1.0, 1.0, 1, chosen.delta)
        else:
            find_noise_multiplier(chosen.accountant, chosen.epsilon, 1.0, steps, chosen.delta)
    except ValueError as error:
        hint = "" if "install" in str(error) else "raise epsilon, or lower rounds or local.epochs"
        return [FieldError("privacy", chosen.kind, str(error), hint)]
    return []


def _find_budget_faults(spec: JobSpec) -> list[FieldError]:
    """Find a missing package, noise that keeps no privacy, and a budget that the rounds exceed."""
    chosen, clients = spec.privacy, spec.clients
    assert chosen is not None
    assert chosen.kind != "examples"
    try:
        multiplier = find_spec_noise(spec)
        if chosen.adaptive_clip is not None:
            adaptive = AdaptiveClip(**chosen.adaptive_clip.model_dump())
            if reason := explain_count_noise(adaptive, multiplier, clients.cohort_size):
                hint = "set count_noise, or use more clients or less noise"
                return [FieldError("privacy.adaptive_clip.count_noise", adaptive.count_noise, reason, hint)]
        if multiplier:
            # The accountant may be missing, or unable to compute the figure of every round.
            for rounds in (1, spec.rounds):
                _describe_clients(spec).compute_epsilon(chosen.accountant, multiplier, rounds, chosen.delta)
        if find_affordable_rounds(spec) != 0:
            return []
        message = f"one round with noise_multiplier {multiplier:g} spends {_compute_spent(spec, 1):.4g}"
        hint = "leave noise_multiplier out, and fedsim finds the noise that keeps the budget"
        return [FieldError("privacy.epsilon", chosen.epsilon, message, hint)]
    except ValueError as error:
        if "delta" in str(error):
            hint = "raise delta, or use accountant: rdp"
            return [FieldError("privacy.delta", chosen.delta, str(error), hint)]
        hint = "raise epsilon, or lower rounds or clients.fraction"
        return [FieldError("privacy", chosen.kind, str(error), "" if "install" in str(error) else hint)]


def find_affordable_rounds(spec: JobSpec) -> int | None:
    """Return the round after which the noise of a spec has spent its epsilon; None if all rounds keep it.

    Raises:
        ValueError: if Opacus is not installed.
    """
    chosen = spec.privacy
    if chosen is None or chosen.kind == "examples" or None in (chosen.noise_multiplier, chosen.epsilon):
        return None
    assert chosen.epsilon is not None
    if _compute_spent(spec, spec.rounds) <= chosen.epsilon:
        return None
    return count_affordable_rounds(lambda rounds: _compute_spent(spec, rounds), spec.rounds, chosen.epsilon)


def _compute_spent(spec: JobSpec, rounds: int) -> float:
    """Return the epsilon of so many rounds with the noise multiplier of a spec."""
    chosen = spec.privacy
    assert chosen is not None
    assert chosen.noise_multiplier is not None
    mechanism = _describe_clients(spec)
    return mechanism.compute_epsilon(chosen.accountant, chosen.noise_multiplier, rounds, chosen.delta)


def find_spec_noise(spec: JobSpec) -> float:
    """Return the noise multiplier of a spec with privacy for clients: its own, or that of its epsilon.

    Raises:
        ValueError: if Opacus is not installed, or no noise keeps the budget.
    """
    chosen = spec.privacy
    assert chosen is not None
    if chosen.noise_multiplier is not None:
        return chosen.noise_multiplier
    assert chosen.epsilon is not None
    mechanism = _describe_clients(spec)
    return mechanism.find_noise_multiplier(chosen.accountant, chosen.epsilon, spec.rounds, chosen.delta)


def _describe_clients(spec: JobSpec) -> ClientMechanism:
    chosen, clients = spec.privacy, spec.clients
    assert chosen is not None
    assert chosen.kind != "examples"
    return ClientMechanism(
        kind=chosen.kind,
        cohort_size=clients.cohort_size,
        num_clients=clients.total,
        tree_rounds=chosen.tree_rounds,
        shuffled=chosen.shuffled,
    )
