"""constraints.txt, held against what the packages of the cloud ask for."""

from __future__ import annotations

import importlib
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

ASKED = {
    "boto3": ["botocore<1.44.0,>=1.43.117", "jmespath<2.0.0,>=0.7.1", "s3transfer<0.20.0,>=0.19.0"],
    "botocore": ["jmespath<2.0.0,>=0.7.1", "python-dateutil<3.0.0,>=2.1", "urllib3!=2.2.0,<3,>=1.25.4"],
    "aiobotocore": ["botocore<1.43.118,>=1.43.115", "aiohttp<4.0.0,>=3.14.0", "wrapt<3.0.0,>=1.10.10"],
    "pyopenssl": ["cryptography<51,>=49.0.0"],
    "s3fs": ["aiobotocore<4.0.0,>=2.19.0", "fsspec<2026.9.1,>=2026.9.0"],
}
"""What the pinned versions say that they need, so that it is known where they are not installed."""


def pins() -> dict[str, str]:
    """The versions by canonical name."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("package", ASKED)
def test_the_pins_are_what_the_packages_of_the_cloud_need(package: str) -> None:
    pinned = pins()
    assert package in pinned
    for text in ASKED[package]:
        asked = Requirement(text)
        assert asked.specifier.contains(pinned[canonicalize_name(asked.name)]), (package, text)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in extras for text in extras[extra])]
    asked = [Requirement(text) for text in texts]
    pinned = pins()
    assert not [str(each) for each in asked if canonicalize_name(each.name) not in pinned]
    wrong = [str(each) for each in asked if not each.specifier.contains(pinned[canonicalize_name(each.name)])]
    assert not wrong


@pytest.mark.parametrize(
    ("package", "lacking", "having"),
    [
        ("torch", "2.8", "2.9"),  # has no `torch.backends.cuda.matmul.fp32_precision`
        ("torchvision", "0.23", "0.24"),  # every torch has a torchvision of its own
        ("ray", "2.51.1", "2.52.0"),  # no `AuthenticationError`, and no token
        ("pydantic", "2.11.10", "2.12.0"),  # no `Field(exclude_if=...)`
        ("fastapi", "0.116.2", "0.117.1"),  # refuses status 204 with `-> None`
        ("wandb", "0.19.9", "0.19.10"),  # no `reinit="create_new"`
    ],
)
def test_no_version_is_taken_that_lacks_what_fedsim_uses(package: str, lacking: str, having: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["wandb"]]
    (asked,) = (each for each in map(Requirement, texts) if each.name == package)
    assert (asked.specifier.contains(lacking), asked.specifier.contains(having)) == (False, True)


def test_what_is_installed_for_the_cloud_can_be_imported() -> None:
    for name in ("boto3", "OpenSSL", "s3fs"):
        pytest.importorskip(name)
    for name in ("boto3", "OpenSSL", "s3fs", "urllib3.contrib.pyopenssl"):
        importlib.import_module(name)


@pytest.mark.parametrize("package", ASKED)
def test_the_installed_packages_need_nothing_else(package: str) -> None:
    try:
        said = requires(package) or []
    except PackageNotFoundError:
        pytest.skip(f"{package}: the extra 'aws' is not installed")
    needed = [Requirement(text) for text in said]
    needed = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    pinned = pins()
    versions = {each: pinned[canonicalize_name(each.name)] for each in needed}
    wrong = [str(each) for each, version in versions.items() if not each.specifier.contains(version)]
    assert not wrong
