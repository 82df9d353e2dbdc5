"""ACE-pFL: the simulated rounds are the paper's; weights, bytes, memories and options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms.distillation.ace_pfl import AcePFL
from fedsim.base import rng, wire
from fedsim.base.digest import digest
from fedsim.clients.population import Population
from fedsim.clients.sampling import draw_apart, draw_batches
from fedsim.core import LocalTraining
from fedsim.data.dataset import Dataset, Examples
from fedsim.engine.initial_state import make_state_and_traffic
from fedsim.engine.pools import SerialPool
from fedsim.engine.simulation import RoundResult, simulate
from fedsim.models import make_net
from fedsim.models.net import InputForm, Net
from tests.fedsim.federations import federation
from tests.fedsim.handmade import build_normed

LOCAL = LocalTraining(epochs=1, batch_size=8, lr=0.05)


def mixed(rounds: int = 3, **settings: Any) -> Population:
    """Four clients of two architectures."""
    population = federation([21, 34, 12, 40], rounds=rounds, local=LOCAL, **settings)
    shape = {"input_shape": population.dataset.input_shape, "num_classes": population.dataset.num_classes}
    nets = tuple(make_net(name, **shape) for name in ("mlp", "logistic"))
    return replace(population, nets=nets)


def run(algorithm: AcePFL, population: Population) -> tuple[list[RoundResult], SerialPool]:
    pool = SerialPool(algorithm, population)
    return list(simulate(algorithm, population, pool, personal="always")), pool


@dataclass
class Plain:
    """One client of the plain loop: its model as float32 tensors, and what it keeps."""

    params: dict[str, Tensor]
    forward: Any
    best: dict[str, Tensor] | None = None
    score: float = -1.0


def descend(params: dict[str, Tensor], loss: Tensor, lr: float) -> None:
    gradients = torch.autograd.grad(loss, list(params.values()))
    with torch.no_grad():
        for weight, gradient in zip(params.values(), gradients, strict=True):
            weight -= lr * gradient


def kl(p: Tensor, logits: Tensor, temperature: float) -> Tensor:
    safe = p.clamp(min=1e-30).log()
    q = torch.log_softmax(logits / temperature, -1)
    return temperature**2 * (p * (safe - q)).sum(-1).mean()


def mlp(w: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = F.relu(F.linear(x, w["fc1.0.weight"], w["fc1.0.bias"]))
    return F.linear(hidden, w["head.weight"], w["head.bias"])


def logistic(w: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.linear(x, w["head.weight"], w["head.bias"])


class Expected(NamedTuple):
    """What a round of the plain loop came to; `kept` when its clients had trained and told."""

    said: Tensor
    kept: list[dict[str, Any]]
    right: list[float]
    temperature: float


class PaperLoop:
    """Algorithm 1 as it is printed: train, predict, aggregate, learn, round after round."""

    def __init__(self, population: Population, algorithm: AcePFL) -> None:
        self.population, self.algorithm = population, algorithm
        self.public = population.context(0).require_public_set()
        data = population.dataset
        self.train = torch.tensor(data.train.x), torch.tensor(data.train.y)
        self.test = torch.tensor(data.test.x), torch.tensor(data.test.y)
        self.held = [population.partition.client_positions(k) for k in range(4)]
        self.apart = [
            draw_apart(rng.stream(population.settings.seed, "apart", k), len(rows), algorithm.validation)
            for k, rows in enumerate(self.held)
        ]
        self.clusters = make_state_and_traffic(algorithm, population)[0].clusters.tolist()
        first = [net.init(population.settings.seed, number) for number, net in enumerate(population.nets)]
        self.clients = [
            Plain({key: value.clone().requires_grad_() for key, value in first[k % 2].items()}, forward)
            for k, forward in enumerate([mlp, logistic, mlp, logistic])
        ]
        self.past = torch.zeros(len(self.public), 4)

    def rounds(self) -> Iterator[Expected]:
        for r in range(1, self.population.settings.rounds + 1):
            a = self.algorithm
            stage, within = divmod(r, a.r0)
            temperature = a.t0 + a.k1 * stage / (1 + np.exp(-a.k2)) + 2 * a.k1 / (1 + np.exp(-a.k2 * within))
            for k, client in enumerate(self.clients):
                self.train_alone(k, client, r)
            kept = [self.kept(client, r) for client in self.clients]
            said = self.said(temperature)
            for k, client in enumerate(self.clients):
                self.learn(client, said, r, temperature)
                self.choose(k, client)
            self.past = self.past + said
            x, y = self.test
            right = [float((c.forward(c.params, x).argmax(-1) == y).float().mean()) for c in self.clients]
            yield Expected(said, kept, right, temperature)

    def kept(self, client: Plain, r: int) -> dict[str, Any]:
        """What a client keeps when it has said something in round r."""
        model = {key: value.detach().clone() for key, value in client.params.items()}
        best = {} if client.best is None else {"best": client.best, "past": self.past / (r - 1)}
        return {"model": model, **best}

    def train_alone(self, k: int, client: Plain, r: int) -> None:
        x, y = self.train
        mine = self.held[k][~self.apart[k]]
        order = rng.stream(self.population.settings.seed, "shuffle", r - 1, k)
        for rows in draw_batches(order, len(mine), LOCAL.steps_for(len(mine)), LOCAL.batch_size):
            logits = client.forward(client.params, x[mine[rows]])
            descend(client.params, F.cross_entropy(logits, y[mine[rows]]), LOCAL.lr)

    def said(self, temperature: float) -> Tensor:
        mean, k, unsent = torch.zeros(len(self.public), 4), self.algorithm.top_k, self.algorithm.unsent
        for n, client in enumerate(self.clients):
            soft = torch.softmax(client.forward(client.params, self.public.x) / temperature, -1).detach()
            cluster = [m for m in range(4) if self.clusters[m] == self.clusters[n]]
            examples = sum(len(self.held[m]) for m in cluster) / sum(map(len, self.held))
            mean = mean + examples / len(cluster) * keep(soft, k, unsent).double()
        return keep(mean, k, unsent).float()

    def learn(self, client: Plain, said: Tensor, r: int, temperature: float) -> None:
        a, best = self.algorithm, None
        factor = 1.0 if a.tau_squared else temperature**-2  # `kl` has the squared temperature
        if client.best is not None:
            best = torch.softmax(client.forward(client.best, self.public.x) / temperature, -1).detach()
        for batch in self.public.shuffle_batches(self.population.settings.seed, r, epochs=1, batch_size=8):
            rows = batch.noise["rows"]
            logits = client.forward(client.params, batch.x)
            loss = a.alpha1 * F.cross_entropy(logits, batch.y)
            loss = loss + factor * a.alpha2 * kl(said[rows], logits, temperature)
            if best is not None:
                loss = loss + factor * a.alpha3 * kl(best[rows], logits, temperature)
            if r > 1:
                loss = loss + factor * a.alpha4 * kl(self.past[rows] / (r - 1), logits, temperature)
            descend(client.params, loss, a.eta2)

    def choose(self, k: int, client: Plain) -> None:
        x, y = (part[self.held[k][self.apart[k]]] for part in self.train)
        score = float((client.forward(client.params, x).argmax(-1) == y).float().mean())
        if score >= client.score:
            client.score = score
            client.best = {key: value.detach().clone() for key, value in client.params.items()}


def keep(soft: Tensor, k: int, unsent: str) -> Tensor:
    values, places = soft.topk(k, -1)
    rest = (1 - values.sum(-1, keepdim=True)) / (soft.shape[-1] - k)
    if unsent == "even":
        return rest.expand_as(soft).scatter(-1, places, values)
    return torch.zeros_like(soft).scatter(-1, places, values / values.sum(-1, keepdim=True))


@pytest.mark.parametrize(("unsent", "squared"), [("zero", True), ("even", True), ("even", False)])
def test_the_rounds_are_those_of_the_papers_algorithm(unsent: Any, squared: bool) -> None:
    """Every prediction of the server and everything that clients keep, at temperatures from 5.5 to 9.2."""
    population = mixed(rounds=5, seed=8)
    shape = {"t0": 3.0, "k1": 2.0, "k2": 0.5, "r0": 2}
    options = {"unsent": unsent, "tau_squared": squared}
    algorithm = AcePFL(clusters=2, top_k=2, validation=0.2, **options, **shape)
    loop = PaperLoop(population, algorithm)
    assert sorted(loop.clusters.count(v) for v in (0, 1)) == [1, 3]  # so that the weights of Eq. 3 differ
    pool, temperatures, moved = SerialPool(algorithm, population), set[float](), set[tuple[float, ...]]()
    results = simulate(algorithm, population, pool, personal="always")
    for result, expected in zip(results, loop.rounds(), strict=True):
        torch.testing.assert_close(result.state.predictions, expected.said, rtol=0, atol=1e-5)
        for client, memory in pool.client_states().items():
            for name, mine in expected.kept[client].items():
                torch.testing.assert_close(memory[name], mine, rtol=0, atol=1e-5)
            assert set(memory) == {*expected.kept[client], *(("score", "heard") if result.round > 1 else ())}
        assert result.method["temperature"] == pytest.approx(expected.temperature)
        # One test example of 48 may fall otherwise where float32 sums are taken in another order.
        assert result.personal is not None
        np.testing.assert_allclose(result.personal.accuracies(), expected.right, atol=1.5 / 48)
        temperatures.add(round(expected.temperature, 3))
        moved.add(tuple(expected.right))
    assert len(temperatures) == 5
    assert len(moved) > 1


def test_the_weights_of_eq_3_sum_to_one_and_are_those_of_the_clusters() -> None:
    population = mixed()
    state, traffic = make_state_and_traffic(AcePFL(clusters=2), population)
    assert state.weights is not None
    assert state.clusters is not None
    sizes = np.array([population.partition.size(k) for k in range(4)])
    weights, clusters = state.weights.numpy(), state.clusters.numpy()
    assert (weights / sizes.sum()).sum() == pytest.approx(1)
    for v in set(clusters.tolist()):
        assert weights[clusters == v] == pytest.approx(sizes[clusters == v].mean())
    assert (traffic.down, traffic.up) == (3 * 4 * 4, 4 * 4 + 3 * 4)
    assert make_state_and_traffic(AcePFL(clustering="none"), population)[1].up == 0


def test_bytes_are_eight_for_each_kept_entry_and_the_census_comes_once() -> None:
    population = mixed(rounds=2)
    first, second = run(AcePFL(top_k=2), population)[0]
    census = 3 * 4 * 4 + 4 * 4 + 3 * 4
    assert first.traffic.by_payload == {"predictions": 4 * 40 * 2 * 8, "census": census}
    assert second.traffic.by_payload == {"predictions": 2 * 4 * 40 * 2 * 8}
    assert first.traffic.personal == second.traffic.personal == 4 * 40 * 2 * 8


def test_what_is_sent_has_as_many_entries_as_are_charged() -> None:
    """The paper's filter: two of four are not 0 in what a client sends, and in what all said."""
    sent = list[tuple[Any, Any]]()

    class Watched(AcePFL):
        def train_client(self, ctx: Any, task: Any) -> Any:
            update = super().train_client(ctx, task)
            sent.extend([(ctx, task.broadcast["predictions"]), (ctx, update.upload["predictions"])])
            return update

    algorithm = Watched(top_k=2, unsent="zero")
    run(algorithm, mixed(rounds=2))
    said = [(ctx, payload) for ctx, payload in sent if payload]
    assert len(said) == 4 + 2 * 4
    for ctx, payload in said:
        entries = wire.sparse_bytes(payload["probabilities"])
        assert entries == algorithm.count_bytes(ctx, "predictions", payload) == 40 * 2 * 8


def test_the_record_says_the_temperature_the_clusters_and_the_budgets() -> None:
    algorithm = AcePFL(clusters=2, label_epsilon=1.0, prediction_epsilon=0.5)
    first, second = run(algorithm, mixed(rounds=2))[0]
    assert first.method["temperature"] == pytest.approx(39.93, abs=0.01)
    assert sum(first.method["clusters"]) == len(first.method["cluster_of"]) == 4
    assert len(first.method["mean_emd"]) == len(first.method["clusters"])
    assert first.method["mean_emd"] == first.method["mean_emd_identity"]
    assert len(first.method["mean_emd_sorted"]) == len(first.method["clusters"])
    assert "cluster_of" not in second.method
    assert second.method["privacy"]["labels"] == {"noise": "laplace", "epsilon": 1.0}
    spent = second.method["privacy"]["predictions"]
    assert (spent["released"], spent["epsilon_total"]) == (80, pytest.approx(40))
    assert "privacy" not in run(AcePFL(), mixed(rounds=1))[0][0].method


@pytest.mark.parametrize(
    ("strategy", "keeps"),
    [
        ("single", {"model"}),
        ("double", {"model", "best", "score"}),
        ("triple", {"model", "best", "score", "past", "heard"}),
    ],
)
def test_clients_keep_what_their_teachers_need(strategy: Any, keeps: set[str]) -> None:
    algorithm = AcePFL(distillation=strategy, clustering="none")
    results, pool = run(algorithm, mixed(rounds=2))
    for memory in pool.client_states().values():
        assert set(memory) == keeps
    assert algorithm.held_out_share(mixed().context(0)) == (0 if strategy == "single" else 0.1)
    assert "public_loss" in results[1].metrics
    assert "public_loss" not in results[0].metrics


def test_without_a_weight_nothing_follows_the_public_set() -> None:
    """Not even the running statistics of batch normalisation."""
    population = replace(mixed(rounds=3), nets=(Net(build_normed, "normed", inputs=InputForm((12,))),))
    algorithm = AcePFL(alpha1=0.0, alpha2=0.0, distillation="single", clustering="none")
    public = population.public
    assert public is not None
    other = replace(population, public=replace(public, x=public.x * 3 + 1))
    (results, pool), (_, pool_of_other) = run(algorithm, population), run(algorithm, other)
    for client, state in pool.client_states().items():
        assert digest(state) == digest(pool_of_other.client_states()[client])
    assert results[0].cost == results[1].cost


def test_noise_changes_what_is_sent_and_is_the_same_again() -> None:
    population = mixed(rounds=2)
    plain, noisy, again = (run(AcePFL(prediction_epsilon=e), population)[0] for e in (None, 5.0, 5.0))
    assert plain[0].digest != noisy[0].digest
    assert [r.digest for r in noisy] == [r.digest for r in again]


def test_several_labels_per_example() -> None:
    stream = np.random.default_rng(0)
    x = stream.normal(size=(90, 6)).astype(np.float32)
    y = (x[:, :3] > 0).astype(np.float32)
    y[::7, 0] = np.nan
    data = Dataset(
        name="labels",
        train=Examples(x[:40], y[:40]),
        test=Examples(x[40:70], y[40:70]),
        num_classes=3,
        input_shape=(6,),
        classes=("a", "b", "c"),
        task="labels",
    )
    net = make_net("logistic", input_shape=(6,), num_classes=3)
    base = federation([20, 20], rounds=6, local=replace(LOCAL, epochs=4, lr=0.3))
    population = replace(base, dataset=data, nets=(net,), public=Examples(x[70:], y[70:]))
    results, _ = run(AcePFL(top_k=2, t0=1.0, k1=0.0, clusters=2), population)
    assert results[-1].metrics["personal_accuracy"] > 0.8
    assert results[1].traffic.by_payload["predictions"] == 2 * 2 * 20 * 2 * 8


def test_what_training_costs_counts_the_public_steps() -> None:
    population = replace(mixed(rounds=2), nets=mixed().nets[1:])
    parameters = population.nets[0].count_parameters()
    first, second = run(AcePFL(clustering="none", distillation="single"), population)[0]
    steps = sum(LOCAL.steps_for(n) for n in (21, 34, 12, 40))
    assert first.cost.updates == steps * parameters
    assert second.cost.updates == (steps + 4 * 5) * parameters


def test_distances_by_both_grounds_are_those_of_the_clients_labels() -> None:
    """Sorted frequencies are blind to which class is which, so their distances are never larger."""
    population = mixed(rounds=1)
    method = run(AcePFL(clusters=2, ground="sorted"), population)[0][0].method
    y, shares = population.dataset.train.y, []
    for client in range(4):
        counts = np.bincount(y[population.partition.client_positions(client)], minlength=4)
        shares.append(counts / counts.sum())
    for cluster, (plain, blind) in enumerate(
        zip(method["mean_emd_identity"], method["mean_emd_sorted"], strict=True)
    ):
        members = [k for k in range(4) if method["cluster_of"][k] == cluster]
        pairs = [(shares[a], shares[b]) for a in members for b in members if a != b]
        variation = [np.abs(a - b).sum() / 2 for a, b in pairs]
        ordered = [np.abs(np.sort(a) - np.sort(b)).mean() for a, b in pairs]
        assert plain == pytest.approx(np.mean(variation) if pairs else 0.0)
        assert blind == pytest.approx(np.mean(ordered) if pairs else 0.0)
    assert method["mean_emd"] == method["mean_emd_sorted"]


def test_a_clusters_teacher_is_the_mean_of_its_clients() -> None:
    """By the clients' own models, round after round; with one cluster it is the paper's teacher."""
    population = mixed(rounds=3, seed=8)
    algorithm = AcePFL(clusters=2, top_k=2, teachers="cluster")
    pool, public = SerialPool(algorithm, population), population.context(0).require_public_set()
    for result in simulate(algorithm, population, pool):
        clusters, kept = result.state.clusters.tolist(), pool.client_states()
        temperature = result.method["temperature"]
        for cluster in (0, 1):
            members = [k for k in range(4) if clusters[k] == cluster]
            logits = [population.nets[k % 2](kept[k]["model"], public.x) for k in members]
            said = [keep(torch.softmax(each / temperature, -1), 2, "even").double() for each in logits]
            expected = keep(sum(said) / len(said), 2, "even").float()  # type: ignore[arg-type, call-overload]
            torch.testing.assert_close(result.state.predictions[cluster], expected, rtol=0, atol=1e-5)
        directions = 1 if result.round == 1 else 2
        assert result.traffic.by_payload["predictions"] == directions * 4 * 8 * 2 * len(public)
    one, paper = (
        run(AcePFL(clusters=1, top_k=2, teachers=teachers), population)[1].client_states()
        for teachers in ("cluster", "all")
    )
    for client, state in paper.items():
        for key, value in state["model"].items():
            torch.testing.assert_close(one[client]["model"][key], value, rtol=1e-4, atol=1e-5)
