"""The population: the data of all clients, and the loader that makes client tasks from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.tree import Tree
from fedsim.clients.sampling import Positions, draw_apart, draw_batches
from fedsim.core import Algorithm, Batch, ClientTask, Context, Pacing, RunSettings
from fedsim.core.capabilities import BatchPacing, HeldOutExamples, RoundNoise, StepNoise, capability
from fedsim.core.public_set import PublicSet
from fedsim.data.client_tests import VALIDATION
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.partition import Partition
from fedsim.learning_tasks.learning_task import Scorer
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class Population:
    """The clients of a run: their data, their models and the settings of the run.

    It holds only arrays and settings. An object store keeps it once per node, and every worker of the node
    maps it without a copy.

    Attributes:
        dataset: the training examples of all clients, and the test set.
        partition: the training examples of each client.
        tests: the test examples of each client's personal evaluation; None for the whole test set.
        more_tests: further test examples of each client, by the name of their convention; values as `tests`.
            Those of the convention `validation` are examples of the validation set.
        nets: the architectures; client k runs `nets[k % len(nets)]`.
        settings: the settings of the run.
        public: labelled examples that no client holds, for algorithms with a public set; None for none.
        validation: labelled examples that no client holds, on which fedsim also evaluates the deployed
            models; None for none.
        backdoor: test examples with the trigger of a backdoor and its target class, on which fedsim also
            evaluates the deployed models; None for none.
        members: training examples of the clients, on which fedsim also evaluates the deployed models, to
            measure membership inference; None for none.
        difficulty: the expert's loss of every training example, float32 `[n]`; None if nothing uses it.
        metrics: of the models, by name; () for those of the learning task.
        personal_clients: the clients whose personal models are scored, in ascending order; None for all.
    """

    dataset: Dataset
    partition: Partition
    nets: tuple[Net, ...]
    settings: RunSettings
    public: Examples | None = None
    validation: Examples | None = None
    backdoor: Examples | None = None
    members: Examples | None = None
    difficulty: NDArray[np.float32] | None = None
    tests: Partition | None = None
    more_tests: Mapping[str, Partition | None] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    personal_clients: tuple[int, ...] | None = None

    @cached_property
    def scorer(self) -> Scorer:
        """The metrics of this run."""
        task = self.dataset.learning_task
        return Scorer(task, self.metrics or task.default_metrics)

    def context(self, round: int) -> Context:
        """Return the context that all clients of a round share; the first round is 0."""
        return Context(
            round=round,
            rounds=self.settings.rounds,
            seed=self.settings.seed,
            num_clients=self.partition.num_clients,
            cohort_size=self.settings.cohort_size,
            mean_examples=self.partition.mean_size,
            num_classes=self.dataset.num_classes,
            learning_task=self.dataset.learning_task,
            input_shape=self.dataset.input_shape,
            local=self.settings.local.for_round(round, self.settings.rounds),
            nets=self.nets,
            public=self._public(),
        )

    def _public(self) -> PublicSet | None:
        """Return the public set on the CPU; it shares the memory of the arrays."""
        if self.public is None:
            return None
        return PublicSet(
            tree.wrap_array(self.public.x), tree.wrap_array(self.public.y), self.dataset.normalise
        )

    def without_tests(self) -> Population:
        """Return the population without test examples; all other examples of each client are the same."""
        none = self.dataset.test.select_rows(slice(0))
        dataset = replace(self.dataset, test=none)
        more = {name: each for name, each in self.more_tests.items() if name == VALIDATION}
        return replace(self, dataset=dataset, backdoor=None, tests=None, more_tests=more)

    def count_steps(self, client: int) -> int:
        """Return the number of local steps of this client in a round."""
        return self.settings.local.steps_for(self.partition.size(client))

    def list_personal_clients(self) -> Sequence[int]:
        """Return the clients whose personal models are scored, in ascending order."""
        return range(self.partition.num_clients) if self.personal_clients is None else self.personal_clients

    def list_test_conventions(self) -> tuple[str, ...]:
        """Return the names under which `test_positions` has test examples; "" is that of `tests`."""
        return ("", *self.more_tests)

    def get_test_set(self, convention: str = "") -> Examples:
        """Return the set that has a convention's test examples: the test set or the validation set."""
        if convention == VALIDATION and self.validation is not None:
            return self.validation
        return self.dataset.test

    def num_tests(self, client: int, convention: str = "") -> int:
        """Return the number of test examples in this client's personal evaluation."""
        tests = self.more_tests[convention] if convention else self.tests
        return len(self.get_test_set(convention)) if tests is None else tests.size(client)

    def test_positions(self, client: int, convention: str = "") -> Positions:
        """Return the positions in `get_test_set` of the examples in this client's personal evaluation."""
        tests = self.more_tests[convention] if convention else self.tests
        if tests is None:
            return np.arange(len(self.get_test_set(convention)))
        return tests.client_positions(client)


class TaskLoader:
    """The loader: holds the training examples on one device and makes client tasks from them.

    Args:
        population: the population; on the CPU the loader shares the memory of its arrays.
        device: the device on which the clients train.
    """

    def __init__(self, population: Population, device: torch.device) -> None:
        self.population, self.device = population, device
        train = population.dataset.train
        self.x = tree.wrap_array(train.x).to(device)
        self.y = tree.wrap_array(train.y).to(device)
        self.labels, self.num_labels = population.dataset.partition_labels()
        public = population.context(0).public
        self.public = None if public is None else public.to_device(device)

    def context(self, round: int) -> Context:
        """Return the context of a round, with the public set on the device of this loader."""
        return replace(self.population.context(round), public=self.public)

    def make_task(
        self,
        algorithm: Algorithm,
        ctx: Context,
        client: int,
        broadcast: Tree,
        instruction: Tree,
        client_state: Tree | None,
    ) -> ClientTask:
        """Make the client task: everything that this client may use in this round.

        Args:
            algorithm: the algorithm.
            ctx: the context of the round, for this client.
            client: the number of the client.
            broadcast: the payloads for all clients.
            instruction: the payloads for this client only.
            client_state: the client state; None if the client has no state yet.
        """
        task = self.make_task_without_batches(algorithm, ctx, client, broadcast, instruction, client_state)
        steps, pacing = ctx.local.steps_for(task.num_examples), None
        if paced := capability(algorithm, BatchPacing):
            stream = rng.stream(ctx.seed, "schedule", ctx.round, client)
            pacing = paced.pace_batches(ctx, stream, task, steps)
        if noisy := capability(algorithm, RoundNoise):
            drawn = noisy.draw_round_noise(ctx, rng.stream(ctx.seed, "draw", ctx.round, client))
            task = task._replace(
                round_noise=tree.map(lambda a: tree.send_to_device(torch.as_tensor(a), self.device), drawn)
            )
        return task._replace(batches=self.make_batches(algorithm, ctx, client, pacing))

    def make_task_without_batches(
        self,
        algorithm: Algorithm,
        ctx: Context,
        client: int,
        broadcast: Tree,
        instruction: Tree,
        client_state: Tree | None,
    ) -> ClientTask:
        """Make the client task as `make_task` does, but without batches and random numbers."""
        held, apart = self._split_examples(algorithm, ctx, client)
        label_counts, known_counts = self._count_labels(held)
        if client_state is None:
            # An algorithm may create new tensors (such as a flag) on torch's default device: move them.
            first = algorithm.init_client_state(ctx, broadcast)
            tree.require_tensors(f"the first client state of {type(algorithm).__name__}", first)
            client_state = tree.map(lambda leaf: leaf.to(self.device), first)
        return ClientTask(
            client=client,
            batches=(),
            num_examples=len(held),
            label_counts=label_counts,
            known_counts=known_counts,
            broadcast=broadcast,
            instruction=instruction,
            client_state=client_state,
            examples=LoadedExamples(self, held),
            held_out=None if apart is None else LoadedExamples(self, apart),
        )

    def _split_examples(
        self, algorithm: Algorithm, ctx: Context, client: int
    ) -> tuple[Positions, Positions | None]:
        """Return the client's training examples and its held-out examples; None if it holds out none."""
        held = self.population.partition.client_positions(client)
        if (splitting := capability(algorithm, HeldOutExamples)) is None:
            return held, None
        apart = draw_apart(rng.stream(ctx.seed, "apart", client), len(held), splitting.held_out_share(ctx))
        return held[~apart], held[apart]

    def make_batches(
        self,
        algorithm: Algorithm,
        ctx: Context,
        client: int,
        pacing: Pacing | None = None,
        occasion: str = "",
    ) -> LoadedBatches:
        """Make the batches of this client's local steps, with the settings in `ctx.local`.

        Args:
            algorithm: the algorithm; a `StepNoise` draws the noise of the batches.
            ctx: the context of the round, for this client.
            client: the number of the client.
            pacing: the examples that each step may draw; None for all.
            occasion: prefix of the random streams; "" for the round's local training. Batches of different
                occasions are drawn independently.
        """
        held, address = self._split_examples(algorithm, ctx, client)[0], (ctx.round, client)
        steps, size = ctx.local.steps_for(len(held)), ctx.local.batch_size
        shuffle = rng.stream(ctx.seed, f"{occasion}shuffle", *address)
        noise: Tree = {}
        if noisy := capability(algorithm, StepNoise):
            stream = rng.stream(ctx.seed, f"{occasion}method", *address)
            noise = noisy.draw_step_noise(ctx, stream, steps, size, len(held))
        rows = [held[chosen] for chosen in draw_batches(shuffle, len(held), steps, size, pacing)]
        augmented = self.population.dataset.augment is not None
        seed = rng.torch_seed(ctx.seed, f"{occasion}augment", *address) if augmented else 0
        return LoadedBatches(self, rows, noise, seed)

    def load_batch(self, rows: Positions, augment_seed: int | None = None) -> Batch:
        """Gather these examples as one batch: augment it if there is a seed, then normalise it."""
        index, dataset = tree.send_to_device(tree.wrap_array(rows), self.device), self.population.dataset
        x = self.x[index]
        if augment_seed is not None and dataset.augment is not None and len(rows):
            x = dataset.augment(x, torch.Generator().manual_seed(augment_seed))
        smoothing = self.population.settings.local.label_smoothing
        return Batch(tree.to_channels_last(dataset.normalise(x)), self.y[index], label_smoothing=smoothing)

    def _count_labels(self, rows: Positions) -> Tensor:
        """Count the examples of each label, and those whose label is known: float32 `[2, labels]`."""
        labels = self.labels[rows]
        if labels.ndim > 1:
            counts, known = (labels > 0.5).sum(0), (~np.isnan(labels)).sum(0)
        else:
            counts = np.bincount(labels, minlength=self.num_labels)
            known = np.full(self.num_labels, len(rows))
        both = np.stack([counts, known]).astype(np.float32)
        return tree.send_to_device(torch.from_numpy(both), self.device)


class LoadedExamples:
    """A client's examples (`ClientExamples`), gathered from the loader on demand.

    Args:
        loader: the loader that holds the training set.
        rows: the positions of the examples in the training set.
    """

    def __init__(self, loader: TaskLoader, rows: Positions) -> None:
        self.loader, self.rows = loader, rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def difficulty(self) -> Positions | None:
        """The expert's loss of each example; see `ClientExamples`."""
        every = self.loader.population.difficulty
        return None if every is None else every[self.rows]

    def batches(self) -> Iterator[Batch]:
        """Yield all examples, `scored_at_once` at a time; see `ClientExamples`."""
        size = self.loader.population.dataset.scored_at_once
        for start in range(0, len(self.rows), size):
            yield self.loader.load_batch(self.rows[start : start + size])


class LoadedBatches:
    """The batches of a client task (`Batches`), each gathered, augmented and normalised on demand.

    Args:
        loader: the loader that holds the examples.
        rows: the positions of each step's examples in the training set.
        noise: the algorithm's random numbers; the leading axis is the local step. {} for none.
        augment_seed: seed of the augmentation; step t uses `augment_seed + t`.
    """

    def __init__(self, loader: TaskLoader, rows: list[Positions], noise: Tree, augment_seed: int) -> None:
        self.loader, self.rows, self.noise, self.augment_seed = loader, rows, noise, augment_seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: int) -> Batch:
        batch = self.loader.load_batch(self.rows[step], (self.augment_seed + step) % 2**63)
        return batch._replace(noise=self.step_noise(step, batch.x)) if self.noise else batch

    def step_noise(self, step: int, x: Tensor) -> Tree:
        """Return the noise of a step, on the device and in the float type of the inputs."""
        return tree.map(lambda each: _noise_on_device(each[step], x), self.noise)

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(len(self)))


def _noise_on_device(values: Positions, x: Tensor) -> Tensor:
    """Copy noise to the device of the inputs; floats also get the float type of the inputs."""
    drawn = tree.send_to_device(torch.as_tensor(values), x.device)
    return drawn.to(x.dtype) if drawn.is_floating_point() and x.is_floating_point() else drawn
