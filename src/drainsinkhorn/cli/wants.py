"""What `drain solve --want` writes beside potentials: costs, divergences, barycentric maps and top matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drainsinkhorn.divergences import debias, with_clouds_themselves
from drainsinkhorn.model.couplings import TransportCost
from drainsinkhorn.model.eps import is_descriptor
from drainsinkhorn.model.errors import OptionsError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.consumers import barycentric_map, top_match, transport_costs
from drainsinkhorn.run.resolve import resolve_eps

Array = np.ndarray[Any, Any]
WANTS = ("cost", "divergence", "map", "matches")
"""Names that `--want` takes."""
Within = list[tuple[int, int]]
"""For each problem, the places of the problems of its clouds with themselves."""


def parse_wants(text: str | None) -> list[str]:
    """Return the names of a text such as "cost,map"; raise OptionsError for an unknown one."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in WANTS]
    if unknown:
        raise OptionsError(f"want {unknown[0]!r} is unknown; use some of {', '.join(WANTS)}, separated by commas")
    return names


def add_problems(
    wants: Sequence[str], problems: list[Problem[Any]], backend: str = "auto"
) -> tuple[list[Problem[Any]], Within]:
    """Return the problems and those that divergences need beside them; ProblemError if some cannot be computed.

    This is checked before anything is solved.
    """
    if "map" in wants or "divergence" in wants:
        dense = [ticket for ticket, problem in enumerate(problems) if problem.x is None]
        if dense:
            name = "map" if "map" in wants else "divergence"
            raise ProblemError(f"want {name!r} needs points, and problem {dense[0]} has a dense cost")
    if "map" in wants:
        dims = {_dim(problem) for problem in problems}
        if len(dims) > 1:
            raise ProblemError(f"want 'map' needs points of one dimension in all problems, got {sorted(dims)}")
    if "divergence" not in wants:
        return problems, []
    # All three problems of a pair have the eps of the pair, so one that is relative or a sharpness is found first.
    if any(is_descriptor(problem.eps) for problem in problems):
        problems = resolve_eps(problems, backend=backend)
    batch, within, _ = with_clouds_themselves([_without_start(problem) for problem in problems])
    return [*problems, *batch[len(problems) :]], within


def _without_start(problem: Problem[Any]) -> Problem[Any]:
    """The problem without potentials and chain, which belong to both of its clouds together."""
    fields = {name: getattr(problem, name) for name in ("x", "y", "a", "b", "eps", "tol", "cost", "rho")}
    return Problem(**fields)


def _dim(problem: Problem[Any]) -> int:
    points: Any = problem.x
    return int(np.shape(points)[-1])


def wanted_arrays(
    wants: Sequence[str], results: Sequence[Result[Any]], within: Within
) -> dict[str, Array | list[Array]]:
    """Return the requested quantities by key: one number for each problem as a vector, one array for each as a list.

    Problems without potentials have NaN and empty arrays.

    Args:
        wants: Names of quantities, as `parse_wants` returns them.
        results: Results of all problems, then of those that `add_problems` added.
        within: What `add_problems` returned.
    """
    count = len(results) - len({place for pair in within for place in pair})
    main = results[:count]
    solved = [result for result in main if result.emitted is not None]
    places = [place for place, result in enumerate(main) if result.emitted is not None]
    arrays: dict[str, Array | list[Array]] = {}
    if "cost" in wants:
        names = TransportCost._fields
        columns = np.full((len(names), count), np.nan)
        columns[:, places] = np.array([tuple(cost) for cost in transport_costs(solved)]).reshape(-1, len(names)).T
        arrays.update(zip(names, columns, strict=True))
    if "divergence" in wants:
        arrays["divergence"] = debias(results, within)
    if "map" in wants:
        dim = _dim(main[0].problem) if main else 0
        arrays["map"] = _place(places, barycentric_map(solved), count, np.empty((0, dim)))
    if "matches" in wants:
        arrays["matches"] = _place(places, top_match(solved), count, np.empty(0, dtype=np.int64))
    return arrays


def _place(places: Sequence[int], values: Sequence[Any], count: int, empty: Array) -> list[Array]:
    arrays = [empty] * count
    for place, value in zip(places, values, strict=True):
        arrays[place] = to_numpy(value)
    return arrays
