"""The modal response: how deep plain Sinkhorn runs near a solution, mode by mode.

Let pi be the coupling at the optimum (f*, g*), `K = diag(a)^-1 pi` and `L = diag(b)^-1 pi^T` its two conditional
averages, and u = (f - f*) / eps, v = (g - g*) / eps the error of a state. To first order a leg replaces one side's
error by minus the average of the other's, and a row ratio sees the sum of both:

    f-leg: u <- -K v        g-leg: v <- -L u        log rho = u + K v

The f-leg forgets f, so a run depends on its starting g alone: after k cycles `u_k = M^(k-1) u_1` with `u_1 = -K v_0`
and `M = K L`, and the row residual that the next leg measures is

    r_k = sum_i a_i |((I - M) u_k)_i|

`diag(a)^1/2 M diag(a)^-1/2 = P P^T` with `P = diag(a)^-1/2 pi diag(b)^-1/2` is symmetric and positive semidefinite. Its
eigenvectors phi_j with eigenvalues 1 = lambda_1 > lambda_2 >= ... turn r_k into

    r_k = sum_i a_i^1/2 |sum_{j>=2} (1 - lambda_j) lambda_j^(k-1) alpha_j phi_ij|,    alpha = Phi^T diag(a)^1/2 u_1

j = 1 is the gauge `(f + c, g - c)`, which changes no coupling. The rate lambda_2 alone says nothing of alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.dense import Geometry
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.options import is_positive
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError, ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.validate import validate

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

DENSE = 1500
"""Points of the smaller side up to which all modes are computed."""
MODES_KEPT = 64
"""Slowest modes computed beyond that."""
MAX_PAIRS = 2**26
LIMIT = 2**40


class Transfer:
    """One cycle of plain Sinkhorn, linearised at a coupling: the symmetric operator `P P^T`, never formed.

    Args:
        plan: The coupling (n, m), with positive weights.
    """

    def __init__(self, plan: Matrix) -> None:
        self.a, self.b = plan.sum(axis=1), plan.sum(axis=0)
        self.root_a, self.root_b = np.sqrt(self.a), np.sqrt(self.b)
        self._plan = plan

    def forward(self, columns: Matrix) -> Matrix:
        """`P w` for a vector or a block of vectors over y."""
        return ((self._plan @ (columns.T / self.root_b).T).T / self.root_a).T

    def backward(self, rows: Matrix) -> Matrix:
        """`P^T w` for a vector or a block of vectors over x."""
        return ((self._plan.T @ (rows.T / self.root_a).T).T / self.root_b).T

    def spectrum(self, modes: int | None = None) -> tuple[Vector, Matrix]:
        """The slowest modes without that of the gauge: eigenvalues, descending, and eigenvectors (n, count).

        Args:
            modes: How many; None: all of them up to `DENSE` points, else `MODES_KEPT`.
        """
        small = min(self._plan.shape)
        wanted = (small if small <= DENSE else MODES_KEPT) if modes is None else modes
        count = min(wanted, small - 1)
        if count < 1:
            return np.empty(0), np.empty((self.a.size, 0))
        if count < small // 3 and small > 64:
            return self._sparse(count)
        vectors, values, _ = np.linalg.svd(self.forward(np.eye(self.b.size)), full_matrices=False)
        return values[1 : count + 1] ** 2, vectors[:, 1 : count + 1]

    def _sparse(self, count: int) -> tuple[Vector, Matrix]:
        try:
            from scipy.sparse.linalg import LinearOperator, eigsh
        except ImportError as error:
            raise BackendUnavailable(
                f"a part of the spectrum needs SciPy ({error}); pip install 'drainsinkhorn[theory]'"
            ) from error

        def cycle(rows: Vector) -> Vector:
            rows = rows.ravel()
            # The gauge is known exactly; without it the solver works on what is asked for.
            rows = rows - self.root_a * (self.root_a @ rows)
            return self.forward(self.backward(rows))

        n = self.a.size
        operator: Any = LinearOperator((n, n), matvec=cycle, dtype=np.float64)  # type: ignore[call-arg]
        values, vectors = eigsh(operator, k=count, which="LA", v0=np.cos(np.arange(n)))
        order = np.argsort(-values)
        return values[order].clip(0.0, 1.0), vectors[:, order]


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """The modes of a problem at its solution, and how its start excites them.

    Attributes:
        eigenvalues: lambda_2 >= lambda_3 >= ... of one cycle.
        alpha: Projection of the starting error (after the first f-leg) on each mode.
        captured: Share of the squared starting error that the computed modes hold; 1 where all were computed.
        eps: The problem's.
    """

    eigenvalues: Vector
    alpha: Vector
    captured: float
    eps: float
    _vectors: Matrix
    _root_a: Vector

    def residual(self, depths: Sequence[int]) -> Vector:
        """The row residual r_k predicted after each of these depths (at least 1), from all computed modes."""
        k = np.asarray(depths, dtype=np.float64)
        if (k < 1).any():
            raise OptionsError(f"a residual is measured after at least 1 cycle, got depths {list(depths)}")
        strength = (1 - self.eigenvalues) * self.alpha
        return self._root_a @ np.abs(self._vectors @ (strength[:, None] * self.eigenvalues[:, None] ** (k - 1)))

    def defect(self, depths: Sequence[int]) -> Vector:
        """The weighted L2 defect, `sqrt(sum_j (1 - lambda_j)^2 alpha_j^2 lambda_j^(2 (k - 1)))`."""
        k = np.asarray(depths, dtype=np.float64)
        strength = (1 - self.eigenvalues) * self.alpha
        return np.sqrt(((strength[:, None] * self.eigenvalues[:, None] ** (k - 1)) ** 2).sum(axis=0))

    def residual_slowest(self, depths: Sequence[int]) -> Vector:
        """The row residual that lambda_2 alone predicts, `r_1 lambda_2^(k - 1)`, after each of these depths k."""
        k = np.asarray(depths, dtype=np.float64)
        return self.residual([1])[0] * self.eigenvalues[0] ** (k - 1)

    def depth(self, tol: float) -> float:
        """The first depth whose predicted residual is at most tol; inf beyond 2^40 cycles."""
        if not is_positive(tol):
            raise OptionsError(f"tol must be a positive finite number, got {tol!r}")
        if not self.eigenvalues.size or self.residual([1])[0] <= tol:
            return 1
        # r_k never grows, since M averages; so the first passage can be bracketed and halved.
        low, high = 1, 2
        while self.residual([high])[0] > tol:
            low, high = high, 2 * high
            if high > LIMIT:
                return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.residual([middle])[0] <= tol else (middle, high)
        return high

    def depth_slowest(self, tol: float) -> float:
        """The depth that lambda_2 alone predicts: `1 + ceil(log(tol / r_1) / log(lambda_2))`."""
        if not is_positive(tol):
            raise OptionsError(f"tol must be a positive finite number, got {tol!r}")
        first = float(self.residual([1])[0]) if self.eigenvalues.size else 0.0
        if first <= tol:
            return 1
        slowest = float(self.eigenvalues[0])
        if slowest <= 0.0:
            return 2
        return 1 + math.ceil(math.log(tol / first) / math.log(slowest)) if slowest < 1.0 else math.inf


def modal_response(problem: Problem[Any], optimum: Potentials[Any] | None = None, *, modes: int | None = None) -> Modal:
    """The modes of a problem at its solution and the projection of its start (`problem.init`, else zero) on them.

    It holds to first order: for a start near the solution, or for the last part of a run. Plain Sinkhorn only.

    Args:
        problem: The problem, with the start that is analysed.
        optimum: Its potentials, solved to a residual far below those of interest; None: solved here to 1e-10.
        modes: Slowest modes to compute; None: all of them up to 1,500 points on the smaller side, else 64.

    Examples:
        >>> x, y = np.random.default_rng(0).normal(size=(2, 30, 2))
        >>> optimum = solve(Problem(x=x, y=y, eps=0.5), tol=1e-10, backend="reference")[0].potentials
        >>> near = Potentials(optimum.f, optimum.g + 1e-3 * np.sin(np.arange(30)))
        >>> problem = Problem(x=x, y=y, eps=0.5, init=near)
        >>> measured = solve(problem, tol=1e-7, backend="reference", accelerate="none")[0].depth
        >>> modal_response(problem, optimum).depth(1e-7) == measured
        True
    """
    admitted = validate(problem, tol=1e-10)
    n, m = admitted.shape
    if n * m > MAX_PAIRS:
        raise ProblemError(f"n * m = {n} * {m} pairs are more than the {MAX_PAIRS} whose coupling is kept in memory")
    if optimum is None:
        tight = replace(problem, tol=1e-10)
        result = solve(tight, backend="reference", max_depth=10**6, strict=True)[0]
        if not result.converged:
            raise ProblemError(f"the solution was not found, so it has no modes: {result.message}")
        optimum = result.potentials
    f, g = (to_numpy(side).astype(np.float64) for side in optimum)
    inner, support = restrict(admitted)
    if support is not None:
        f, g = f[support.rows], g[support.cols]
    _, origin = start(inner)
    geometry = Geometry(inner)
    exponents = (f[:, None] + g[None, :]) / geometry.eps - geometry.scores
    transfer = Transfer(np.exp(exponents + geometry.log_a[:, None] + geometry.log_b[None, :]))
    values, vectors = transfer.spectrum(modes)
    # u_1 = -K v_0 in the coordinates of the symmetric operator.
    error = -transfer.forward(transfer.root_b * (origin - g) / geometry.eps)
    error -= transfer.root_a * (transfer.root_a @ error)
    alpha = vectors.T @ error
    total = float(error @ error)
    captured = min(1.0, float(alpha @ alpha) / total) if total else 1.0
    return Modal(values, alpha, captured, geometry.eps, vectors, transfer.root_a)
