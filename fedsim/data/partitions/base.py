"""The base of a partition that is made from another partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from fedsim.data.partition import Partition
from fedsim.data.partitions.partition_input import PartitionCounts, PartitionInput
from fedsim.errors import FieldError, SpecError

BASE: Mapping[str, Any] = MappingProxyType({"kind": "dirichlet", "beta": 0.5})
"""The default base partition."""

# The registry imports the kinds, and a base needs the registry: the functions below import it when they run.


def make_base(given: PartitionInput, base: Mapping[str, Any], num_clients: int) -> Partition:
    """Make the base partition of these examples.

    Args:
        given: the examples.
        base: kind and parameters.
        num_clients: clients of the base partition.

    Raises:
        SpecError: if it is impossible with these examples; paths begin with `base`.
    """
    from fedsim.data.partitions import make_partition

    try:
        return make_partition(
            str(base["kind"]),
            labels=given.labels,
            num_clients=num_clients,
            num_classes=given.num_classes,
            seed=given.seed,
            groups=given.groups,
            places=given.places,
            **_list_parameters(base),
        )
    except SpecError as error:
        raise SpecError(to_base_faults(error.errors)) from None


def check_base(counts: PartitionCounts, base: Mapping[str, Any]) -> None:
    """Raise the errors of the base partition that these counts show.

    Raises:
        SpecError: as `make_base`.
    """
    from fedsim.data.partitions import find_faults_by_counts

    if faults := find_faults_by_counts(str(base["kind"]), _list_parameters(base), counts):
        raise SpecError(to_base_faults(faults))


def to_base_faults(faults: Iterable[FieldError]) -> list[FieldError]:
    """The base's errors with paths that begin with `base`; `num_clients` belongs to both partitions."""
    return [f if f.path == "num_clients" else f._replace(path=f"base.{f.path}") for f in faults]


def _list_parameters(base: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in base.items() if name != "kind"}
