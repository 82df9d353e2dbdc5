"""The result of a span: what one worker gives back after it trained the clients of some blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from fedsim.base import tree, wire
from fedsim.base.error_attribution import attribute_client_error
from fedsim.base.tree import Layout, Tree
from fedsim.core import Algorithm, ClientUpdate, Context, Reduction
from fedsim.core.capabilities import PayloadAccounting, capability, count_bytes
from fedsim.engine.blocks import Node
from fedsim.engine.retries import AttemptResult
from fedsim.stacking.grouping import StackingNotes

Sums: TypeAlias = "dict[str, Any] | None"
"""{slot: float64 vector} (a NumPy array between processes); None for a part of the tree without updates."""


@dataclass(frozen=True)
class ClientOutcome:
    """One client's update without its summed payloads.

    Attributes:
        client: the client's number.
        weight: the client's weight in a MEAN.
        num_examples: the number of training examples of the client's task.
        metrics: the scalars of the update, such as the training loss.
        gathered_payloads: {payload name: the client's tree} for every GATHER payload.
        state_digest: SHA-256 of the new client state; None unless the algorithm is stateful.
        bytes_up: bytes of the upload.
    """

    client: int
    weight: float
    num_examples: int
    metrics: dict[str, float]
    gathered_payloads: dict[str, Any] = field(default_factory=dict)
    state_digest: bytes | None = None
    bytes_up: int = 0


class PayloadSums(NamedTuple):
    """One client's part of every sum.

    Attributes:
        vectors: {slot: float64 vector}; a MEAN payload is multiplied by the client's weight.
        layouts: {slot: paths and shapes of the tree}.
        sizes: {slot: bytes of the payload}, for slots that are new to the span.
        bytes_up: {payload name: bytes}, without free uploads.
    """

    vectors: dict[str, Tensor]
    layouts: dict[str, Layout]
    sizes: dict[str, int]
    bytes_up: dict[str, int]


class ClientResult(NamedTuple):
    """The result of one client: its outcome, its part of every sum, its new client state."""

    outcome: ClientOutcome
    sums: PayloadSums
    client_state: Tree


@dataclass
class SpanResult:
    """The reduced updates of a span's clients.

    Attributes:
        nodes: (node, sums) of the tree nodes that lie wholly in the span, from left to right. A MEAN payload
            has its weighted sum, a SUM payload its plain sum.
        layouts: {slot: paths and shapes of the tree in this vector}, the same for every client.
        sizes: {slot: bytes of one payload}, the same for every client.
        outcomes: one entry per client with an update, in the order of training.
        errors: {client: error text} for the clients that failed.
        retries: number of times that clients were trained again.
        bytes_up: bytes by payload name, summed over the clients with an update.
        seconds: wall-clock seconds of the span.
        stacking: the numbers of clients that ran in stacks and alone.
    """

    nodes: list[tuple[Node, Sums]] = field(default_factory=list)
    layouts: dict[str, Layout] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    outcomes: list[ClientOutcome] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    retries: int = 0
    bytes_up: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    stacking: StackingNotes = field(default_factory=StackingNotes)

    def add_client(self, client: int, attempt: AttemptResult[ClientResult]) -> Sums:
        """Add the result of one client, or its error; return its part of every sum, None after an error.

        Raises:
            ClientFailed: a payload has another layout than those of the clients before. The fault policy does
                not apply: the clients that would be left out depend on where the span begins.
        """
        self.retries += attempt.retries
        result = attempt.value
        if result is None:
            self.errors[client] = attempt.error or ""
            return None
        try:
            merge_layouts(self.layouts, result.sums.layouts)
        except ValueError as error:
            raise attribute_client_error(client, "train", error) from error
        self.outcomes.append(result.outcome)
        self.sizes.update(result.sums.sizes)
        self.bytes_up.update(result.sums.bytes_up)
        return result.sums.vectors

    def to_numpy(self) -> SpanResult:
        """Return a copy with NumPy arrays, to send to another process."""
        return self._convert(lambda vector: vector.cpu().numpy(), tree.to_numpy)

    def to_tensors(self) -> SpanResult:
        """Return a copy with tensors: the inverse of `to_numpy`."""
        return self._convert(tree.wrap_array, tree.from_numpy)

    def _convert(self, vector: Callable[[Any], Any], entry: Callable[[Tree], Tree]) -> SpanResult:
        nodes = [(node, None if sums is None else tree.map(vector, sums)) for node, sums in self.nodes]
        return replace(
            self, nodes=nodes, outcomes=[_convert_outcome(outcome, entry) for outcome in self.outcomes]
        )


def _convert_outcome(outcome: ClientOutcome, convert: Any) -> ClientOutcome:
    if not outcome.gathered_payloads:
        return outcome
    return replace(
        outcome, gathered_payloads={name: convert(entry) for name, entry in outcome.gathered_payloads.items()}
    )


def merge_layouts(known: dict[str, Layout], new: Mapping[str, Layout]) -> None:
    """Add the layouts of new slots to the known ones.

    Raises:
        ValueError: a slot has two layouts, so its vectors cannot be added; the message names the payload.
    """
    for slot, layout in new.items():
        expected = known.setdefault(slot, layout)
        if layout != expected:
            pairs = zip_longest(layout, expected)
            found, other = next((_name_leaf(a), _name_leaf(b)) for a, b in pairs if a != b)
            raise ValueError(
                f"the payload {slot.partition('/')[2]} has {found} where that of another client has {other}; "
                "its keys, their order and its shapes have to be those of all clients"
            )


def _name_leaf(leaf: tuple[tuple[str, ...], tuple[int, ...]] | None) -> str:
    """Return the path and the shape of a leaf, such as "fc1.weight [8, 12]"."""
    return "nothing" if leaf is None else f"{'.'.join(leaf[0])} {list(leaf[1])}"


def make_client_sums(
    algorithm: Algorithm, ctx: Context, update: ClientUpdate, weight: float, known_sizes: Mapping[str, int]
) -> PayloadSums:
    """Return one client's part of every sum.

    Products of float32 numbers and integer weights are exact in float64: the mean over one client is exactly
    its model.

    Args:
        algorithm: declares how each payload is reduced (`Algorithm.uploads`).
        ctx: the round, for this client.
        update: the client's update; `check_update` has accepted it.
        weight: the client's weight in a MEAN.
        known_sizes: `SpanResult.sizes`, with the slots of earlier clients.
    """
    made = PayloadSums({}, {}, {}, {})
    # Without accounting by the algorithm, a payload has the same bytes for every client.
    sizes_are_equal = not capability(algorithm, PayloadAccounting)
    for name, reduction in algorithm.uploads.items():
        payload = update.upload[name]
        if reduction is Reduction.GATHER:
            made.bytes_up.update(_payload_cost(algorithm, ctx, name, payload))
            continue
        slot = make_slot(name, reduction, ctx.architecture)
        made.layouts[slot] = tree.layout(payload)
        if slot not in known_sizes:
            made.sizes[slot] = wire.payload_bytes(payload)
        if sizes_are_equal and slot in known_sizes and name not in algorithm.free_uploads:
            made.bytes_up[name] = known_sizes[slot]
        else:
            made.bytes_up.update(_payload_cost(algorithm, ctx, name, payload))
        vector = tree.flatten(payload)
        if reduction is not Reduction.SUM:
            # A client of weight 0 counts for nothing, also if its model has diverged: 0 times NaN is NaN.
            vector = vector.mul_(weight) if weight else vector.zero_()
        made.vectors[slot] = vector
    return made


def require_update(algorithm: Algorithm, returned: Any) -> ClientUpdate:
    """Return what `train_client` returned; raise TypeError if it is no update."""
    if not isinstance(returned, ClientUpdate):
        name, found = type(algorithm).__name__, tree.describe_type(returned)
        raise TypeError(f"train_client of {name} returned {found}; return the ClientUpdate")
    return returned


def require_weight(algorithm: Algorithm, returned: Any) -> Any:
    """Return what `weigh_client` returned; raise TypeError if it is no number."""
    try:
        float(returned)
    except (TypeError, ValueError):
        name, found = type(algorithm).__name__, tree.describe_type(returned)
        raise TypeError(f"weigh_client of {name} returned {found}; return a number of at least 0") from None
    return returned


def check_update(algorithm: Algorithm, update: ClientUpdate) -> None:
    """Check that an update has the declared payloads, trees of tensors, and a state where one is kept.

    Raises:
        TypeError: a payload or the state is no tree of tensors.
        ValueError: a payload is missing or not declared, or the state has no place.
    """
    name = type(algorithm).__name__
    declared, uploaded = set(algorithm.uploads), set(update.upload)
    if declared != uploaded:
        missing, surplus = sorted(declared - uploaded), sorted(uploaded - declared)
        trouble = [f"lacks {', '.join(missing)}"] * bool(missing)
        trouble += [f"has {', '.join(surplus)}, which uploads does not declare"] * bool(surplus)
        raise ValueError(
            f"an upload of {name} {' and '.join(trouble)}; declared payloads: {', '.join(algorithm.uploads)}"
        )
    for payload, found in update.upload.items():
        tree.require_tensors(f"the payload {payload!r} of {name}", found)
    if update.client_state is None:
        raise TypeError(f"the client state of {name} is None; keep that of the update, or {{}} for none")
    tree.require_tensors(f"the client state of {name}", update.client_state)
    if update.client_state and not algorithm.stateful:
        kept = ", ".join(sorted(map(str, update.client_state)))
        raise ValueError(
            f"a client of {name} keeps a state ({kept}), and the class does not say so;"
            " write `stateful: ClassVar[bool] = True`"
        )


def _payload_cost(algorithm: Algorithm, ctx: Context, name: str, payload: Tree) -> dict[str, int]:
    """Return {name: bytes} of a payload; {} for a free upload, which a real system would not send."""
    return {} if name in algorithm.free_uploads else {name: count_bytes(algorithm, ctx, name, payload)}


def make_slot(payload: str, reduction: Reduction, model: int) -> str:
    """Return the key of a payload's sum: "all/NAME" over all clients, "0/NAME" over architecture 0."""
    return f"all/{payload}" if reduction is Reduction.OVERALL_MEAN else f"{model}/{payload}"


def select_gathered(algorithm: Algorithm, update: ClientUpdate) -> dict[str, Tree]:
    """Return the GATHER payloads of one client update."""
    wanted = (name for name, reduction in algorithm.uploads.items() if reduction is Reduction.GATHER)
    return {name: update.upload[name] for name in wanted}
