"""A problem in normal form, as backends receive it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic

from drainsinkhorn.model.brief import call
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.marginal import BALANCED, Marginals
from drainsinkhorn.model.problem import A, Potentials, Problem, WeaklyReferable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance(WeaklyReferable, Generic[A]):
    """A validated problem, with every default resolved.

    Problems become instances in `run.stack.build_instances`, nowhere else.

    Attributes:
        eps: Strength of the entropic term, in units of the cost.
        tol: The residual at which a lane may leave: the tol of the problem or the run, times the margin of the audit.
        a: Source weights, a NumPy vector (n,) in float64. It must not be written to: instances share uniform weights.
            Their mass is 1 where both marginals are hard, else that of the caller's weights.
        b: Target weights, a NumPy vector (m,) in float64, not to be written to either.
        cost: The cost between points; `Cost()` with a dense matrix, where it has no meaning.
        x: Source points, (n, d): the caller's array, or a NumPy array made from a list or the like. None with a matrix.
        y: Target points, (m, d), in the same form.
        matrix: A dense cost, (n, m), as the caller gave it; None with points.
        init: Where to start: Potentials, "gaussian", "zero", or "auto" where a backend chooses between these two.
        chain: Instances with equal keys run in order, each from its predecessor's potentials.
        max_depth: Largest number of cycles, `depth_before` included; None: that of the run.
        marginals: The constraints on both marginals.
        uniform: True if the caller gave no weights, so that those of each side are equal.
        positive: True if every weight is known to be positive. If it is False, backends remove points without weight.
        masses: Total weights of both sides: 1 where both marginals are hard.
        depth_before: Cycles that were run at larger eps before (`FallingEps`); depths count them.
    """

    eps: float
    tol: float
    a: Any
    b: Any
    cost: Cost
    x: A | None = None
    y: A | None = None
    matrix: A | None = None
    init: Potentials[A] | str = "zero"
    chain: Hashable = None
    max_depth: int | None = None
    marginals: Marginals = BALANCED
    uniform: bool = False
    positive: bool = False
    masses: tuple[float, float] = (1.0, 1.0)
    depth_before: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Points on each side, (n, m)."""
        return len(self.a), len(self.b)

    @property
    def is_dense(self) -> bool:
        """True if costs are given as a matrix, False if they are between points."""
        return self.matrix is not None

    def cycles_left(self, max_depth: int) -> int:
        """Cycles that it may run, at least 1; `max_depth` is the depth limit of problems without their own."""
        return max(1, (self.max_depth or max_depth) - self.depth_before)

    @property
    def points(self) -> tuple[Any, Any]:
        """Both clouds; (None, None) with a matrix."""
        return self.x, self.y

    @property
    def dim(self) -> int:
        """Coordinates of a point; 0 with a matrix."""
        x: Any = self.x
        return 0 if x is None else int(x.shape[1])

    def as_problem(self) -> Problem[A]:
        """Return a problem that has this normal form; its weights are those of the normal form."""
        sides = {"x": self.x, "y": self.y, "a": self.a, "b": self.b}
        cost: Any = self.cost if self.matrix is None else self.matrix
        rho = None if self.marginals.are_hard else tuple(side.rho for side in self.marginals)
        others: dict[str, Any] = {"init": self.init, "chain": self.chain, "max_depth": self.max_depth, "rho": rho}
        return Problem(**sides, eps=self.eps, tol=self.tol, cost=cost, **others)

    @property
    def like(self) -> Any:
        """The caller's array whose library, device and dtype the result has."""
        return self.x if self.matrix is None else self.matrix

    def __repr__(self) -> str:
        sides = {"x": self.x, "y": self.y, "matrix": self.matrix, "a": self.a, "b": self.b}
        rho = None if self.marginals.are_hard else tuple(side.rho for side in self.marginals)
        others: dict[str, Any] = {"init": self.init, "chain": self.chain, "max_depth": self.max_depth, "rho": rho}
        return call("Instance", **sides, eps=self.eps, tol=self.tol, **others)
