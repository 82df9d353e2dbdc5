"""Experiment: the full description of a run, in names, numbers and initial weights."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedsim.base import rng
from fedsim.base.progress import run_to_end
from fedsim.clients.population import Population
from fedsim.clock.asynchronous import Asynchronous
from fedsim.clock.devices import Devices
from fedsim.core import Algorithm, RunSettings
from fedsim.data import Dataset, load_dataset, make_federation
from fedsim.data.augment import Steps
from fedsim.data.dataset import Examples
from fedsim.data.federation import augment_public, take_public, take_validation
from fedsim.data.partition import Partition
from fedsim.data.partitions import find_task_fault
from fedsim.data.partitions.difficulty import EXPERT_EPOCHS
from fedsim.data.places import DataRoots
from fedsim.engine.expert import Losses, train_expert
from fedsim.engine.membership import draw_members
from fedsim.engine.pools import SerialPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from fedsim.engine.stopping import StopRule
from fedsim.errors import DataError, DataNotFound, SpecError
from fedsim.models import make_net
from fedsim.models.initial_weights import InitialWeights
from fedsim.models.net import Net
from fedsim.stacking.stack_size import StackSetting
from fedsim.uploads.attacks import Attack
from fedsim.uploads.poisoning import poison_examples

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The description of one run: the algorithm as an object, everything else by name.

    Attributes:
        algorithm: the algorithm.
        settings: the settings of the run: seed, rounds, cohort size, local training.
        num_clients: number of clients, N.
        dataset: its name and parameters, as `load_dataset` takes them.
        partition: its kind and parameters, as `make_partition` takes them.
        models: names and parameters, as `make_net` takes them, dealt to the clients in turn.
        initial: the weights from which each of the models begins, None for its own initialisers; () for none.
        tests: where each client's test examples come from: a name in `fedsim.data.CONVENTIONS`.
        test_share: share of each client's examples that are test examples, if `tests` is `merged`.
        more_tests: further conventions, by which the personal models are scored as well.
        public: share of the data that becomes the labelled public set; it is removed first.
        public_copies, public_augment: augmented copies of each public image, and the steps that make them.
        validation: share of the rest that becomes the validation set, which selects the final model.
        membership: whether records have the figures of membership inference
            (`fedsim.engine.membership`).
        test: whether models are scored on test examples; False leaves these out of the population.
        attack: what malicious clients do; its changes of examples are made here. None for no attack.
        roots: folders to search for data.
        cache: a folder for slow results, such as an expert's losses; None keeps nothing.
        limit: keep only this number of training examples, the first ones.
        download: whether data may be downloaded.
        expert_epochs: epochs of the expert model, whose losses rate how hard each example is; None for no
            expert.
        evaluate_every: evaluate the deployed models after rounds n, 2n, 3n, ... and after the last round.
        metrics: of the models, by name; () for those of the learning task.
        personal: policy for the personal evaluation; see `is_personal_evaluation_due`.
        personal_clients: number of clients whose personal models are scored, drawn once; None for all.
        stop: when the run ends before its last round; None for never.
        devices: the devices of the clients, for a simulated clock; None for no clock.
        code: {package: version} of the code that runs it, for the records; {} writes nothing.
        stack: setting of the stack size; see `fedsim.stacking.stack_size`.
        stack_sizes: stack size of each architecture, if `stack` is a number; () if not.
        graphs: whether stacks replay their steps as CUDA graphs; see `fedsim.stacking.graph_replay`.
    """

    algorithm: Algorithm
    settings: RunSettings
    num_clients: int
    dataset: tuple[str, Mapping[str, Any]]
    partition: tuple[str, Mapping[str, Any]]
    models: tuple[tuple[str, Mapping[str, Any]], ...]
    initial: tuple[InitialWeights | None, ...] = ()
    tests: str = "global"
    test_share: float = 0.25
    more_tests: tuple[str, ...] = ()
    public: float = 0.0
    public_copies: int = 0
    public_augment: Steps = ()
    validation: float = 0.0
    membership: bool = False
    test: bool = True
    attack: Attack | None = None
    roots: tuple[Path, ...] = ()
    cache: Path | None = None
    limit: int | None = None
    download: bool = False
    expert_epochs: int | None = None
    evaluate_every: int = 1
    metrics: tuple[str, ...] = ()
    personal: Literal["auto", "never", "last", "always"] = "auto"
    personal_clients: int | None = None
    stop: StopRule | None = None
    devices: Devices | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    stack: StackSetting = "auto"
    stack_sizes: tuple[int, ...] = ()
    graphs: bool = False

    @property
    def updates_per_round(self) -> int:
        """The number of updates that the server takes in a round: a cohort, or an asynchronous buffer."""
        policy = None if self.devices is None else self.devices.policy
        fixed = policy.updates_per_round if isinstance(policy, Asynchronous) else None
        return fixed or self.settings.cohort_size

    def simulate(self, population: Population, device: str = "cpu") -> Iterator[RoundResult]:
        """Run the experiment in this process, one client after another; stop iterating to stop the run.

        Args:
            population: of `load_population`.
            device: of clients and server, "cpu" or "cuda".

        Yields:
            One result per round, as soon as the round is finished.

        Raises:
            FedsimError: as `fedsim.engine.simulation.simulate`.
        """
        pool = SerialPool(self.algorithm, population, device)
        try:
            yield from simulate(
                self.algorithm,
                population,
                pool,
                evaluate_every=self.evaluate_every,
                personal=self.personal,
                stop=self.stop,
                devices=self.devices,
                device=device,
            )
        finally:
            pool.close()

    def load_population(self) -> Population:
        """Load the data, partition it and build the models.

        Raises:
            DataNotFound, DataError: the data is missing or damaged.
            SpecError: the partition or a model does not fit the data. Paths are argument names of
                `make_federation`, or of `load_dataset` and `make_net` below `dataset` and `model`.
        """
        return run_to_end(self.prepare_population())

    def prepare_population(self) -> Generator[str, None, Population]:
        """Run `load_population` and yield a sentence before each slow step; return the population."""
        name = self.dataset[0]
        data = yield from self._load_data()
        data, public = take_public(data, self.public, self.settings.seed)
        if public is not None:
            public = augment_public(public, self.public_augment, self.public_copies, self.settings.seed)
        data, validation = take_validation(data, self.validation, self.settings.seed)
        places = DataRoots(self.roots, self.download)
        nets = tuple(self._net(number, data, places) for number in range(len(self.models)))
        kind, dealing = self.partition
        epochs = None
        if kind == "difficulty":
            if fault := find_task_fault(kind, data.task):
                raise SpecError([fault])
            epochs = int(dealing.get("expert_epochs", EXPERT_EPOCHS))
        difficulty = losses = yield from self._expert(data, nets[0], epochs)
        if self.expert_epochs != epochs:
            difficulty = yield from self._expert(data, nets[0], self.expert_epochs)
        yield f"dealing {len(data.train):,} examples to {self.num_clients:,} clients"
        shared = make_federation(
            data,
            kind,
            num_clients=self.num_clients,
            seed=self.settings.seed,
            tests=self.tests,
            test_share=self.test_share,
            more_tests=self.more_tests,
            validation=validation,
            losses=losses,
            places=places,
            **dealing,
        )
        if shared.tests is None and not len(shared.dataset.test):
            _LOG.warning(
                "%s has no test examples, so that no model is scored%s: give data.dataset a test_share "
                "above 0, or let every client keep some of its own (data.tests: merged)",
                name,
                " but on the validation split" if validation is not None else "",
            )
        poisoned, backdoor = shared.dataset, None
        if self.attack is not None:
            poisoned, backdoor = poison_examples(self.attack, poisoned, shared.train, self.settings.seed)
        population = Population(
            dataset=poisoned,
            backdoor=backdoor,
            members=self._draw_members(poisoned, shared.train) if self.membership else None,
            partition=shared.train,
            tests=shared.tests,
            more_tests=shared.more_tests,
            public=public,
            validation=validation,
            nets=nets,
            settings=self.settings,
            difficulty=difficulty,
            metrics=self.metrics,
            personal_clients=self._draw_personal_clients(),
        )
        return population if self.test else population.without_tests()

    def _draw_members(self, data: Dataset, partition: Partition) -> Examples:
        """Draw as many training examples of the clients as there are test examples."""
        if not len(data.test):
            message = f"membership inference compares with test examples, and {data.name} has none"
            raise DataError(message, "leave evaluation.membership out, or have data with test examples")
        return draw_members(data.train, partition.indices, len(data.test), self.settings.seed)

    def _draw_personal_clients(self) -> tuple[int, ...] | None:
        """Draw the clients whose personal models are scored: the same ones after every round."""
        if self.personal_clients is None:
            return None
        random = rng.stream(self.settings.seed, "personal-clients")
        drawn = random.choice(self.num_clients, self.personal_clients, replace=False, shuffle=False)
        return tuple(sorted(drawn.tolist()))

    def _load_data(self) -> Generator[str, None, Dataset]:
        """Load the data set; download it first if it is missing and `download` is true."""
        name, params = self.dataset
        yield f"loading {name}"
        try:
            return load_dataset(name, roots=self.roots, limit=self.limit, **params)
        except DataNotFound:
            if not self.download:
                raise
        except SpecError as error:
            raise error.add_path_prefix("dataset") from None
        yield f"downloading {name} into {self.roots[0] if self.roots else 'no data root'}"
        try:
            return load_dataset(name, roots=self.roots, limit=self.limit, download=True, **params)
        except SpecError as error:
            raise error.add_path_prefix("dataset") from None

    def _net(self, number: int, data: Dataset, places: DataRoots) -> Net:
        """Build the net of one entry of `models` for this data."""
        name, params = self.models[number]
        try:
            return make_net(
                name,
                input_shape=data.input_shape,
                num_classes=data.num_classes,
                vocabulary=data.vocabulary,
                outputs=data.learning_task.output_shape(data.input_shape),
                places=places,
                initial=self.initial[number] if self.initial else None,
                **params,
            )
        except SpecError as error:
            raise error.add_path_prefix(f"model.{number}" if len(self.models) > 1 else "model") from None

    def _expert(self, data: Dataset, net: Net, epochs: int | None) -> Generator[str, None, Losses | None]:
        """Train an expert and return its losses; None if `epochs` is None."""
        if epochs is None:
            return None
        return (yield from train_expert(data, net, epochs=epochs, seed=self.settings.seed, cache=self.cache))
