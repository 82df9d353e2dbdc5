"""The runner of result tables: what it makes, what it leaves alone, and what it writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.clients.population import Population
from fedsim.core.capabilities import PersonalModels
from fedsim.engine.experiment import Experiment
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import FedsimError, SettingsError, SpecError
from jobs.grid.finished import estimate_seconds, list_missing, take_entries
from jobs.grid.journal import Journal, Spending, summarise_metric
from jobs.grid.markdown import render
from jobs.grid.one_run import make_run
from jobs.grid.process_pool import run_in_processes
from jobs.grid.runner import EndedRun, TableProgress, run_table
from jobs.grid.table import Table, list_tables, load_table, read_table
from jobs.run.without_ray.populations import Populations
from jobs.settings import Settings
from jobs.spec import parse_spec, preset_text
from jobs.spec.checks.name_checks import find_name_faults
from jobs.spec.grid import hash_spec
from jobs.spec.resolve import resolve_spec
from jobs.spec.sweep import Member
from tests.jobs.grid.small_table import SMALL, entry, find_member


def _tunes(algorithm: type[Any]) -> bool:
    """Whether its clients fine-tune their models before these are scored."""
    return issubclass(algorithm, PersonalModels) and algorithm.plan_tuning is not PersonalModels.plan_tuning


def test_every_cell_is_run_with_every_seed_seed_by_seed(table: Table) -> None:
    runs = table.runs()
    assert [member.run.seed for member in runs] == [1] * 4 + [2] * 4
    assert [member.run.cell for member in runs[:4]] == [
        ("plain", "IID"),
        ("plain", "Dir(1)"),
        ("strong", "IID"),
        ("strong", "Dir(1)"),
    ]
    spec = runs[3].spec
    assert (spec.algorithm.name, spec.algorithm.params) == ("fedprox", {"mu": 1.0})
    assert (spec.data.partition.params["beta"], spec.rounds, spec.seed) == (1.0, 2, 1)


def test_the_digest_is_of_what_changes_the_result() -> None:
    plain = parse_spec({"algorithm": "fedavg", "seed": 1})
    same = parse_spec({"algorithm": {"name": "fedavg"}, "seed": 1, "name": "x", "resources": {"workers": 2}})
    assert hash_spec(plain) == hash_spec(same)
    others: list[dict[str, object]] = [
        {"seed": 2},
        {"rounds": 21},
        {"algorithm": {"name": "fedprox"}},
        {"local": {"lr": 0.1}},
    ]
    marks = [hash_spec(parse_spec({"algorithm": "fedavg", "seed": 1, **other})) for other in others]
    assert len({hash_spec(plain), *marks}) == 5


def test_what_is_finished_is_not_run_again(table: Table, settings: Settings, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "iterate_rounds", table.name)
    done = [
        entry(table, cell, seed, 0.5)
        for cell in table.cells(["mu", "data"])
        for seed in (1, 2)
        if (cell, seed) != (("strong", "IID"), 2)
    ]
    for finished in done:
        journal.append(finished)
    assert [(m.run.cell, m.run.seed) for m in list_missing(table, journal)] == [(("strong", "IID"), 2)]
    said = list[TableProgress]()

    def make(table: Table, missing: Sequence[Member]) -> Iterator[EndedRun]:
        return run_in_processes(table, missing, settings, processes=1)

    assert run_table(table, journal, make, said.append) == []
    assert len(journal.file.read_text("utf-8").splitlines()) == 8
    assert list_missing(table, journal) == []
    assert [(each.left, each.total) for each in said] == [(1, 8), (0, 8)]
    assert (said[0].seconds, said[1].seconds) == (1.0, 0.0)  # the entries above took 1 s each


def test_the_time_left_is_that_of_the_same_cells(table: Table) -> None:
    slow = entry(table, ("strong", "IID"), 1, 0.5).model_copy(update={"seconds": 90.0})
    quick = entry(table, ("plain", "IID"), 1, 0.5).model_copy(update={"seconds": 10.0})
    missing = [find_member(table, cell, 2) for cell in (("strong", "IID"), ("plain", "Dir(1)"))]
    assert estimate_seconds(missing, [slow, quick], 2) == (90 + 50) / 2
    assert estimate_seconds(missing, []) is None


def test_a_failed_run_is_named_and_made_again(table: Table, tmp_path: Path) -> None:
    """The ways to make runs share all but the making: here every second run fails."""
    journal = Journal(tmp_path, table.name)

    def make(table: Table, missing: Sequence[Member]) -> Iterator[EndedRun]:
        for number, member in enumerate(missing):
            made = entry(table, member.run.cell, member.run.seed, 0.5)
            yield EndedRun(member, "no memory" if number % 2 else made)

    faults = run_table(table, journal, make, lambda progress: None)
    assert faults[0] == "plain, Dir(1), seed 1: no memory"
    assert (len(faults), len(journal.read()), len(list_missing(table, journal))) == (4, 4, 4)
    run_table(table, journal, make, lambda progress: None)
    assert len(journal.read()) == 6


def test_a_run_that_diverged_is_read_again(table: Table, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "iterate_rounds", table.name)
    done = entry(table, table.cells(["mu", "data"])[0], 1, 0.1)
    nowhere = summarise_metric("global_loss", {1: math.nan, 2: math.nan}, 1)
    changes = {"final": {**done.final, "train_loss": math.nan}, "others": {"global_loss": nowhere}}
    lost = {"best": nowhere.best, "tail": nowhere.tail, "curve": nowhere.curve}
    journal.append(done.model_copy(update=changes | lost))
    read = journal.read()[done.key]
    assert all(map(math.isnan, (read.final["train_loss"], read.tail, read.curve[2], read.best["value"])))
    assert math.isnan(read.others["global_loss"].tail)


def test_the_best_round_of_a_loss_is_the_smallest() -> None:
    scores = {1: 0.5, 2: 0.2, 3: 0.3, 4: math.nan}
    assert summarise_metric("global_loss", scores, 1).best == {"round": 2, "value": 0.2}
    assert summarise_metric("global_accuracy", scores, 1).best == {"round": 1, "value": 0.5}


def test_the_command_of_a_table_says_how_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SMALL, "utf-8")
    assert load_table(str(tmp_path / "mine.yaml")).command == f"fedsim reproduce {tmp_path}/mine.yaml"
    asked = load_table("kdia-cifar10").at_scale("paper").with_seeds(5)
    assert asked.command == "fedsim reproduce kdia-cifar10 --scale paper --seeds 5"
    assert load_table("kdia-cifar10").at_scale("small").command == "fedsim reproduce kdia-cifar10"


@pytest.mark.parametrize("name", [name for name in list_tables() if load_table(name).paper])
def test_the_paper_scale_of_a_substitute_has_the_data_set_of_the_paper(name: str) -> None:
    table = load_table(name)
    specs = [run.spec for run in table.at_scale("paper").runs()]
    own = {run.spec.data.dataset.name for run in table.runs()}
    assert own.isdisjoint(spec.data.dataset.name for spec in specs)
    assert [fault for spec in specs for fault in find_name_faults(spec)] == []


def test_the_paper_scale_of_a_table_is_not_that_of_its_kin_with_another_preset(tmp_path: Path) -> None:
    (tmp_path / "kin.yaml").write_text("like: ace-fmnist\npreset: ace-cifar100-small\n", "utf-8")
    assert load_table(str(tmp_path / "kin.yaml")).at_scale("paper").preset == "ace-cifar100"


def test_runs_that_another_table_has_made_are_taken_from_its_journal(tmp_path: Path) -> None:
    sweep, whole = load_table("kdia-sweep"), load_table("kdia-cifar10")
    lent = Journal(tmp_path, whole.name)
    for method in ("MOON", "KDIA"):
        lent.append(entry(whole, ("Dir(0.5)", method), 2506, 0.5))
    journal = Journal(tmp_path, sweep.name)
    assert take_entries(sweep, journal, list_missing(sweep, journal)) == 2
    assert [made.labels for made in journal.read().values()] == [
        {"clients": "N = 100, C = 0.1", "method": "MOON"},
        {"clients": "N = 100, C = 0.1", "method": "KDIA"},
    ]
    assert take_entries(sweep, journal, list_missing(sweep, journal)) == 0
    finer = sweep.model_copy(update={"name": "finer", "curve_every": 1})
    other = sweep.model_copy(update={"name": "other", "metric": "personal_accuracy"})
    wider = sweep.model_copy(update={"name": "wider", "curves": ("global_loss",)})
    for table in (finer, other, wider):
        journal = Journal(tmp_path, table.name)
        assert take_entries(table, journal, list_missing(table, journal)) == 0, table.name


def test_what_is_taken_has_the_points_of_its_new_table(table: Table) -> None:
    made = entry(table, ("plain", "IID"), 1, 0.5).model_copy(
        update={"curve": {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}}
    )
    taken = made.copy_for_table({"mu": "none"}, 2)
    assert (taken.labels, taken.curve) == ({"mu": "none"}, {1: 0.1, 2: 0.2, 4: 0.4})
    assert (taken.final, taken.best, taken.digest) == (made.final, made.best, made.digest)


def test_a_run_has_the_digest_of_the_same_spec_and_shares_its_data(table: Table, settings: Settings) -> None:
    shared, digests = Populations(keep=2), {}
    for member in [member for member in table.runs() if member.run.seed == 1]:
        made = make_run(member, table, settings, shared, "")
        digests[member.run.cell] = made.digest
        assert list(made.curve) == [1, 2]
        assert made.bytes["up"] == made.bytes["down"] > 0
    assert len(shared.made) == 2  # two partitions of one seed; the methods share them
    assert len(set(digests.values())) == 4
    experiment = resolve_spec(table.runs()[0].spec, settings)
    population = experiment.load_population()
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


def test_wrong_specs_are_named_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(SMALL.replace("algorithm.mu=1.0", "rouns=3"), "utf-8")
    with pytest.raises(SpecError, match=r"rouns.*in strong, IID, seed 1"):
        list_missing(read_table(file), Journal(tmp_path, "wrong"))


def test_a_metric_that_no_record_has_is_a_fault(table: Table, settings: Settings) -> None:
    other = table.model_copy(update={"metric": "personal_accuracy"})
    with pytest.raises(FedsimError, match="personal_accuracy"):
        make_run(table.runs()[0], other, settings, Populations(), "")


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
        ("show: [final, curve]", "show: [reach]\nmetric: global_loss", "of which more is better"),
        ("title: A", "instead: {demo: {weak: algorithm=fedavg}}\ntitle: A", "'weak' is no label of an axis"),
        ("title: A", "titel: A", "titel"),
        ("page: kdia", "page: ../kdia", "page"),
        (
            "title: A",
            "claims: [{id: a, sentence: b}]\ntitle: A",
            "write either a baseline or why_not",
        ),
        (
            "title: A",
            "claims: [{id: a, sentence: b, value: {mu: weak}, baseline: {mu: plain}}]\ntitle: A",
            "'mu: weak' is no axis with such a label",
        ),
        (
            "title: A",
            "claims: [{id: a, sentence: b, value: {mu: strong}, baseline: {mu: plain}, margin: 1}]\ntitle: A",
            "level and not_below need a margin",
        ),
    ],
)
def test_wrong_tables(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(SMALL.replace(old, new), "utf-8")
    with pytest.raises(SettingsError, match=message):
        read_table(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no mapping of fields"),
        (b"[1, 2]", "no mapping of fields"),
        (b"axes: [a]", "axes: Input should be a valid dict"),
        (b"axes: {a: [x]}", "axes.a: Input should be a valid dict"),
        (b"axes: {a: {x: 3}}", "axes.a.x"),
        (b"set: 3", "set: Input should be a valid tuple"),
        (b"title: \xff", "cannot be read"),
        (b"like: kdia", "like: 'kdia' is no table"),
        (b"like: kdia-cifar10", "like: kdia-cifar10 is itself like kdia-fmnist"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_table(file)


def test_a_table_like_another_has_its_fields_but_for_its_own_and_the_measured_hours(tmp_path: Path) -> None:
    file, other = tmp_path / "mine.yaml", load_table("kdia-fmnist")
    file.write_text("like: kdia-fmnist\ntitle: Mine\nseeds: [5]\n", "utf-8")
    own = {"name": "mine", "title": "Mine", "seeds": (5,), "hours": None}
    assert other.hours is not None
    assert read_table(file) == other.model_copy(update=own)


def test_the_base_spec_of_a_table_may_be_a_file_beside_it(tmp_path: Path, table: Table) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("preset: demo", "preset: base.yaml"), "utf-8")
    with pytest.raises(SettingsError, match=r"base\.yaml cannot be read: No such file"):
        read_table(file)
    (tmp_path / "base.yaml").write_text(preset_text("demo"), "utf-8")
    assert [member.spec for member in read_table(file).runs()] == [member.spec for member in table.runs()]


def test_items_of_every_run_may_be_a_mapping(tmp_path: Path, table: Table) -> None:
    file = tmp_path / "small.yaml"
    items = "set: {rounds: 2, data.limit: 200, clients.total: 10, local.epochs: 1}"
    file.write_text(SMALL.replace("set: [rounds=2, data.limit=200, clients.total=10, local.epochs=1]", items))
    assert [member.spec for member in read_table(file).runs()] == [member.spec for member in table.runs()]


def test_a_run_ends_by_its_own_stop_rule(table: Table, settings: Settings) -> None:
    short = table.model_copy(update={"set": (*table.set, "stop.round=1")})
    assert make_run(short.runs()[0], short, settings, Populations(), "").rounds == 1


def test_where_runs_are_made_is_written_down(
    table: Table, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and server are told the device, the line names the GPU, and the page what was made on it."""
    told, member = list[str](), table.runs()[0]

    def results(experiment: Experiment, population: Population, device: str) -> Iterator[RoundResult]:
        told.append(device)
        yield from made(experiment, population)

    made = Experiment.simulate
    monkeypatch.setattr(Experiment, "simulate", results)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A GPU")
    line = make_run(member, table, settings, Populations(), "", "cuda")
    assert (told, line.device) == (["cuda"], "A GPU")
    other = entry(table, ("plain", "IID"), 2, 0.5)
    assert "\n\nRuns on each device: A GPU 1, cpu 1.\n\n" in render(table, {line.key: line, other.key: other})
    assert "Runs on each device" not in render(table, {other.key: other})


@pytest.mark.parametrize("name", list_tables())
def test_every_table_asks_for_specs_that_parse(name: str) -> None:
    table = load_table(name)
    marks = [member.spec_hash for member in table.runs()]
    assert len(set(marks)) == len(marks), "two runs of the table are the same"


def test_labels_may_stand_for_something_else_with_another_preset() -> None:
    """FedGen's strength beta is 1 for EMNIST, and everything else as it was."""
    table = load_table("fedcl-fmnist")
    for preset, beta in (("fedcl-emnist", 1.0), ("fedcl-emnist-small", 1.0), ("fedcl-mnist", 10.0)):
        other = table.on(preset)
        specs = [member.spec for member in other.runs() if member.run.labels["method"].startswith("FedGen")]
        assert {spec.algorithm.params["beta"] for spec in specs} == {beta}
        for mine, its in zip(table.runs(), other.runs(), strict=True):
            assert mine.run == its.run or mine.run.labels["method"].startswith("FedGen")
    assert table.on(table.preset).runs() == table.runs()


@pytest.mark.parametrize("name", ["kdia-cifar10", "kdia-fmnist"])
def test_at_the_papers_scale_fedcog_is_its_own(name: str) -> None:
    """What fits it into few rounds stays behind, and the text says that it tells of another preset."""
    table = load_table(name)
    other = table.on("kdia-cifar10")
    methods = {m.run.labels["method"]: m.spec.algorithm.params for m in other.runs()}
    assert methods["FedCOG"] == {}
    assert methods["MOON"] == {"mu": 5.0}
    said = f"This table was made with `kdia-cifar10`. The text describes `{table.preset}`.\n\n"
    assert other.about.startswith(said)


def test_layer_schedules_are_in_proportion_to_the_rounds() -> None:
    """0, a third and two thirds of the run, so that every block opens; and no other method is given times."""
    for name in ("layers-fmnist", "layers-cifar10", "layers-tiny-imagenet"):
        table = load_table(name)
        for run, spec in [(m.run, m.spec) for m in table.runs() if m.run.seed == table.seeds[0]]:
            times = [spec.rounds * k // 3 for k in range(3)]
            scheduled = {"order": run.labels["method"].lower(), "times": times, "tuning_epochs": 10}
            others = {"head": "shared"} if run.labels["method"] == "FedAvg + tuning" else {}
            assert spec.algorithm.params == (scheduled if spec.algorithm.name == "layer_schedule" else others)


@pytest.mark.parametrize("name", list_tables())
def test_columns_that_are_compared_by_round_are_scored_in_the_same_rounds(name: str) -> None:
    """Who fine-tunes is scored after the last round alone, unless `always` is asked for."""
    table = load_table(name)
    if set(table.show) == {"final"} or not table.metric.startswith("personal"):
        return
    specs = [m.spec for m in table.runs() if m.run.seed == table.seeds[0]]
    tuned = [spec for spec in specs if _tunes(ALGORITHMS[spec.algorithm.name])]
    assert {spec.evaluation.personal for spec in tuned} <= {"always"}


def test_an_overview_has_accuracies_and_the_costs_until_the_target(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        SMALL.replace("rows: [data]\ncolumns: [mu]", "rows: [mu]\ncolumns: [data]")
        .replace("show: [final, curve]", "show: [overview]\nmetric: personal_accuracy_mean")
        .replace('Dir(1): "data.partition={kind: dirichlet, beta: 1.0}"', "")
    )
    table = read_table(file)
    lines = [entry(table, ("plain", "IID"), 1, 0.4), entry(table, ("strong", "IID"), 1, 0.9)]
    runs = [
        line.model_copy(
            update={
                "spent": {1: Spending(bytes=2_000_000, processor_seconds=3.0)},
                "others": {"global_accuracy": summarise_metric("global_accuracy", {1: 0.2, 2: 0.4}, 1)},
            }
        )
        for line in lines
    ]
    said = render(table, {line.key: line for line in runs})
    assert "| plain | 30.0 (1) | 30.0 (1) | – | 2 (1) | – | – |" in said
    assert "| strong | 30.0 (1) | 67.5 (1) | – | 1 (1) | 2 (1) | 3 (1) |" in said
    _, by_global = said.split("Until `global_accuracy` reaches that of `plain`:")
    assert "| strong | 2 (1) | – | – |" in by_global
    assert "Not run" not in said


def test_a_run_keeps_what_it_spent_at_each_point_of_its_curve(table: Table, tmp_path: Path) -> None:
    made = make_run(table.runs()[0], table, Settings.from_env(), Populations(), "")
    assert made.spent.keys() == made.curve.keys()
    assert made.spent[2].bytes == sum(made.bytes.values())
    assert made.spent[2].simulated_seconds is None


def test_a_run_with_devices_keeps_its_simulated_seconds_and_joules(table: Table) -> None:
    timed = table.model_copy(update={"set": (*table.set, "devices=phones")})
    spent = make_run(timed.runs()[0], timed, Settings.from_env(), Populations(), "").spent
    first, second = (spent[number].simulated_seconds for number in (1, 2))
    assert first is not None
    assert second is not None
    assert 0 < first < second
    assert spent[2].joules is not None
    assert 0 < (spent[1].joules or 0) < spent[2].joules
