"""From the arguments of POT's functions to one drained batch, and from its results to POT's fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from drainsinkhorn.apps.pot.arguments import asks_gradient, normalise, tol_of, without_gradient
from drainsinkhorn.apps.pot.result import FinishedProblem, OTResult, Tensors
from drainsinkhorn.core.options import Settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.run.solve import solve

MAX_ITER = 1000
"""POT's default number of iterations."""


@dataclass(frozen=True, slots=True)
class Call:
    """What all problems of a call share.

    Attributes:
        eps: Entropic strength.
        regulariser: "kl" or "entropy".
        grad: One of `arguments.GRADS`.
        max_iter: Largest number of cycles; None: MAX_ITER.
        tol: Bound on the larger L1 residual; None: `default_tol`.
        default_tol: POT's default.
        backend: Backend of this library.
        settings: Fields of Options.
        fixed_plan: Whether transport costs have derivatives at a fixed plan under grad "envelope", as in `ot.batch`.
        rho: Prices of soft marginals; None: both are hard.
        scalings: Whether `potentials` are u and v, as in POT's batched method "sinkhorn", not their logarithms.
    """

    eps: float
    regulariser: str
    grad: str
    max_iter: int | None
    tol: float | None
    backend: str | Backend[Any]
    settings: Settings
    default_tol: float = 1e-9
    fixed_plan: bool = False
    scalings: bool = False
    rho: tuple[float, float] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of `drainsinkhorn.solve`."""
        depth = MAX_ITER if self.max_iter is None else self.max_iter
        tol = tol_of(self.tol, self.default_tol)
        return {"tol": tol, "backend": self.backend, "max_depth": depth, **self.settings}


class Arrays(NamedTuple):
    """The caller's arrays of one problem, or of a batch: stacked along a first axis, or shared by all problems.

    Attributes:
        matrix: Costs, (n, m) or (W, n, m); None with points.
        x: Source points, (n, d) or (W, n, d).
        y: Target points, (m, d) or (W, m, d).
        a: Source weights, (n,) or (W, n); None: uniform.
        b: Target weights, (m,) or (W, m); None: uniform.
    """

    matrix: Any
    x: Any
    y: Any
    a: Any
    b: Any

    @property
    def like(self) -> Any:
        """The array whose library, device and dtype results have."""
        return self.x if self.matrix is None else self.matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Points on each side."""
        if self.matrix is not None:
            return self.matrix.shape[-2], self.matrix.shape[-1]
        return self.x.shape[-2], self.y.shape[-2]

    def row(self, k: int) -> Arrays:
        """The arrays of problem k."""
        ndims = (2, 2, 2, 1, 1)
        values = zip(self, ndims, strict=True)
        return Arrays(*(value if value is None or value.ndim == ndim else value[k] for value, ndim in values))


def run(arrays: Arrays, cost: Any, call: Call, *, init: Any = None, stacked: bool = False) -> OTResult:
    """Solve one problem, or a batch of problems of one shape.

    Args:
        arrays: The caller's arrays.
        cost: The cost between points; not used with a matrix.
        call: What all problems share.
        init: Where to start: potentials of this library.
        stacked: Whether the fields of the result have an axis in front.
    """
    matrix, x, y, a, b = map(without_gradient, arrays)
    cost_or_matrix = cost if matrix is None else matrix
    solution = solve(x, y, eps=call.eps, a=a, b=b, init=init, cost=cost_or_matrix, rho=call.rho, **call.options)
    if not len(solution):
        raise ProblemError("the batch is empty; pass at least one problem")
    rows = [arrays.row(k) for k in range(len(solution))]
    return answer(solution, rows, cost, call, stacked=stacked)


def run_each(rows: Sequence[Arrays], cost: Any, call: Call) -> list[OTResult]:
    """Solve problems of any shapes between points as one batch; one result for each."""
    problems = [
        Problem(x=x, y=y, a=a, b=b, eps=call.eps, cost=cost)
        for _, x, y, a, b in (map(without_gradient, row) for row in rows)
    ]
    solution = solve(problems, **call.options)
    return [answer([result], [row], cost, call, stacked=False) for result, row in zip(solution, rows, strict=True)]


def answer(results: Sequence[Result[Any]], rows: Sequence[Arrays], cost: Any, call: Call, *, stacked: bool) -> OTResult:
    """Return results in POT's terms; ProblemError if a single problem is INVALID."""
    if not stacked and results[0].status is Status.INVALID:
        raise ProblemError(results[0].detail)
    lanes: list[FinishedProblem] = []
    for result, row in zip(results, rows, strict=True):
        (a, mass), (b, other) = (normalise(w, size) for w, size in zip((row.a, row.b), row.shape, strict=True))
        if call.rho is not None:
            # Weights keep their masses.
            lanes.append(FinishedProblem(result, mass * a, other * b, 1.0, call.rho))
            continue
        lanes.append(FinishedProblem(result, a, b, 1.0 if row.a is None and row.b is None else mass))
    return OTResult(
        lanes,
        results,
        eps=call.eps,
        regulariser=call.regulariser,
        like=rows[0].like,
        stacked=stacked,
        scalings=call.scalings,
        tensors=_tensors(lanes, rows, cost, call),
    )


def _tensors(lanes: Sequence[FinishedProblem], rows: Sequence[Arrays], cost: Any, call: Call) -> Tensors | None:
    """Fields that carry derivatives; None if torch records none."""
    if call.grad == "detach" or not any(asks_gradient(tuple(row)) for row in rows):
        return None
    from drainsinkhorn.apps.pot.derivatives import Inputs, LiveFields

    return LiveFields(
        lanes,
        [Inputs(*row, cost=cost) for row in rows],
        eps=call.eps,
        regulariser=call.regulariser,
        implicit=call.grad in ("autodiff", "last_step"),
        fixed_plan=call.fixed_plan,
    )
