"""Runs that end before their last round: when, why, of which round the result is, and with which rounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedsim.algorithms.fedavg import FedAvg
from fedsim.clients.population import Population
from fedsim.core import LocalTraining
from fedsim.engine.pools import SerialPool
from fedsim.engine.results import RoundResult
from fedsim.engine.resume_point import Checkpoint
from fedsim.engine.simulation import simulate, simulate_with_progress
from fedsim.engine.stopping import StopProgress, StopRule
from fedsim.errors import SpecError
from fedsim.learning_tasks.metrics import is_lower_better
from tests.fedsim.federations import federation, parted
from tests.fedsim.methods import Tuned


def run(population: Population, algorithm: FedAvg | None = None, **options: Any) -> list[RoundResult]:
    algorithm = algorithm or FedAvg()
    return list(simulate(algorithm, population, SerialPool(algorithm, population), **options))


def slow_federation() -> Population:
    """A federation that learns slowly: its accuracy falls after round 8, and is back in round 10."""
    return federation(rounds=12, cohort_size=2, local=LocalTraining(steps=1, batch_size=8, lr=0.02))


def a_record(round: int, seconds: float = 1.0, sent: int = 10, **metrics: float | None) -> dict[str, Any]:
    sizes = {"down": sent, "up": sent, "personal": 1000}
    return {"round": round, "seconds": {"total": seconds}, "bytes": sizes, "metrics": metrics}


def progress_of(values: list[float | None], **rule: Any) -> list[StopProgress]:
    """The progress after each round; None stands for a round without an evaluation."""
    found = [StopProgress(StopRule(metric="m_accuracy", **rule))]
    for number, value in enumerate(values, 1):
        found.append(found[-1].add(a_record(number, **({} if value is None else {"m_accuracy": value}))))
    return found[1:]


def test_a_target_is_met_from_below_and_for_a_loss_from_above() -> None:
    assert [each.find_reason() for each in progress_of([0.1, None, 0.5, 0.4], target=0.5)] == [
        *(None, None, "target", None)
    ]
    rule = StopProgress(StopRule(metric="global_loss", target=0.5))
    assert rule.add(a_record(1, global_loss=0.6)).find_reason() is None
    assert rule.add(a_record(1, global_loss=0.5)).find_reason() == "target"
    assert is_lower_better("train_loss")
    assert is_lower_better("personal_loss_before")
    assert not is_lower_better("global_accuracy")


def test_patience_counts_the_rounds_that_measured_the_metric() -> None:
    found = progress_of([0.3, 0.5, None, 0.5, None, float("nan"), 0.4], patience=3)
    assert [each.waited for each in found] == [0, 0, 0, 1, 1, 2, 3]
    assert [each.find_reason() for each in found] == [None] * 6 + ["patience"]
    end = found[-1].make_end()
    assert (end.reason, end.round, end.result_round, end.metrics) == ("patience", 7, 2, {"m_accuracy": 0.5})
    assert end.message == (
        "stopped after round 7: m_accuracy did not improve in 3 measured rounds (stop.patience); "
        "the result is of round 2, the best by m_accuracy (0.5000)"
    )


def test_the_result_of_a_run_that_is_never_measured_is_its_last_round() -> None:
    assert progress_of([None, float("nan"), None], patience=3)[-1].make_end().result_round == 3


def test_budgets_count_the_records() -> None:
    spent = StopProgress(StopRule(max_bytes=40)).add_all([a_record(1), a_record(2)])
    assert spent.find_reason() == "max_bytes"
    assert "40 bytes travelled (stop.max_bytes: 40)" in spent.make_end().message
    slow = StopProgress(StopRule(max_seconds=5.0), known_seconds={2: 4.0})
    assert slow.add_all([a_record(1), a_record(2)]).find_reason() == "max_seconds"
    assert slow.add_all([a_record(1), a_record(3)]).find_reason() is None
    late = StopProgress(StopRule(max_simulated_seconds=60.0))
    records = [{**a_record(number), "clock": {"total": 40.0 * number}} for number in (1, 2)]
    assert late.add(records[0]).find_reason() is None
    assert late.add_all(records).find_reason() == "max_simulated_seconds"
    assert "the simulated clock shows 80.0 s" in late.add_all(records).make_end().message


def test_a_run_ends_after_a_round() -> None:
    found = StopProgress(StopRule(round=2))
    assert found.add(a_record(1)).find_reason() is None
    end = found.add_all([a_record(1), a_record(2)]).make_end()
    assert (end.reason, end.round, end.result_round) == ("round", 2, 2)
    assert end.message == "stopped after round 2: stop.round is 2; the result is of round 2"


def test_a_run_that_stops_has_the_rounds_of_a_whole_run() -> None:
    population = federation(rounds=8)
    whole = run(population)
    sent = [result.traffic.down + result.traffic.up for result in whole]
    stopped = run(population, stop=StopRule(max_bytes=sum(sent[:2]) + 1))
    assert [result.digest for result in stopped] == [result.digest for result in whole[:3]]
    assert [result.metrics for result in stopped] == [result.metrics for result in whole[:3]]
    assert [result.end and result.end.reason for result in stopped] == [None, None, "max_bytes"]
    json.dumps(stopped[-1].record())
    assert all(result.end is None for result in whole)


def test_the_round_in_which_a_run_stops_is_evaluated_like_a_last_round() -> None:
    population = parted(rounds=6)
    options: dict[str, Any] = {"evaluate_every": 4, "personal": "last"}
    *_, expected = run(population, Tuned(), rounds=2, **options)
    sent = expected.traffic.down + expected.traffic.up
    first, last = run(population, Tuned(), stop=StopRule(max_bytes=sent + 1), **options)
    assert "global_accuracy" not in first.metrics
    assert last.metrics == expected.metrics
    assert last.personal is not None
    assert last.metrics.keys() >= {"global_accuracy", "personal_accuracy"}
    assert (last.cost, last.traffic) == (expected.cost, expected.traffic)


def test_patience_names_the_best_round_also_of_a_run_that_did_not_stop() -> None:
    population = federation(rounds=6)
    values = [result.metrics["global_loss"] for result in run(population)]
    results = run(population, stop=StopRule(metric="global_loss", patience=6))
    end = results[-1].end
    assert end is not None
    assert end.reason == "rounds"
    assert end.result_round == 1 + values.index(min(values))
    assert dict(end.metrics) == results[end.result_round - 1].metrics
    assert [result.round for result in results if result.is_result][-1] == end.result_round


@pytest.mark.parametrize("after", [7, 8, 9])
def test_a_run_that_goes_on_stops_after_the_same_round(after: int) -> None:
    """Before the best round, after it, and one measured round before the end."""
    population = slow_federation()
    rule = StopRule(metric="global_accuracy", patience=2, max_seconds=1e6)
    whole = run(population, stop=rule)
    assert whole[-1].end is not None
    assert (len(whole), whole[-1].end.result_round) == (10, 8)
    given = whole[after - 1]
    records = [result.record() for result in whole[:after]]
    checkpoint = Checkpoint(round=after, state=given.state, records=records)
    rest = run(population, stop=rule, resume=checkpoint)
    assert [result.digest for result in rest] == [result.digest for result in whole[after:]]
    assert rest[-1].end == whole[-1].end is not None
    over = Checkpoint(round=len(whole), state=whole[-1].state, records=[each.record() for each in whole])
    assert run(population, stop=rule, resume=over) == []


def test_a_metric_that_no_round_has_ends_the_run_and_names_the_others() -> None:
    population = federation(rounds=4)
    with pytest.raises(SpecError) as caught:
        run(population, stop=StopRule(metric="teacher_accuracy", target=0.5), evaluate_every=2)
    (fault,) = caught.value.errors
    assert (fault.path, fault.value) == ("stop.metric", "teacher_accuracy")
    assert "global_accuracy, global_loss, train_loss" in fault.hint


def test_no_client_of_a_next_round_starts_before_the_scores_are_known() -> None:
    """The pool of a run that may stop is never asked for a round that does not come."""
    population, started = federation(rounds=5), list[int]()

    class Watched(SerialPool):
        def begin_training(self, ctx: Any, state: Any, cohort: Any) -> Any:
            started.append(ctx.round + 1)
            return super().begin_training(ctx, state, cohort)

    pool = Watched(FedAvg(), population)
    stop = StopProgress(StopRule(metric="global_accuracy", target=0.0))
    assert len(list(simulate_with_progress(FedAvg(), population, pool, stop=stop))) == 1
    assert started == [1]
