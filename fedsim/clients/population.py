"""The federation as the engine sees it: everybody's data, the architectures, the local training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.base import rng, tree
from fedsim.base.tree import Tree
from fedsim.clients.sampling import Positions, draw_apart, draw_batches
from fedsim.core import Algorithm, Batch, ClientTask, Context, LocalTraining, Pacing
from fedsim.core.capabilities import BatchPacing, HeldOutExamples, RoundNoise, StepNoise, capability
from fedsim.core.public_set import AT_ONCE, PublicSet
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.partition import Partition
from fedsim.models.net import Net


@dataclass(frozen=True, kw_only=True)
class Population:
    """Who takes part, with what.

    It holds arrays and recipes only, so that it can be put into an object store once and mapped by every
    actor of a node without a copy.

    Attributes:
        dataset: the examples of everybody, and the test set.
        partition: which of the training examples each client holds.
        tests: which of the test examples each client's own model is scored on; None for all of them.
        nets: the architectures; client k runs `nets[k % len(nets)]`.
        local: the local training.
        seed: of the experiment.
        cohort_size: clients per round.
        public: labelled examples that no client holds, for the methods that use such; None where there are
            none.
        validation: labelled examples that no client holds, on which the deployed models are scored besides;
            None where there are none.
        rounds: how many the run has.
        difficulty: the expert's loss of every training example, float32 `[n]`; None unless it is needed.
    """

    dataset: Dataset
    partition: Partition
    nets: tuple[Net, ...]
    local: LocalTraining
    seed: int
    cohort_size: int
    rounds: int
    public: Examples | None = None
    validation: Examples | None = None
    difficulty: NDArray[np.float32] | None = None
    tests: Partition | None = None

    def context(self, round: int) -> Context:
        """What the clients of a round (counted from 0) have in common."""
        return Context(
            round=round,
            rounds=self.rounds,
            seed=self.seed,
            num_clients=self.partition.num_clients,
            cohort_size=self.cohort_size,
            mean_examples=self.partition.mean_size,
            num_classes=self.dataset.num_classes,
            input_shape=self.dataset.input_shape,
            local=self.local.for_round(round),
            nets=self.nets,
            public=self._public(),
        )

    def _public(self) -> PublicSet | None:
        """The public set over the arrays themselves."""
        if self.public is None:
            return None
        return PublicSet(
            tree.wrap_array(self.public.x), tree.wrap_array(self.public.y), self.dataset.normalise
        )

    def count_steps(self, client: int) -> int:
        """Local steps of this client in a round."""
        return self.local.steps_for(self.partition.size(client))

    def num_tests(self, client: int) -> int:
        """How many test examples this client's own model is scored on."""
        return len(self.dataset.test) if self.tests is None else self.tests.size(client)

    def test_positions(self, client: int) -> Positions:
        """Which test examples this client's own model is scored on."""
        return (
            np.arange(len(self.dataset.test)) if self.tests is None else self.tests.client_positions(client)
        )


class TaskLoader:
    """The training examples as tensors on one device, from which visits are made.

    Args:
        population: whose arrays to use; on the CPU the tensors share their memory.
        device: where the clients train.
    """

    def __init__(self, population: Population, device: torch.device) -> None:
        self.population, self.device = population, device
        train = population.dataset.train
        self.x = tree.wrap_array(train.x).to(device)
        self.y = tree.wrap_array(train.y).to(device)
        public = population.context(0).public
        self.public = None if public is None else public.to_device(device)

    def context(self, round: int) -> Context:
        """A round as the clients here see it: with the public set on their device."""
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
        """Everything that this client may look at in this round.

        Args:
            algorithm: whose client code will run.
            ctx: the round, for this client.
            client: its number.
            broadcast: what everybody received.
            instruction: what it received besides.
            client_state: what it kept; None on its first visit.
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
        """As `visit`, but without local steps."""
        held, apart = self._split_examples(algorithm, ctx, client)
        if client_state is None:
            # A method makes numbers of its own, such as that it never came, wherever torch puts them.
            client_state = tree.map(
                lambda leaf: leaf.to(self.device), algorithm.init_client_state(ctx, broadcast)
            )
        return ClientTask(
            batches=(),
            num_examples=len(held),
            label_counts=self._label_counts(held, ctx.num_classes),
            known_counts=self._known_counts(held, ctx.num_classes),
            broadcast=broadcast,
            instruction=instruction,
            client_state=client_state,
            examples=LoadedExamples(self, held),
            held_out=None if apart is None else LoadedExamples(self, apart),
        )

    def _split_examples(
        self, algorithm: Algorithm, ctx: Context, client: int
    ) -> tuple[Positions, Positions | None]:
        """Which training examples this client trains on, and which it keeps apart."""
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
        """The local steps of this client, as `ctx.local` says.

        Args:
            algorithm: whose noise comes with them.
            ctx: the round, for this client.
            client: its number.
            pacing: which examples a step may draw; None for all.
            occasion: what they are for, so that another one's are drawn independently; "" for the round.
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
        """These examples as one batch: augmented if there is a seed for it, then normalised."""
        index, dataset = tree.send_to_device(tree.wrap_array(rows), self.device), self.population.dataset
        x = self.x[index]
        if augment_seed is not None and dataset.augment is not None:
            x = dataset.augment(x, torch.Generator().manual_seed(augment_seed))
        return Batch(tree.to_channels_last(dataset.normalise(x)), self.y[index])

    def _label_counts(self, rows: Positions, num_classes: int) -> Tensor:
        labels = self.population.dataset.train.y[rows]
        several = labels.ndim > 1
        counts = (labels > 0.5).sum(0) if several else np.bincount(labels, minlength=num_classes)
        return tree.send_to_device(torch.from_numpy(counts.astype(np.float32)), self.device)

    def _known_counts(self, rows: Positions, num_classes: int) -> Tensor:
        labels = self.population.dataset.train.y[rows]
        counts = (~np.isnan(labels)).sum(0) if labels.ndim > 1 else np.full(num_classes, len(rows))
        return tree.send_to_device(torch.from_numpy(counts.astype(np.float32)), self.device)


class LoadedExamples:
    """A client's examples, gathered from the shelf when they are asked for.

    Args:
        loader: where they are.
        rows: which of the training set they are.
    """

    def __init__(self, loader: TaskLoader, rows: Positions) -> None:
        self.loader, self.rows = loader, rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def difficulty(self) -> Positions | None:
        """The expert's loss of each; see `Held`."""
        every = self.loader.population.difficulty
        return None if every is None else every[self.rows]

    def batches(self) -> Iterator[Batch]:
        """All of them, `AT_ONCE` at a time; see `Held`."""
        for start in range(0, len(self.rows), AT_ONCE):
            yield self.loader.load_batch(self.rows[start : start + AT_ONCE])


class LoadedBatches:
    """A visit's batches, gathered from the shelf one at a time: normalised and augmented on the batch.

    Args:
        loader: where the examples are.
        rows: the examples of each step.
        noise: the method's randomness; leading axis local steps.
        augment_seed: of this visit's augmentation.
    """

    def __init__(self, loader: TaskLoader, rows: list[Positions], noise: Tree, augment_seed: int) -> None:
        self.loader, self.rows, self.noise, self.augment_seed = loader, rows, noise, augment_seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: int) -> Batch:
        batch = self.loader.load_batch(self.rows[step], (self.augment_seed + step) % 2**63)
        return batch._replace(noise=self.step_noise(step, batch.x)) if self.noise else batch

    def step_noise(self, step: int, x: Tensor) -> Tree:
        """A step's noise, for these inputs."""
        return tree.map(lambda each: _noise_on_device(each[step], x), self.noise)

    def __iter__(self) -> Iterator[Batch]:
        return (self[step] for step in range(len(self)))


def _noise_on_device(values: Positions, x: Tensor) -> Tensor:
    """Noise where the inputs are; numbers that are not whole have their type."""
    drawn = tree.send_to_device(torch.as_tensor(values), x.device)
    return drawn.to(x.dtype) if drawn.is_floating_point() and x.is_floating_point() else drawn
