"""The field `clients.sampler`: what it takes, what excludes it, and what depends on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsim.errors import SpecError
from fedsim.samplers import SAMPLERS, CohortSampling
from jobs.run.checkpoint_policy import describe_experiment
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec
from jobs.spec.resolve import make_algorithm, resolve_spec
from jobs.spec.run_size import needs_data


def spec_with(sampler: Any, **fields: Any) -> JobSpec:
    clients = {"total": 20, "fraction": 0.2, "sampler": sampler}
    return parse_spec({"algorithm": "fedavg", "clients": clients, **fields})


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "trace"])
def test_every_sampler_is_made_from_its_name(name: str, settings: Settings) -> None:
    spec = spec_with(name, curriculum={"clients": {}}, devices="phones")
    algorithm: Any = resolve_spec(spec, settings).algorithm
    assert isinstance(algorithm.base, CohortSampling) == (name != "uniform")
    assert describe_experiment(spec)["clients"].get("sampler", {"name": "uniform"})["name"] == name


def test_its_parameters_reach_it() -> None:
    algorithm: Any = make_algorithm(spec_with({"name": "power_of_choice", "candidates": 7}))
    assert algorithm.sampler.candidates == 7


@pytest.mark.parametrize(
    ("sampler", "fields", "path", "text"),
    [
        ("power_of_chioce", {}, "clients.sampler.name", "did you mean 'power_of_choice'"),
        ({"name": "oort", "decay": 2}, {}, "clients.sampler.decay", "of at most 1"),
        ({"name": "power_of_choice", "candidates": 3}, {}, "clients.sampler.candidates", "from 4"),
        (
            {"name": "power_of_choice", "candidates": 21},
            {},
            "clients.sampler.candidates",
            "to 20, all",
        ),
        ("day_night", {}, "clients.sampler", "set devices"),
        ("markov", {}, "clients.sampler", "set devices"),
        (
            {"name": "markov", "online_seconds": 5e-324},
            {"devices": "phones"},
            "clients.sampler.online_seconds",
            "at least 0.001",
        ),
        ({"name": "trace", "path": "a.csv"}, {}, "clients.sampler", "set devices"),
        (
            {"name": "trace", "path": "/etc/passwd"},
            {"devices": "phones"},
            "clients.sampler.path",
            "inside a data root",
        ),
        (
            {"name": "trace", "path": "no.csv"},
            {"devices": "phones"},
            "clients.sampler.path",
            "found none of no.csv",
        ),
        ("oort", {"algorithm": "fedcl"}, "clients.sampler", "fedcl chooses its clients itself"),
        ("power_of_choice", {"algorithm": "fedper"}, "clients.sampler", "has no global model"),
        ("oort", {"curriculum": {"clients": {"batches": "all"}}}, "clients.sampler", "use batches: one"),
    ],
)
def test_what_does_not_fit_is_refused(
    sampler: Any, fields: dict[str, Any], path: str, text: str, settings: Settings
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(spec_with(sampler, **fields), settings)
    assert [fault.path for fault in caught.value.errors] == [path]
    assert text in str(caught.value)


def test_a_trace_is_read_from_a_data_root(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "online.csv").write_text("client,start,end\n0,0,60\n20,0,60\n")
    rooted = replace(settings, data_roots=(tmp_path,))
    spec = spec_with({"name": "trace", "path": "online.csv"}, devices="phones")
    with pytest.raises(SpecError, match="client 20 in line 3") as caught:
        resolve_spec(spec, rooted)
    assert [fault.path for fault in caught.value.errors] == ["clients.sampler.path"]
    (tmp_path / "online.csv").write_text("client,start,end\n0,0,60\n19,0,60\n")
    algorithm: Any = resolve_spec(spec, rooted).algorithm
    assert algorithm.sampler.clients.tolist() == [0, 19]
    assert needs_data(spec)
