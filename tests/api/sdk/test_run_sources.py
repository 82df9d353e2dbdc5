"""Texts that name runs: a misspelled path is said to be one, with or without a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.sdk.run_comparison import compare
from fedsim.errors import JobNotFound, SettingsError, Unreachable
from tests.api.service import Fedsim, RunningService, a_round

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run in a folder, below the folder of the commands."""
    monkeypatch.chdir(tmp_path)
    Path("runs/scaffold").mkdir(parents=True)
    Path("runs/scaffold/rounds.jsonl").write_text(a_round(1).model_dump_json() + "\n")
    return "runs/scaffold"


def test_the_folder_of_a_sweep_has_its_runs(fedsim: Fedsim, folder: str) -> None:
    Path("runs/fedavg").mkdir()
    Path("runs/fedavg/rounds.jsonl").write_text(a_round(1).model_dump_json() + "\n")
    Path("runs/.lock").touch()
    assert [line.name for line in compare("runs").lines] == ["fedavg", "scaffold"]
    document = fedsim("compare", "runs", "--format", "json").data
    assert len(document["lines"]) == 2


@pytest.mark.parametrize("command", ["compare", "verify", "report", "export"])
@pytest.mark.parametrize("wrong", ["runs/scafold", "scafold.jsonl"])
def test_a_path_that_does_not_exist_needs_no_service(
    fedsim: Fedsim, folder: str, command: str, wrong: str
) -> None:
    others = [] if command in ("report", "export") else [folder]
    outcome = fedsim(command, *others, wrong, "--url", NOBODY)
    assert outcome.code == 2
    assert f"there is no folder or file '{wrong}'" in outcome.err
    assert "no service answers" not in outcome.err


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("command", ["compare", "verify", "report", "export"])
def test_a_word_without_a_service_is_said_to_be_taken_for_a_job(
    fedsim: Fedsim, folder: str, command: str
) -> None:
    others = [] if command in ("report", "export") else [folder]
    outcome = fedsim(command, *others, "scafold", "--url", NOBODY)
    assert "no service answers" in outcome.err
    words = "'scafold' is no file or folder here, so it was taken for a job or a sweep"
    assert words in " ".join(outcome.err.split())


@pytest.mark.usefixtures("_no_pauses")
def test_the_sdk_says_the_same(folder: str) -> None:
    for missing in ("runs/scafold", Path("scafold")):
        with pytest.raises(SettingsError, match=r"there is no folder or file '.*scafold'"):
            compare(folder, missing, url=NOBODY)
    with pytest.raises(Unreachable, match="'a', 'b' are no files or folders here, so they were taken for"):
        compare(folder, "a", "b", url=NOBODY)


def test_a_service_that_answers_is_asked_for_other_words(folder: str, service: RunningService) -> None:
    for word in ("scafold", "lr/0.1"):
        with pytest.raises(JobNotFound):
            compare(folder, word, url=service.url)
