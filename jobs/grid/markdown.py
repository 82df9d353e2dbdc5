"""Rendering: the finished runs of a table as Markdown, between two markers of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from statistics import fmean

from jobs.grid.finished import Cell, Found, add_views, count_rounds, find_cells, find_opponent
from jobs.grid.journal import Entry
from jobs.grid.overview import render_overview
from jobs.grid.spread import NONE_KNOWN, make_lines, render_lines, spread, spread_reached
from jobs.grid.table import Table

Figures = Mapping[Cell, Sequence[float]]

TITLES = {
    "final": "after the last round",
    "best": "in the best round on the test set (an optimistic figure)",
    "tail": "mean of the scored rounds among the last 10",
    "chosen": "on the test set, for the round and the model that the validation set chooses",
    "swing": "mean change, up or down, between neighbouring points of the curve, second half of the run",
    "fall": "mean fall between neighbouring points of the curve, second half of the run (a rise counts as 0)",
}

MOST_ROUNDS = 10
"""The largest number of columns in a table of curves."""

ENDS = {"reach": "after the last round", "reach_best": "in its best round on the test set"}
"""The value that a run has to reach."""

SPENT_FIGURES = {
    "rounds": ("Rounds", 1),
    "bytes": ("10^6 bytes", 1e6),
    "simulated_seconds": ("Simulated seconds of the clients' devices", 1),
    "joules": ("Joules of the clients' devices", 1),
    "processor_seconds": ("Processor seconds", 1),
}
"""Title and unit of each cost until a run converges or reaches a target."""

SOME_REACH_IT = "`(1 of 3)`: only one run of three reaches it, and the figure is that run's"
"""How to read the cells of `spread_reached`."""

SUMS: Mapping[str, tuple[str, float]] = {
    "updates": ("trainable-parameter updates in training, all rounds and clients, in 10^9", 1e9),
    "flops": ("floating-point operations in training, all rounds and clients, in 10^12", 1e12),
    "tuning_updates": ("trainable-parameter updates in fine-tuning, all clients, in 10^9", 1e9),
    "tuning_flops": ("floating-point operations in fine-tuning, all clients, in 10^12", 1e12),
    "down": ("bytes sent to the clients, all rounds, in 10^6", 1e6),
    "up": ("bytes sent by the clients, all rounds, in 10^6", 1e6),
}
"""Heading and unit of each figure that is summed over a run."""


def render(table: Table, entries: Mapping[str, Entry]) -> str:
    """Render the section of a table: heading, setup of the runs, tables and commands."""
    runs = find_cells(table, entries)
    finished = sum(len(by_seed) for by_seed in runs.values())
    parts = [
        f"## {table.title}",
        table.about.strip(),
        _describe_state(table, finished, len(runs)),
        _describe_devices(runs),
        *_render_tables(table, runs),
        _render_choices(table),
        _render_commands(table),
    ]
    return "\n\n".join(part for part in parts if part)


def _describe_state(table: Table, finished: int, cells: int) -> str:
    seeds = ", ".join(map(str, table.seeds))
    every = cells * len(table.seeds)
    several = len(table.seeds) > 1
    state = f"Mean ± standard deviation over the seeds {seeds}." if several else f"One seed: {seeds}."
    state += f" `{table.metric}` is in percent." if table.percent else ""
    if finished == every:
        return state
    return (
        f"{state} **{finished} of {every} runs are finished.** "
        "A number in brackets is the number of seeds behind a figure."
    )


def _describe_devices(runs: Found) -> str:
    """Count the runs of each device, if it is known: it decides the last digits and the seconds."""
    counts = Counter(entry.device for by_seed in runs.values() for entry in by_seed.values())
    if not counts.keys() - {"cpu"}:
        return ""
    return f"Runs on each device: {', '.join(f'{name} {times}' for name, times in sorted(counts.items()))}."


def _render_choices(table: Table) -> str:
    """Render the values that searches chose for each label, with the score by which they chose them."""
    parts = []
    for search in table.searches:
        rows = [
            [
                label,
                ", ".join(choice.labels),
                str(choice.candidates) if choice.candidates else f"– (as {search.otherwise})",
                "–" if choice.score is None else f"{100 * choice.score:.1f}",
            ]
            for label, choice in table.choices.items()
            if choice.search == search.table
        ]
        heads = [search.axis, "chosen", "among", "validation accuracy"]
        said = f"Values that the validation set chose in the runs of `{search.table}`, never the test set:"
        parts.append(f"{said}\n\n{make_lines(heads, rows)}")
    return "\n\n".join(parts)


def _render_tables(table: Table, runs: Found) -> list[str]:
    parts: list[str] = []
    wide, seen = table.list_views_as_labels(), add_views(table, runs)
    for what in table.show:
        parts += render_overview(table, runs) if what == "overview" else _render_shown(wide, seen, what)
    for name in table.curves:
        parts += _render_further_curve(table, runs, name)
    for name in table.also:
        parts += _render_further_figure(table, runs, name)
    return parts


def _render_shown(table: Table, runs: Found, what: str) -> list[str]:
    """Render one of the figures of `show`; the table has its views as labels."""
    if what == "curve":
        return [f"{table.metric} by round:", _render_curves(table, runs)]
    if what in ENDS:
        return _render_rounds_to_reach(table, runs, what)
    if what == "converged":
        return _render_spent_to_converge(table, runs)
    if what == "spent":
        return _render_spent_to_targets(table, runs)
    return _render_figure(table, runs, what)


def _render_further_curve(table: Table, runs: Found, name: str) -> list[str]:
    """Render the curve of a metric that is not the table's, of the cells that have it."""
    kept = {
        cell: {seed: e.with_metric(name, table.metric) for seed, e in by_seed.items() if name in e.others}
        for cell, by_seed in runs.items()
    }
    kept = {cell: by_seed for cell, by_seed in kept.items() if by_seed}
    return [f"{name} by round:", _render_curves(table, kept)] if kept else []


def _render_further_figure(table: Table, runs: Found, name: str) -> list[str]:
    """Render a metric of the last round that is not the table's, or a sum over the run."""
    share = table.percent and "accuracy" in name
    title, unit = SUMS.get(name, (f"{name}, {TITLES['final']}", 0.01 if share else 1.0))
    others = {cell: _read_totals(by_seed.values(), name, unit) for cell, by_seed in runs.items()}
    return [f"{title}:", _render_grid(table, others, signed=False)]


def _render_rounds_to_reach(table: Table, runs: Found, what: str) -> list[str]:
    """Render the rounds until the runs reach a value of `against`; see `count_rounds`."""
    goal = f"Rounds until {table.metric} reaches the value of `{table.against}` {ENDS[what]}"

    def write(cell: Cell) -> str:
        rounds = count_rounds(table, runs, cell, what).values()
        having_goal = [number for number in rounds if number is None or isfinite(number)]
        return spread_reached(having_goal, len(table.seeds), digits=0)

    grid = _render_cells(table, table.cells(table.rows), table.cells(table.columns), write)
    return [f"{goal}; {SOME_REACH_IT}:", grid]


def _render_spent_to_converge(table: Table, runs: Found) -> list[str]:
    """Render a table for each cost until the runs converged, if it is known of any run."""
    parts = [f"Until {table.metric} comes within a point of the mean of the run's own last 10 rounds."]
    for name, (title, unit) in SPENT_FIGURES.items():
        spent = dict[Cell, list[float]]()
        for cell, found in runs.items():
            values = (entry.spent_to_converge(name) for entry in found.values())
            spent[cell] = [value / unit for value in values if value is not None and isfinite(value)]
        if any(spent.values()):
            parts += [f"{title}:", _render_grid(table, spent, signed=False, digits=0)]
    return parts


def _render_spent_to_targets(table: Table, runs: Found) -> list[str]:
    """Render a table for each cost until the runs reached each target, if it is known of any run."""
    axes = (*table.rows, *table.columns)
    names = [f"{100 * goal:g} %" if table.percent else f"{goal:g}" for goal in table.targets]
    parts = [f"Until {table.metric} reaches {', '.join(names)}; {SOME_REACH_IT}."]
    for name, (title, unit) in SPENT_FIGURES.items():

        def figure(row: Cell, column: Cell, name: str = name, unit: float = unit) -> str:
            labels, goal = dict(zip(axes, row, strict=True)), float(column[0])
            entries = runs[tuple(labels[axis] for axis in table.axes)].values()
            spent = [entry.spent_to_target(goal, name) for entry in entries]
            values = [value / unit for value in spent if value is not None]
            known = [value for value in values if isfinite(value)]
            digits = 0 if name == "rounds" or not known or fmean(known) >= 100 else 1
            return spread_reached(values, len(table.seeds), digits=digits)

        columns = [(repr(goal),) for goal in table.targets]
        rows = table.cells(axes)
        if any(figure(row, column) != NONE_KNOWN for row in rows for column in columns):
            parts += [f"{title}:", render_lines(axes, rows, names, columns, figure)]
    return parts


def _render_figure(table: Table, runs: Found, what: str) -> list[str]:
    """Render one figure of each run, and its difference to the figure of `against`."""
    figures = {
        cell: [
            _to_percent(table, v)
            for e in by_seed.values()
            if (v := e.read_figure(what, table.metric)) is not None
        ]
        for cell, by_seed in runs.items()
    }
    parts = [f"{table.metric}, {TITLES[what]}:", _render_grid(table, figures, signed=False)]
    if what == "chosen" and (models := _count_chosen_models(runs)):
        parts.append(f"Models chosen, where it is not always `global`: {models}.")
    if table.against is not None:
        heading = f"Difference to `{table.against}`, paired by seed:"
        parts += [heading, _render_grid(table, _pair_differences(table, runs, what), signed=True)]
    return parts


def _count_chosen_models(runs: Found) -> str:
    """Count how often each model was chosen, in cells where it is not always the global one; "" if none."""
    said = list[str]()
    for cell, by_seed in runs.items():
        counts = Counter(sorted(e.chosen_model for e in by_seed.values() if e.chosen_model))
        if counts.keys() - {"global"}:
            each = ", ".join(f"`{model}` {times}" for model, times in counts.items())
            said.append(f"{', '.join(cell)}: {each} of {counts.total()}")
    return "; ".join(said)


def _read_totals(entries: Iterable[Entry], name: str, unit: float) -> list[float]:
    values = (entry.read_total(name) for entry in entries)
    return [value / unit for value in values if value is not None]


def _to_percent(table: Table, value: float) -> float:
    return 100 * value if table.percent else value


def _pair_differences(table: Table, runs: Found, what: str) -> dict[Cell, list[float]]:
    """Return the differences of each cell to the cell of `against`, by seed; [] for that cell itself."""
    differences: dict[Cell, list[float]] = {}
    for cell, by_seed in runs.items():
        other = find_opponent(table, runs, cell)
        both = by_seed.keys() & other.keys() if other is not by_seed else set[int]()
        pairs = [[e.read_figure(what, table.metric) for e in (by_seed[s], other[s])] for s in sorted(both)]
        differences[cell] = [
            _to_percent(table, mine - its)
            for mine, its in pairs
            if mine is not None and its is not None and isfinite(mine - its)
        ]
    return differences


def _render_grid(table: Table, figures: Figures, *, signed: bool, digits: int | None = None) -> str:
    places = (2 if table.percent else 4) if digits is None else digits
    rows, columns = table.cells(table.rows), table.cells(table.columns)
    if signed and table.compared in table.columns:
        columns = [column for column in columns if column != (table.against,)]
    elif signed:
        rows = [row for row in rows if row != (table.against,)]

    def write(cell: Cell) -> str:
        return spread(figures[cell], len(table.seeds), digits=places, signed=signed)

    return _render_cells(table, rows, columns, write)


def _render_cells(
    table: Table, rows: Sequence[Cell], columns: Sequence[Cell], write: Callable[[Cell], str]
) -> str:
    """Render a grid of the cells of a table, each as `write` writes it."""

    def figure(row: Cell, column: Cell) -> str:
        chosen = dict(zip((*table.rows, *table.columns), (*row, *column), strict=True))
        return write(tuple(chosen[axis] for axis in table.axes))

    return render_lines(table.rows, rows, [", ".join(column) for column in columns], columns, figure)


def _render_curves(table: Table, runs: Found) -> str:
    """Render the curve of each cell in `runs`."""
    numbers = sorted({n for by_seed in runs.values() for entry in by_seed.values() for n in entry.curve})

    def find_cell(row: Cell) -> Cell:
        chosen = dict(zip((*table.rows, *table.columns), row, strict=True))
        return tuple(chosen[axis] for axis in table.axes)

    cells = [row for row in table.cells([*table.rows, *table.columns]) if find_cell(row) in runs]

    def figure(row: Cell, column: Cell) -> str:
        entries = runs[find_cell(row)].values()
        values = [_to_percent(table, e.curve[int(column[0])]) for e in entries if int(column[0]) in e.curve]
        return spread(values, len(table.seeds), digits=1 if table.percent else 3)

    shown = _select_evenly(numbers)
    columns = [(str(number),) for number in shown]
    return render_lines((*table.rows, *table.columns), cells, [f"round {n}" for n in shown], columns, figure)


def _select_evenly(rounds: Sequence[int]) -> list[int]:
    """Select at most MOST_ROUNDS rounds, evenly spaced, with the last one; the journal has all of them."""
    step = -(-len(rounds) // MOST_ROUNDS)
    return sorted(rounds[::-1][:: max(step, 1)])


def _render_commands(table: Table) -> str:
    first = table.runs()[0].run
    single = " ".join(f"--set '{item}'" for item in first.items)
    return f"All runs: `{table.command}`. One run ({first}): `fedsim run {table.preset} {single}`."
