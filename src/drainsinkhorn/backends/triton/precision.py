"""Which arithmetic computes the legs of a lane, with what rounding bound, and when it changes."""

# pyright: basic

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.triton.buffers import aligned
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.lanes import Flags, LaneSet
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.tiles import DIRECT, LARGEST, PRODUCT, ROOT, STORED, tile
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.rounding import (
    COMPENSATED_ERROR,
    TRIPLE_ERROR,
    TRIPLE_UNSAMPLED,
    UNSAMPLED,
    soft_bound,
)
from drainsinkhorn.numerics.soft import soft_exponents

DIRECT_DIM, PACKED_WIDTH = 4, 16
"""Most coordinates of direct differences, and numbers of a point in a packed product of as many coordinates."""
STREAMED_DIM = 64
"""Most coordinates of points that are streamed although a cached matrix would fit; with more, the matrix is faster."""
LARGE_PAIRS = 2**25
"""Most pairs of points of a lane in more than STREAMED_DIM coordinates whose float64 legs are direct differences."""
SCORE_BYTES, ROOTED_PAIRS = 4, 2**25
"""Bytes of a cached score, and most pairs of points whose distances are cached: distances are computed coordinate by
coordinate, which takes as long as many streaming legs."""
LIGHTEST = 2.0**-90
"""Smallest weight of a float32 lane. Such a weight does not underflow in sums, even times the factors of potentials.
Times 1e30, which stands for a ratio beyond float32, it is still large enough to show in the residual."""
SWITCH_MOMENTUM, SWITCH_PLAIN = 10.0, 2.0
"""A lane switches from float16 high parts to all products when its residual falls below this multiple of tol or of the
error of high parts. With momentum it switches earlier, because momentum carries that error into later cycles."""
AUGMENTED_BITS = 2.0**15
"""Largest sum of scaled cost and starts, in bits, with potentials inside the product: float16 holds up to 2^16."""
HIGH_PART_ERROR, MOST_HIGH_PART_ERROR = 1.4e-4, 1.0
"""Error of scores from float16 high parts, in bits, divided by the largest score and multiplied by the root of the
number of coordinates; and the largest error, in bits, with which high parts are used alone."""
POTENTIAL_ROUNDING = 16 * 2.0**-53
"""Relative rounding error of a marginal ratio in float64, per bit of the largest potentials of both sides: both are
divided by eps ln 2, which is rounded itself, and added to a score and to each other."""
NAMES = {DIRECT: "packed products", ROOT: "direct differences", PRODUCT: "split products", STORED: "stored scores"}
"""Kinds of scores as results name them."""


class Arithmetic(Enum):
    """Kinds of arithmetic of legs, fastest first. A lane uses the first one that is accurate enough for its tolerance.

    AUGMENTED: float32, potentials inside the product.
    FLOAT32: float32, potentials added to the product.
    TRIPLE: float32, exact exponents from products of points in three float16 parts (`kernels.triple`).
    COMPENSATED: the same, with compensated exponentials and sums.
    FLOAT64: float64, direct differences.
    """

    AUGMENTED = 0
    FLOAT32 = 1
    TRIPLE = 2
    COMPENSATED = 3
    FLOAT64 = 4

    @property
    def next(self) -> Arithmetic:
        """The next more accurate rung; the last is its own."""
        return Arithmetic(min(self.value + 1, Arithmetic.FLOAT64.value))


CODES = {
    Arithmetic.FLOAT64: 1,
    Arithmetic.TRIPLE: c.TRIPLE.value,
    Arithmetic.COMPENSATED: c.COMPENSATED.value,
}
"""Codes of arithmetic beyond float32 in the column FLOAT64 of the lane table."""
LEAST_ERRORS = np.array([*[c.FLOAT32_ERROR.value] * 2, TRIPLE_ERROR, COMPENSATED_ERROR, 0.0])
"""Least mean relative errors of sampled rows that a rounding bound assumes, by values of Arithmetic."""
TRIPLE_BITS = 2.0**13
"""Largest sum of scaled cost and starting potentials, in bits, for which a lane may use points in three parts. Up to
this size, sums of rounded potentials are exact in float32."""


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """Decisions about precision, from the options of the backend.

    Attributes:
        float64: All arithmetic is float64.
        momentum: Legs have momentum.
        cached_bytes: Most bytes of a matrix for which a lane of points in more than STREAMED_DIM coordinates caches its
            scores.
        high_parts: Early cycles of points in more than 32 coordinates may compute scores from float16 high parts alone.
        resident_points: Most points of a side of lanes of which one program runs all cycles, from cached scores.
    """

    float64: bool = False
    momentum: bool = False
    cached_bytes: int = 0
    high_parts: bool = True
    resident_points: int = 0

    def representation(self, instance: Instance[Any]) -> Representation:
        """Return how the scores of an instance are computed."""
        form = None if instance.is_dense else instance.cost.kind.distances
        n, m = instance.shape
        if max(n, m) <= self.resident_points:
            return _represent(STORED, 16, 1, form is None, form is not None and form.root, one_program=True)
        if form is None:
            return _represent(STORED, 16, 1, True, False)
        dim, rooted = instance.dim, form.root
        # Float64 legs do not read a matrix.
        is_unread = self.float64 and has_blocks((n, m), dim)
        is_cached = matrix_bytes(n, m) <= self.cached_bytes and (not rooted or n * m <= ROOTED_PAIRS)
        if dim > STREAMED_DIM and is_cached and not is_unread:
            return _represent(STORED, 16, 1, False, rooted)
        if rooted:
            return _represent(ROOT, 16, 1, False, True)
        if dim <= DIRECT_DIM:
            return _represent(DIRECT, dim, 1, False, False, PACKED_WIDTH)
        dp = 16 if dim <= 16 else 32 if dim <= 32 else 64
        places = dp if dim + count_places(dp) <= dp else 0
        high_parts = self.high_parts and dp == c.ROOMY.value
        return _represent(PRODUCT, dp, -(-dim // dp), False, False, places, high_parts)

    def describe(self, representation: Representation) -> str:
        """Return precision and representation in words, as `Result.arithmetic` has them."""
        beyond = "float64 where needed"
        if representation.kind in (DIRECT, PRODUCT) and representation.chunks == 1:
            beyond = "products of three parts or float64 where needed"
        precision = "float64" if self.float64 else f"float32 {NAMES[representation.kind]}, {beyond}"
        cycles = ", one program for all cycles" if representation.one_program else ""
        return f"{precision}, {'cached' if representation.kind == STORED else 'streaming'}{cycles}"

    def first_arithmetic(self, least_weights: Any, has_room: Any) -> Any:
        """Return the fastest arithmetic that each lane may have, as a number.

        Args:
            least_weights: The smallest weight of each lane.
            has_room: Whether each lane has room for its potentials inside the product.
        """
        in_float32 = np.where(has_room, Arithmetic.AUGMENTED.value, Arithmetic.FLOAT32.value)
        return np.where(self.float64 | (least_weights < LIGHTEST), Arithmetic.FLOAT64.value, in_float32)

    def accurate_enough(self, errors: Any, tolerances: Any, arithmetic: Arithmetic = Arithmetic.FLOAT32) -> Any:
        """Return for which lanes an arithmetic is accurate enough, from mean relative errors of sampled rows.

        A lane leaves at `residual + band <= stop`: a band of half a stop costs some cycles, another arithmetic far
        more.
        """
        return c.SAFETY.value * np.maximum(errors, LEAST_ERRORS[arithmetic.value]) <= np.asarray(tolerances) / 2

    def least_rungs(self, tolerances: Any) -> Any:
        """Return the fastest arithmetic, as a number, whose least error (LEAST_ERRORS) each tolerance allows."""
        least = np.full(np.shape(tolerances), Arithmetic.FLOAT64.value)
        for rung in reversed(list(Arithmetic)[:-1]):
            least = np.where(self.accurate_enough(np.zeros(np.shape(tolerances)), tolerances, rung), rung.value, least)
        return least

    @np.errstate(invalid="ignore")
    def has_triples(self, form: Representation, dims: Any, extents: Any) -> Any:
        """Return for which lanes legs may use points in three parts.

        Args:
            form: How scores of the lanes are computed.
            dims: Their numbers of coordinates.
            extents: Their columns of `LoadedGroup.extents`.
        """
        norm, other_norm, start, other_start = extents[1:]
        largest = (np.sqrt(norm) + np.sqrt(other_norm)) ** 2 + start + other_start
        # Written so that NaN has none.
        fits = (np.maximum(norm, other_norm) > 0) & (largest <= TRIPLE_BITS)
        return fits & (form.kind in (DIRECT, PRODUCT)) & (dims <= STREAMED_DIM)

    def switch_residual(self, tolerances: Any, high_part_errors: Any) -> Any:
        """Return the residual at which each lane switches from float16 high parts to all products; 0 if it has none."""
        times = SWITCH_MOMENTUM if self.momentum else SWITCH_PLAIN
        return np.where(np.isnan(high_part_errors), 0.0, times * np.maximum(tolerances, high_part_errors))

    @np.errstate(all="ignore")
    def bands(self, lanes: LaneSet, found: c.Findings) -> Any:
        """Return the rounding bounds of verified residuals."""
        rungs = lanes.column("arithmetic")
        bands = lanes.bands() + POTENTIAL_ROUNDING * found.largest
        # Maxima that are NaN if one of the errors is.
        errors = np.maximum(np.maximum(found.row_error, found.col_error), LEAST_ERRORS[rungs])
        far = np.where(in_triples(lanes), TRIPLE_UNSAMPLED, UNSAMPLED)
        sampled = c.SAFETY.value * errors + far * math.log(2) * found.unsampled
        bands = np.where(in_float64(lanes), bands, bands + sampled)
        if lanes.any_soft:
            exponents = map(soft_exponents, lanes.column("kappa"), found.largest * lanes.column("unit"))
            soft = soft_bound(bands, np.array([*exponents]), np.maximum(found.row, found.col))
            bands = np.where(lanes.column("is_soft"), soft, bands)
        return bands


def in_float64(lanes: LaneSet) -> Flags:
    """Return which lanes have legs in float64."""
    return lanes.column("arithmetic") == Arithmetic.FLOAT64.value


def in_triples(lanes: LaneSet) -> Flags:
    """Return which lanes have legs from points in three parts."""
    rungs = lanes.column("arithmetic")
    return (rungs == Arithmetic.TRIPLE.value) | (rungs == Arithmetic.COMPENSATED.value)


def beyond_float32(lanes: LaneSet) -> Flags:
    """Return which lanes have legs in float64 or from points in three parts, not those of `kernels.leg.leg`."""
    return lanes.column("arithmetic") >= Arithmetic.TRIPLE.value


def count_places(dp: int) -> int:
    """Return the number of coordinates that potentials need inside the product of points of `dp` coordinates."""
    return 4 if dp == c.ROOMY.value else 1


def has_blocks(size: tuple[int, int], dim: float) -> bool:
    """Return whether products of a lane are computed in blocks of rows: it is large, and has many coordinates."""
    return dim > STREAMED_DIM and size[0] * size[1] > LARGE_PAIRS


def matrix_size(rows: int, cols: int) -> int:
    """Return the number of elements of a cached matrix, padded by zeros so that whole tiles can be read."""
    return -(-rows // LARGEST) * LARGEST * aligned(cols) + LARGEST


def matrix_bytes(rows: int, cols: int) -> int:
    """Return the bytes of a cached matrix, without what follows its last row."""
    return SCORE_BYTES * (matrix_size(rows, cols) - LARGEST)


def interpreted() -> bool:
    """Return whether Triton runs its kernels in Python."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@lru_cache(maxsize=256)
def _represent(
    kind: int, dp: int, chunks: int, dense: bool, rooted: bool, places: int = 0, high_parts: bool = False,
    one_program: bool = False,
) -> Representation:  # fmt: skip
    gpu = "" if interpreted() or not torch.cuda.is_available() else torch.cuda.get_device_name()
    return Representation(kind, dp, chunks, dense, rooted, places, high_parts, one_program, **tile(kind, dp, gpu))


@np.errstate(all="ignore")
def augmented_room(representation: Representation, norms: tuple[Any, Any], starts: tuple[Any, Any]) -> Any:
    """Return which lanes have room for potentials inside the product, from largest norms and starts of both sides.

    Potentials stay within a few times the largest score of where they start.
    """
    return (starts[0] + starts[1] + _largest_scores(norms) <= AUGMENTED_BITS) & (representation.places > 0)


@np.errstate(all="ignore")
def high_part_errors(
    representation: Representation, sizes: Any, dim: int, norms: tuple[Any, Any], starts: tuple[Any, Any]
) -> Any:
    """Estimate by how much float16 high parts alone change residuals, if rounding errors of points average out.

    Sizes are the points of rows and columns of each lane, (lanes, 2). The estimates are NaN for lanes that do not use
    high parts alone.
    """
    scores = _largest_scores(norms)
    errors = HIGH_PART_ERROR * scores / math.sqrt(max(dim, 1))
    is_used = (
        representation.high_parts
        & (errors <= MOST_HIGH_PART_ERROR)
        & (starts[0] + starts[1] + scores <= AUGMENTED_BITS)
    )
    return np.where(is_used, errors * math.log(2) / np.sqrt(sizes.min(1)), math.nan)


def _largest_scores(norms: tuple[Any, Any]) -> Any:
    return np.square(np.sqrt(norms[0]) + np.sqrt(norms[1]))
