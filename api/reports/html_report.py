"""The report of a run: one HTML file with figures, curves and spec that needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from api.comparison.run_scores import find_best_score, list_scores
from api.reports.class_map import TITLE, ClassMapDrawing, make_class_map_figure
from api.reports.client_times import CLIENT_TIMES, make_client_times_figure
from api.reports.figures import ReportFigure, make_clients_figure, make_figures
from api.reports.formatting import format_bytes, format_epsilon, format_metric, format_metric_value
from api.reports.html_page import render_chart, render_figure, render_page, render_pairs
from api.reports.method_curves import find_method_changes
from api.reports.round_failures import list_round_failures
from fedsim.learning_tasks.metrics import find_main_metric
from jobs.spec.spec_text import dump_spec
from jobs.store.records import Engine, RoundRecord, RunTotals


class RunReport(NamedTuple):
    """The content of a report.

    Attributes:
        run: id of the job, or name of the folder.
        name: name in the spec.
        state: state of the job; empty for a run in files.
        message: message of the job for people.
        spec: the spec as plain data with all defaults.
        records: round records, in order.
        personal: content of `personal.csv`; empty without a personal evaluation.
        class_map: examples of each class by client; None if unknown.
        class_map_error: why the class map is unknown; empty if it is known or has no clients.
    """

    run: str
    name: str
    state: str
    message: str
    spec: Mapping[str, Any]
    records: Sequence[RoundRecord]
    personal: str = ""
    class_map: ClassMapDrawing | None = None
    class_map_error: str = ""

    def list_figures(self) -> list[ReportFigure]:
        """List all figures of the run."""
        return [*make_figures(self.records), *make_clients_figure(self.personal)]


def render_report(reported: RunReport) -> str:
    """Render the report of a run as HTML of about 5 MB, with the chart library inside."""
    drawn = [render_figure(figure, first=not number) for number, figure in enumerate(reported.list_figures())]
    if reported.class_map is not None:
        drawn.append(
            render_chart(TITLE, "partition", make_class_map_figure(reported.class_map), first=not drawn)
        )
    elif reported.class_map_error:
        drawn.append(f"<h2>{TITLE}</h2>\n<p>No class map: {escape(reported.class_map_error)}</p>")
    if (times := make_client_times_figure(reported.records)) is not None:
        drawn.append(render_chart(CLIENT_TIMES, "client-times", times, first=not drawn))
    words = [reported.run, reported.state.lower(), reported.message]
    changes, failures = _list_method_changes(reported.records), list_round_failures(reported.records)
    tables = [
        render_pairs("Changes reported by the algorithm", changes),
        render_pairs("Failures that the run survived", failures),
    ]
    spec = escape(dump_spec(reported.spec))
    body = [
        render_pairs("Figures", list_facts(reported)),
        *(drawn + tables if any(drawn + tables) else ["<p>No round has ended.</p>"]),
        f'<h2>Spec</h2>\n<pre tabindex="0">{spec}</pre>',
    ]
    return render_page(reported.name, words, body)


def list_facts(reported: RunReport) -> Iterable[tuple[str, str]]:
    """List results and cost of a run as pairs (name, value)."""
    records = reported.records
    yield "rounds", str(len(records))
    if records and (end := records[-1].end):
        yield "end", end.message
    last = _find_last_values(records)
    for name, value in last.items():
        yield (
            format_metric(name),
            f"{value:.4f}" if isinstance(value, float) else str(value),
        )
    if metric := find_main_metric(last):
        best = find_best_score(list_scores(records, metric), metric)
        if best is not None:
            text = format_metric_value(metric, best.value)
            yield f"best {format_metric(metric)}", f"{text} at round {best.round}"
    if records and (epsilon := format_epsilon(records[-1].method, with_delta=True)):
        yield "epsilon", epsilon
    yield "workers replaced", str(sum(record.engine.restarts for record in records))
    yield "clients failed", str(sum(len(record.failed) for record in records))
    total = RunTotals.of(records)
    yield "traffic down", format_bytes(total.down)
    yield "traffic up", format_bytes(total.up)
    yield "computing time (s)", f"{total.seconds:.1f}"
    if readings := [record.clock for record in records if record.clock]:
        yield "simulated time (s)", f"{total.simulated_seconds:.1f}"
        yield "energy of the clients (J)", f"{total.joules:.4g}"
        yield "updates left out", str(sum(max(each.num_left_out, len(each.left_out)) for each in readings))
    if any(record.cost is not None for record in records):
        yield "parameter updates", f"{total.cost.updates:.4g}"
        yield "FLOPs", f"{total.cost.flops:.4g}"
    if records:
        yield "digest after the last round", records[-1].digest
        yield from _list_sources(records[-1].engine)


def _list_sources(engine: Engine) -> Iterable[tuple[str, str]]:
    """List the code and the data of a round as pairs (name, value); older records have none."""
    if engine.code:
        yield "code", ", ".join(f"{name} {version}" for name, version in engine.code.items())
    if engine.data:
        yield "hash of the examples", engine.data


def _find_last_values(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the last value of every metric; only some rounds have the metrics of a personal evaluation."""
    metrics = [record.metrics for record in records[:-1]] + [each.result_metrics for each in records[-1:]]
    return {name: value for each in metrics for name, value in each.items() if value is not None}


def _list_method_changes(records: Sequence[RoundRecord]) -> Iterable[tuple[str, str]]:
    """List the changes that the algorithm reports as pairs (round, text)."""
    return ((f"round {records[place].round}", text) for place, text, _ in find_method_changes(records))
