"""The plan of a search, and its checks before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from fedsim.algorithms import ALGORITHMS
from fedsim.base.python_source import embed_sources
from fedsim.errors import FieldError, SpecError
from jobs.spec import JobSpec, apply_overrides, read_spec
from jobs.spec.resolve import parse_spec_and_names
from jobs.spec.spec_text import set_fields
from jobs.tune.halving import list_rungs
from jobs.tune.sampler import Method, check_method, list_grid
from jobs.tune.space import Space, parse_spaces
from jobs.tune.trial import is_personal, make_trial_spec

MANY_TRIALS = 10_000


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search; see `jobs.tune.search.tune`.

    Attributes:
        trials: their number.
        method: how values are chosen.
        first_rounds: rounds before trials are compared first; None for a default.
        reduction: of the trials at a rung, one in this many goes on.
        metric: on the validation set; None for the metric that chooses models.
        seed: of the search; each run has the seed of its spec.
        processes: trials at the same time.
    """

    trials: int
    method: Method
    first_rounds: int | None
    reduction: int
    metric: str | None
    seed: int
    processes: int

    def choose_rungs(self, rounds: int) -> list[int]:
        """Check the options, and return the rungs of a spec with so many rounds.

        Raises:
            SpecError: an option is wrong.
        """
        first = self.first_rounds
        if first is None:
            first = max(1, round(rounds / self.reduction**2)) if self.reduction > 0 else 1
        limits = {
            "trials": (self.trials, 1, MANY_TRIALS),
            "first_rounds": (first, 1, rounds),
            "reduction": (self.reduction, 2, 100),
            "processes": (self.processes, 1, MANY_TRIALS),
        }
        faults = [
            FieldError(name, value, "is out of range", f"allowed: {low} to {high}")
            for name, (value, low, high) in limits.items()
            if not low <= value <= high
        ]
        if self.method not in get_args(Method):
            hint = f"use {', '.join(get_args(Method))}"
            faults.append(FieldError("method", self.method, "is no method", hint))
        if faults:
            raise SpecError(faults)
        return list_rungs(rounds, first, self.reduction)


@dataclass(frozen=True)
class Search:
    """The plan of a search.

    Attributes:
        base: the spec as plain data.
        spaces: the values to try, by path.
        rungs: the rounds at which trials are compared; the last one is the end of a run.
        options: of the search; a grid has at most as many trials as points.
    """

    base: Mapping[str, Any]
    spaces: Mapping[str, Space]
    rungs: list[int]
    options: SearchOptions

    def to_document(self) -> dict[str, Any]:
        """Return all that the results depend on, as plain data; more trials may be added later."""
        spaces = {path: [space.kind, *space.list_ends()] for path, space in self.spaces.items()}
        return {
            "base": self.base,
            "space": spaces,
            "rungs": self.rungs,
            "method": self.options.method,
            "reduction": self.options.reduction,
            "metric": self.options.metric,
            "seed": self.options.seed,
        }

    def make_spec(self, values: Mapping[str, Any]) -> JobSpec:
        """Return the spec of a trial."""
        return parse_spec_and_names(embed_sources(set_fields(self.base, values)))


def plan_search(
    spec: Any, space: Mapping[str, Any], items: str | Sequence[str], options: SearchOptions
) -> Search:
    """Make the plan of a search from the arguments of `tune`, and check them.

    Raises:
        SpecError: the spec, a space or an option is wrong.
    """
    data = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else spec
    if isinstance(data, str | Path):
        data = read_spec(data)
    base = embed_sources(apply_overrides(data, [items] if isinstance(items, str) else items))
    spaces = parse_spaces(space)
    _check_paths(list(spaces))
    rungs = options.choose_rungs(parse_spec_and_names(base).rounds)
    if options.method == "grid":
        options = replace(options, trials=min(options.trials, len(list_grid(spaces))))
    return Search(base, spaces, rungs, options)


UNTUNED: Mapping[str, str] = MappingProxyType(
    {
        "rounds": "all trials train the rounds of the spec",
        "stop": "trials do not stop early by it",
        "evaluation": "trials have to be scored in the same way",
        "data.limit": "trials have to be scored on the same examples",
        **dict.fromkeys(("name", "checkpoint", "resources", "faults"), "changes no result"),
    }
)
"""Fields that a search cannot try, by the reason."""


def _check_paths(paths: Sequence[str]) -> None:
    """Raise SpecError for fields that a search cannot try, and for a whole that comes after its part."""
    faults = list[FieldError]()
    for place, path in enumerate(paths):
        for field, reason in UNTUNED.items():
            if f"{path}.".startswith(f"{field}."):
                faults.append(FieldError(f"space.{path}", None, f"cannot be searched: {reason}", "remove it"))
        for part in paths[:place]:
            if part.startswith(f"{path}."):
                message = f"would replace {part}, which is set before it"
                faults.append(FieldError(f"space.{path}", None, message, f"name {path} first"))
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
    check_method(search.options.method)
    middle = {path: space.list_ends()[0] for path, space in search.spaces.items()}
    for path, space in search.spaces.items():
        for value in space.list_ends():
            spec = search.make_spec({**middle, path: value})
            _check_spec(spec, search.options.metric)
            check(make_trial_spec(spec, search.options.metric))


def _check_spec(spec: JobSpec, metric: str | None) -> None:
    faults, algorithm = list[FieldError](), ALGORITHMS.get(spec.algorithm.name)
    if not spec.evaluation.validation:
        message = "gives no validation set, on which a search compares its trials"
        faults.append(FieldError("evaluation.validation", 0, message, "set evaluation.validation=0.1"))
    if algorithm is not None and not algorithm.deploys_models and not is_personal(metric):
        message = f"has to be one of the personal models: {spec.algorithm.name} has no global model"
        faults.append(FieldError("metric", metric, message, "such as personal_validation_accuracy_mean"))
    if metric is not None and "_validation_" not in metric:
        message = "is no metric on the validation set"
        faults.append(FieldError("metric", metric, message, "such as global_validation_accuracy"))
    if faults:
        raise SpecError(faults)
