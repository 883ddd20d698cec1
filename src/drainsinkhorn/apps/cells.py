"""Single cells over time: every pair of consecutive time points, and bootstraps of them, as one batch of lanes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.apps.time_points import categories_of, time_points
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.model.eps import Eps, is_descriptor
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.consumers import couplings, top_match
from drainsinkhorn.run.resolve import resolve_eps
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import DEFAULTS, solve

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A transition table between groups of cells of two time points.

    Attributes:
        sources: Names of the k groups at the earlier time.
        targets: Names of the l groups at the later time.
        mass: Mass that goes from each source to each target, (k, l); its sum is 1.
        draws: The tables of all bootstraps, (B, k, l).
    """

    sources: list[Any]
    targets: list[Any]
    mass: Array
    draws: Array

    @property
    def law(self) -> Array:
        """The conditional distribution of targets for each source, (k, l): every row with mass sums to 1."""
        return _rows_to_one(self.mass)

    @property
    def spread(self) -> Array | None:
        """The standard deviation of `law` over bootstraps, (k, l); None with fewer than two bootstraps."""
        return np.std(_rows_to_one(self.draws), axis=0, ddof=1) if len(self.draws) > 1 else None

    def distance(self, other: Table) -> float:
        """Total variation between two tables of the same names."""
        if (self.sources, self.targets) != (other.sources, other.targets):
            raise ProblemError("tables of different names cannot be compared")
        return float(np.abs(self.mass - other.mass).sum() / 2)


@dataclass(frozen=True, slots=True, eq=False)
class Timepoints:
    """Coupled time points.

    Attributes:
        times: Time points in order.
        cells: For each of them the places of its cells in the data, or 0 .. n - 1 where times came as separate clouds.
        solution: All results: those of consecutive pairs, then bootstrap after bootstrap.
        data: The AnnData it was made from, if any.
        count: How many cells the data has; None where times came as separate clouds.
    """

    times: list[Any]
    cells: list[Array]
    solution: Solution[Any]
    data: Any = None
    count: int | None = None

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Consecutive time points."""
        return list(zip(self.times[:-1], self.times[1:], strict=True))

    def result(self, pair: int) -> Result[Any]:
        """The result of a pair, by its number."""
        return self.solution[self._place(pair)]

    def _place(self, pair: int) -> int:
        """The number of a pair, counted from the front; negative numbers count from the end."""
        return range(len(self.pairs))[pair]

    def bootstraps(self, pair: int) -> list[Result[Any]]:
        """The results of a pair's bootstraps."""
        place, step = self._place(pair), len(self.pairs)
        return [self.solution[k] for k in range(place + step, len(self.solution), step)]

    def push(self, values: Any, pair: int) -> Array:
        """Mean of the earlier cells' values for every later cell, over the cells it comes from."""
        return self._means(values, pair, "col")

    def pull(self, values: Any, pair: int) -> Array:
        """Mean of the later cells' values for every earlier cell, over the cells it goes to."""
        return self._means(values, pair, "row")

    def _means(self, values: Any, pair: int, side: str) -> Array:
        ((_, plans),) = couplings([self.result(pair)])
        return to_numpy(plans.average([values], side)[0])

    def transitions(self, labels: Any, pair: int) -> Table:
        """Mass between the groups of a pair; with its spread if there are bootstraps.

        Args:
            labels: Names of groups: one array for all cells of the data, or a pair (of earlier cells, of later cells).
            pair: The number of the pair.
        """
        here, there = self._labels(labels, pair)
        (sources, rows), (targets, cols) = (np.unique(names, return_inverse=True) for names in (here, there))
        forward = np.eye(len(targets))[cols]
        results = [self.result(pair), *self.bootstraps(pair)]
        tables: list[Array] = [np.zeros((len(sources), len(targets))) for _ in results]
        for places, plans in couplings(results):
            for place, pushed in zip(places, plans.apply([forward] * len(places)), strict=True):
                np.add.at(tables[place], rows, to_numpy(pushed).astype(np.float64))
        masses = np.stack(tables)
        masses /= masses.sum(axis=(1, 2), keepdims=True)
        return Table(sources.tolist(), targets.tolist(), masses[0], masses[1:])

    def _labels(self, labels: Any, pair: int) -> tuple[Array, Array]:
        if isinstance(labels, str):
            if self.data is None:
                raise ProblemError(f"{labels!r} names a column of an AnnData; pass arrays of names instead")
            labels = self.data.obs[labels].to_numpy()
        cells = self.cells[self._place(pair) :][:2]
        if not isinstance(labels, tuple):
            if self.count is None:
                raise ProblemError("times came as separate clouds; pass labels as a pair (of earlier, of later cells)")
            if np.shape(labels) != (self.count,):
                raise ProblemError(f"labels must name {self.count} cells, those of the data, got {np.shape(labels)}")
            labels = tuple(np.asarray(labels)[indices] for indices in cells)
        sizes = [len(indices) for indices in cells]
        if [len(part) for part in labels] != sizes:
            raise ProblemError(f"labels are for {[len(part) for part in labels]} cells, the pair has {sizes}")
        here, there = (np.asarray(part).astype(str) for part in labels)
        return here, there

    def to_anndata(self, labels: str) -> Any:
        """A copy of the AnnData with what the couplings say of a column of names.

        `obsm["fate_" + labels]` holds for every cell the shares of groups it goes to at the next time point, and
        `obsm["origin_" + labels]` those it comes from (NaN where there is none); `obs["match"]` names the later cell to
        which most of its mass goes; `uns["transitions"]` the tables, by pair.
        """
        if self.data is None:
            raise ProblemError("these time points did not come from an AnnData")
        out = self.data.copy()
        names, codes = np.unique(out.obs[labels].to_numpy().astype(str), return_inverse=True)
        groups = np.eye(len(names))[codes]
        fate, origin = (np.full((out.n_obs, len(names)), np.nan) for _ in range(2))
        match = np.full(out.n_obs, "", dtype=object)
        tables: dict[str, Any] = {}
        for pair, (first, second) in enumerate(self.pairs):
            here, there = self.cells[pair], self.cells[pair + 1]
            fate[here] = self.pull(groups[there], pair)
            origin[there] = self.push(groups[here], pair)
            match[here] = out.obs_names.to_numpy()[there[to_numpy(top_match(self.result(pair)))]]
            table = self.transitions(labels, pair)
            tables[f"{first} {second}"] = {"sources": table.sources, "targets": table.targets, "mass": table.mass}
        out.obsm[f"fate_{labels}"], out.obsm[f"origin_{labels}"] = fate, origin
        out.obs["match"] = match.astype(str)
        out.uns["transitions"] = tables
        out.uns[f"groups_{labels}"] = names.tolist()
        return out


def couple_timepoints(
    data: Any,
    key: Any = None,
    *,
    rep: str | None = "X_pca",
    times: Sequence[Any] | None = None,
    eps: Eps = 0.05,
    relative: bool = True,
    weights: Any = None,
    bootstraps: int = 0,
    seed: int = 0,
    tol: float | None = None,
    **settings: Any,
) -> Timepoints:
    """Couple all consecutive time points, and bootstraps of them, as one batch of lanes.

    Args:
        data: An AnnData, with `key` a column of obs; points (cells, d), with `key` their times; or a mapping from times
            to clouds.
        key: Times of the cells: a column of obs, or one time for each cell; None with a mapping.
        rep: Where an AnnData has the points: an entry of obsm; None is X.
        times: Which time points, in order; cells of other times are left out. None: all time points. Ordered
            categories keep their order; numbers and dates are sorted. Texts that are numbers, or have one prefix and
            end in a number ("day2", "day10"), are sorted by that number, and a UserWarning states the order. The order
            of all other texts must be given. A label such as "mixed" or "unknown" is never a time point.
        eps: A number, in units of the cost, or of the pair's mean cost if `relative`; or `drainsinkhorn.relative` or
            `sharpness`, which are found once for each pair, so that its bootstraps have the same eps. None:
            `relative(0.05)`.
        relative: Whether a number is a share of the pair's mean cost.
        weights: A column of obs, or an array: weights of all cells, for example of growth; None: uniform.
        bootstraps: How often the cells of every time point are drawn anew, with replacement.
        seed: Decides the draws.
        tol: Bound on the larger L1 marginal residual.
        **settings: Keywords of `solve`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> found = couple_timepoints({t: rng.normal(size=(40, 3)) + t for t in (0, 1, 2)}, bootstraps=3)
        >>> found.pairs, len(found.solution)
        ([(0, 1), (1, 2)], 8)
    """
    check_settings(settings, couple_timepoints)
    names, cells, clouds, masses = _read_data(data, key, rep, times, weights)
    if bootstraps != 0 and not is_count(bootstraps):
        raise OptionsError(f"bootstraps must be an integer of at least 0, got {bootstraps!r}")
    if len(names) < 2:
        raise ProblemError(f"at least two time points are needed, got {names}")
    if is_descriptor(eps):
        scales = _find_eps(eps, clouds, masses, tol, settings)
    else:
        number: Any = eps
        scales = [number * (_mean_cost(x, y) if relative else 1.0) for x, y in itertools.pairwise(clouds)]
    rng, problems = np.random.default_rng(seed), list[Problem[Any]]()
    for draw in range(1 + bootstraps):
        # A bootstrap changes the weights, to the number of times each cell was drawn, and not the points, so all lanes
        # of a pair share their costs.
        drawn = masses if draw == 0 else [rng.multinomial(len(m), m / m.sum()).astype(float) for m in masses]
        drawn = [m / m.sum() for m in drawn]
        for k, scale in enumerate(scales):
            problems.append(Problem(x=clouds[k], y=clouds[k + 1], a=drawn[k], b=drawn[k + 1], eps=scale))
    solution = solve(problems, tol=tol, **settings)
    count = None if isinstance(data, Mapping) else len(data)
    return Timepoints(names, cells, solution, data if hasattr(data, "obs") else None, count)


def _find_eps(
    eps: Eps, clouds: list[Array], masses: list[Array], tol: float | None, settings: dict[str, Any]
) -> list[Eps]:
    """The eps of each pair of consecutive time points; where none is found, eps itself, whose problem says why."""
    sides = [(cloud, mass / mass.sum()) for cloud, mass in zip(clouds, masses, strict=True)]
    pairs = [Problem(x=x, a=a, y=y, b=b, eps=eps) for (x, a), (y, b) in itertools.pairwise(sides)]
    options = settings.get("options", DEFAULTS).with_fields(tol, settings)
    return [pair.eps for pair in resolve_eps(pairs, backend=settings.get("backend", "auto"), options=options)]


def _rows_to_one(mass: Array) -> Array:
    """Divide rows by their sums; rows without mass stay zero."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)


def _mean_cost(x: Array, y: Array) -> float:
    """The mean squared distance between two clouds."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + x.var(0).sum() + y.var(0).sum())


def _read_data(
    data: Any, key: Any, rep: Any, times: Any, weights: Any
) -> tuple[list[Any], list[Array], list[Any], Any]:
    """Return the time points in order and, for each, the indices of its cells, their points and their weights."""
    if isinstance(data, Mapping):
        if weights is not None or key is not None:
            raise ProblemError("with a mapping from times to clouds there is neither key nor weights")
        names = time_points(times, list(data), None)
        clouds = [to_numpy(data[name]) for name in names]
        places = [np.arange(len(c)) for c in clouds]
        _require_finite(names, places, clouds)
        return names, places, clouds, [np.ones(len(c)) for c in clouds]
    if hasattr(data, "obs"):
        points, key, weights = _from_anndata(data, key, rep, weights)
    else:
        points = to_numpy(data)
    if key is None:
        raise ProblemError("key is missing: the times of the cells, or the column of obs that has them")
    labels = np.asarray(key)
    if labels.dtype.kind in "mM":
        # Python has no dates in nanoseconds: NumPy would turn them into integers.
        labels = labels.astype(f"{labels.dtype.str[:3]}[us]")
    if points.ndim != 2 or labels.shape != (len(points),):
        raise ProblemError(f"key must name one time for each of {len(points)} cells, got shape {labels.shape}")
    masses = np.ones(len(points)) if weights is None else to_numpy(weights).astype(np.float64)
    if masses.shape != (len(points),):
        raise ProblemError(f"weights must be one for each of {len(points)} cells, got shape {masses.shape}")
    names = time_points(times, labels.tolist(), categories_of(key))
    for name in names:
        own = masses[labels == name]
        if not (np.isfinite(own).all() and (own >= 0).all() and own.sum() > 0):
            raise ProblemError(f"weights of time point {name!r} must be finite, not negative, and not all zero")
    cells = [np.flatnonzero(labels == name) for name in names]
    clouds = [np.ascontiguousarray(points[c]) for c in cells]
    _require_finite(names, cells, clouds)
    return names, cells, clouds, [masses[c] for c in cells]


def _require_finite(names: list[Any], cells: list[Array], clouds: list[Array]) -> None:
    """Raise ProblemError at the first coordinate that is not finite, with its cell and time point."""
    for name, places, cloud in zip(names, cells, clouds, strict=True):
        try:
            finite = np.isfinite(cloud.astype(np.float64))
        except (TypeError, ValueError):
            raise ProblemError(f"points of time point {name!r} must be numbers, got {cloud.dtype}") from None
        if finite.all():
            continue
        cell, *coordinate = np.argwhere(~finite)[0]
        count = len(cloud) - int(finite.reshape(len(cloud), -1).all(1).sum())
        raise ProblemError(
            f"coordinate {', '.join(map(str, coordinate))} of cell {places[cell]}, of time point {name!r}, is "
            f"{cloud[(cell, *coordinate)]} ({count} cells of this time point are not finite); leave such cells out, or "
            "compute their coordinates anew"
        )


def _from_anndata(data: Any, key: Any, rep: Any, weights: Any) -> tuple[Array, Any, Any]:
    """Return points (cells, d), times and weights of an AnnData; ProblemError names a column that it does not have."""
    try:
        import anndata
    except ImportError as error:
        raise BackendUnavailable(f"anndata cannot be loaded ({error}); pip install 'drainsinkhorn[anndata]'") from error
    if not isinstance(data, anndata.AnnData):
        raise ProblemError(f"expected an AnnData, an array or a mapping, got {type(data).__name__}")
    for column in (key, weights):
        if isinstance(column, str) and column not in data.obs:
            raise ProblemError(f"obs has no column {column!r}; it has {list(data.obs.columns)}")
    if rep is not None and rep not in data.obsm:
        raise ProblemError(f"obsm has no entry {rep!r}; it has {list(data.obsm)}; rep=None takes X")
    points: Any = data.X if rep is None else data.obsm[rep]
    points = points.toarray() if hasattr(points, "toarray") else np.asarray(points)
    labels = data.obs[key] if isinstance(key, str) else key
    return points, labels, data.obs[weights].to_numpy() if isinstance(weights, str) else weights
