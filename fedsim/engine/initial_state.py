"""Make the server state before round 1, with the label census and the expert survey of the algorithm."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from fedsim.base import rng, wire
from fedsim.base.error_attribution import attribute_server_errors
from fedsim.base.privacy import Mechanism, add_label_noise
from fedsim.clients.population import Population
from fedsim.core import Algorithm, Context, Traffic
from fedsim.core.capabilities import ExpertSurvey, LabelCensus, capability
from fedsim.core.census import CensusAnswers, CensusQuestion, Real
from fedsim.data.partitions import main_label
from fedsim.data.statistics import class_counts
from fedsim.engine.worker import one_thread
from fedsim.errors import FedsimError
from fedsim.techniques.clustering import distance_matrix, distances_to, label_distributions

_LOG = logging.getLogger(__name__)

MANY_PAIRS = 1_000_000
"""Number of client pairs from which the log warns: comparing them takes a minute and a half."""


def make_state_and_traffic(algorithm: Algorithm, population: Population) -> tuple[Any, Traffic]:
    """Return the server state before round 1, and the traffic of the label census and the expert survey."""
    ctx, state = population.context(0), make_state_template(algorithm, population)
    state, traffic = _run_census(algorithm, population, ctx, state)
    survey = capability(algorithm, ExpertSurvey)
    if survey is None:
        return state, traffic
    losses = average_expert_losses(population)
    with attribute_server_errors(algorithm, "apply_expert_losses"):
        state = survey.apply_expert_losses(ctx, state, losses)
    return state, traffic + wire.make_traffic({}, {"survey": wire.NUMBER_BYTES * len(losses)})


def make_state_template(algorithm: Algorithm, population: Population) -> Any:
    """Return the server state before the census and the survey, which take long for many clients.

    Its types are those of every later state: a checkpoint is unpacked with them.
    """
    with one_thread(), attribute_server_errors(algorithm, "init_server_state"):
        return algorithm.init_server_state(population.context(0))


def _run_census(
    algorithm: Algorithm, population: Population, ctx: Context, state: Any
) -> tuple[Any, Traffic]:
    """Return the server state with the answers of the label census, and its traffic."""
    census = capability(algorithm, LabelCensus)
    if census is None:
        return state, Traffic()
    with one_thread(), attribute_server_errors(algorithm, "plan_census"):
        question = census.plan_census(ctx)
        if question is None:
            return state, Traffic()
        answers = answer_census(question, population)
        return census.apply_census(ctx, state, answers), count_census_traffic(question, *answers.shares.shape)


def make_initial_state(algorithm: Algorithm, population: Population) -> Any:
    """Return the server state before round 1; see `make_state_and_traffic`."""
    return make_state_and_traffic(algorithm, population)[0]


def average_expert_losses(population: Population) -> Real:
    """Compute the expert's mean loss on each client's training examples, float64 `[N]`; NaN without examples.

    Raises:
        FedsimError: if the population has no expert's losses.
    """
    if (losses := population.difficulty) is None:
        message = "the scores of clients need an expert's losses, and the population has none"
        raise FedsimError(message, "give the population's `difficulty`, or set `expert_epochs`")
    partition = population.partition
    held = (losses[partition.client_positions(client)] for client in range(partition.num_clients))
    return np.array([each.mean(dtype=np.float64) if len(each) else np.nan for each in held])


def answer_census(question: CensusQuestion, population: Population) -> CensusAnswers:
    """Compute the census answers of all clients from the population, without a message to any client."""
    counts = count_client_labels(population, once=question.noise is not None)
    shares = label_distributions(counts)
    if question.noise is not None:
        shares = _noisy(question.noise, counts, population.settings.seed)
    sizes = np.array([population.partition.size(k) for k in range(len(counts))], np.int64)
    if question.ask == "matrix":
        if (pairs := len(counts) * (len(counts) - 1) // 2) >= MANY_PAIRS:
            _LOG.warning(
                "comparing %s pairs of label distributions; `vector` compares one client", f"{pairs:,}"
            )
        return CensusAnswers(sizes, distance_matrix(shares, question.ground), None, shares)
    # A client without labels has no distribution, so it cannot be the reference.
    able = np.flatnonzero(counts.any(1)) if counts.any() else np.arange(len(counts))
    other = (question.selection,) if question.selection else ()
    reference = int(able[rng.stream(population.settings.seed, "census", *other).integers(len(able))])
    return CensusAnswers(sizes, distances_to(shares, shares[reference], question.ground), reference, shares)


def count_client_labels(population: Population, once: bool = False) -> Real:
    """Count every client's training examples of each class, float64 `[N, classes]`.

    Args:
        population: of the clients.
        once: where an example has several labels, count it for the first that it carries alone, or as one
            more class if it carries none; otherwise for each of them. Noise needs it: an example then moves
            no more than two counts.
    """
    labels, classes = population.dataset.train.y, population.dataset.num_classes
    if labels.ndim > 1 and once:
        labels, classes = main_label(labels), classes + 1
    return class_counts(population.partition, labels, classes).astype(np.float64)


def count_census_traffic(question: CensusQuestion, clients: int, classes: int) -> Traffic:
    """Return the traffic of one label census.

    A matrix takes C numbers up from everybody. A vector takes C numbers up from the client that was drawn,
    and for everybody else C down and one up.
    """
    others, distribution = clients - 1, wire.NUMBER_BYTES * classes
    if question.ask == "matrix":
        return wire.make_traffic({}, {"census": clients * distribution})
    return wire.make_traffic(
        {"census": others * distribution}, {"census": distribution + others * wire.NUMBER_BYTES}
    )


def _noisy(noise: Mechanism, counts: Real, seed: int) -> Real:
    streams = (rng.stream(seed, "census-noise", client) for client in range(len(counts)))
    return np.array([add_label_noise(row, noise, s) for row, s in zip(counts, streams, strict=True)])
