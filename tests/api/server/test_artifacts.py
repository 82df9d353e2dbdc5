"""Artifacts over REST: a closed list of names, and what each of them holds."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import load

from api.cli.run_folder import write_run_files
from fedsim.base.files import open_aside
from fedsim.checkpoints.storage import Folder
from fedsim.engine.evaluation.model_selection import ChosenModel
from fedsim.errors import CheckpointError
from jobs.run.artifacts import (
    open_artifact,
    save_chosen_model,
    save_model,
    save_partition,
    save_personal_scores,
)
from jobs.run.run_result import RunResult
from jobs.settings import Settings
from jobs.spec import parse_spec
from tests.api.service import RunningService

SPEC = parse_spec({"algorithm": "fedavg"})

JOBS = "/api/v1/jobs"
MODEL = {"head.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "head.bias": np.zeros(2, np.float32)}
DEALT = {"indices": np.array([4, 7, 0, 1, 2]), "offsets": np.array([0, 2, 5])}


def test_every_artifact_is_listed_and_given(
    service: RunningService, http: httpx.Client, tmp_path: Path
) -> None:
    job = service.ended(rounds=3)
    save_model(service.settings, job.id, MODEL)
    save_chosen_model(service.settings, job.id, ChosenModel(2, "teacher", 0.1 + 0.2, MODEL))
    save_partition(service.settings, job.id, DEALT, {"seed": 7})
    save_personal_scores(service.settings, job.id, "client,tests,correct,loss\n0,4,3,0.5\n")
    listed = {each["name"]: each for each in http.get(f"{JOBS}/{job.id}/artifacts").json()["artifacts"]}
    written = ["model.safetensors", "chosen.safetensors", "partition.safetensors", "personal.csv"]
    assert list(listed) == ["spec.yaml", "report.json", *written]
    answers = {name: http.get(f"{JOBS}/{job.id}/artifacts/{name}") for name in listed}
    for name, answer in answers.items():
        assert answer.headers["content-type"].partition(";")[0] == listed[name]["media_type"]
        assert answer.headers["content-disposition"] == f'attachment; filename="{job.id}-{name}"'
        assert listed[name]["bytes"] in (None, len(answer.content))
    assert parse_spec(yaml.safe_load(answers["spec.yaml"].text)).model_dump(mode="json") == job.spec
    model, dealt = load(answers["model.safetensors"].content), load(answers["partition.safetensors"].content)
    assert {name: value.tolist() for name, value in model.items()} == {
        name: value.tolist() for name, value in MODEL.items()
    }
    file = tmp_path / "chosen.safetensors"
    file.write_bytes(answers[file.name].content)
    with safe_open(file, "np") as chosen:
        notes = {
            "job": job.id,
            "round": "2",
            "model": "teacher",
            "validation_accuracy": "0.30000000000000004",
        }
        assert chosen.metadata() == notes
        assert chosen.get_tensor("head.weight").tolist() == MODEL["head.weight"].tolist()
    assert answers["personal.csv"].text.splitlines()[1] == "0,4,3,0.5"
    assert dealt["indices"][dealt["offsets"][1] : dealt["offsets"][2]].tolist() == [0, 1, 2]


def test_the_report_has_spec_rounds_and_result(service: RunningService, http: httpx.Client) -> None:
    job = service.ended(rounds=3)
    report = http.get(f"{JOBS}/{job.id}/artifacts/report.json").json()
    assert report["spec"] == job.spec
    assert report["rounds"] == http.get(f"{JOBS}/{job.id}/rounds").json()["rounds"]
    assert report["result"] == {
        "final": {"global_accuracy": 0.75, "global_loss": 1 / 3},
        "best": {"round": 3, "global_accuracy": 0.75},
        "totals": {
            "rounds": 3,
            "seconds": 1.5,
            "bytes": {"down": 3000, "up": 6000, "personal": 0},
            "cost": {"updates": 0, "flops": 0, "tuning_updates": 0, "tuning_flops": 0},
        },
    }
    empty = http.get(f"{JOBS}/{service.queued().id}/artifacts/report.json").json()
    assert (empty["rounds"], empty["result"]["best"]) == ([], {})


@pytest.mark.parametrize(
    "name", ["model.safetensors", "job.log", "..%2fjob.log", "%2e%2e%2f%2e%2e%2ffedsim.db", "model.pkl"]
)
def test_what_is_no_artifact_or_not_there_yet_is_not_found(
    service: RunningService, http: httpx.Client, name: str
) -> None:
    job = service.running()
    service.settings.log_path(job.id).write_text("private\n")
    answer = http.get(f"{JOBS}/{job.id}/artifacts/{name}")
    assert answer.status_code == 404
    assert answer.json()["code"] in ("ARTIFACT_NOT_FOUND", "NOT_FOUND")
    names = [each["name"] for each in http.get(f"{JOBS}/{job.id}/artifacts").json()["artifacts"]]
    assert names == ["spec.yaml", "report.json"]
    assert http.get(f"{JOBS}/0000/artifacts").json()["code"] == "JOB_NOT_FOUND"


def test_models_of_several_architectures_are_named_by_their_number(service: RunningService) -> None:
    job = service.ended()
    save_model(service.settings, job.id, {"0": MODEL, "1": {"bias": np.ones(2)}})
    _, pieces = open_artifact(service.settings, job.id, "model.safetensors")
    assert load(b"".join(pieces)).keys() == {"0/head.weight", "0/head.bias", "1/bias"}


def test_a_run_in_files_has_its_models_too(tmp_path: Path) -> None:
    """`fedsim run --out`; the chosen one of a run before goes where there is no validation split."""
    document = {"spec": {}, "rounds": [], "result": {}}
    last = {**MODEL, "head.bias": np.ones(2, np.float32)}
    result = RunResult(
        SPEC, model=last, chosen_model=ChosenModel(3, "global", 0.5, MODEL), notes={"round": "4", "seed": "7"}
    )
    assert write_run_files(tmp_path, document, result)[-2:] == ["model.safetensors", "chosen.safetensors"]
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"round": "4", "seed": "7"}
        assert file.get_tensor("head.bias").tolist() == [1, 1]
    with safe_open(tmp_path / "chosen.safetensors", "np") as file:
        assert file.metadata() == {
            "round": "3",
            "seed": "7",
            "model": "global",
            "validation_accuracy": "0.5",
        }
        assert file.get_tensor("head.bias").tolist() == MODEL["head.bias"].tolist()
    assert "chosen.safetensors" not in write_run_files(tmp_path, document, RunResult(SPEC, model=last))
    assert not (tmp_path / "chosen.safetensors").exists()
    assert write_run_files(tmp_path, document, RunResult(SPEC, model={})) == [
        "spec.yaml",
        "rounds.jsonl",
        "rounds.csv",
        "result.json",
    ]
    assert not (tmp_path / "model.safetensors").exists()


def test_without_a_validation_split_nothing_was_chosen(service: RunningService, http: httpx.Client) -> None:
    job = service.ended()
    save_chosen_model(service.settings, job.id, None)
    answer = http.get(f"{JOBS}/{job.id}/artifacts/chosen.safetensors")
    assert answer.status_code == 404
    assert "evaluation.validation" in answer.text


def test_clients_that_only_sample_have_no_partition(service: RunningService, http: httpx.Client) -> None:
    job = service.ended()
    save_partition(service.settings, job.id, {}, {})
    assert http.get(f"{JOBS}/{job.id}/artifacts/partition.safetensors").status_code == 404


def test_artifacts_go_to_the_storage_and_with_the_job(
    service: RunningService, http: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Settings(service.settings.home, storage=f"file://{tmp_path}/shared")
    monkeypatch.setattr(service.app.state.service, "settings", shared)
    job = service.ended()
    save_model(shared, job.id, MODEL)
    file = tmp_path / "shared" / "jobs" / job.id / "artifacts" / "model.safetensors"
    assert http.get(f"{JOBS}/{job.id}/artifacts/model.safetensors").content == file.read_bytes()
    assert http.delete(f"{JOBS}/{job.id}").status_code == 204
    assert not file.exists()


def test_an_artifact_replaced_while_it_is_read_comes_whole(service: RunningService) -> None:
    job = service.running()
    save_personal_scores(service.settings, job.id, "client\n0\n")
    size, pieces = open_artifact(service.settings, job.id, "personal.csv")
    save_personal_scores(service.settings, job.id, "client\n0\n1\n2\n")
    assert (size, b"".join(pieces)) == (9, b"client\n0\n")


def test_a_storage_that_fails_is_said_and_keeps_no_artifact(
    service: RunningService,
    http: httpx.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("no folder\n")
    broken = Settings(service.settings.home, storage=f"file://{tmp_path}/file")
    monkeypatch.setattr(service.app.state.service, "settings", broken)
    job = service.ended()
    answer = http.get(f"{JOBS}/{job.id}/artifacts")
    assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_FAILED")
    cleared: list[str] = []

    def fails(folder: Folder) -> None:
        cleared.append(folder.url.rpartition("/")[2])
        raise CheckpointError(f"{folder.url} cannot be removed")

    monkeypatch.setattr(Folder, "clear", fails)
    assert http.delete(f"{JOBS}/{job.id}").status_code == 204
    assert cleared == ["checkpoints", "artifacts"]
    assert caplog.text.count("some of its files could not be deleted") == 2


def test_two_downloads_to_one_place_are_each_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with open_aside(path) as first, open_aside(path) as second:
        first.write(b"first, and longer")
        second.write(b"second")
        first.flush()
        second.flush()
        assert sorted(each.read_bytes() for each in tmp_path.iterdir()) == [b"first, and longer", b"second"]
    assert path.read_bytes() == b"first, and longer"
    assert list(tmp_path.iterdir()) == [path]
