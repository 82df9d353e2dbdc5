"""The weights of a user in a spec: where they are looked for, and that other weights are refused later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import save

from fedsim.errors import SpecError
from fedsim.models import make_net
from jobs.run.artifacts import save_model
from jobs.run.checkpoint_policy import describe_experiment
from jobs.run.model_metadata import make_model_notes
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec, read_spec
from jobs.spec.grid import hash_spec
from jobs.spec.initial_weights import pin_initial_weights
from jobs.spec.resolve import find_forbidden_models, resolve_spec
from jobs.spec.submission import check_submission

JOB = "0123456789ab"
NET = make_net("logistic", input_shape=(1, 8, 8), num_classes=10)


def spec_with(init: Any, **fields: Any) -> JobSpec:
    return parse_spec({"algorithm": "fedavg", "model": {"name": "logistic", "init": init}, **fields})


def fault_of(init: Any, settings: Settings) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec_with(init), settings)
    [fault] = caught.value.errors
    return fault.path, fault.message


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "mine.safetensors"
    file.write_bytes(save(NET.init(3)))
    return file


def test_a_word_is_a_file_unless_it_is_a_job_id() -> None:
    assert spec_with("w.safetensors").models[0].model_dump()["init"] == {"file": "w.safetensors"}
    assert spec_with(JOB).models[0].model_dump()["init"] == {"job": JOB}
    assert spec_with(f"./{JOB}").models[0].model_dump()["init"] == {"file": f"./{JOB}"}
    assert parse_spec(spec_with(JOB).model_dump(mode="json")) == spec_with(JOB)
    assert "init" not in parse_spec({"algorithm": "fedavg"}).model_dump()["model"]


@pytest.mark.parametrize(
    ("init", "path"),
    [
        ({}, "model.init"),
        ({"file": "a", "job": JOB}, "model.init"),
        ({"job": "../a"}, "model.init.job"),
        ({"file": "a", "strict": False}, "model.init.strict"),
        (3, "model.init"),
    ],
)
def test_a_wrong_init_is_named(init: Any, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_with(init)
    assert [fault.path for fault in caught.value.errors] == [path]


def test_a_file_is_looked_for_where_the_command_runs_then_beside_the_spec(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, elsewhere = tmp_path / "spec.yaml", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for init in ("mine.safetensors", {"file": "mine.safetensors"}):
        for model in ({"name": "mlp", "init": init}, [{"name": "mlp", "init": init}, "logistic"]):
            file.write_text(yaml.safe_dump({"algorithm": "fedavg", "model": model}))
            read = parse_spec(read_spec(file)).models[0].init
            assert read is not None
            assert read.file == str(weights)
    (elsewhere / "mine.safetensors").touch()
    read = parse_spec(read_spec(file)).models[0].init
    assert read is not None
    assert read.file == str(elsewhere / "mine.safetensors")


def test_a_run_begins_from_a_file_a_run_a_data_root_or_a_job(weights: Path, settings: Settings) -> None:
    (settings.home / "data").mkdir()
    (settings.home / "data" / "root.safetensors").write_bytes(weights.read_bytes())
    run = settings.home / "run"
    run.mkdir()
    (run / "model.safetensors").write_bytes(weights.read_bytes())
    settings.job_dir(JOB)
    save_model(settings, JOB, {key: value.numpy() for key, value in NET.init(3).items()})
    for init in (str(weights), str(run), "root.safetensors", JOB):
        [found] = resolve_spec(spec_with(init), settings).initial
        assert found is not None
        assert all((found.values[key] == value.numpy()).all() for key, value in NET.init(3).items())
    assert resolve_spec(parse_spec({"algorithm": "fedavg"}), settings).initial == ()


def test_weights_that_are_not_there_are_named(settings: Settings, weights: Path) -> None:
    assert fault_of("no.safetensors", settings)[0] == "model.init.file"
    assert fault_of("../no.safetensors", settings)[0] == "model.init.file"
    assert fault_of("/no.safetensors", settings)[0] == "model.init.file"
    path, message = fault_of(JOB, settings)
    assert (path, "no such job" in message) == ("model.init.job", True)
    assert not (settings.home / "jobs" / JOB).exists()
    settings.job_dir(JOB)
    assert "model.safetensors" in fault_of(JOB, settings)[1]
    weights.write_bytes(save({"other": NET.init(0)["head.bias"]}))
    path, message = fault_of(str(weights), settings)
    assert path == "model.init"
    assert "does not fit logistic: the file lacks head.weight, head.bias; the model has no other" in message


def test_a_service_reads_no_files_outside_its_data_roots(settings: Settings, weights: Path) -> None:
    service = replace(settings, allow_python=False)
    for file in (str(weights), "../mine.safetensors", f"{settings.home}/data/../../mine.safetensors"):
        [fault] = find_forbidden_models(spec_with(file), service)
        assert fault.path == "model.init.file"
        assert "name a job (init.job)" in fault.hint
        assert not find_forbidden_models(spec_with(file), settings)
    for init in ("mine.safetensors", f"{settings.home}/data/mine.safetensors", JOB):
        assert not find_forbidden_models(spec_with(init), service)


def test_a_spec_keeps_to_the_weights_that_it_began_with(settings: Settings, weights: Path) -> None:
    spec = spec_with({"file": str(weights), "ignore": ["head.bias"]})
    pinned = pin_initial_weights(spec, resolve_spec(spec, settings).initial)
    assert pinned.models[0].init is not None
    assert len(pinned.models[0].init.sha256 or "") == 64
    assert resolve_spec(pinned, settings).initial
    # The same weights may lie elsewhere.
    moved = pinned.model_dump(mode="json")
    moved["model"]["init"]["file"] = "elsewhere"
    assert describe_experiment(parse_spec(moved)) == describe_experiment(pinned)
    weights.write_bytes(save(NET.init(4)))
    path, message = fault_of(pinned.model_dump(mode="json")["model"]["init"], settings)
    assert (path, "has changed since" in message) == ("model.init.sha256", True)
    now = pin_initial_weights(spec, resolve_spec(spec, settings).initial)
    assert describe_experiment(now) != describe_experiment(pinned)
    # A repeated request has no SHA-256 yet.
    bodies = [check_submission(each, 0, {}, "key").body_hash() for each in (pinned, spec)]
    assert bodies[0] == bodies[1]
    assert hash_spec(pinned) == hash_spec(spec)


def test_each_of_several_models_has_its_own_weights(settings: Settings, weights: Path) -> None:
    models = [{"name": "logistic", "init": str(weights)}, "mlp"]
    data = {"public": {"fraction": 0.1}}
    spec = parse_spec({"algorithm": "kt_pfl", "model": models, "data": data})
    experiment = resolve_spec(spec, settings)
    assert [bool(each) for each in experiment.initial] == [True, False]
    first, second = pin_initial_weights(spec, experiment.initial).models
    assert first.init is not None
    assert first.init.sha256
    assert second.init is None
    nets = experiment.load_population().nets
    assert (nets[0].init(0)["head.bias"] == NET.init(3)["head.bias"]).all()


def test_the_notes_of_a_model_name_the_weights_from_which_it_began() -> None:
    data = {"input_shape": [1, 8, 8], "num_classes": 10, "classes": [], "task": "classes", "vocabulary": 0}
    notes = make_model_notes(spec_with(JOB), {**data, "normalise": {}}, 3)
    assert notes["init"] == f'{{"job": "{JOB}"}}'
