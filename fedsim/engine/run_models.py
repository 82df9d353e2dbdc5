"""RunModels: the models that a run leaves: the global model, and the model that validation chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsim.base import tree
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.engine.evaluation.model_selection import BestModel, ChosenModel, choose_better
from fedsim.engine.results import RoundResult
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.server_messages import list_deployed_models


class RunModels:
    """The models of a run so far; `add` takes one round after the other.

    Args:
        algorithm: of the run.
        population: of the run.
        checkpoint: the run goes on after it; None for a new run.

    Attributes:
        chosen: the best model on the validation set; None without a validation set.
        best: the global model of the best round, in a run with `StopRule.patience`; None if the result is the
            model of the last round.
    """

    def __init__(
        self, algorithm: Algorithm, population: Population, checkpoint: Checkpoint | None = None
    ) -> None:
        self._algorithm, self._population = algorithm, population
        self._last = (checkpoint.round, checkpoint.state) if checkpoint else None
        self.best: BestModel | None = checkpoint.best if checkpoint else None
        self.chosen: ChosenModel | None = checkpoint.chosen if checkpoint else None

    def add(self, result: RoundResult) -> None:
        """Take the models of the next round; its result holds the server state."""
        if result.is_result:
            self.best = None
        elif self.best is None:
            self.best = self._select_last()
        self._last = result.round, result.state
        self.chosen = choose_better(self.chosen, self._algorithm, self._population, result)

    def export_global(self) -> dict[str, Any]:
        """Return the global model of the run's result: NumPy arrays by parameter name.

        Frozen weights that came from a file are among them. Returns {} if the algorithm deploys no model (the
        server then has only a part of it).
        """
        found = self.best or self._select_last()
        return self._add_constants(tree.to_numpy(found.params)) if found else {}

    def _select_last(self) -> BestModel | None:
        """Select the last model scored as `global`: that of the state, but for FedExP and ensembles."""
        if self._last is None or not self._algorithm.deploys_models:
            return None
        round, state = self._last
        models = list_deployed_models(self._algorithm, self._population.context(round - 1), state)
        is_one = len(self._population.nets) == 1 and "global" in models["0"]
        return BestModel(round, models["0"]["global"] if is_one else state.params)

    def export_chosen(self) -> ChosenModel | None:
        """Return the model that validation chose, as NumPy arrays; None without a validation set."""
        if self.chosen is None:
            return None
        return replace(self.chosen, params=self._add_constants(tree.to_numpy(self.chosen.params)))

    def _add_constants(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Add the frozen weights that came from a file, which nothing else of the run has.

        Several architectures keep theirs apart, and an ensemble has several models: both stay as they are.
        """
        net, *others = self._population.nets
        if others or params.keys() - set(net.keys):
            return dict(params)
        return {**params, **net.initial_constants}
