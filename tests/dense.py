"""Dense float64 plans for tests: SciPy's distances and nothing of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

import drainsinkhorn as ds


def array(value: Any) -> Any:
    """Any array in float64 on the host."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return np.asarray(value, dtype=np.float64)


def weights(given: Any, size: int) -> Any:
    values = np.ones(size) if given is None else array(given)
    return values / values.sum()


def cost_of(problem: ds.Problem[Any]) -> Any:
    if not isinstance(problem.cost, (str, ds.Cost)):
        return array(problem.cost)
    cost = ds.Cost(problem.cost) if isinstance(problem.cost, str) else problem.cost
    return cost.scale * cdist(array(problem.x), array(problem.y), cost.kind)


def plan_of(result: ds.Result[Any]) -> Any:
    problem = result.problem
    cost, (f, g) = cost_of(problem), (array(p) for p in result.potentials)
    a, b = weights(problem.a, len(f)), weights(problem.b, len(g))
    with np.errstate(over="ignore", invalid="ignore"):
        plan = a[:, None] * b * np.exp((f[:, None] + g - cost) / problem.eps)
    return np.where((a[:, None] > 0) & (b > 0), plan, 0.0)


def ragged(rng: np.random.Generator, count: int, largest: int = 60, dims: tuple[int, ...] = (1, 2, 5, 20)) -> list[Any]:
    """Problems of unequal sizes, dimensions, costs, dtypes and weights, and two with a dense cost."""
    found: list[ds.Problem[Any]] = []
    for k in range(count):
        n, m = rng.integers(1, largest, size=2)
        d, kind = dims[k % len(dims)], ("sqeuclidean", "euclidean", "cosine")[k % 3]
        dtype = "float64" if k // 4 % 2 else "float32"
        x, y = (rng.normal(size=(size, d)) + 1 for size in (n, m))
        a, b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        if n > 4 and k % 4 == 0:
            a[[0, 2]] = 0.0
            b[-1] = b[-1] if m < 3 else 0.0
        eps = float(rng.uniform(0.05, 0.5)) * max(float(np.median(cdist(x, y, kind))), 1e-2)
        cost = ds.Cost(kind, float(rng.uniform(0.5, 2)))
        masses = {} if k % 5 == 0 else {"a": a / a.sum(), "b": b / b.sum()}
        found.append(ds.Problem(x=x.astype(dtype), y=y.astype(dtype), eps=eps, cost=cost, **masses))
    found.append(ds.Problem(cost=rng.uniform(size=(17, 9)), eps=0.1))
    found.append(ds.Problem(cost=rng.uniform(size=(6, 31)).astype("float32"), a=np.r_[0.0, np.ones(5)] / 5, eps=0.2))
    return found
