"""An auditor that shares no code with any backend.

`marginal_errors` measures a plan in float64 with direct differences, row by row. `judge` decides whether a plan is
within a tolerance, in extended precision if float64 does not suffice, whatever the size of costs and potentials.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.testing.double_double import DoubleDouble

Vector = NDArray[np.float64]


class Form(NamedTuple):
    """The formula of a cost between points: `scale |u - v|^2 / divisor`, or of the distance itself.

    Attributes:
        root: The cost is the distance, not its square.
        directions: u and v are the points scaled to length one, else the points.
        divisor: Of the squared distance.
        scale: The scale of the cost.
    """

    root: bool = False
    directions: bool = False
    divisor: int = 1
    scale: float = 1.0


# 1 - cos is half a squared distance; it would lose the digits of nearly parallel vectors.
FORMS = {"sqeuclidean": Form(), "euclidean": Form(root=True), "cosine": Form(directions=True, divisor=2)}
"""Formulas by name. This table is the auditor's own, since it shares no code with backends."""


def form_of(cost: str | Cost) -> Form:
    """The formula of a cost by name; ProblemError for any other."""
    name, scale = (str(cost.kind), cost.scale) if isinstance(cost, Cost) else (cost, 1.0)
    if name not in FORMS:
        raise ProblemError(f"the auditor knows the costs {list(FORMS)}, not {name!r}; give it the matrix of costs")
    return FORMS[name]._replace(scale=float(scale))


def cost_row(problem: Problem[Any], i: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Costs from point i of x to every point of y."""
    cost = problem.cost
    matrix = None if isinstance(cost, (str, Cost)) else to_numpy(cost)
    if matrix is not None and matrix.ndim == 2:
        return matrix[i].astype(np.float64)
    form = form_of(cost)
    x, y = to_numpy(problem.x)[i].astype(np.float64), to_numpy(problem.y).astype(np.float64)
    if form.directions:
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y, axis=1, keepdims=True)
    squares = ((y - x) ** 2).sum(axis=1) / form.divisor
    return form.scale * (np.sqrt(squares) if form.root else squares)


def marginal_errors(problem: Problem[Any] | Instance[Any], potentials: Potentials[Any]) -> tuple[float, float]:
    """L1 errors of rows and columns of the plan that these potentials stand for."""
    problem = problem.as_problem() if isinstance(problem, Instance) else problem
    f, g = (to_numpy(p).astype(np.float64) for p in potentials)

    def weights(given: Any, size: int) -> Any:
        values = np.ones(size) if given is None else to_numpy(given).astype(np.float64)
        return values / values.sum()

    a, b = weights(problem.a, len(f)), weights(problem.b, len(g))
    row, columns = 0.0, np.zeros(len(g))
    with np.errstate(over="ignore"):
        for i in range(len(f)):
            ratios = np.exp((f[i] + g - cost_row(problem, i)) / problem.eps)
            plan = a[i] * np.where(b > 0, b * ratios, 0.0) if a[i] > 0 else np.zeros(len(g))
            row += abs(plan.sum() - a[i])
            columns += plan
    return float(row), float(np.abs(columns - b).sum())


class Judgement(NamedTuple):
    """L1 errors of both marginals, and a bound on the rounding error of either.

    Attributes:
        row: Error of the rows, `sum_i |(P 1)_i - a_i|`.
        col: Error of the columns.
        error: Bound on the absolute error of `row` and of `col`; inf where nothing is known.
        arithmetic: What computed them: "float64", "double-double" or "decimal".
    """

    row: float
    col: float
    error: float
    arithmetic: str

    @property
    def worst(self) -> float:
        """The larger error."""
        return max(self.row, self.col)

    def refutes(self, tol: float) -> bool:
        """True if the residual certainly exceeds tol."""
        return not self.worst - self.error <= tol

    def settles(self, tol: float) -> bool:
        """True if the rounding error cannot change whether the residual is within tol."""
        return abs(self.worst - tol) > self.error


def judge(problem: Problem[Any], potentials: Potentials[Any], tol: float) -> Judgement:
    """Measure both marginals of exactly these potentials with as much precision as it takes to compare them with tol.

    The plan is `a_i b_j exp((f_i + g_j - C_ij) / eps)`, where C comes from the caller's points by direct differences,
    or is the caller's matrix, and a and b are the caller's weights over their exact sums. Float64 is tried first, with
    a bound on its rounding error. If the residual differs from tol by no more than the bound, scaled costs in
    double-double with sums in long double are tried next, then decimal arithmetic of 60 digits and more, entry by
    entry.

    Args:
        problem: The problem as given.
        potentials: The potentials as emitted.
        tol: What the residual is compared with.
    """
    claim = _Claim.of(problem, potentials)
    for arithmetic in (_in_float64, _in_double_double):
        with np.errstate(all="ignore"):
            judgement = arithmetic(claim)
        if judgement.settles(tol):
            return judgement
    return _in_decimal(claim)


class _Claim(NamedTuple):
    """A problem and its potentials on the support, in float64, which holds all of them exactly.

    Attributes:
        x: Points, (n, d); with a dense cost None.
        y: Points, (m, d).
        matrix: Dense cost, (n, m), or None.
        form: The formula of the cost between points.
        eps: Strength of the entropic term.
        f: Potentials of the rows.
        g: Potentials of the columns.
        a: Weights of the rows as given, not normalised.
        b: Weights of the columns as given, not normalised.
    """

    x: Any
    y: Any
    matrix: Any
    form: Form
    eps: float
    f: Vector
    g: Vector
    a: Vector
    b: Vector

    @classmethod
    def of(cls, problem: Problem[Any], potentials: Potentials[Any]) -> _Claim:
        f, g = (to_numpy(p).astype(np.float64) for p in potentials)
        a, b = (
            np.ones(len(p)) if weights is None else to_numpy(weights).astype(np.float64)
            for weights, p in ((problem.a, f), (problem.b, g))
        )
        rows, cols = a > 0, b > 0
        common = (float(problem.eps), f[rows], g[cols], a[rows], b[cols])
        if not isinstance(problem.cost, (str, Cost)):
            return cls(None, None, to_numpy(problem.cost).astype(np.float64)[np.ix_(rows, cols)], Form(), *common)
        form = form_of(problem.cost)
        x, y = (to_numpy(p).astype(np.float64) for p in (problem.x, problem.y))
        return cls(x[rows], y[cols], None, form, *common)

    @property
    def d(self) -> int:
        return 0 if self.x is None else self.x.shape[1]


UNIT = 2.0**-53
"""Unit roundoff of float64."""
LONG = max(float(np.finfo(np.longdouble).eps), 2.0**-64)
"""Spacing of long doubles at one: 2^-63 on x86, that of float64 where they are no wider."""
PAIR = 2.0**-100
"""Relative error of one operation on double-doubles, generously."""
FLUSHED = 1e-307
"""Absolute error of one operation whose result is flushed to zero below the normal range."""
BLOCK = 2**18
"""Entries of the plan that are computed at once."""


def _blocks(claim: _Claim) -> Iterator[slice]:
    step = max(1, BLOCK // len(claim.g))
    for start in range(0, len(claim.f), step):
        yield slice(start, start + step)


def _marginals(
    claim: _Claim, a: Any, b: Any, entries: Callable[[slice], tuple[Any, Any]], unit: float, arithmetic: str
) -> Judgement:
    """Marginal errors from blocks of rows of the plan.

    Args:
        claim: The problem and its potentials.
        a: Normalised weights of the rows.
        b: Normalised weights of the columns.
        entries: Function from rows to `exp((f + g - C) / eps)`, and to the same with each exponent raised by its error
            bound.
        unit: Bound on the relative error of one sum, product, exponential or normalised weight.
        arithmetic: Name of the arithmetic that `entries` uses.
    """
    row, error, columns, total = b[0] * 0, b[0] * 0, b * 0, b[0] * 0
    for rows in _blocks(claim):
        ratios, raised = entries(rows)
        weight = a[rows, None]
        plan = weight * (b * ratios)
        sums = plan.sum(axis=1)
        row, columns, total = row + np.abs(sums - a[rows]).sum(), columns + plan.sum(axis=0), total + sums.sum()
        # A weight below the normal range has an error of FLUSHED, and so has every product in that range.
        lost = FLUSHED * ((weight + b) * raised + 3)
        error += (weight * (b * raised) - plan + 8 * unit * weight * (b * raised) + lost).sum()
    error += (len(claim.f) + len(claim.g) + 16) * unit * (2 + total)
    errors = float(row), float(np.abs(columns - b).sum()), float(error)
    if not all(map(math.isfinite, errors)):
        # A NaN decides nothing, so its error is infinite.
        return Judgement(*errors[:2], math.inf, arithmetic)
    return Judgement(*errors, arithmetic)


def _in_float64(claim: _Claim) -> Judgement:
    """Everything in float64."""
    form, d, eps = claim.form, claim.d, claim.eps

    def costs(rows: slice) -> tuple[Any, Any]:
        if claim.matrix is not None:
            return claim.matrix[rows], 0.0
        x, y = claim.x[rows], claim.y
        if form.directions:
            x, y = (p / np.linalg.norm(p, axis=1, keepdims=True) for p in (x, y))
        total = np.zeros((len(x), len(y)))
        for k in range(d):
            total += (x[:, k, None] - y[None, :, k]) ** 2
        error = (d + 6) * UNIT * total + d * FLUSHED
        if form.directions:
            total, slip = total / form.divisor, (d + 6) * UNIT
            error += 2 * slip * np.sqrt(2 * total) + 2 * slip**2
            # Norms of vectors whose squares would underflow or overflow.
            sizes = np.abs(np.concatenate([claim.x, claim.y])).max(axis=1)
            error += 0.0 if sizes.min() > 1e-140 and sizes.max() < 1e140 else math.inf
        elif form.root:
            total, error = np.sqrt(total), (d + 6) * UNIT * np.sqrt(total) + math.sqrt(d * FLUSHED)
        return form.scale * total, form.scale * error + 2 * UNIT * form.scale * total + FLUSHED

    def entries(rows: slice) -> tuple[Any, Any]:
        cost, error = costs(rows)
        sums = claim.f[rows, None] + claim.g
        gaps = sums - cost
        error = error + UNIT * np.abs(sums) + 3 * UNIT * np.abs(gaps) + 3 * FLUSHED
        return np.exp(gaps / eps), np.exp(gaps / eps + 1.001 * error / eps)

    a, b = (weights / math.fsum(weights) for weights in (claim.a, claim.b))
    return _marginals(claim, a, b, entries, 2 * UNIT, "float64")


def _in_double_double(claim: _Claim) -> Judgement:
    """Scores in double-double; their exponentials and the sums in long double."""
    form, scale, d, eps = claim.form, claim.form.scale, claim.d, claim.eps

    def points(values: Any) -> list[DoubleDouble]:
        """Coordinates of all points, one pair of vectors each; of unit length for the cosine."""
        coordinates = [DoubleDouble(values[:, k].copy(), np.zeros(len(values))) for k in range(d)]
        if not form.directions:
            return coordinates
        # Scaled by a power of two, so that squares stay in range.
        shift = np.exp2(-np.frexp(np.abs(values).max(axis=1))[1].astype(np.float64))
        coordinates = [DoubleDouble(p.hi * shift, p.lo) for p in coordinates]
        total = coordinates[0].times(coordinates[0])
        for p in coordinates[1:]:
            total = total.plus(p.times(p))
        return [p.over(total.root()) for p in coordinates]

    x, y = (points(claim.x), points(claim.y)) if claim.matrix is None else ([], [])

    def costs(rows: slice) -> tuple[DoubleDouble, Any]:
        if claim.matrix is not None:
            return DoubleDouble(claim.matrix[rows], np.zeros_like(claim.matrix[rows])), 0.0
        total = DoubleDouble(*np.zeros((2, *claim.f[rows].shape, len(claim.g))))
        for p, q in zip(x, y, strict=True):
            difference = DoubleDouble(p.hi[rows, None], p.lo[rows, None]).minus(DoubleDouble(q.hi[None], q.lo[None]))
            total = total.plus(difference.times(difference))
        error = (d + 8) * PAIR * total.hi + d * FLUSHED
        if form.directions:
            total, slip = DoubleDouble(total.hi / form.divisor, total.lo / form.divisor), (d + 8) * PAIR
            error += 2 * slip * np.sqrt(2 * np.abs(total.hi)) + 2 * slip**2
        elif form.root:
            total = total.root()
            error = (d + 8) * PAIR * total.hi + math.sqrt(d * FLUSHED)
        scaled = total.times(DoubleDouble(np.float64(scale), np.float64(0)))
        return scaled, scale * error + 2 * PAIR * np.abs(scaled.hi) + 4 * FLUSHED

    def entries(rows: slice) -> tuple[Any, Any]:
        cost, error = costs(rows)
        gaps = DoubleDouble.sum(claim.f[rows, None], claim.g[None]).minus(cost)
        scores = gaps.over(DoubleDouble(np.float64(eps), np.float64(0)))
        error = (error + PAIR * np.abs(gaps.hi) + 4 * FLUSHED) / eps + PAIR * np.abs(scores.hi)
        # The low part is below 1e-13 wherever the exponential is in range, so two terms of its series suffice.
        low = scores.lo.astype(np.longdouble)
        ratios = np.exp(scores.hi.astype(np.longdouble)) * (1 + low + low * low / 2)
        return ratios, ratios * np.exp(1.001 * error.astype(np.longdouble))

    def weights(given: Vector) -> Any:
        total = math.fsum(given)
        rest = math.fsum([*given, -total])
        return given.astype(np.longdouble) / (np.longdouble(total) + np.longdouble(rest))

    return _marginals(claim, weights(claim.a), weights(claim.b), entries, 4 * LONG, "double-double")


def _in_decimal(claim: _Claim) -> Judgement:
    """Judge entry by entry in decimal arithmetic, in which every operation is rounded correctly.

    It has 60 digits, and as many more as the largest C / eps has before the point.
    """
    form, scale = claim.form, claim.form.scale
    # The largest cost in decimal digits, generously: of points, the square of their largest distance.
    largest = np.abs(claim.matrix if claim.matrix is not None else np.concatenate([claim.x, claim.y])).max()
    magnitude = math.log10(max(float(largest), 1.0)) * (1 if claim.matrix is not None else 2)
    digits = 60 + max(0, math.ceil(magnitude + math.log10(scale * max(1, claim.d)) - math.log10(claim.eps)))
    traps = [decimal.InvalidOperation, decimal.DivisionByZero]
    context = decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=traps)

    def exactly(values: Any) -> Any:
        return [exactly(value) for value in values] if np.ndim(values) else decimal.Decimal(float(values))

    with decimal.localcontext(context):
        eps, factor = exactly(claim.eps), exactly(scale)
        f, g, a, b = (exactly(vector) for vector in (claim.f, claim.g, claim.a, claim.b))
        a, b = ([w / total for w in weights] for weights, total in ((a, _total(a)), (b, _total(b))))
        matrix = None if claim.matrix is None else exactly(claim.matrix)
        x, y = ([], []) if matrix is not None else (exactly(claim.x), exactly(claim.y))
        if form.directions:
            x, y = ([_unit(point) for point in points] for points in (x, y))

        def cost(i: int, j: int) -> decimal.Decimal:
            if matrix is not None:
                return matrix[i][j]
            square = _total([(p - q) * (p - q) for p, q in zip(x[i], y[j], strict=True)])
            return factor * (square.sqrt() if form.root else square / form.divisor)

        rows, columns = [decimal.Decimal(0)] * len(f), [decimal.Decimal(0)] * len(g)
        for i, (row, weight) in enumerate(zip(f, a, strict=True)):
            for j, (col, other) in enumerate(zip(g, b, strict=True)):
                score = (row + col - cost(i, j)) / eps
                if score > 5000:
                    # Weights are above 1e-648, so this entry is beyond every tolerance.
                    return Judgement(math.inf, math.inf, 0.0, "decimal")
                if score > -5000:
                    entry = weight * other * score.exp()
                    rows[i] += entry
                    columns[j] += entry
        row = _total([abs(p - w) for p, w in zip(rows, a, strict=True)])
        col = _total([abs(p - w) for p, w in zip(columns, b, strict=True)])
        # The result is rounded to float64, so a claim within one unit in the last place of tol is not refuted.
        return Judgement(float(row), float(col), 2 * UNIT * float(max(row, col)), "decimal")


def _total(values: list[Any]) -> decimal.Decimal:
    return sum(values, decimal.Decimal(0))


def _unit(point: list[Any]) -> list[Any]:
    length = _total([p * p for p in point]).sqrt()
    return [p / length for p in point]
