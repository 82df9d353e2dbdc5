"""Metrics for Prometheus.

Metrics of jobs are read from the store for each scrape: the store has a row of sums for each job
(`jobs.store.totals`), so a restart of the service loses no round and counts none twice. Metrics of requests
and streams belong to this process and start at 0.
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
    "client_updates": ("fedsim_client_updates", "Client updates that were aggregated, over all rounds."),
    "client_failures": ("fedsim_client_failures", "Clients that failed and were left out of a round."),
    "actor_restarts": ("fedsim_actor_restarts", "Workers that died and were replaced."),
    "seconds_total": ("fedsim_round_seconds", "Wall-clock seconds of all rounds."),
}
"""Metric name and description of each sum without a label."""


class ServiceMetrics:
    """All metrics of one service.

    Args:
        streams: counter of open streams.
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
            "Seconds of requests; of streams until their end.",
            ("route",),
            buckets=(0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0),
            registry=self.registry,
        )
        self._streams = streams

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an ended request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def format_text(self, read: Callable[[], Totals], ready: bool) -> bytes:
        """Write all metrics in the text format of Prometheus.

        Args:
            read: returns the sums of the store.
            ready: whether jobs can run now.
        """
        # A new registry for each scrape: no value can be outdated.
        registry = CollectorRegistry()
        registry.register(_Figures([*make_store_metrics(read()), *self._own(ready)]))
        return generate_latest(registry) + generate_latest(self.registry)

    def _own(self, ready: bool) -> Iterator[Metric]:
        about = GaugeMetricFamily("fedsim_build_info", "The version of the service.", labels=("version",))
        about.add_metric((fedsim.__version__,), 1)
        yield about
        yield GaugeMetricFamily("fedsim_ready", "1 while the database and Ray answer.", value=int(ready))
        open_streams = "Event streams and followed logs that are open now."
        yield GaugeMetricFamily("fedsim_streams", open_streams, value=self._streams.open)


class _Figures(Collector):
    """A collector of given metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        return iter(self.metrics)


def make_store_metrics(found: Totals) -> Iterator[Metric]:
    """Convert the sums of the store to metrics."""
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
        "fedsim_simulated_bytes", "Simulated traffic of the clients, in bytes.", labels=("direction",)
    )
    for direction in ("down", "up"):
        traffic.add_metric((direction,), found.sums[f"bytes_{direction}"])
    yield traffic
    yield from _queue_metrics(found)


def _queue_metrics(found: Totals) -> Iterator[Metric]:
    waits = HistogramMetricFamily("fedsim_queue_wait_seconds", "Seconds that jobs waited in the queue.")
    classes = [(str(most), float(count)) for most, count in zip(WAITS, found.waits, strict=True)]
    waits.add_metric((), [*classes, ("+Inf", float(found.waited))], found.wait_seconds)
    yield waits
    oldest = "Waiting time of the oldest queued job, in seconds; 0 without queued jobs."
    yield GaugeMetricFamily("fedsim_queue_oldest_seconds", oldest, value=found.oldest_seconds)
