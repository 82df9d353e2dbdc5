"""Who holds what, made once and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.uploads.attacks import SignFlip, draw_attackers
from jobs.run import class_map
from jobs.run.class_map import FILE, load_class_map, make_class_map
from jobs.run.partition_report import make_partition_report
from jobs.settings import Settings
from jobs.spec import parse_spec


@pytest.mark.parametrize("partition", ["iid", {"kind": "difficulty", "base": {"kind": "iid"}}])
def test_the_counts_are_those_of_the_job(tmp_path: Path, partition: object) -> None:
    data = {"dataset": "digits", "partition": partition}
    spec = parse_spec({"algorithm": "fedavg", "clients": {"total": 6, "fraction": 1.0}, "data": data})
    settings = Settings(home=tmp_path)
    made = load_class_map(spec, settings, "abc")
    plain = parse_spec({**spec.model_dump(mode="json"), "data": {**data, "partition": "iid"}})
    assert made["counts"] == make_partition_report(plain, settings, lambda phase: None).counts.tolist()
    assert (made["clients"], len(made["classes"]), len(made["distances"])) == (6, 10, 6)
    (settings.job_dir("abc") / FILE).write_bytes(b"")  # as a crash of the machine may leave it
    assert load_class_map(spec, settings, "abc") == made


def test_a_partition_says_what_was_taken_away_before_it_was_dealt(tmp_path: Path) -> None:
    given = {"algorithm": "fedavg", "data": {"dataset": "digits", "public": {"fraction": 0.1}}}
    spec = parse_spec({**given, "evaluation": {"validation": 0.2}})
    dealt = make_partition_report(spec, Settings(home=tmp_path), lambda phase: None)
    assert (dealt.about["public"], dealt.about["validation"]) == (0.1, 0.2)
    assert int(dealt.sizes.sum()) == round(0.8 * round(0.9 * 1438))


def test_clients_have_the_names_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.json").write_text('{"west": [1, 2, 3], "east": [4, 5]}')
    data = {"dataset": "digits", "partition": {"kind": "file", "path": "mine.json"}}
    spec = parse_spec({"algorithm": "fedavg", "clients": {"total": 2, "fraction": 1.0}, "data": data})
    found = make_class_map(spec, Settings(home=tmp_path))
    assert found["names"] == ["east", "west"]
    assert [sum(row) for row in found["counts"]] == [2, 3]


def test_attackers_are_those_of_the_run(tmp_path: Path) -> None:
    given = {"algorithm": "fedavg", "seed": 3, "clients": {"total": 12}, "data": {"dataset": "digits"}}
    assert make_class_map(parse_spec(given), Settings(home=tmp_path))["attackers"] == []
    attacked = parse_spec({**given, "attack": {"name": "sign_flip", "share": 0.25}})
    drawn = draw_attackers(SignFlip(share=0.25), 3, 12)
    assert make_class_map(attacked, Settings(home=tmp_path))["attackers"] == drawn.tolist()
    assert len(drawn) == 3


def test_many_classes_leave_room_for_few_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"algorithm": "fedavg", "clients": {"total": 12}, "attack": {"name": "sign_flip", "share": 0.9}}
    monkeypatch.setattr(class_map, "MAX_COUNTS", 49)  # digits have ten classes
    found = make_class_map(parse_spec({**given, "data": {"dataset": "digits"}}), Settings(home=tmp_path))
    assert (len(found["counts"]), len(found["distances"]), found["clients"]) == (4, 4, 12)
    assert set(found["attackers"]) <= {0, 1, 2, 3}


def test_one_that_cannot_be_kept_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = parse_spec({"algorithm": "fedavg", "clients": {"total": 3}, "data": {"dataset": "digits"}})

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert load_class_map(spec, Settings(home=tmp_path), "abc")["clients"] == 3
    assert "cannot be stored: No space left" in caplog.text
    assert list(Settings(home=tmp_path).job_dir("abc").iterdir()) == []


def test_it_is_made_once(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    spec = parse_spec({"algorithm": "fedavg", "data": {"dataset": "digits"}})
    (settings.job_dir("abc") / FILE).write_text('{"kept": true}')
    assert load_class_map(spec, settings, "abc") == {"kept": True}
