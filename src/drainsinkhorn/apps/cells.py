"""Single cells over time: every pair of consecutive time points, and bootstraps of them, as one batch of lanes."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.consumers import couplings, top_match
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import solve

Array = NDArray[Any]
MISSING = ("", "nan", "NaN", "NaT", "None", "<NA>")
"""Labels, as texts, with which NumPy and pandas mark cells without a time."""
NO_TIME = frozenset({"mixed", "mixture", "pooled", "unknown", "unassigned", "undefined", "undetermined", "na", "none"})
"""Words that mark cells of no single time; a label that contains one is never a time point."""
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
NUMBERED = re.compile(r"(?P<prefix>.*?)(?P<number>[0-9]+(\.[0-9]+)?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Table:
    """A transition table.

    Attributes:
        sources: Names of its rows.
        targets: Names of its columns.
        mass: Mass that goes from each source to each target, (k, l), one in all.
        draws: The same of every bootstrap, (B, k, l).
    """

    sources: list[Any]
    targets: list[Any]
    mass: Array
    draws: Array

    @property
    def law(self) -> Array:
        """Where each source goes: rows that sum to one."""
        return _rows_to_one(self.mass)

    @property
    def spread(self) -> Array | None:
        """The standard deviation of the law over bootstraps; None with fewer than two."""
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
        """The number of a pair, also if it is counted from the end."""
        return range(len(self.pairs))[pair]

    def bootstraps(self, pair: int) -> list[Result[Any]]:
        """The results of a pair's bootstraps."""
        place, step = self._place(pair), len(self.pairs)
        return [self.solution[k] for k in range(place + step, len(self.solution), step)]

    def push(self, values: Any, pair: int) -> Array:
        """Means of values of earlier cells for every later cell: where it comes from."""
        return self._means(values, pair, "col")

    def pull(self, values: Any, pair: int) -> Array:
        """Means of values of later cells for every earlier cell: where it goes."""
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
            labels = tuple(np.asarray(labels)[some] for some in cells)
        sizes = [len(some) for some in cells]
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
    eps: float = 0.05,
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
        key: See above.
        rep: Where an AnnData has the points: an entry of obsm; None is X.
        times: Which time points, in order; cells of other times are left out. None: all time points. Ordered
            categories keep their order; numbers and dates are sorted. Texts that are numbers, or have one prefix and
            end in a number ("day2", "day10"), are sorted by that number, and a UserWarning states the order. The order
            of all other texts must be given. A label such as "mixed" or "unknown" is never a time point.
        eps: Entropic strength, as a share of the pair's mean cost if `relative`.
        relative: See eps.
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
    names, cells, clouds, masses = _gathered(data, key, rep, times, weights)
    if bootstraps != 0 and not is_count(bootstraps):
        raise OptionsError(f"bootstraps must be an integer of at least 0, got {bootstraps!r}")
    if len(names) < 2:
        raise ProblemError(f"at least two time points are needed, got {names}")
    scales = [eps * (_mean_cost(x, y) if relative else 1.0) for x, y in itertools.pairwise(clouds)]
    rng, problems = np.random.default_rng(seed), list[Problem[Any]]()
    for draw in range(1 + bootstraps):
        # The points stay, their weights are how often they were drawn: lanes share costs.
        drawn = masses if draw == 0 else [rng.multinomial(len(m), m / m.sum()).astype(float) for m in masses]
        drawn = [m / m.sum() for m in drawn]
        for k, scale in enumerate(scales):
            problems.append(Problem(x=clouds[k], y=clouds[k + 1], a=drawn[k], b=drawn[k + 1], eps=scale))
    solution = solve(problems, tol=tol, **settings)
    count = None if isinstance(data, Mapping) else len(data)
    return Timepoints(names, cells, solution, data if hasattr(data, "obs") else None, count)


def _rows_to_one(mass: Array) -> Array:
    total = mass.sum(axis=-1, keepdims=True)
    return np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)


def _mean_cost(x: Array, y: Array) -> float:
    """The mean squared distance between two clouds."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + x.var(0).sum() + y.var(0).sum())


def _gathered(data: Any, key: Any, rep: Any, times: Any, weights: Any) -> tuple[list[Any], list[Array], list[Any], Any]:
    """Times, places of their cells, their points and their weights."""
    if isinstance(data, Mapping):
        if weights is not None or key is not None:
            raise ProblemError("with a mapping from times to clouds there is neither key nor weights")
        names = _time_points(times, list(data), None)
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
    names = _time_points(times, labels.tolist(), _categories(key))
    for name in names:
        some = masses[labels == name]
        if not (np.isfinite(some).all() and (some >= 0).all() and some.sum() > 0):
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


def _categories(key: Any) -> list[Any] | None:
    """The categories of an ordered categorical of pandas, in order; None for anything else."""
    dtype: Any = getattr(key, "dtype", None)
    return list(dtype.categories) if getattr(dtype, "ordered", False) else None


def _time_points(times: Iterable[Any] | None, labels: list[Any], categories: list[Any] | None) -> list[Any]:
    """Time points in order.

    Args:
        times: The order that the caller gave, or None.
        labels: Labels of all cells, or the keys of a mapping.
        categories: Ordered categories, if the labels have them.
    """
    names = list(dict.fromkeys(labels))
    present = [name for name in names if str(name).strip() not in MISSING]
    if times is not None:
        wanted = list(times)
        absent = [name for name in wanted if name not in present]
        if absent:
            raise ProblemError(f"time point {absent[0]!r} has no cells; there are {present}")
        _refuse_no_time(wanted)
        return wanted
    missing = [name for name in names if str(name).strip() in MISSING]
    if missing:
        raise ProblemError(
            f"cell {labels.index(missing[0])} has no time ({missing[0]!r}); leave such cells out, or name the time "
            "points in times="
        )
    _refuse_no_time(present)
    if categories is not None:
        return _in_category_order(present, categories)
    if any(isinstance(name, (str, bytes)) for name in present):
        return _in_number_order(present)
    try:
        return sorted(present)
    except TypeError as error:
        raise ProblemError(f"the order of time points {present} is unknown ({error}); give it as times=[...]") from None


def _refuse_no_time(names: list[Any]) -> None:
    for name in names:
        if isinstance(name, str) and not NO_TIME.isdisjoint(re.split(r"[^a-z0-9]+", name.lower())):
            raise ProblemError(
                f"label {name!r} is no time point; leave such cells out, name the other time points in times=, or "
                "rename it if it is one"
            )


def _in_category_order(present: list[Any], categories: list[Any]) -> list[Any]:
    """Time points in the order of their categories; warns where numbers in their names say otherwise."""
    order = [name for name in categories if name in present]
    numbers = _numbers(order)
    if numbers is not None and numbers != sorted(numbers):
        _warn(f"the ordered categories have the time points in the order {order}, which is not that of their numbers")
    return order


def _in_number_order(present: list[Any]) -> list[Any]:
    """Sort texts by the numbers they end in and state the order in a warning; ProblemError if they cannot be sorted."""
    numbers = _numbers(present)
    if numbers is None or len(set(numbers)) < len(numbers):
        raise ProblemError(
            f"the order of time points {present} is unknown: texts are sorted only if they have one prefix and end in "
            "different numbers; give the order as times=[...], or make the column an ordered categorical"
        )
    order = [name for _, name in sorted(zip(numbers, present, strict=True))]
    _warn(f"time points are taken in the order {order}, by the numbers they end in")
    return order


def _numbers(names: list[Any]) -> list[float] | None:
    """Return the number that each text is, or ends in after a prefix common to all; None if some text has none."""
    if not all(isinstance(name, str) for name in names):
        return None
    if all(NUMBER.fullmatch(name.strip()) for name in names):
        return [float(name) for name in names]
    ends = [NUMBERED.fullmatch(name.strip()) for name in names]
    # "E18" and "P0", or "day-1" and "day1", have numbers that cannot be compared.
    if None in ends or len({end["prefix"].rstrip(" _").lower() for end in ends if end}) > 1:
        return None
    return [float(end["number"]) for end in ends if end]


def _warn(order: str) -> None:
    warnings.warn(f"{order}; pass times=[...] to choose another order or to silence this", UserWarning, stacklevel=6)


def _from_anndata(data: Any, key: Any, rep: Any, weights: Any) -> tuple[Array, Any, Any]:
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
