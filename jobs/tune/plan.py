"""The plan of a search, and its checks before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from fedsim.algorithms import ALGORITHMS
from fedsim.errors import FieldError, SpecError
from jobs.spec import JobSpec, apply_overrides, read_spec
from jobs.spec.resolve import parse_spec_and_names
from jobs.spec.spec_text import set_fields
from jobs.tune.halving import list_rungs
from jobs.tune.sampler import Method, check_method, list_grid
from jobs.tune.space import Space, parse_spaces

MANY_TRIALS = 10_000


@dataclass(frozen=True)
class Search:
    """The plan of a search.

    Attributes:
        base: the spec as plain data.
        spaces: the values to try, by path.
        trials: their number.
        rungs: the rounds at which trials are compared; the last one is the end of a run.
        method: how values are chosen.
        reduction: of the trials at a rung, one in this many goes on.
        metric: on the validation set; None for the metric that chooses models.
        seed: of the search; each run has the seed of its spec.
    """

    base: Mapping[str, Any]
    spaces: Mapping[str, Space]
    trials: int
    rungs: list[int]
    method: Method
    reduction: int
    metric: str | None
    seed: int

    def to_document(self) -> dict[str, Any]:
        """Return all that the results depend on, as plain data; more trials may be added later."""
        spaces = {path: [space.kind, *space.list_ends()] for path, space in self.spaces.items()}
        return {
            "base": self.base,
            "space": spaces,
            "rungs": self.rungs,
            "method": self.method,
            "reduction": self.reduction,
            "metric": self.metric,
            "seed": self.seed,
        }

    def make_spec(self, values: Mapping[str, Any]) -> JobSpec:
        """Return the spec of a trial."""
        return parse_spec_and_names(set_fields(self.base, values))


def plan_search(
    spec: Any,
    space: Mapping[str, Any],
    items: str | Sequence[str],
    trials: int,
    method: Method,
    first_rounds: int | None,
    reduction: int,
    metric: str | None,
    seed: int,
    processes: int,
) -> Search:
    """Make the plan of a search from the arguments of `tune`, and check them.

    Raises:
        SpecError: the spec, a space or a number is wrong.
    """
    data = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else spec
    if isinstance(data, str | Path):
        data = read_spec(data)
    base = apply_overrides(data, [items] if isinstance(items, str) else items)
    spaces, rounds = parse_spaces(space), parse_spec_and_names(base).rounds
    if first_rounds is None:
        first_rounds = max(1, round(rounds / reduction**2)) if reduction > 0 else 1
    _check_options(method, trials, first_rounds, reduction, rounds, processes)
    if method == "grid":
        trials = min(trials, len(list_grid(spaces)))
    rungs = list_rungs(rounds, first_rounds, reduction)
    return Search(base, spaces, trials, rungs, method, reduction, metric, seed)


def _check_options(
    method: str, trials: int, first_rounds: int, reduction: int, rounds: int, processes: int
) -> None:
    limits = {
        "trials": (trials, 1, MANY_TRIALS),
        "first_rounds": (first_rounds, 1, rounds),
        "reduction": (reduction, 2, 100),
        "processes": (processes, 1, MANY_TRIALS),
    }
    faults = [
        FieldError(name, value, "is out of range", f"allowed: {low} to {high}")
        for name, (value, low, high) in limits.items()
        if not low <= value <= high
    ]
    if method not in get_args(Method):
        faults.append(FieldError("method", method, "is no method", f"use {', '.join(get_args(Method))}"))
    if faults:
        raise SpecError(faults)


def check_search(search: Search, check: Callable[[JobSpec], None]) -> None:
    """Check the spec with each end of each space, before anything trains.

    Args:
        search: the plan.
        check: checks one spec; see `jobs.tune.trial.Trials`.

    Raises:
        SpecError: with every fault of the first wrong spec.
        SettingsError: Optuna is needed and not installed.
    """
    check_method(search.method)
    middle = {path: space.list_ends()[0] for path, space in search.spaces.items()}
    for path, space in search.spaces.items():
        for value in space.list_ends():
            spec = search.make_spec({**middle, path: value})
            _check_spec(spec, search.metric)
            check(spec)


def _check_spec(spec: JobSpec, metric: str | None) -> None:
    faults, algorithm = list[FieldError](), ALGORITHMS.get(spec.algorithm.name)
    if not spec.evaluation.validation:
        message = "gives no validation set, on which a search compares its trials"
        faults.append(FieldError("evaluation.validation", 0, message, "set evaluation.validation=0.1"))
    if algorithm is not None and not algorithm.deploys_models:
        message = "has no global model that can be scored on the validation set"
        faults.append(FieldError("algorithm", spec.algorithm.name, message, "tune another algorithm"))
    if metric is not None and "_validation_" not in metric:
        message = "is no metric on the validation set"
        faults.append(FieldError("metric", metric, message, "such as global_validation_accuracy"))
    if faults:
        raise SpecError(faults)
