"""Populations: clients with their data, shared by the runs that a process makes one after another."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from fedsim.clients.population import Population
from fedsim.core import RunSettings
from fedsim.engine.experiment import Experiment


class Populations:
    """The last populations, shared by runs with the same data.

    Args:
        keep: how many.
    """

    def __init__(self, keep: int = 4) -> None:
        self.keep, self.made = keep, OrderedDict[str, Population]()

    def of(self, experiment: Experiment) -> Population:
        """Return the experiment's population; make it only if none with its data and partition is kept."""
        data_seed = RunSettings(seed=experiment.settings.seed, rounds=0, cohort_size=0)
        neutral: Any = {"algorithm": None, "settings": data_seed, "evaluate_every": 1, "personal": "auto"}
        neutral["devices"] = None
        key = repr(replace(experiment, **neutral))
        if key not in self.made:
            self.made[key] = experiment.load_population()
            while len(self.made) > self.keep:
                self.made.popitem(last=False)
        self.made.move_to_end(key)
        return replace(self.made[key], settings=experiment.settings)
