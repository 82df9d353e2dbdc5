"""Turn a spec into an experiment: parse, check names, look up the data's facts once, check them, build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any

import torch

from actors.resources import ClusterNode
from fedsim.algorithms import ALGORITHMS
from fedsim.base.error_attribution import format_error
from fedsim.base.version import find_version
from fedsim.clock.devices import Devices
from fedsim.core import Algorithm, LocalTraining, RunSettings
from fedsim.core.optimizers import OPTIMIZERS
from fedsim.core.schedules import ConstantSchedule, PlateauSchedule
from fedsim.curriculum import (
    ClientCurriculum,
    DataCurriculum,
    LayerCurriculum,
    PhaseCurriculum,
    PlateauDecay,
)
from fedsim.data import DATASETS, PARTITIONS
from fedsim.data.places import DataRoots
from fedsim.engine.evaluation.last_model_averaging import LastModelAveraging
from fedsim.engine.evaluation.model_averaging import ModelAveraging
from fedsim.engine.evaluation.update_dissimilarity import UpdateDissimilarity
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import stack_size_by_model
from fedsim.engine.stopping import StopRule
from fedsim.errors import DataError, DataNotFound, FieldError, SpecError
from fedsim.learning_tasks.tasks import LEARNING_TASKS
from fedsim.models import MODELS, make_net
from fedsim.models.initial_weights import InitialWeights
from fedsim.models.net import Net
from fedsim.samplers import SAMPLERS, CohortSampling, Sampler, Uniform
from fedsim.uploads.private_updates import explain_unsuitable_nets
from jobs.settings import Settings
from jobs.spec.checks.data_checks import find_data_faults
from jobs.spec.checks.device_checks import find_asynchronous_faults, find_memory_faults, make_devices
from jobs.spec.checks.local_checks import make_schedule, prefix_paths
from jobs.spec.checks.name_checks import find_name_faults
from jobs.spec.checks.privacy_checks import find_affordable_rounds
from jobs.spec.dataset_facts import DatasetFacts, look_up_facts
from jobs.spec.fields import Choice
from jobs.spec.initial_weights import is_in_data_root, load_initial_weights
from jobs.spec.job_spec import JobSpec, parse_spec
from jobs.spec.upload_wrappers import make_attack, wrap_uploads

MODELS_LOCK = RLock()
"""Held by the threads of a service while one of them builds the models of a spec. torch has one generator for
all threads, and fedsim refuses a model that draws from it in evaluation."""


def resolve_spec(spec: JobSpec, settings: Settings, *, fetch: bool = False) -> Experiment:
    """Check a spec and build its experiment.

    Args:
        spec: of the right shape.
        settings: the data roots, and the home for the cache.
        fetch: whether to download a data set whose facts are only in its files, if the spec allows downloads,
            as a run does. Otherwise nothing is checked that depends on these facts.

    Raises:
        SpecError: with every fault at once: wrong names, parameters and sizes, and a data set that cannot be
            read. Each has path, value and hint.
        DataNotFound, DataError: if the data set cannot be read, and the spec has no other fault.
    """
    faults = find_name_faults(spec) + find_forbidden_models(spec, settings)
    wrong_paths = [fault.path for fault in faults]
    nets = list[Net]()
    initial, weight_faults = _load_initial_weights(spec, settings, wrong_paths)
    faults += weight_faults
    wrong_paths += [fault.path for fault in weight_faults]
    devices = None
    if not any(path.startswith("devices") for path in wrong_paths):
        try:
            devices = make_devices(spec, DataRoots(settings.data_roots))
        except SpecError as error:
            faults += error.errors
    sampler, sampler_faults = _load_sampler(spec, settings, wrong_paths)
    faults += sampler_faults
    if not any(path.startswith("data.dataset") for path in wrong_paths):
        try:
            facts = look_up_facts(spec, settings, fetch=fetch)
        except (SpecError, DataError) as error:
            if not faults:
                raise
            raise SpecError([*faults, *error.errors]) from None
        if facts is not None:
            faults += find_data_faults(spec, facts, DataRoots(settings.data_roots), wrong_paths)
            nets, model_faults = _make_nets(spec, settings, facts, initial, wrong_paths, fetch=fetch)
            faults += model_faults + find_memory_faults(spec, devices, nets)
    if faults:
        raise SpecError(faults)
    algorithm = make_algorithm(spec, sampler)
    if faults := find_asynchronous_faults(spec, algorithm):
        raise SpecError(faults)
    return _build_experiment(spec, settings, algorithm, nets, initial, devices)


def find_forbidden_models(spec: JobSpec, settings: Settings) -> list[FieldError]:
    """Find models and weights from files of the caller, where they are not allowed."""
    if settings.allow_python is not False:
        return []
    faults = list[FieldError]()
    for number, model in enumerate(spec.models):
        path = spec.model_path(number)
        if model.name == "python":
            message = "is code from a file, and this service runs no code of its callers"
            hint = (
                "its operator allows it with FEDSIM_ALLOW_PYTHON=1; or install the model as a plug-in there"
            )
            faults.append(FieldError(f"{path}.name", model.name, message, hint))
        if model.init and model.init.file and not is_in_data_root(model.init.file, settings.data_roots):
            message = "is outside the data roots of the service, which reads no other files"
            hint = "put the file into a data root there, and name it relative to it; or name a job (init.job)"
            faults.append(FieldError(f"{path}.init.file", model.init.file, message, hint))
    return faults


def check_spec(spec: JobSpec, settings: Settings, nodes: Sequence[ClusterNode] | None = None) -> Experiment:
    """Resolve a spec; with the nodes of a cluster, check that its workers fit there.

    Raises:
        SpecError, DataNotFound, DataError: as `resolve_spec`.
        DoesNotFit: if the empty cluster cannot hold the workers.
    """
    experiment = resolve_spec(spec, settings)
    if nodes is not None:
        spec.resources.check_fit(nodes)
    return experiment


def parse_spec_and_names(data: Mapping[str, Any]) -> JobSpec:
    """Parse a spec; if its shape is wrong, report its wrong names and parameters in the same error.

    Raises:
        SpecError: with all faults of shape, and all unknown names and parameters.
    """
    try:
        return parse_spec(data)
    except SpecError as error:
        shape_faults = error.errors
    name_faults = list[FieldError]()
    for path in ("algorithm", "model", "data.dataset", "data.partition"):
        section = _extract_section(data, path)
        try:
            spec = parse_spec(section if path == "algorithm" else {"algorithm": "fedavg", **section})
        except SpecError:
            continue
        name_faults += [fault for fault in find_name_faults(spec) if fault.path.startswith(path)]
    known = {fault.path for fault in shape_faults}
    raise SpecError([*shape_faults, *(fault for fault in name_faults if fault.path not in known)])


def _extract_section(data: Any, path: str) -> dict[str, Any]:
    """Return the spec with only the section at this path; {} if it is empty or missing."""
    key, _, rest = path.partition(".")
    inside = data.get(key) if isinstance(data, Mapping) else None
    value = _extract_section(inside, rest) if rest else inside
    return {key: value} if value else {}


def _load_sampler(
    spec: JobSpec, settings: Settings, wrong_paths: Sequence[str]
) -> tuple[Sampler | None, list[FieldError]]:
    """Make the sampler and read its file; return it, None for a wrong one, and the faults of the file."""
    path, chosen = "clients.sampler", spec.clients.sampler
    if any(wrong.startswith(path) for wrong in wrong_paths):
        return None, []
    try:
        sampler = SAMPLERS[chosen.name](**chosen.params)
        return sampler.prepare(DataRoots(settings.data_roots), spec.clients.total), []
    except SpecError as error:
        return None, prefix_paths(path, error.errors)
    except DataNotFound as error:
        return None, [FieldError(f"{path}.path", chosen.params.get("path"), error.message, error.hint)]


def _load_initial_weights(
    spec: JobSpec, settings: Settings, wrong_paths: Sequence[str]
) -> tuple[list[InitialWeights | None], list[FieldError]]:
    """Read the weights from which the models begin, None for a model without; return them and the faults."""
    initial, faults = list[InitialWeights | None](), list[FieldError]()
    for number, model in enumerate(spec.models):
        path, weights = spec.model_path(number), None
        if model.init is not None and f"{path}.init.file" not in wrong_paths:
            try:
                weights = load_initial_weights(model.init, number, settings)
            except SpecError as error:
                faults += prefix_paths(path, error.errors)
        initial.append(weights)
    return initial, faults


def _make_nets(
    spec: JobSpec,
    settings: Settings,
    facts: DatasetFacts,
    initial: Sequence[InitialWeights | None],
    wrong_paths: Sequence[str],
    *,
    fetch: bool,
) -> tuple[list[Net], list[FieldError]]:
    """Build the spec's models for the data, and let the algorithm check each of them.

    Args:
        spec: of the right shape.
        settings: the data roots, for published weights.
        facts: of the data set.
        initial: the weights from which each model begins.
        wrong_paths: of the spec, reported already. With a wrong model no model is built; with a wrong
            algorithm the models are built and not checked.
        fetch: whether to download published weights, if the spec allows downloads. Otherwise models whose
            weights are not here yet are left to the run.

    Returns:
        The models without faults, and the faults.
    """
    nets, faults = list[Net](), list[FieldError]()
    if any(path.startswith("model") for path in wrong_paths):
        return nets, faults
    algorithm = None
    if not any(path.startswith("algorithm") for path in wrong_paths):
        algorithm = make_base_algorithm(spec)
    places = DataRoots(settings.data_roots, spec.data.download and fetch)
    for number, model in enumerate(spec.models):
        path = spec.model_path(number)
        try:
            net = make_spec_net(model, facts, places, initial[number])
        except SpecError as error:
            faults += prefix_paths(path, error.errors)
        except DataNotFound as error:
            # With downloads allowed, the run fetches them.
            if fetch or not spec.data.download:
                weights = model.params.get("pretrained")
                faults.append(FieldError(f"{path}.pretrained", weights, error.message, error.hint))
        except ValueError as error:
            faults.append(FieldError(f"{path}.name", model.name, str(error), _advise_on_model(model.name)))
        else:
            nets.append(net)
            if algorithm is not None:
                faults += _find_net_faults(spec, algorithm, net)
    return nets, faults


def _find_net_faults(spec: JobSpec, algorithm: Algorithm, net: Net) -> list[FieldError]:
    """Find what does not suit a model: hyper-parameters, and the openings of its blocks."""
    faults = prefix_paths("algorithm", algorithm.check_hyperparameters(net, spec.rounds))
    if (layers := spec.curriculum.layers) is not None:
        wrapper = LayerCurriculum(base=algorithm, **layers.model_dump())
        faults += prefix_paths("curriculum.layers", wrapper.check_openings(net))
    if spec.privacy is not None and (reason := explain_unsuitable_nets([net])):
        message, hint = f"does not suit privacy: {reason}", "choose a model without batch normalisation"
        faults.append(FieldError("model.name", spec.models[0].name, message, hint))
    return faults


def _advise_on_model(name: str) -> str:
    if name == "python" or MODELS.source(name):
        return "mend the model, or choose another; `fedsim run SPEC --debug` shows the line"
    return "choose another model or data set"


def make_spec_net(
    model: Choice, facts: DatasetFacts, places: DataRoots, initial: InitialWeights | None = None
) -> Net:
    """Build a model of a spec for the data; it holds no weights but `initial`.

    Raises:
        ValueError: if the model does not take such inputs.
        SpecError: if its weights are outside the data roots, or `initial` does not fit.
        DataNotFound: if its weights are not there.
    """
    return make_net(
        model.name,
        input_shape=facts.input_shape,
        num_classes=facts.num_classes,
        vocabulary=facts.vocabulary,
        outputs=LEARNING_TASKS[facts.task](facts.num_classes).output_shape(facts.input_shape),
        places=places,
        initial=initial,
        **model.params,
    )


def _build_experiment(
    spec: JobSpec,
    settings: Settings,
    algorithm: Algorithm,
    nets: Sequence[Net],
    initial: Sequence[InitialWeights | None],
    devices: Devices | None,
) -> Experiment:
    stack, stack_sizes = spec.resources.stack, tuple[int, ...]()
    if isinstance(stack, int):
        stack_sizes = tuple(map(stack_size_by_model(nets, stack), range(len(nets))))
    return Experiment(
        algorithm=algorithm,
        settings=RunSettings(
            seed=spec.seed,
            rounds=spec.rounds,
            cohort_size=spec.clients.cohort_size,
            local=_make_local_training(spec),
        ),
        num_clients=spec.clients.total,
        dataset=(spec.data.dataset.name, spec.data.dataset.params),
        partition=(spec.data.partition.kind, spec.data.partition.params),
        models=tuple((model.name, model.params) for model in spec.models),
        initial=tuple(initial) if any(initial) else (),
        tests=spec.data.tests.kind,
        test_share=spec.data.tests.share,
        more_tests=spec.data.tests.also,
        public=spec.data.public.fraction,
        public_copies=spec.data.public.copies,
        public_augment=spec.data.public.augment if spec.data.public.copies else (),
        roots=settings.data_roots,
        cache=settings.home / "cache",
        limit=spec.data.limit,
        download=spec.data.download,
        expert_epochs=spec.curriculum.expert_epochs,
        evaluate_every=spec.evaluation.every,
        metrics=tuple(spec.evaluation.metrics or ()),
        validation=spec.evaluation.validation,
        membership=spec.evaluation.membership,
        test=spec.evaluation.test,
        attack=make_attack(spec),
        personal=spec.evaluation.personal,
        personal_clients=spec.evaluation.personal_clients,
        stop=_make_stop_rule(spec),
        devices=devices,
        code=describe_code(spec),
        stack=stack,
        stack_sizes=stack_sizes,
        graphs=spec.resources.graphs,
    )


def _make_stop_rule(spec: JobSpec) -> StopRule | None:
    """Make the rule of `stop`, and of a privacy budget that ends the run before its last round."""
    affordable = find_affordable_rounds(spec)
    if affordable is None:
        return spec.stop.rule
    return replace(spec.stop.rule or StopRule(), affordable_rounds=affordable)


def make_base_algorithm(spec: JobSpec) -> Algorithm:
    """Make the spec's algorithm without wrappers.

    Raises:
        SpecError: its class refuses the hyper-parameters.
    """
    try:
        return ALGORITHMS[spec.algorithm.name](**spec.algorithm.params)
    except (TypeError, ValueError) as error:
        message = f"refuses its hyper-parameters: {format_error(error)}"
        hint = f"`fedsim algorithms {spec.algorithm.name}` lists them"
        raise SpecError([FieldError("algorithm", spec.algorithm.name, message, hint)]) from error


def make_algorithm(spec: JobSpec, sampler: Sampler | None = None) -> Algorithm:
    """Make the spec's algorithm with its wrappers, such as curricula, attacks, a sampler and an average.

    Args:
        spec: without faults.
        sampler: of the spec, with its file read; None for one that has read no file.

    Raises:
        SpecError: as `make_base_algorithm`.
    """
    algorithm = make_base_algorithm(spec)
    data, clients, layers = spec.curriculum.data, spec.curriculum.clients, spec.curriculum.layers
    if layers is not None:
        algorithm = LayerCurriculum(base=algorithm, **layers.model_dump())
    if data is not None:
        algorithm = DataCurriculum(base=algorithm, **data.model_dump(exclude={"expert_epochs"}))
    algorithm = wrap_uploads(spec, algorithm)
    sampler = sampler or SAMPLERS[spec.clients.sampler.name](**spec.clients.sampler.params)
    if sampler != Uniform():
        algorithm = CohortSampling(base=algorithm, sampler=sampler)
    if clients is not None:
        algorithm = ClientCurriculum(base=algorithm, **clients.model_dump(exclude={"expert_epochs"}))
    if (phases := spec.curriculum.phases) is not None:
        algorithm = PhaseCurriculum(base=algorithm, **phases.model_dump())
    schedule = make_schedule(spec)
    if isinstance(schedule, PlateauSchedule):
        algorithm = PlateauDecay(base=algorithm, schedule=schedule)
    if spec.evaluation.dissimilarity:
        algorithm = UpdateDissimilarity(base=algorithm)
    if (average := spec.evaluation.average) is None:
        return algorithm
    if average.clients is not None:
        return LastModelAveraging(base=algorithm, weights=average.clients)
    return ModelAveraging(base=algorithm, ema=average.ema, last=average.last)


def depends_on_num_rounds(spec: JobSpec) -> bool:
    """Return whether each round of the spec depends on the number of rounds of the run."""
    if spec.privacy is not None and spec.privacy.noise_multiplier is None:
        return True  # the noise is found for the budget of all rounds
    return make_algorithm(spec).depends_on_num_rounds() or make_schedule(spec).depends_on_num_rounds()


def _make_local_training(spec: JobSpec) -> LocalTraining:
    local, decay, schedule = spec.local, spec.local.lr_decay, make_schedule(spec)
    if isinstance(schedule, PlateauSchedule):
        # The wrapper of the algorithm does the rest.
        schedule = ConstantSchedule(warmup=schedule.warmup)
    return LocalTraining(
        epochs=local.epochs or 1,
        steps=local.steps,
        batch_size=local.batch_size,
        lr=local.lr,
        momentum=local.momentum,
        weight_decay=local.weight_decay,
        optimizer=OPTIMIZERS[local.optimizer.name](**local.optimizer.params),
        clip_norm=local.clip_norm,
        label_smoothing=local.label_smoothing,
        schedule=schedule,
        round_decay=local.round_decay,
        precision=local.precision,
        **({} if decay is None else {"lr_alpha": decay.alpha, "lr_power": decay.power}),
    )


def list_plugins(spec: JobSpec) -> list[str]:
    """List the plug-ins that a spec needs: packages and modules, with their versions and hashes."""
    return [f"{name} {version}".strip() for name, version in _describe_plugins(spec).items()]


def describe_code(spec: JobSpec) -> dict[str, str]:
    """Return the code that runs a spec: {package: version, and for a plug-in a hash of its files}."""
    return {"fedsim": find_version(), "torch": torch.__version__, **_describe_plugins(spec)}


def _describe_plugins(spec: JobSpec) -> dict[str, str]:
    found = ALGORITHMS.describe_code(spec.algorithm.name) | DATASETS.describe_code(spec.data.dataset.name)
    found |= PARTITIONS.describe_code(spec.data.partition.kind)
    for model in spec.models:
        found |= MODELS.describe_code(model.name)
    return dict(sorted(found.items()))
