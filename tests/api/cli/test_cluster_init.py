"""`fedsim cluster init`: what it writes for each source of the package, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.cli.commands import cluster
from tests.api.service import Fedsim

ROOT = Path(__file__).parents[3]


def read_source(folder: Path) -> tuple[dict[str, str], str]:
    """What the nodes get besides Ray's token, and what they install."""
    config: Any = yaml.safe_load((folder / "ray_cluster.yaml").read_text("utf-8"))
    install, *again = [line for line in config["setup_commands"] if "pip install" in line]
    found = re.search(r"'(.*)\[[a-z,]+\]'", install)
    assert found is not None
    # pip would keep an older wheel of the same version.
    wheel = found[1].endswith(".whl")
    assert again == [f"pip install --quiet --no-deps --force-reinstall '{found[1]}'"] * wheel
    assert (folder / "constraints.txt").read_text("utf-8") == (ROOT / "constraints.txt").read_text("utf-8")
    assert config["file_mounts"].pop("/home/ray/.ray/auth_token")
    return config["file_mounts"], found[1]


def test_a_checkout_is_copied_to_the_nodes(fedsim: Fedsim, tmp_path: Path) -> None:
    assert fedsim("cluster", "init", str(tmp_path / "new")).code == 0
    assert read_source(tmp_path / "new") == ({"/home/ray/fedsim": str(ROOT)}, "/home/ray/fedsim")


def test_a_wheel_is_copied_and_nothing_else_in_the_folder(fedsim: Fedsim, tmp_path: Path) -> None:
    wheel = tmp_path / "fedsim_ray-9-py3-none-any.whl"
    wheel.touch()
    assert fedsim("cluster", "init", str(tmp_path / "new"), "--wheel", str(wheel)).code == 0
    files = ("constraints.txt", wheel.name)
    mounts = {f"/home/ray/fedsim/{name}": f"./{name}" for name in files}
    assert read_source(tmp_path / "new") == (mounts, f"/home/ray/fedsim/{wheel.name}")
    assert (tmp_path / "new" / wheel.name).is_file()


def test_the_extras_are_those_of_the_cluster() -> None:
    assert f"[{cluster.EXTRAS}]'" in (ROOT / "ray_cluster.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--wheel", "setup.py"], "--wheel setup.py is no wheel"), ([], "ray_cluster.yaml exists")],
)
def test_what_cannot_work_is_refused(fedsim: Fedsim, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "ray_cluster.yaml").write_text("mine")
    outcome = fedsim("cluster", "init", str(tmp_path), *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert (tmp_path / "ray_cluster.yaml").read_text() == "mine"
