"""Verdicts: planted claims, recomputed intervals, and the cards that show them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.places import JOURNALS
from fedsim.base.statistics import adjust_holm
from jobs.grid.card import render_card, render_claims, write_report
from jobs.grid.claims import SPENT as COSTS
from jobs.grid.journal import Entry, Journal, Spending, summarise_metric
from jobs.grid.markdown import SPENT_FIGURES, render
from jobs.grid.table import Table, load_table
from jobs.grid.verdicts import Outcome, judge_claims
from tests.jobs.grid.small_table import entry

STRONG, PLAIN = {"mu": "strong"}, {"mu": "plain"}
BETTER = {"id": "better", "sentence": "Strong is better.", "value": STRONG, "baseline": PLAIN}
IID = {"where": {"data": ["IID"]}}
UNCONTROLLED = "held (its control is not run)"


def with_claims(table: Table, *claims: dict[str, Any]) -> Table:
    return Table.model_validate({**table.model_dump(), "seeds": (1, 2, 3), "claims": claims})


def plant(table: Table, differences: list[float], cell: str = "IID") -> dict[str, Entry]:
    """Runs of both methods in a cell; `strong` is better by these differences, seed by seed."""
    plain = [0.5, 0.56, 0.53]
    pairs = zip(table.seeds, plain, differences, strict=True)
    made = [
        each
        for seed, level, more in pairs
        for each in (
            entry(table, ("plain", cell), seed, level),
            entry(table, ("strong", cell), seed, level + more),
        )
    ]
    return {each.key: each for each in made}


def test_a_true_a_false_and_an_undecidable_claim_get_their_verdicts(table: Table) -> None:
    worse = {**BETTER, "id": "worse", "direction": "below"}
    told = with_claims(table, BETTER | IID, worse | IID)
    clear = plant(told, [0.10, 0.11, 0.12])
    assert [v.outcome for v in judge_claims(told, clear)] == [Outcome.HELD, Outcome.REVERSED]
    unclear = judge_claims(told, plant(told, [0.10, -0.09, 0.02]))
    assert [v.outcome for v in unclear] == [Outcome.UNDECIDED] * 2
    assert "seeds would decide it" in unclear[0].describe()


def test_the_interval_and_holms_p_are_those_of_scipy(table: Table) -> None:
    """Of both cells, because the claim leaves the axis open; p is adjusted for two comparisons."""
    told = with_claims(table, BETTER)
    first, second = [0.10, 0.11, 0.12], [0.01, 0.05, 0.02]
    verdicts = judge_claims(told, plant(told, first) | plant(told, second, "Dir(1)"))
    tests = [stats.ttest_1samp(each, 0.0) for each in (first, second)]
    assert [v.p_value for v in verdicts] == pytest.approx(adjust_holm([t.pvalue for t in tests]))
    for verdict, test in zip(verdicts, tests, strict=True):
        difference, interval = verdict.difference, test.confidence_interval(0.95)
        assert difference is not None
        assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert [v.describe_cell() for v in verdicts] == [
        "strong against plain, IID",
        "strong against plain, Dir(1)",
    ]
    assert verdicts[0].format_difference() == "+11.00 [8.52, 13.48] points"
    assert verdicts[0].format_figures() == "64.00 against 53.00"


def test_level_is_a_matter_of_its_margin(table: Table) -> None:
    level = {**BETTER, **IID, "direction": "level"}
    claims = [{**level, "id": f"level-{n}", "margin": margin} for n, margin in enumerate((0.2, 0.11, 0.05))]
    told = with_claims(table, *claims)
    verdicts = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert [v.outcome for v in verdicts] == [Outcome.HELD, Outcome.CROSSING, Outcome.REVERSED]
    # Two one-sided tests inside a margin, each at 2.5 %; the test beyond its end where the mean is outside.
    ends = [(-0.2, 0.2), (-0.11, 0.11), (0.05,)]
    tests = [
        max(stats.ttest_1samp([0.10, 0.11, 0.12], end).pvalue if end else 0 for end in each) for each in ends
    ]
    assert [v.p_value for v in verdicts] == pytest.approx(adjust_holm(tests))


def test_no_less_is_decided_by_the_lower_end_of_the_margin(table: Table) -> None:
    claim = {**BETTER, **IID, "direction": "not_below", "margin": 0.05}
    told = with_claims(table, claim)
    for differences, outcome in (
        ([0.10, 0.11, 0.12], Outcome.HELD),
        ([-0.02, -0.01, -0.02], Outcome.HELD),
        ([-0.10, 0.05, 0.02], Outcome.CROSSING),
        ([-0.10, -0.11, -0.12], Outcome.REVERSED),
    ):
        assert [v.outcome for v in judge_claims(told, plant(told, differences))] == [outcome]


@pytest.mark.parametrize(
    ("differences", "margin"),
    [([0.01, 0.03, -0.01], 0.06), ([0.01, 0.03, -0.01], 0.05), ([0.3, 0.1, 0.2], 0.1)],
)
def test_a_margin_is_kept_or_missed_exactly_where_p_is_below_5_percent(
    table: Table, differences: list[float], margin: float
) -> None:
    told = with_claims(table, {**BETTER, **IID, "direction": "level", "margin": margin})
    [verdict] = judge_claims(told, plant(told, differences))
    assert verdict.p_value is not None
    assert (verdict.outcome is Outcome.CROSSING) == (verdict.p_value > 0.05)


def test_a_control_has_the_labels_of_its_claim(table: Table) -> None:
    control = {"sentence": "no", "baseline": PLAIN, "direction": "below"}
    told = with_claims(table, {**BETTER, **IID, "control": control})
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert verdict.outcome is Outcome.UNTESTABLE


def test_each_of_several_controls_can_contradict(table: Table) -> None:
    """The first control agrees with the claim, and the second one is the other way round."""
    controls = [
        {"sentence": "first", "baseline": PLAIN},
        {"sentence": "second", "baseline": PLAIN, "direction": "below"},
    ]
    told = with_claims(table, {**BETTER, **IID, "control": controls})
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert (verdict.outcome, verdict.reason) == (Outcome.UNTESTABLE, "second")


def test_a_control_of_one_seed_is_named(table: Table) -> None:
    control = {"sentence": "no", "value": {"data": "Dir(1)"}, "baseline": PLAIN, "direction": "below"}
    told = with_claims(table, {**BETTER, **IID, "control": control})
    single = {key: run for key, run in plant(told, [0.1] * 3, "Dir(1)").items() if run.seed == 1}
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]) | single)
    assert (verdict.outcome, verdict.reason) == (Outcome.HELD, "its control has one seed")


@pytest.mark.parametrize("direction", ["above", "below"])
def test_a_difference_may_have_to_pass_a_threshold(table: Table, direction: str) -> None:
    """The difference is shown as it is; its p-value is that of what lies beyond the threshold."""
    sides = {} if direction == "above" else {"value": PLAIN, "baseline": STRONG}
    claims = [
        {**BETTER, **IID, **sides, "direction": direction, "id": f"by-{n}", "by": by}
        for n, by in enumerate((0.05, 0.11, 0.2))
    ]
    told = with_claims(table, *claims)
    verdicts = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert [v.outcome for v in verdicts] == [Outcome.HELD, Outcome.UNDECIDED, Outcome.REVERSED]
    expected = "+11.00 [8.52, 13.48] points" if direction == "above" else "-11.00 [-13.48, -8.52] points"
    assert {v.format_difference() for v in verdicts} == {expected}
    tests = [stats.ttest_1samp([0.10 - by, 0.11 - by, 0.12 - by], 0.0) for by in (0.05, 0.11, 0.2)]
    assert [v.p_value for v in verdicts] == pytest.approx(adjust_holm([t.pvalue for t in tests]))
    with pytest.raises(ValueError, match="by belongs to direction above or below"):
        with_claims(table, {**BETTER, "direction": "level", "margin": 0.1, "by": 0.2})


def test_a_gain_may_be_compared_with_the_gain_elsewhere(table: Table) -> None:
    """0.11 at IID and 0.01 at Dir(1) on average: 0.10 more, seed by seed."""
    more = {**BETTER, **IID, "more_than": {"data": "Dir(1)"}}
    told = with_claims(table, more)
    runs = plant(told, [0.10, 0.11, 0.12]) | plant(told, [0.01, 0.00, 0.02], "Dir(1)")
    [verdict] = judge_claims(told, runs)
    assert verdict.outcome is Outcome.HELD
    assert verdict.difference is not None
    assert verdict.difference.mean == pytest.approx(0.1)


def test_a_control_that_is_reversed_leaves_nothing_to_tell(table: Table) -> None:
    control = {"value": STRONG, "baseline": PLAIN, "direction": "below", "sentence": "plain is weak"}
    told = with_claims(table, {**BETTER, **IID, "control": control})
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert verdict.describe().startswith(
        "not testable at this scale (plain is weak: strong against plain +11.00 ["
    )
    [open_] = judge_claims(told, plant(told, [0.10, -0.09, 0.02]))
    assert open_.outcome is Outcome.UNDECIDED


@pytest.mark.parametrize("must_hold", [False, True])
def test_a_control_that_must_hold_contradicts_while_it_is_open(table: Table, must_hold: bool) -> None:
    control = {"value": {**STRONG, "data": "Dir(1)"}, "baseline": PLAIN, "sentence": "plain is weak"}
    told = with_claims(table, {**BETTER, **IID, "control": {**control, "must_hold": must_hold}})
    clear = plant(told, [0.10, 0.11, 0.12])
    for differences, held in ([0.10, -0.09, 0.02], not must_hold), ([0.10, 0.11, 0.12], True):
        [verdict] = judge_claims(told, clear | plant(told, differences, "Dir(1)"))
        assert verdict.outcome is (Outcome.HELD if held else Outcome.UNTESTABLE)
        assert held or re.search(r"points, about \d+ seeds would decide it\)", verdict.describe())
    [missing] = judge_claims(told, clear)
    named = "not testable at this scale (its control is not run)"
    without = named if must_hold else UNCONTROLLED
    assert missing.describe() == without


@pytest.mark.parametrize(("direction", "side"), [("above", " against the control"), ("below", "")])
def test_the_seeds_that_would_tell_a_control_are_those_of_its_own_direction(
    table: Table, direction: str, side: str
) -> None:
    control = {"value": {**STRONG, "data": "Dir(1)"}, "baseline": PLAIN, "sentence": "plain is weak"}
    must = {**control, "direction": direction, "must_hold": True}
    told = with_claims(table, {**BETTER, **IID, "control": must})
    open_ = plant(told, [-0.10, 0.04, -0.02], "Dir(1)")
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]) | open_)
    assert re.search(rf"points, about \d+ seeds would decide it{side}\)", verdict.describe())


def test_a_control_may_leave_a_reversed_claim_as_it_is(table: Table) -> None:
    """The same control speaks against a gain, and has nothing to say where there is none."""
    control = {"value": {**STRONG, "data": "Dir(1)"}, "baseline": PLAIN, "direction": "below"}
    named = {**control, "sentence": "it is the rate", "only_held": True}
    told = with_claims(table, {**BETTER, **IID, "control": named})
    elsewhere = plant(told, [0.10, 0.11, 0.12], "Dir(1)")
    for differences, outcome in (
        ([0.10, 0.11, 0.12], Outcome.UNTESTABLE),
        ([-0.10, -0.11, -0.12], Outcome.REVERSED),
    ):
        [verdict] = judge_claims(told, elsewhere | plant(told, differences))
        assert verdict.outcome is outcome


def test_the_card_names_the_control_of_the_table_where_it_contradicts(table: Table) -> None:
    """The claim stands in two tables, and only the second one has a control."""
    control = {"value": STRONG, "baseline": PLAIN, "direction": "below", "sentence": "plain is weak"}
    first = with_claims(table, {**BETTER, **IID})
    second = with_claims(table, {**BETTER, **IID, "control": control})
    runs = plant(first, [0.10, 0.11, 0.12])
    verdicts = [*judge_claims(first, runs), *judge_claims(second, runs)]
    text = render_card([(first, runs), (second, runs)], verdicts)
    assert text.count("The control contradicts it: plain is weak.") == 1


def test_what_was_not_run_or_diverged_has_no_verdict(table: Table) -> None:
    why_not = {"id": "large", "sentence": "With 10,000 clients.", "why_not": "20 clients here"}
    told = with_claims(table, BETTER, why_not)
    runs = plant(told, [0.10, 0.11, float("nan")])
    iid, other, large = judge_claims(told, runs)
    assert (iid.diverged, iid.difference and iid.difference.pairs) == (1, 2)
    assert (other.outcome, other.difference) == (Outcome.NOT_RUN, None)
    assert large.describe() == "not testable at this scale (20 clients here)"
    one = {key: run for key, run in runs.items() if run.seed == 1}
    assert judge_claims(told, one)[0].describe() == "undecided (one seed)"


def test_every_label_of_an_axis_may_be_judged_by_one_of_them(table: Table) -> None:
    """The baseline names the axis and the value does not: all other labels are judged."""
    told = with_claims(table, {**BETTER, **IID, "value": {}})
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert (verdict.describe_cell(), verdict.outcome) == ("strong against plain, IID", Outcome.HELD)


def test_a_claim_may_be_about_a_round(table: Table) -> None:
    """The curves have half of the last accuracy after round 1."""
    told = with_claims(table, {**BETTER, **IID, "round": 1})
    [verdict] = judge_claims(told, plant(told, [0.10, 0.11, 0.12]))
    assert verdict.difference is not None
    assert verdict.difference.mean == pytest.approx(0.055)


def test_a_claim_about_a_round_may_have_another_metric(table: Table) -> None:
    """Whose curve the runs keep; a run without it counts as not run."""
    told = with_claims(table, {**BETTER, **IID, "round": 1, "metric": "personal_accuracy"})
    made = plant(told, [0.10, 0.11, 0.12])
    [verdict] = judge_claims(told, made)
    assert verdict.outcome is Outcome.NOT_RUN
    scored = {
        key: run.model_copy(
            update={
                "others": {
                    "personal_accuracy": summarise_metric("personal_accuracy", {1: 0.2 * run.tail, 2: 0.9}, 1)
                },
            }
        )
        for key, run in made.items()
    }
    [verdict] = judge_claims(told, scored)
    assert verdict.difference is not None
    assert (round(verdict.difference.mean, 4), verdict.unit) == (0.022, "points")


def test_a_run_that_never_reaches_the_goal_counts_one_round_more_than_it_has(table: Table) -> None:
    """Curves have half of the last accuracy in round 1: `strong` has the goal in round 2, in 1, and never."""
    told = with_claims(table, {**BETTER, **IID, "show": "reach", "direction": "below"})
    [verdict] = judge_claims(told, plant(told, [0.10, 0.60, -0.10]))
    assert verdict.difference is not None
    assert verdict.value == pytest.approx((2 + 1 + 3) / 3)
    assert (verdict.baseline, verdict.difference.mean, verdict.unit) == (2, 0, "rounds")
    assert verdict.describe() == "undecided (1 run never reaches the goal)"
    assert verdict.p_value is None


@pytest.mark.parametrize(
    ("late", "outcome"), [(0, Outcome.HELD), (1, Outcome.UNDECIDED), (3, Outcome.UNDECIDED)]
)
def test_a_run_that_never_reaches_the_goal_leaves_the_claim_undecided(
    table: Table, late: int, outcome: Outcome
) -> None:
    """`plain` reaches the goal of `strong` in round 16, 18 and 20 of 20, or nobody knows when."""
    claim = {**BETTER, **IID, "value": STRONG, "baseline": PLAIN, "show": "reach", "direction": "below"}
    told = with_claims(table, claim).model_copy(update={"against": "strong"})
    runs = plant(told, [0.0, 0.0, 0.0])
    for key, run in runs.items():
        is_late = run.labels["mu"] == "plain" and run.seed <= late
        first = run.seed if run.labels["mu"] == "strong" else 14 + 2 * run.seed
        curve = {n: run.tail if n >= first and not is_late else 0.1 for n in range(1, 21)}
        final = run.final if run.labels["mu"] == "strong" or not is_late else {**run.final, told.metric: 0.1}
        runs[key] = run.model_copy(update={"curve": curve, "rounds": 20, "final": final})
    [verdict] = judge_claims(told, runs)
    assert (verdict.outcome, verdict.late) == (outcome, late)
    # The baseline is later than its rounds say, so the true difference is at most this.
    assert verdict.format_difference().startswith("≤ -" if late else "-16.0 [")


@pytest.mark.parametrize("diverged", [1, 3])
def test_a_goal_of_a_diverged_run_is_none(table: Table, diverged: int) -> None:
    """Its accuracy is 0, which every run reaches in round 1."""
    claim = {**BETTER, **IID, "value": STRONG, "baseline": PLAIN, "show": "reach", "direction": "below"}
    told = with_claims(table, claim).model_copy(update={"show": ("reach",)})
    runs = plant(told, [0.1, 0.1, 0.1])
    for key, run in runs.items():
        if run.labels["mu"] == told.against and run.seed <= diverged:
            runs[key] = run.model_copy(update={"final": {**run.final, "global_loss": math.nan}})
    [verdict] = judge_claims(told, runs)
    assert verdict.diverged == diverged
    assert verdict.outcome is (Outcome.NOT_RUN if diverged == 3 else Outcome.UNDECIDED)
    assert ("| IID | – |" in render(told, runs)) == (diverged == 3)


def test_scores_that_differ_by_the_same_number_tell_nothing(table: Table) -> None:
    """Curves have two points: a difference of one round for all seeds is the distance between the points."""
    told = with_claims(table, {**BETTER, **IID, "show": "reach", "direction": "below"})
    [verdict] = judge_claims(told, plant(told, [0.60, 0.60, 0.60]))
    assert verdict.difference is not None
    assert (verdict.difference.mean, verdict.difference.deviation, verdict.p_value) == (-1, 0, None)
    assert verdict.describe() == "undecided (one difference with all seeds)"


def test_an_open_difference_against_the_claim_is_named(table: Table) -> None:
    told = with_claims(table, {**BETTER, **IID})
    [verdict] = judge_claims(told, plant(told, [-0.10, 0.01, -0.08]))
    assert verdict.describe() == f"undecided (about {verdict.seeds} seeds would decide it against the claim)"


def test_percent_are_those_of_the_geometric_means(table: Table) -> None:
    """The interval is that of the logarithms, so no end of it is below -100 %."""
    told = with_claims(table, {**BETTER, **IID, "metric": "up", "direction": "below"})
    sent = {("strong", 1): 5, ("strong", 2): 60, ("strong", 3): 20, ("plain", 1): 100, ("plain", 2): 110}
    runs = {
        key: run.model_copy(update={"bytes": {"up": sent.get((run.labels["mu"], run.seed), 90)}})
        for key, run in plant(told, [0.0, 0.0, 0.0]).items()
    }
    [verdict] = judge_claims(told, runs)
    test = stats.ttest_1samp(np.log([5 / 100, 60 / 110, 20 / 90]), 0.0)
    low, high = np.expm1(np.array(test.confidence_interval(0.95)))
    assert verdict.difference is not None
    assert (verdict.difference.low, verdict.difference.high) == pytest.approx((low, high))
    assert verdict.p_value == pytest.approx(test.pvalue)
    assert verdict.difference.low > -1


def test_sums_are_compared_in_percent_of_the_baseline(table: Table) -> None:
    told = with_claims(table, {**BETTER, **IID, "metric": "up", "direction": "below"})
    runs = {
        key: run.model_copy(update={"bytes": {"up": 36 if run.labels["mu"] == "strong" else 100}})
        for key, run in plant(told, [0.0, 0.0, 0.0]).items()
    }
    [verdict] = judge_claims(told, runs)
    assert (verdict.outcome, verdict.format_difference()) == (Outcome.HELD, "-64.0 [-64.0, -64.0] %")


def test_cards_and_tables_are_written_between_their_markers(table: Table, tmp_path: Path) -> None:
    told = with_claims(table, BETTER)
    journal, pages = Journal(tmp_path, told.name), tmp_path / "pages"
    pages.mkdir()
    (pages / "kdia.md").write_text("# Results: KDIA\n\n## Mine\n\nBy hand.\n", "utf-8")
    for run in plant(told, [0.10, 0.11, 0.12]).values():
        journal.append(run)
    assert write_report([told], tmp_path, pages) == [pages / "kdia.md"]
    text = (pages / "kdia.md").read_text("utf-8")
    assert "\n\n<!-- table card kdia -->\n## Card\n\n### Strong is better\n" in text
    assert "| `small` | strong against plain, IID | **held** | 64.00 against 53.00 | +11.00" in text
    assert "| `small` | strong against plain, Dir(1) | **not run** |" in text
    assert "| `small` | 6 of 12 | 1, 2, 3 |" in text
    assert "\n\n## Mine\n\nBy hand.\n" in text
    assert "**6 of 12 runs are finished.**" in text
    for run in plant(told, [0.01, 0.05, 0.02], "Dir(1)").values():
        journal.append(run)
    write_report([told], tmp_path, pages)
    again = (pages / "kdia.md").read_text("utf-8")
    assert again.count("<!-- table card kdia -->") == again.count("<!-- table small -->") == 1


def test_all_claims_in_short_count_the_verdicts(table: Table) -> None:
    told = with_claims(table, BETTER)
    verdicts = judge_claims(told, plant(told, [0.1, 0.11, 0.12]) | plant(told, [0.1, -0.1, 0.0], "Dir(1)"))
    text = render_claims({"kdia": verdicts})
    counts = "**held** in 1 of 2 (1 by Holm); **undecided** in 1 of 2"
    assert f"| [KDIA](kdia.md#card) | Strong is better. | this project | {counts} | plain | +0.00" in text


def test_claims_of_tables_without_runs_are_in_the_short_table(table: Table, tmp_path: Path) -> None:
    """But for the pages of papers of which nothing has run."""
    told = with_claims(table, BETTER)
    other = told.model_copy(update={"name": "other", "page": "fedcl"})
    for each in (told, other):
        for run in plant(each, [0.10, 0.11, 0.12]).values():
            Journal(tmp_path, each.name).append(run)
    idle = with_claims(table, {**BETTER, "id": "idle", "sentence": "Nobody knows."})
    idle = idle.model_copy(update={"name": "idle"})
    far = idle.model_copy(update={"name": "far", "page": "ace-pfl"})
    write_report([told, other, idle, far], tmp_path, tmp_path)
    short = (tmp_path / "README.md").read_text("utf-8")
    assert short.count("Nobody knows.") == 1
    assert "| [KDIA](kdia.md#card) | Nobody knows. | this project | **not run** | plain |" in short
    assert "Nobody knows" not in (tmp_path / "kdia.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["kdia-cifar10", "layers-fmnist"])
def test_the_keys_of_old_journals_are_those_of_the_specs(name: str) -> None:
    """A key that changes would run a table again."""
    lines = (JOURNALS / f"{name}.jsonl").read_text("utf-8").splitlines()
    table = load_table(name)
    assert {json.loads(line)["key"] for line in lines} <= {member.spec_hash for member in table.runs()}


SPENT = {1: Spending(bytes=100, simulated_seconds=2.0), 2: Spending(bytes=300, simulated_seconds=7.0)}


@pytest.mark.parametrize(
    ("metric", "plain", "strong", "unit"),
    [
        (None, 2, 1, "rounds"),
        ("bytes", 300, 100, "%"),
        ("simulated_seconds", 7.0, 2.0, "%"),
        ("processor_seconds", None, None, "%"),
    ],
)
def test_a_claim_may_be_about_what_a_run_spends_until_it_converges(
    table: Table, metric: str | None, plain: float | None, strong: float | None, unit: str
) -> None:
    """`strong` is within a point of its tail after round 1, and `plain` after round 2."""
    converged = {**BETTER, **IID, "show": "converged", "metric": metric, "direction": "below"}
    told = with_claims(table, converged)
    runs = plant(told, [0.1, 0.1, 0.1])
    for key, run in runs.items():
        is_strong = run.labels["mu"] == "strong"
        curve = {1: run.tail - (0.009 if is_strong else 0.011), 2: run.tail}
        runs[key] = run.model_copy(update={"curve": curve, "spent": SPENT})
    [verdict] = judge_claims(told, runs)
    if strong is None or plain is None:
        assert verdict.outcome is Outcome.NOT_RUN
        return
    assert verdict.difference is not None
    assert (verdict.value, verdict.baseline, verdict.unit) == (strong, plain, unit)
    expected = strong / plain - 1 if unit == "%" else strong - plain
    assert verdict.difference.mean == pytest.approx(expected)


def test_a_run_that_diverged_has_not_converged(table: Table) -> None:
    """Its accuracy is 0 in every round, and so its curve is flat."""
    [run, *_] = plant(with_claims(table, BETTER), [0.1, 0.1, 0.1]).values()
    lost = run.model_copy(update={"final": {**run.final, "global_loss": math.nan}, "curve": {1: 0.0, 2: 0.0}})
    assert (run.find_converged(), lost.find_converged()) == (2, None)
    assert math.isnan(lost.read_figure("swing", "global_accuracy") or 0.0)


def test_a_table_shows_what_runs_spend_until_they_converge(table: Table) -> None:
    shown = with_claims(table, BETTER).model_copy(update={"show": ("converged",)})
    planted = plant(shown, [0.1, 0.1, 0.1])
    text = render(shown, {key: run.model_copy(update={"spent": SPENT}) for key, run in planted.items()})
    assert "Simulated seconds of the clients' devices:" in text
    assert "Processor seconds" not in text
    assert "7 ± 0" in text


def test_only_spent_figures_lead_to_convergence(table: Table) -> None:
    assert SPENT_FIGURES.keys() == {*COSTS}
    with pytest.raises(ValueError, match="the metric is one of rounds, bytes"):
        with_claims(table, {**BETTER, "show": "converged", "metric": "personal_accuracy"})


def test_a_claim_may_be_about_what_a_run_spends_until_a_target(table: Table) -> None:
    """`strong` has 0.55 after round 1, and `plain` after round 2, but for the seed that never has it."""
    target = {**BETTER, **IID, "show": "spent", "target": 0.55, "metric": "joules", "direction": "below"}
    far, total = {**target, "id": "far", "target": 0.9}, {**target, "id": "total", "target": None}
    told = with_claims(table, target, far, total)
    runs = plant(told, [0.1, 0.1, 0.1])
    for key, run in runs.items():
        strong, missed = run.labels["mu"] == "strong", run.seed == 3
        curve = {1: 0.6, 2: 0.5} if strong else {1: 0.4, 2: 0.5 if missed else 0.55}
        first = 10.0 + (run.seed - 1.5 if run.seed < 3 else 0.0)
        spent = {1: Spending(bytes=1, joules=first), 2: Spending(bytes=2, joules=40.0)}
        runs[key] = run.model_copy(update={"curve": curve, "spent": spent})
    reached, never, whole = judge_claims(told, runs)
    # With the two seeds that reach it the claim would be held; how far the third is from it is unknown.
    assert (reached.outcome, reached.value, reached.baseline) == (Outcome.UNDECIDED, 10.0, 40.0)
    assert reached.difference is not None
    assert (reached.difference.pairs, reached.difference.low, reached.p_value) == (2, None, None)
    assert reached.describe() == "undecided (1 never reached the target)"
    assert never.describe() == "not testable at this scale (no seed has two runs that reach 0.9)"
    assert (whole.outcome, whole.value, whole.baseline) == (Outcome.UNDECIDED, 40.0, 40.0)


def test_a_table_shows_what_runs_spend_until_its_targets(table: Table) -> None:
    shown = with_claims(table, BETTER).model_copy(update={"show": ("spent",), "targets": (0.5, 0.6, 0.99)})
    spent = {
        1: Spending(bytes=10**6, simulated_seconds=2.25),
        2: Spending(bytes=3 * 10**6, simulated_seconds=700.0),
    }
    planted = plant(shown, [0.1, 0.1, 0.1])
    for key, run in planted.items():
        curve = {1: 0.55, 2: 0.6} if run.seed == 1 else {1: 0.5, 2: 0.55}
        planted[key] = run.model_copy(update={"curve": curve, "spent": spent})
    text = render(shown, planted)
    assert "| data | mu | 50 % | 60 % | 99 % |" in text
    assert "| IID | strong | 2.2 ± 0.0 | 700 (1 of 3) | – |" in text
    assert "| IID | strong | 1.0 ± 0.0 | 3.0 (1 of 3) | – |" in text
    assert "Joules" not in text


def test_a_target_belongs_to_what_is_spent(table: Table) -> None:
    with pytest.raises(ValueError, match="target belongs to show: spent, and show is final"):
        with_claims(table, {**BETTER, "target": 0.5})
    with pytest.raises(ValueError, match="nothing else does"):
        Table.model_validate({**table.model_dump(), "show": ("spent",)})
