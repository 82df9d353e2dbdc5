"""What generated features and made-up inputs cost, by hand: two operations for a product and its addition."""

from __future__ import annotations

import pytest

from fedsim.algorithms import KDIA, FedAvg, FedCL, FedCOG, FedGen
from fedsim.core import Algorithm, LocalTraining
from fedsim.models import make_net
from fedsim.techniques.generators import feature_flops, make_generator
from fedsim.training.effort import CostMeter
from tests.fedsim.federations import federation


def flops_of(method: Algorithm, *, round: int = 1) -> int:
    """Of client 2, with 11 examples: in one epoch of batches of 8, two steps; an mlp of 12 -> 5 -> 4."""
    population = federation(hidden=5, local=LocalTraining(epochs=1, batch_size=8))
    ctx = population.context(round)
    return CostMeter(method, population).training_cost(ctx, method.init_server_state(ctx), [2]).flops


PLAIN = 11 * (2 * (60 + 20) + 2 * (60 + 20) + 2 * 20)
"""Forward, backward for all weights, and for the inputs of the second layer."""

FLAT = 2 * ((4 + 8) * 256 + 256 * 5)
"""A forward pass of a flat generator: label and 8 numbers of noise -> 256 -> 5 features."""


def test_generated_features_count() -> None:
    """Each is made by one pass of the generator; then the head, of 5 x 4, forward and for its weights.

    KDIA has one for every example. FedGen has as many in each step as it says, and one for every example from
    which nothing flows back. FedCL has a full batch of them in each step, asked for with one number more, and
    one pass of the model over the examples for their difficulty.
    """
    assert flops_of(FedAvg()) == PLAIN == flops_of(KDIA(lambda_kd=0.0, lambda_gen=0.0))
    assert flops_of(KDIA(lambda_kd=0.0, generator_noise=8)) == PLAIN + 11 * (FLAT + 2 * 40)
    assert flops_of(KDIA(generator_noise=8)) == PLAIN + 11 * (FLAT + 2 * 40) + 11 * 2 * (60 + 20)
    assert flops_of(KDIA(start_round=2)) == PLAIN
    drawn, told = 2 * 3 * (FLAT + 2 * 40), 11 * (FLAT + 40)
    few = {"generator_noise": 8, "samples": 3}
    assert flops_of(FedGen(**few)) == PLAIN + drawn + told
    assert flops_of(FedGen(**few, beta=0.0)) == PLAIN + drawn
    assert flops_of(FedGen(**few, alpha=0.0)) == PLAIN + told
    assert flops_of(FedGen(**few), round=0) == PLAIN
    drawn, scored = 2 * 8 * (FLAT + 2 * 256 + 2 * 40), 11 * 2 * (60 + 20)
    assert flops_of(FedCL(generator_noise=8)) == PLAIN + drawn + scored


def test_inputs_that_are_made_up_count() -> None:
    """Three steps move 6 inputs by two models, forward and back to the input; two steps learn from 8 each."""
    each = 2 * (60 + 20) + 2 * (60 + 20)
    learnt = 2 * (60 + 20) + 2 * (60 + 20) + 2 * 20
    method = FedCOG(start_round=1, samples=6, descent=3)
    assert flops_of(method) == PLAIN + 2 * 6 * 3 * each + 2 * 8 * learnt
    assert flops_of(method, round=0) == PLAIN


def test_counting_does_not_ask_for_the_difficulty_that_comes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedCL sorts all clients' draws once a round, not once for each size of client besides."""
    population = federation()
    method = FedCL(generator_noise=8, levels=())
    ctx = population.context(1)
    state = method.init_server_state(ctx)
    cost = CostMeter(method, population).training_cost(ctx, state, range(10))
    monkeypatch.setattr(FedCL, "difficulty_quantiles", lambda *_: pytest.fail("it was asked for"))
    assert CostMeter(method, population).training_cost(ctx, state, range(10)) == cost


def test_maps_that_are_generated_count() -> None:
    """moon_cnn's: the classifier is all behind 16x5x5 maps, the generator 1x1 -> 2x2 -> 3x3 -> 4x4 -> 5x5."""
    net = make_net("moon_cnn", input_shape=(3, 32, 32), num_classes=10)
    made = make_generator(net, (3, 32, 32), 10, noise=100, hidden=1, output="sigmoid")
    layers = [(110, 1, 512), (512, 4, 256), (256, 9, 128), (128, 16, 16)]
    generator = 2 * sum(before * places * after * 4 for before, places, after in layers)
    linear = [(400, 120), (120, 84), (84, 84), (84, 256), (256, 10)]
    forward = 2 * sum(before * after for before, after in linear)
    assert feature_flops(net, made, trains=False) == generator + forward
    assert feature_flops(net, made) == generator + 3 * forward - 2 * 400 * 120
