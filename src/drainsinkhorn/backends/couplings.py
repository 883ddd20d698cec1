"""Consumers of finished plans, a block of rows at a time: O(n + m) memory for each problem, beside the output.

All consumers read the conditional distributions of the points of one side, for row i

    p_ij = b_j exp((g_j - C_ij) / eps) / sum_j ...        # each row sums to 1
    log rho_i = f_i / eps + log sum_j b_j exp((g_j - C_ij) / eps)

(`numerics.transforms.conditionals`), so that `P_ij = a_i rho_i p_ij`. A backend may have its own `RowConditionals`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.consumer_arguments import (
    check_pairs,
    checked_count,
    checked_rows,
    checked_side,
    checked_values,
    uniforms,
)
from drainsinkhorn.backends.draws import Places, Vector, draw_by_mass
from drainsinkhorn.backends.plan_certificate import certify_plan
from drainsinkhorn.backends.soft_terms import soft_terms
from drainsinkhorn.model.couplings import Certificate, TransportCost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import to_caller, to_numpy
from drainsinkhorn.numerics.costs import unit_rows
from drainsinkhorn.numerics.exchange import exchange_sides
from drainsinkhorn.numerics.slopes import require_slope, slope, slope_of_distances
from drainsinkhorn.numerics.transforms import Matrix, SoftTerms, plan_costs, row_masses, times_mass

BLOCK_PAIRS, SAMPLE_PAIRS = 2**16, 2**21
"""Entries of conditional distributions that one thread holds at a time; and the largest n x m of a lane whose entries
`sample` holds all at once."""


class Block(NamedTuple):
    """A block of k rows of one side.

    Attributes:
        conditionals: Conditional distributions of the rows, (k, m).
        log_ratios: Log marginal ratios of the rows, (k,).
        scaled_costs: `C / eps`, (k, m).
    """

    conditionals: Matrix
    log_ratios: Vector
    scaled_costs: Matrix


class RowConditionals(Protocol):
    """Conditional distributions of one side of one problem, over the points of the other side that have weight."""

    def block(self, rows: Places, /) -> Block:
        """The block of these rows."""
        ...

    def mean(self, weights: Matrix, values: Matrix, /) -> Matrix:
        """`weights @ values`, (k, m) times (m, c)."""
        ...

    def draw(self, conditionals: Matrix, rows: Places, numbers: Vector, /) -> Places:
        """For each of the rows (indices of `conditionals`) the first column whose cumulative sum exceeds its number."""
        ...


class Side(NamedTuple):
    """One side of a problem, with n points, and the m points of the other side that have weight.

    Attributes:
        instance: The problem, with its sides exchanged if necessary, so that this side is x.
        f: Potentials of this side over eps, (n,).
        g: Potentials of the other side over eps, (m,).
        a: Weights of this side, (n,).
        b: Positive weights of the other side, (m,).
        cols: Indices of those m points among all points of the other side.
    """

    instance: Instance[Any]
    f: Vector
    g: Vector
    a: Vector
    b: Vector
    cols: Places

    @property
    def others(self) -> Matrix:
        """Points of the other side that have weight, (m, d)."""
        return to_numpy(self.instance.y).astype(np.float64)[self.cols]

    @property
    def points(self) -> Matrix:
        """Points of this side, (n, d)."""
        return to_numpy(self.instance.x).astype(np.float64)


def side_of(instance: Instance[Any], potentials: Potentials[Any], side: str) -> Side:
    """One side of a problem in normal form."""
    f, g = (to_numpy(p).astype(np.float64) / instance.eps for p in potentials)
    a, b = to_numpy(instance.a), to_numpy(instance.b)
    if side == "col":
        instance = exchange_sides(instance)
        f, g, a, b = g, f, b, a
    cols = np.flatnonzero(b)
    return Side(instance, f, g[cols], a, b[cols], cols)


Each = Callable[[Callable[[int], None], int], None]


def one_by_one(work: Callable[[int], None], count: int) -> None:
    """Do all pieces of work in their order."""
    for k in range(count):
        work(k)


class BlockCouplings:
    """Finished plans whose conditional distributions are computed in blocks of rows, in float64.

    Args:
        instances: The problems.
        potentials: The potentials of each problem.
        conditionals: Builds the RowConditionals of a side.
        each: Calls a function with 0, 1, ..., count - 1, in any order and perhaps in threads.
    """

    def __init__(
        self,
        instances: Sequence[Instance[Any]],
        potentials: Sequence[Potentials[Any]],
        conditionals: Callable[[Side], RowConditionals],
        each: Each = one_by_one,
    ) -> None:
        self._instances = list(instances)
        self._potentials = list(potentials)
        self._make = conditionals
        self._each = each
        self._sides: dict[str, list[tuple[Side, RowConditionals]]] = {}

    def _lanes(self, side: str) -> list[tuple[Side, RowConditionals]]:
        if checked_side(side) not in self._sides:
            sides = [side_of(p, h, side) for p, h in zip(self._instances, self._potentials, strict=True)]
            with np.errstate(all="ignore"):
                self._sides[side] = [(one, self._make(one)) for one in sides]
        return self._sides[side]

    def _sweep(self, side: str, work: Callable[[int, Places, Block], None], among: Sequence[int] | None = None) -> None:
        """Call `work(lane, rows, block)` for all rows of all lanes, or of the lanes `among`."""
        lanes = self._lanes(side)
        pieces: list[tuple[int, Places]] = []
        for lane in range(len(lanes)) if among is None else among:
            one, _ = lanes[lane]
            step = max(4, BLOCK_PAIRS // one.b.size)
            pieces += [(lane, np.arange(k, min(k + step, one.a.size))) for k in range(0, one.a.size, step)]

        @np.errstate(all="ignore")
        def take(k: int) -> None:
            lane, rows = pieces[k]
            work(lane, rows, lanes[lane][1].block(rows))

        self._each(take, len(pieces))

    def _return(self, lane: int, array: NDArray[Any]) -> Any:
        """Return an array in the dtype of the potentials, which may be wider than the caller's; float32 at least.

        Entries of a plan between many points are below the range of float16.
        """
        dtype = np.result_type(to_numpy(self._potentials[lane].f).dtype, np.float32)
        with np.errstate(over="ignore"):
            array = array if array.dtype.kind == "i" else array.astype(dtype)
        return to_caller(array, self._instances[lane].like)

    def log_ratios(self, side: str = "row") -> list[Any]:
        """Log marginal ratios."""
        return [self._return(lane, logs) for lane, logs in enumerate(self._logs(side))]

    def _logs(self, side: str, among: Sequence[int] | None = None) -> list[Vector]:
        """Log marginal ratios of every lane; those of lanes that are not `among` are not computed."""
        logs = [np.empty(one.a.size) for one, _ in self._lanes(side)]

        def work(lane: int, rows: Places, block: Block) -> None:
            logs[lane][rows] = block.log_ratios

        self._sweep(side, work, among)
        return logs

    def _means(self, values: Sequence[Any], side: str, *, weighted: bool, inverse: bool = False) -> list[Any]:
        """`sum_j p_ij values_j`, times the mass of row i if `weighted`; terms divided by C_ij / eps if `inverse`."""
        lanes = self._lanes(side)
        if len(values) != len(lanes):
            raise ProblemError(f"there are {len(lanes)} results and values for {len(values)}")
        arrays = [
            to_numpy(checked_values(v, one.instance.b.size))[one.cols].astype(np.float64)
            for v, (one, _) in zip(values, lanes, strict=True)
        ]
        flat = [np.ascontiguousarray(array.reshape(len(array), -1)) for array in arrays]
        means = [np.empty((one.a.size, v.shape[1])) for v, (one, _) in zip(flat, lanes, strict=True)]

        def work(lane: int, rows: Places, block: Block) -> None:
            one, conditionals = lanes[lane]
            terms = block.conditionals
            if inverse:
                terms = np.where(block.scaled_costs > 0, terms / block.scaled_costs, 0.0)
            mean = conditionals.mean(terms, flat[lane])
            means[lane][rows] = times_mass(row_masses(one.a[rows], block.log_ratios), mean) if weighted else mean

        self._sweep(side, work)
        return [out.reshape(len(out), *array.shape[1:]) for out, array in zip(means, arrays, strict=True)]

    def apply(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """`P @ values` for side "row", `P.T @ values` for "col"."""
        return [self._return(lane, out) for lane, out in enumerate(self._means(values, side, weighted=True))]

    def average(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Means of values under the conditional distributions."""
        return [self._return(lane, out) for lane, out in enumerate(self._means(values, side, weighted=False))]

    def barycentric_map(self, side: str = "row") -> list[Any]:
        """Means of the other cloud."""
        return self.average(self._clouds(side), side)

    def _clouds(self, side: str) -> list[Any]:
        """The points of the other side."""
        clouds = [one.instance.y for one, _ in self._lanes(side)]
        if any(cloud is None for cloud in clouds):
            raise ProblemError("a dense cost has no points to average; use apply with your own values")
        return clouds

    def top_match(self, side: str = "row") -> list[Any]:
        """Indices of the largest entries of rows."""
        lanes = self._lanes(side)
        matches = [np.empty(one.a.size, dtype=np.int64) for one, _ in lanes]

        def work(lane: int, rows: Places, block: Block) -> None:
            matches[lane][rows] = lanes[lane][0].cols[block.conditionals.argmax(axis=1)]

        self._sweep(side, work)
        return [self._return(lane, cols) for lane, cols in enumerate(matches)]

    def sample(self, count: int, seeds: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Draw rows by their mass, then columns by their row's conditional distribution, inverting cumulative sums."""
        count, lanes = checked_count(count), self._lanes("row")
        draws = [uniforms(seed, count) for seed in seeds]
        pairs: list[Any] = [None] * len(lanes)
        small = [lane for lane, (one, _) in enumerate(lanes) if one.a.size * one.b.size <= SAMPLE_PAIRS]

        @np.errstate(all="ignore")
        def take(k: int) -> None:
            """Sample a small lane, whose conditional distributions are computed once."""
            (one, conditionals), numbers = lanes[small[k]], draws[small[k]]
            block = conditionals.block(np.arange(one.a.size))
            rows = draw_by_mass(row_masses(one.a, block.log_ratios), numbers[0])
            pairs[small[k]] = rows, one.cols[conditionals.draw(block.conditionals, rows, numbers[1])]

        self._each(take, len(small))
        large = [lane for lane, pair in enumerate(pairs) if pair is None]
        if large:
            logs = self._logs("row", large)
            rows = [draw_by_mass(row_masses(lanes[lane][0].a, logs[lane]), draws[lane][0]) for lane in large]
            cols = self._draw_columns(large, rows, [draws[lane][1] for lane in large])
            for lane, *pair in zip(large, rows, cols, strict=True):
                pairs[lane] = pair
        return [(self._return(lane, i), self._return(lane, j)) for lane, (i, j) in enumerate(pairs)]

    def partners(self, rows: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        """Draw a column for each of the rows, by the row's conditional distribution."""
        indices = [
            to_numpy(checked_rows(own, one.a.size)).astype(np.int64)
            for own, (one, _) in zip(rows, self._lanes("row"), strict=True)
        ]
        numbers = [uniforms(seed, own.size)[1] for seed, own in zip(seeds, indices, strict=True)]
        columns = self._draw_columns(range(len(indices)), indices, numbers)
        return [self._return(lane, cols) for lane, cols in enumerate(columns)]

    def _draw_columns(self, among: Sequence[int], rows: Sequence[Places], numbers: Sequence[Vector]) -> list[Places]:
        """Draw a column for each row of the lanes `among`, by numbers in [0, 1)."""
        lanes = [self._lanes("row")[lane] for lane in among]
        columns = [np.empty(indices.size, dtype=np.int64) for indices in rows]
        pieces: list[tuple[int, NDArray[np.intp]]] = []
        for k, indices in enumerate(rows):
            # Sorted, so that the conditional distribution of a row is computed once for all its pairs.
            order = np.argsort(indices, kind="stable")
            step = max(4, BLOCK_PAIRS // lanes[k][0].b.size)
            pieces += [(k, order[first : first + step]) for first in range(0, indices.size, step)]

        @np.errstate(all="ignore")
        def take(piece: int) -> None:
            k, mine = pieces[piece]
            one, conditionals = lanes[k]
            distinct, where = np.unique(rows[k][mine], return_inverse=True)
            block = conditionals.block(distinct)
            columns[k][mine] = one.cols[conditionals.draw(block.conditionals, where, numbers[k][mine])]

        self._each(take, len(pieces))
        return columns

    def transport_cost(self) -> list[TransportCost]:
        """The costs of every plan, in one sweep over the rows."""
        lanes = self._lanes("row")
        # Mass, P C / eps and P log(P / ab), summed over each row.
        row_sums = [np.empty((3, one.a.size)) for one, _ in lanes]

        def work(lane: int, rows: Places, block: Block) -> None:
            one, _ = lanes[lane]
            mass = row_masses(one.a[rows], block.log_ratios)
            row_sums[lane][0, rows] = mass
            price = np.einsum("ij,ij->i", block.conditionals, block.scaled_costs)
            entropy = one.f[rows] + np.einsum("ij,ij->i", block.conditionals, one.g - block.scaled_costs)
            row_sums[lane][1:, rows] = times_mass(mass, np.c_[price, entropy]).T

        self._sweep("row", work)
        costs: list[TransportCost] = []
        soft = self._soft_terms()
        for lane, (one, _) in enumerate(lanes):
            mass, transport, entropy = (float(part.sum()) for part in row_sums[lane])
            linear = float((one.a * one.f).sum()) + float((one.b * one.g).sum())
            costs.append(plan_costs(one.instance.eps, mass, transport, entropy, linear, soft[lane]))
        return costs

    def certificates(self) -> list[Certificate]:
        """What is certain of each plan, from its potentials in float64."""
        return [self._certificate(lane) for lane in range(len(self._instances))]

    def _certificate(self, lane: int) -> Certificate:
        instance = self._instances[lane]

        def log_ratios(potentials: Potentials[Any], side: str) -> Vector:
            return BlockCouplings([instance], [potentials], self._make, self._each)._logs(side)[0]

        def spread() -> float:
            rows = np.zeros(instance.shape[0])

            def work(_: int, places: Places, block: Block) -> None:
                costs = block.scaled_costs
                rows[places] = costs.max(axis=1) - costs.min(axis=1)

            self._sweep("row", work, [lane])
            return instance.eps * float(rows[to_numpy(instance.a) > 0].max())

        return certify_plan(instance, self._potentials[lane], log_ratios, spread)

    def _soft_terms(self) -> list[SoftTerms | None]:
        """What soft marginals add to the costs of each plan; None where both are hard."""
        soft = [lane for lane, instance in enumerate(self._instances) if not instance.marginals.are_hard]
        terms: list[SoftTerms | None] = [None] * len(self._instances)
        sides = [self._logs(side, soft) for side in ("row", "col")] if soft else []
        for lane in soft:
            terms[lane] = soft_terms(self._instances[lane], self._potentials[lane], [logs[lane] for logs in sides])
        return terms

    def slopes(self, side: str = "row", weights: Sequence[Any] | None = None) -> list[Any]:
        """Gradients of the cost, from weighted means of the other cloud."""
        lanes, clouds = self._lanes(side), self._clouds(side)
        masses = [row_masses(one.a, logs) for (one, _), logs in zip(lanes, self._logs(side), strict=True)]
        for one, _ in lanes:
            require_slope(one.instance)
        forms = [one.instance.cost.kind.distances for one, _ in lanes]
        values: list[Any] = []
        for lane, (cloud, form) in enumerate(zip(clouds, forms, strict=True)):
            points = to_numpy(cloud).astype(np.float64)
            weight = np.ones(len(points)) if weights is None else to_numpy(weights[lane]).astype(np.float64)
            points = unit_rows(points) if form is not None and form.directions else points
            values.append(weight[:, None] * np.c_[points, np.ones(len(points))])
        means = self._means(values, side, weighted=False)
        # For a cost that is a root, `sum_j w_j (x - y_j) / r_j` with r the distance.
        rooted = [form is not None and form.root for form in forms]
        over = self._means(values, side, weighted=False, inverse=True) if any(rooted) else means
        gradients: list[Any] = []
        for lane, ((one, _), mass) in enumerate(zip(lanes, masses, strict=True)):
            cost, x = one.instance.cost, one.points
            if rooted[lane]:
                value = slope_of_distances(cost, one.instance.eps, x, mass, over[lane])
            else:
                value = slope(cost, x, mass, means[lane])
            gradients.append(self._return(lane, value))
        return gradients

    def plan(self, max_pairs: int) -> list[Any]:
        """Dense plans, (n, m)."""
        check_pairs(self._instances, max_pairs)
        lanes = self._lanes("row")
        plans = [np.zeros(instance.shape) for instance in self._instances]

        def work(lane: int, rows: Places, block: Block) -> None:
            one = lanes[lane][0]
            plans[lane][np.ix_(rows, one.cols)] = times_mass(
                row_masses(one.a[rows], block.log_ratios), block.conditionals
            )

        self._sweep("row", work)
        return [self._return(lane, plan) for lane, plan in enumerate(plans)]
