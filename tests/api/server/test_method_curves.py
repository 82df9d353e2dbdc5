"""Values that an algorithm reports, as `GET /jobs/{id}/method-curves` describes them."""

from __future__ import annotations

from typing import Any

import httpx

from api.reports.method_curves import find_clusters, find_method_changes, find_method_curves
from jobs.store.records import RoundRecord
from tests.api.said import PHASE_CURVES, PHASE_MARKS, PHASES
from tests.api.service import JOBS, RunningService, a_round


def reporting(said: list[dict[str, Any]]) -> list[RoundRecord]:
    """Make one record for each of these reports."""
    return [a_round(n).model_copy(update={"method": method}) for n, method in enumerate(said, start=1)]


def test_the_service_describes_curves_changes_and_latest_values(
    http: httpx.Client, service: RunningService
) -> None:
    job = service.running(rounds=9)
    empty = http.get(f"{JOBS}/{job.id}/method-curves").json()
    assert empty == {"rounds": [], "curves": [], "changes": [], "values": [], "clusters": None}
    for record in reporting(PHASES):
        service.store.add_round(job.id, record)
    told = http.get(f"{JOBS}/{job.id}/method-curves").json()
    assert told["rounds"] == [1, 2, 3, 4]
    curves = {
        curve["name"]: [(line["title"], line["values"]) for line in curve["lines"]]
        for curve in told["curves"]
    }
    assert curves == PHASE_CURVES
    changes = [(change["round"] - 1, change["text"], change["lasting"]) for change in told["changes"]]
    assert changes == PHASE_MARKS
    assert told["values"][0] == {"title": "phase", "value": "2 of 2"}
    assert {"title": "frozen clients", "value": 0} in told["values"]
    assert http.get(f"{JOBS}/nobody/method-curves").status_code == 404


def test_a_value_that_changes_in_every_round_gives_no_changes() -> None:
    said = [
        {"open_blocks": ["fc1"] if number < 30 else ["fc1", "fc2"], "seen": [number]} for number in range(40)
    ]
    first, second = "open blocks: fc1", "open blocks: fc1, fc2"
    assert find_method_changes(reporting(said)) == [(0, first, first), (30, second, second)]
    assert find_method_curves(reporting(said)) == {}
    flags = [{"b": False}, {}, {"b": False}, {"b": True}]
    assert find_method_changes(reporting(flags))[-1] == (3, "b: true", "b: true")
    # A constant gives no curve; a list without a count beside it is counted.
    grown = [{"pace": {"a": 0.8, "share": number / 10, "times": [1] * number}} for number in range(3)]
    assert find_method_curves(reporting(grown)) == {
        "pace.share": [("pace: share", [0, 0.1, 0.2])],
        "pace.times": [("number of pace: times", [0, 1, 2])],
    }


def test_clusters_are_found_in_a_list_and_in_a_mapping(http: httpx.Client, service: RunningService) -> None:
    assert find_clusters(reporting([{"clusters": [0, 1, 1]}, {"temperature": 2.0}]), 3) == [0, 1, 1]
    assert find_clusters(reporting([{"inner": {"cluster_of": {"0": 1, "1": 0}}}]), 2) == [1, 0]
    # The sizes of clusters are fewer than the clients.
    assert find_clusters(reporting([{"cluster_sizes": [2, 1], "clusters": 2}]), 3) is None
    job = service.running(clients={"total": 3, "fraction": 1.0})
    service.store.add_round(job.id, reporting([{"clusters": [2, 0, 2]}])[0])
    assert http.get(f"{JOBS}/{job.id}/method-curves").json()["clusters"] == [2, 0, 2]
