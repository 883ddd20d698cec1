"""Samples, maps, costs and products of optimal plans, batched over results and without the n x m plan in memory.

Every function takes one Result, or many: a Solution, or any sequence of Results. For many results, an argument that
each of them needs is a list, or an array whose first axis runs over the results; the return value is a list in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from drainsinkhorn.model.couplings import Coupler, Couplings, TransportCost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.result import MAX_PAIRS, Result, warn_of_constant_costs, warn_of_plans
from drainsinkhorn.numerics.arrays import is_array, to_numpy
from drainsinkhorn.numerics.transforms import mutual_information
from drainsinkhorn.numerics.weights import shannon_entropy

Results = Result[Any] | Iterable[Result[Any]]


def apply(results: Results, values: Any, side: str = "row") -> Any:
    """`P @ values` for side "row" (values over y), `P.T @ values` for "col" (values over x); any number of channels.

    Args:
        results: One Result or many.
        values: For one result an array (m,) or (m, ...); for many a list of such, or one array with an axis in front.
        side: "row" or "col".

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> rng = np.random.default_rng(0)
        >>> solution = ds.solve(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 30, 2)), eps=0.5)
        >>> [pushed.shape for pushed in apply(solution, np.ones((3, 30, 4)))]
        [(20, 4), (20, 4), (20, 4)]
    """
    if isinstance(results, Result):
        return results.apply(values, side)
    many = _many(results)
    each = _for_each("values", values, len(many))
    return _together(many, lambda plans, places: plans.apply([each[i] for i in places], side))


def marginal(results: Results, side: str = "row") -> Any:
    """Marginals of plans: the mass that each point of x sends, `P 1`, (n,), or that each point of y receives, `P' 1`.

    They are the weights where marginals are hard, up to the residual, and differ from them where marginals are soft.

    Args:
        results: One Result or many.
        side: "row" (points of x) or "col" (points of y).

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(50, 2))
        >>> result = ds.solve(x, x + 1, eps=0.1, rho=0.5)[0]
        >>> bool(np.allclose(marginal(result), result.plan().sum(axis=1)))
        True
    """

    def verb(plans: Couplings[Any], places: list[int]) -> Sequence[Any]:
        return plans.apply([np.ones(many[place].instance.shape[side == "row"]) for place in places], side)

    many = _many(results)
    return _one_or_many(results, verb)


def barycentric_map(results: Results, side: str = "row") -> Any:
    """Barycentric projection (conditional mean) of each point: of x, (n, d), for "row"; of y, (m, d), for "col"."""
    return _one_or_many(results, lambda plans, _: plans.barycentric_map(side))


def top_match(results: Results, side: str = "row") -> Any:
    """For each point of the side, the point of the other side to which it sends most mass."""
    return _one_or_many(results, lambda plans, _: plans.top_match(side))


def sample(results: Results, count: int, *, seed: Any = None) -> Any:
    """Index pairs (i, j), each (count,), drawn independently from each plan.

    Args:
        results: One Result or many.
        count: Number of pairs of each plan.
        seed: A non-negative integer: the draw depends on it and on the result's ticket alone, not on its neighbours,
            and is the same on every device up to rounding. Or a generator of torch or NumPy, from which a seed is drawn
            for each result. None: other pairs at every call.
    """
    many = _many(results)
    seeds = [(seed, result.ticket) for result in many]
    drawn = _together(many, lambda plans, places: plans.sample(count, [seeds[i] for i in places]))
    return drawn[0] if isinstance(results, Result) else drawn


def partners(results: Results, rows: Any, *, seed: Any = None) -> Any:
    """For given points, a point of y each, (k,), drawn independently from their conditional distributions.

    Args:
        results: One Result or many.
        rows: Indices of points of x, (k,); or other points in the space of x, (k, d), as semidiscrete pairing needs.
            For many results a list of these, or an array with an axis in front.
        seed: As for `sample`.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> noise, data = (np.random.default_rng(k).normal(size=(200, 2)) for k in (0, 1))
        >>> result = ds.solve(noise, data, eps=0.1)[0]
        >>> fresh = np.random.default_rng(2).normal(size=(5, 2))  # noise that the problem did not have
        >>> partners(result, fresh, seed=0).shape
        (5,)
    """
    many = _many(results)
    each = [rows] if isinstance(results, Result) else _for_each("rows", rows, len(many))
    seeds = [(seed, result.ticket) for result in many]
    if any(np.ndim(own) == 2 for own in each):
        # A list of lists of numbers is a cloud too.
        clouds = [own if is_array(own) else np.asarray(own) for own in each]
        places = [np.arange(len(cloud)) for cloud in clouds]
        drawn = _at(many, clouds, "row", lambda plans, at: plans.partners(_take(places, at), _take(seeds, at)))
    else:
        drawn = _together(many, lambda plans, at: plans.partners(_take(each, at), _take(seeds, at)))
    return drawn[0] if isinstance(results, Result) else drawn


def map_points(results: Results, points: Any, side: str = "row") -> Any:
    """Where the entropic map of each plan moves other points than those of the problem, (k, d) to (k, d).

    The entropic map is the conditional mean of the plan, extended to the whole space by the potentials of the other
    side. `Result.map` is the same for one result.

    Args:
        results: One Result or many.
        points: Points in the space of x for side "row", of y for "col"; for many results a list of clouds, or an array
            with an axis in front.
        side: "row" or "col".

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> result = ds.solve(x, x + 3, eps=0.1)[0]
        >>> bool(np.allclose(map_points(result, x), result.barycentric_map()))
        True
    """
    if isinstance(results, Result):
        return results.map(points, side)
    many = _many(results)
    each = _for_each("points", points, len(many))
    return _at(many, each, side, lambda plans, _: plans.barycentric_map(side))


def transport_cost(results: Results) -> TransportCost | list[TransportCost]:
    """Transport cost, KL, objective, dual value, mass and prices of soft marginals of each plan, as constants.

    `drainsinkhorn.grad.torch.value` and `drainsinkhorn.grad.jax.value` can be differentiated.
    """
    if isinstance(results, Result):
        return results.transport_cost()
    costs = transport_costs(many := _many(results))
    warn_of_constant_costs(many)
    return costs


def transport_costs(results: Iterable[Result[Any]]) -> list[TransportCost]:
    """`transport_cost` of many results; type checkers see that it always returns a list."""
    return _together(_many(results), lambda plans, _: plans.transport_cost())


def normalised_entropy(results: Results) -> float | list[float]:
    """How much a plan spreads mass: near 0 for a permutation, 1 for the independent plan `a b'`.

    With the Shannon entropy H it is `(H(P) - max(H(a), H(b))) / min(H(a), H(b))`, which equals
    `1 - KL(P | a b') / min(H(a), H(b))`; for uniform weights of n points on both sides it is `H(P) / log n - 1`. It is
    NaN if one side has a single point with weight, since then there is one plan only. `sharpness` finds the eps for a
    given value. With a soft marginal, P is the plan over its mass, and its marginals are taken for a and b.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(40, 2))
        >>> sharp, smooth = (normalised_entropy(ds.solve(x, x + 1, eps=eps)[0]) for eps in (0.01, 10.0))
        >>> sharp < 0.2 < 0.9 < smooth < 1
        True
    """
    if isinstance(results, Result):
        return normalised_entropies([results])[0]
    return normalised_entropies(results)


def normalised_entropies(results: Iterable[Result[Any]]) -> list[float]:
    """`normalised_entropy` of many results; type checkers see that it always returns a list."""
    many = _many(results)
    costs, entropies = transport_costs(many), list[float]()
    soft = [place for place, result in enumerate(many) if not result.instance.marginals.are_hard]
    described = dict(zip(soft, _together([many[place] for place in soft], _describe_marginals), strict=True))
    for place, (result, cost) in enumerate(zip(many, costs, strict=True)):
        one, kl = result.instance, cost.kl
        sides, ratios = described.get(place, ((one.a, one.b), (0.0, 0.0)))
        if place in described:
            kl = mutual_information(kl, cost.mass, one.masses, ratios) if cost.mass > 0 else math.nan
        least = min(shannon_entropy(weights) for weights in sides)
        entropies.append(1 - kl / least if least > 0 else math.nan)
    return entropies


def _describe_marginals(plans: Couplings[Any], _: list[int]) -> list[Any]:
    """Marginals p and q of plans over their mass, and `sum_i p_i log r_i` of both."""
    described: list[list[Any]] = []
    for side, other in (("row", "col"), ("col", "row")):
        logs = [to_numpy(one).astype(np.float64) for one in plans.log_ratios(side)]
        ones = [np.ones(one.shape[0]) for one in plans.log_ratios(other)]
        masses = [to_numpy(one).astype(np.float64) for one in plans.apply(ones, side)]
        shares = [one / one.sum() if one.any() else one for one in masses]
        ratios = [float(share[share > 0] @ log[share > 0]) for share, log in zip(shares, logs, strict=True)]
        described.append(list(zip(shares, ratios, strict=True)))
    return [((p, q), (row, col)) for (p, row), (q, col) in zip(*described, strict=True)]


def plan(results: Results, *, max_pairs: int = MAX_PAIRS) -> Any:
    """Dense plans (n, m); refused above `max_pairs` entries in all."""
    return _one_or_many(results, lambda plans, _: plans.plan(max_pairs))


def couplings(results: Iterable[Result[Any]]) -> list[tuple[list[int], Couplings[Any]]]:
    """Finished plans grouped by the backend that consumes them, with their places: for consumers of your own."""
    many = _many(results)
    groups: dict[Any, tuple[Coupler[Any], list[int]]] = {}
    for place, result in enumerate(many):
        if not isinstance(result, Result):
            raise ProblemError(f"expected Results, got {type(result).__name__} at place {place}")
        groups.setdefault(result.backend, (result.backend, []))[1].append(place)
    warn_of_plans(many)
    # Before instances: an INVALID problem has neither, and `potentials` raises the error that says so.
    potentials = [result.potentials for result in many]
    return [
        (places, backend.couple([many[i].instance for i in places], [potentials[i] for i in places]))
        for backend, places in groups.values()
    ]


def _one_or_many(results: Results, verb: Callable[[Couplings[Any], list[int]], Sequence[Any]]) -> Any:
    if isinstance(results, Result):
        return verb(results.couplings, [0])[0]
    return _together(_many(results), verb)


def _many(results: Results) -> list[Result[Any]]:
    if isinstance(results, Result):
        return [results]
    if not isinstance(cast(object, results), Iterable):
        raise ProblemError(f"expected a Result, a Solution or a sequence of Results, got {type(results).__name__}")
    return list(results)


def _together(results: list[Result[Any]], verb: Callable[[Couplings[Any], list[int]], Sequence[Any]]) -> list[Any]:
    """Call `verb(plans, places)` for the results of each backend; return one value per result, in order."""
    values: list[Any] = [None] * len(results)
    for places, plans in couplings(results):
        for place, value in zip(places, verb(plans, places), strict=True):
            values[place] = value
    return values


def _at(
    results: list[Result[Any]],
    clouds: Sequence[Any],
    side: str,
    verb: Callable[[Couplings[Any], list[int]], Sequence[Any]],
) -> list[Any]:
    """Call `verb(plans, places)` as `_together` does, for plans with other points on one side (`Result.place`)."""
    warn_of_plans(results)
    groups: dict[Any, list[int]] = {}
    for place, result in enumerate(results):
        groups.setdefault(result.backend, []).append(place)
    values: list[Any] = [None] * len(results)
    for backend, places in groups.items():
        placed = [results[place].place(clouds[place], side) for place in places]
        plans = backend.couple([instance for instance, _ in placed], [potentials for _, potentials in placed])
        for place, value in zip(places, verb(plans, places), strict=True):
            values[place] = value
    return values


def _take(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [values[place] for place in places]


def _for_each(name: str, values: Any, count: int) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)) and not is_array(values):
        raise ProblemError(f"{name} must be a list with one array for each result, got {type(values).__name__}")
    if len(values) != count:
        raise ProblemError(
            f"{name} has {len(values)} entries along its first axis and there are {count} results; "
            f"pass one array for each result, [{name}] * {count} if all share it"
        )
    return values
