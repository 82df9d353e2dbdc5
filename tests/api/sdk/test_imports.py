"""What an import loads, and how long it takes, in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "torchvision", "ray", "sklearn", "scipy", "numpy", "sqlalchemy", "fastapi", "plotly"}


def loaded_by(statement: str) -> set[str]:
    """Execute a statement in a fresh interpreter; returns the top-level modules loaded."""
    program = f"""
import sys
{statement}
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_fedsim_itself_loads_nothing() -> None:
    assert not loaded_by("import fedsim") & (HEAVY | {"httpx", "pydantic", "yaml", "api", "jobs"})


@pytest.mark.parametrize("name", ["FedSimClient", "AsyncFedSimClient", "JobSpec"])
def test_the_public_names_load_no_science(name: str) -> None:
    assert not loaded_by(f"from fedsim import {name}") & HEAVY


def test_a_notebook_of_the_client_alone_needs_no_science() -> None:
    """`api.reports.notebook` shows jobs and rounds; only a comparison computes."""
    assert not loaded_by("import api.reports.notebook") & HEAVY


def test_the_public_surface() -> None:
    import fedsim

    assert {"AsyncFedSimClient", "FedSimClient", "JobSpec", "__version__"} <= set(dir(fedsim))
    assert fedsim.FedSimClient.__module__ == "api.sdk.client"
    assert fedsim.AsyncFedSimClient.__module__ == "api.sdk.async_client"
    assert fedsim.JobSpec.__module__ == "jobs.spec.job_spec"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fedsim.nonsense


def test_submitting_from_the_sdk_loads_no_science() -> None:
    statement = (
        "from fedsim import FedSimClient\n"
        "from jobs.spec import load_spec\n"
        "FedSimClient().close(); load_spec('demo').model_dump()"
    )
    assert not loaded_by(statement) & HEAVY


@pytest.mark.parametrize(
    "file", ["api/__init__.py", "api/sdk/client.py", "jobs/__init__.py", "actors.py", "api.py"]
)
def test_a_package_in_front_of_ours_is_named(file: str, tmp_path: Path) -> None:
    theirs = tmp_path / file
    theirs.parent.mkdir(parents=True, exist_ok=True)
    for folder in (theirs.parent, *theirs.parent.parents):
        if folder.is_relative_to(tmp_path):
            (folder / "__init__.py").touch()
    theirs.touch()
    package = file.partition("/")[0].removesuffix(".py")
    # Sources in place are found by a finder of their own, which a package that is installed does not have.
    program = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in str(f)]\n"
        "import fedsim\ntry:\n fedsim.FedSimClient\nexcept ImportError as error:\n print(error.path, error)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": True}
    said = subprocess.run([sys.executable, "-c", program], **run).stdout  # type: ignore[call-overload]
    if package == "actors":
        assert said == ""  # the client does without it
        return
    place, words = said.split(maxsplit=1)
    assert Path(place).is_relative_to(tmp_path.resolve())
    assert f"in front of fedsim's own package '{package}'" in words
    assert "python -P, or PYTHONSAFEPATH=1" in words
    safe = subprocess.run([sys.executable, "-P", "-c", program], **run)  # type: ignore[call-overload]
    assert (safe.stdout, safe.stderr) == ("", "")
