"""Dockerfile, compose.yaml and docs/operations.md, held against what they name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from ray.scripts import scripts as ray_scripts

from api.cli.main import app
from api.server.app import create_app
from api.server.service import CHECK_PROCESSES
from api.server.web_server import GRACE_SECONDS
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from tests.api.service import IdleQueue

ROOT = Path(__file__).parents[2]
PASSWORD = "${POSTGRES_PASSWORD:?set it in .env}"
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OF_RAY: dict[str, click.Command] = {
    "start": ray_scripts.start,
    "get-auth-token": ray_scripts.get_auth_token,
    "health-check": ray_scripts.healthcheck,
    "status": ray_scripts.status,
    "stop": ray_scripts.stop,
}


def variables_of_the_code() -> set[str]:
    files = [path for package in ("actors", "jobs", "api") for path in (ROOT / package).rglob("*.py")]
    return {name for file in files for name in re.findall(r"\"(FEDSIM_[A-Z_]+)\"", file.read_text("utf-8"))}


def understood(command: list[str]) -> None:
    """Raise where a command line is not one that `fedsim` or `ray` takes; nothing is run."""
    program, name, *rest = command
    assert program in ("fedsim", "ray"), command
    known: Any = COMMANDS if program == "fedsim" else OF_RAY
    known[name].make_context(name, rest)


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))


@pytest.mark.parametrize("service", ["api", "ray", "worker"])
def test_the_services_run_commands_that_there_are(compose: Any, service: str) -> None:
    command = compose["services"][service]["command"]
    understood([re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(word)) for word in command])


def test_two_workers_train_the_clients(compose: Any) -> None:
    """A head without CPUs, and workers that join it where Ray's folder has the same path."""
    ray, worker = compose["services"]["ray"], compose["services"]["worker"]
    assert "--num-cpus=0" in ray["command"]
    assert worker["deploy"]["replicas"] == "${WORKERS:-2}"
    assert "--address=ray:6379" in worker["command"]
    assert "--port=6379" in ray["command"]
    assert ray["environment"]["RAY_TMPDIR"] in worker["volumes"]
    assert "FEDSIM_DATABASE_URL" not in worker["environment"]


def test_health_is_asked_with_commands_that_there_are(compose: Any) -> None:
    for name in ("ray", "worker"):
        understood(compose["services"][name]["healthcheck"]["test"][1:])
    assert compose["services"]["database"]["healthcheck"]["test"][1] == "pg_isready"


def test_every_variable_is_one_that_is_read(compose: Any) -> None:
    known = variables_of_the_code() | {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR"}
    known |= {"HF_HOME", "TORCH_HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"}
    for name in ("api", "ray"):
        given = compose["services"][name]["environment"]
        assert set(given) <= known
        words = {key: str(value).replace(PASSWORD, "x") for key, value in given.items()}
        settings = Settings.from_env(words)
        assert settings.database_url == "postgresql+psycopg://fedsim:x@database/fedsim"
        assert str(settings.home) == "/var/lib/fedsim"


def test_addresses_ports_and_volumes_belong_together(compose: Any) -> None:
    services = compose["services"]
    ray, api = services["ray"], services["api"]
    assert "--dashboard-port=8265" in ray["command"]
    assert api["environment"]["FEDSIM_RAY_ADDRESS"] == "http://ray:8265"
    assert {each["environment"]["RAY_AUTH_MODE"] for each in (ray, api)} == {"token"}
    # Only the API is reached from outside, and only from this machine.
    assert [name for name in services if services[name].get("ports")] == ["api"]
    assert api["ports"] == ["127.0.0.1:8000:8000"]
    assert re.search(r"^EXPOSE 8000$", DOCKERFILE, re.MULTILINE)
    assert COMMANDS["serve"].make_context("serve", []).params["port"] == 8000
    mounted = {volume.partition(":")[0] for each in services.values() for volume in each.get("volumes", ())}
    assert mounted == {*compose["volumes"], ray["environment"]["RAY_TMPDIR"]}
    assert api["volumes"] == ["home:/var/lib/fedsim"]
    assert ray["volumes"] == [*api["volumes"], f"ray:{ray['environment']['RAY_TMPDIR']}"]
    # Volumes have the owner of the image's folder, which must be there.
    assert f'"$FEDSIM_HOME" {ray["environment"]["RAY_TMPDIR"]}\n' in DOCKERFILE
    secrets = {secret for each in services.values() for secret in each.get("secrets", ())}
    assert secrets == set(compose["secrets"])
    paths = f"{api['command']} {api['environment']}"
    assert all(f"/run/secrets/{name}" in paths for name in secrets)


def test_every_container_is_locked(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert re.fullmatch(r"\$\{[A-Z]+_MEMORY:-\d+g\}", service["mem_limit"]), name
        assert any(place.startswith("/tmp") for place in service["tmpfs"]), name
        assert not service.get("privileged"), name
    # The API and its two processes that check data fit into the memory.
    api = compose["services"]["api"]
    most = int(re.findall(r"(\d+)g", api["mem_limit"])[0])
    assert CHECK_PROCESSES * int(api["environment"]["FEDSIM_CHECK_MEMORY"]) < most


def test_images_have_exact_versions_and_another_user_than_root(compose: Any) -> None:
    images = [*re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE), compose["services"]["database"]["image"]]
    assert all(re.search(r":\d+\.\d+(\.\d+)?-", image) for image in images), images
    user = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert user == ["10001"]
    assert compose["services"]["database"]["user"] == "postgres"


def test_there_is_time_to_stop(compose: Any) -> None:
    drain = int(compose["services"]["api"]["environment"]["FEDSIM_DRAIN"])
    grace = int(compose["services"]["api"]["stop_grace_period"].rstrip("s"))
    assert grace > drain + GRACE_SECONDS


def test_the_image_is_made_of_files_that_there_are() -> None:
    copied = [
        name for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]
    ]
    assert {"fedsim", "actors", "jobs", "api", "pyproject.toml", "constraints.txt"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {f"!{name}" for name in copied} <= set(kept)
    understood(eval(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1]))
    assert "FEDSIM_HOME=/var/lib/fedsim" in DOCKERFILE


def test_image_cluster_and_page_install_every_extra_but_that_for_development() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = set(project["optional-dependencies"]) - {"dev", "docs"}
    cluster = (ROOT / "ray_cluster.yaml").read_text("utf-8")
    for text in (DOCKERFILE, cluster, PAGE.split("\n## Install\n")[1]):
        found = re.search(r"pip install .*--constraint \S*constraints.txt '[^']*\[([a-z,]+)\]'", text)
        assert found is not None
        assert set(found[1].split(",")) == wanted


def test_no_page_installs_the_package_from_an_index_that_has_it_not() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    assert not [page.name for page in pages if "install 'fedsim-ray" in page.read_text("utf-8")]


def test_the_image_has_the_python_of_the_cluster() -> None:
    found = re.search(r"^FROM python:(\d)\.(\d+)\.\d+-", DOCKERFILE, re.MULTILINE)
    assert found is not None
    config = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text("utf-8"))
    assert f"-py{found[1]}{found[2]}-" in config["docker"]["image"]


def test_the_dockerfile_passes_its_linter() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("the extra 'dev' is not installed, or has no hadolint for this system")
    done = subprocess.run([linter, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def examples() -> list[list[str]]:
    """The command lines of the page that begin with `fedsim` or `ray`, without what stands in front."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    blocks += ["\n".join(re.findall(r"^ {4}(fedsim .*)$", PAGE, flags=re.MULTILINE))]
    found = []
    for line in "\n".join(blocks).splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and words[0] in ("fedsim", "ray"):
            found.append([word for word in words if word != "&"])
    return found


@pytest.mark.parametrize("command", examples(), ids=" ".join)
def test_an_example_of_the_page_is_understood(command: list[str]) -> None:
    understood(command)


def test_the_page_names_every_variable_and_no_other() -> None:
    named = set(re.findall(r"FEDSIM_[A-Z]+(?:_[A-Z]+)*", PAGE))
    # The reconciler gives them to its runners; nobody else does.
    assert named == variables_of_the_code() - {"FEDSIM_SUBMISSION", "FEDSIM_IN_PROCESS"}


def test_the_page_names_every_figure(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with JobStore.open(settings.database_url) as store:
        service = create_app(settings, store, IdleQueue())
        text = service.state.metrics.format_text(store.totals, ready=True).decode()
    given = set(re.findall(r"^# TYPE (fedsim_\w+)", text, re.MULTILINE))
    figures = {name for name in given if not name.endswith("_created")}
    assert figures == set(re.findall(r"`(fedsim_[a-z_]+)", PAGE))
