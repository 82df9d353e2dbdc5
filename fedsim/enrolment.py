"""The server state before round 1, and the census that it may rest on."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import rng, wire
from .causes import server_side
from .census import Answers, Census
from .clustering import Real, distance_matrix, distances_to, distributions
from .core import Algorithm, Traffic
from .population import Population
from .privacy import Mechanism, noisy_shares
from .worker import one_thread


def enrolled(algorithm: Algorithm, population: Population) -> tuple[Any, Traffic]:
    """The server state before round 1, and what asking the clients for it cost."""
    ctx = population.context(0)
    with one_thread(), server_side(algorithm, "init"):
        state = algorithm.init(ctx)
    if not algorithm.has("label_census"):
        return state, Traffic()
    with one_thread(), server_side(algorithm, "label_census"):
        question = algorithm.label_census(ctx)
        if question is None:
            return state, Traffic()
        answers = asked(question, population)
        return algorithm.counted(ctx, state, answers), census_traffic(question, *answers.shares.shape)


def first_state(algorithm: Algorithm, population: Population) -> Any:
    """As `enrolled`, the state alone."""
    return enrolled(algorithm, population)[0]


def asked(question: Census, population: Population) -> Answers:
    """What all clients answer, worked out here without a message to any of them."""
    counts = label_counts(population)
    shares = distributions(counts)
    told = shares if question.noise is None else _noisy(question.noise, counts, population.seed)
    sizes = np.array([population.partition.size(k) for k in range(len(counts))], np.int64)
    if question.ask == "matrix":
        return Answers(sizes, distance_matrix(told, question.ground), None, shares)
    reference = int(rng.stream(population.seed, "census").integers(len(counts)))
    return Answers(sizes, distances_to(told, told[reference], question.ground), reference, shares)


def label_counts(population: Population) -> Real:
    """How many training examples of each class every client has, float64 `[N, classes]`."""
    labels, classes = population.dataset.train.y, population.dataset.num_classes
    clients = range(population.partition.num_clients)
    held = (labels[population.partition.client(client)] for client in clients)
    if labels.ndim > 1:
        return np.array([(y > 0.5).sum(0) for y in held], np.float64).reshape(-1, classes)
    return np.array([np.bincount(y, minlength=classes) for y in held], np.float64).reshape(-1, classes)


def census_traffic(question: Census, clients: int, classes: int) -> Traffic:
    """What the census costs, once.

    A matrix takes C numbers up from everybody. A vector takes C numbers up from the client that was drawn,
    and for everybody else C down and one up.
    """
    others, distribution = clients - 1, wire.NUMBER_BYTES * classes
    if question.ask == "matrix":
        return wire.traffic({}, {"census": clients * distribution})
    return wire.traffic(
        {"census": others * distribution}, {"census": distribution + others * wire.NUMBER_BYTES}
    )


def _noisy(noise: Mechanism, counts: Real, seed: int) -> Real:
    streams = (rng.stream(seed, "census-noise", client) for client in range(len(counts)))
    return np.array([noisy_shares(row, noise, s) for row, s in zip(counts, streams, strict=True)])
