"""A table of two rows and two columns, and entries of its journal, made up."""

from __future__ import annotations

from benchmarks.tables.grid import Table, hash_spec
from benchmarks.tables.journal import Entry

SMALL = """
page: kdia
title: A small table
about: For a test.
preset: demo
set: [rounds=2, data.limit=200, clients.total=10, local.epochs=1]
axes:
  mu: {plain: [], strong: [algorithm=fedprox, algorithm.mu=1.0]}
  data: {IID: data.partition=iid, Dir(1): "data.partition={kind: dirichlet, beta: 1.0}"}
rows: [data]
columns: [mu]
seeds: [1, 2]
against: plain
show: [final, curve]
curve_every: 1
"""


def entry(table: Table, cell: tuple[str, ...], seed: int, accuracy: float) -> Entry:
    run = next(run for run in table.runs() if run.cell == cell and run.seed == seed)
    return Entry(
        key=hash_spec(table.spec(run)),
        labels=run.labels,
        seed=seed,
        rounds=2,
        final={"global_accuracy": accuracy},
        best={"round": 1, "value": accuracy + 0.1},
        tail=accuracy,
        curve={1: accuracy / 2, 2: accuracy},
        bytes={"down": 1, "up": 1},
        seconds=1.0,
        digest="",
        code="",
    )
