"""A part of a method that begins after the last round is a warning."""

from __future__ import annotations

import pytest

from fedsim.algorithms import CFL, KDIA, FedCOG
from fedsim.core import Algorithm
from fedsim.engine.initial_state import make_initial_state
from tests.fedsim.federations import federation


@pytest.mark.parametrize("algorithm", [FedCOG(start_round=4), CFL(start_round=4), KDIA(start_round=4)])
def test_a_start_after_the_last_round_is_a_warning(
    algorithm: Algorithm, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of rounds is that of the run, so that a run with more rounds has no warning."""
    make_initial_state(algorithm, federation(rounds=5))
    assert not caplog.messages
    make_initial_state(algorithm, federation(rounds=4))
    (message,) = caplog.messages
    assert message.startswith("algorithm.start_round is 4 and the run has 4 rounds, so")
    assert message.endswith("; give a smaller start_round, or more rounds")


@pytest.mark.parametrize("algorithm", [FedCOG(lambda_kd=0), CFL(eps_1=0), KDIA(lambda_kd=0, lambda_gen=0)])
def test_a_method_that_is_fedavg_anyway_has_no_warning(
    algorithm: Algorithm, caplog: pytest.LogCaptureFixture
) -> None:
    make_initial_state(algorithm, federation(rounds=4))
    assert not caplog.messages
