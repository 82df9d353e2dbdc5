"""The checkpoint policy of a spec, and the fields by which a checkpoint is recognised as the spec's own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fedsim.checkpoints.checkpoint import Checkpoints
from fedsim.checkpoints.experiment_run import CheckpointPolicy
from fedsim.errors import CheckpointError
from jobs.spec import JobSpec
from jobs.spec.fields import Clients, LocalSection
from jobs.spec.resolve import depends_on_num_rounds
from jobs.spec.sections.curriculum_fields import Curriculum

CHANGEABLE_FIELDS = ("name", "rounds", "evaluation", "stop", "resources", "faults", "checkpoint")
"""Fields of a spec that may change when a run goes on, because no round depends on them.

`describe_experiment` adds the few of their values on which a round depends.
"""


def describe_experiment(spec: JobSpec, *, with_hashes: bool = True) -> dict[str, Any]:
    """Return the fields of the spec on which the result of a round depends.

    Args:
        spec: its names must be known, as after `resolve_spec`.
        with_hashes: whether the hashes of initial weights are among them; `resolve_spec` computes the hashes.
    """
    data = spec.model_dump(mode="json")
    for name in CHANGEABLE_FIELDS:
        data.pop(name, None)
    data["data"].pop("download", None)
    _forget_places_of_weights(data["model"], ("ignore", "sha256") if with_hashes else ("ignore",))
    # Defaults are left out, so that runs from before these fields existed can go on.
    if spec.data.tests.kind == "global":
        del data["data"]["tests"]
    else:
        # Further kinds only score the models.
        del data["data"]["tests"]["also"]
    if not spec.data.public.copies:
        del data["data"]["public"]["copies"], data["data"]["public"]["augment"]
    _forget_newer_fields_of_curricula(data["curriculum"], spec.curriculum)
    if spec.devices is None:
        del data["devices"]
    if spec.clients.sampler == Clients.model_fields["sampler"].default:
        del data["clients"]["sampler"]
    _forget_absent_uploads(data)
    for field in ("precision", "optimizer", "label_smoothing", "schedule"):
        if getattr(spec.local, field) == LocalSection.model_fields[field].default:
            del data["local"][field]
    return data | _select_deciding_values(spec)


def _forget_absent_uploads(data: Any) -> None:
    """Leave out what a spec does not do to uploads."""
    for field in ("fairness", "attack", "aggregation", "privacy", "secure_aggregation", "compression"):
        if data[field] is None:
            del data[field]
    for field in ("tree_rounds", "shuffled"):
        if "privacy" in data and not data["privacy"][field]:
            del data["privacy"][field]


def _forget_newer_fields_of_curricula(data: Any, curriculum: Curriculum) -> None:
    if curriculum.phases is None:
        del data["phases"]
    if (clients := curriculum.clients) is None:
        return
    if clients.pace == "rounds":
        del data["clients"]["pace"]
    if not clients.needs_expert:
        del data["clients"]["expert_epochs"]


def _select_deciding_values(spec: JobSpec) -> dict[str, Any]:
    """Return the values on which a round depends, of the fields that may change otherwise."""
    data = dict[str, Any]()
    if spec.evaluation.validation:
        # The validation set is taken away before the partition is made.
        data["validation"] = spec.evaluation.validation
    if spec.evaluation.dissimilarity:
        # The server state holds the value.
        data["dissimilarity"] = True
    if (average := spec.evaluation.average) is not None:
        # The server state holds the average.
        data["average"] = average.model_dump(mode="json", exclude_none=True)
    if spec.stop.patience:
        # The checkpoint holds the model of the round that is best by this metric.
        data["stop"] = {"metric": spec.stop.metric}
    if depends_on_num_rounds(spec):
        data["rounds"] = spec.rounds
    if isinstance(spec.resources.stack, int) and spec.resources.stack > 1:
        # The last bits of the results depend on the stack size.
        data["stack"] = spec.resources.stack
    return data


def _forget_places_of_weights(models: Any, kept: Collection[str]) -> None:
    """Leave only these fields of initial weights: the same weights may lie elsewhere."""
    for model in models if isinstance(models, list) else [models]:
        if init := model.get("init"):
            model["init"] = {key: init[key] for key in kept if key in init}


def make_checkpoint_policy(
    spec: JobSpec, url: str | None, *, resume: bool, stop_file: str | None = None
) -> CheckpointPolicy | None:
    """Make the checkpoint policy of a run; None without a folder, or with `checkpoint.every: 0`.

    Args:
        spec: of the run.
        url: the folder for the checkpoints, a path or an fsspec URL; None for no checkpoints.
        resume: whether to go on from the last checkpoint.
        stop_file: see `CheckpointPolicy`.
    """
    if url is None or not spec.checkpoint.every:
        return None
    experiment = describe_experiment(spec)
    return CheckpointPolicy(url, spec.checkpoint.every, experiment, resume=resume, stop_file=stop_file)


def describe_last_checkpoint(url: str, every: int) -> str:
    """Describe where a run goes on after a loss, such as "the last checkpoint (round 20)" or "round 1".

    Args:
        url: the folder of the checkpoints.
        every: `checkpoint.every` of the spec; 0 for no checkpoints.
    """
    try:
        progress = Checkpoints(url).read_progress() if every else None
    except CheckpointError:
        # The folder cannot be read now: the next attempt reports it if that lasts.
        return "the last checkpoint"
    return f"the last checkpoint (round {progress[0]})" if progress else "round 1"
