"""The package for pip: what the wheel contains, its dependencies, an installation with only some of them."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
UNBOUNDED = {"fsspec", "s3fs", "pyopenssl", "pyarrow"}
"""Their majors are dates, or come every few months."""


def run_python(*words: str, path: Path = ROOT, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path), "FEDSIM_HOME": str(cwd / "home"), "COLUMNS": "200"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_every_dependency_has_an_upper_bound() -> None:
    texts = [*PROJECT["dependencies"]]
    for name, extra in PROJECT["optional-dependencies"].items():
        texts += extra if name != "dev" else []
    asked = [Requirement(text) for text in texts]
    unbounded = {each.name for each in asked if not any(part.operator == "<" for part in each.specifier)}
    assert unbounded == UNBOUNDED


def test_the_source_distribution_has_what_setup_copies() -> None:
    copied = runpy.run_path(str(ROOT / "setup.py"))["CLUSTER_FILES"]
    assert (ROOT / "MANIFEST.in").read_text("utf-8").split() == ["include", *copied]


def test_the_libraries_of_a_client_are_dependencies() -> None:
    libraries = runpy.run_path(str(ROOT / "client" / "setup.py"))["LIBRARIES"]
    assert set(libraries) < {Requirement(text).name for text in PROJECT["dependencies"]}


def test_a_client_says_what_a_command_needs(tmp_path: Path) -> None:
    """With only the libraries of a client, as on docs/operations.md."""
    script = (
        "import sys\n"
        "for name in ('torch', 'ray', 'numpy', 'scipy', 'sqlalchemy', 'fastapi', 'uvicorn', 'fsspec'):\n"
        "    sys.modules[name] = None\n"
        "sys.argv = ['fedsim', 'run', 'demo']\n"
        "from api.cli.main import main\n"
        "main()\n"
    )
    done = run_python("-c", script, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "which is not installed" in done.stderr
    assert "fedsim submit" in done.stderr


def test_the_other_package_of_this_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "fedsim-0.9.dist-info").mkdir()
    (tmp_path / "fedsim-0.9.dist-info" / "METADATA").write_text("Name: fedsim\nVersion: 0.9\n")
    beside = run_python("-c", "import fedsim", path=Path(f"{ROOT}{os.pathsep}{tmp_path}"))
    assert "another package called fedsim (0.9)" in beside.stderr
    (tmp_path / "fedsim").mkdir()
    (tmp_path / "fedsim" / "__init__.py").touch()
    above = run_python("-c", "import api", path=Path(f"{tmp_path}{os.pathsep}{ROOT}"), cwd=tmp_path)
    assert "belongs to another package called fedsim" in above.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files alone."""
    source = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if not name.startswith(("tests/", "docs/", "benchmarks/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    return source


def make_wheel(source: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    [made] = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_client_has_the_same_files_and_few_libraries(source: Path, wheel: Path, tmp_path: Path) -> None:
    client = make_wheel(source / "client", tmp_path)
    assert client.name == wheel.name.replace("ray", "client")
    files = [
        {name for name in zipfile.ZipFile(each).namelist() if ".dist-info/" not in name}
        for each in (client, wheel)
    ]
    assert files[0] == files[1]
    [about] = [name for name in zipfile.ZipFile(client).namelist() if name.endswith("/METADATA")]
    lines = zipfile.ZipFile(client).read(about).decode().splitlines()
    asked = {Requirement(line.partition(": ")[2]).name for line in lines if line.startswith("Requires-Dist")}
    assert asked == {"httpx", "pydantic", "PyYAML", "rich", "typer"}
    target, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(client)]
    assert run_python(*install, cwd=work, path=work).returncode == 0
    shown = run_python("-m", "api.cli.main", "--version", cwd=work, path=target)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "fedsim", "actors", "jobs", "api"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(tracked.stdout.split()) - names == set()
    assert {"api/cli/cluster/ray_cluster.yaml", "api/cli/cluster/constraints.txt"} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "fedsim",
        "actors",
        "jobs",
        "api",
    }


@pytest.mark.slow
def test_the_wheel_alone_is_enough(wheel: Path, tmp_path: Path) -> None:
    """Outside the checkout, with the libraries of this environment."""
    target, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    assert run_python(*install, cwd=work, path=work).returncode == 0
    for words in ("presets", "reproduce list", "algorithms fedprox", "cluster init new", "schema"):
        done = run_python("-m", "api.cli.main", *words.split(), cwd=work, path=target)
        assert done.returncode == 0, done.stderr
    config = (work / "new" / "ray_cluster.yaml").read_text("utf-8")
    assert f"'/home/ray/fedsim/{wheel.name}[" in config
    page = run_python("-c", "import api; print(*api.__path__)", cwd=work, path=target).stdout.strip()
    assert (Path(page) / "page" / "index.html").is_file()
