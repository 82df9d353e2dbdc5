"""Files for people and for platforms: the citation, the forms for issues, the manifests for Kubernetes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
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


NUMBER = {"type": "integer", "minimum": 0}
STARTS = {"type": "object", "additionalProperties": {"type": "string"}}
POD = {"type": "object"}
HEAD = {"serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}}
WORKERS = {"groupName": {"type": "string"}, "replicas": NUMBER, "minReplicas": NUMBER, "maxReplicas": NUMBER}


def make_closed_object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


RAY_CLUSTER = make_closed_object(
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=make_closed_object(name={"type": "string"}),
    spec=make_closed_object(
        rayVersion={"type": "string"},
        authOptions=make_closed_object(mode={"enum": ["disabled", "token"]}),
        headGroupSpec=make_closed_object(**HEAD, rayStartParams=STARTS, template=POD),
        workerGroupSpecs={
            "type": "array",
            "items": make_closed_object(**WORKERS, rayStartParams=STARTS, template=POD),
        },
    ),
)
"""The fields of the file, with their types in KubeRay: ray-operator/apis/ray/v1/raycluster_types.go."""


def test_the_cluster_has_the_fields_of_the_operator(manifests: dict[str, Any]) -> None:
    jsonschema.validate(manifests["RayCluster"], RAY_CLUSTER)
    spec = manifests["RayCluster"]["spec"]
    assert f"\nray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text("utf-8")
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_pods_and_services_fit_the_schema_of_kubernetes(manifests: dict[str, Any]) -> None:
    """Strictly: a field that Kubernetes does not know is an error."""
    schemas = pytest.importorskip("kubernetes_validate", reason="the extra 'dev' is not installed")
    version = schemas.latest_version()
    for kind in manifests.keys() - {"RayCluster"}:
        schemas.validate(manifests[kind], version, strict=True)
    for name, pod in pods(manifests).items():
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
        schemas.validate(whole, version, strict=True)
        with pytest.raises(schemas.ValidationError):
            schemas.validate({**whole, "spec": {**pod, "volume": []}}, version, strict=True)


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


def test_jobs_look_for_weights_where_the_checks_do(manifests: dict[str, Any]) -> None:
    found = pods(manifests)
    homes = [
        {
            each["name"]: each.get("value")
            for each in found[name]["containers"][0]["env"]
            if "HOME" in each["name"]
        }
        for name in ("ray-head", "api")
    ]
    assert homes[0] == homes[1]


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
