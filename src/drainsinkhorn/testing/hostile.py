"""Hostile problems, drawn from a seed.

`problem(seed, index, scope)` draws one problem independently of all others, so seed and index reproduce it. These are
drawn, each with its own probability:

- points of every geometry (clouds, clusters, lines, duplicates, one point, an outlier, equal clouds) in every dtype of
  NumPy and torch that holds real numbers, offset, tiny, huge, strided, reversed, read-only; 1 to `scope.largest`
  points;
- all costs by name, scaled, and dense matrices: with negative, constant, forbidden (1e30) and widely spread entries;
- eps from 1e-6 to 1e6 of the median cost;
- weights: none, uniform, over 300 decades, zero, denormal, huge, integer, one that carries everything;
- tol from 0.5 to 1e-12, or at the edge: what plain Sinkhorn reaches after a few cycles, give or take 1e-3;
- starts by name, noise, converged potentials, each shifted along the gauge (f + c, g - c) by up to 1e300, or by about
  the largest shift that the accuracy tol permits; random numbers up to 1e308, and NaN;
- with `scope.soft` a share of soft marginals: prices from 1e-3 to 1e3 of the median cost and infinite ones on either
  side, masses from 1e-3 to 1e3, unequal; a few prices that are not valid;
- chains: blocks of CHAINED problems over the same points;
- a few that cannot be solved: NaN, infinite and negative numbers, empty and mismatched arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.testing.forms import form_of
from drainsinkhorn.testing.settings import Scope, pick
from drainsinkhorn.testing.soft import HARD, INVALID, draw_mass, draw_prices, residual_of, sinkhorn

Vector = NDArray[np.float64]

CHAINED = 4
"""Problems of a chain: consecutive indices, the first a multiple of this."""
WHOLE = ("int8", "uint8", "int16", "int32", "int64", "bool")
NUMPY = (*["float32", "float64"] * 4, "float16", "longdouble", "uint64", *WHOLE)
TORCH = (*["float32", "float64"] * 4, *["float16", "bfloat16"] * 2, *WHOLE)
"""Dtypes by library; the usual ones are drawn most often."""
SMALLEST_TOL, LARGEST_TOL = 1e-12, 0.5
"""Tolerances that are drawn."""
SMALL = 2500
"""Pairs of points up to which the generator computes potentials of its own, for starts and tolerances."""


def block_of(index: int) -> range:
    """Indices of the problems that may be in one chain with this one."""
    first = index // CHAINED * CHAINED
    return range(first, first + CHAINED)


def problem(seed: int, index: int, scope: Scope) -> Problem[Any]:
    """The problem of this number."""
    return _Draw(seed, index, scope).problem()


@dataclass
class _Draw:
    """Generates one problem.

    Attributes:
        rng: Draws what differs within a chain: eps, weights, tol, start.
        shared: Draws what a chain has in common: points, dtype, cost.
    """

    seed: int
    index: int
    scope: Scope
    rng: np.random.Generator = field(init=False)
    shared: np.random.Generator = field(init=False)
    soft: np.random.Generator = field(init=False)
    chain: Any = field(init=False)

    def __post_init__(self) -> None:
        first = block_of(self.index)[0]
        chained = np.random.default_rng([self.seed, first, 1]).random() < 0.12
        self.chain = first if chained else None
        self.rng = np.random.default_rng([self.seed, self.index])
        self.shared = np.random.default_rng([self.seed, first if chained else self.index, 4])
        # Its own numbers, so that the other problems of a seed do not depend on the share of soft ones.
        self.soft = np.random.default_rng([self.seed, self.index, 5])

    def problem(self) -> Problem[Any]:
        rng, shared = self.rng, self.shared
        n, m = self._size(), self._size()
        self.library = pick(shared, self.scope.libraries)
        self.dtype = pick(shared, NUMPY if self.library == "numpy" else TORCH)
        parts = self._dense(n, m) if shared.random() < self.scope.dense else self._between_points(n, m)
        with np.errstate(all="ignore"):
            cost = _costs(parts)
            eps = self._eps(cost)
            a, b = self._weights(n, m)
            rho, self.rhos = draw_prices(self.soft, cost) if self.soft.random() < self.scope.soft else (None, HARD)
            if rho is not None:
                a, b = draw_mass(self.soft, a), draw_mass(self.soft, b)
            # The library will normalise these, unless a marginal is soft.
            weights = (np.ones(size) if w is None else _plain(w) for w, size in ((a, n), (b, m)))
            rows, cols = (
                w / (w.sum() if rho is None or p is None else 1) for w, p in zip(weights, (a, b), strict=True)
            )
            tol = self._tol(cost, rows, cols, eps)
            init = self._start(cost, rows, cols, eps, tol)
        if rho is not None and self.soft.random() < 0.03:
            rho = pick(self.soft, INVALID)
        drawn = Problem(eps=eps, a=a, b=b, tol=tol, init=init, chain=self.chain, rho=rho, **parts)
        return self._broken(drawn) if rng.random() < 0.03 else drawn

    def _size(self) -> int:
        if self.scope.sizes:
            return pick(self.shared, self.scope.sizes)
        edge = self.shared.random() < 0.2
        size = pick(self.shared, (1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129)) if edge else 0
        largest = self.scope.largest
        return size if 0 < size <= largest else round(math.exp(self.shared.uniform(0, math.log(largest))))

    # Points and costs.

    def _between_points(self, n: int, m: int) -> dict[str, Any]:
        shared, rng = self.shared, self.rng
        d = pick(shared, self.scope.dimensions)
        both = self._geometry(n, m, d)
        if self.chain is not None and rng.random() < 0.5:
            both += 0.01 * rng.normal(size=both.shape)
        both *= 10 ** shared.uniform(-3, 3)
        kind = shared.random()
        if kind < 0.3:
            both += np.abs(both).max() * 10 ** shared.uniform(-1, 6) * shared.normal(size=d)
        elif kind < 0.4:
            both *= 10 ** (shared.uniform(-150, 150) if self.dtype == "float64" else shared.uniform(-30, 30))
        name = pick(shared, self.scope.costs)
        both = _fit(both, self.dtype)
        if form_of(name).directions:
            both[~both.any(axis=1)] = 1
        cost: Any = name if shared.random() < 0.7 else Cost(name, float(10 ** shared.uniform(-4, 4)))
        return {"x": self._array(both[:n]), "y": self._array(both[n:]), "cost": cost}

    def _geometry(self, n: int, m: int, d: int) -> Vector:
        shared = self.shared
        both = shared.normal(size=(n + m, d))
        kind = pick(shared, ("cloud", "cloud", "shifted", "clusters", "line", "copies", "equal", "point", "outlier"))
        if kind == "shifted":
            both[n:] += 3 * shared.normal(size=d)
        elif kind == "clusters":
            both = 0.05 * both + 10 * shared.normal(size=(3, d))[shared.integers(3, size=n + m)]
        elif kind == "line":
            both = both[:, :1] * shared.normal(size=d)
        elif kind == "copies":
            both = both[shared.integers(3, size=n + m) % (n + m)]
        elif kind == "equal":
            both[n:] = both[np.arange(m) % n]
        elif kind == "point":
            both[:] = both[0]
        elif kind == "outlier":
            both[shared.integers(n + m)] *= 10 ** shared.uniform(1, 8)
        return both

    def _dense(self, n: int, m: int) -> dict[str, Any]:
        shared = self.shared
        kind = pick(shared, ("uniform", "distance", "signed", "constant", "spread", "forbidden", "offset", "ranks"))
        cost = shared.random((n, m))
        if kind == "distance":
            cost = np.abs(shared.normal(size=(n, 1)) - shared.normal(size=m))
        elif kind == "signed":
            cost = shared.normal(size=(n, m))
        elif kind == "constant":
            cost[:] = shared.normal()
        elif kind == "spread":
            cost = 10 ** shared.uniform(-8, 8, size=(n, m))
        elif kind == "forbidden":
            cost[shared.random((n, m)) < 0.3] = 1e30
        elif kind == "offset":
            cost += 10 ** shared.uniform(1, 9)
        elif kind == "ranks":
            cost = np.subtract.outer(np.arange(n), np.arange(m)) ** 2.0
        cost = cost * 10 ** shared.uniform(-3, 3)
        return {"cost": self._array(_fit(cost, self.dtype))}

    def _array(self, values: Vector) -> Any:
        """The values in the library and dtype of the problem, some of them in an unusual layout."""
        layout = self.shared.random()
        if self.library == "torch":
            import torch

            tensor = torch.as_tensor(values).to(getattr(torch, self.dtype)).to(self.scope.device)
            if layout < 0.1:
                return tensor.t().contiguous().t()
            if layout < 0.2:
                return tensor.repeat_interleave(2, dim=0)[::2]
            if layout < 0.3 and tensor.is_floating_point():
                return tensor.requires_grad_()
            return tensor
        array = values.astype(self.dtype)
        if layout < 0.1:
            array = np.asfortranarray(array)
        elif layout < 0.2:
            array = np.repeat(array, 2, axis=0)[::2]
        elif layout < 0.3:
            array = array[::-1].copy()[::-1]
        elif layout < 0.4:
            array.flags.writeable = False
        return array

    # Numbers beside the cost.

    def _eps(self, cost: Vector) -> float:
        rng = self.rng
        sizes = np.abs(cost[np.isfinite(cost) & (cost != 0)])
        unit = float(np.median(sizes)) if sizes.size else 1.0
        ratio = 10 ** (rng.uniform(-6, 6) if rng.random() < 0.4 else rng.uniform(-1.5, 1.5))
        return float(min(max(unit * ratio, 1e-300), 1e300))

    def _weights(self, n: int, m: int) -> tuple[Any, Any]:
        kind = self.rng.random()
        if kind < 0.3:
            return None, None
        a, b = self._mass(n), self._mass(m)
        if kind < 0.4:
            return a, None
        # Masses must be equal, but after rounding to a short dtype they are equal only to its precision.
        total = 1.0 if self.rng.random() < 0.8 else 10 ** self.rng.uniform(-100, 100)
        a, b = (w / math.fsum(w) * total for w in (a, b))
        return self._short(a), self._short(b)

    def _mass(self, size: int) -> Vector:
        rng = self.rng
        kind = pick(rng, ("uniform", "random", "softmax", "decades", "denormal", "zeros", "one", "counts"))
        weights = np.ones(size)
        if kind == "random":
            weights = rng.random(size) + 1e-9
        elif kind == "softmax":
            weights = np.exp(3 * rng.normal(size=size))
        elif kind == "decades":
            weights = 10 ** rng.uniform(-300, 0, size=size)
        elif kind == "denormal":
            weights[rng.random(size) < 0.5] = 10 ** rng.uniform(-323, -307)
        elif kind == "zeros":
            weights = rng.random(size)
            weights[rng.random(size) < 0.4] = 0.0
        elif kind == "one":
            weights = np.where(np.arange(size) == rng.integers(size), 1.0, 1e-18 * rng.random(size))
        elif kind == "counts":
            weights = rng.integers(0, 100, size=size).astype(np.float64)
        if not weights.any():
            weights[0] = 1.0
        return weights

    def _short(self, weights: Vector) -> Any:
        """Weights in a dtype drawn at random; in float64 if that dtype changes their mass by more than 1e-6 of it."""
        names = ("float64", "float64", "float32", "float16")
        name = pick(self.rng, names)
        rounded = weights.astype(name)
        total = rounded.astype(np.float64).sum()
        fits = np.isfinite(total) and abs(total - math.fsum(weights)) <= 1e-6 * math.fsum(weights)
        rounded = rounded if fits else weights
        if self.library == "torch" and self.rng.random() < 0.7:
            import torch

            return torch.as_tensor(rounded).to(self.scope.device)
        return rounded

    def _tol(self, cost: Vector, a: Vector, b: Vector, eps: float) -> float:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.3 and cost.size <= SMALL:
            cycles = int(rng.integers(1, 9))
            reached = residual_of(cost, a, b, eps, self.rhos, *sinkhorn(cost, a, b, eps, cycles, self.rhos))
            edge = reached * (1 + rng.choice([-1, 1]) * 10 ** rng.uniform(-9, -3))
            if SMALLEST_TOL <= edge <= LARGEST_TOL:
                return float(edge)
        if kind < 0.7:
            return pick(rng, (0.5, 0.1, 1e-2, 1e-3, 1e-4, 1e-6))
        return float(10 ** rng.uniform(math.log10(SMALLEST_TOL), math.log10(LARGEST_TOL)))

    # Starts.

    def _start(self, cost: Vector, a: Vector, b: Vector, eps: float, tol: float) -> Any:
        rng = self.rng
        n, m = cost.shape
        kind = rng.random()
        if kind < 0.4:
            return pick(rng, (None, None, "auto", "zero"))
        unit = float(np.median(np.abs(cost[np.isfinite(cost)]))) if np.isfinite(cost).any() else 1.0
        f, g = np.zeros(n), np.zeros(m)
        if kind < 0.6:
            size = unit * 10 ** rng.uniform(-3, 3)
            f, g = size * rng.normal(size=n), size * rng.normal(size=m)
        elif kind < 0.8 and cost.size <= SMALL:
            f, g = sinkhorn(cost, a, b, eps, int(rng.integers(1, 60)), self.rhos)
        elif kind < 0.9:
            f, g = self._garbage(n), self._garbage(m)
        if rng.random() < 0.6:
            shift = self._shift(eps, tol)
            f, g = f + shift, g - shift
        name = pick(rng, ("float64", "float64", "float32"))
        pair = [p.astype(name) if np.isfinite(p.astype(name)).all() else p for p in (f, g)]
        if self.library == "torch" and rng.random() < 0.7:
            import torch

            pair = [torch.as_tensor(p).to(self.scope.device) for p in pair]
        return Potentials(*pair)

    def _shift(self, eps: float, tol: float) -> float:
        """Draw a shift along the gauge of any size, or near the largest that rounding in float32 or float64 allows."""
        rng = self.rng
        sign = rng.choice([-1.0, 1.0])
        if rng.random() < 0.4:
            return float(sign * 10 ** rng.uniform(0, 300))
        bearable = eps * tol * pick(rng, (2.0**24, 2.0**53)) * 10 ** rng.uniform(-3, 2)
        return float(sign * min(bearable, 1e300))

    def _garbage(self, size: int) -> Vector:
        rng = self.rng
        kind = pick(rng, ("huge", "wild", "largest", "denormal", "one", "nan", "inf"))
        values = rng.normal(size=size)
        if kind == "huge":
            return values * 10 ** rng.uniform(10, 300)
        if kind == "wild":
            return values * 10 ** rng.uniform(-300, 300, size=size)
        if kind == "largest":
            return np.full(size, rng.choice([-1, 1]) * 1e308)
        if kind == "denormal":
            return values * 1e-310
        if kind == "one":
            values[rng.integers(size)] = 10 ** rng.uniform(5, 300)
        else:
            values[rng.integers(size)] = math.nan if kind == "nan" else math.inf
        return values

    def _broken(self, drawn: Problem[Any]) -> Problem[Any]:
        """Return the problem made invalid in some way; it must not affect the other problems."""
        rng, n = self.rng, len(drawn.x if drawn.x is not None else drawn.cost)  # type: ignore[arg-type]
        size = np.ones(n)
        wrong: list[dict[str, Any]] = [
            {"eps": pick(rng, (0.0, -1.0, math.nan, math.inf, "auto", b""))},
            {"tol": pick(rng, (0.0, -1.0, math.nan, math.inf, "small"))},
            {"a": -size},
            {"a": 0 * size},
            {"a": math.nan * size},
            {"a": np.ones(n + 1)},
            {"a": 1e308 * size if n > 1 else -size},
            {"init": Potentials(np.zeros(n + 1), np.zeros(1))},
            {"init": "middling"},
            {"chain": []},
            {"x": np.full((2, 2), math.nan), "y": np.zeros((2, 2)), "cost": "sqeuclidean", "a": None, "b": None},
            {"x": np.full((2, 2), math.inf), "y": np.zeros((2, 2)), "cost": "sqeuclidean", "a": None, "b": None},
            {"x": np.zeros((2, 2)), "y": np.zeros((3, 1)), "cost": "sqeuclidean", "a": None, "b": None},
            {"x": np.zeros((0, 2)), "y": np.zeros((3, 2)), "cost": "sqeuclidean", "a": None, "b": None},
            {"x": np.zeros((2, 2)), "y": np.ones((3, 2)), "cost": "cosine", "a": None, "b": None},
            {"cost": "unheard of"},
            {"cost": object()},
        ]
        return replace(drawn, **pick(rng, wrong))


def _fit(values: Vector, dtype: str) -> Vector:
    """Values that the dtype holds: integers spread over its range, floats clipped to it."""
    if dtype == "bool":
        return (values > np.median(values)).astype(np.float64)
    if dtype.startswith(("int", "uint")):
        largest = float(np.abs(values).max()) or 1.0
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        most = float(min(2 ** (bits - 1) - 1, 2**40))
        integers = np.round(values / largest * most)
        return np.abs(integers) if dtype.startswith("u") else integers
    most = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38}.get(dtype, 1e300)
    return np.clip(values, -most, most)


def _plain(array: Any) -> Vector:
    """Any array as float64."""
    if hasattr(array, "detach"):
        array = array.detach().cpu().double()
    return np.asarray(array).astype(np.float64)


def _costs(parts: dict[str, Any]) -> Vector:
    """Costs to draw eps, starts and tolerances by; in float64, accurate enough for that."""
    cost = parts["cost"]
    if "x" not in parts:
        return _plain(cost)
    form, x, y = form_of(cost), _plain(parts["x"]), _plain(parts["y"])
    if form.dot:
        return form.scale * form.dot * (x @ y.T)
    if form.directions:
        x, y = (p / np.linalg.norm(p, axis=1, keepdims=True) for p in (x, y))
    total = np.zeros((len(x), len(y)))
    for k in range(x.shape[1]):
        total += (x[:, k, None] - y[None, :, k]) ** 2
    return form.scale * (np.sqrt(total) if form.root else total / form.divisor)
