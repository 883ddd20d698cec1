"""What can be done with finished plans, some rows at a time: O(n + m) memory for each problem, beside what comes out.

Everything is made of the conditional laws of the points of one side,

    law_ij = b_j exp((g_j - C_ij) / eps) / sum_j ...        # each row sums to 1
    log rho_i = f_i / eps + log sum_j b_j exp((g_j - C_ij) / eps)

so that `P_ij = a_i rho_i law_ij`. The largest term is taken out of every sum. A backend brings its own `Laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.couplings import TransportCost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import is_array, to_caller, to_numpy
from drainsinkhorn.numerics.costs import exchange_sides, require_slope, slope, slope_of_distances, unit_rows

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Places = NDArray[np.int64]

BLOCK_PAIRS, KEPT_PAIRS = 2**16, 2**21
"""Pairs whose laws are held at a time by one thread; and up to which a lane's are held at once, to draw from."""

SIDES = ("row", "col")


class Block(NamedTuple):
    """Some rows of one side.

    Attributes:
        law: Their conditional laws, (k, m).
        logs: Logarithms of their marginal ratios, (k,).
        scores: `C / eps`, (k, m).
    """

    law: Matrix
    logs: Vector
    scores: Matrix


class Laws(Protocol):
    """The conditional laws of one side of one problem, over the points of the other side that carry weight."""

    def block(self, rows: Places) -> Block:
        """Laws of some rows."""
        ...

    def mean(self, weights: Matrix, values: Matrix) -> Matrix:
        """`weights @ values`, (k, m) times (m, c)."""
        ...

    def draw(self, law: Matrix, rows: Places, numbers: Vector) -> Places:
        """For each of `rows` of the laws, the first column at which its cumulative sum passes a number in [0, 1)."""
        ...


class Side(NamedTuple):
    """One side of a problem as its laws see it.

    Attributes:
        instance: The problem, turned so that this side is x.
        f: Potentials of this side, in nats.
        g: Potentials of the other side where it carries weight, in nats.
        a: Weights of this side.
        b: Weights of the other side where they are positive.
        cols: Places of those.
    """

    instance: Instance[Any]
    f: Vector
    g: Vector
    a: Vector
    b: Vector
    cols: Places

    @property
    def others(self) -> Matrix:
        """Points of the other side that carry weight."""
        return to_numpy(self.instance.y).astype(np.float64)[self.cols]

    @property
    def points(self) -> Matrix:
        """Points of this side."""
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


def checked_side(side: Any) -> str:
    """One of the two sides, or ProblemError."""
    if side not in SIDES:
        raise ProblemError(f'side must be "row" or "col", got {side!r}')
    return side


def checked_values(values: Any, size: int) -> Any:
    """Values over one side, one row for each of its points; ProblemError says what is wrong with others."""
    if isinstance(values, (list, tuple)):
        values = np.asarray(values)
    if not is_array(values):
        raise ProblemError(f"values must be an array, one row for each of {size} points, got {type(values).__name__}")
    real = not any(kind in str(values.dtype) for kind in ("complex", "object", "str", "<U", "datetime"))
    if not real or values.ndim == 0 or values.shape[0] != size:
        raise ProblemError(
            f"values must be real numbers, one row for each of the {size} points of the other side, "
            f"got {values.dtype} of shape {tuple(values.shape)}"
        )
    return values


def checked_count(count: Any) -> int:
    """How many pairs to draw, or ProblemError."""
    if not is_count(count):
        raise ProblemError(f"count must be an integer of at least 1, got {count!r}")
    return int(count)


def checked_rows(rows: Any, size: int) -> Any:
    """Places on one side, or ProblemError."""
    rows = rows if is_array(rows) else np.asarray(rows)
    if rows.ndim != 1 or "int" not in str(rows.dtype) or len(rows) == 0:
        raise ProblemError(f"rows must be integers, (k,), got {rows.dtype} of shape {tuple(rows.shape)}")
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= size:
        raise ProblemError(f"rows must lie between 0 and {size - 1}, got {low if low < 0 else high}")
    return rows


def check_pairs(instances: Sequence[Instance[Any]], max_pairs: int) -> None:
    """Refuse dense plans that are larger than anybody asked for."""
    pairs = sum(n * m for n, m in (instance.shape for instance in instances))
    if pairs > max_pairs:
        raise ProblemError(
            f"{len(instances)} dense plan(s) have {pairs} entries, {8e-9 * pairs:.1f} GB in float64, and max_pairs is "
            f"{max_pairs}; use apply, barycentric_map, sample or top_match, which need none, or plan(max_pairs={pairs})"
        )


def uniforms(seed: Any, count: int) -> tuple[Vector, Vector]:
    """Numbers in [0, 1) that choose the rows and the columns of drawn pairs: the same on every device."""
    try:
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    except (TypeError, ValueError):
        given = seed[0] if isinstance(seed, tuple) else seed  # With the ticket of a result.
        raise ProblemError(f"seed must be a non-negative integer, got {given!r}") from None
    return rng.random(count), rng.random(count)


def costs(eps: float, mass: float, transport: float, entropy: float, linear: float) -> TransportCost:
    """All costs of a plan from sums in nats: of P, P C, P log(P / ab), and of a f and b g."""
    kl = entropy - mass + 1
    return TransportCost(eps * transport, kl, eps * (transport + kl), eps * (linear - mass + 1))


Each = Callable[[Callable[[int], None], int], None]


def one_by_one(work: Callable[[int], None], count: int) -> None:
    """Do all pieces of work in their order."""
    for k in range(count):
        work(k)


class BlockCouplings:
    """Finished plans whose laws come in blocks of rows, in float64.

    Args:
        instances: As given; all of them have passed the door.
        potentials: Theirs.
        laws: Makes the laws of a side.
        each: Does pieces of work, in any order.
    """

    def __init__(
        self,
        instances: Sequence[Instance[Any]],
        potentials: Sequence[Potentials[Any]],
        laws: Callable[[Side], Laws],
        each: Each = one_by_one,
    ) -> None:
        self._instances = list(instances)
        self._potentials = list(potentials)
        self._make = laws
        self._each = each
        self._sides: dict[str, list[tuple[Side, Laws]]] = {}

    def _lanes(self, side: str) -> list[tuple[Side, Laws]]:
        if checked_side(side) not in self._sides:
            sides = [side_of(p, h, side) for p, h in zip(self._instances, self._potentials, strict=True)]
            with np.errstate(all="ignore"):
                self._sides[side] = [(one, self._make(one)) for one in sides]
        return self._sides[side]

    def _sweep(self, side: str, work: Callable[[int, Places, Block], None], some: Sequence[int] | None = None) -> None:
        """Do `work(lane, rows, block)` for all rows of all lanes, or of some."""
        lanes = self._lanes(side)
        pieces: list[tuple[int, Places]] = []
        for lane in range(len(lanes)) if some is None else some:
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

    def _logs(self, side: str, some: Sequence[int] | None = None) -> list[Vector]:
        found = [np.empty(one.a.size) for one, _ in self._lanes(side)]

        def work(lane: int, rows: Places, block: Block) -> None:
            found[lane][rows] = block.logs

        self._sweep(side, work, some)
        return found

    def _means(self, values: Sequence[Any], side: str, *, weighted: bool, inverse: bool = False) -> list[Any]:
        """Means of values; times the mass of the row if `weighted`; over the distance if `inverse`."""
        lanes = self._lanes(side)
        if len(values) != len(lanes):
            raise ProblemError(f"there are {len(lanes)} results and values for {len(values)}")
        arrays = [
            to_numpy(checked_values(v, one.instance.b.size))[one.cols].astype(np.float64)
            for v, (one, _) in zip(values, lanes, strict=True)
        ]
        flat = [np.ascontiguousarray(array.reshape(len(array), -1)) for array in arrays]
        found = [np.empty((one.a.size, v.shape[1])) for v, (one, _) in zip(flat, lanes, strict=True)]

        def work(lane: int, rows: Places, block: Block) -> None:
            one, laws = lanes[lane]
            law = np.where(block.scores > 0, block.law / block.scores, 0.0) if inverse else block.law
            mean = laws.mean(law, flat[lane])
            found[lane][rows] = _times(_mass(one.a[rows], block.logs), mean) if weighted else mean

        self._sweep(side, work)
        return [out.reshape(len(out), *array.shape[1:]) for out, array in zip(found, arrays, strict=True)]

    def apply(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Mass times means."""
        return [self._return(lane, out) for lane, out in enumerate(self._means(values, side, weighted=True))]

    def average(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Means."""
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
        """Places of the largest entries of rows."""
        lanes = self._lanes(side)
        found = [np.empty(one.a.size, dtype=np.int64) for one, _ in lanes]

        def work(lane: int, rows: Places, block: Block) -> None:
            found[lane][rows] = lanes[lane][0].cols[block.law.argmax(axis=1)]

        self._sweep(side, work)
        return [self._return(lane, out) for lane, out in enumerate(found)]

    def sample(self, count: int, seeds: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Rows by their mass, then columns by the law of the row, both by inverting cumulative sums."""
        count, lanes = checked_count(count), self._lanes("row")
        draws = [uniforms(seed, count) for seed in seeds]
        found: list[Any] = [None] * len(lanes)
        small = [lane for lane, (one, _) in enumerate(lanes) if one.a.size * one.b.size <= KEPT_PAIRS]

        @np.errstate(all="ignore")
        def take(k: int) -> None:
            """A small lane at once: its laws are made but once."""
            (one, laws), numbers = lanes[small[k]], draws[small[k]]
            block = laws.block(np.arange(one.a.size))
            rows = _by_mass(_mass(one.a, block.logs), numbers[0])
            found[small[k]] = rows, one.cols[laws.draw(block.law, rows, numbers[1])]

        self._each(take, len(small))
        large = [lane for lane, drawn in enumerate(found) if drawn is None]
        if large:
            logs = self._logs("row", large)
            rows = [_by_mass(_mass(lanes[lane][0].a, logs[lane]), draws[lane][0]) for lane in large]
            cols = self._drawn(large, rows, [draws[lane][1] for lane in large])
            for lane, *pair in zip(large, rows, cols, strict=True):
                found[lane] = pair
        return [(self._return(lane, i), self._return(lane, j)) for lane, (i, j) in enumerate(found)]

    def partners(self, rows: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        """Columns by the laws of given rows."""
        given = [
            to_numpy(checked_rows(some, one.a.size)).astype(np.int64)
            for some, (one, _) in zip(rows, self._lanes("row"), strict=True)
        ]
        numbers = [uniforms(seed, some.size)[1] for seed, some in zip(seeds, given, strict=True)]
        drawn = self._drawn(range(len(given)), given, numbers)
        return [self._return(lane, cols) for lane, cols in enumerate(drawn)]

    def _drawn(self, some: Sequence[int], rows: Sequence[Places], numbers: Sequence[Vector]) -> list[Places]:
        """A column for each row of some lanes."""
        lanes = [self._lanes("row")[lane] for lane in some]
        found = [np.empty(given.size, dtype=np.int64) for given in rows]
        pieces: list[tuple[int, NDArray[np.intp]]] = []
        for k, given in enumerate(rows):
            # By row, so that the law of a row is made once for all its pairs.
            order = np.argsort(given, kind="stable")
            step = max(4, BLOCK_PAIRS // lanes[k][0].b.size)
            pieces += [(k, order[first : first + step]) for first in range(0, given.size, step)]

        @np.errstate(all="ignore")
        def take(piece: int) -> None:
            k, mine = pieces[piece]
            one, laws = lanes[k]
            distinct, where = np.unique(rows[k][mine], return_inverse=True)
            found[k][mine] = one.cols[laws.draw(laws.block(distinct).law, where, numbers[k][mine])]

        self._each(take, len(pieces))
        return found

    def transport_cost(self) -> list[TransportCost]:
        """In one sweep over the rows."""
        lanes = self._lanes("row")
        found = [np.empty((3, one.a.size)) for one, _ in lanes]

        def work(lane: int, rows: Places, block: Block) -> None:
            one, _ = lanes[lane]
            mass = _mass(one.a[rows], block.logs)
            found[lane][0, rows] = mass
            price = np.einsum("ij,ij->i", block.law, block.scores)
            entropy = one.f[rows] + np.einsum("ij,ij->i", block.law, one.g - block.scores)
            found[lane][1:, rows] = _times(mass, np.c_[price, entropy]).T

        self._sweep("row", work)
        out: list[TransportCost] = []
        for lane, (one, _) in enumerate(lanes):
            mass, transport, entropy = (float(part.sum()) for part in found[lane])
            linear = float((one.a * one.f).sum()) + float((one.b * one.g).sum())
            out.append(costs(one.instance.eps, mass, transport, entropy, linear))
        return out

    def slopes(self, side: str = "row", weights: Sequence[Any] | None = None) -> list[Any]:
        """Through the means of the other cloud."""
        lanes, clouds = self._lanes(side), self._clouds(side)
        masses = [_mass(one.a, logs) for (one, _), logs in zip(lanes, self._logs(side), strict=True)]
        for one, _ in lanes:
            require_slope(one.instance)
        forms = [one.instance.cost.kind.distances for one, _ in lanes]
        values: list[Any] = []
        for lane, (cloud, form) in enumerate(zip(clouds, forms, strict=True)):
            points = to_numpy(cloud).astype(np.float64)
            weight = np.ones(len(points)) if weights is None else to_numpy(weights[lane]).astype(np.float64)
            points = unit_rows(points) if form.directions else points
            values.append(weight[:, None] * np.c_[points, np.ones(len(points))])
        means = self._means(values, side, weighted=False)
        # Over the distance: sum_j w_j (x - y_j) / r_j.
        over = self._means(values, side, weighted=False, inverse=True) if any(form.root for form in forms) else means
        found: list[Any] = []
        for lane, ((one, _), mass) in enumerate(zip(lanes, masses, strict=True)):
            cost, x = one.instance.cost, one.points
            if forms[lane].root:
                value = slope_of_distances(cost, one.instance.eps, x, mass, over[lane])
            else:
                value = slope(cost, x, mass, means[lane])
            found.append(self._return(lane, value))
        return found

    def plan(self, max_pairs: int) -> list[Any]:
        """All blocks, kept."""
        check_pairs(self._instances, max_pairs)
        lanes = self._lanes("row")
        found = [np.zeros(instance.shape) for instance in self._instances]

        def work(lane: int, rows: Places, block: Block) -> None:
            one = lanes[lane][0]
            found[lane][np.ix_(rows, one.cols)] = _times(_mass(one.a[rows], block.logs), block.law)

        self._sweep("row", work)
        return [self._return(lane, plan) for lane, plan in enumerate(found)]


def _mass(weights: Vector, logs: Vector) -> Vector:
    """`a_i rho_i`; zero where there is no weight, whatever the ratio."""
    with np.errstate(all="ignore"):
        return np.where(weights > 0, weights * np.exp(logs), 0.0)


def _times(mass: Vector, rows: Matrix) -> Matrix:
    """Rows times their masses; zero without mass, however far away the point lies."""
    return np.where(mass[:, None] > 0, mass[:, None] * rows, 0.0)


def _by_mass(mass: Vector, numbers: Vector) -> Places:
    if not np.isfinite(mass).all():
        raise ProblemError("the plan is not finite, so nothing can be drawn from it; see the result's message")
    return invert(mass, numbers)


def invert(mass: Vector, numbers: Vector) -> Places:
    """The places at which cumulative sums of `mass` pass numbers in [0, 1) times its total."""
    sums = np.cumsum(mass)
    last = int(np.flatnonzero(mass)[-1])
    return np.minimum(np.searchsorted(sums, numbers * sums[-1], side="right"), last)
