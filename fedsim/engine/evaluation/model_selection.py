"""Select a run's final model: the deployed model of any round with the best value on the validation set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.learning_tasks.metrics import METRICS, is_lower_better

if TYPE_CHECKING:
    from fedsim.base.tree import Tree
    from fedsim.clients.population import Population
    from fedsim.core import Algorithm
    from fedsim.engine.results import RoundResult

MIDDLE = "_validation_"

PERSONAL_VALIDATION = f"personal{MIDDLE}"
"""The beginning of the metrics of the personal models on the validation set."""


class Candidate(NamedTuple):
    """A deployed model that was scored on the validation set.

    Attributes:
        model: its name.
        metric: the metric by which models are chosen: the first of `METRICS` that was measured.
        validation: its value on the validation set.
        test: its value on the test set; None where the data has none.
    """

    model: str
    metric: str
    validation: float
    test: float | None

    def is_better(self, value: float, other: float) -> bool:
        """Return whether one value of the metric is better than another one."""
        return value < other if is_lower_better(self.metric) else value > other


def list_candidates(metrics: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield the round's models with a value on the validation set, by name; none without such a set.

    The personal models are no candidate: there is no single one of them to keep.
    """
    scored = (name for name in metrics if MIDDLE in name and not name.startswith(PERSONAL_VALIDATION))
    names = [name.rpartition(MIDDLE) for name in scored]
    chosen = next((metric for metric in METRICS if any(metric == rest for _, _, rest in names)), None)
    for model, _, metric in sorted(names):
        value, test = metrics[f"{model}{MIDDLE}{metric}"], metrics.get(f"{model}_{metric}")
        if metric == chosen and isinstance(value, float) and not isnan(value):
            yield Candidate(model, metric, value, test if isinstance(test, float) else None)


def choose_best(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate with the best validation value, the first of equals; None without candidates."""
    best: Candidate | None = None
    for each in candidates:
        if best is None or each.is_better(each.validation, best.validation):
            best = each
    return best


@dataclass(frozen=True)
class ChosenModel:
    """The best model so far, with its parameters.

    Attributes:
        round: the round that produced the model, counted from 1.
        model: its name among the deployed ones.
        value: of the metric on the validation set.
        params: the model, as returned by `Algorithm.deploy_models`; with several architectures
            {"0": model, "1": model, ...}.
        metric: the metric by which it was chosen.
    """

    round: int
    model: str
    value: float
    params: Tree
    metric: str = "accuracy"

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ChosenModel:
        """Return the model of a checkpoint; older checkpoints name the value `validation_accuracy`."""
        renamed = {"value" if name == "validation_accuracy" else name: each for name, each in fields.items()}
        return cls(**renamed)

    def to_text(self) -> dict[str, str]:
        """Return all fields but `params`, as text; the value is named `validation_METRIC`."""
        return {
            "round": str(self.round),
            "model": self.model,
            f"validation_{self.metric}": repr(self.value),
        }


@dataclass(frozen=True)
class BestModel:
    """The global model of the best round so far, in a run with `StopRule.patience`.

    Attributes:
        round: the round that produced the model, counted from 1.
        params: the global model; with several architectures {"0": model, "1": model, ...}.
    """

    round: int
    params: Tree


def choose_better(
    before: ChosenModel | None, algorithm: Algorithm, population: Population, result: RoundResult
) -> ChosenModel | None:
    """Return the best model after one more round: `before` itself if no model of this round beats it."""
    # Imported here: the rest of the module is read where there is no torch.
    from fedsim.engine.server_messages import list_deployed_models

    found = choose_best(list_candidates(result.metrics))
    if found is None:
        return before
    is_comparable = before is not None and before.metric == found.metric
    if before is not None and is_comparable and not found.is_better(found.validation, before.value):
        return before
    models = list_deployed_models(algorithm, population.context(result.round - 1), result.state)
    named = {number: each[found.model] for number, each in models.items() if found.model in each}
    params = named if len(population.nets) > 1 else named["0"]
    return ChosenModel(result.round, found.model, found.validation, params, found.metric)
