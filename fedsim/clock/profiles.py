"""DeviceProfile: how fast one client computes and communicates, and the energy that this takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, NamedTuple, TypeAlias

from fedsim.base.parameters import Range

Scale: TypeAlias = Annotated[float, Range(minimum=1e-6, maximum=1e12)]
"""A size in any unit. Without bounds, the seconds of a round would be no finite number."""

Speed: TypeAlias = Scale | None
"""A speed or a size; None for infinite."""

Amount: TypeAlias = Annotated[float, Range(minimum=0, maximum=1e12)]
"""A delay or an energy."""


class ClientWork(NamedTuple):
    """The work of one client in one round, as fedsim counts it.

    Attributes:
        bytes_down: bytes of its download.
        flops: floating-point operations of its training.
        bytes_up: bytes of its upload.
    """

    bytes_down: int
    flops: int
    bytes_up: int


class WorkSeconds(NamedTuple):
    """The seconds of one client's round, in order: latency, download, training, upload."""

    latency: float
    download: float
    training: float
    upload: float

    @property
    def total(self) -> float:
        """Seconds from the start of the round to the arrival of the upload."""
        return self.latency + self.download + self.training + self.upload

    def shares_done(self, elapsed: float) -> tuple[float, float, float]:
        """Return the shares of download, training and upload that are done after these seconds."""
        shares, left = list[float](), elapsed - self.latency
        for seconds in (self.download, self.training, self.upload):
            shares.append(min(1.0, max(0.0, left / seconds)) if seconds else float(left >= 0))
            left -= seconds
        return shares[0], shares[1], shares[2]


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """The device of a client and its link.

    Attributes:
        gflops: speed of the training, in 10^9 counted floating-point operations per second; null: infinite.
        down_mbps: speed of the download, in 10^6 bits per second; null: infinite.
        up_mbps: speed of the upload, in 10^6 bits per second; null: infinite.
        latency_ms: delay before the download begins, once per round, in milliseconds.
        memory_gb: memory for training, in 10^9 bytes; null: enough for every model.
        joules_per_gflop: energy of 10^9 operations.
        joules_per_mb_down: energy of receiving 10^6 bytes.
        joules_per_mb_up: energy of sending 10^6 bytes.
    """

    gflops: Speed = None
    down_mbps: Speed = None
    up_mbps: Speed = None
    latency_ms: Amount = 0.0
    memory_gb: Speed = None
    joules_per_gflop: Amount = 0.0
    joules_per_mb_down: Amount = 0.0
    joules_per_mb_up: Amount = 0.0

    def measure_seconds(self, work: ClientWork) -> WorkSeconds:
        """Return the seconds of this work on this device.

        >>> phone = DeviceProfile(gflops=10, down_mbps=40, up_mbps=8, latency_ms=50)
        >>> phone.measure_seconds(ClientWork(bytes_down=5_000_000, flops=20_000_000_000, bytes_up=5_000_000))
        WorkSeconds(latency=0.05, download=1.0, training=2.0, upload=5.0)
        """
        return WorkSeconds(
            self.latency_ms / 1000,
            8 * work.bytes_down / (1e6 * _or_infinite(self.down_mbps)),
            work.flops / (1e9 * _or_infinite(self.gflops)),
            8 * work.bytes_up / (1e6 * _or_infinite(self.up_mbps)),
        )

    def measure_joules(self, work: ClientWork, done: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> float:
        """Return the energy of this work.

        Args:
            work: of the client.
            done: the shares of download, training and upload that were done; see `WorkSeconds.shares_done`.
        """
        return (
            done[0] * work.bytes_down / 1e6 * self.joules_per_mb_down
            + done[1] * work.flops / 1e9 * self.joules_per_gflop
            + done[2] * work.bytes_up / 1e6 * self.joules_per_mb_up
        )


def _or_infinite(speed: float | None) -> float:
    return inf if speed is None else speed
