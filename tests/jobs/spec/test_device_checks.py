"""The section `devices`: what it takes, what excludes it, and what depends on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsim.clock.devices import Devices
from fedsim.clock.fleets import FLEETS, Equal, FileRows, Phones
from fedsim.clock.policies import POLICIES, Deadline
from fedsim.errors import SpecError
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import resolve_spec
from jobs.spec.run_size import needs_data

CLASSES = {"name": "classes", "classes": [{"share": 1, "gflops": 2}, {"share": 3}]}


def spec_with(devices: Any, **fields: Any) -> JobSpec:
    clients = {"total": 20, "fraction": 0.2, **fields.pop("clients", {})}
    return parse_spec({"algorithm": "fedavg", "clients": clients, "devices": devices, **fields})


def test_without_the_section_there_is_no_clock(settings: Settings) -> None:
    spec = parse_spec({"algorithm": "fedavg"})
    assert resolve_spec(spec, settings).devices is None
    assert "devices" not in describe_experiment(spec)


def test_a_name_is_a_fleet(settings: Settings) -> None:
    assert resolve_spec(spec_with("phones"), settings).devices == Devices(fleet=Phones())
    assert "devices" in describe_experiment(spec_with("phones"))


@pytest.mark.parametrize("name", [name for name in FLEETS if name != "file"])
def test_every_fleet_is_made_from_its_name(name: str, settings: Settings) -> None:
    fleet = {"fleet": CLASSES} if name == "classes" else name
    devices = resolve_spec(spec_with(fleet), settings).devices
    assert devices is not None
    assert type(devices.fleet) is FLEETS[name]


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_made_from_its_name(name: str, settings: Settings) -> None:
    policy: Any = {"name": "deadline", "seconds": 3, "partial": True} if name == "deadline" else name
    policy = {"name": name, "seconds": 3} if name == "semi_asynchronous" else policy
    devices = resolve_spec(spec_with({"fleet": "equal", "policy": policy}), settings).devices
    assert devices is not None
    assert type(devices.policy) is POLICIES[name]
    assert name != "deadline" or devices.policy == Deadline(seconds=3, partial=True)


def test_parameters_reach_the_devices(settings: Settings) -> None:
    chosen = {"fleet": {"name": "equal", "gflops": 4}, "dropout": 0.1, "server_gflops": 50.0}
    expected = Devices(fleet=Equal(gflops=4), dropout=0.1, server_gflops=50.0)
    assert resolve_spec(spec_with(chosen), settings).devices == expected


@pytest.mark.parametrize(
    ("devices", "fields", "path", "text"),
    [
        ("phone", {}, "devices.fleet.name", "did you mean 'phones'"),
        ({"name": "phones"}, {}, "devices.fleet", "is missing"),
        ({"fleet": {"name": "phones", "link": "3g"}}, {}, "devices.fleet.link", "'4g'"),
        ({"fleet": {"name": "equal", "gflops": 0}}, {}, "devices.fleet.gflops", "at least 1e-06"),
        ({"fleet": {"name": "equal", "up_mbps": 5e-324}}, {}, "devices.fleet.up_mbps", "at least 1e-06"),
        ({"fleet": {"name": "equal", "latency_ms": 1e308}}, {}, "devices.fleet.latency_ms", "at most 1e+12"),
        ({"fleet": {"name": "phones", "link_spread": 1e308}}, {}, "devices.fleet.link_spread", "at most 10"),
        (
            {"fleet": {"name": "classes", "classes": [{"share": 5e-324}]}},
            {},
            "devices.fleet.classes.0.share",
            "at least 1e-06",
        ),
        ({"fleet": {"name": "classes", "classes": []}}, {}, "devices.fleet.classes", "has no class"),
        (
            {"fleet": {"name": "classes", "classes": [{"gflops": 2}]}},
            {},
            "devices.fleet.classes.0.share",
            "has to be given",
        ),
        ({"fleet": {"name": "file", "path": "/etc/passwd"}}, {}, "devices.fleet.path", "inside a data root"),
        ({"fleet": {"name": "file", "path": "no.csv"}}, {}, "devices.fleet.path", "found none of no.csv"),
        ({"fleet": {"name": "equal", "memory_gb": 1e-5}}, {}, "devices.fleet", "with 1e-05 GB"),
        ({"fleet": "equal", "policy": "deadline"}, {}, "devices.policy.seconds", "has to be given"),
        (
            {"fleet": "equal", "policy": "tiers"},
            {"clients": {"fraction": 0.5}},
            "devices.policy.count",
            "1 to 2",
        ),
        (
            {"fleet": "equal", "policy": "tiers"},
            {"algorithm": "fedcl"},
            "devices.policy",
            "chooses its clients",
        ),
        (
            {"fleet": "equal", "policy": {"name": "tiers", "count": 2, "probabilities": [1.0]}},
            {},
            "devices.policy.probabilities",
            "2 numbers",
        ),
        (
            {"fleet": "equal", "policy": "tiers"},
            {"clients": {"sampler": "oort"}},
            "devices.policy",
            "sampler",
        ),
        (
            {"fleet": "equal", "policy": "over_selection"},
            {"curriculum": {"clients": {"batches": "together"}}},
            "devices.policy",
            "batches: together plans whole ones",
        ),
        (
            {"fleet": "equal", "policy": {"name": "fedbuff", "buffer": 21}},
            {},
            "devices.policy.buffer",
            "allowed: 1 to 20",
        ),
        (
            {"fleet": "equal", "policy": {"name": "fedasync", "staleness": "linear"}},
            {},
            "devices.policy.staleness",
            "'hinge'",
        ),
        (
            {"fleet": "equal", "policy": {"name": "fedasync", "alpha": 1.5}},
            {},
            "devices.policy.alpha",
            "at most 1",
        ),
        (
            {"fleet": "equal", "policy": "fedbuff"},
            {"algorithm": "scaffold"},
            "devices.policy",
            "clients also send the payload control",
        ),
        (
            {"fleet": "equal", "policy": "fedbuff"},
            {"clients": {"sampler": "oort"}},
            "devices.policy",
            "chooses the clients of each round together",
        ),
        (
            {"fleet": "equal", "policy": "fedasync"},
            {"aggregation": "median"},
            "devices.policy",
            "no mean of the clients' models",
        ),
        (
            {"fleet": "equal", "policy": "fedasync"},
            {"evaluation": {"dissimilarity": True}},
            "devices.policy",
            "payload change",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    devices: Any, fields: dict[str, Any], path: str, text: str, settings: Settings
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec_with(devices, **fields), settings)
    assert path in [fault.path for fault in caught.value.errors]
    assert text in str(caught.value)


def test_a_file_in_a_data_root_is_read(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("gflops\n" + "3\n" * 20)
    spec = spec_with({"fleet": {"name": "file", "path": "fleet.csv"}})
    assert needs_data(spec)
    devices = resolve_spec(spec, replace(settings, data_roots=(tmp_path,))).devices
    assert devices is not None
    assert isinstance(devices.fleet, FileRows)
    assert devices.fleet.draw_profile(0, 19).gflops == 3
