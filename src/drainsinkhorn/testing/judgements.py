"""Marginal errors of a plan in float64, double-double and decimal arithmetic, with bounds on their rounding errors."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.testing.double_double import DoubleDouble
from drainsinkhorn.testing.forms import Form, form_of, prices_of

Vector = NDArray[np.float64]


class Judgement(NamedTuple):
    """L1 errors of both marginals, and a bound on the rounding error of either.

    With a soft marginal they are relative to the mass of the plan, and a marginal with the price rho is compared with
    `a exp(-f / rho)`.

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


class PlanClaim(NamedTuple):
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
        rhos: Prices of both marginals; inf: hard.
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
    rhos: tuple[float, float]

    @classmethod
    def of(cls, problem: Problem[Any], potentials: Potentials[Any]) -> PlanClaim:
        """Return the problem and potentials on the support."""
        f, g = (to_numpy(p).astype(np.float64) for p in potentials)
        a, b = (
            np.ones(len(p)) if weights is None else to_numpy(weights).astype(np.float64)
            for weights, p in ((problem.a, f), (problem.b, g))
        )
        rows, cols = a > 0, b > 0
        rhos = prices_of(problem)
        if min(rhos) < math.inf:
            # Uniform weights have mass 1 in any case.
            a, b = (w / len(w) if given is None else w for w, given in ((a, problem.a), (b, problem.b)))
        common = (float(problem.eps), f[rows], g[cols], a[rows], b[cols], rhos)
        if not isinstance(problem.cost, (str, Cost)):
            return cls(None, None, to_numpy(problem.cost).astype(np.float64)[np.ix_(rows, cols)], Form(), *common)
        form = form_of(problem.cost)
        x, y = (to_numpy(p).astype(np.float64) for p in (problem.x, problem.y))
        return cls(x[rows], y[cols], None, form, *common)

    @property
    def d(self) -> int:
        """Coordinates of a point."""
        return 0 if self.x is None else self.x.shape[1]

    @property
    def is_balanced(self) -> bool:
        """True if both marginals are hard."""
        return min(self.rhos) == math.inf

    @property
    def sides(self) -> tuple[tuple[Vector, float], tuple[Vector, float]]:
        """Potentials and price of either side."""
        return (self.f, self.rhos[0]), (self.g, self.rhos[1])


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


def _blocks(claim: PlanClaim) -> Iterator[slice]:
    step = max(1, BLOCK // len(claim.g))
    for start in range(0, len(claim.f), step):
        yield slice(start, start + step)


def _marginals(
    claim: PlanClaim,
    a: Any,
    b: Any,
    shares: tuple[tuple[Any, Any], tuple[Any, Any]],
    entries: Callable[[slice], tuple[Any, Any]],
    unit: float,
    arithmetic: str,
) -> Judgement:
    """Marginal errors from blocks of rows of the plan.

    Args:
        claim: The problem and its potentials.
        a: Weights of the rows, normalised if both marginals are hard.
        b: Weights of the columns.
        shares: For rows and columns `exp(-f / rho)`, and a bound on its relative error; ones and 0 if both are hard.
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
        row += np.abs(sums - (a * shares[0][0])[rows]).sum()
        columns, total = columns + plan.sum(axis=0), total + sums.sum()
        # A weight below the normal range has an error of FLUSHED, and so has every product in that range.
        lost = FLUSHED * ((weight + b) * raised + 3)
        error += (weight * (b * raised) - plan + 8 * unit * weight * (b * raised) + lost).sum()
    col = np.abs(columns - b * shares[1][0]).sum()
    if claim.is_balanced:
        error += (len(claim.f) + len(claim.g) + 16) * unit * (2 + total)
    else:
        target_mass = sum((w * share).sum() for w, (share, _) in zip((a, b), shares, strict=True))
        error += (len(claim.f) + len(claim.g) + 16) * unit * (target_mass + total)
        error += sum(
            (w * share * slip).sum() + FLUSHED * len(w) for w, (share, slip) in zip((a, b), shares, strict=True)
        )
        # From numerators to ratios: (n + e) / (m - e) - n / m = e (1 + n / m) / (m - e).
        row, col = row / total, col / total
        error = error * (1 + max(row, col)) / (total - error) if error < total else math.inf
    errors = float(row), float(col), float(error)
    if not all(map(math.isfinite, errors)):
        # A NaN decides nothing, so its error is infinite.
        return Judgement(*errors[:2], math.inf, arithmetic)
    return Judgement(*errors, arithmetic)


def in_float64(claim: PlanClaim) -> Judgement:
    """Everything in float64."""
    form, d, eps = claim.form, claim.d, claim.eps

    def costs(rows: slice) -> tuple[Any, Any]:
        if claim.matrix is not None:
            return claim.matrix[rows], 0.0
        x, y = claim.x[rows], claim.y
        if form.directions:
            x, y = (p / np.linalg.norm(p, axis=1, keepdims=True) for p in (x, y))
        total = np.zeros((len(x), len(y)))
        if form.dot:
            sizes = np.zeros_like(total)
            for k in range(d):
                term = x[:, k, None] * y[None, :, k]
                total, sizes = total + term, sizes + np.abs(term)
            error = (d + 2) * UNIT * sizes + d * FLUSHED
            return form.scale * form.dot * total, form.scale * error + 2 * UNIT * form.scale * sizes + FLUSHED
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

    a, b = claim.a, claim.b
    shares: Any = ((1.0, 0.0), (1.0, 0.0))
    if claim.is_balanced:
        a, b = (weights / math.fsum(weights) for weights in (a, b))
    else:
        first, second = (p / rho for p, rho in claim.sides)
        shares = tuple((np.exp(-q), 4 * UNIT * (1 + np.abs(q))) for q in (first, second))
    return _marginals(claim, a, b, shares, entries, 2 * UNIT, "float64")


def in_double_double(claim: PlanClaim) -> Judgement:
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
        sizes = 0.0
        for p, q in zip(x, y, strict=True):
            own, other = DoubleDouble(p.hi[rows, None], p.lo[rows, None]), DoubleDouble(q.hi[None], q.lo[None])
            difference = own.minus(other)
            term = own.times(other) if form.dot else difference.times(difference)
            total, sizes = total.plus(term), sizes + np.abs(term.hi)
        error = (d + 8) * PAIR * sizes + d * FLUSHED
        if form.directions:
            total, slip = DoubleDouble(total.hi / form.divisor, total.lo / form.divisor), (d + 8) * PAIR
            error += 2 * slip * np.sqrt(2 * np.abs(total.hi)) + 2 * slip**2
        elif form.root:
            total = total.root()
            error = (d + 8) * PAIR * total.hi + math.sqrt(d * FLUSHED)
        scaled = total.times(DoubleDouble(np.float64(scale * (form.dot or 1)), np.float64(0)))
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

    if claim.is_balanced:
        ones: Any = ((1.0, 0.0), (1.0, 0.0))
        return _marginals(claim, weights(claim.a), weights(claim.b), ones, entries, 4 * LONG, "double-double")

    def share(potentials: Vector, rho: float) -> tuple[Any, Any]:
        if rho == math.inf:
            return np.longdouble(1.0), np.longdouble(0.0)
        ratio = DoubleDouble(-potentials, np.zeros(len(potentials))).over(DoubleDouble(np.float64(rho), np.float64(0)))
        low = ratio.lo.astype(np.longdouble)
        value = np.exp(ratio.hi.astype(np.longdouble)) * (1 + low + low * low / 2)
        return value, 8 * LONG + 4 * PAIR * np.abs(ratio.hi).astype(np.longdouble) + np.abs(low) ** 3

    a, b = claim.a.astype(np.longdouble), claim.b.astype(np.longdouble)
    (f, rho_a), (g, rho_b) = claim.sides
    return _marginals(claim, a, b, (share(f, rho_a), share(g, rho_b)), entries, 4 * LONG, "double-double")


def in_decimal(claim: PlanClaim) -> Judgement:
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
        if claim.is_balanced:
            a, b = ([w / total for w in weights] for weights, total in ((a, _total(a)), (b, _total(b))))
        wanted_a, wanted_b = (
            w if rho == math.inf else [each * (-p / exactly(rho)).exp() for each, p in zip(w, potentials, strict=True)]
            for w, potentials, rho in ((a, f, claim.rhos[0]), (b, g, claim.rhos[1]))
        )
        matrix = None if claim.matrix is None else exactly(claim.matrix)
        x, y = ([], []) if matrix is not None else (exactly(claim.x), exactly(claim.y))
        if form.directions:
            x, y = ([_unit(point) for point in points] for points in (x, y))

        def cost(i: int, j: int) -> decimal.Decimal:
            if matrix is not None:
                return matrix[i][j]
            if form.dot:
                return factor * form.dot * _total([p * q for p, q in zip(x[i], y[j], strict=True)])
            square = _total([(p - q) * (p - q) for p, q in zip(x[i], y[j], strict=True)])
            return factor * (square.sqrt() if form.root else square / form.divisor)

        rows, columns = [decimal.Decimal(0)] * len(f), [decimal.Decimal(0)] * len(g)
        for i, (row, weight) in enumerate(zip(f, a, strict=True)):
            for j, (col, other) in enumerate(zip(g, b, strict=True)):
                score = (row + col - cost(i, j)) / eps
                if score > (5000 if claim.is_balanced else 1e15):
                    # Weights are above 1e-648, so this entry is beyond every tolerance. Soft marginals may ask for
                    # large masses, but not for entries that float64 potentials do not resolve.
                    return Judgement(math.inf, math.inf, 0.0, "decimal")
                if score > -5000 or not claim.is_balanced:
                    entry = weight * other * score.exp()
                    rows[i] += entry
                    columns[j] += entry
        row = _total([abs(p - w) for p, w in zip(rows, wanted_a, strict=True)])
        col = _total([abs(p - w) for p, w in zip(columns, wanted_b, strict=True)])
        if not claim.is_balanced:
            mass = _total(rows)
            if mass == 0:
                return Judgement(math.inf, math.inf, 0.0, "decimal")
            row, col = row / mass, col / mass
        # The result is rounded to float64, so a claim within one unit in the last place of tol is not refuted.
        return Judgement(float(row), float(col), 2 * UNIT * float(max(row, col)), "decimal")


def _total(values: list[Any]) -> decimal.Decimal:
    return sum(values, decimal.Decimal(0))


def _unit(point: list[Any]) -> list[Any]:
    length = _total([p * p for p in point]).sqrt()
    return [p / length for p in point]
