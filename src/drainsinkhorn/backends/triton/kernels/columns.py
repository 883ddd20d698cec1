"""Columns of the tables that the host and Triton's kernels share, codes of their constants, and numeric constants.

Kernels import these names one by one. Triton's cache on disk is keyed by the values of global names that a kernel
reads, but not by attributes of modules: through `columns.SIZE` a kernel of an earlier release would be found.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from drainsinkhorn.numerics import rounding, soft
from drainsinkhorn.numerics import update as rules


class Constant(tl.constexpr):
    """A constexpr that is compared fast with a copy of itself, as Triton does for every one of them at every launch."""

    def __ne__(self, other):
        return self.value != other.value if isinstance(other, Constant) else super().__ne__(other)

    __hash__ = tl.constexpr.__hash__


# Columns of the lane table, int64. Columns of two sides are a pair, (rows, columns): the column of a side is NAME +
# side. Columns of buffers hold the offset, in elements, at which the lane begins in that buffer.
SIZE = Constant(0)
"""Pair. Number of points."""
POINTS16 = Constant(2)
"""Pair, in points16. Coordinates as float16 high and low parts, (size, chunks, 2, DP); packed: (size, 16); points in
three parts: (size, 1 + LOWS, CHUNK), see `kernels.triple`."""
POINTS32 = Constant(4)
"""Pair, in points32. Coordinates in float32, (dim, padded size)."""
POINTS64 = Constant(6)
"""Pair, in points64. Coordinates in float64, (dim, size); of a dense cost the scaled cost, (n, m), for rows alone."""
ROUNDED = Constant(8)
"""Pair, in vectors32. Potentials in bits, rounded to multiples of 1 / GRID."""
REST = Constant(10)
"""Pair, in vectors32. What rounding took from the potentials, in bits."""
WEIGHT = Constant(12)
"""Pair, in vectors32. Weights with which points enter sums of the other side: mass times 2^REST. Legs in float64 or
from points in three parts read no weights; when measured or checked, they store here what rounding the entries of
LOG_RATIOS to float32 removed."""
POTENTIAL = Constant(14)
"""Pair, in vectors64. Potentials in bits."""
NORM = Constant(16)
"""Pair, in vectors64. Squared norms of points, in bits; of cached scores, the potentials absorbed in the matrix; of
points in three parts, norms less the logarithms of weights."""
MASS = Constant(18)
"""Pair, in vectors64. Weights of the marginals."""
LOG_RATIOS = Constant(20)
"""Pair, in vectors32. The measured leg in bits: log2 of marginal ratios, of soft lanes `log2 r + kappa f`."""
ERRORS = Constant(22)
"""Pair, in vectors64. Parts of the residual, one for each tile of rows."""
BEFORE = Constant(24)
"""In vectors64. The x of the last update of f, in bits."""
ALIGNMENT = Constant(25)
"""In vectors64. Parts of the alignment of the measured f-leg, one for each tile of rows."""
MATRIX = Constant(26)
"""In points32. Cached log-kernel entries, (n, padded m)."""
FLOAT64 = Constant(27)
"""Arithmetic of legs: 0 for float32 (`kernels.leg`), 1 for float64, TRIPLE or COMPENSATED for points in three parts.

These codes are not the values of `precision.Arithmetic`; `precision.CODES` translates.
"""
DIM = Constant(28)
"""Number of coordinates."""
SHARES = Constant(29)
"""Pair. Number of programs that share the columns of a tile of rows."""
PARTIAL = Constant(31)
"""In vectors32, or in vectors64 for points in three parts. Sums of the programs that share a tile of rows, (shares,
padded size)."""
COUNTERS = Constant(32)
"""In counters. Number of programs of each tile that have arrived."""
AUGMENTED = Constant(33)
"""1 for lanes whose potentials are inside the product (augmented coordinates)."""
ARRIVED = Constant(34)
"""In counters. Number of tiles of the lane that have arrived."""
FLOAT64_BAND = Constant(35)
"""In vectors64. Rounding bound of what float64 measures."""
PRICES = Constant(36)
"""In vectors64. Numbers of a lane with a soft marginal; 0 if both are hard."""
LOG_MASSES = Constant(37)
"""Pair, in vectors64. Parts of the mass of the plan of a soft lane, one for each tile of rows, as logarithms."""
ASKED = Constant(39)
"""In vectors64. Parts of the mass that rows ask for after a plain leg, one for each tile of rows, as logarithms."""
SCALE = Constant(40)
"""Log2 of the factor by which coordinates in three parts are multiplied."""
FIELDS = Constant(41)
"""Number of columns of the lane table."""

# Columns of the state of a lane, float64. Residuals are L1 norms.
DEPTH = Constant(0)
"""Cycles that the lane has run."""
BAND = Constant(1)
"""Rounding bound that the screen adds to a residual."""
AGE = Constant(2)
"""Legs with momentum in a row."""
BEST = Constant(3)
"""Smallest row residual so far."""
COOLDOWN = Constant(4)
"""Plain legs that are still to come after a growth of the residual."""
BACKOFF = Constant(5)
"""Log2 of the plain legs that the next growth causes."""
ROWS_EXACT = Constant(6)
"""1 after a plain f-leg."""
STARTED = Constant(7)
"""1 after the first cycle."""
HELD = Constant(8)
"""1 for lanes that are skipped for the rest of a call."""
FROZEN = Constant(9)
"""1 for lanes that never change again."""
UNIT = Constant(10)
"""Potential of one bit in units of the cost: eps ln 2."""
BUDGET = Constant(11)
"""By how much rounding to the caller's dtype may move potentials, in units of the cost; negative if it must not."""
SWITCH = Constant(12)
"""Residual at which the lane switches from float16 high parts to all products; 0 if it uses all products."""
CALLER_DTYPE = Constant(13)
"""FLOAT16 or BFLOAT16 if the caller's dtype is one of them, else 0."""
NUMBERS = Constant(16)
"""Number of columns of the state, a power of two."""

# Numbers of a soft lane, float64, at PRICES.
KAPPA = Constant(0)
"""Pair. `eps kappa`, 0 for a hard marginal."""
DAMPING = Constant(2)
"""Pair. Damping lam of the update."""
LOG_MASS = Constant(4)
"""Pair. Log2 of the total weight."""
OPENING = Constant(6)
"""Log2 of the mass that columns ask for at the start."""
SOFT_NUMBERS = Constant(7)
"""How many these are."""


class Report(NamedTuple):
    """Columns that `report` writes for each lane; on the host, one vector for each column."""

    depth: Any
    stale: Any
    held: Any
    band: Any


class Findings(NamedTuple):
    """Columns that `round_states` and `check` write for each lane; on the host, one vector for each column.

    Attributes:
        row: Row residual.
        col: Column residual.
        row_error: Mean relative error of the sampled rows.
        col_error: Mean relative error of the sampled columns.
        emitted: EMITS_DOUBLE, EMITS_SINGLE or EMITS_HALF: dtype in which potentials are emitted.
        broken: 1 if the state is not finite.
        largest: Sum of the largest potentials of both sides, in bits.
        unsampled: By how much the mean sizes of potentials exceed twice those of sampled rows, in bits
            (`numerics.rounding.unsampled_size`).
    """

    row: Any
    col: Any
    row_error: Any
    col_error: Any
    emitted: Any
    broken: Any
    largest: Any
    unsampled: Any


REPORT = Constant(len(Report._fields))
REPORT_DEPTH, REPORT_STALE, REPORT_HELD, REPORT_BAND = map(Constant, range(REPORT.value))
FINDINGS = Constant(len(Findings._fields))
FOUND_RESIDUAL = Constant(Findings._fields.index("row"))
FOUND_ERROR = Constant(Findings._fields.index("row_error"))
FOUND_EMITTED = Constant(Findings._fields.index("emitted"))
FOUND_BROKEN = Constant(Findings._fields.index("broken"))
FOUND_LARGEST = Constant(Findings._fields.index("largest"))
FOUND_UNSAMPLED = Constant(Findings._fields.index("unsampled"))

# Vectors of one side of stacked plans, (VECTORS, lanes, padded size), float32.
LEVEL = Constant(0)
"""Potential less the norm of the point, in bits, rounded to the grid."""
LEVEL_REST = Constant(1)
"""What rounding took from LEVEL."""
OTHER_LEVEL = Constant(2)
"""The same with the logarithm of the weight, rounded to the grid."""
OTHER_WEIGHT = Constant(3)
"""2 to the power of what rounding took from OTHER_LEVEL."""
OTHER_REST = Constant(4)
"""What OTHER_LEVEL lacks of the potential less the norm."""
VECTORS = Constant(5)

# Codes of arithmetic beyond float32 and float64, in the column FLOAT64.
TRIPLE = Constant(2)
"""Points in three float16 parts; exponentials and sums in float32."""
COMPENSATED = Constant(3)
"""The same, with exponentials of two parts and compensated sums."""

# Codes of dtypes.
FLOAT16 = Constant(1)
BFLOAT16 = Constant(2)
EMITS_DOUBLE = Constant(0)
EMITS_SINGLE = Constant(1)
EMITS_HALF = Constant(2)
# Roles of a leg: measured (rows), measured and applied (columns), measured for a check, or measured for sampled rows.
MEASURED = Constant(0)
APPLIED = Constant(1)
CHECKED = Constant(2)
SAMPLED = Constant(3)
# Sides: 0 for rows, 1 for columns, or both in one launch, told apart by the last number of a program.
BOTH = Constant(2)
# Kinds of scores. PACKED is the kind of legs of DIRECT lanes whose potentials are inside the product.
DIRECT = Constant(0)
ROOT = Constant(1)
PRODUCT = Constant(2)
STORED = Constant(3)
PACKED = Constant(4)
# Lanes whose potentials carry the norms of points: all, those with augmented coordinates, or none.
ALL = Constant(0)
ONLY_AUGMENTED = Constant(1)
NONE = Constant(2)

STEP = Constant(rules.STEP)
OFFSET = Constant(rules.OFFSET)
FAST = Constant(rules.FAST)
GROWTH = Constant(rules.GROWTH)
MAX_BACKOFF = Constant(rules.MAX_BACKOFF)
FARTHEST = Constant(soft.FARTHEST)
MOST_RESIDUAL = Constant(1e30)
"""Largest residual of a soft lane that is told apart from others: a larger one may be infinite, as no state is."""

GRID = Constant(1024.0)
"""Steps per bit to which potentials are rounded: two of them below 2^12 bits add up exactly in float32."""
FLOAT16_MOST = Constant(6e4)
"""Bound of potentials, in bits, before they are stored as float16 numbers, which hold up to 65504."""
RANGE = Constant(80.0)
"""Bits by which a sum may differ from 1 before it is computed again with its largest term taken out."""
RANGE64 = Constant(900.0)
"""The same as RANGE for sums in float64."""
ROOMY = Constant(64)
"""Coordinates of a chunk whose last four are places for potentials: two parts of its own, and two ones for another's.

A point of fewer coordinates has one place, and the low part of its potential is among its low parts.
"""
TRIPLE_ROWS = Constant(64)
"""Rows of a tile of points in three parts."""
TRIPLE_RANGE = Constant(60.0)
"""The same as RANGE for points in three parts, of which exponents end at TRIPLE_MOST."""
TRIPLE_MOST = Constant(120.0)
"""Largest size of an exponent, in bits, whose integer part is put into the exponent bits of float32."""
APPLY_ROWS = Constant(512)
"""Rows that the last program of a fused leg updates at a time."""
SAFETY = Constant(3.0)
"""Factor on the mean relative error of sampled rows in a rounding bound."""
FLOAT32_ERROR = Constant(3e-7)
"""Least relative error that a rounding bound assumes of sums, exponentials and logarithms in float32."""
TRIPLE_ERROR = Constant(rounding.TRIPLE_ERROR)
COMPENSATED_ERROR = Constant(rounding.COMPENSATED_ERROR)
"""The same of points in three parts."""
SCREEN_SAFETY = Constant(1.5)
"""Further factor in the rounding bound of the screen: it was sampled when the lane opened, and later states differ."""
LEAST_BAND = Constant(2.7e-6)
"""Least rounding bound of the screen in float32. A screen that passes what verify rejects costs one more call."""
LN2 = Constant(0.6931471805599453)
ROOT_TWO = Constant(2.0**0.5)
