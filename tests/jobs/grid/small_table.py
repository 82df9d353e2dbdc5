"""A table of two rows and two columns, and entries of its journal, made up."""

from __future__ import annotations

from jobs.grid.journal import Entry
from jobs.grid.table import Table
from jobs.spec.sweep import Member

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


def find_member(table: Table, cell: tuple[str, ...], seed: int) -> Member:
    return next(member for member in table.runs() if (member.run.cell, member.run.seed) == (cell, seed))


def entry(table: Table, cell: tuple[str, ...], seed: int, accuracy: float) -> Entry:
    member = find_member(table, cell, seed)
    return Entry(
        key=member.spec_hash,
        labels=member.run.labels,
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
