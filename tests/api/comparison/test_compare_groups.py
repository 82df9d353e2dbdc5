"""Groups of runs: names, means over seeds and paired differences; the figures by SciPy."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from api.comparison.compare import compare_runs
from api.comparison.compared_run import ComparedRun
from api.comparison.group_names import list_differences
from api.comparison.records import Comparison
from api.comparison.run_groups import group_runs
from api.comparison.run_scores import RoundScore, find_validated_score
from api.reports.comparison_tables import PaperFormat, render_table
from fedsim import FedSimClient
from fedsim.base.statistics import adjust_holm
from fedsim.engine.stopping import RunEnd
from jobs.spec import parse_spec
from jobs.spec.sweep import members, read_sweep
from jobs.store.records import Job
from jobs.store.states import JobState
from tests.api.real_runs import SMALL
from tests.api.service import Fedsim, RunningService, a_round

ACCURACY = "global_accuracy"
FEDAVG = {1: [0.5, 0.61, 0.70], 2: [0.5, 0.60, 0.72], 3: [0.4, 0.63, 0.69]}
KDIA = {1: [0.5, 0.64, 0.74], 2: [0.5, 0.66, 0.73], 3: [0.5, 0.65, 0.75]}
FEDPROX = {2: [0.5, 0.5, 0.71], 3: [0.5, 0.5, 0.70]}


def run(algorithm: str, seed: int, accuracies: list[float], **spec: Any) -> ComparedRun:
    records = [
        a_round(number, global_accuracy=accuracy, global_validation_accuracy=1 - accuracy)
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    name = f"{algorithm}-seed{seed}"
    whole = {"name": name, "seed": seed, "algorithm": {"name": algorithm}, "rounds": 3, **spec}
    return ComparedRun(name, name, records, whole)


def study(against: str | None = None, fedprox: Mapping[int, list[float]] = FEDPROX) -> Comparison:
    runs = [
        run(algorithm, seed, accuracies)
        for algorithm, seeds in (("fedavg", FEDAVG), ("kdia", KDIA), ("fedprox", fedprox))
        for seed, accuracies in seeds.items()
    ]
    return compare_runs(runs, last=2, against=against)


def test_rows_of_other_seeds_have_no_best_and_a_difference_of_the_common_seeds() -> None:
    """FedProx has easier seeds: it is above FedAvg in the mean, and below with both seeds that they share."""
    fedavg = [run("fedavg", seed, [0.58 + 0.02 * seed]) for seed in (1, 2)]
    fedavg += [run("fedavg", seed, [0.74 + 0.02 * seed]) for seed in (3, 4)]
    fedprox = [run("fedprox", seed, [value]) for seed, value in {3: 0.79, 4: 0.808, 5: 0.9, 6: 0.91}.items()]
    found = compare_runs([*fedavg, *fedprox], last=1)
    plain, other = (group.final for group in found.groups)
    assert plain is not None
    assert other is not None
    assert other.mean > plain.mean
    assert not plain.is_best
    assert not other.is_best
    assert "(2 pairs)" in render_table(found, PaperFormat.MARKDOWN)
    assert found.notes == [
        "The difference to fedavg is over the seeds that both have: fedprox.",
        "The rows have different seeds, so their means are not comparable: there is no best row.",
    ]
    same = compare_runs([*fedavg, *(run("fedprox", seed, [0.9]) for seed in (1, 2, 3, 4))], last=1)
    assert [group.final and group.final.is_best for group in same.groups] == [False, True]
    assert not same.notes


def test_the_figures_are_those_of_scipy() -> None:
    found = study()
    assert (found.baseline, [group.title for group in found.groups]) == (
        "fedavg",
        ["fedavg (3 seeds)", "kdia (3 seeds)", "fedprox (2 seeds)"],
    )
    tests = []
    for group, own in zip(found.groups, (FEDAVG, KDIA, FEDPROX), strict=True):
        finals = [values[-1] for values in own.values()]
        assert group.final is not None
        assert group.final.values == finals
        assert (group.final.mean, group.final.deviation) == pytest.approx(
            (stats.tmean(finals), stats.tstd(finals))
        )
        assert group.last_rounds is not None
        assert group.last_rounds.values == pytest.approx([sum(values[-2:]) / 2 for values in own.values()])
        # The validation set chooses the first round.
        assert group.validated is not None
        assert group.validated.values == [values[0] for values in own.values()]
        difference = group.final.difference
        if own is FEDAVG:
            assert difference is None
            continue
        assert difference is not None
        test = stats.ttest_rel(finals, [FEDAVG[seed][-1] for seed in own])
        tests.append((test.pvalue, group.final.p_adjusted))
        assert difference.p_value == pytest.approx(test.pvalue)
        interval = test.confidence_interval(0.95)
        assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
        assert difference.pairs == len(own)
    assert [adjusted for _, adjusted in tests] == pytest.approx(adjust_holm([p for p, _ in tests]))
    # Two seeds beside three: a mean over other seeds is not the best by that.
    assert not any(group.final and group.final.is_best for group in found.groups)


@pytest.mark.parametrize("rest", ["accuracy", "accuracy_mean", "rmse_worst10"])
def test_the_validation_set_chooses_the_round_of_personal_models_too(rest: str) -> None:
    names = f"personal_{rest}", f"personal_validation_{rest}"
    values = [(0.5, 0.2), (0.6, 0.4), (0.7, 0.3)]
    records = [
        a_round(number, **dict(zip(names, pair, strict=True))) for number, pair in enumerate(values, 1)
    ]
    chosen = find_validated_score(records, names[0])
    assert chosen == (RoundScore(1, 0.5) if "rmse" in rest else RoundScore(2, 0.6))
    assert find_validated_score(records, "personal_accuracy_std") is None


def test_the_baseline_is_chosen_by_group_or_run() -> None:
    for against in ("kdia", "kd", "kdia-seed2"):
        found = study(against)
        assert found.baseline == "kdia"
        assert found.groups[0].final is not None
        assert found.groups[0].final.difference is not None
        assert found.groups[0].final.difference.mean == pytest.approx(-0.11 / 3)


def test_tables_for_a_paper() -> None:
    found = study(fedprox={**FEDPROX, 1: [0.5, 0.5, 0.72]})
    head, _, *rows = render_table(found, PaperFormat.MARKDOWN).splitlines()
    assert head.startswith("| global accuracy | seeds | last round | difference | mean of the last 2 | diff")
    assert rows[0].startswith("| fedavg | 3 | 0.7033 ± 0.0153 | baseline |")
    assert rows[1].startswith("| kdia | 3 | **0.7400 ± 0.0100** | +0.0367 [−0.0")
    latex = render_table(found, PaperFormat.LATEX)
    assert r"kdia & 3 & \textbf{0.7400 $\pm$ 0.0100} & +0.0367 [$-$0.0" in latex
    assert latex.count(r"\\") == 4
    named = compare_runs([run("fed_avg", 1, [0.1]), run("a|b%", 1, [0.2])])
    assert r"fed\_avg" in render_table(named, PaperFormat.LATEX)
    assert "| a\\|b% |" in render_table(named, PaperFormat.MARKDOWN)
    formula = compare_runs([run("=1+1", 1, [0.1]), run("b", 1, [0.2])])
    titles = [each["group"] for each in csv.DictReader(io.StringIO(render_table(formula, PaperFormat.CSV)))]
    assert titles[0].startswith("'=1+1")
    first, *_ = csv.DictReader(io.StringIO(render_table(found, PaperFormat.CSV)))
    assert float(first["final_deviation"]) == found.groups[0].final.deviation  # type: ignore[union-attr]


def test_runs_without_the_same_rounds_scores_or_seeds() -> None:
    end = RunEnd("patience", 3, 2, {}, "no progress")
    patient = run("kdia", 1, [0.5, 0.7, 0.6])
    patient = patient._replace(
        records=[*patient.records[:2], patient.records[2].model_copy(update={"end": end})]
    )
    found = compare_runs([patient, run("fedavg", 2, [0.5, 0.6, 0.7])], last=2)
    # Later scores than that of the result do not count.
    assert found.lines[0].final == RoundScore(2, 0.7)
    assert found.lines[0].last_rounds == pytest.approx(0.6)
    assert not any("fewer rounds" in note for note in found.notes)
    assert compare_runs([patient], last=4).notes == [
        "The mean of the last 4 is a mean of fewer rounds: kdia-seed1: 3."
    ]
    several = compare_runs([run("kdia", seed, [0.5]) for seed in (1, 2)] + [run("fedavg", 3, [0.5])])
    assert any(note.startswith("No seed in common with kdia") for note in several.notes)


def test_a_name_that_all_runs_share_keeps_its_digits() -> None:
    runs = [ComparedRun(str(seed), "kdia-cifar10", [], {"seed": seed, "rounds": 3}) for seed in (1, 2)]
    assert compare_runs(runs).groups[0].title.startswith("kdia-cifar10 (")


def test_a_group_counts_complete_runs_and_each_seed_once() -> None:
    whole = [run("fedavg", seed, [0.5, 0.6, 0.7]) for seed in (1, 2)]
    failed = run("fedavg", 3, [0.5])._replace(state="FAILED")
    again = run("fedavg", 2, [0.5, 0.6])
    group, alone = group_runs([*whole, failed, again], ACCURACY)
    assert (group.note, len(group.counted)) == (" (2 of 3 seeds, 1 failed)", 2)
    assert alone.members == [again]
    assert [len(each.members) for each in group_runs(whole, ACCURACY, together=False)] == [1, 1]


def names(*specs: dict[str, Any]) -> list[str]:
    runs = [ComparedRun(str(place), "job", [], {"seed": 1, **spec}) for place, spec in enumerate(specs)]
    return [group.name for group in group_runs(runs, ACCURACY)]


def test_names_of_many_terms_have_as_many_as_tell_all_groups_apart() -> None:
    plain = {"clients": {"fraction": 0.1}, "local": {"lr": 0.1, "epochs": 1}, "attack": None}
    found = names(
        plain,
        plain | {"clients": {"fraction": 0.2}},
        plain | {"local": {"lr": 0.2, "epochs": 1}},
        plain | {"local": {"lr": 0.1, "epochs": 2}},
        plain | {"attack": {"name": "sign_flip"}},
    )
    assert len(set(found)) == 5
    assert found[0] == "no attack, fraction=0.1, lr=0.1, epochs=1"


def test_names_say_what_differs() -> None:
    prox = {"algorithm": {"name": "fedprox", "mu": 0.1}}
    stronger = {"algorithm": {"name": "fedprox", "mu": 1.0}}
    assert names({"algorithm": {"name": "fedavg"}}, prox, stronger) == [
        "fedavg",
        "fedprox mu=0.1",
        "fedprox mu=1",
    ]
    assert names({"local": {"lr": 0.1}}, {"local": {"lr": 0.05}}) == ["lr=0.1", "lr=0.05"]
    attack: dict[str, Any] = {"attack": {"name": "sign_flip", "fraction": 0.2}}
    robust = attack | {"aggregation": {"name": "median"}}
    assert names({"attack": None, "aggregation": None}, attack | {"aggregation": None}, robust) == [
        "no attack, no aggregation",
        "sign_flip, no aggregation",
        "sign_flip, median",
    ]
    skewed = {"data": {"partition": {"kind": "dirichlet", "beta": 0.1}}}
    assert names({"data": {"partition": {"kind": "iid"}}}, skewed) == ["iid", "dirichlet"]
    assert names({"model": [{"name": "mlp"}]}, {"model": [{"name": "cnn"}, {"name": "mlp"}]}) == [
        "mlp",
        "cnn, mlp",
    ]


def test_sweeps_of_older_versions_have_labels_with_json() -> None:
    labels = ['{"name": "fedprox", "mu": 0.1}', "fedavg"]
    runs = [
        ComparedRun(label, f"mus: {label}, seed 1", [], {"seed": 1}, {"group": "mus", "algorithm": label})
        for label in labels
    ]
    assert [group.name for group in group_runs(runs, ACCURACY)] == ["fedprox mu=0.1", "fedavg"]
    assert [group.name for group in group_runs(runs[:1], ACCURACY)] == ["mus: fedprox mu=0.1, seed 1"]


def a_sweep(service: RunningService, name: str = "tiny") -> list[Job]:
    """Two algorithms with three seeds each, of two rounds."""
    axes = {"algorithm": ["fedavg", {"name": "fedprox", "mu": 1.0}]}
    sweep = read_sweep({"name": name, "base": {**SMALL, "rounds": 2}, "axes": axes, "seeds": [1, 2, 3]})
    jobs = []
    for place, member in enumerate(members(sweep)):
        job = service.store.create(member.spec, labels={**member.labels, "owner": "ada"})[0]
        service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
        service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
        for number in (1, 2):
            service.store.add_round(job.id, a_round(number, global_accuracy=0.4 * number + 0.01 * place**1.5))
        service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
        jobs.append(job)
    return jobs


def test_a_sweep_is_compared_by_command_and_sdk(
    online: Fedsim, service: RunningService, tmp_path: Path
) -> None:
    jobs = a_sweep(service)
    document = online("compare", "tiny", "--format", "json").data
    finals = {
        (job.labels["algorithm"], job.spec["seed"]): service.store.rounds(job.id)[-1].metrics[
            "global_accuracy"
        ]
        for job in jobs
    }
    average, proximal = (
        [value for (algorithm, _), value in finals.items() if algorithm.startswith(name)]
        for name in ("fedavg", "fedprox")
    )
    assert [group["name"] for group in document["groups"]] == ["fedavg", "fedprox mu=1.0"]
    measure = document["groups"][1]["final"]
    assert measure["values"] == proximal
    test = stats.ttest_rel(proximal, average)
    assert measure["difference"]["p_value"] == measure["p_adjusted"] == pytest.approx(test.pvalue)
    with FedSimClient(service.url) as client:
        assert client.compare("tiny").model_dump(mode="json") == document
        assert client.compare(label=["owner=ada", "group=tiny"]).model_dump(mode="json") == document
        assert len(client.compare(["tiny", jobs[0].id], together=False).groups) == 6
    file = tmp_path / "run.json"
    report = {
        "spec": jobs[0].spec,
        "rounds": [each.model_dump(mode="json") for each in service.store.rounds(jobs[0].id)],
    }
    file.write_text(json.dumps(report))
    mixed = online("compare", file, *(job.id for job in jobs[1:]), "--format", "json").data
    assert mixed["groups"][0]["final"] == document["groups"][0]["final"]
    missing = online("compare", "--label", "owner=nobody")
    assert missing.code != 0
    assert "no job has the label owner=nobody" in missing.err


def test_a_sweep_is_drawn_beside_its_table(online: Fedsim, service: RunningService, tmp_path: Path) -> None:
    a_sweep(service, "drawn")
    outcome = online("compare", "drawn", "--figure", tmp_path / "drawn.svg", "--format", "latex")
    assert (outcome.code, outcome.out.count(r"\\")) == (0, 3)
    assert "fedprox mu=1" in (tmp_path / "drawn.svg").read_text()


def test_the_report_of_a_sweep_has_groups_figure_and_differences(
    online: Fedsim, service: RunningService, tmp_path: Path
) -> None:
    jobs = []
    for algorithm, seeds in (("fedavg", FEDAVG), ("kdia", KDIA)):
        for seed, accuracies in seeds.items():
            spec = parse_spec({"algorithm": algorithm, "seed": seed, "rounds": 3})
            job = service.store.create(spec, labels={"group": "reported", "algorithm": algorithm})[0]
            service.store.change_state(job.id, JobState.QUEUED, JobState.STARTING)
            service.store.change_state(job.id, JobState.STARTING, JobState.RUNNING)
            for record in run(algorithm, seed, accuracies).records:
                service.store.add_round(job.id, record)
            service.store.change_state(job.id, JobState.RUNNING, JobState.SUCCEEDED)
            jobs.append(job)
    done = online("report", "reported", "--against", "kdia", "--out", tmp_path, "--format", "json")
    assert done.data == {"files": [str(tmp_path / "report.html"), str(tmp_path / "comparison.png")]}
    text = (tmp_path / "report.html").read_text("utf-8")
    for part in (
        "<h1>Comparison: reported</h1>",
        "differences from kdia, paired by seed",
        "<b>0.7400 ± 0.0100</b>",
        "−0.0367 [−0.0",
        "kdia (3 seeds)",
        '<th scope="row">algorithm</th><td>fedavg</td><td>kdia</td>',
        *(job.id for job in jobs),
    ):
        assert part in text
    labelled = online("report", "--label", "group=reported", "--out", tmp_path / "other", "--no-png")
    assert labelled.code == 0
    assert "nothing to compare" in online("report").err


def test_free_words_of_callers_are_no_fields() -> None:
    """Each field is compared over all runs: hundreds of runs with hundreds of own words took minutes."""
    models = [{"name": "mlp", "blocks": {f"{word}{n}": "*" for n in range(50)}} for word in "ab"]
    rows = [[run(f"job-{n}", 1, [0.5], model=model)] for n, model in enumerate(models)]
    assert [each.field for each in list_differences(rows) if each.field.startswith("model")] == [
        "model.blocks"
    ]
