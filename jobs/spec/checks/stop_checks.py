"""Checks of `stop`: a run must have the round, and must measure the metric often enough."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from fedsim.algorithms import ALGORITHMS
from fedsim.core import Algorithm
from fedsim.errors import FieldError
from fedsim.learning_tasks.metrics import METRICS, find_metric
from jobs.spec.job_spec import JobSpec

SCORE = re.compile(rf"(?P<model>.+?)(?P<validation>_validation)?_({'|'.join(METRICS)}|loss)")

PERSONAL_HINT = "take personal_accuracy_mean, with evaluation.personal: always"


def find_stop_faults(spec: JobSpec) -> list[FieldError]:
    """Find a round of `stop` after the last one, and a metric that is not measured in every evaluated round.

    The metrics of an algorithm that names its models or metrics itself are known only in the run; a metric
    that is missing there ends it in its first evaluated round.
    """
    return _find_round_faults(spec) + _find_clock_faults(spec) + _find_metric_faults(spec)


def _find_clock_faults(spec: JobSpec) -> list[FieldError]:
    most = spec.stop.max_simulated_seconds
    if most is None or spec.devices is not None:
        return []
    hint = "set devices, such as devices: phones, or use stop.max_seconds"
    return [
        FieldError("stop.max_simulated_seconds", most, "needs a simulated clock, and there is none", hint)
    ]


def _find_round_faults(spec: JobSpec) -> list[FieldError]:
    last = spec.stop.round
    if last is None or last <= spec.rounds:
        return []
    return [FieldError("stop.round", last, f"is after the last round, {spec.rounds}", "raise rounds too")]


def _find_metric_faults(spec: JobSpec) -> list[FieldError]:
    metric, algorithm = spec.stop.metric, ALGORITHMS.get(spec.algorithm.name)
    if metric is None or algorithm is None or metric == "train_loss":
        return []
    known_metric, target = find_metric(metric), spec.stop.target
    if known_metric is not None and known_metric.unit == "share" and target is not None and target > 1:
        hint = f"write it as a share, such as {target / 100:g}"
        return [FieldError("stop.target", target, f"is never reached: {metric} is at most 1", hint)]
    if metric.startswith("personal_"):
        return _find_personal_faults(spec, metric)
    score = SCORE.fullmatch(metric)
    if score and not algorithm.deploys_models:
        return [_make_fault(metric, f"{spec.algorithm.name} has no global model", PERSONAL_HINT)]
    if score and score["validation"] and not spec.evaluation.validation:
        hint = "set evaluation.validation, such as 0.1"
        return [_make_fault(metric, "needs a validation set, and there is none", hint)]
    known, has_own = _list_known_metrics(spec, algorithm), _has_own_metrics(algorithm)
    # `teacher_accuracy` resembles `global_accuracy`: where it may exist, only a typing error counts.
    close = difflib.get_close_matches(metric, known, n=1, cutoff=0.9 if has_own else 0.6)
    if metric not in known and (close or not has_own):
        hint = f"did you mean {close[0]!r}?" if close else f"take one of {', '.join(known)}"
        return [_make_fault(metric, "is no metric of this run", hint)]
    return []


def _find_personal_faults(spec: JobSpec, metric: str) -> list[FieldError]:
    scores = [f"{kind}{part}" for kind in _list_kinds(spec) for part in ("", "_mean", "_worst10")] + ["loss"]
    views = ["personal"] if spec.evaluation.test else []
    views += [
        f"personal_{kind}" for kind in spec.data.tests.also if spec.evaluation.test or kind == "validation"
    ]
    if not views:
        message = "is measured on test examples, and evaluation.test leaves them out"
        hint = f"add validation to data.tests, and take personal_validation_{scores[1]}"
        return [_make_fault(metric, message, hint)]
    plain = metric.removesuffix("_before")  # each exists before tuning, too
    if plain not in (f"{view}_{score}" for view in views for score in scores):
        hint = f"take one of {', '.join(f'{views[0]}_{score}' for score in scores)}"
        return [_make_fault(metric, "is no measure of quality", hint)]
    if spec.evaluation.personal != "always":
        when = f"with evaluation.personal: {spec.evaluation.personal}"
        message = f"is not measured in every evaluated round {when}"
        return [_make_fault(metric, message, "set evaluation.personal: always")]
    return []


def _list_known_metrics(spec: JobSpec, algorithm: type[Algorithm]) -> list[str]:
    """List the metrics that every algorithm of this spec has, apart from personal ones."""
    models = ["global"] if algorithm.deploys_models else []
    if len(spec.models) > 1:
        models += [f"global_{number}" for number in range(len(spec.models))] if models else []
    if spec.evaluation.average is not None:
        models += [name.replace("global", "average") for name in models]
    tested, has_backdoor = spec.evaluation.test, spec.attack is not None and spec.attack.name == "backdoor"
    sets = [*([""] if tested else []), *(["_validation"] if spec.evaluation.validation else [])]
    sets += ["_backdoor"] if tested and has_backdoor else []
    sets += ["_members"] if tested and spec.evaluation.membership else []
    kinds = (*_list_kinds(spec), "loss")
    scores = [f"{model}{part}_{kind}" for model in models for part in sets for kind in kinds]
    return [*scores, "train_loss", *(["open_share"] if spec.curriculum.data else [])]


def _list_kinds(spec: JobSpec) -> Sequence[str]:
    """List the metrics of the spec; without `evaluation.metrics` all, because the data has its own."""
    return spec.evaluation.metrics or tuple(METRICS)


def _has_own_metrics(algorithm: type[Algorithm]) -> bool:
    """Return whether an algorithm may have models or metrics of names that only a run shows."""
    ours = algorithm.__module__.startswith("fedsim.")
    return not ours or algorithm.deploy_models is not Algorithm.deploy_models


def _make_fault(metric: str, message: str, hint: str) -> FieldError:
    return FieldError("stop.metric", metric, message, hint)
