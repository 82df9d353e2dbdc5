"""The values of the next trial: by Optuna from the earlier ones, at random, or from a grid."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fedsim.base import rng
from fedsim.base.extras import describe_install
from fedsim.errors import FieldError, SettingsError, SpecError
from jobs.tune.space import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

Method: TypeAlias = Literal["bayes", "random", "grid"]


class PastTrial(NamedTuple):
    """A trial, for the choice of the next one.

    Attributes:
        values: of its fields by path.
        scores: by round; None where it failed or had no finite score.
        is_complete: whether it has trained all rounds.
    """

    values: Mapping[str, Any]
    scores: Mapping[int, float | None]
    is_complete: bool


def check_method(method: Method) -> None:
    """Raise SettingsError if a method of search needs Optuna, and it is not installed."""
    if method == "grid":
        return
    try:
        import optuna  # noqa: F401
    except ImportError:
        message = f"the method {method!r} needs Optuna, which is not installed"
        raise SettingsError(message, f"take a grid, or {describe_install('tune')}") from None


def list_grid(spaces: Mapping[str, Space]) -> list[dict[str, Any]]:
    """Return every combination of the values.

    Raises:
        SpecError: a space has no list of values.
    """
    endless = [
        FieldError(
            f"space.{path}",
            f"{space.kind}:{space.low:g}..{space.high:g}",
            "has no list of values",
            "a grid needs a list such as [0.01, 0.1], or whole numbers such as int:1..5",
        )
        for path, space in spaces.items()
        if not space.list_values()
    ]
    if endless:
        raise SpecError(endless)
    rows = itertools.product(*(space.list_values() for space in spaces.values()))
    return [dict(zip(spaces, row, strict=True)) for row in rows]


def propose_values(
    spaces: Mapping[str, Space],
    past: Sequence[PastTrial],
    method: Method,
    *,
    seed: int,
    lower_is_better: bool,
) -> dict[str, Any]:
    """Return the values of the next trial.

    The same past gives the same values. `bayes` is Optuna's tree-structured Parzen estimator (Bergstra et
    al., NeurIPS 2011), which begins with 10 random trials.

    Args:
        spaces: by path.
        past: the earlier trials, in order. Those without scores still train, and do not count.
        method: how to choose.
        seed: of the search.
        lower_is_better: of the scores.
    """
    if method == "grid":
        grid = list_grid(spaces)
        # In their own order, rising values would look better and better, and halving would promote them all.
        return grid[int(rng.stream(seed, "tune-grid").permutation(len(grid))[len(past)])]
    import optuna
    from optuna.exceptions import ExperimentalWarning

    distributions = {path: _make_distribution(space) for path, space in spaces.items()}
    number = int(rng.stream(seed, "tune", len(past)).integers(2**31))
    samplers = optuna.samplers
    chosen: BaseSampler = (
        samplers.RandomSampler(seed=number) if method == "random" else samplers.TPESampler(seed=number)
    )
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            direction = "minimize" if lower_is_better else "maximize"
            study = optuna.create_study(sampler=chosen, direction=direction)
            study.add_trials([_make_trial(each, spaces, distributions) for each in past if each.scores])
            drawn: Mapping[str, Any] = study.ask(distributions).params
    finally:
        optuna.logging.set_verbosity(verbosity)
    return {path: _read_value(space, drawn[path]) for path, space in spaces.items()}


def _make_distribution(space: Space) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if space.kind == "choice":
        return CategoricalDistribution(tuple(range(len(space.values))))
    if space.kind == "int":
        return IntDistribution(int(space.low), int(space.high))
    return FloatDistribution(space.low, space.high, log=space.kind == "log")


def _make_trial(
    past: PastTrial, spaces: Mapping[str, Space], distributions: dict[str, BaseDistribution]
) -> FrozenTrial:
    import optuna

    # Optuna ranks a pruned trial without scores last, and so avoids the values of a trial that failed.
    has_failed = None in past.scores.values()
    scores = {} if has_failed else dict(sorted(past.scores.items()))
    state = optuna.trial.TrialState.COMPLETE if past.is_complete else optuna.trial.TrialState.PRUNED
    return optuna.trial.create_trial(
        state=state,
        value=list(scores.values())[-1] if past.is_complete else None,
        params={path: _write_value(space, past.values[path]) for path, space in spaces.items()},
        distributions=distributions,
        intermediate_values=scores,
    )


def _read_value(space: Space, drawn: Any) -> Any:
    """Return the value of a field; six digits of a number are enough."""
    if space.kind == "choice":
        return space.values[drawn]
    return int(drawn) if space.kind == "int" else min(max(float(f"{drawn:.6g}"), space.low), space.high)


def _write_value(space: Space, value: Any) -> Any:
    return space.values.index(value) if space.kind == "choice" else value
