"""Single cells over time: every pair of consecutive time points, and bootstraps of them, as one batch of lanes."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.apps.cell_points import (
    DEFAULT_REP,
    chosen_rep,
    match_index,
    read_timepoints,
    unknown_name,
)
from drainsinkhorn.apps.growth import check_taus, read_growth, soft_fields
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.model.brief import brief, call, count_of, html_table, status_counts
from drainsinkhorn.model.eps import Eps, is_descriptor
from drainsinkhorn.model.errors import OptionsError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.consumers import couplings, top_match
from drainsinkhorn.run.resolve import resolve_eps
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import DEFAULTS, solve

Array = NDArray[Any]
SHOWN = 12
"""Sources and targets of a table that a notebook shows."""


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
    def conditional(self) -> Array:
        """The conditional distribution of targets for each source, (k, l): every row with mass sums to 1."""
        return _rows_to_one(self.mass)

    @property
    def law(self) -> Array:
        """Deprecated name of `conditional`."""
        warnings.warn("Table.law is deprecated; use Table.conditional", DeprecationWarning, stacklevel=2)
        return self.conditional

    @property
    def spread(self) -> Array | None:
        """The standard deviation of `conditional` over bootstraps, (k, l); None with fewer than two bootstraps."""
        return np.std(_rows_to_one(self.draws), axis=0, ddof=1) if len(self.draws) > 1 else None

    def distance(self, other: Table) -> float:
        """Total variation between two tables of the same names."""
        if (self.sources, self.targets) != (other.sources, other.targets):
            raise ProblemError("tables of different names cannot be compared")
        return float(np.abs(self.mass - other.mass).sum() / 2)

    def __repr__(self) -> str:
        groups = f"{count_of(len(self.sources), 'source')} x {count_of(len(self.targets), 'target')}"
        return call("Table", groups, count_of(len(self.draws), "bootstrap"))

    def _repr_html_(self) -> str:
        spread, rows = self.spread, list[list[str]]()
        for k, source in enumerate(self.sources[:SHOWN]):
            shares = [f"{share:.2f}" for share in self.conditional[k, :SHOWN]]
            if spread is not None:
                shares = [f"{share} ± {own:.2f}" for share, own in zip(shares, spread[k], strict=False)]
            rows.append([str(source), *shares])
        header = ["source", *(str(target) for target in self.targets[:SHOWN])]
        left_out = [
            count_of(len(names) - SHOWN, f"more {kind}")
            for names, kind in ((self.sources, "source"), (self.targets, "target"))
            if len(names) > SHOWN
        ]
        return html_table("Share of each source that goes to each target", header, rows, " and ".join(left_out))


@dataclass(frozen=True, slots=True, eq=False)
class Timepoints:
    """Coupled time points.

    Methods name a pair of consecutive time points by its number, by its two time points as a tuple, or by the earlier
    of them: with time points "day2" and "day10", 0, `("day2", "day10")` and "day2" are the same pair. An integer is
    always a number; negative numbers count from the end.

    Attributes:
        times: Time points in order.
        cells: For each of them the places of its cells in the data, or 0 .. n - 1 where times came as separate clouds.
        solution: All results: those of consecutive pairs, then bootstrap after bootstrap.
        data: The AnnData it was made from, if any.
        count: How many cells the data has; None where times came as separate clouds.
        index: Names of the cells as an index of pandas; None if the data has none.
    """

    times: list[Any]
    cells: list[Array]
    solution: Solution[Any]
    data: Any = None
    count: int | None = None
    index: Any = None

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Consecutive time points."""
        return list(zip(self.times[:-1], self.times[1:], strict=True))

    def __repr__(self) -> str:
        ends = f"{count_of(len(self.times), 'time')} from {brief(self.times[0])} to {brief(self.times[-1])}"
        cells = f"{sum(map(len, self.cells)):,} cells"
        draws = count_of(len(self.solution) // len(self.pairs) - 1, "bootstrap")
        return call("Timepoints", ends, cells, draws, status_counts(self.solution.statuses))

    def result(self, pair: Any) -> Result[Any]:
        """The result of a pair, given by number or time points."""
        return self.solution[self._place(pair)]

    def _place(self, pair: Any) -> int:
        """The number of a pair, counted from the front; ProblemError for time points that are no pair."""
        try:
            number = operator.index(pair)
        except TypeError:
            return self._place_of_names(pair)
        count = len(self.pairs)
        if not -count <= number < count:
            raise IndexError(f"there is no pair {number}: there are {count}, {self.pairs}")
        return number % count

    def _place_of_names(self, pair: Any) -> int:
        names: list[Any] = list(pair) if isinstance(pair, tuple) else [pair]
        if not 1 <= len(names) <= 2:
            raise ProblemError(f"a pair is a number, the earlier time point or two time points, got {pair!r}")
        places: list[int] = []
        for name in names:
            same = [k for k, time in enumerate(self.times) if name is time or str(name) == str(time)]
            if not same:
                raise unknown_name("there is no time point", name, self.times)
            places += same[:1]
        if places[0] == len(self.pairs):
            raise ProblemError(
                f"{names[0]!r} is the last time point, so no pair begins with it; there are {self.pairs}"
            )
        if len(places) == 2 and places[1] != places[0] + 1:
            raise ProblemError(f"{pair!r} are no consecutive time points; there are the pairs {self.pairs}")
        return places[0]

    def bootstraps(self, pair: Any) -> list[Result[Any]]:
        """The results of a pair's bootstraps."""
        place, step = self._place(pair), len(self.pairs)
        return [self.solution[k] for k in range(place + step, len(self.solution), step)]

    def push(self, values: Any, pair: Any) -> Array:
        """Mean of the earlier cells' values for every later cell, over the cells it comes from."""
        return self._means(values, pair, "col")

    def pull(self, values: Any, pair: Any) -> Array:
        """For every earlier cell, the mean of the later cells' values under its conditional distribution."""
        return self._means(values, pair, "row")

    def _means(self, values: Any, pair: Any, side: str) -> Array:
        ((_, plans),) = couplings([self.result(pair)])
        return to_numpy(plans.average([values], side)[0])

    def transitions(self, labels: Any, pair: Any) -> Table:
        """Mass between the groups of a pair; with its spread if there are bootstraps.

        Args:
            labels: Names of groups: a column of obs, one array for all cells of the data (a Series is matched by the
                names of cells), or a pair (of earlier cells, of later cells).
            pair: The number of the pair, the earlier time point, or both time points.
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

    def _labels(self, labels: Any, pair: Any) -> tuple[Array, Array]:
        if isinstance(labels, str):
            if self.data is None:
                raise ProblemError(f"{labels!r} names a column of an AnnData; pass arrays of names instead")
            labels = self._column(labels)
        cells = self.cells[self._place(pair) :][:2]
        if not isinstance(labels, tuple):
            if self.count is None:
                raise ProblemError("times came as separate clouds; pass labels as a pair (of earlier, of later cells)")
            labels = match_index(labels, self.index, "labels")
            if np.shape(labels) != (self.count,):
                raise ProblemError(f"labels must name {self.count} cells, those of the data, got {np.shape(labels)}")
            labels = tuple(np.asarray(labels)[indices] for indices in cells)
        sizes = [len(indices) for indices in cells]
        if [len(part) for part in labels] != sizes:
            raise ProblemError(f"labels are for {[len(part) for part in labels]} cells, the pair has {sizes}")
        here, there = (np.asarray(part).astype(str) for part in labels)
        return here, there

    def _column(self, name: str) -> Array:
        """A column of obs; ProblemError names the nearest column if there is none of this name."""
        if name not in self.data.obs:
            raise unknown_name("obs has no column", name, self.data.obs.columns)
        return self.data.obs[name].to_numpy()

    def to_anndata(self, labels: str) -> Any:
        """Return a copy of the AnnData with fates, origins, matches and tables for the groups of a column.

        `obsm["fate_" + labels]` holds for every cell the shares of groups it goes to at the next time point, and
        `obsm["origin_" + labels]` those it comes from (NaN where there is none); `obs["match"]` names the later cell to
        which most of its mass goes; `uns["transitions"]` the tables, by pair. The copy of a backed AnnData is in
        memory.
        """
        if self.data is None:
            raise ProblemError("these time points did not come from an AnnData")
        column = self._column(labels)
        out = self.data.to_memory() if getattr(self.data, "isbacked", False) else self.data.copy()
        names, codes = np.unique(column.astype(str), return_inverse=True)
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
    rep: str | None = DEFAULT_REP,
    use_rep: str | None = None,
    times: Sequence[Any] | None = None,
    eps: Eps = 0.05,
    relative: bool = True,
    weights: Any = None,
    growth: Any = None,
    tau_a: float = 1.0,
    tau_b: float = 1.0,
    bootstraps: int = 0,
    seed: int = 0,
    tol: float | None = None,
    **settings: Any,
) -> Timepoints:
    """Couple all consecutive time points, and bootstraps of them, as one batch of lanes.

    Args:
        data: An AnnData, in memory or backed, with `key` a column of obs; points (cells, d), with `key` their times; a
            DataFrame of points, with `key` their times or the column that has them; or a mapping from times to clouds.
        key: Times of the cells: a column, or one time for each cell (a Series is matched by the names of cells); None
            with a mapping.
        rep: Where an AnnData has the points: an entry of obsm; None or "X" is X. A sparse X becomes dense, with a
            warning that says its size.
        use_rep: The name that scanpy has for `rep`.
        times: Which time points, in order; cells of other times are left out. None: all time points. Ordered
            categories keep their order; numbers and dates are sorted. Texts that are numbers, or have one prefix and
            end in a number ("day2", "day10"), are sorted by that number, and a UserWarning states the order. The order
            of all other texts must be given. A label such as "mixed" or "unknown" is never a time point.
        eps: A number, in units of the cost, or of the pair's mean cost if `relative`; or `drainsinkhorn.relative` or
            `sharpness`, which are found once for each pair, so that its bootstraps have the same eps. None:
            `relative(0.05)`.
        relative: Whether a number is a share of the pair's mean cost.
        weights: A column of obs, or an array: weights of all cells; None: uniform.
        growth: A column of obs, an array, or for a mapping of clouds a mapping: how many descendants each cell is
            expected to have at the next time point, up to a factor for each time point. It multiplies the weight of a
            cell as a source, and is not read at the last time point. None: equal for all cells.
        tau_a: How strictly the plan keeps to the weights of the sources: 1: exactly; below 1 the marginal is soft, with
            moscot's meaning (`rho = eps tau / (1 - tau)`, and an entropic term that counts cells).
        tau_b: The same for the targets.
        bootstraps: How often the cells of every time point are drawn anew, with replacement.
        seed: Decides the draws.
        tol: Bound on the larger L1 marginal residual; with a soft marginal relative to the transported mass.
        **settings: Keywords of `solve`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> found = couple_timepoints({t: rng.normal(size=(40, 3)) + t for t in (0, 1, 2)}, bootstraps=3)
        >>> found.pairs, len(found.solution)
        ([(0, 1), (1, 2)], 8)
    """
    check_settings(settings, couple_timepoints)
    names, cells, clouds, masses, index = read_timepoints(data, key, chosen_rep(rep, use_rep), times, weights)
    if bootstraps != 0 and not is_count(bootstraps):
        raise OptionsError(f"bootstraps must be an integer of at least 0, got {bootstraps!r}")
    if len(names) < 2:
        raise ProblemError(f"at least two time points are needed, got {names}")
    if is_descriptor(eps):
        scales = _find_eps(eps, clouds, masses, tol, settings)
    else:
        number: Any = eps
        scales = [number * (_mean_cost(x, y) if relative else 1.0) for x, y in itertools.pairwise(clouds)]
    growths = None if growth is None else read_growth(data, growth, names, cells, index)
    taus = check_taus(tau_a, tau_b)
    solution = solve(_make_problems(clouds, masses, growths, taus, scales, bootstraps, seed), tol=tol, **settings)
    count = None if isinstance(data, Mapping) else data.shape[0] if hasattr(data, "shape") else len(data)
    return Timepoints(names, cells, solution, data if hasattr(data, "obs") else None, count, index)


def _make_problems(
    clouds: list[Any],
    masses: list[Any],
    growths: list[Array] | None,
    taus: tuple[float, float],
    strengths: Sequence[Any],
    bootstraps: int,
    seed: int,
) -> list[Problem[Any]]:
    """Return the problems of all pairs of consecutive time points, then those of each bootstrap."""
    rng, problems = np.random.default_rng(seed), list[Problem[Any]]()
    for draw in range(1 + bootstraps):
        # A bootstrap changes the weights, to the number of times each cell was drawn, and not the points, so all lanes
        # of a pair share their costs.
        drawn = masses if draw == 0 else [rng.multinomial(len(m), m / m.sum()).astype(float) for m in masses]
        drawn = [m / m.sum() for m in drawn]
        for k, eps in enumerate(strengths):
            a, b = drawn[k], drawn[k + 1]
            if growths is not None:
                a = a * growths[k]
                # Cells that were drawn may all have no descendants: then the problem says that there is no mass.
                a = a / (a.sum() or 1.0)
            problem = Problem(x=clouds[k], y=clouds[k + 1], a=a, b=b, eps=eps)
            problems.append(replace(problem, **soft_fields(a, b, eps, taus)))
    return problems


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
