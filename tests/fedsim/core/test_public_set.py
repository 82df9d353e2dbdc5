"""What methods on a public set build on: the set, means over all architectures, charges, reserves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg
from fedsim.base import rng, tree, wire
from fedsim.base.tree import Tree
from fedsim.clients.population import Population
from fedsim.clients.sampling import count_apart, draw_apart
from fedsim.core import (
    Algorithm,
    ClientTask,
    ClientUpdate,
    Context,
    LocalTraining,
    ReducedUpdates,
    Reduction,
    ServerState,
)
from fedsim.core.capabilities import HeldOutExamples, PayloadAccounting, PersonalModels, RoundNoise
from fedsim.core.public_set import ROWS
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import simulate
from fedsim.errors import DataError
from fedsim.models import make_net
from fedsim.training.local_loop import run_sgd
from fedsim.training.losses import cross_entropy
from tests.fedsim.federations import federation


@dataclass(frozen=True, kw_only=True)
class Told(Algorithm, HeldOutExamples, PayloadAccounting, PersonalModels, RoundNoise):
    """Clients train on the public set and send three entries of each row of what they say of it."""

    uploads: ClassVar[Mapping[str, Reduction]] = {"said": Reduction.OVERALL_MEAN, "each": Reduction.GATHER}
    free_uploads: ClassVar = frozenset({"each"})
    heterogeneous: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False
    needs_public_set: ClassVar[bool] = True

    def init_server_state(self, ctx: Context) -> ServerState:
        return ServerState(params={})

    def broadcast(self, ctx: Context, state: Any) -> Mapping[str, Tree]:
        return {"said": state.params}

    def held_out_share(self, ctx: Context) -> float:
        return 0.25

    def draw_round_noise(self, ctx: Context, rng: np.random.Generator) -> Tree:
        return {"number": rng.normal(size=2)}

    def count_bytes(self, ctx: Context, name: str, payload: Tree) -> int:
        return sum(wire.sparse_bytes(leaf) for _, leaf in tree.leaves(payload))

    def train_client(self, ctx: Context, task: ClientTask) -> ClientUpdate:
        public, net = ctx.require_public_set(), ctx.net
        steps = public.shuffle_batches(ctx.seed, ctx.round, epochs=2, batch_size=16)
        trained = run_sgd(
            ctx,
            task._replace(batches=steps),
            net.cached_init(ctx.seed),
            lambda params, batch: cross_entropy(net(params, batch.x), batch),
        )
        said = public.predict_examples(lambda x: net(trained.params, x))
        kept = said.clone()
        kept[:, 3:] = 0
        assert task.held_out is not None
        examples = task.num_examples + len(task.held_out)
        metrics = {"apart": len(task.held_out), "held": len(task.examples), "examples": examples}
        metrics["drawn"] = float(task.round_noise["number"][0])
        return ClientUpdate({"said": {"logits": kept}, "each": {"logits": kept}}, {}, metrics)

    def aggregate(self, ctx: Context, state: Any, reduced: ReducedUpdates) -> Any:
        entries = [entry["logits"].double() for entry in reduced["each"]]
        mean = np.average(np.stack([e.numpy() for e in entries]), axis=0, weights=reduced.weights)
        np.testing.assert_allclose(reduced["said"]["logits"].numpy(), mean, rtol=1e-12)
        return replace(state, params=tree.map(lambda x: x.float(), reduced["said"]))

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        return ctx.net.cached_init(ctx.seed)


def mixed() -> Population:
    population = federation(rounds=2)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    return replace(population, nets=tuple(make_net(name, **shape) for name in ("mlp", "logistic")))


def test_a_mean_over_all_architectures_of_what_is_said_of_the_public_set() -> None:
    population = mixed()
    first, second = simulate(Told(), population, SerialPool(Told(), population), personal="never")
    # 40 public examples, three entries of each at 8 bytes, ten clients; down only once there is something.
    assert first.traffic.up == second.traffic.up == 10 * 40 * 3 * 8
    assert (first.traffic.down, second.traffic.down) == (0, 10 * 40 * 3 * 8)
    sizes = np.array([population.partition.size(client) for client in range(10)])
    held = sizes - sizes // 4
    assert first.metrics["apart"] == pytest.approx(np.average(sizes // 4, weights=held))
    assert first.metrics["held"] == pytest.approx(np.average(held, weights=held))
    assert first.metrics["examples"] == pytest.approx(np.average(sizes, weights=held))
    assert first.metrics["drawn"] != second.metrics["drawn"]


def test_what_a_client_keeps_apart_is_not_trained_on() -> None:
    population = federation([17], local=LocalTraining(epochs=1, batch_size=4))
    task = SerialPool(Told(), population).worker.loader.make_task(
        Told(), population.context(0), 0, {}, {}, None
    )
    seen = torch.cat([batch.x for batch in task.batches])
    assert task.held_out is not None
    apart = torch.cat([batch.x for batch in task.held_out.batches()])
    assert (len(seen), len(apart)) == (13, 4)
    whole = torch.cat([seen, apart])
    stored = tree.wrap_array(population.dataset.train.x[:17])
    assert torch.equal(whole[whole[:, 0].argsort()], stored[stored[:, 0].argsort()])


@pytest.mark.parametrize(("n", "share"), [(0, 0.1), (1, 0.1), (9, 0.1), (10, 0.1), (59, 0.1), (7, 0.5)])
def test_a_share_of_the_examples_is_kept_apart(n: int, share: float) -> None:
    apart = draw_apart(rng.stream(1, "apart", 0), n, share)
    assert apart.shape == (n,)
    assert apart.sum() == count_apart(n, share) == int(n * share)
    assert (apart == draw_apart(rng.stream(1, "apart", 0), n, share)).all()


def test_what_is_kept_apart_has_all_classes_though_they_come_in_turns() -> None:
    """Every tenth of 1,000 examples whose classes come in turns of ten would be of one class."""
    apart = draw_apart(rng.stream(1, "apart", 0), 1000, 0.1)
    assert (np.bincount(np.flatnonzero(apart) % 10, minlength=10) >= 3).all()
    assert (apart != draw_apart(rng.stream(1, "apart", 1), 1000, 0.1)).any()


def test_everybody_sees_the_public_set_in_the_same_order_which_changes_by_round() -> None:
    public = federation().context(0).require_public_set()

    def order(round: int) -> torch.Tensor:
        steps = public.shuffle_batches(7, round, epochs=2, batch_size=16)
        assert [len(batch.y) for batch in steps] == [16, 16, 8] * 2
        return torch.cat([batch.noise[ROWS] for batch in steps])

    assert torch.equal(order(0), order(0))
    assert not torch.equal(order(0), order(1))
    assert torch.equal(order(0)[:40].sort().values, torch.arange(40))
    part = public.choose_rows(7, 0, 12)
    assert len(part.unique()) == 12
    within = [batch.noise[ROWS] for batch in public.shuffle_batches(7, 0, epochs=1, batch_size=5, rows=part)]
    assert torch.equal(torch.cat(within).sort().values, part)
    batch = public.make_batch(part)
    assert torch.equal(batch.y, public.y[part])
    assert torch.equal(public.predict_examples(lambda x: x, part), batch.x)


def test_without_a_public_set_it_says_so() -> None:
    population = replace(federation(), public=None)
    with pytest.raises(DataError, match=r"data\.public\.fraction: 0\.1"):
        population.context(0).require_public_set()


def test_sparse_bytes_are_eight_for_each_entry() -> None:
    assert wire.sparse_bytes(torch.tensor([[0.0, 0.5], [0.25, 0.25]])) == 3 * 8


def test_a_spec_without_a_public_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsim.plugins import Registry
    from jobs.settings import Settings
    from jobs.spec import parse_spec, resolve
    from jobs.spec.checks import data_checks, name_checks

    own = {"told": Told, "fedavg": FedAvg}
    known = Registry("algorithms", "algorithm", own, lambda _: True, "an algorithm")
    for module in (resolve, name_checks, data_checks):
        monkeypatch.setattr(module, "ALGORITHMS", known)
    spec = {"algorithm": "told", "data": {"dataset": "digits"}}
    with pytest.raises(resolve.SpecError) as caught:
        resolve.resolve_spec(parse_spec(spec), Settings(tmp_path))
    (fault,) = caught.value.errors
    assert fault.path == "data.public.fraction"
    few = {"dataset": "digits", "limit": 200, "public": {"fraction": 0.001}}
    with pytest.raises(resolve.SpecError, match="that is none of 200 examples"):
        resolve.resolve_spec(parse_spec({"algorithm": "told", "data": few}), Settings(tmp_path))
    resolve.resolve_spec(
        parse_spec({**spec, "data": {"dataset": "digits", "public": {"fraction": 0.1}}}), Settings(tmp_path)
    )
