"""Checks of what a caller gives to `simulate`; the values of a spec have been checked before."""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.base.parameters import find_field_faults
from fedsim.clients.population import Population
from fedsim.core import Algorithm
from fedsim.engine.client_pool import ClientPool
from fedsim.errors import DataError, FieldError, SpecError


def check_arguments(algorithm: Algorithm, population: Population, pool: ClientPool) -> None:
    """Check that these can make a run.

    Raises:
        ValueError: the clients of the pool run another algorithm.
        DataError: no client holds a training example.
        SpecError: hyper-parameters or settings have wrong values; paths begin with the name of a class.
    """
    _check_pool(algorithm, pool)
    _check_examples(population)
    if faults := list(_find_faults(algorithm, population)):
        raise SpecError(faults)


def _find_faults(algorithm: Algorithm, population: Population) -> Iterator[FieldError]:
    yield from find_field_faults(algorithm)
    yield from find_field_faults(population.settings)
    cohort_size, num_clients = population.settings.cohort_size, population.partition.num_clients
    if cohort_size > num_clients:
        hint = f"there are {num_clients} clients"
        yield FieldError("RunSettings.cohort_size", cohort_size, "is more than all clients", hint)
    for net in population.nets:
        for fault in algorithm.check_hyperparameters(net, population.settings.rounds):
            yield fault._replace(path=f"{type(algorithm).__name__}.{fault.path}")


def _check_pool(algorithm: Algorithm, pool: ClientPool) -> None:
    """Raise ValueError if the clients of the pool run another algorithm."""
    if algorithm is not pool.algorithm and algorithm != pool.algorithm:
        own = type(pool.algorithm).__name__
        raise ValueError(
            f"the pool was made for {own}, and is to run {type(algorithm).__name__}, "
            "or the same with other hyper-parameters; make a pool with this algorithm"
        )


def _check_examples(population: Population) -> None:
    """Raise DataError if no client holds a training example."""
    if not population.partition.mean_size:
        raise DataError(
            f"none of the {population.partition.num_clients} clients holds an example",
            "raise data.limit, or have data.public and evaluation.validation take less away",
        )
