"""Bytes of a round, models against predictions: the table in the results, and what a run is charged."""

from __future__ import annotations

import pytest

from benchmarks.places import PAGES
from benchmarks.traffic import SETTINGS, Setting, round_bytes, section
from fedsim.algorithms import AcePFL, FedAvg, KTpFL, Scaffold
from fedsim.core import Algorithm
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from tests.fedsim.federations import federation

CIFAR = {setting.name: setting for setting in SETTINGS}["CIFAR-10"]


def counted(setting: Setting) -> dict[str, int]:
    return round_bytes(setting.net(), setting.public, setting.classes, setting.top_k)


def test_the_papers_cifar10_round() -> None:
    """ResNet-50 has 23,520,842 parameters and 53,120 buffers; 4 bytes each, 20 clients, both directions.

    SCAFFOLD's controls have no buffers. Of 6,000 public examples 5 entries each: 6,000 x 5 x 8 bytes.
    """
    assert counted(CIFAR) == {
        "FedAvg": 40 * 4 * (23_520_842 + 53_120),
        "SCAFFOLD": 40 * 4 * (2 * 23_520_842 + 53_120),
        "predictions": 40 * 4 * 6_000 * 10,
        "ACE-pFL": 40 * 8 * 6_000 * 5,
    }
    assert counted(CIFAR)["FedAvg"] / counted(CIFAR)["ACE-pFL"] == pytest.approx(392.9, abs=0.1)


@pytest.mark.slow
def test_the_page_has_the_table_as_it_is_computed() -> None:
    block = f"<!-- table ace-traffic -->\n{section()}\n<!-- end of table ace-traffic -->"
    assert block in (PAGES / "ace-pfl.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (FedAvg(), "FedAvg"),
        (Scaffold(), "SCAFFOLD"),
        (KTpFL(public_size=40), "predictions"),
        (AcePFL(top_k=3, clusters=2), "ACE-pFL"),
    ],
)
def test_a_run_is_charged_the_same(algorithm: Algorithm, name: str) -> None:
    """In its second round, when the server has something to send, whatever the method."""
    population = federation([6] * 4, rounds=2)
    _, second = simulate(algorithm, population, SerialPool(algorithm, population), personal="never")
    expected = round_bytes(population.nets[0], 40, 4, 3, clients=4)[name]
    assert second.traffic.down + second.traffic.up == expected
