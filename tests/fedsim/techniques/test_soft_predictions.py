"""Temperatures, kept entries, and the loss terms of ACE-pFL, each computed anew in NumPy."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsim.algorithms import AcePFL
from fedsim.base.parameters import list_parameters
from fedsim.core import Batch
from fedsim.core.public_set import ROWS
from fedsim.techniques.soft_predictions import (
    Curve,
    Temperature,
    add_prediction_noise,
    top_k,
)
from fedsim.techniques.soft_targets import compare_soft_predictions, soft_target_loss, soften_logits
from fedsim.techniques.triple_distillation import TripleDistillation


@pytest.mark.parametrize(
    ("round", "expected"),
    [(1, 39.93), (2, 40), (99, 40), (100, 39.97), (101, 44.9), (200, 44.93), (201, 49.87), (300, 49.9)],
)
def test_the_papers_temperature(round: int, expected: float) -> None:
    assert Temperature(rounds=300)(round) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("round", "expected"), [(30, 44.97), (99, 54.9), (100, 49.9), (300, 84.67)])
def test_the_temperature_as_printed(round: int, expected: float) -> None:
    assert Temperature(rounds=300, stage="t0")(round) == pytest.approx(expected, abs=0.01)


def test_the_other_curves_end_where_the_papers_does() -> None:
    curves = {name: Temperature(curve=name, rounds=300) for name in ("f1", "f2", "f3", "f4", "f5")}
    for name, curve in curves.items():
        assert curve(300) == pytest.approx(curves["f1"](300)), name
    steps = {name: np.diff([curve(r) for r in range(1, 301)]) for name, curve in curves.items()}
    assert (np.diff(steps["f2"]) < 1e-12).all()
    assert (np.diff(steps["f3"]) > -1e-12).all()
    assert steps["f5"] == pytest.approx(np.full(299, (curves["f1"](300) - 30) / 300))
    # f4 within a stage rises faster and faster, from where f1 begins it to where f1 ends it
    assert (np.diff(steps["f4"][:98]) > 0).all()
    assert curves["f4"](200) == pytest.approx(curves["f1"](200))
    assert curves["f4"](150) == pytest.approx(30 + 4.9665 + 5 * (1 + np.expm1(2.5) / np.expm1(5)), abs=1e-3)
    assert curves["f2"](60) == pytest.approx(30 + 19.8997 * np.tanh(0.5) / np.tanh(2.5), abs=1e-3)
    assert curves["f3"](60) == pytest.approx(30 + 19.8996 * np.expm1(1) / np.expm1(5), abs=1e-4)
    assert {Temperature(curve="fixed", rounds=300)(r) for r in (1, 150, 300)} == {30}


@pytest.mark.parametrize("curve", get_args(Curve))
def test_every_curve_is_finite_at_the_ends_of_k2(curve: Curve) -> None:
    (limits,) = (get_args(each.kind)[1] for each in list_parameters(AcePFL) if each.name == "k2")
    for k2 in (limits.minimum, limits.maximum):
        shape = Temperature(curve=curve, k2=k2, rounds=10, r0=4)
        assert np.isfinite([shape(round) for round in range(1, 11)]).all()


def logits(seed: int, rows: int = 6, classes: int = 5) -> Tensor:
    drawn = np.random.default_rng(seed).normal(size=(rows, classes)) * 3
    return torch.from_numpy(drawn).requires_grad_()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("k", [1, 3, 5, 9])
def test_top_k_keeps_exactly_k_and_sums_to_one(k: int) -> None:
    soft = soften_logits(logits(0).detach(), 2.0)
    kept = top_k(soft, k)
    assert (torch.count_nonzero(kept, -1) == min(k, 5)).all()
    assert torch.allclose(kept.sum(-1), torch.ones(6, dtype=torch.float64))
    for row, mine in zip(softmax(logits(0).detach().numpy() / 2), kept.numpy(), strict=True):
        largest = np.argsort(row)[::-1][:k]
        expected = np.zeros(5)
        expected[largest] = row[largest] / row[largest].sum()
        assert mine == pytest.approx(expected)
    ties = top_k(torch.full((1, 5), 0.2), 2)
    assert torch.count_nonzero(ties) == 2


def test_what_was_not_sent_can_share_the_rest() -> None:
    soft = soften_logits(logits(0).detach(), 2.0)
    found = top_k(soft, 3, "even")
    for row, mine in zip(soft.numpy(), found.numpy(), strict=True):
        order = np.argsort(row)[::-1]
        expected = row.copy()
        expected[order[3:]] = row[order[3:]].sum() / 2
        assert mine == pytest.approx(expected)
    assert torch.allclose(top_k(soft, 5, "even"), soft)


def test_of_several_labels_the_most_decided_travel() -> None:
    soft = soften_logits(torch.tensor([[3.0, -4.0, 0.1, -0.2]]), 1.0, several_labels=True)
    kept = top_k(soft, 2, several_labels=True)
    expected = 1 / (1 + np.exp([-3.0, 4.0]))
    assert kept[0].numpy() == pytest.approx([*expected, 0.5, 0.5])


def test_noisy_predictions_are_probabilities() -> None:
    soft = soften_logits(logits(1).detach(), 1.0)
    found = add_prediction_noise(soft, torch.from_numpy(np.random.default_rng(0).laplace(size=(6, 5))))
    assert (found > 0).all()
    assert torch.allclose(found.sum(-1), torch.ones(6, dtype=torch.float64))
    assert torch.allclose(add_prediction_noise(soft, torch.zeros_like(soft)), soft)
    several = add_prediction_noise(
        torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.1]]), several_labels=True
    )
    assert several[0].tolist() == pytest.approx([1.0, 0.2])


def kl(p: np.ndarray, q: np.ndarray) -> float:
    parts = np.where(p > 0, p * (np.log(np.where(p > 0, p, 1)) - np.log(q)), 0)
    return float(parts.sum(-1).mean())


def test_the_four_terms_are_the_papers_and_each_but_the_literal_one_teaches() -> None:
    temperature, student = 7.0, logits(2)
    said = top_k(soften_logits(logits(3).detach(), temperature), 3)
    best = soften_logits(logits(4).detach(), temperature)
    past = (said + top_k(soften_logits(logits(5).detach(), temperature), 3)) / 2
    y, rows = torch.tensor([0, 4, 2]), torch.tensor([5, 0, 3])
    batch = Batch(torch.zeros(3, 1), y, noise={ROWS: rows})
    teachers = {"global": said, "best": best, "past": past}
    mine = student[rows]
    triple = TripleDistillation(alphas=(0.4, 0.3, 0.2, 0.1))
    terms = triple.terms(mine, batch, teachers, temperature)

    plain = student.detach().numpy()[rows.numpy()]
    soft = softmax(plain / temperature)
    expected = {
        "ce": 0.4 * -np.log(softmax(plain)[np.arange(3), y.numpy()]).mean(),
        "kd": 0.3 * 49 * kl(said.numpy()[rows.numpy()], soft),
        "sd": 0.2 * 49 * kl(best.numpy()[rows.numpy()], soft),
        "gd": 0.1 * 49 * kl(past.numpy()[rows.numpy()], soft),
    }
    assert {name: float(term.detach()) for name, term in terms.items()} == pytest.approx(expected)
    gradients = {
        "ce": 0.4 / 3 * (softmax(plain) - np.eye(5)[y.numpy()]),
        "kd": 0.3 * 7 / 3 * (soft - said.numpy()[rows.numpy()]),
        "sd": 0.2 * 7 / 3 * (soft - best.numpy()[rows.numpy()]),
        "gd": 0.1 * 7 / 3 * (soft - past.numpy()[rows.numpy()]),
    }
    for name, term in terms.items():
        (gradient,) = torch.autograd.grad(term, student, retain_graph=True)
        np.testing.assert_allclose(gradient.numpy()[rows.numpy()], gradients[name], atol=1e-12)

    literal = TripleDistillation(alphas=(0.4, 0.3, 0.2, 0.1), l_gd="literal")
    constant = literal.terms(mine, batch, teachers, temperature)["gd"]
    clamped = np.maximum(past.numpy()[rows.numpy()], 1e-6)
    clamped /= clamped.sum(-1, keepdims=True)
    assert float(constant) == pytest.approx(4.9 * kl(said.numpy()[rows.numpy()], clamped))
    assert not constant.requires_grad


def test_several_labels_are_compared_one_by_one() -> None:
    student, teacher = logits(8), top_k(soften_logits(logits(9).detach(), 2.0, True), 3, several_labels=True)
    loss = 4 * soft_target_loss(teacher, student, 2.0, several_labels=True)
    p, q = teacher.numpy(), 1 / (1 + np.exp(-student.detach().numpy() / 2))
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert float(loss.detach()) == pytest.approx(4 * expected.mean())
    between = compare_soft_predictions(teacher, teacher, 2.0, several_labels=True)
    assert float(between) == pytest.approx(0, abs=1e-9)
