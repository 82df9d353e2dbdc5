"""Clients that raise, memories that are fingerprinted, methods that are named: on the reference pool."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg
from fedsim.base import tree
from fedsim.base.digest import ClientStatesDigest, client_state_digest, client_state_digests
from fedsim.clients.population import Population
from fedsim.core import ClientTask, Context, Progress, Reduction, ServerState
from fedsim.core.capabilities import (
    ClientInstructions,
    CohortSelection,
    HeldOutExamples,
    PayloadAccounting,
    PersonalBroadcast,
    PersonalModels,
    ServerTraining,
    StepNoise,
)
from fedsim.engine.evaluation.personal_evaluation import evaluate_personal_models, personal_evaluation_work
from fedsim.engine.faults import Chaos, Faults, parse_chaos, should_fail_client, should_kill_actor
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.reduction import SpanSums
from fedsim.engine.server_messages import make_broadcasts, make_personal_instructions, measure_bytes_down
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.errors import ClientFailed, CohortFailed, FedsimError, MethodFailed, OutOfMemory, SettingsError
from fedsim.training.effort import CostMeter
from fedsim.training.local_loop import TrainedModel
from tests.fedsim.federations import federation
from tests.fedsim.methods import Everything

SKIP, RETRY = Faults(client_error="skip"), Faults(client_error="retry", max_retries=2)


@dataclass(frozen=True, kw_only=True)
class Fragile(Everything):
    """Raises at these clients: while it trains, or only once its report is looked at."""

    broken: tuple[int, ...] = ()
    shapeless: tuple[int, ...] = ()
    since: int = 0

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Any:
        update = super().make_update(ctx, task, trained)
        number = int(task.instruction["greeting"]["number"])
        if number in self.broken and ctx.round >= self.since:
            raise ZeroDivisionError("no examples of class 3")
        if number in self.shapeless:
            return update._replace(upload={"params": update.upload["params"], "size": {}})
        return update


@dataclass(frozen=True, kw_only=True)
class Misdeclared(FedAvg):
    """Clients upload the payloads of these names, whatever `uploads` declares."""

    names: tuple[str, ...] = ("params",)

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Any:
        return super().make_update(ctx, task, trained)._replace(upload={name: {} for name in self.names})


def fingerprint(memories: Mapping[int, Any]) -> ClientStatesDigest:
    found = ClientStatesDigest()
    found.update(client_state_digests(memories))
    return found


def run(algorithm: FedAvg, population: Population, faults: Faults) -> list[RoundResult]:
    return list(simulate(algorithm, population, SerialPool(algorithm, population, faults=faults)))


def test_a_skipped_client_leaves_nothing_but_its_number_and_the_bytes_sent_to_it() -> None:
    population = federation(rounds=3)
    pool = SerialPool(Fragile(broken=(2,), shapeless=(5,)), population, faults=SKIP)
    results = list(simulate(Fragile(broken=(2,), shapeless=(5,)), population, pool))
    whole = run(Everything(), population, SKIP)
    for result, other in zip(results, whole, strict=True):
        assert result.failed == (2, 5)
        assert result.cohort == other.cohort == tuple(range(10))
        assert result.traffic.down == other.traffic.down
        assert result.traffic.up == other.traffic.up * 8 // 10
        error = result.engine["client_errors"]["2"]
        assert re.fullmatch(
            r"ZeroDivisionError: no examples of class 3 \(test_faults\.py:\d+, make_update\)", error
        )
        assert result.record()["failed"] == [2, 5]
    assert set(pool.client_states()) == set(range(10)) - {2, 5}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), r"of Misdeclared lacks params; declared payloads: params"),
        (("params", "mark"), r"of Misdeclared has mark, which uploads does not declare; declared payloads"),
    ],
)
def test_an_upload_that_is_not_the_declared_one_names_algorithm_and_payload(
    names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ClientFailed, match=words):
        run(Misdeclared(names=names), federation(rounds=1), Faults())


@dataclass(frozen=True, kw_only=True)
class Returning(FedAvg):
    """`train_client` changes its update by this function."""

    change: Callable[[Any], Any]

    def train_client(self, ctx: Context, task: ClientTask) -> Any:
        return self.change(super().train_client(ctx, task))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda update: None, "train_client of Returning returned None; return the ClientUpdate"),
        (lambda update: update._replace(upload={"params": torch.ones(2)}), "is a tensor; make it a mapping"),
        (
            lambda update: update._replace(upload={"params": {"w": [1.0]}}),
            "the payload 'params' of Returning has 'w', which is a list; a payload or state is a",
        ),
        (lambda update: update._replace(client_state=None), "the client state of Returning is None"),
        (
            lambda update: update._replace(client_state={"control": torch.ones(2)}),
            r"keeps a state \(control\), and the class does not say so; write `stateful: ClassVar",
        ),
    ],
)
def test_an_update_that_is_not_whole_is_named(change: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ClientFailed, match=words):
        run(Returning(change=change), federation(rounds=1), Faults())


def test_the_line_of_a_users_code_stands_in_the_error() -> None:
    with pytest.raises(ClientFailed, match=r"ZeroDivisionError: .* \(test_faults\.py:\d+, <lambda>\)"):
        run(Returning(change=lambda update: 1 / 0), federation(rounds=1), Faults())


@dataclass(frozen=True, kw_only=True)
class BroadcastChanging(FedAvg):
    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Any:
        task.broadcast["params"]["head.weight"].add_(0.1)
        return super().make_update(ctx, task, trained)


@pytest.mark.parametrize("faults", [Faults(), SKIP])
def test_a_client_that_changes_the_broadcast_in_place_is_refused(faults: Faults) -> None:
    with pytest.raises(
        ClientFailed, match=r"client \d failed in train: it changed the broadcast params\.head"
    ):
        run(BroadcastChanging(), federation(rounds=1), faults)


def test_reductions_are_read_from_their_values_and_wrong_ones_refused() -> None:
    class Named(FedAvg):
        uploads: ClassVar[Any] = {**FedAvg.uploads, "delta": "sum"}

    assert Named.uploads["delta"] is Reduction.SUM
    with pytest.raises(ValueError, match=r"Wrong\.uploads\['delta'\] is 'summ'; write one of Reduction"):

        class Wrong(FedAvg):
            uploads: ClassVar[Any] = {**FedAvg.uploads, "delta": "summ"}

    with pytest.raises(TypeError, match=r"Listed\.uploads is \('params',\); write \{payload name"):

        class Listed(FedAvg):
            uploads: ClassVar[Any] = ("params",)


def test_a_pool_runs_the_algorithm_for_which_it_was_made() -> None:
    population = federation(rounds=1)
    with pytest.raises(ValueError, match="the pool was made for FedAvg, and is to run Everything"):
        list(simulate(Everything(), population, SerialPool(FedAvg(), population)))


@pytest.mark.parametrize(
    ("cohort", "words"),
    [
        ([1, 1], r"the cohort \[1, 1\] has a client twice"),
        ([99], "the cohort has client 99; the clients are 0 to 9"),
        (None, "the cohort is None; return a list of client numbers"),
        ([0.0, 1.0], r"the cohort has 0\.0; client numbers are whole numbers"),
    ],
)
def test_a_cohort_has_different_clients_of_the_federation(cohort: Any, words: str) -> None:
    class Choosing(FedAvg, CohortSelection):
        def select_cohort(self, ctx: Context, state: Any, rng: Any) -> Any:
            return cohort

    with pytest.raises(MethodFailed, match=words):
        run(Choosing(), federation(rounds=1), Faults())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "it returned None"),
        ({"a": torch.ones(2)}, "'a' is a Tensor"),
        ({"a": [{1: 2}]}, "the key 1 is a int; make it a string"),
    ],
)
def test_a_record_of_a_method_is_one_that_json_can_hold(said: Any, words: str) -> None:
    class Describing(FedAvg):
        def describe_round(self, ctx: Context, state: Any) -> Any:
            return said

    with pytest.raises(MethodFailed, match=f"failed in describe_round: TypeError: {words}"):
        run(Describing(), federation(rounds=1), Faults())


@pytest.mark.parametrize(
    ("hook", "returned", "words"),
    [
        ("deploy_models", None, "deploy_models: TypeError: it returned None; return a mapping"),
        ("deploy_models", [{}], "deploy_models: TypeError: it returned a list; return a mapping"),
        ("deploy_models", {"global": {"w": 1}}, "the model 'global' has 'w', .* torch.tensor.1."),
        ("broadcast", [], "Own failed in broadcast: TypeError: it returned a list; return a mapping"),
        ("broadcast", {"rate": 0.5}, "the payload 'rate' is a float; make it a mapping: .'value': torch"),
        ("broadcast", {"p": {"rate": 0.5}}, "the payload 'p' has 'rate', which is a float; make it a tensor"),
        ("weigh_client", None, "weigh_client of Own returned None; return a number"),
        ("init_client_state", {"a": 0.0}, "the first client state of Own has 'a', which is a float"),
        ("init_client_state", None, "the first client state of Own is None"),
    ],
)
def test_a_hook_that_returns_something_else_is_named(hook: str, returned: Any, words: str) -> None:
    own = type("Own", (FedAvg,), {hook: lambda *_: returned, "stateful": True})
    with pytest.raises((MethodFailed, ClientFailed), match=words):
        run(own(), federation(rounds=1), Faults())


@pytest.mark.parametrize("weight", [-1.0, math.nan])
def test_weights_without_a_mean_are_said_once(weight: float, caplog: pytest.LogCaptureFixture) -> None:
    class Weighing(FedAvg):
        def weigh_client(self, ctx: Context, task: ClientTask) -> float:
            return weight

    run(Weighing(), federation(rounds=2), Faults())
    (said,) = (line for line in caplog.messages if "weights" in line)
    assert f"the sum of the client weights is {10 * weight}, and has to be above 0" in said
    assert "Check weigh_client of Weighing" in said


def test_a_diverged_loss_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(FedAvg):
        def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> Any:
            return torch.nan * super().loss(ctx, task, params, batch)

    run(Lost(), federation(rounds=3), Faults())
    assert sum("the training loss is nan" in record.message for record in caplog.records) == 1


def test_a_model_that_changes_after_its_scores_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Late(FedAvg, ServerTraining):
        def train_server(self, ctx: Context, state: Any, reduced: Any) -> Any:
            yield Progress("shift", 1, 1)
            return replace(state, params=tree.scale(state.params, 1.1))

    class Early(Late):
        trains_before_evaluation: ClassVar[bool] = True

    for method in (Late(), Early()):
        caplog.clear()
        run(method, federation(rounds=2), Faults())
        said = [record.message for record in caplog.records if "trains_before_evaluation" in record.message]
        assert len(said) == (not method.trains_before_evaluation)


def test_random_numbers_of_torch_in_a_clients_code_are_those_of_the_seed() -> None:
    class Drawing(FedAvg):
        def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> Any:
            return super().loss(ctx, task, params, batch) * torch.rand(())

        def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Any:
            update = super().make_update(ctx, task, trained)
            noisy = tree.map(lambda value: value + torch.rand_like(value), update.upload["params"])
            return update._replace(upload={"params": noisy})

    first, second = (run(Drawing(), federation(rounds=2), Faults())[-1].digest for _ in range(2))
    assert first == second
    population = federation(rounds=2)
    pools = (StackedPool(Drawing(), population, 4) for _ in range(2))
    first, second = (list(simulate(Drawing(), population, pool))[-1].digest for pool in pools)
    assert first == second


def test_a_trained_key_that_no_model_has_is_named() -> None:
    class Misspelt(FedAvg):
        def trainable_keys(self, ctx: Context, broadcast: Any) -> list[str]:
            return ["heads.bias"]

    with pytest.raises(ClientFailed, match=r"trainable_keys names 'heads\.bias', which the model does"):
        run(Misspelt(), federation(rounds=1), Faults())


@dataclass(frozen=True, kw_only=True)
class Disordered(FedAvg):
    """Client 1 uploads the keys of its model in the opposite order."""

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Any:
        update = super().make_update(ctx, task, trained)
        if task.client != 1:
            return update
        return update._replace(upload={"params": dict(reversed(update.upload["params"].items()))})


def test_payloads_with_keys_in_another_order_are_not_added() -> None:
    """Whether one worker trains both clients or each another one; the policy is for errors of clients."""
    algorithm, population = Disordered(), federation([16, 16], rounds=1)
    fault = (
        r"ValueError: the payload params has head.bias \[4\] where that of another client has fc1.0.weight \["
    )
    with pytest.raises(ClientFailed, match=f"client 1 failed in train: {fault}"):
        run(algorithm, population, SKIP)
    ctx = population.context(0)
    broadcasts = make_broadcasts(algorithm, ctx, algorithm.init_server_state(ctx))
    worker, sums = SerialPool(algorithm, population).worker, SpanSums(algorithm)
    results = [worker.train_span(0, client, [(client,)], broadcasts, {}, {})[0] for client in (0, 1)]
    sums.take(results[0])
    with pytest.raises(MethodFailed, match=f"Disordered failed in the sum of its uploads: {fault}"):
        sums.take(results[1])


def test_skipping_is_as_if_the_client_had_not_come() -> None:
    """A round without clients 2 and 5 gives the same state, whether they failed or were not asked."""

    class Without(Everything, CohortSelection):
        def select_cohort(self, ctx: Context, state: Any, rng: np.random.Generator) -> list[int]:
            return [client for client in range(10) if client not in (2, 5)]

    population = federation(rounds=1)
    (failed,) = run(Fragile(broken=(2, 5)), population, SKIP)
    (absent,) = run(Without(), population, SKIP)
    # The tree of sums has two leaves less, so the last bit may differ; the numbers do not.
    for name, value in failed.state.params.items():
        torch.testing.assert_close(value, absent.state.params[name])
    assert failed.metrics["train_loss"] == pytest.approx(absent.metrics["train_loss"])


def test_a_client_state_stays_as_it_was_when_its_client_fails() -> None:
    population, algorithm = federation(rounds=2), Fragile(broken=(4,), since=1)
    pool = SerialPool(algorithm, population, faults=SKIP)
    (first,) = simulate(algorithm, population, pool, rounds=1)
    before = pool.client_states()[4]
    reduced = pool.begin_training(population.context(1), first.state, [3, 4])()
    assert reduced.failed == (4,)
    assert pool.client_states()[4] is before
    assert pool.client_states()[3]["visits"] == 2
    assert reduced.memory_digest == fingerprint(pool.client_states()).hexdigest()


def test_a_round_in_which_every_client_failed_ends_the_run() -> None:
    with pytest.raises(CohortFailed, match=r"all 10 clients of round 1 failed; client 0: ZeroDivision"):
        run(Fragile(broken=tuple(range(10))), federation(), SKIP)


@dataclass(frozen=True, kw_only=True)
class Moody(Everything, StepNoise):
    """Every client fails so many times before it works."""

    failures: int = 0
    seen: dict[int, int] = field(default_factory=dict)

    def draw_step_noise(self, ctx: Context, rng: np.random.Generator, steps: int, *sizes: int) -> Any:
        return {"dice": rng.random((steps, 1))}

    def make_update(self, ctx: Context, task: ClientTask, trained: TrainedModel) -> Any:
        number = int(task.instruction["greeting"]["number"])
        self.seen[number] = self.seen.get(number, -1) + 1
        if self.seen[number] % (self.failures + 1) < self.failures:
            raise RuntimeError("CUDA out of memory")
        return super().make_update(ctx, task, trained)


def test_trying_again_gives_what_would_have_come_at_once() -> None:
    population = federation(rounds=2, model="mlp")
    expected = run(Moody(), population, Faults())
    results = run(Moody(failures=2), population, RETRY)
    assert [r.digest for r in results] == [r.digest for r in expected]
    assert [r.memory_digest for r in results] == [r.memory_digest for r in expected]
    assert [r.metrics for r in results] == [r.metrics for r in expected]
    assert [r.traffic for r in results] == [r.traffic for r in expected]
    assert [r.engine["client_retries"] for r in results] == [20, 20]
    assert [r.failed for r in results] == [(), ()]


def test_trying_again_ends() -> None:
    with pytest.raises(OutOfMemory, match=r"client 9 ran out of memory in train: CUDA out of memory"):
        run(Moody(failures=3), federation(rounds=1), RETRY)
    with pytest.raises(ClientFailed, match="client 4 failed in train: ZeroDivisionError"):
        run(Fragile(broken=(4,)), federation(rounds=1), RETRY)


@pytest.mark.parametrize("policy", [RETRY, SKIP])
def test_a_gpu_that_can_do_no_more_ends_the_run(policy: Faults) -> None:
    """Every later client of the process would fail as well."""

    class Asserting(FedAvg):
        def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> torch.Tensor:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    with pytest.raises(ClientFailed, match="device-side assert"):
        run(Asserting(), federation(rounds=1), policy)


@pytest.mark.parametrize(
    "error",
    [MemoryError("x"), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")],
)
def test_memory_that_ran_out_is_named_with_what_to_do(error: Exception) -> None:
    class Greedy(FedAvg):
        def loss(self, ctx: Context, task: ClientTask, params: Any, batch: Any) -> torch.Tensor:
            raise error

    class GreedyServer(FedAvg):
        def aggregate(self, ctx: Context, state: Any, reduced: Any) -> Any:
            raise error

    for algorithm, who in ((Greedy(), "client 9"), (GreedyServer(), "GreedyServer")):
        with pytest.raises(OutOfMemory, match=f"{who} ran out of memory in .*fewer workers per node"):
            run(algorithm, federation(rounds=1), Faults())


STAGES = (
    "init_server_state",
    "select_cohort",
    "broadcast",
    "instruct_client",
    "aggregate",
    "deploy_models",
    "predict",
    "describe_round",
)


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_method_raises_on_the_server_is_named(stage: str) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("momentum")

    capabilities = {"select_cohort": (CohortSelection,), "instruct_client": (ClientInstructions,)}
    algorithm = type("Unfinished", (FedAvg, *capabilities.get(stage, ())), {stage: broken})()
    with pytest.raises(MethodFailed, match=f"Unfinished failed in {stage}: KeyError: 'momentum'") as caught:
        run(algorithm, federation(rounds=1), Faults())
    assert 'raise KeyError("momentum")' in caught.value.trace


class Accounted(FedAvg, PayloadAccounting, HeldOutExamples, PersonalModels, PersonalBroadcast):
    """Every hook that the server also calls outside of the hooks of a round, and that it lets raise."""

    def broken(self, *_: Any) -> Any:
        raise KeyError("momentum")

    count_bytes = held_out_share = plan_tuning = broadcast_personal = instructs_personal = broken


@pytest.mark.parametrize("stage", ["count_bytes", "held_out_share", "plan_tuning", "instructs_personal"])
def test_what_counting_raises_on_the_server_is_named(stage: str) -> None:
    population, algorithm = federation(rounds=1), Accounted()
    ctx = population.context(0)
    state = algorithm.init_server_state(ctx)
    broadcasts = make_broadcasts(algorithm, ctx, state)
    worker = SerialPool(algorithm, population).worker
    calls: dict[str, list[Callable[[], Any]]] = {
        "count_bytes": [
            lambda: measure_bytes_down(algorithm, ctx, broadcasts, {}),
            lambda: evaluate_personal_models(worker, 0, [1], broadcasts, {}, {}),
        ],
        "held_out_share": [lambda: CostMeter(algorithm, population).training_cost(ctx, state, [1])],
        "plan_tuning": [lambda: personal_evaluation_work(algorithm, population, ctx, 1)],
        "instructs_personal": [lambda: make_personal_instructions(algorithm, ctx, state, [1])],
    }
    for call in calls[stage]:
        with pytest.raises(MethodFailed, match=f"Accounted failed in {stage}: KeyError: 'momentum'"):
            call()


def test_a_state_that_cannot_be_digested_is_named() -> None:
    @dataclass(frozen=True)
    class UntidyState(ServerState):
        clients: set[int]

    class Untidy(FedAvg):
        def aggregate(self, ctx: Context, state: Any, reduced: Any) -> Any:
            return UntidyState(params=state.params, clients=set(reduced.clients))

    with pytest.raises(
        MethodFailed,
        match="Untidy failed in digest of the server state: TypeError: a server state cannot hold set",
    ):
        run(Untidy(), federation(rounds=1), Faults())


def test_fedsims_own_errors_go_through_as_they_are() -> None:
    class Picky(FedAvg):
        def aggregate(self, ctx: Context, state: Any, reduced: Any) -> Any:
            raise FedsimError("as it was")

    with pytest.raises(FedsimError, match=r"^as it was$"):
        run(Picky(), federation(rounds=1), Faults())


def test_a_survey_has_the_same_policy() -> None:
    class Blind(Moody):
        def predict(self, ctx: Context, model: Any, x: torch.Tensor) -> torch.Tensor:
            self.seen[0] = self.seen.get(0, -1) + 1
            if self.seen[0] % (self.failures + 1) < self.failures:
                raise RuntimeError("CUDA out of memory")
            return super().predict(ctx, model, x)

    population = federation(rounds=1)
    ctx, state = population.context(0), Moody().init_server_state(population.context(0))

    def losses(failures: int, faults: Faults) -> list[float]:
        pool = SerialPool(Blind(failures=failures), population, faults=faults)
        return pool.measure_losses(ctx, state, range(4)).losses.tolist()

    expected = losses(0, Faults())
    assert losses(2, RETRY) == expected
    assert losses(1, SKIP)[1::2] == expected[1::2]
    assert np.isnan(losses(1, SKIP)[0::2]).all()
    with pytest.raises(OutOfMemory, match="client 0 ran out of memory in survey"):
        losses(1, Faults())


def memory(*numbers: float) -> Mapping[str, Any]:
    return {"head": {"weight": torch.tensor(numbers)}}


def test_a_digest_depends_on_the_client_states_and_on_nothing_else() -> None:
    a, b, c = memory(1, 2), memory(3), memory(4)
    step_by_step = ClientStatesDigest()
    assert step_by_step.hexdigest() == "0" * 64
    for client, kept in ((7, c), (3, a), (7, b)):
        step_by_step.update({client: client_state_digest(client, kept)})
    assert step_by_step.hexdigest() == fingerprint({3: a, 7: b}).hexdigest()
    assert step_by_step.hexdigest() == fingerprint({7: b, 3: a}).hexdigest()
    assert step_by_step.hexdigest() != fingerprint({3: b, 7: a}).hexdigest()
    assert step_by_step.hexdigest() != fingerprint({3: a}).hexdigest()
    assert client_state_digest(1, {"w": torch.ones(2)}) == client_state_digest(
        1, {"w": np.ones(2, np.float32)}
    )


def test_records_of_stateful_methods_have_the_digest_of_all_client_states() -> None:
    population = federation(rounds=3, cohort_size=4)
    pool = SerialPool(Everything(), population)
    for result in simulate(Everything(), population, pool):
        assert result.memory_digest == fingerprint(pool.client_states()).hexdigest()
        assert result.record()["memory_digest"] == result.memory_digest
    other = SerialPool(Everything(), population)
    other.restore_client_states(pool.client_states())
    args = (population.context(2), result.state, [1, 2])
    assert other.begin_training(*args)().memory_digest == pool.begin_training(*args)().memory_digest
    assert all(result.memory_digest is None for result in run(FedAvg(), population, Faults()))


def test_chaos_at_clients_is_seeded_and_cannot_fail_a_run_that_tries_again() -> None:
    population, chaos = federation(rounds=4), Chaos(fail_client=0.5)
    calm = run(Everything(), population, Faults())
    tried = run(Everything(), population, Faults(client_error="retry", max_retries=1, chaos=chaos))
    assert [r.digest for r in tried] == [r.digest for r in calm]
    assert sum(r.engine.get("client_retries", 0) for r in tried) > 5
    skipped, again = (run(Everything(), population, replace(SKIP, chaos=chaos)) for _ in range(2))
    assert [r.failed for r in skipped] == [r.failed for r in again]
    assert [r.digest for r in skipped] == [r.digest for r in again]
    assert len({r.failed for r in skipped}) > 1
    with pytest.raises(ClientFailed, match="chaos chose this client"):
        run(Everything(), population, Faults(chaos=chaos))


def test_chaos_spares_the_last_attempt() -> None:
    always = Chaos(kill_actor=1, fail_client=1)
    faults = Faults(client_error="retry", max_retries=2, chaos=always)
    assert [should_kill_actor(faults, 7, 0, 0, attempt) for attempt in range(4)] == [True, True, False, False]
    assert [should_fail_client(faults, 7, 0, 0, attempt) for attempt in range(3)] == [True, True, False]
    assert not should_kill_actor(replace(faults, max_retries=0), 7, 0, 0, 0)
    half = replace(faults, chaos=Chaos(kill_actor=0.5))
    drawn = [should_kill_actor(half, 7, round, block, 0) for round in range(30) for block in range(10)]
    assert 110 < sum(drawn) < 190


def test_chaos_is_read_or_refused_with_a_way_out() -> None:
    assert parse_chaos(["kill-actor=0.1", "fail-client=1"]) == Chaos(0.1, 1.0)
    assert parse_chaos([]) == Chaos()
    for wrong, words in (
        ("kill-actor", "has no probability"),
        ("kill-actor=often", "has no probability"),
        ("fail-client=1.5", "a number from 0 to 1"),
        ("fail-client=nan", "a number from 0 to 1"),
        ("kill_actors=0.1", "did you mean 'kill-actor'"),
        ("meteor=1", "there are: kill-actor, fail-client"),
    ):
        with pytest.raises(SettingsError, match=words):
            parse_chaos([wrong])
