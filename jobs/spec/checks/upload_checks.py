"""Checks of `attack`, `aggregation` and `compression`: names, parameters, and what excludes them."""

from __future__ import annotations

from math import ceil
from typing import Any, cast

from fedsim.algorithms import ALGORITHMS, QFedAvg
from fedsim.data import PARTITIONS
from fedsim.errors import FieldError
from fedsim.uploads import AGGREGATORS, ATTACKS, COMPRESSORS
from fedsim.uploads.aggregators import Mean
from fedsim.uploads.attacks import Backdoor
from fedsim.uploads.model_updates import explain_other_uploads
from fedsim.uploads.robust_aggregation import explain_untrainable_server
from fedsim.uploads.tilted_weights import explain_own_weights
from jobs.spec.checks.local_checks import find_setting_faults
from jobs.spec.dataset_facts import DatasetFacts
from jobs.spec.job_spec import JobSpec


def find_upload_faults(spec: JobSpec) -> list[FieldError]:
    """Find wrong attacks and rules, and an algorithm or a cohort that they do not suit.

    Args:
        spec: of the right shape.
    """
    return [
        *_find_fairness_faults(spec),
        *_find_aggregation_faults(spec),
        *_find_attack_faults(spec),
        *_find_compression_faults(spec),
    ]


def _find_fairness_faults(spec: JobSpec) -> list[FieldError]:
    algorithm, faults = ALGORITHMS.get(spec.algorithm.name), list[FieldError]()
    if algorithm is None:
        return []
    path, value = "algorithm", cast("Any", spec.algorithm.name)
    if spec.fairness is not None:
        path, value = "fairness.tilt", spec.fairness.tilt
        if reason := explain_own_weights(algorithm):
            message = f"does not suit {spec.algorithm.name}: {reason}"
            faults.append(FieldError(path, value, message, "choose another algorithm, such as fedavg"))
    elif not issubclass(algorithm, QFedAvg):
        return []
    if spec.privacy is not None and spec.privacy.kind != "examples":
        message = "needs weights that depend on losses, and privacy gives every client the weight 1"
        faults.append(FieldError(path, value, message, "leave one of them out"))
    if spec.aggregation is not None and not AGGREGATORS.get(spec.aggregation.name, Mean).uses_weights:
        message = f"does not suit aggregation: {spec.aggregation.name}, which counts clients evenly"
        faults.append(FieldError(path, value, message, "use geometric_median or norm_clipping"))
    return faults


def _find_aggregation_faults(spec: JobSpec) -> list[FieldError]:
    chosen = spec.aggregation
    if chosen is None:
        return []
    if faults := find_setting_faults("aggregation", chosen, AGGREGATORS):
        return faults
    faults = _find_algorithm_faults(spec, "aggregation", chosen.name)
    rule = AGGREGATORS[chosen.name](**chosen.params)
    if rule.needs_history and rule.bucket_size > 1:
        message = f"has no meaning with {chosen.name}, which compares single clients"
        faults.append(FieldError("aggregation.bucket_size", rule.bucket_size, message, "leave it out"))
    if rule.needs_server_update:
        faults += _find_server_faults(spec, chosen.name)
    updates = ceil(spec.clients.cohort_size / rule.bucket_size)
    if reason := rule.explain_too_few(updates):
        faults.append(FieldError("aggregation", chosen.name, reason, rule.remedy))
    return faults


def _find_server_faults(spec: JobSpec, name: str) -> list[FieldError]:
    """Find what keeps the server from training on a public set as a client does."""
    algorithm, faults = ALGORITHMS.get(spec.algorithm.name), list[FieldError]()
    if algorithm is not None and (reason := explain_untrainable_server(algorithm)):
        message = f"lets the server train as a client, and {reason}"
        faults.append(FieldError("aggregation", name, message, "use another rule, such as geometric_median"))
    if spec.curriculum.data is not None:
        message = "orders the examples of clients, and the server of fltrust has no such order"
        faults.append(FieldError("curriculum.data", None, message, "leave it out, or use another rule"))
    if spec.local.schedule.name == "plateau":
        message = "changes the learning rate of clients, and not that of the server of fltrust"
        faults.append(
            FieldError("local.schedule", "plateau", message, "use another schedule, such as cosine")
        )
    if not spec.data.public.fraction:
        message, hint = f"{name} trains on a public set, and there is none", "such as 0.01"
        faults.append(FieldError("data.public.fraction", 0.0, message, hint))
    return faults


def _find_attack_faults(spec: JobSpec) -> list[FieldError]:
    chosen = spec.attack
    if chosen is None:
        return []
    if faults := find_setting_faults("attack", chosen, ATTACKS):
        return faults
    attack = ATTACKS[chosen.name](**chosen.params)
    faults = _find_algorithm_faults(spec, "attack", chosen.name) if attack.changes_updates else []
    entry = PARTITIONS.get(spec.data.partition.kind)
    if attack.poisons_examples and entry is not None and entry.shares_examples:
        message = (
            f"clients of a {spec.data.partition.kind} partition share examples, and attackers change theirs"
        )
        faults.append(FieldError("attack", chosen.name, message, "use another partition"))
    return faults


def _find_compression_faults(spec: JobSpec) -> list[FieldError]:
    chosen = spec.compression
    if chosen is None:
        return []
    if faults := find_setting_faults("compression", chosen, COMPRESSORS):
        return faults
    faults = _find_algorithm_faults(spec, "compression", chosen.name)
    if spec.privacy is not None and spec.privacy.kind in ("central", "tree"):
        message = "can make an update longer than the clipping bound, to which the server's noise is made"
        hint = "leave it out, or use privacy.kind: local, whose noise comes before the compression"
        faults.append(FieldError("compression", chosen.name, message, hint))
    return faults


def _find_algorithm_faults(spec: JobSpec, section: str, name: str) -> list[FieldError]:
    """Find an algorithm whose uploads are no model updates."""
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    reason = "" if algorithm is None else explain_other_uploads(algorithm)
    if not reason:
        return []
    message = f"does not go together with {spec.algorithm.name}: {reason}"
    return [
        FieldError(
            section, name, message, "choose an algorithm whose clients send models alone, such as fedavg"
        )
    ]


def find_label_faults(spec: JobSpec, facts: DatasetFacts) -> list[FieldError]:
    """Find an attack on examples, or a rule with a public set, that the data set does not suit."""
    rule = spec.aggregation
    if rule is not None and rule.name == "fltrust" and facts.task != "classes":
        message = f"needs one class per example, and those of {spec.data.dataset.name} have none"
        return [FieldError("aggregation", rule.name, message, "use another rule, such as median")]
    chosen = spec.attack
    if chosen is None or chosen.name not in ATTACKS:
        return []
    attack = ATTACKS[chosen.name](**chosen.params)
    if not attack.poisons_examples:
        return []
    dataset = spec.data.dataset.name
    if facts.task != "classes":
        message = f"changes the class of examples, and those of {dataset} have no single class"
        return [FieldError("attack", chosen.name, message, "use an attack on updates, such as sign_flip")]
    if isinstance(attack, Backdoor) and len(facts.input_shape) != 3:
        message = f"puts a square into images, and {dataset} has none"
        return [FieldError("attack", chosen.name, message, "use an attack on updates, such as sign_flip")]
    if isinstance(attack, Backdoor) and attack.target >= facts.num_classes:
        hint = f"the classes are 0 to {facts.num_classes - 1}"
        return [FieldError("attack.target", attack.target, "is no class of the data set", hint)]
    return []
