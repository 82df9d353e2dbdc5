"""From a spec to an experiment: what needs the catalogue or the data is checked here, all of it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actors.resources import ClusterNode, place_workers, reserve_server_gpu
from fedsim.algorithms import ALGORITHMS
from fedsim.base.parameters import find_parameter_faults as parameter_faults
from fedsim.base.parameters import list_parameters
from fedsim.core import Algorithm, LocalTraining
from fedsim.data import DATASETS, PARTITIONS, find_dataset_faults, find_partition_faults
from fedsim.data.places import DataRoots
from fedsim.data.text import TRAINED_TOKENIZER
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import stack_size_by_model
from fedsim.errors import DataError, DataNotFound, FieldError, SpecError
from fedsim.models import MODELS, make_net
from fedsim.models.net import Net
from fedsim.plugins import Registry
from jobs.settings import Settings
from jobs.spec.client_test_checks import public_faults, task_faults, tests_faults
from jobs.spec.curricula import curriculum_faults, expert_epochs, make_algorithm
from jobs.spec.dataset_facts import DatasetFacts, look_up_facts, prefix_paths
from jobs.spec.fields import Choice
from jobs.spec.job_spec import JobSpec, parse_spec
from jobs.spec.partition_checks import find_data_partition_faults


def resolve_spec(spec: JobSpec, settings: Settings) -> Experiment:
    """The experiment that a spec describes.

    Args:
        spec: of the right shape.
        settings: where data is looked for.

    Raises:
        SpecError: with every name, parameter and size that does not fit, each with path, value and hint;
            a data set that cannot be read is among them.
        DataNotFound, DataError: if the data set cannot be read, and nothing else is wrong.
    """
    errors = name_faults(spec)
    if not any(error.path.startswith("data.dataset") for error in errors):
        try:
            facts = look_up_facts(spec, settings)
        except (SpecError, DataError) as error:
            if not errors:
                raise
            errors += error.errors
        else:
            model = not any(error.path.startswith("model") for error in errors)
            errors += _data_faults(spec, settings, facts, model)
    if errors:
        raise SpecError(errors)
    return _build_experiment(spec, settings)


def parse_spec_and_names(data: Mapping[str, Any]) -> JobSpec:
    """As `parse_spec`; where the shape is wrong, the wrong names and parameters are named besides.

    So that one answer has everything, and nobody mends a spec in two rounds.

    Raises:
        SpecError: with all faults of shape, and all unknown names and parameters.
    """
    try:
        return parse_spec(data)
    except SpecError as error:
        known, found = {fault.path for fault in error.errors}, list(error.errors)
    for path in ("algorithm", "model", "data.dataset", "data.partition"):
        part = _extract_section(data, path)
        try:
            spec = parse_spec(part if path == "algorithm" else {"algorithm": "fedavg", **part})
        except SpecError:
            continue
        found += [fault for fault in name_faults(spec) if fault.path.startswith(path)]
    raise SpecError(fault for n, fault in enumerate(found) if n < len(known) or fault.path not in known)


def _extract_section(data: Any, path: str) -> dict[str, Any]:
    """The spec with nothing but what stands at this path; {} where nothing does."""
    key, _, rest = path.partition(".")
    inside = data.get(key) if isinstance(data, Mapping) else None
    value = _extract_section(inside, rest) if rest else inside
    return {key: value} if value else {}


def check_spec(spec: JobSpec, settings: Settings, nodes: Sequence[ClusterNode] | None = None) -> Experiment:
    """Everything that can be known of a spec before it runs.

    With the cluster's nodes, that includes whether it fits.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve`.
        DoesNotFit: if the cluster, empty, could not hold the workers.
    """
    experiment = resolve_spec(spec, settings)
    if nodes is not None:
        asked, there = spec.resources, reserve_server_gpu(nodes, spec.resources.server_gpus)
        place_workers(asked.workers, asked.cpus_per_worker, asked.gpus_per_worker, there)
    return experiment


def cohort_size(spec: JobSpec) -> int:
    """K: the fraction of the clients, rounded to the nearest, at least one."""
    return max(1, round(spec.clients.fraction * spec.clients.total))


def _build_experiment(spec: JobSpec, settings: Settings) -> Experiment:
    local, decay = spec.local, spec.local.lr_decay
    algorithm = make_algorithm(spec)
    return Experiment(
        algorithm=algorithm,
        local=LocalTraining(
            epochs=local.epochs or 1,
            steps=local.steps,
            batch_size=local.batch_size,
            lr=local.lr,
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            lr_alpha=decay.alpha if decay else 0.0,
            lr_power=decay.power if decay else 0.0,
            round_decay=local.round_decay,
            precision=local.precision,
        ),
        seed=spec.seed,
        rounds=spec.rounds,
        num_clients=spec.clients.total,
        cohort_size=cohort_size(spec),
        dataset=(spec.data.dataset.name, spec.data.dataset.params),
        partition=(spec.data.partition.kind, spec.data.partition.params),
        models=tuple((model.name, model.params) for model in spec.models),
        tests=spec.data.tests.kind,
        test_share=spec.data.tests.share,
        public=spec.data.public.fraction,
        roots=settings.data_roots,
        cache=settings.home / "cache",
        limit=spec.data.limit,
        download=spec.data.download,
        expert_epochs=expert_epochs(spec),
        evaluate_every=spec.evaluation.every,
        validation=spec.evaluation.validation,
        personal=spec.evaluation.personal,
        stack=spec.resources.stack,
        stack_sizes=_find_stack_sizes(spec, settings, algorithm),
        graphs=spec.resources.graphs,
    )


def list_plugins(spec: JobSpec) -> list[str]:
    """The plug-ins that a spec needs: packages with their versions, and modules."""
    named = [ALGORITHMS.source(spec.algorithm.name), DATASETS.source(spec.data.dataset.name)]
    named += [PARTITIONS.source(spec.data.partition.kind), *(MODELS.source(m.name) for m in spec.models)]
    return sorted(set(filter(None, named)))


def _find_stack_sizes(spec: JobSpec, settings: Settings, algorithm: Algorithm) -> tuple[int, ...]:
    """How many clients of each architecture train at once, where the spec says so by a number."""
    if not isinstance(spec.resources.stack, int):
        return ()
    facts = look_up_facts(spec, settings)
    places = DataRoots(settings.data_roots, spec.data.download)
    nets = [_net(model, facts, places) for model in spec.models]
    width = stack_size_by_model(algorithm, nets, spec.resources.stack)
    return tuple(map(width, range(len(spec.models))))


def name_faults(spec: JobSpec) -> list[FieldError]:
    """What is wrong with a spec's names and parameters, wherever its data is: none is looked for.

    Args:
        spec: of the right shape.
    """
    return [
        *_choice_faults("algorithm", spec.algorithm, ALGORITHMS),
        *curriculum_faults(spec),
        *public_faults(spec),
        *tests_faults(spec),
        *_model_faults(spec),
        *_tokenizer_faults(spec),
        *prefix_paths("data.dataset", find_dataset_faults(spec.data.dataset.name, spec.data.dataset.params)),
        *prefix_paths(
            "data.partition", find_partition_faults(spec.data.partition.kind, spec.data.partition.params)
        ),
    ]


def _choice_faults(path: str, choice: Choice, registry: Registry[Any]) -> list[FieldError]:
    if choice.name not in registry:
        return [registry.fault(f"{path}.name", choice.name)]
    return prefix_paths(path, parameter_faults(registry[choice.name], choice.params))


def _model_faults(spec: JobSpec) -> list[FieldError]:
    """What is wrong with the models' names and parameters, and whether the method can have several."""
    several = len(spec.models) > 1
    errors = []
    for number, model in enumerate(spec.models):
        errors += _choice_faults(f"model.{number}" if several else "model", model, MODELS)
    algorithm = ALGORITHMS.get(spec.algorithm.name)
    if several and algorithm is not None and not algorithm.heterogeneous:
        names = [model.name for model in spec.models]
        hint = "name one model, or a method whose clients may differ"
        errors.append(
            FieldError("model", names, f"{spec.algorithm.name} needs one model for all clients", hint)
        )
    return errors


def _tokenizer_faults(spec: JobSpec) -> list[FieldError]:
    """Published weights know the token numbers of their own tokenizer; a trained one deals out others."""
    weights = next((m.params["pretrained"] for m in spec.models if m.params.get("pretrained")), None)
    chosen, entry = spec.data.dataset, DATASETS.get(spec.data.dataset.name)
    taken = {p.name: p.default for p in list_parameters(entry.load)} if entry is not None else {}
    if (
        weights is None
        or "tokenizer" not in taken
        or {**taken, **chosen.params}["tokenizer"] != TRAINED_TOKENIZER
    ):
        return []
    message = f"is trained here and numbers tokens in its own way, which the weights {weights!r} do not know"
    hint = "name the tokenizer that belongs to the weights"
    return [FieldError("data.dataset.tokenizer", TRAINED_TOKENIZER, message, hint)]


def _data_faults(spec: JobSpec, settings: Settings, facts: DatasetFacts, model: bool) -> list[FieldError]:
    """What the data set's own size and shape rule out; of the models, too, where their names are known."""
    errors = task_faults(spec, facts.task)
    errors += public_faults(spec, facts.all_examples) if spec.data.public.fraction else []
    errors += find_data_partition_faults(spec, facts)
    places = DataRoots(settings.data_roots, spec.data.download)
    for number, chosen in enumerate(spec.models if model else ()):
        path = f"model.{number}" if len(spec.models) > 1 else "model"
        try:
            net = _net(chosen, facts, places)
        except SpecError as error:
            errors += prefix_paths(path, error.errors)
        except DataNotFound as error:
            weights = chosen.params.get("pretrained")
            errors.append(FieldError(f"{path}.pretrained", weights, error.message, error.hint))
        except ValueError as error:
            errors.append(
                FieldError(f"{path}.name", chosen.name, str(error), "choose another model or data set")
            )
        else:
            errors += _misfits(spec, net)
    return errors


def _net(chosen: Choice, facts: DatasetFacts, places: DataRoots) -> Net:
    """This model for this data; it holds no weights, so making one costs little.

    Raises:
        ValueError: if the model does not take such inputs.
        SpecError: if it is to start from weights outside the data roots.
        DataNotFound: if its weights cannot be had.
    """
    return make_net(
        chosen.name,
        input_shape=facts.input_shape,
        num_classes=facts.num_classes,
        vocabulary=facts.vocabulary,
        places=places,
        **chosen.params,
    )


def _misfits(spec: JobSpec, net: Net) -> list[FieldError]:
    """What the method says to this model; nothing as long as its own parameters are wrong."""
    method, params = ALGORITHMS.get(spec.algorithm.name), spec.algorithm.params
    if method is None or parameter_faults(method, params):
        return []
    return prefix_paths("algorithm", method(**params).check_hyperparameters(net, spec.rounds))


__all__ = ["DATASETS", "check_spec", "cohort_size", "name_faults", "resolve_spec"]
