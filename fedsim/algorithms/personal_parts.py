"""Personal models: sharing a part of the model, fine-tuning, and checks that a model has the parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from fedsim.algorithms.fedavg import FedAvg
from fedsim.base import tree
from fedsim.base.parameters import Range
from fedsim.base.tree import Tree
from fedsim.core import ClientTask, Context, LocalTraining
from fedsim.core.capabilities import PersonalModels, SurveyPayload
from fedsim.errors import FieldError
from fedsim.models.net import DECLARE, Net, Params
from fedsim.training.local_loop import LocalLoop, plain_loss, run_local_loop


@dataclass(frozen=True, kw_only=True)
class PersonalParts(FedAvg):
    """FedAvg over a part of the model.

    The rest of the model is private to each client, so the server has no complete model to deploy.
    """

    stateful: ClassVar[bool] = True
    deploys_models: ClassVar[bool] = False

    @abstractmethod
    def shared_keys(self, ctx: Context, state: Any) -> Collection[str]:
        """Keys of the part that travels."""

    def private_keys(self, ctx: Context) -> Collection[str]:
        """All other keys."""
        return frozenset(ctx.net.keys).difference(self.shared_keys(ctx, None))


@dataclass(frozen=True, kw_only=True)
class FineTuned(FedAvg, PersonalModels, SurveyPayload):
    """FedAvg of a part of the model, whose clients fine-tune the whole model at the end.

    Attributes:
        tuning_epochs: epochs of fine-tuning the whole model; 0 for none.
    """

    tuning_epochs: Annotated[int, Range(0)] = 10

    def select_survey_payload(self, ctx: Context, state: Any, model: Tree) -> Tree:
        """The shared keys: all clients have the rest."""
        return tree.select(model, self.shared_keys(ctx, state))

    def plan_tuning(self, ctx: Context) -> LocalTraining | None:
        """The local training with `tuning_epochs` epochs."""
        return replace(ctx.local, epochs=self.tuning_epochs, steps=None) if self.tuning_epochs else None

    def personalize(self, ctx: Context, task: ClientTask) -> Tree:
        """The final model after training all of it on the client's examples."""
        return fine_tune(ctx, task, self.initial_params(ctx, task))


def find_missing_body(method: str, net: Net) -> Sequence[FieldError]:
    """Return an error if the model consists of its head alone, or has an empty head.

    Args:
        method: registry name of an algorithm that treats head and body differently.
        net: the model.
    """
    if net.base:
        return find_empty_head(method, net)
    if len(net.blocks) == 1 and not net.is_chain:
        message = f"{method} treats head and body differently, and {net.name} declares no blocks"
        return (FieldError("name", method, message, DECLARE),)
    hint = "choose a model that has layers before its head"
    return (FieldError("name", method, f"{net.name} has no blocks before its head", hint),)


def find_empty_head(method: str, net: Net) -> Sequence[FieldError]:
    """Return an error if the last block has no parameters: the classifier is then in another block.

    Args:
        method: registry name of an algorithm with a personal or a fixed head.
        net: the model.
    """
    last = net.block_names[-1]
    if not net.is_chain or list(net.module.get_submodule(last).parameters()):
        return ()
    message = f"{method} takes the last block for the head, and {last!r} of {net.name} has no parameters"
    hint = "put the last layers into one block, such as head=nn.Sequential(nn.Linear(64, 10), nn.Flatten())"
    return (FieldError("name", method, message, hint),)


def find_missing_features(method: str, net: Net) -> Sequence[FieldError]:
    """Return an error if the model's head cannot run alone on features.

    Args:
        method: registry name of an algorithm that reads the features before the head.
        net: the model.
    """
    if not net.head_error:
        return ()
    message = f"{method} reads the features before the head of {net.name}, and {net.head_error}"
    return (FieldError("name", method, message, DECLARE),)


def fine_tune(ctx: Context, task: ClientTask, start: Params) -> Params:
    """Train all layers of a model on the batches of a task, for `PersonalModels.personalize`.

    Args:
        ctx: the round; its `local` is that of `plan_tuning`.
        task: without batches, the model comes back unchanged.
        start: all keys of the net.
    """
    return run_local_loop(LocalLoop(ctx, task, start, plain_loss)).params
