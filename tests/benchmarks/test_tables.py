"""The runner of result tables: what it makes, what it leaves alone, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tables.__main__ import main
from benchmarks.tables.grid import Table, TableError, fingerprint, load_table, read_table, tables
from benchmarks.tables.journal import Entry, Journal, swing
from benchmarks.tables.markdown import place, render
from benchmarks.tables.work import Pending, Populations, execute, missing, run_table
from fedsim.algorithms import ALGORITHMS
from fedsim.core import Algorithm
from fedsim.errors import FedsimError
from fedsim.pools import SerialPool
from fedsim.simulation import simulate
from jobs.resolve import resolve
from jobs.settings import Settings
from jobs.spec import parse_spec

SMALL = """
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


@pytest.fixture
def table(tmp_path: Path) -> Table:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, "utf-8")
    return read_table(file)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def entry(table: Table, cell: tuple[str, ...], seed: int, accuracy: float) -> Entry:
    run = next(run for run in table.runs() if run.cell == cell and run.seed == seed)
    return Entry(
        key=fingerprint(table.spec(run)),
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


def test_every_cell_is_run_with_every_seed_seed_by_seed(table: Table) -> None:
    runs = list(table.runs())
    assert [run.seed for run in runs] == [1] * 4 + [2] * 4
    assert [run.cell for run in runs[:4]] == [
        ("plain", "IID"),
        ("plain", "Dir(1)"),
        ("strong", "IID"),
        ("strong", "Dir(1)"),
    ]
    spec = table.spec(runs[3])
    assert (spec.algorithm.name, spec.algorithm.params) == ("fedprox", {"mu": 1.0})
    assert (spec.data.partition.params["beta"], spec.rounds, spec.seed) == (1.0, 2, 1)


def test_the_fingerprint_is_of_what_changes_the_result() -> None:
    plain = parse_spec({"algorithm": "fedavg", "seed": 1})
    same = parse_spec({"algorithm": {"name": "fedavg"}, "seed": 1, "name": "x", "resources": {"workers": 2}})
    assert fingerprint(plain) == fingerprint(same)
    others: list[dict[str, object]] = [
        {"seed": 2},
        {"rounds": 21},
        {"algorithm": {"name": "fedprox"}},
        {"local": {"lr": 0.1}},
    ]
    marks = [fingerprint(parse_spec({"algorithm": "fedavg", "seed": 1, **other})) for other in others]
    assert len({fingerprint(plain), *marks}) == 5


def test_what_is_finished_is_not_run_again(table: Table, settings: Settings, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "results", table.name)
    done = [
        entry(table, cell, seed, 0.5)
        for cell in table.cells(["mu", "data"])
        for seed in (1, 2)
        if (cell, seed) != (("strong", "IID"), 2)
    ]
    for finished in done:
        journal.append(finished)
    assert [(p.run.cell, p.run.seed) for p in missing(table, journal)[0]] == [(("strong", "IID"), 2)]
    assert run_table(table, journal, settings, processes=1, niceness=1) == []
    assert len(journal.file.read_text("utf-8").splitlines()) == 8
    assert missing(table, journal) == ([], [])


def test_a_run_has_the_digest_of_the_same_spec_and_shares_its_data(table: Table, settings: Settings) -> None:
    shared, digests = Populations(keep=2), {}
    for run in [run for run in table.runs() if run.seed == 1]:
        spec = table.spec(run)
        made = execute(Pending(run, spec, fingerprint(spec)), table, settings, shared, "")
        digests[run.cell] = made.digest
        assert list(made.curve) == [1, 2]
        assert made.bytes["up"] == made.bytes["down"] > 0
    assert len(shared.made) == 2  # two partitions of one seed; the methods share them
    assert len(set(digests.values())) == 4
    experiment = resolve(table.spec(next(table.runs())), settings)
    population = experiment.population()
    pool = SerialPool(experiment.algorithm, population)
    last = list(simulate(experiment.algorithm, population, pool))[-1]
    assert digests["plain", "IID"] == last.digest[:16]


def test_a_cut_off_line_is_run_again(table: Table, tmp_path: Path) -> None:
    journal = Journal(tmp_path, "small")
    first, second = (entry(table, ("plain", "IID"), seed, 0.5) for seed in (1, 2))
    journal.append(first)
    with journal.file.open("a", encoding="utf-8") as opened:
        opened.write(second.model_dump_json()[:50])
    assert list(journal.read()) == [first.key]
    journal.append(second)
    assert list(journal.read()) == [first.key, second.key]


def test_specs_that_are_wrong_are_left_out_and_named(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(SMALL.replace("algorithm.mu=1.0", "rouns=3"), "utf-8")
    table = read_table(file)
    waiting, faults = missing(table, Journal(tmp_path, "wrong"))
    assert (len(waiting), len(faults)) == (4, 4)
    assert "strong, IID, seed 1" in faults[0]
    assert "rouns" in faults[0]


def test_a_metric_that_no_record_has_is_a_fault(table: Table, settings: Settings) -> None:
    run = next(table.runs())
    other = table.model_copy(update={"metric": "personal_accuracy"})
    with pytest.raises(FedsimError, match="personal_accuracy"):
        execute(Pending(run, table.spec(run), ""), other, settings, Populations(), "")


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
    assert "**5 of 8 runs are finished**" in text
    assert "| IID | strong | 32.5 ± 3.5 | 65.0 ± 7.1 |" in text
    assert "fedsim run demo --set 'rounds=2'" in text


def test_rows_can_be_compared_as_well_as_columns(table: Table) -> None:
    """The same figures turned over: what is compared is a row, and the differences are without it."""
    turned = table.model_copy(update={"rows": ("mu",), "columns": ("data",), "show": ("final",)})
    figures = [(("plain", "IID"), 1, 0.5), (("strong", "IID"), 1, 0.6), (("strong", "IID"), 2, 0.7)]
    entries = {(made := entry(turned, *each)).key: made for each in figures}
    text = render(turned, entries)
    assert "| plain | 50.00 (1) | – |\n| strong | 65.00 ± 7.07 | – |" in text
    differences = text.partition("less `plain`")[2]
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
    assert "| Dir(1) | 2 ± 0 | 2 (1) |" in text
    assert "`plain` has after the last round" in text


def test_rounds_until_a_method_has_the_best_of_another(table: Table) -> None:
    """`plain` is best in round 1 with 0.6, which its curve (0.25, 0.5) never shows; `strong` has 0.6 last."""
    figures = [(("plain", "IID"), 1, 0.5), (("strong", "IID"), 1, 0.6), (("strong", "IID"), 2, 0.6)]
    entries = {e.key: e for e in (entry(table, *figure) for figure in figures)}
    text = render(table.model_copy(update={"show": ("reach_best",)}), entries)
    assert "| IID | – | 2 (1) |" in text
    assert "`plain` has in its best round on the test set" in text


KDIA = """
title: Student and teacher
preset: demo
set: [rounds=4, data.limit=200, clients.total=10, local.epochs=1, evaluation.validation=0.2]
axes:
  method:
    FedAvg: algorithm=fedavg
    KDIA: "algorithm={name: kdia, lambda_gen: 0}"
    FedProx: algorithm=fedprox
  data: {IID: data.partition=iid}
rows: [data]
columns: [method]
views: {"KDIA, teacher": {of: KDIA, metric: teacher_accuracy}}
seeds: [1]
against: FedAvg
show: [final, best, chosen, tail, swing, curve, reach_best]
also: [up]
curve_every: 2
"""


def test_a_view_shows_another_model_of_the_same_run(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "kdia.yaml"
    file.write_text(KDIA, "utf-8")
    table = read_table(file)
    run = next(run for run in table.runs() if run.labels["method"] == "KDIA")
    spec, experiment = table.spec(run), resolve(table.spec(run), settings)
    made = execute(Pending(run, spec, fingerprint(spec)), table, settings, Populations(), "")
    population = experiment.population()
    records = list(simulate(experiment.algorithm, population, SerialPool(experiment.algorithm, population)))
    teacher = [record.metrics["teacher_accuracy"] for record in records]
    # best and tail are of all rounds, not of the points of the curve that are kept
    seen = made.seen("teacher_accuracy", "global_accuracy")
    assert seen.curve == {n: pytest.approx(teacher[n - 1], abs=1e-6) for n in (1, 2, 4)}
    assert seen.best["value"] == pytest.approx(max(teacher), abs=1e-6)
    assert seen.tail == pytest.approx(sum(teacher) / 4, abs=1e-6)
    assert made.final["global_accuracy"] == pytest.approx(records[-1].metrics["global_accuracy"], abs=1e-6)
    pairs = [
        (r.metrics[f"{model}_validation_accuracy"], r.metrics[f"{model}_accuracy"])
        for r in records
        for model in ("global", "teacher")
    ]
    best = max(validation for validation, _ in pairs)
    assert made.chosen["value"] in {round(test, 6) for validation, test in pairs if validation == best}
    text = render(table, {made.key: Entry.model_validate_json(made.model_dump_json())})
    assert "| data | FedAvg | KDIA | KDIA, teacher | FedProx |" in text
    assert f"| IID | – | {100 * made.tail:.2f} | {100 * seen.tail:.2f} | – |" in text
    assert f"| IID | – | {100 * made.chosen['value']:.2f} | – | – |" in text
    assert "| data | KDIA | KDIA, teacher | FedProx |" in text
    assert f"| IID | KDIA, teacher | {100 * teacher[0]:.1f} | {100 * teacher[1]:.1f} |" in text
    assert f"| IID | – | {made.bytes['up'] / 1e6:.2f} | – |" in text, "bytes are of the run, once"


def test_the_swing_is_of_the_second_half() -> None:
    """Changes of 0.5, 0.1 and -0.3: the half of three that is kept are the last two, 0.2 in the mean."""
    assert swing({1: 0.1, 2: 0.6, 3: 0.7, 4: 0.4}) == pytest.approx(0.2)
    assert swing({1: 0.1}) is None


def test_other_figures_of_the_runs(table: Table, settings: Settings) -> None:
    table = table.model_copy(update={"also": ("global_loss", "updates", "up")})
    run = next(table.runs())
    spec = table.spec(run)
    made = execute(Pending(run, spec, fingerprint(spec)), table, settings, Populations(), "")
    assert made.cost["updates"] > 0 == made.cost["tuning_updates"]
    old = entry(table, ("strong", "IID"), 1, 0.5)  # as written before costs were counted
    text = render(table, {made.key: made, old.key: old})
    updates, up = f"{made.cost['updates'] / 1e9:.2f} (1)", f"{made.bytes['up'] / 1e6:.2f} (1)"
    assert f"in 10^9:\n\n| data | plain | strong |\n| --- | --- | --- |\n| IID | {updates} | – |" in text
    assert f"| IID | {up} | 0.00 (1) |" in text
    assert f"| IID | {made.final['global_loss']:.2f} (1) | – |" in text


PERSONAL = """
title: Clients' own models
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
    """FedBABU is scored personally in the end alone, and its model before that by round; FedPer has none."""
    file = tmp_path / "personal.yaml"
    file.write_text(PERSONAL, "utf-8")
    table, shared, made = read_table(file), Populations(), {}
    for run in table.runs():
        spec = table.spec(run)
        entry = execute(Pending(run, spec, fingerprint(spec)), table, settings, shared, "")
        made[run.labels["method"]] = Entry.model_validate_json(entry.model_dump_json())
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
    assert f"| FedPer | – | – |\n| FedBABU | {first:.1f} | {last:.1f} |" in text
    deviations = (100 * entry.final["personal_accuracy_std"] for entry in (fedper, fedbabu))
    assert "| {:.2f} | {:.2f} |".format(*deviations) in text


def test_a_section_stays_where_it_is(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nBefore.\n", "utf-8")
    place(page, "a", "first")
    page.write_text(page.read_text("utf-8") + "\nAfter.\n", "utf-8")
    place(page, "a", "second")
    text = page.read_text("utf-8")
    assert text == "# Results\n\nBefore.\n\n<!-- table a -->\nsecond\n<!-- end of table a -->\n\nAfter.\n"
    page.write_text(text.replace("<!-- end of table a -->", ""), "utf-8")
    with pytest.raises(ValueError, match="only one of"):
        place(page, "a", "third")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows: [data]", "rows: [data, mu]", "rows and columns"),
        ("against: plain", "against: weak", "against"),
        ("show: [final, curve]", "show: [last]", "show"),
        ("against: plain\nshow: [final, curve]", "show: [reach]", "needs `against`"),
        ("seeds: [1, 2]", "seeds: []", "seeds"),
        ("seeds: [1, 2]", "seeds: [1]\nviews: {teacher: {of: none, metric: a}}", "'none' none of"),
        ("seeds: [1, 2]", "seeds: [1]\nviews: {plain: {of: strong, metric: a}}", "'plain' is no new label"),
        ("show: [final, curve]", "curves: [global_accuracy]", "own metric"),
        ("title: A", "instead: {demo: {weak: algorithm=fedavg}}\ntitle: A", "'weak' is no label of an axis"),
        ("title: A", "titel: A", "titel"),
    ],
)
def test_wrong_tables(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(SMALL.replace(old, new), "utf-8")
    with pytest.raises(TableError, match=message):
        read_table(file)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nothing", "--results", str(tmp_path)]) == 2
    assert "'nothing' is no table" in capsys.readouterr().err


@pytest.mark.parametrize("name", tables())
def test_every_table_asks_for_specs_that_parse(name: str) -> None:
    table = load_table(name)
    marks = [fingerprint(table.spec(run)) for run in table.runs()]
    assert len(set(marks)) == len(marks), "two runs of the table are the same"


def test_labels_may_stand_for_something_else_with_another_preset() -> None:
    """FedGen's strength beta is 1 for EMNIST, and everything else as it was."""
    table = load_table("fedcl-fmnist")
    for preset, beta in (("fedcl-emnist", 1.0), ("fedcl-emnist-small", 1.0), ("fedcl-mnist", 10.0)):
        other = table.on(preset)
        specs = [other.spec(run) for run in other.runs() if run.labels["method"] == "FedGen"]
        assert {spec.algorithm.params["beta"] for spec in specs} == {beta}
        for mine, its in zip(table.runs(), other.runs(), strict=True):
            assert mine == its or mine.labels["method"] == "FedGen"
    assert [*table.on(table.preset).runs()] == [*table.runs()]


def test_layer_schedules_are_in_proportion_to_the_rounds() -> None:
    """0, a third and two thirds of the run, so that every block opens; and no other method is given times."""
    for name in ("layers-fmnist", "layers-cifar10", "layers-cifar10-100", "layers-tiny-imagenet"):
        table = load_table(name)
        for run in (run for run in table.runs() if run.seed == table.seeds[0]):
            spec = table.spec(run)
            times = [spec.rounds * k // 3 for k in range(3)]
            scheduled = {"order": run.labels["method"].lower(), "times": times, "tuning_epochs": 10}
            assert spec.algorithm.params == (scheduled if spec.algorithm.name == "layer_schedule" else {})


@pytest.mark.parametrize("name", tables())
def test_columns_that_are_compared_by_round_are_scored_in_the_same_rounds(name: str) -> None:
    """Who fine-tunes is scored after the last round alone, unless `always` is asked for."""
    table = load_table(name)
    if set(table.show) == {"final"} or not table.metric.startswith("personal"):
        return
    specs = [table.spec(run) for run in table.runs() if run.seed == table.seeds[0]]
    tuned = [spec for spec in specs if ALGORITHMS[spec.algorithm.name].tuning is not Algorithm.tuning]
    assert {spec.evaluation.personal for spec in tuned} <= {"always"}
