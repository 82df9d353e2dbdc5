"""`fedsim compare`: jobs and files side by side; the figures by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from api.comparison.compare import compare_runs
from api.comparison.compared_run import ComparedRun
from api.comparison.records import RunCost
from api.comparison.run_scores import RoundScore
from api.reports.comparison_tables import PaperFormat, make_cost_table, make_paper_table, render_table
from fedsim.base.costs import ClockReading
from fedsim.errors import RequestError
from jobs.store.records import RoundRecord
from tests.api.service import Fedsim, RunningService, a_round


def run(name: str, *accuracies: float | None) -> ComparedRun:
    records = [
        a_round(number, global_accuracy=accuracy) if accuracy is not None else unscored(number)
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    return ComparedRun(name, name, records)


def unscored(number: int) -> RoundRecord:
    return a_round(number).model_copy(update={"metrics": {}})


def test_runs_are_held_against_the_worst_of_their_last_values() -> None:
    # a round takes 0.5 s and moves 1000 + 2000 bytes (tests.api.service.a_round)
    found = compare_runs([run("a", 0.2, 0.6, 0.5), run("b", 0.7, None, 0.9, None)])
    assert found.target == 0.5
    a, b = found.lines
    assert (a.final, a.best, a.cost_to_target) == (
        RoundScore(3, 0.5),
        RoundScore(2, 0.6),
        RunCost(2, 6000, 1.0),
    )
    assert (b.final, b.best, b.cost_to_target) == (
        RoundScore(3, 0.9),
        RoundScore(3, 0.9),
        RunCost(1, 3000, 0.5),
    )
    assert (a.rounds, a.bytes, a.seconds, b.rounds, b.bytes, b.seconds) == (3, 9000, 1.5, 4, 12000, 2.0)


def timed(name: str, *readings: tuple[float, float]) -> ComparedRun:
    """Rounds with these simulated seconds so far and joules, and rising accuracies."""
    records = [
        a_round(number, global_accuracy=number / 10).model_copy(
            update={"clock": ClockReading(total=total, round=0.0, joules=joules)}
        )
        for number, (total, joules) in enumerate(readings, start=1)
    ]
    return ComparedRun(name, name, records)


def test_simulated_seconds_and_joules_to_the_target() -> None:
    runs = [timed("a", (5.0, 1.0), (9.0, 2.0), (20.0, 4.0)), run("b", 0.1, 0.2)]
    found = compare_runs(runs, target=0.2, along="clock")
    a, b = found.groups
    assert a.cost_to_target.clock is not None
    assert a.cost_to_target.joules is not None
    assert (a.cost_to_target.clock.mean, a.cost_to_target.joules.mean) == (9.0, 3.0)
    assert a.clock is not None
    assert a.joules is not None
    assert (a.clock.mean, a.joules.mean) == (20.0, 7.0)
    assert b.clock is b.cost_to_target.clock is None
    assert a.curve.x == [5.0, 9.0, 20.0]
    assert compare_runs(runs, along="joules").groups[0].curve.x == [1.0, 3.0, 7.0]
    heads, (first, second) = make_cost_table(found)
    assert dict(zip(heads, first, strict=True))["simulated time to 0.2 (s)"].startswith("9")
    assert first[-1].startswith("7")
    assert second[-1] == "–"
    assert "simulated time (s)" not in make_cost_table(compare_runs(runs[1:]))[0]


def regression(name: str, *errors: float, **spec: Any) -> ComparedRun:
    """A run with these errors; a NaN becomes null, as in every record."""
    records = [
        RoundRecord.model_validate(
            {**a_round(number).model_dump(), "metrics": {"global_rmse": error, "global_loss": error / 80}}
        )
        for number, error in enumerate(errors, start=1)
    ]
    return ComparedRun(name, name, records, spec)


def test_final_values_of_different_rounds_are_said_to_be() -> None:
    runs = [
        ComparedRun(name, name, [a_round(number) for number in range(1, rounds + 1)])
        for name, rounds in (("x", 5), ("y", 6), ("z", 9))
    ]
    note = compare_runs(runs).notes[0]
    assert note.startswith("The final values are of different rounds: 5, 6 and 9; more rounds may be better")
    assert note.endswith("(x: 5; y: 6; z: 9).")
    assert not any("different rounds" in note for note in compare_runs(runs[:1] * 2).notes)


def test_different_examples_of_one_data_set_are_noted() -> None:
    def with_data(name: str, dataset: str, data: str) -> ComparedRun:
        record = a_round(1).model_dump()
        engine = record["engine"] | ({"data": data} if data else {})
        spec = {"data": {"dataset": dataset}, "seed": 1, "algorithm": name}
        return ComparedRun(name, name, [RoundRecord.model_validate(record | {"engine": engine})], spec=spec)

    known = [with_data("x", "mine", "a"), with_data("y", "mine", ""), with_data("z", "digits", "b")]
    assert not any("different examples" in note for note in compare_runs(known).notes)
    notes = compare_runs([*known, with_data("w", "mine", "c")]).notes
    assert (
        "The runs had different examples of mine: a (1 run, such as mine, x); c (1 run, such as mine, w)."
        in notes
    )


def test_different_code_of_one_package_is_noted() -> None:
    def with_code(name: str, *codes: dict[str, str]) -> ComparedRun:
        rounds = [a_round(number).model_dump() for number in range(1, len(codes) + 1)]
        engines = [each["engine"] | {"code": code} for each, code in zip(rounds, codes, strict=True)]
        records = [
            RoundRecord.model_validate({**each, "engine": engine})
            for each, engine in zip(rounds, engines, strict=True)
        ]
        return ComparedRun(name, name, records)

    fedsims, mine = {"fedsim": "0.2.0"}, {"fedsim": "0.2.0", "mine": "1.0 a"}
    known = [with_code("x", {}, fedsims), with_code("y", mine, mine)]
    assert not any("code" in note for note in compare_runs(known).notes)
    changed = with_code("z", mine, {"fedsim": "0.2.0", "mine": "1.0 b"})
    assert compare_runs([*known, changed]).notes[0] == (
        "The runs had different code of mine: 1.0 a (2 runs, such as y); 1.0 b (1 run, such as z)."
    )


def test_of_an_error_the_lower_value_is_better() -> None:
    """The default metric is the main one of the runs; best value, worst final value and target follow it."""
    found = compare_runs([regression("a", 70.0, 55.0, 60.0), regression("b", 58.0, 57.0)])
    assert (found.metric, found.target) == ("global_rmse", 60.0)
    a, b = found.lines
    assert (a.final, a.best) == (RoundScore(3, 60.0), RoundScore(2, 55.0))
    assert a.cost_to_target == RunCost(2, 6000, 1.0)
    assert b.cost_to_target == RunCost(1, 3000, 0.5)
    assert compare_runs([regression("a", 70.0), run("b", 0.4)]).metric == "global_rmse"
    assert compare_runs([run("a", 0.4), run("b", 0.5)]).metric == "global_accuracy"


def test_a_diverged_run_is_no_score_and_is_said_to_be_left_out() -> None:
    """Its earlier finite values would pass for those of the last round."""
    nan = float("nan")
    runs = [
        regression("a1", 70.0, 60.0, seed=1, lr=0.1),
        regression("a2", 72.0, 62.0, seed=2, lr=0.1),
        regression("b1", 60.0, 50.0, seed=1, lr=0.2),
        regression("b2", 90.0, nan, seed=2, lr=0.2),
        regression("b3", nan, nan, seed=3, lr=0.2),
        regression("c1", 300.0, nan, seed=1, lr=0.5),
        regression("d1", nan, nan, seed=1, lr=0.9),
        regression("d2", nan, nan, seed=2, lr=0.9),
    ]
    found = compare_runs(runs)
    assert (found.metric, found.target) == ("global_rmse", 62.0)
    assert [group.title for group in found.groups] == [
        "lr=0.1 (2 seeds)",
        "lr=0.2 (1 of 3 seeds, 2 not finite)",
        "lr=0.5, not finite",
        "lr=0.9 (2 seeds, all not finite)",
    ]
    assert [group.final and group.final.values for group in found.groups] == [[60, 62], [50], None, None]
    assert [group.last_rounds and group.last_rounds.values for group in found.groups] == [
        [65, 67],
        [55],
        None,
        None,
    ]
    assert [group.curve.rounds for group in found.groups] == [[1, 2], [1, 2], [1], []]
    assert "lr=0.2" in render_table(found, PaperFormat.LATEX)
    assert [row[1].text for row in make_paper_table(found)[1]] == ["2", "1 of 3", "0 of 1", "0 of 2"]
    reason = "No finite final value of global_rmse, as after divergence"
    assert [note for note in found.notes if note.startswith(reason)] == [
        f"{reason}, so these runs are left out of all means: lr=0.2, seed 2; lr=0.2, seed 3.",
        f"{reason}, in any run of these rows: lr=0.5; lr=0.9.",
    ]
    alone = compare_runs(runs[-1:])
    assert (alone.metric, alone.target, alone.groups[0].title) == ("global_rmse", None, "d2, not finite")


def test_a_run_whose_perplexity_diverged_still_has_the_others_metric() -> None:
    """Its accuracy stays finite, and would become the metric of the comparison."""

    def tokens(name: str, perplexity: float) -> ComparedRun:
        metrics = {"global_perplexity": perplexity, "global_accuracy": 0.1}
        record = RoundRecord.model_validate({**a_round(1).model_dump(), "metrics": metrics})
        return ComparedRun(name, name, [record])

    runs = [tokens("a", float("nan")), tokens("b", 20.0)]
    assert compare_runs(runs).metric == compare_runs(runs[:1]).metric == "global_perplexity"


def test_a_target_may_be_named_and_may_be_missed() -> None:
    found = compare_runs([run("a", 0.2, 0.6), run("b", 0.9), run("c", None)], target=0.8)
    assert [line.cost_to_target for line in found.lines] == [None, RunCost(1, 3000, 0.5), None]
    assert found.lines[2].final is None
    assert found.lines[2].best is None
    assert [group.cost_to_target.missed for group in found.groups] == [1, 0, 1]


def test_of_a_loss_the_smaller_is_the_better() -> None:
    # a_round's losses are 1/1, 1/2, 1/3, ...
    found = compare_runs([run("a", 0.1, 0.2, 0.3), run("b", 0.1, 0.2)], metric="global_loss")
    assert found.target == 0.5
    assert found.lines[0].best == RoundScore(3, 1 / 3)
    assert [line.cost_to_target and line.cost_to_target.rounds for line in found.lines] == [2, 2]


def test_runs_on_different_data_are_not_comparable() -> None:
    def on(dataset: Any) -> ComparedRun:
        return run("a", 0.1)._replace(spec={"data": {"dataset": dataset}, "seed": 3})

    same = compare_runs([on("digits"), on({"name": "digits"}), run("b", 0.2)])
    assert not any("different data" in note for note in same.notes)
    assert [line.seed for line in same.lines] == [3, 3, None]
    found = compare_runs([on("digits"), on("mnist")])
    assert found.notes[0].startswith("The rows have different data: digits and mnist.")
    assert found.target is None
    assert [group.final and group.final.difference for group in found.groups] == [None, None]


def judge(metric: str, *sections: dict[str, Any]) -> tuple[str, bool]:
    """The data that the note names, and whether there are a target, a best row and differences."""
    runs = [
        ComparedRun(
            f"{place}",
            "x",
            [a_round(1, personal_accuracy=0.5, personal_global_accuracy=0.5)],
            {"seed": 1, "rounds": 1, "place": place, "data": section},
        )
        for place, section in enumerate(sections)
    ]
    found = compare_runs(runs, metric=metric)
    [*names] = [note.partition(". ")[0] for note in found.notes if note.startswith("The rows have diff")]
    compared = [group.final and group.final.difference for group in found.groups[1:]]
    assert len({found.target is None, *(each is None for each in compared)}) == 1
    return "".join(names).removeprefix("The rows have different data: "), found.target is not None


def test_data_of_one_name_and_other_parameters_are_different_data() -> None:
    easy, hard = ({"dataset": {"name": "synthetic", "classes": 4, "dims": dims}} for dims in (10, 20))
    assert judge("global_accuracy", easy, hard) == ("synthetic dims=10 and synthetic dims=20", False)
    same = {**easy["dataset"], "dims": 10.0}
    assert judge("global_accuracy", easy, {"dataset": same, "download": True}) == ("", True)
    augmented = {"name": "cifar10", "augment": ["flip"], "normalise": "half"}
    words = {"dataset": "cifar10", "partition": "iid"}
    assert judge("global_accuracy", words, {"dataset": augmented, "partition": "natural"}) == ("", True)


def test_scores_by_different_client_tests_are_of_different_data() -> None:
    def tested(tests: Any) -> dict[str, Any]:
        return {"dataset": "digits", "tests": tests}

    several, merged = tested(["matched", "global"]), tested({"kind": "merged", "share": 0.5})
    unlike = "digits (tests: global) and digits (tests: matched)"
    assert judge("personal_accuracy", {"dataset": "digits"}, several) == (unlike, False)
    assert judge("global_accuracy", {"dataset": "digits"}, several) == ("", True)
    also = tested({"kind": "matched", "share": 0.25, "also": ["global"]})
    assert judge("personal_accuracy", several, also, tested("matched")) == ("", True)
    # The further kind of both.
    assert judge("personal_global_accuracy", several, tested(["labels", "global"])) == ("", True)
    # `merged` cuts another test set, for every metric.
    names = "digits and digits (tests: merged share=0.5)"
    assert judge("global_accuracy", {"dataset": "digits"}, merged) == (names, False)
    assert not judge("global_accuracy", tested("merged"), merged)[1]
    assert judge("personal_accuracy", merged, merged) == ("", True)


def test_a_metric_that_nobody_has_is_refused() -> None:
    with pytest.raises(RequestError, match="did you mean 'global_accuracy'"):
        compare_runs([run("a", 0.1)], metric="global_acuracy")
    with pytest.raises(RequestError, match="is no group, no run and no beginning of one"):
        compare_runs([run("a", 0.1), run("b", 0.1)], against="fedprox")
    with pytest.raises(RequestError, match="is the beginning of several groups"):
        compare_runs([run("ab", 0.1), run("ac", 0.1)], against="a")
    with pytest.raises(RequestError, match="last: is too small"):
        compare_runs([run("a", 0.1)], last=0)
    nothing = compare_runs([ComparedRun("a", "a", [])])
    assert (nothing.counted, nothing.baseline) == ([], None)
    assert nothing.notes == ["No results yet: a (no rounds)."]


def test_jobs_and_files_stand_side_by_side(
    online: Fedsim, service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.ended(rounds=4, name="[the] job")
    monkeypatch.chdir(tmp_path)
    folder = Path("plain")
    folder.mkdir()
    (folder / "spec.yaml").write_text("name: from its spec\n")
    lines = "".join(record.model_dump_json() + "\n" for record in run("", 0.1, 0.7).records)
    (folder / "rounds.jsonl").write_text(lines)
    outcome = online("compare", job.id[:10], folder)
    assert outcome.code == 0, outcome.err
    for text in (
        job.id,
        "[the] job",
        "plain",
        "from its spec",
        "rounds to 0.7",
        "0.8000 (4)",
        "0.7000 (2)",
        "12.0 kB",
    ):
        assert text in outcome.out
    assert "optimistic value" in outcome.err
    document = online("compare", job.id, folder, "--target", 0.75, "--format", "json").data
    assert (document["metric"], document["target"]) == ("global_accuracy", 0.75)
    assert [line["cost_to_target"] and line["cost_to_target"]["rounds"] for line in document["lines"]] == [
        3,
        None,
    ]
    rows = list(csv.DictReader(io.StringIO(online("compare", job.id, folder, "--format", "csv").out)))
    assert [(row["runs"], row["final_mean"], row["final_deviation"]) for row in rows] == [
        (job.id, "0.8", ""),
        (str(folder), "0.7", ""),
    ]


def test_files_need_no_service(fedsim: Fedsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_URL", "http://127.0.0.1:9")
    file = tmp_path / "whole.json"
    records = [record.model_dump(mode="json") for record in run("", 0.5).records]
    file.write_text(json.dumps({"spec": {}, "rounds": records}))
    assert fedsim("compare", file, file, "--format", "json").data["target"] == 0.5
    figure = tmp_path / "curves.pdf"
    assert fedsim("compare", file, "--figure", figure).code == 0
    assert figure.read_bytes().startswith(b"%PDF")
    for wrong in ("curves.gif", "missing/curves.pdf"):
        assert fedsim("compare", file, "--figure", tmp_path / wrong).code == 2
    assert "nothing to compare" in fedsim("compare").err
    assert fedsim("compare", "--label", "owner").code == 2
    file.write_text('[{"round": 1}]')
    outcome = fedsim("compare", file)
    assert outcome.code == 2
    assert "has no round records" in outcome.err
