"""Files for people and for platforms: the citation, the forms for issues, the manifests for Kubernetes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.settings import Settings
from tests.project.test_deployment import understood, variables_of_the_code

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
KUBERAY = ROOT / "docs" / "kuberay"


def test_the_citation_has_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == VERSION


@pytest.mark.parametrize("name", ["bug", "idea", "method"])
def test_a_form_has_what_github_asks_for(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text("utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all(part["attributes"]["label"] for part in fields)


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """All objects of both files, by their kinds."""
    texts = [(KUBERAY / name).read_text("utf-8") for name in ("raycluster.yaml", "service.yaml")]
    return {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}


def pods(manifests: dict[str, Any]) -> dict[str, Any]:
    cluster = manifests["RayCluster"]["spec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"], manifests["Deployment"]["spec"]]
    return {each["template"]["spec"]["containers"][0]["name"]: each["template"]["spec"] for each in groups}


def test_the_cluster_has_the_fields_of_the_operator(manifests: dict[str, Any]) -> None:
    """The required fields of `RayClusterSpec` in ray-operator/apis/ray/v1/raycluster_types.go of KubeRay."""
    cluster = manifests["RayCluster"]
    assert cluster["apiVersion"] == "ray.io/v1"
    spec = cluster["spec"]
    assert set(spec) == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert f"\nray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text("utf-8")
    needed = {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert all(needed <= set(group) for group in spec["workerGroupSpecs"])
    starts = [group["rayStartParams"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert all(isinstance(value, str) for start in starts for value in start.values())
    assert starts[0]["num-cpus"] == "0"


def test_every_pod_is_locked_and_has_the_image_of_this_version(manifests: dict[str, Any]) -> None:
    user = re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    for name, pod in pods(manifests).items():
        [container] = pod["containers"]
        assert container["image"] == f"fedsim:{VERSION}"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert [str(pod["securityContext"]["runAsUser"])] == user
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        assert {"livenessProbe", "readinessProbe"} <= set(container)
        assert "memory" in container["resources"]["limits"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_names_commands_and_variables_belong_together(manifests: dict[str, Any]) -> None:
    api = pods(manifests)["api"]["containers"][0]
    understood(api["args"])
    understood(pods(manifests)["ray-head"]["containers"][0]["readinessProbe"]["exec"]["command"])
    given = {each["name"]: each.get("value", "x") for each in api["env"]}
    known = variables_of_the_code() | {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "HF_HOME", "TORCH_HOME"}
    assert set(given) <= known
    settings = Settings.from_env({**given, "FEDSIM_TOKEN": "a" * 32, "FEDSIM_DATABASE_URL": "sqlite:///x.db"})
    assert settings.ray_address == f"http://{manifests['RayCluster']['metadata']['name']}-head-svc:8265"
    claim = manifests["PersistentVolumeClaim"]["metadata"]["name"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods(manifests).values()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == [claim, claim]
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == labels
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    secrets = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for pod in pods(manifests).values()
        for each in pod["containers"][0]["env"]
        if "valueFrom" in each and each["valueFrom"]["secretKeyRef"]["name"] == "fedsim-service"
    }
    assert all(f"--from-literal={key}=" in page for key in secrets)
