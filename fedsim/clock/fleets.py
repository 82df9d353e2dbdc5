"""Fleets: the devices of all clients. A client's profile is drawn when it is asked for, and never stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isnan
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.base import rng
from fedsim.base.parameters import Range, find_parameter_faults, make_spec_error
from fedsim.clock.fleet_file import read_fleet_file
from fedsim.clock.profiles import DeviceProfile, Scale
from fedsim.data.places import DataPath, DataRoots
from fedsim.errors import SpecError

COLUMNS = tuple(field.name for field in fields(DeviceProfile))
"""The fields of a profile, in order."""

LINK_SPEEDS = ("down_mbps", "up_mbps")

Spread: TypeAlias = Annotated[float, Range(minimum=0, maximum=10)]
"""The standard deviation of a logarithm."""


class Fleet(ABC):
    """The devices of all clients."""

    def prepare(self, places: DataRoots, num_clients: int) -> Fleet:
        """Read what the fleet needs; most fleets need nothing.

        Args:
            places: the data roots.
            num_clients: N.

        Raises:
            SpecError, DataNotFound: the fleet cannot be read, or has another number of clients.
        """
        return self

    def find_least_memory(self) -> float | None:
        """Return the memory of the smallest device, in 10^9 bytes; None if all have enough."""
        return None

    @abstractmethod
    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Return the profile of a client; the same in every call with the same seed."""


@dataclass(frozen=True, kw_only=True)
class Equal(DeviceProfile, Fleet):
    """All clients have the same device; without parameters, infinitely fast ones."""

    def find_least_memory(self) -> float | None:
        """Return the memory of the one device."""
        return self.memory_gb

    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Return the one profile."""
        return DeviceProfile(**{name: getattr(self, name) for name in COLUMNS})


@dataclass(frozen=True, kw_only=True)
class Lognormal(Equal):
    """Speeds with a lognormal distribution; the parameters of a device are its medians.

    Attributes:
        spread: standard deviation of the natural logarithm of `gflops`; 0.5 makes the 90th percentile 3.6
            times as fast as the 10th.
        link_spread: the same of the speeds of the link; both directions have the same factor.
    """

    spread: Spread = 0.5
    link_spread: Spread = 0.5

    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Return the medians times two factors of the client."""
        profile = super().draw_profile(seed, client)
        return _scale_speeds(profile, rng.stream(seed, "device", client), self.spread, self.link_spread)


@dataclass(frozen=True, kw_only=True)
class Classes(Fleet):
    """Classes of devices; each client belongs to one of them at random.

    Attributes:
        classes: a list of classes. Each has a `share` above 0, relative to the others, and the fields of a
            device, as in `equal`.
    """

    classes: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        if not self.classes:
            raise make_spec_error("classes", [], "has no class", "such as [{share: 1, gflops: 20}]")
        faults = []
        for number, each in enumerate(self.classes):
            found = find_parameter_faults(DeviceClass, each)
            faults += [fault._replace(path=f"classes.{number}.{fault.path}") for fault in found]
        if faults:
            raise SpecError(faults)

    def find_least_memory(self) -> float | None:
        """Return the memory of the smallest class."""
        return min((each["memory_gb"] for each in self.classes if each.get("memory_gb")), default=None)

    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Return the profile of the client's class."""
        shares = [each["share"] for each in self.classes]
        number = _draw_class(rng.stream(seed, "device", client), shares)
        return DeviceProfile(**{name: each for name, each in self.classes[number].items() if name != "share"})


@dataclass(frozen=True, kw_only=True)
class DeviceClass(DeviceProfile):
    """A class of devices.

    Attributes:
        share: of the clients, relative to the other classes.
    """

    share: Scale


LINKS: Mapping[str, DeviceProfile] = {
    "4g": DeviceProfile(
        down_mbps=21.3, up_mbps=6.3, latency_ms=55.0, joules_per_mb_down=0.90, joules_per_mb_up=5.14
    ),
    "5g": DeviceProfile(
        down_mbps=166.1, up_mbps=21.1, latency_ms=28.0, joules_per_mb_down=0.48, joules_per_mb_up=4.00
    ),
    "wifi": DeviceProfile(
        down_mbps=79.0, up_mbps=34.9, latency_ms=9.0, joules_per_mb_down=1.11, joules_per_mb_up=2.30
    ),
}
"""Links of phones; docs/clock.md has the sources."""

PHONES: Sequence[tuple[float, DeviceProfile]] = (
    (0.15, DeviceProfile(gflops=153.6, memory_gb=8.0, joules_per_gflop=5.5 / 153.6)),
    (0.35, DeviceProfile(gflops=80.0, memory_gb=4.0, joules_per_gflop=5.6 / 80.0)),
    (0.50, DeviceProfile(gflops=52.8, memory_gb=2.0, joules_per_gflop=3.6 / 52.8)),
)
"""High-end, mid-range and low-end phones, each with its share; docs/clock.md has the sources."""


@dataclass(frozen=True, kw_only=True)
class Phones(Fleet):
    """Phones of three classes, on 4G, 5G, Wi-Fi or a third each.

    Attributes:
        link: of all phones; `mixed`: each phone has one of the three at random.
        efficiency: share of the peak speed that training reaches; slower training takes more energy.
        link_spread: standard deviation of the natural logarithm of the speeds of a link.
    """

    link: Literal["4g", "5g", "wifi", "mixed"] = "mixed"
    efficiency: Scale = 1.0
    link_spread: Spread = 0.5

    def find_least_memory(self) -> float | None:
        """Return the memory of a low-end phone."""
        return min(phone.memory_gb for _, phone in PHONES if phone.memory_gb)

    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Return a phone with a link."""
        stream = rng.stream(seed, "device", client)
        phone = PHONES[_draw_class(stream, [share for share, _ in PHONES])][1]
        name = tuple(LINKS)[stream.integers(len(LINKS))]  # drawn always: phones are the same on every link
        profile = replace(
            LINKS[name if self.link == "mixed" else self.link],
            gflops=(phone.gflops or 0) * self.efficiency,
            memory_gb=phone.memory_gb,
            joules_per_gflop=phone.joules_per_gflop / self.efficiency,
        )
        return _scale_speeds(profile, stream, 0.0, self.link_spread)


@dataclass(frozen=True, kw_only=True)
class File(Fleet):
    """The devices of a CSV file, one line for each client in order.

    The header names fields of a device, as in `equal`; a field without a column has its default. An empty
    cell of a speed is an infinite speed.

    Attributes:
        path: the file, relative to a data root.
    """

    path: DataPath

    def prepare(self, places: DataRoots, num_clients: int) -> Fleet:
        """Read the file."""
        return FileRows(read_fleet_file(places, self.path, num_clients, COLUMNS))

    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Raise an error: the file is not read yet."""
        raise RuntimeError("call prepare() first")


@dataclass(frozen=True, eq=False)
class FileRows(Fleet):
    """The devices of a file that has been read.

    Attributes:
        columns: {field: float64 `[N]`}; NaN for an infinite speed.
    """

    columns: Mapping[str, NDArray[np.float64]]

    def find_least_memory(self) -> float | None:
        """Return the smallest number of the column; None without one."""
        known = self.columns.get("memory_gb", np.empty(0))
        known = known[~np.isnan(known)]
        return float(known.min()) if len(known) else None

    def draw_profile(self, seed: int, client: int) -> DeviceProfile:
        """Return the line of the client."""
        values = {name: float(column[client]) for name, column in self.columns.items()}
        given: dict[str, Any] = {name: None if isnan(value) else value for name, value in values.items()}
        return DeviceProfile(**given)


def _scale_speeds(
    profile: DeviceProfile, stream: np.random.Generator, spread: float, link_spread: float
) -> DeviceProfile:
    """Multiply the speeds by lognormal factors of median 1."""
    compute, link = np.exp(stream.standard_normal(2) * (spread, link_spread)).tolist()
    factors = {"gflops": compute, **dict.fromkeys(LINK_SPEEDS, link)}
    speeds = {name: getattr(profile, name) for name in factors}
    return replace(profile, **{name: speed and speed * factors[name] for name, speed in speeds.items()})


def _draw_class(stream: np.random.Generator, shares: Sequence[float]) -> int:
    """Draw the number of a class in proportion to the shares."""
    return int(np.searchsorted(np.cumsum(shares), stream.random() * sum(shares), side="right"))


FLEETS: Mapping[str, type[Fleet]] = {
    "equal": Equal,
    "lognormal": Lognormal,
    "classes": Classes,
    "phones": Phones,
    "file": File,
}
"""The fleets, by the name that a spec gives them (`devices.fleet`)."""
