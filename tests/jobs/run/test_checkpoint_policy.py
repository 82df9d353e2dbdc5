"""Which parts of a spec may change when a run goes on from its checkpoints."""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.algorithms import ALGORITHMS
from fedsim.checkpoints.checkpoint import list_differences
from fedsim.core import Algorithm
from jobs.run.checkpoint_policy import describe_experiment, describe_last_checkpoint
from jobs.spec import parse_spec

SPEC: dict[str, Any] = {"algorithm": "scaffold", "rounds": 9, "model": "logistic", "local": {"steps": 2}}


def test_what_a_round_does_not_depend_on_may_change() -> None:
    base = describe_experiment(parse_spec(SPEC))
    # Checkpoints of before there was a choice of tests know nothing of it.
    assert "tests" not in base["data"]
    free = {"rounds": 50, "name": "x", "checkpoint": {"every": 3}, "faults": {}, "evaluation": {"every": 5}}
    assert describe_experiment(parse_spec({**SPEC, **free, "resources": {"stack": "off"}})) == base
    changes = ({"seed": 1}, {"local": {"steps": 3}}, {"model": "mlp"}, {"data": {"limit": 100}})
    for part in (*changes, {"resources": {"stack": 4}}, {"evaluation": {"validation": 0.1}}):
        assert describe_experiment(parse_spec({**SPEC, **part})) != base


BY_ROUNDS: list[dict[str, Any]] = [
    {"curriculum": {"clients": {}}},
    {"curriculum": {"data": {"budget": "global"}}},
    {"curriculum": {"data": {}, "clients": {}}},
    {"algorithm": "fedkd"},
    {"algorithm": "fedad"},
    {"algorithm": "cd2_pfed"},
    {"algorithm": "fedcl"},
    {"algorithm": {"name": "ace_pfl", "curve": "f3"}},
    {"algorithm": {"name": "layer_schedule", "times": "even"}},
    {"algorithm": {"name": "layer_schedule", "times": "even"}, "curriculum": {"data": {}}},
    {"curriculum": {"phases": {}}},
    {"algorithm": "cd2_pfed", "curriculum": {"phases": {"cap": 3}}},
]

NOT_BY_ROUNDS: list[dict[str, Any]] = [
    {"curriculum": {"data": {}}},
    {"curriculum": {"phases": {"cap": 3}}},
    {"algorithm": {"name": "fedkd", "local_rounds": 2}},
    {"algorithm": {"name": "fedcl", "cap": 3}},
    {"algorithm": {"name": "fedcl", "levels": []}},
    {"algorithm": "ace_pfl"},
    {"algorithm": "layer_schedule"},
]


def experiments(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [describe_experiment(parse_spec({**SPEC, **part, "rounds": rounds})) for rounds in (9, 18)]


@pytest.mark.parametrize("part", BY_ROUNDS, ids=str)
def test_a_run_that_goes_by_its_rounds_takes_no_more_of_them(part: dict[str, Any]) -> None:
    short, long = experiments(part)
    assert (short.pop("rounds"), long.pop("rounds")) == (9, 18)
    assert short == long


@pytest.mark.parametrize("part", NOT_BY_ROUNDS, ids=str)
def test_other_runs_take_more_rounds(part: dict[str, Any]) -> None:
    short, long = experiments(part)
    assert short == long


def test_all_that_reads_the_number_of_rounds_says_so() -> None:
    package = Path(fedsim.__file__).parent
    texts = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    readers = {name for name, text in texts.items() if "ctx.rounds" in text}
    assert {"curriculum/clients.py", "curriculum/data.py", "curriculum/layers.py"} <= readers
    readers.remove("techniques/late_starts.py")  # for a warning alone
    assert not {name for name in readers if "def depends_on_num_rounds(self)" not in texts[name]}


def test_every_method_that_may_go_by_its_rounds_is_tried_here() -> None:
    tried = {parse_spec({**SPEC, **part}).algorithm.name for part in BY_ROUNDS if "algorithm" in part}
    assert tried == {
        name
        for name, method in ALGORITHMS.items()
        if method.depends_on_num_rounds is not Algorithm.depends_on_num_rounds
    }


def test_a_loss_before_any_checkpoint_goes_on_from_round_1(tmp_path: Path) -> None:
    old = str(Path(__file__).parents[2] / "golden" / "old" / "checkpoints")
    assert describe_last_checkpoint(str(tmp_path), 5) == "round 1"
    assert describe_last_checkpoint(old, 1) == "the last checkpoint (round 2)"
    assert describe_last_checkpoint(old, 0) == "round 1"
    assert describe_last_checkpoint("nowhere://bucket", 1) == "the last checkpoint"


def test_a_changed_text_of_many_lines_is_shown_by_its_first_difference() -> None:
    lines = [f"line {number}" for number in range(60)]
    old, new = ({"model": {"source": "\n".join(text)}} for text in (lines, [*lines[:5], "other", *lines[6:]]))
    [line] = list_differences(old, new)
    assert line == "model.source has changed, first in line 6: it was 'line 5', is 'other'"
    ended = {"model": {"source": "\n".join(lines) + "\n"}}
    assert list_differences(old, ended) == ["model.source has changed in its line ends"]
    cut = {"model": {"source": "\n".join(lines[:-1])}}
    assert list_differences(old, cut)[0].endswith("first in line 60: it was 'line 59', is None")
