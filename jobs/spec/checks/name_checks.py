"""Checks that need the catalogue but no data: names, parameters, and sections that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsim.algorithms import ALGORITHMS, IFCA, ClusteredFedAvg, FedDF
from fedsim.algorithms.distillation.one_shot import OneShot
from fedsim.base.parameters import describe_mismatch, find_parameter_faults, list_defaults
from fedsim.clock.asynchronous import Asynchronous
from fedsim.clock.policies import POLICIES
from fedsim.core import Algorithm
from fedsim.core.capabilities import BatchPacing, ClientSurvey, CohortSelection
from fedsim.data import DATASETS, PARTITIONS, find_dataset_faults, find_partition_faults
from fedsim.data.text import TRAINED_TOKENIZER
from fedsim.errors import FieldError
from fedsim.models import MODELS
from fedsim.plugins import Registry
from fedsim.samplers import SAMPLERS
from fedsim.samplers.samplers import PowerOfChoice
from fedsim.uploads import ATTACKS
from fedsim.uploads.attacks import FreeRider, Gaussian
from jobs.spec.checks.device_checks import find_device_faults
from jobs.spec.checks.local_checks import find_local_faults, find_setting_faults, prefix_paths
from jobs.spec.checks.privacy_checks import find_privacy_faults, find_secure_aggregation_faults
from jobs.spec.checks.stop_checks import find_stop_faults
from jobs.spec.checks.upload_checks import find_upload_faults
from jobs.spec.fields import Choice
from jobs.spec.job_spec import JobSpec

BLOCKS_KIND = list[str] | dict[str, Any]
LORA_HINT = "such as {r: 8, target_modules: [query, value]}"
BLOCKS_HINT = "such as [layer1, layer2, fc], or {body: 'layer*', head: fc}"


def find_name_faults(spec: JobSpec) -> list[FieldError]:
    """Find every fault that the spec and the catalogue show without the data.

    Args:
        spec: of the right shape.
    """
    dataset, partition = spec.data.dataset, spec.data.partition
    return [
        *_find_job_name_faults(spec),
        *_find_choice_faults("algorithm", spec.algorithm, ALGORITHMS),
        *_find_sampler_faults(spec),
        *find_curriculum_faults(spec),
        *find_upload_faults(spec),
        *find_privacy_faults(spec),
        *find_secure_aggregation_faults(spec),
        *find_stop_faults(spec),
        *find_device_faults(spec),
        *_find_public_set_faults(spec),
        *_find_client_test_faults(spec),
        *_find_average_faults(spec),
        *_find_membership_faults(spec),
        *_find_evaluation_faults(spec),
        *_find_personal_faults(spec),
        *_find_model_faults(spec),
        *_find_tokenizer_faults(spec),
        *find_local_faults(spec),
        *prefix_paths("data.dataset", find_dataset_faults(dataset.name, dataset.params)),
        *prefix_paths("data.partition", find_partition_faults(partition.kind, partition.params)),
    ]


def _find_job_name_faults(spec: JobSpec) -> list[FieldError]:
    """Find a name that lists, logs and tables would not show as it is."""
    if spec.name.isprintable():
        return []
    message = "has a line break or a character that is not shown"
    return [FieldError("name", ascii(spec.name)[1:-1], message, "use one line of printable characters")]


def _find_choice_faults(path: str, choice: Choice, registry: Registry[Any]) -> list[FieldError]:
    if choice.name not in registry:
        return [registry.fault(f"{path}.name", choice.name)]
    return prefix_paths(path, find_parameter_faults(registry[choice.name], choice.params))


def _find_sampler_faults(spec: JobSpec) -> list[FieldError]:
    """Find a wrong sampler, and what excludes it: an algorithm or a curriculum that leaves it no choice."""
    path, name, clients = "clients.sampler", spec.clients.sampler.name, spec.clients
    faults = find_setting_faults(path, clients.sampler, SAMPLERS)
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    if faults or algorithm is None or name == "uniform":
        return faults
    sampler = SAMPLERS[name](**clients.sampler.params)
    if issubclass(algorithm, CohortSelection | ClientSurvey):
        message = f"{spec.algorithm.name} chooses its clients itself"
        faults.append(FieldError(path, name, message, "leave it out, or choose another algorithm"))
    if sampler.surveys and not algorithm.deploys_models:
        message = f"{spec.algorithm.name} has no global model, and candidates report their loss under one"
        faults.append(FieldError(path, name, message, "use another sampler, such as oort"))
    if sampler.needs_clock and spec.devices is None:
        message = "follows the simulated time, and the run has no clock"
        faults.append(FieldError(path, name, message, "set devices, such as devices: phones"))
    if spec.curriculum.phases is not None:
        message = "has no choice, because curriculum.phases chooses the clients"
        faults.append(FieldError(path, name, message, "leave one of them out"))
    curriculum = spec.curriculum.clients
    if curriculum is not None and curriculum.batches != "one":
        message = "has no choice, because curriculum.clients.batches: "
        message += f"{curriculum.batches} takes every open client"
        faults.append(FieldError(path, name, message, "use batches: one"))
    if isinstance(sampler, PowerOfChoice) and not clients.cohort_size <= sampler.candidates <= clients.total:
        hint = f"from {clients.cohort_size:,}, the size of a cohort, to {clients.total:,}, all clients"
        faults.append(FieldError(f"{path}.candidates", sampler.candidates, "is out of range", hint))
    return faults


def find_curriculum_faults(spec: JobSpec) -> list[FieldError]:
    """Find curricula that the algorithm excludes: it paces batches or selects cohorts itself."""
    algorithm, curriculum = ALGORITHMS.get(spec.algorithm.name), spec.curriculum
    if algorithm is None:
        return []
    faults, clients = list[FieldError](), curriculum.clients
    if curriculum.data is not None and issubclass(algorithm, BatchPacing):
        faults.append(_make_conflict_error(spec, "data", "chooses the examples of its steps itself"))
    if curriculum.phases is not None and issubclass(algorithm, CohortSelection | ClientSurvey):
        faults.append(_make_conflict_error(spec, "phases", "chooses its clients itself"))
    if curriculum.layers is not None:
        faults += _find_layer_conflicts(spec, algorithm)
    if clients is not None and issubclass(algorithm, CohortSelection | ClientSurvey):
        faults.append(_make_conflict_error(spec, "clients", "chooses its clients itself"))
    elif clients is not None and not algorithm.deploys_models and clients.surveys_all_clients:
        message = f"{spec.algorithm.name} has no global model, and a survey of all clients needs one"
        faults.append(FieldError("curriculum.clients.scores", "all", message, "set it to 'kept' or 'expert'"))
    return faults


def _find_layer_conflicts(spec: JobSpec, algorithm: type[Algorithm]) -> Iterator[FieldError]:
    """Find what changes closed blocks, or counts their bytes.

    Args:
        spec: with a layer curriculum.
        algorithm: of the spec.
    """
    if issubclass(algorithm, FedDF | OneShot):
        yield _make_conflict_error(spec, "layers", "trains the model on the server, closed blocks included")
    if issubclass(algorithm, IFCA | ClusteredFedAvg):
        yield _make_conflict_error(spec, "layers", "counts the bytes of whole models")
    adds_noise = "adds noise to all blocks, and those that curriculum.layers keeps closed would change"
    if spec.privacy is not None and spec.privacy.kind != "examples":
        yield FieldError("privacy.kind", spec.privacy.kind, adds_noise, "leave one of them out")
    if spec.attack is not None and ATTACKS.get(spec.attack.name) in (Gaussian, FreeRider):
        yield FieldError("attack", spec.attack.name, adds_noise, "leave one of them out")
    counts_all = "counts the bytes of all blocks, also of those that curriculum.layers keeps closed"
    if spec.compression is not None:
        yield FieldError("compression", spec.compression.name, counts_all, "leave one of them out")
    if spec.secure_aggregation is not None:
        yield FieldError("secure_aggregation", None, counts_all, "leave one of them out")


def _make_conflict_error(spec: JobSpec, field: str, reason: str) -> FieldError:
    hint = f"leave '{field}' out, or choose another algorithm"
    return FieldError(f"curriculum.{field}", None, f"{spec.algorithm.name} {reason}", hint)


def _find_public_set_faults(spec: JobSpec) -> list[FieldError]:
    if not needs_public_set(spec) or spec.data.public.fraction:
        return []
    return [make_public_set_error(spec, "there is none")]


def needs_public_set(spec: JobSpec) -> bool:
    """Whether the spec's algorithm, if the catalogue knows it, exchanges predictions on a public set."""
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    return algorithm is not None and algorithm.needs_public_set


def make_public_set_error(spec: JobSpec, found: str) -> FieldError:
    """Make the error for a public set that is missing or empty; `found` ends the message."""
    message = f"{spec.algorithm.name} exchanges predictions on a public set, and {found}"
    hint = "the papers take 0.1 of the data"
    return FieldError("data.public.fraction", spec.data.public.fraction, message, hint)


def _find_client_test_faults(spec: JobSpec) -> list[FieldError]:
    """Find a convention for the clients' tests that the partition, the expert or a missing split excludes."""
    partition, paths = spec.data.partition.kind, spec.data.tests.paths
    own = [kind for kind in paths if kind not in ("global", "validation")]
    if "validation" in paths and not spec.evaluation.validation:
        message = "needs a validation split, and there is none"
        hint = "set evaluation.validation, such as 0.1"
        return [FieldError(paths["validation"], "validation", message, hint)]
    if not own:
        return []
    entry, needs_expert = PARTITIONS.get(partition), spec.curriculum.expert_epochs is not None
    if entry is not None and entry.shares_examples:
        message = f"clients of a {partition} partition draw from the whole set"
        return [FieldError(paths[kind], kind, message, "use kind: global") for kind in own]
    if "merged" in own and (partition == "difficulty" or needs_expert):
        message = "an expert knows the training set only, and here clients hold test examples too"
        hint = "use kind: matched, or do without the expert"
        return [FieldError("data.tests.kind", "merged", message, hint)]
    return []


def _find_average_faults(spec: JobSpec) -> list[FieldError]:
    """Find an average without a global model beside it, or of models that the server does not see."""
    path, algorithm = "evaluation.average", ALGORITHMS.get(spec.algorithm.name)
    if (average := spec.evaluation.average) is None or algorithm is None:
        return []
    if not algorithm.deploys_models:
        message = f"{spec.algorithm.name} has no global model, beside which an average is scored"
        value = average.model_dump(exclude_none=True)
        return [FieldError(path, value, message, "leave it out, or choose another algorithm")]
    if average.clients is None or not (reason := _explain_hidden_models(spec)):
        return []
    hint = "average global models, such as {ema: 0.9}"
    return [FieldError(f"{path}.clients", average.clients, reason, hint)]


def _explain_hidden_models(spec: JobSpec) -> str:
    """Return why the server has no last model of each client; "" if it has."""
    if spec.privacy is not None and spec.privacy.kind != "examples":
        return "averages models of clients, to which privacy has added no noise"
    if spec.secure_aggregation is not None:
        return "averages models of clients, which secure aggregation hides from the server"
    policy = POLICIES.get(spec.devices.policy.name) if spec.devices is not None else None
    if policy is not None and issubclass(policy, Asynchronous):
        return "needs rounds in which the server waits, and devices.policy has none"
    if spec.algorithm.name == "fedensemble" and spec.algorithm.params.get("mode") == "permutation":
        return "averages one model of each client, and with permutation clients train several"
    return ""


def _find_membership_faults(spec: JobSpec) -> list[FieldError]:
    """Find membership inference for an algorithm without a global model, or for shared examples."""
    algorithm, path = ALGORITHMS.get(spec.algorithm.name), "evaluation.membership"
    if not spec.evaluation.membership:
        return []
    faults, entry = list[FieldError](), PARTITIONS.get(spec.data.partition.kind)
    if algorithm is not None and not algorithm.deploys_models:
        message = f"{spec.algorithm.name} has no global model, from which members could be inferred"
        faults.append(FieldError(path, True, message, "leave it out, or choose another algorithm"))
    if entry is not None and entry.shares_examples:
        message = f"clients of a {spec.data.partition.kind} partition draw from all training examples"
        faults.append(FieldError(path, True, message, "leave it out, or use another partition"))
    if not spec.evaluation.test:
        message = "compares with test examples, and evaluation.test leaves them out"
        faults.append(FieldError(path, True, message, "leave one of them out"))
    return faults


def _find_personal_faults(spec: JobSpec) -> list[FieldError]:
    """Find a number of scored clients that the federation does not have, or that nothing uses."""
    asked, path = spec.evaluation.personal_clients, "evaluation.personal_clients"
    if asked is not None and asked > spec.clients.total:
        message = f"the federation has {spec.clients.total:,} clients"
        return [FieldError(path, asked, message, "give at most as many, or leave it out for all clients")]
    if asked is not None and spec.evaluation.personal == "never":
        message = "has no meaning: evaluation.personal: never scores no personal model"
        return [FieldError(path, asked, message, "leave one of them out")]
    return []


def _find_evaluation_faults(spec: JobSpec) -> list[FieldError]:
    """Find a run without test examples that has nothing else to score its models on."""
    evaluation, algorithm = spec.evaluation, ALGORITHMS.get(spec.algorithm.name)
    if evaluation.test:
        return []
    has_personal = "validation" in spec.data.tests.kinds and evaluation.personal != "never"
    faults, path = list[FieldError](), "evaluation.test"
    if not evaluation.validation:
        hint = "set evaluation.validation, such as 0.1"
        faults.append(FieldError(path, False, "leaves no examples to score the models on", hint))
    if algorithm is not None and not algorithm.deploys_models and not has_personal:
        message = f"leaves out the only scores: {spec.algorithm.name} has no global model"
        hint = "leave it out, or add validation to data.tests, which scores the personal models"
        faults.append(FieldError(path, False, message, hint))
    if evaluation.personal in ("last", "always") and not has_personal:
        message = "needs test examples, and evaluation.test leaves them out"
        hint = "set it to never, or add validation to data.tests"
        faults.append(FieldError("evaluation.personal", evaluation.personal, message, hint))
    return faults


def _find_model_faults(spec: JobSpec) -> list[FieldError]:
    """Find wrong models and parameters, and several models for an algorithm that takes one."""
    faults = []
    for number, model in enumerate(spec.models):
        path, own = spec.model_path(number), dict(model.params)
        blocks, lora = own.pop("blocks", None), own.pop("lora", None)
        faults += _find_choice_faults(path, Choice(name=model.name, **own), MODELS)
        if blocks is not None and (wanted := describe_mismatch(blocks, BLOCKS_KIND)):
            faults.append(FieldError(f"{path}.blocks", blocks, f"has to be {wanted}", BLOCKS_HINT))
        if lora is not None and not isinstance(lora, dict):
            faults.append(FieldError(f"{path}.lora", lora, "has to be a mapping", LORA_HINT))
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    if len(spec.models) > 1 and algorithm is not None and not algorithm.heterogeneous:
        names = [model.name for model in spec.models]
        hint = "name one model, or an algorithm whose clients may have different models"
        faults.append(
            FieldError("model", names, f"{spec.algorithm.name} needs one model for all clients", hint)
        )
    return faults


def _find_tokenizer_faults(spec: JobSpec) -> list[FieldError]:
    """Find published weights beside a tokenizer that is trained here: their token numbers differ."""
    weights = next((m.params["pretrained"] for m in spec.models if m.params.get("pretrained")), None)
    chosen, entry = spec.data.dataset, DATASETS.get(spec.data.dataset.name)
    taken = list_defaults(entry.load) if entry is not None else {}
    tokenizer = {**taken, **chosen.params}["tokenizer"] if "tokenizer" in taken else None
    if weights is None or tokenizer != TRAINED_TOKENIZER:
        return []
    message = f"is trained here and numbers tokens in its own way, which the weights {weights!r} do not know"
    hint = "name the tokenizer that belongs to the weights"
    return [FieldError("data.dataset.tokenizer", TRAINED_TOKENIZER, message, hint)]
