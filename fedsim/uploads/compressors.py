"""Compressors: what is left of an update when clients send fewer bytes, and how many bytes that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedsim.base.parameters import Range
from fedsim.base.shares import ceil_share
from fedsim.base.wire import NUMBER_BYTES, PAIR_BYTES

Shapes: TypeAlias = Sequence[tuple[int, ...]]

KeptShare = Annotated[float, Range(above=0, maximum=1)]


class Compressed(NamedTuple):
    """A compressed payload.

    Attributes:
        vector: as the server reads it, float64 `[d]`.
        bytes: on the network.
    """

    vector: Tensor
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Compressor(ABC):
    """Compresses the change of one payload. A subclass defines `compress`."""

    @property
    def keeps_residual(self) -> bool:
        """Whether clients add what was left out to their next update."""
        return False

    @abstractmethod
    def compress(self, vector: Tensor, stream: np.random.Generator, shapes: Shapes = ()) -> Compressed:
        """Compress a payload.

        Args:
            vector: float64 `[d]`, d at least 1.
            stream: the random stream of this client, round and payload.
            shapes: of the tensors that the vector holds, one after the other; () for the vector as it is.
        """


@dataclass(frozen=True, kw_only=True)
class QSGD(Compressor):
    """Each number as a sign and a level, rounded at random without bias (Alistarh et al., NeurIPS 2017).

    arXiv:1610.02132. With the norm n of its bucket and s = 2^(bits - 1) - 1, the number v becomes
    n sign(v) l / s; l is s |v| / n, rounded up or down so that its mean is exact. A bucket costs its norm,
    4 bytes, and `bits` for each number.

    Attributes:
        bits: of each number, sign included.
        bucket_size: numbers with a common norm.
    """

    bits: Annotated[int, Range(2, 16)] = 8
    bucket_size: Annotated[int, Range(1, 10_000_000)] = 512

    def compress(self, vector: Tensor, stream: np.random.Generator, shapes: Shapes = ()) -> Compressed:
        """Round every number to a level of its bucket."""
        count, size = -(-len(vector) // self.bucket_size), len(vector)
        padded = torch.nn.functional.pad(vector, (0, count * self.bucket_size - size))
        buckets = padded.view(count, self.bucket_size)
        # The norm travels as a float32 number.
        norms = torch.linalg.vector_norm(buckets, dim=1, keepdim=True).float().double()
        levels = 2 ** (self.bits - 1) - 1
        exact = buckets.abs() / torch.where(norms > 0, norms, 1.0) * levels
        drawn = torch.from_numpy(stream.random(tuple(buckets.shape))).to(vector.device)
        rounded = (exact.floor() + (drawn < exact - exact.floor())).clamp(max=levels)
        found = (buckets.sign() * rounded / levels * norms).view(-1)[:size]
        return Compressed(found, ceil(size * self.bits / 8) + NUMBER_BYTES * count)


@dataclass(frozen=True, kw_only=True)
class Sparsifier(Compressor):
    """A share of the entries.

    Attributes:
        share: of the entries, at least one.
        error_feedback: clients add what was left out to their next update (Stich et al., NeurIPS 2018).
    """

    share: KeptShare = 0.01
    error_feedback: bool = True

    @property
    def keeps_residual(self) -> bool:
        """As `error_feedback` says."""
        return self.error_feedback


@dataclass(frozen=True, kw_only=True)
class TopK(Sparsifier):
    """The entries with the largest absolute values, each with its index (Aji and Heafield, EMNLP 2017)."""

    def compress(self, vector: Tensor, stream: np.random.Generator, shapes: Shapes = ()) -> Compressed:
        """Keep the largest entries; of equal ones, the first."""
        count = count_kept(self.share, len(vector))
        kept = torch.sort(vector.abs(), descending=True, stable=True).indices[:count]
        found = torch.zeros_like(vector).index_copy_(0, kept, vector[kept])
        # With more than half of the entries, the whole vector without indices is smaller.
        return Compressed(found, min(count * PAIR_BYTES, len(vector) * NUMBER_BYTES))


@dataclass(frozen=True, kw_only=True)
class RandomK(Sparsifier):
    """Random entries; the server knows the seed, so that no index travels (Konecny et al. 2016).

    arXiv:1610.05492. Without error feedback the entries are multiplied by d / k, which makes them unbiased.
    """

    def compress(self, vector: Tensor, stream: np.random.Generator, shapes: Shapes = ()) -> Compressed:
        """Keep the entries that the stream draws."""
        size, count = len(vector), count_kept(self.share, len(vector))
        kept = torch.from_numpy(stream.permutation(size)[:count]).to(vector.device)
        factor = 1.0 if self.error_feedback else size / count
        found = torch.zeros_like(vector).index_copy_(0, kept, vector[kept] * factor)
        return Compressed(found, count * NUMBER_BYTES)


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Compressor):
    """Each matrix as a product of two thin ones (Vogels, Karimireddy, Jaggi, NeurIPS 2019).

    arXiv:1905.13727. A tensor with several dimensions is a matrix M [n, m] with its first dimension as rows.
    From a random Q [m, rank], each iteration makes P = orthogonalise(M Q) and Q = M' P; the server reads
    P Q'. A matrix costs rank (n + m) numbers. Vectors, and matrices that would not become smaller, travel
    whole.

    Deviation: the paper starts from the Q of the last step, which all workers share. Clients of different
    rounds share none, so that each update starts anew and makes several iterations.

    Attributes:
        rank: columns of the thin matrices.
        iterations: of the power method.
        error_feedback: clients add what was left out to their next update.
    """

    rank: Annotated[int, Range(1, 10_000)] = 2
    iterations: Annotated[int, Range(1, 100)] = 4
    error_feedback: bool = True

    @property
    def keeps_residual(self) -> bool:
        """As `error_feedback` says."""
        return self.error_feedback

    def compress(self, vector: Tensor, stream: np.random.Generator, shapes: Shapes = ()) -> Compressed:
        """Factorise every matrix."""
        found, size = list[Tensor](), 0
        shapes = shapes or ((len(vector),),)
        for part, shape in zip(torch.split(vector, [prod(shape) for shape in shapes]), shapes, strict=True):
            rows = shape[0] if len(shape) > 1 else 1
            numbers = self.rank * (rows + len(part) // max(rows, 1))
            smaller = numbers < len(part)
            found.append(self._factorise(part.view(rows, -1), stream).view(-1) if smaller else part)
            size += NUMBER_BYTES * min(numbers, len(part))
        return Compressed(torch.cat(found), size)

    def _factorise(self, matrix: Tensor, stream: np.random.Generator) -> Tensor:
        """Return P Q' of a matrix, each of the factors rounded to float32, as they travel."""
        right = torch.from_numpy(stream.standard_normal((matrix.shape[1], self.rank))).to(matrix.device)
        left = right
        for _ in range(self.iterations):
            left = torch.linalg.qr(matrix @ right).Q
            right = matrix.T @ left
        return left.float().double() @ right.float().double().T


def count_kept(share: float, size: int) -> int:
    """Return the number of entries that are sent: this share, rounded up."""
    return min(size, max(1, ceil_share(share, size)))


COMPRESSORS: Mapping[str, type[Compressor]] = {
    "qsgd": QSGD,
    "top_k": TopK,
    "random_k": RandomK,
    "power_sgd": PowerSGD,
}
"""The compressors, by the name that a spec gives them (`compression`)."""
