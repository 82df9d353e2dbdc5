"""Federations of softmax classifiers with a public set, and the classifiers in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.clients.population import Population
from fedsim.core import Algorithm, LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from tests.fedsim.federations import federation
from tests.fedsim.replay import Array

SIZES = [3, 8, 11, 16, 20, 24, 30]
N, C = 40, 4  # public examples, and classes


def linear(**changes: Any) -> Population:
    local = LocalTraining(epochs=1, batch_size=8, lr=0.1)
    settings = {"rounds": 4, "cohort_size": 7, "local": local, **changes}
    return federation(SIZES, model="logistic", **settings)


def mixed(**changes: Any) -> Population:
    population = linear(**changes)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": C}
    return replace(population, nets=tuple(make_net(name, **shape) for name in ("mlp", "logistic")))


def run(algorithm: Algorithm, population: Population) -> tuple[list[RoundResult], SerialPool]:
    pool = SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool)), pool


def softmax(logits: Array, temperature: float = 1.0) -> Array:
    raised = np.exp(logits / temperature - (logits / temperature).max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def logits_of(w: Array, x: Array) -> Array:
    return np.hstack([x.astype(np.float64), np.ones((len(x), 1))]) @ w.T


def matrix(params: Mapping[str, Tensor]) -> Array:
    return np.hstack([params["head.weight"].numpy(), params["head.bias"].numpy()[:, None]])
