"""The sections of tables in the pages of results."""

from __future__ import annotations

import shutil
from math import inf, nan
from pathlib import Path

import pytest

from benchmarks.places import JOURNALS, PAGES
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from jobs.grid.card import write_report
from jobs.grid.finished import list_missing
from jobs.grid.journal import Entry, Journal, MetricSummary, measure_fall, measure_swing, select_numbers
from jobs.grid.markdown import render
from jobs.grid.one_run import make_run
from jobs.grid.pages import write_section
from jobs.grid.search import choose_values, is_searched
from jobs.grid.spread import NONE_KNOWN, spread
from jobs.grid.table import Table, list_tables, load_table, read_table
from jobs.run.without_ray.populations import Populations
from jobs.settings import Settings
from jobs.spec.resolve import resolve_spec
from tests.jobs.grid.small_table import entry, find_member


def test_rendered_figures(table: Table) -> None:
    # means of 60 and 70 is 65, their sample deviation 7.07; less 50 and 54 of the same seeds: 10 and 16
    figures = [
        (("plain", "IID"), 1, 0.5),
        (("plain", "IID"), 2, 0.54),
        (("strong", "IID"), 1, 0.6),
        (("strong", "IID"), 2, 0.7),
        (("plain", "Dir(1)"), 2, 0.4),
    ]
    entries = {e.key: e for e in (entry(table, *figure) for figure in figures)}
    text = render(table, entries)
    assert "| IID | 52.00 ± 2.83 | 65.00 ± 7.07 |" in text
    assert "| IID | +13.00 ± 4.24 |" in text
    assert "| Dir(1) | 40.00 (1) | – |" in text
    assert "**5 of 8 runs are finished.**" in text
    assert "| IID | strong | 32.5 ± 3.5 | 65.0 ± 7.1 |" in text
    assert "fedsim run demo --set 'rounds=2'" in text


def test_curves_of_many_rounds_are_thinned_from_the_last_one_on(table: Table) -> None:
    made = entry(table, ("plain", "IID"), 1, 0.5)
    long = made.model_copy(update={"curve": {n: n / 100 for n in range(1, 26)}})
    text = render(table.model_copy(update={"show": ("curve",)}), {long.key: long})
    shown = [1, 4, 7, 10, 13, 16, 19, 22, 25]
    assert f"| data | mu | {' | '.join(f'round {n}' for n in shown)} |" in text
    assert f"| IID | plain | {' | '.join(f'{n:.1f} (1)' for n in shown)} |" in text


def test_rows_can_be_compared_as_well_as_columns(table: Table) -> None:
    """The same figures turned over: what is compared is a row, and the differences are without it."""
    turned = table.model_copy(update={"rows": ("mu",), "columns": ("data",), "show": ("final",)})
    figures = [(("plain", "IID"), 1, 0.5), (("strong", "IID"), 1, 0.6), (("strong", "IID"), 2, 0.7)]
    entries = {(made := entry(turned, *each)).key: made for each in figures}
    text = render(turned, entries)
    assert "| plain | 50.00 (1) | – |\n| strong | 65.00 ± 7.07 | – |" in text
    differences = text.partition("Difference to `plain`")[2]
    assert "| mu | IID | Dir(1) |\n| --- | --- | --- |\n| strong | +10.00 (1) | – |" in differences
    assert "| plain |" not in differences


def test_rounds_until_a_method_has_what_another_ends_with(table: Table) -> None:
    """Curves are half in round 1: 1.1 is there then, 0.6 in round 2, 0.4 never; of IID, seed by seed."""
    figures = [
        (("plain", "IID"), 1, 0.5),
        (("plain", "IID"), 2, 0.5),
        (("strong", "IID"), 1, 1.1),
        (("strong", "IID"), 2, 0.6),
        (("plain", "Dir(1)"), 1, 0.5),
        (("plain", "Dir(1)"), 2, 0.5),
        (("strong", "Dir(1)"), 1, 0.4),
        (("strong", "Dir(1)"), 2, 0.6),
    ]
    entries = {e.key: e for e in (entry(table, *figure) for figure in figures)}
    text = render(table.model_copy(update={"show": ("reach",)}), entries)
    assert "| IID | 2 ± 0 | 2 ± 1 |" in text
    assert "| Dir(1) | 2 ± 0 | 2 (1 of 2) |" in text
    assert "reaches the value of `plain` after the last round" in text


def test_rounds_until_a_method_has_the_best_of_another(table: Table) -> None:
    """`plain` is best in round 1 with 0.6, which its curve (0.25, 0.5) never shows; `strong` has 0.6 last."""
    figures = [(("plain", "IID"), 1, 0.5), (("strong", "IID"), 1, 0.6), (("strong", "IID"), 2, 0.6)]
    entries = {e.key: e for e in (entry(table, *figure) for figure in figures)}
    text = render(table.model_copy(update={"show": ("reach_best",)}), entries)
    assert "| IID | – | 2 (1) |" in text
    assert "reaches the value of `plain` in its best round on the test set" in text


KDIA = """
page: kdia
title: Student and teacher
preset: demo
set: [rounds=4, data.limit=200, clients.total=10, local.epochs=1, evaluation.validation=0.2]
axes:
  method:
    FedAvg: algorithm=fedavg
    KDIA: "algorithm={name: kdia, generator_epochs: 1, generator_batches: 1}"
    FedProx: algorithm=fedprox
  data: {IID: data.partition=iid}
rows: [data]
columns: [method]
views: {"KDIA, teacher": {of: KDIA, metric: teacher_accuracy}}
seeds: [1]
against: FedAvg
show: [final, best, chosen, tail, swing, fall, curve, reach_best]
also: [up]
curve_every: 2
"""


def test_a_view_shows_another_model_of_the_same_run(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "kdia.yaml"
    file.write_text(KDIA, "utf-8")
    table = read_table(file)
    member = next(member for member in table.runs() if member.run.labels["method"] == "KDIA")
    experiment = resolve_spec(member.spec, settings)
    made = make_run(member, table, settings, Populations(), "")
    population = experiment.load_population()
    records = list(simulate(experiment.algorithm, population, SerialPool(experiment.algorithm, population)))
    teacher = [record.metrics["teacher_accuracy"] for record in records]
    # best and tail are of all rounds, not of the points of the curve that are kept
    seen = made.with_metric("teacher_accuracy", "global_accuracy")
    assert seen.curve == {n: pytest.approx(teacher[n - 1], abs=1e-6) for n in (1, 2, 4)}
    assert seen.best["value"] == pytest.approx(max(teacher), abs=1e-6)
    assert seen.tail == pytest.approx(sum(teacher) / 4, abs=1e-6)
    assert made.final["global_accuracy"] == pytest.approx(records[-1].metrics["global_accuracy"], abs=1e-6)
    pairs = [
        (r.metrics[f"{model}_validation_accuracy"], r.metrics[f"{model}_accuracy"])
        for r in records
        for model in ("global", "teacher")
    ]
    assert made.method == {"generator_loss": records[-1].method["generator_loss"]}
    best = max(validation for validation, _ in pairs)
    models = [model for _ in records for model in ("global", "teacher")]
    assert made.chosen_model == next(
        model for model, (value, _) in zip(models, pairs, strict=True) if value == best
    )
    assert made.chosen["value"] in {round(test, 6) for validation, test in pairs if validation == best}
    text = render(table, {made.key: Entry.model_validate_json(made.model_dump_json())})
    assert "| data | FedAvg | KDIA | KDIA, teacher | FedProx |" in text
    assert f"| IID | – | {100 * made.tail:.2f} | {100 * seen.tail:.2f} | – |" in text
    assert f"| IID | – | {100 * made.chosen['value']:.2f} | – | – |" in text
    assert "| data | KDIA | KDIA, teacher | FedProx |" in text
    assert f"| IID | KDIA, teacher | {100 * teacher[0]:.1f} | {100 * teacher[1]:.1f} |" in text
    assert f"| IID | – | {made.bytes['up'] / 1e6:.2f} | – |" in text, "bytes are of the run, once"


def test_what_was_chosen_is_told_by_model(table: Table) -> None:
    """Lines that were written before models were named, and cells with the global one alone, say nothing."""
    cells = {("strong", "IID"): ("teacher", "global"), ("strong", "Dir(1)"): ("teacher", "teacher")}
    cells |= {("plain", "IID"): ("global", "global"), ("plain", "Dir(1)"): ("", "")}
    entries = {}
    for cell, models in cells.items():
        for seed, model in enumerate(models, start=1):
            named = {"chosen": {"round": 1, "value": 0.5}, "chosen_model": model}
            made = entry(table, cell, seed, 0.5).model_copy(update=named)
            entries[made.key] = made
    chosen = table.model_copy(update={"show": ("chosen",)})
    said = "strong, IID: `global` 1, `teacher` 1 of 2; strong, Dir(1): `teacher` 2 of 2."
    assert f"not always `global`: {said}\n\nDifference to" in render(chosen, entries)
    old = {key: made.model_copy(update={"chosen_model": ""}) for key, made in entries.items()}
    assert "not always" not in render(chosen, old)


def test_lines_without_what_is_kept_since_can_be_read(table: Table) -> None:
    made = entry(table, ("plain", "IID"), 1, 0.5)
    old = Entry.model_validate_json(made.model_dump_json(exclude={"chosen_model", "method"}))
    assert (old.chosen_model, old.method) == ("", {})


def test_of_what_a_method_says_the_numbers_are_kept() -> None:
    said = {"loss": 0.12345678, "phase": 2, "done": True, "left": "cap", "frozen": [1], "gap": float("nan")}
    assert select_numbers(said) == {"loss": 0.123457, "phase": 2}


def test_kdias_ablation_is_held_against_fedavg_seed_by_seed() -> None:
    """50 and 57 of two seeds against 53 of one: 4 more of the one that both have.

    FedAvg has no teacher, so the teacher's 60 is held against its 53 as well.
    """
    table = load_table("kdia-ablation")
    kd, base = ("base + l_kd", "Dir(0.5)"), ("base (FedAvg)", "Dir(0.5)")
    teacher = MetricSummary(final=0.6, best={"round": 1, "value": 0.6}, tail=0.6, curve={1: 0.6})
    made = [entry(table, kd, 2506, 0.5), entry(table, kd, 2507, 0.57), entry(table, base, 2507, 0.53)]
    made[:2] = [each.model_copy(update={"others": {"teacher_accuracy": teacher}}) for each in made[:2]]
    text = render(table.model_copy(update={"show": ("final",)}), {each.key: each for each in made})
    assert "| base + l_kd | 53.50 ± 4.95 (2) | 60.00 ± 0.00 (2) |" in text
    assert "| base + l_kd | +4.00 (1) | +7.00 (1) |" in text.partition("Difference to `base (FedAvg)`")[2]


def test_the_sweeps_last_row_is_a_table_of_its_own_with_one_seed() -> None:
    """Its runs are those of the sweep but for C; at C = 1 all 100 clients come to every round."""
    full, sweep = load_table("kdia-full"), load_table("kdia-sweep")
    assert full.seeds == (2506,)
    assert full.views.items() <= sweep.views.items()
    for member in full.runs():
        spec = member.spec
        other = find_member(sweep, ("N = 100, C = 0.1", member.run.labels["method"]), member.run.seed).spec
        assert (spec.clients.total, spec.clients.fraction) == (100, 1.0)
        assert spec == other.model_copy(update={"clients": spec.clients, "name": spec.name})


def test_a_run_that_diverged_is_left_out_of_a_figure() -> None:
    assert spread([nan, 1.0, inf], 3, digits=1) == "1.0 (1)"
    assert spread([nan], 1, digits=1) == NONE_KNOWN


def test_the_swing_is_of_the_second_half() -> None:
    """Changes of 0.5, 0.1 and -0.3: the half of three that is kept are the last two, 0.2 in the mean."""
    assert measure_swing({1: 0.1, 2: 0.6, 3: 0.7, 4: 0.4}) == pytest.approx(0.2)
    assert measure_swing({1: 0.1}) is None


def test_the_fall_is_of_the_second_half_without_its_rises() -> None:
    """The same changes: of 0.1 and -0.3 the falls are 0 and 0.3; one in the first half does not count."""
    assert measure_fall({1: 0.1, 2: 0.6, 3: 0.7, 4: 0.4}) == pytest.approx(0.15)
    assert measure_fall({1: 0.9, 2: 0.1, 3: 0.2, 4: 0.4}) == 0
    assert measure_fall({1: 0.1}) is None


def test_the_page_has_falls_beside_swings(table: Table) -> None:
    """Of IID 0.4, 0.5, 0.2, 0.4 in rounds 1 to 4: 0.3 and 0.2 in the second half, of which one is a fall."""
    made = entry(table, ("strong", "IID"), 1, 0.5)
    made = made.model_copy(update={"curve": {1: 0.4, 2: 0.5, 3: 0.2, 4: 0.4}})
    text = render(table.model_copy(update={"show": ("swing", "fall")}), {made.key: made})
    swings, falls = text.split("global_accuracy, mean fall between neighbouring points")
    assert "| IID | – | 25.00 (1) |" in swings
    assert "| IID | – | 15.00 (1) |" in falls


def test_other_figures_of_the_runs(table: Table, settings: Settings) -> None:
    table = table.model_copy(update={"also": ("global_loss", "updates", "up")})
    made = make_run(table.runs()[0], table, settings, Populations(), "")
    assert made.cost["updates"] > 0 == made.cost["tuning_updates"]
    old = entry(table, ("strong", "IID"), 1, 0.5)  # as written before costs were counted
    text = render(table, {made.key: made, old.key: old})
    updates, up = f"{made.cost['updates'] / 1e9:.2f} (1)", f"{made.bytes['up'] / 1e6:.2f} (1)"
    assert f"in 10^9:\n\n| data | plain | strong |\n| --- | --- | --- |\n| IID | {updates} | – |" in text
    assert f"| IID | {up} | 0.00 (1) |" in text
    assert f"| IID | {made.final['global_loss']:.2f} (1) | – |" in text


PERSONAL = """
page: layer-schedules
title: Personal models
preset: demo
set: [rounds=4, data.limit=200, data.tests=merged, clients.total=10, local.epochs=1, evaluation.every=2]
axes:
  method: {FedPer: algorithm=fedper, FedBABU: algorithm=fedbabu}
rows: []
columns: [method]
seeds: [1]
metric: personal_accuracy
curves: [global_accuracy]
also: [personal_accuracy_std]
curve_every: 2
"""


def test_other_curves_and_every_client_are_kept(tmp_path: Path, settings: Settings) -> None:
    """FedBABU has personal scores in the end alone, and a global model by round; FedPer has none."""
    file = tmp_path / "personal.yaml"
    file.write_text(PERSONAL, "utf-8")
    table, shared, made = read_table(file), Populations(), {}
    for member in table.runs():
        entry = make_run(member, table, settings, shared, "")
        made[member.run.labels["method"]] = Entry.model_validate_json(entry.model_dump_json())
    fedper, fedbabu = made["FedPer"], made["FedBABU"]
    assert (list(fedper.curve), list(fedper.others)) == ([2, 4], [])
    assert (list(fedbabu.curve), list(fedbabu.others["global_accuracy"].curve)) == ([4], [2, 4])
    for each in made.values():
        assert list(each.clients) == sorted(each.clients)
        assert len(each.clients) == each.final["personal_clients"] > 1
        mean = sum(each.clients) / len(each.clients)
        assert mean == pytest.approx(each.final["personal_accuracy_mean"], abs=1e-4)
    text = render(table, {entry.key: entry for entry in made.values()})
    first, last = (100 * value for value in fedbabu.others["global_accuracy"].curve.values())
    assert "global_accuracy by round:\n\n| method | round 2 | round 4 |" in text
    assert f"| --- | --- | --- |\n| FedBABU | {first:.1f} | {last:.1f} |" in text
    deviations = (100 * entry.final["personal_accuracy_std"] for entry in (fedper, fedbabu))
    assert "| {:.2f} | {:.2f} |".format(*deviations) in text


def test_a_section_stays_where_it_is(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nBefore.\n", "utf-8")
    write_section(page, "a", "first")
    page.write_text(page.read_text("utf-8") + "\nAfter.\n", "utf-8")
    write_section(page, "a", "second")
    text = page.read_text("utf-8")
    assert text == "# Results\n\nBefore.\n\n<!-- table a -->\nsecond\n<!-- end of table a -->\n\nAfter.\n"
    page.write_text(text.replace("<!-- end of table a -->", ""), "utf-8")
    with pytest.raises(ValueError, match="only one of"):
        write_section(page, "a", "third")


@pytest.mark.slow
@pytest.mark.parametrize("name", list_tables())
def test_a_page_has_its_tables_as_they_are_rendered(name: str) -> None:
    """A table with finished runs is on its page as the command writes it; any other is on no page."""
    table = load_table(name)
    table = choose_values(table, JOURNALS) if is_searched(table, JOURNALS) else table
    journal = Journal(JOURNALS, name)
    file = PAGES / f"{table.page}.md"
    page = file.read_text("utf-8") if file.is_file() else ""
    if len(list_missing(table, journal)) < len(table.runs()):
        assert (
            f"<!-- table {name} -->\n{render(table, journal.read())}\n<!-- end of table {name} -->\n" in page
        )
    else:
        assert f"<!-- table {name} -->" not in page


@pytest.mark.slow
def test_cards_and_claims_are_on_the_pages_as_the_command_writes_them(tmp_path: Path) -> None:
    """Verdicts are computed: a page that somebody edits between the markers, or a new run, is seen here."""
    pages = tmp_path / "pages"
    shutil.copytree(PAGES, pages)
    written = write_report(map(load_table, list_tables()), JOURNALS, pages)
    assert {file.name: file.read_text("utf-8") for file in written} == {
        file.name: (PAGES / file.name).read_text("utf-8") for file in written
    }
