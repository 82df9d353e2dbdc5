"""Labels to share out among clients, whatever they are, and the partitions of them."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedsim.data import Partition, make_partition

CLASSES = 5


@st.composite
def federations(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Labels, a number of clients that they can serve, and a seed."""
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=300)))
    return labels, draw(st.integers(1, min(len(labels), 40))), draw(st.integers(0, 5))


def make(kind: str, federation: tuple[np.ndarray, int, int], **given) -> Partition:
    """The partition of these labels."""
    labels, clients, seed = federation
    return make_partition(kind, labels=labels, num_clients=clients, num_classes=CLASSES, seed=seed, **given)


def make_any(kind: str, federation: tuple[np.ndarray, int, int]) -> Partition:
    """The partition of these labels by any kind, with parameters that they can serve."""
    labels, clients, _ = federation
    numbers, present = np.arange(len(labels)), len(np.unique(labels))
    fewest = -(-present // clients)  # classes of each client, so that nobody's is left over
    suited: dict[str, dict[str, Any]] = {
        "pathological": {"classes": fewest},
        "label_skew": {"share": fewest / present},
        "shards": {"shards_per_client": 1},
        "sampled": {"size": len(labels) // clients},
        "natural": {"groups": numbers},
        "parts": {"parts_per_client": 1},
        "difficulty": {"f_ord": 0.5, "losses": np.sin(numbers)},
    }
    return make(kind, federation, **suited.get(kind, {}))


def covers_once(partition: Partition, total: int) -> bool:
    """Whether every example is some client's, and nobody else's."""
    return np.array_equal(np.sort(partition.indices), np.arange(total))
