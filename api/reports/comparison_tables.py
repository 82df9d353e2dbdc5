"""A comparison as a table for a paper: Markdown, LaTeX and CSV, with one row for each group."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from api.comparison.measures import Measure, Spread
from api.comparison.records import Comparison, ComparisonGroup
from api.reports.formatting import format_bytes, format_metric, format_metric_value, format_number


class PaperFormat(StrEnum):
    """A format of the table for programs and papers."""

    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"


class Cell(NamedTuple):
    """A figure of the table: its text, and whether it is the best of its column."""

    text: str
    is_best: bool = False


LATEX_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "…": r"\dots{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
}


def format_spread(spread: Spread | None, write: Callable[[float], str], *, is_cost: bool = False) -> str:
    """Write mean ± standard deviation; of one run the mean alone, without runs `–`.

    A cost is often the same in all runs: a deviation of 0 is left out.
    """
    if spread is None:
        return "–"
    if spread.deviation is None or (is_cost and spread.deviation <= 1e-9 * abs(spread.mean)):
        return write(spread.mean)
    return f"{write(spread.mean)} ± {write(spread.deviation)}"


def format_difference(metric: str, measure: Measure | None) -> str:
    """Write a difference with its interval and its adjusted p: `+0.023 [−0.015, 0.061], p = 0.12`."""
    if measure is None or measure.difference is None:
        return "–"
    found = measure.difference
    mean, low, high = (
        None if value is None else format_metric_value(metric, value).replace("-", "−")
        for value in (found.mean, found.low, found.high)
    )
    signed = f"+{mean}" if found.mean > 0 else f"{mean}"
    if measure.p_adjusted is None:
        return f"{signed} (1 seed)" if found.pairs == 1 else f"{signed} (with all {found.pairs} seeds)"
    # The mean may be over more seeds than the baseline has.
    pairs = f" ({found.pairs} pairs)" if found.pairs < len(measure.values) else ""
    return f"{signed} [{low}, {high}], {format_p(measure.p_adjusted)}{pairs}"


def format_p(value: float) -> str:
    """Write a p-value with three digits, e.g. `p = 0.012` or `p < 0.001`."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def render_table(found: Comparison, format: PaperFormat) -> str:
    """Render the groups with results as a table.

    Args:
        found: the comparison.
        format: Markdown and LaTeX have the texts of a paper; CSV has all digits and all figures.
    """
    if format is PaperFormat.CSV:
        return _render_csv(found)
    heads, rows = make_paper_table(found)
    if format is PaperFormat.LATEX:
        return _render_latex(heads, rows)
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[f"**{cell.text}**" if cell.is_best else cell.text for cell in row] for row in rows]
    escaped = ([text.replace("|", "\\|") for text in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def find_best_cells(rows: Sequence[Sequence[Cell]]) -> set[tuple[int, int]]:
    """Return the row and the column of each best value of its measure."""
    return {
        (row, place) for row, cells in enumerate(rows) for place, cell in enumerate(cells) if cell.is_best
    }


def make_paper_table(found: Comparison) -> tuple[list[str], list[list[Cell]]]:
    """Make the table of a paper: name, seeds, and each measure with its difference from the baseline."""
    heads = [format_metric(found.metric), "seeds"]
    rows = [[Cell(group.name), Cell(group.num_scores)] for group in found.counted]
    for name, title in found.list_measures():
        measures = [getattr(group, name) for group in found.counted]
        has_difference = any(measure and measure.difference for measure in measures)
        heads += [title, *(["difference"] if has_difference else [])]
        for group, row, measure in zip(found.counted, rows, measures, strict=True):
            text = format_spread(measure, lambda value: format_metric_value(found.metric, value))
            row.append(Cell(text, bool(measure and measure.is_best)))
            if has_difference:
                is_baseline = group.name == found.baseline
                row.append(Cell("baseline" if is_baseline else format_difference(found.metric, measure)))
    return heads, rows


def make_cost_table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Make the table of best rounds and costs: name, best on test, cost to the target, whole cost."""
    target = format_number(found.target)
    heads = [
        "group",
        "best on test",
        f"rounds to {target}",
        f"traffic to {target}",
        "traffic",
        "computing time (s)",
    ]
    has_clock = any(group.clock for group in found.counted)
    if has_clock:
        heads += [f"simulated time to {target} (s)", f"energy to {target} (J)"]
        heads += ["simulated time (s)", "energy (J)"]
    lines = {line.run: line for line in found.lines}
    rows = []
    for group in found.counted:
        cost = group.cost_to_target
        missed = f" ({cost.missed} missed it)" if cost.missed else ""
        best = format_spread(group.best, lambda value: format_metric_value(found.metric, value))
        only = lines[group.runs[0]].best if len(group.runs) == 1 else None
        row = [
            group.title,
            f"{best} ({only.round})" if only else best,
            format_spread(cost.rounds, format_number, is_cost=True) + missed
            if cost.rounds
            else "not reached",
            format_spread(cost.bytes, _write_bytes, is_cost=True),
            format_spread(group.bytes, _write_bytes, is_cost=True),
            format_spread(group.seconds, lambda value: f"{value:.1f}", is_cost=True),
        ]
        if has_clock:
            simulated = (cost.clock, cost.joules, group.clock, group.joules)
            row += [format_spread(each, format_number, is_cost=True) for each in simulated]
        rows.append(row)
    return heads, rows


def _write_bytes(value: float) -> str:
    return format_bytes(round(value))


def _render_latex(heads: list[str], rows: list[list[Cell]]) -> str:
    """Render a table for the package booktabs."""
    lines = [[_escape(head) for head in heads]]
    lines += [
        [rf"\textbf{{{_escape(cell.text)}}}" if cell.is_best else _escape(cell.text) for cell in row]
        for row in rows
    ]
    # {} in front: LaTeX reads a `[` at the beginning of a row as an argument of the command before it.
    first, *rest = (f"{{}}{' & '.join(line)} \\\\\n" for line in lines)
    columns = "l" + "r" * (len(heads) - 1)
    body = "".join(rest)
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{first}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _escape(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^±−–…<>|]", lambda found: LATEX_SIGNS[found[0]], text)


def _render_csv(found: Comparison) -> str:
    rows = [dict(_list_columns(found, group)) for group in found.counted]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else ["group"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _list_columns(found: Comparison, group: ComparisonGroup) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a row with all digits; a missing value is None."""
    # A spreadsheet would take such a name for a formula.
    yield "group", f"'{group.title}" if group.title.startswith(("=", "+", "-", "@")) else group.title
    yield "runs", " ".join(group.runs)
    yield "seeds", " ".join(str(seed) for seed in group.seeds if seed is not None)
    yield "dataset", group.dataset
    yield "metric", found.metric
    for name, _ in found.list_measures():
        measure: Measure | None = getattr(group, name)
        yield from _list_spread(name, measure)
        yield from _list_difference(name, measure)
    yield from _list_spread("best_on_test", group.best)
    yield "target", found.target
    cost: dict[str, Spread | None] = {
        "rounds_to_target": group.cost_to_target.rounds,
        "bytes_to_target": group.cost_to_target.bytes,
        "seconds_to_target": group.cost_to_target.seconds,
        "bytes": group.bytes,
        "seconds": group.seconds,
    }
    if any(each.clock for each in found.counted):
        cost["clock_to_target"] = group.cost_to_target.clock
        cost["joules_to_target"] = group.cost_to_target.joules
        cost |= {"clock": group.clock, "joules": group.joules}
    for title, spread in cost.items():
        yield from _list_spread(title, spread)
    yield "runs_that_missed_the_target", group.cost_to_target.missed


def _list_spread(name: str, spread: Spread | None) -> Iterator[tuple[str, Any]]:
    yield f"{name}_mean", spread and spread.mean
    yield f"{name}_deviation", spread and spread.deviation


def _list_difference(name: str, measure: Measure | None) -> Iterator[tuple[str, Any]]:
    found = measure.difference if measure else None
    for part, key in (("mean", ""), ("low", "_low"), ("high", "_high"), ("p_value", "_p")):
        yield f"{name}_difference{key}", found and getattr(found, part)
    yield f"{name}_difference_p_adjusted", measure and measure.p_adjusted
    yield f"{name}_pairs", found and found.pairs
