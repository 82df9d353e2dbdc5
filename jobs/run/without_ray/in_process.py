"""Run a spec in this process without Ray, one client after another, as `fedsim run --debug` does.

Breakpoints and print statements of a model, an algorithm or a data set work, because everything runs in the
main thread. This module must not import Ray, whose start takes seconds.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import chain

import torch

from fedsim.checkpoints.experiment_run import Status
from fedsim.engine.faults import DEFAULT
from fedsim.engine.worker import one_thread
from fedsim.errors import SpecError
from fedsim.learning_tasks.tasks import LEARNING_TASKS
from fedsim.models import MODELS, make_builder
from fedsim.models.net import InputForm
from jobs.run.listener import RunListener
from jobs.run.model_metadata import make_model_notes
from jobs.run.run_result import RunResult
from jobs.run.run_steps import NewPersonalScores, read_progress
from jobs.run.without_ray.in_process_attempt import InProcessRun
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.spec.checks.data_checks import use_spec_paths
from jobs.spec.dataset_facts import look_up_facts
from jobs.spec.initial_weights import pin_initial_weights
from jobs.spec.resolve import resolve_spec
from jobs.store.records import RoundRecord


def run_in_process(spec: JobSpec, settings: Settings, listener: RunListener) -> RunResult:
    """Run a spec in this process, and wait for its end; write no checkpoints.

    The digests are those of a run on Ray with `resources.stack: off`. Clients train on a GPU if the workers
    of the spec have a share of one and torch finds one. An error of a client ends the run, whatever
    `faults.client_error` says.

    Args:
        spec: the run.
        settings: where the data is.
        listener: hears each status and each round.

    Returns:
        The record of every round, and the final model.

    Raises:
        SpecError, DataNotFound, DataError: before anything runs.
        FedsimError: if the run itself fails. Its `__cause__` is the error of the client, with its traceback.
    """
    listener.on_status("checking the spec")
    # One thread, as in a worker: with two, the last bits differ.
    with one_thread():
        experiment = resolve_spec(spec, settings, fetch=True)
        spec = pin_initial_weights(spec, experiment.initial)
        result = RunResult(spec)
        run = InProcessRun(replace(experiment, stack="off"), DEFAULT)
        run.device = choose_device(spec.resources.gpus_per_worker)
        run.server_device = choose_device(spec.resources.server_gpus)
        try:
            with closing(run.run()) as events:
                for step in chain.from_iterable(map(read_progress, events)):
                    if isinstance(step, Status):
                        listener.on_status(step.text)
                    elif isinstance(step, NewPersonalScores):
                        result.personal = step.scores
                    elif isinstance(step, RoundRecord):
                        result.records.append(step)
                        listener.on_round(step)
        except SpecError as error:
            raise use_spec_paths(error) from None
    result.model, result.chosen_model = run.get_global_model(), run.get_chosen_model()
    result.notes = make_model_notes(spec, run.get_dataset_metadata(), result.round)
    return result


def run_own_models(spec: JobSpec, settings: Settings) -> None:
    """Build each model of the user's own and run it once on random inputs, without the checks of a spec.

    A check reports an error of a model in one line, and skips its breakpoints. Here the error comes up as it
    is, and `breakpoint()` works.

    Raises:
        FedsimError: as `look_up_facts`.
        Exception: as the model raises it.
    """
    facts = look_up_facts(spec, settings, fetch=True)
    if facts is None:
        return
    outputs = LEARNING_TASKS[facts.task](facts.num_classes).output_shape(facts.input_shape)
    inputs = InputForm(facts.input_shape, facts.vocabulary, outputs)
    for model in spec.models:
        if model.name == "python" or MODELS.source(model.name):
            others = ("blocks", "lora")
            params = {name: value for name, value in model.params.items() if name not in others}
            make_builder(model.name, inputs, facts.num_classes, **params)()(inputs.make_examples())


def choose_device(gpus: float) -> str:
    """Return "cuda" if the spec asks for a share of a GPU and torch finds one; else "cpu"."""
    return "cuda" if gpus and torch.cuda.is_available() else "cpu"


def describe_ignored_fields(spec: JobSpec) -> str:
    """Describe the fields of the spec that `run_in_process` ignores; return "" if none has a value."""
    gpus = {name: getattr(spec.resources, name) for name in ("gpus_per_worker", "server_gpus")}
    used = [name for name, share in gpus.items() if choose_device(share) == "cuda"]
    sections = {"resources": spec.resources, "faults": spec.faults, "checkpoint": spec.checkpoint}
    names = [
        f"{section}.{name}"
        for section, value in sections.items()
        for name in value.model_dump(exclude_defaults=True)
        if name not in used
    ]
    if not names:
        return ""
    stack = spec.resources.stack
    stacked = stack > 1 if isinstance(stack, int) else stack == "auto" and bool(used)
    more = "; the digests are those of resources.stack: off" if stacked else ""
    return f"--debug runs without Ray and ignores {', '.join(names)}{more}"
