"""`ray_cluster.yaml`, held against Ray's own validation."""

import re
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.settings import Settings

FILE = Path(__file__).parents[2] / "ray_cluster.yaml"


@pytest.fixture(scope="module")
def config() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_ray_accepts_it(config: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.autoscaler._private.util import prepare_config, validate_config

        prepared = prepare_config(deepcopy(config))
    # `ray up` asks AWS for the CPUs and GPUs of an instance; numbers in the file would hide the others.
    workers = [kind for name, kind in prepared["available_node_types"].items() if name != "head"]
    assert not any(kind.get("resources") for kind in workers)
    for kind in workers:
        kind |= {"resources": {"CPU": 96, "GPU": 8}, "min_workers": 20, "max_workers": 20}
    validate_config(prepared)


def test_it_has_a_head_and_both_kinds_of_workers(config: Any) -> None:
    types = config["available_node_types"]
    assert set(types) == {"head", "cpu_worker", "gpu_worker"}
    assert config["head_node_type"] == "head"
    assert "gpu" in types["gpu_worker"]["docker"]["worker_image"]
    # Client actors must not land on the head, where the API and the coordinators live.
    assert types["head"]["resources"]["CPU"] == 0


def test_ray_is_the_pinned_version(config: Any) -> None:
    constraints = (FILE.parent / "constraints.txt").read_text().splitlines()
    version = next(line.split("==")[1] for line in constraints if line.startswith("ray=="))
    gpu_worker = config["available_node_types"]["gpu_worker"]
    images = [config["docker"]["image"], gpu_worker["docker"]["worker_image"]]
    assert all(f"ray:{version}-" in image for image in images)


def test_the_service_outlives_its_container_but_no_instance_outlives_the_cluster(config: Any) -> None:
    assert config["provider"]["cache_stopped_nodes"] is False
    (option,) = config["docker"]["head_run_options"]
    host, inside = re.fullmatch(r"-v (\S+):(\S+)", option).groups()  # type: ignore[union-attr]
    # A folder that is not there would be made by Docker, for root.
    assert f"mkdir -p {host}" in config["initialization_commands"]
    assert inside == "/home/ray/.fedsim"
    assert host.startswith(f"/home/{config['auth']['ssh_user']}/")


def test_every_node_has_rays_token_and_asks_for_it(config: Any) -> None:
    assert "-e RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    commands = [line for key, lines in config.items() if key.endswith("_commands") for line in lines]
    assert not any("RAY_AUTH" in line or "--host" in line for line in commands)
    # The options of a kind of node are added to those of all.
    assert not any("RAY_AUTH_MODE" in str(kind) for kind in config["available_node_types"].values())
    page = (FILE.parent / "docs" / "cluster.md").read_text("utf-8")
    assert "(umask 077; ray get-auth-token --generate)" in page


def test_several_jobs_share_the_cluster(config: Any) -> None:
    (serve,) = [line for line in config["head_start_ray_commands"] if "nohup fedsim serve" in line]
    most = re.match(r"FEDSIM_MAX_RUNNING=(\d+) ", serve)
    assert most is not None
    assert Settings.from_env({"FEDSIM_MAX_RUNNING": most[1]}).max_running == int(most[1]) > 1
    page = (FILE.parent / "docs" / "cluster.md").read_text("utf-8")
    assert most[0].strip() in page
    assert "resources.workers=" in page


def test_the_page_says_which_image_gpus_need(config: Any) -> None:
    page = (FILE.parent / "docs" / "cluster.md").read_text("utf-8")
    assert "aws ssm get-parameter" in page
    assert f"--region {config['provider']['region']}" in page
    # Ids of images differ from region to region, and go out of date.
    assert not re.search(r"\bami-[0-9a-f]{8,}", page + FILE.read_text("utf-8"))


def test_no_command_ends_the_shell_that_runs_it(config: Any) -> None:
    lists = [value for key, value in config.items() if key.endswith("_commands")]
    commands = [command for commands in lists for command in commands]
    killers = [command for command in commands if "pkill" in command]
    found = [(command, pattern) for command in killers for pattern in re.findall("pkill -f '(.+?)'", command)]
    assert len(found) == len(killers) == 1
    # Ray runs each by `bash -c '...'`: the command is among the arguments that the pattern is held against.
    assert not [pattern for command, pattern in found if re.search(pattern, command)]
    assert all(re.search(pattern, "/bin/python /bin/fedsim serve --ray-address auto") for _, pattern in found)
