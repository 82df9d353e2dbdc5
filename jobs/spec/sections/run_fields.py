"""The sections of a spec that change how a job runs, but no round: stop, resources, faults, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from actors.resources import ROUNDING, ClusterNode, place_workers, reserve_server_gpu
from fedsim.engine.stopping import StopRule
from jobs.spec.fields import MAX_ROUNDS, Name, Number, Section, Whole, make_fault

LEAST_CPUS = 0.05
"""Smallest share of a core for a worker. Each worker is a process of some hundred megabytes: a machine must
not start thousands of them."""


class JobSize(NamedTuple):
    """The CPUs and GPUs that a job takes, or that a whole cluster has."""

    cpus: float
    gpus: float


def fit_together(sizes: Sequence[JobSize], cluster: JobSize) -> bool:
    """Return whether a cluster, its nodes added up, has room for jobs of these sizes at the same time."""
    cpus, gpus = sum(size.cpus for size in sizes), sum(size.gpus for size in sizes)
    return cpus <= cluster.cpus + ROUNDING and gpus <= cluster.gpus + ROUNDING


class Resources(Section):
    """The resources of the job on the cluster; the number of workers changes no result."""

    workers: Annotated[Whole, Field(ge=1, le=10_000)] | Literal["auto"] = Field(
        default="auto", description="how many workers train clients at the same time"
    )
    cpus_per_worker: Number = Field(
        default=1.0, ge=LEAST_CPUS, le=1024, description="CPU cores of each worker"
    )
    gpus_per_worker: Number = Field(default=0.0, ge=0, le=1024, description="may be a fraction of one GPU")
    server_gpus: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of a GPU for the server's own training; 0: the server trains on its CPU",
    )
    stack: Annotated[Whole, Field(ge=1, le=1024)] | Literal["auto", "off"] = Field(
        default="auto", description="how many clients a worker trains at once, as one stack"
    )
    graphs: bool = Field(
        default=False, strict=True, description="replay the steps of stacks as CUDA graphs; needs GPUs"
    )

    @model_validator(mode="after")
    def _check_gpus(self) -> Resources:
        gpus = self.gpus_per_worker
        if self.graphs and not gpus:
            hint = "set gpus_per_worker, or leave graphs out"
            raise make_fault("asks for CUDA graphs, but the workers have no GPU", hint, "graphs")
        if gpus > 1 and gpus != int(gpus):
            hint = "allowed: a fraction of one GPU, or a whole number of GPUs"
            raise make_fault("is more than one GPU, but not a whole number", hint, "gpus_per_worker")
        for field in ("cpus_per_worker", "gpus_per_worker", "server_gpus"):
            if round(getattr(self, field), 4) != getattr(self, field):
                raise make_fault("has more digits than Ray counts", "allowed: steps of 0.0001", field)
        return self

    def check_fit(self, nodes: Sequence[ClusterNode]) -> None:
        """Check that the empty cluster can hold the workers.

        Raises:
            DoesNotFit: if it cannot; the message holds the arithmetic.
        """
        there = reserve_server_gpu(nodes, self.server_gpus)
        place_workers(self.workers, self.cpus_per_worker, self.gpus_per_worker, there)

    def measure_job(self, cluster: JobSize) -> JobSize:
        """Return what a job on Ray takes of a cluster; with `workers: auto` it takes all.

        Small workers do not make a job smaller than one CPU, which its runner and its coordinator take.
        """
        if self.workers == "auto":
            return cluster
        cpus = max(1.0, self.workers * self.cpus_per_worker)
        return JobSize(cpus, self.workers * self.gpus_per_worker + self.server_gpus)


class FaultsSection(Section):
    """What the job does after an error of a client, a worker or a node."""

    client_error: Literal["fail", "skip", "retry"] = Field(
        default="fail",
        description="after an error of a client: fail the job, skip the client in this round, or retry it",
    )
    max_retries: Whole = Field(
        default=3,
        ge=0,
        le=100,
        description="how often to repeat the work of a dead worker, and of a client with client_error: retry",
    )
    max_restarts: Whole = Field(
        default=3, ge=0, le=100, description="how often the job restarts from its checkpoint by itself"
    )


class Stop(Section):
    """When the job ends before its last round; the rounds themselves stay the same."""

    metric: Name | None = Field(default=None, description="the metric of `target` and `patience`")
    target: Number | None = Field(
        default=None, description="end when the metric is at least this value; for a loss, at most"
    )
    patience: Whole | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="end when the metric did not improve in this many rounds that measured it; the result is "
        "of the best round",
    )
    max_seconds: Number | None = Field(default=None, gt=0, description="end after so many seconds of rounds")
    max_simulated_seconds: Number | None = Field(
        default=None, gt=0, description="end when the simulated clock of `devices` shows so many seconds"
    )
    max_bytes: Number | None = Field(
        default=None, gt=0, description="end after this many simulated bytes, down and up"
    )
    round: Whole | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="end after this round, with a checkpoint; a resume with a number of rounds goes on",
    )

    @property
    def rule(self) -> StopRule | None:
        """The rule of the engine; None if the section has no criterion."""
        found = StopRule(**self.model_dump())
        return None if found == StopRule() else found

    @model_validator(mode="after")
    def _check_metric(self) -> Stop:
        criteria = [name for name in ("target", "patience") if getattr(self, name) is not None]
        if criteria and self.metric is None:
            hint = "name a metric, such as stop.metric: global_accuracy"
            raise make_fault("needs a metric", hint, criteria[0])
        if self.metric is not None and not criteria:
            raise make_fault("has no meaning alone", "set stop.target or stop.patience too", "metric")
        return self


class Checkpointing(Section):
    """When the job writes checkpoints, from which it can go on."""

    every: Whole = Field(
        default=10,
        ge=0,
        le=MAX_ROUNDS,
        description="write a checkpoint every n-th round, and after the last; 0: none",
    )
