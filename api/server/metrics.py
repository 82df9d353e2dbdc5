"""Figures for Prometheus.

What jobs have done is read from the store when somebody asks: there each job has a row of sums that grows
with its rounds (`jobs.store.totals`), so a restart of the API changes nothing and no round is counted twice
or missed. Requests and streams are this process's own, and begin at 0 with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import fedsim
from api.server.limits import OpenStreams
from jobs.store.totals import WAITS, Totals

PHASES = ("survey", "train", "server", "evaluate")

SUMS = {
    "rounds": ("fedsim_rounds", "Rounds that have ended."),
    "client_updates": ("fedsim_client_updates", "Clients that were trained and counted, over all rounds."),
    "client_failures": ("fedsim_client_failures", "Clients that failed and were left out of a round."),
    "actor_restarts": ("fedsim_actor_restarts", "Client actors that died and were replaced."),
    "seconds_total": ("fedsim_round_seconds", "Wall-clock seconds of all rounds."),
}
"""Sums of the store that have no label: their metric and its description."""


class ServiceMetrics:
    """All figures of one service.

    Args:
        streams: the count of open streams.
    """

    def __init__(self, streams: OpenStreams) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "fedsim_http_requests",
            "Requests answered by this process.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "fedsim_http_request_seconds",
            "How long requests took, streams until their end.",
            ("route",),
            buckets=(0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0),
            registry=self.registry,
        )
        self._streams = streams

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def format_text(self, read: Callable[[], Totals], ready: bool) -> bytes:
        """Write everything in Prometheus' text format.

        Args:
            read: gives the sums of the store.
            ready: whether jobs can run now.
        """
        # Parsed, summed and written anew for each scrape: nothing is kept that could grow old.
        registry = CollectorRegistry()
        registry.register(_Figures([*make_store_metrics(read()), *self._own(ready)]))
        return generate_latest(registry) + generate_latest(self.registry)

    def _own(self, ready: bool) -> Iterator[Metric]:
        about = GaugeMetricFamily("fedsim_build_info", "The version that answers.", labels=("version",))
        about.add_metric((fedsim.__version__,), 1)
        yield about
        yield GaugeMetricFamily("fedsim_ready", "1 while the store and Ray answer.", value=int(ready))
        open_streams = "Event streams and followed logs that are open now."
        yield GaugeMetricFamily("fedsim_streams", open_streams, value=self._streams.open)


class _Figures(Collector):
    """Metrics that are known already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Give them."""
        return iter(self.metrics)


def make_store_metrics(found: Totals) -> Iterator[Metric]:
    """Put the sums of the store into metrics."""
    jobs = GaugeMetricFamily("fedsim_jobs", "Jobs in the store, by state.", labels=("state",))
    for state, count in found.states.items():
        jobs.add_metric((state.value,), count)
    yield jobs
    for column, (name, description) in SUMS.items():
        yield CounterMetricFamily(name, description, value=found.sums[column])
    phases = CounterMetricFamily(
        "fedsim_phase_seconds", "Wall-clock seconds of all rounds, by phase.", labels=("phase",)
    )
    for phase in PHASES:
        phases.add_metric((phase,), found.sums[f"seconds_{phase}"])
    yield phases
    traffic = CounterMetricFamily(
        "fedsim_simulated_bytes", "Bytes that the simulated clients sent and got.", labels=("direction",)
    )
    for direction in ("down", "up"):
        traffic.add_metric((direction,), found.sums[f"bytes_{direction}"])
    yield traffic
    yield from _queue_metrics(found)


def _queue_metrics(found: Totals) -> Iterator[Metric]:
    waits = HistogramMetricFamily("fedsim_queue_wait_seconds", "Seconds that jobs waited before they began.")
    classes = [(str(most), float(count)) for most, count in zip(WAITS, found.waits, strict=True)]
    waits.add_metric((), [*classes, ("+Inf", float(found.waited))], found.wait_seconds)
    yield waits
    oldest = "For how long the oldest waiting job has waited; 0 when none does."
    yield GaugeMetricFamily("fedsim_queue_oldest_seconds", oldest, value=found.oldest_seconds)
