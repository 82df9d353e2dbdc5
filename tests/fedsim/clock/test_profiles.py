"""Profiles and fleets: seconds and energy by hand, and draws that depend on the address alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.clock.fleets import FLEETS, LINKS, PHONES, Classes, Equal, File, Fleet, Lognormal, Phones
from fedsim.clock.profiles import ClientWork, DeviceProfile, WorkSeconds
from fedsim.data.places import DataRoots
from fedsim.errors import SpecError

WORK = ClientWork(bytes_down=4_000_000, flops=30_000_000_000, bytes_up=2_000_000)
PHONE = DeviceProfile(
    gflops=10,
    down_mbps=16,
    up_mbps=4,
    latency_ms=500,
    joules_per_gflop=0.1,
    joules_per_mb_down=1,
    joules_per_mb_up=5,
)


def test_seconds_and_joules_by_hand() -> None:
    seconds = PHONE.measure_seconds(WORK)
    assert seconds == WorkSeconds(latency=0.5, download=2.0, training=3.0, upload=4.0)
    assert seconds.total == 9.5
    assert PHONE.measure_joules(WORK) == 4 + 3 + 10
    assert seconds.shares_done(0.2) == (0, 0, 0)
    assert seconds.shares_done(1.5) == (0.5, 0, 0)
    assert seconds.shares_done(4.0) == (1, 0.5, 0)
    assert seconds.shares_done(99.0) == (1, 1, 1)
    assert PHONE.measure_joules(WORK, seconds.shares_done(6.5)) == 4 + 3 + 0.25 * 10


def test_a_profile_without_values_takes_no_time() -> None:
    assert DeviceProfile().measure_seconds(WORK).total == 0
    assert DeviceProfile().measure_joules(WORK) == 0


@pytest.mark.parametrize(
    "fleet",
    [Phones(), Lognormal(gflops=5, up_mbps=3), Classes(classes=({"share": 1}, {"share": 2, "gflops": 3}))],
)
def test_a_profile_depends_on_seed_and_client_alone(fleet: Fleet) -> None:
    first = [fleet.draw_profile(3, client) for client in range(30)]
    assert [fleet.draw_profile(3, client) for client in reversed(range(30))] == first[::-1]
    assert [fleet.draw_profile(4, client) for client in range(30)] != first


def test_shares_of_classes() -> None:
    phones = [Phones(link_spread=0.0).draw_profile(0, client) for client in range(2000)]
    for share, phone in PHONES:
        assert sum(each.gflops == phone.gflops for each in phones) / 2000 == pytest.approx(share, abs=0.03)
    links = Counter(each.up_mbps for each in phones)
    assert set(links) == {link.up_mbps for link in LINKS.values()}
    assert min(links.values()) > 600


def test_an_efficiency_slows_phones_and_costs_energy() -> None:
    fast, slow = (Phones(link="4g", efficiency=share).draw_profile(0, 1) for share in (1.0, 0.1))
    assert slow.gflops == pytest.approx((fast.gflops or 0) / 10)
    assert slow.joules_per_gflop == pytest.approx(10 * fast.joules_per_gflop)
    assert slow.up_mbps == fast.up_mbps


def test_lognormal_speeds_have_the_median_and_the_spread() -> None:
    fleet = Lognormal(gflops=20, down_mbps=50, up_mbps=10, spread=0.5, link_spread=0.0)
    drawn = [fleet.draw_profile(0, client) for client in range(4000)]
    logs = np.log([each.gflops or 0 for each in drawn])
    assert np.exp(np.median(logs)) == pytest.approx(20, rel=0.03)
    assert logs.std() == pytest.approx(0.5, rel=0.03)
    assert {(each.down_mbps, each.up_mbps) for each in drawn} == {(50.0, 10.0)}
    assert Lognormal(spread=0.0).draw_profile(0, 1) == Equal().draw_profile(0, 1)


def test_links_have_the_power_model_of_the_docs() -> None:
    """Huang et al.: P = alpha t + beta in mW, at throughput t in Mbps; 8 P / t is in J per 1,000 MB."""
    lte, wifi = (51.97, 438.39, 1288.04), (137.01, 283.17, 132.86)
    for name, (down, up, beta) in {"4g": lte, "5g": lte, "wifi": wifi}.items():
        link = LINKS[name]
        received = 8 * (down + beta / (link.down_mbps or 1)) / 1e3
        assert link.joules_per_mb_down == pytest.approx(received, abs=0.01)
        sent = 8 * (up + beta / (link.up_mbps or 1)) / 1e3
        assert link.joules_per_mb_up == pytest.approx(sent, abs=0.01)


def read(tmp_path: Path, text: str, clients: int = 2) -> Fleet:
    (tmp_path / "fleet.csv").write_text(text)
    return File(path="fleet.csv").prepare(DataRoots((tmp_path,)), clients)


def test_a_file_has_a_line_for_each_client(tmp_path: Path) -> None:
    fleet = read(tmp_path, "gflops,latency_ms\n12.5,40\n,0\n")
    assert fleet.draw_profile(0, 0) == DeviceProfile(gflops=12.5, latency_ms=40)
    assert fleet.draw_profile(0, 1) == DeviceProfile(gflops=None, latency_ms=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown column ''"),
        ("gflop\n1\n2\n", "unknown column 'gflop'"),
        ("gflops,gflops\n1,1\n2,2\n", "a column twice"),
        ("gflops\n1\n", "has 1 clients, and the run 2"),
        ("gflops\n1\n2\n3\n", "has 3 clients, and the run 2"),
        ("gflops\n1\n0\n", "'0' as gflops of client 1"),
        ("latency_ms\n1\nnan\n", "'nan' as latency_ms of client 1"),
        ("gflops,latency_ms\n1,1\n2\n", "1 cells in the line of client 1"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(tmp_path, text)


def test_every_fleet_has_a_summary() -> None:
    kinds: list[Any] = list(FLEETS.values())
    assert all(kind.__doc__.splitlines()[0].endswith(".") for kind in kinds)


def test_the_least_memory_of_a_fleet(tmp_path: Path) -> None:
    assert Phones().find_least_memory() == 2
    assert Equal().find_least_memory() is None
    assert Lognormal(memory_gb=3).find_least_memory() == 3
    classes: Any = ({"share": 1}, {"share": 1, "memory_gb": 6}, {"share": 1, "memory_gb": 5})
    assert Classes(classes=classes).find_least_memory() == 5
    assert read(tmp_path, "gflops,memory_gb\n1,\n1,4\n").find_least_memory() == 4
    assert read(tmp_path, "gflops\n1\n1\n").find_least_memory() is None
