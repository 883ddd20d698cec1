"""One entropic optimal transport problem, as the caller gave it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from drainsinkhorn.model.brief import call
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import Eps
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.keywords import explain_keyword

A = TypeVar("A")
"""The caller's array type; `model` and `core` never read the contents of an array."""

DEFAULT_COST = "sqeuclidean"
"""The squared distance, the cost of a problem that names none."""


class Potentials(NamedTuple, Generic[A]):
    """Dual potentials: `P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)`."""

    f: A
    g: A

    def __repr__(self) -> str:
        return call("Potentials", f=self.f, g=self.g)


class WeaklyReferable:
    """Base of classes whose objects can be weakly referenced.

    Python 3.12.3 leaves `weakref_slot` out of generic dataclasses.
    """

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem(WeaklyReferable, Generic[A]):
    """Couple the cloud `x` with weights `a` to the cloud `y` with weights `b`.

    Building a Problem checks nothing: `solve` validates, so that one bad problem does not affect the others. Nothing is
    copied either: do not write to the arrays as long as you use the problem or its Result.

    Attributes:
        eps: Strength of the entropic term, in units of the cost: a number, `relative` (a share of the problem's own
            cost), `sharpness` (the eps at which the plan is as sharp as stated), or `falling` (lowered in stages).
            None: `relative(0.05)`.
        x: Source points, (n, d). None with a dense cost.
        y: Target points, (m, d). None with a dense cost.
        a: Source weights, (n,). None: uniform, of mass 1. Normalised to mass 1 unless a marginal is soft (see `rho`).
        b: Target weights, (m,), likewise.
        tol: Bound on the larger L1 marginal residual; with a soft marginal, relative to the transported mass. None:
            that of the run.
        init: Where to start: "gaussian" (the closed form between Gaussians, for sqeuclidean), "zero", or Potentials.
            None: that of the run, by default "auto" (see STARTS). A start changes only the depth. Huge potentials are
            recentred along their gauge, and replaced by "zero" where float64 cannot resolve eps in them.
        chain: Problems with equal keys run in the order of submission, each from its predecessor's potentials.
        cost: A cost by name, a `Cost` with a scale, a `PointCost` of your own, a `Formula`, an OTT `CostFn`, or a dense
            (n, m) matrix.
        rho: Price of a marginal's deviation from its weights, `rho KL(P 1 | a)`, in units of the cost: a number for
            both marginals, or a pair (rows, columns). inf or None: that marginal is hard, it equals its weights. If a
            marginal is soft, weights keep their masses, which may be unequal.
        max_depth: Largest number of cycles. None: that of the run.
    """

    # One of `Eps`. For type checkers it may be read as a number, which it is in most programs.
    eps: float | Any = None
    x: A | None = None
    y: A | None = None
    a: A | None = None
    b: A | None = None
    tol: float | None = None
    init: Potentials[A] | str | None = None
    cost: str | Cost | A = DEFAULT_COST
    chain: Hashable = None
    rho: float | tuple[float | None, float | None] | Any = None
    max_depth: int | None = None

    def __repr__(self) -> str:
        sides = {"x": self.x, "y": self.y, "a": self.a, "b": self.b}
        cost = None if isinstance(self.cost, str) and self.cost == DEFAULT_COST else self.cost
        others = {"init": self.init, "cost": cost, "chain": self.chain, "rho": self.rho, "max_depth": self.max_depth}
        return call("Problem", **sides, eps=self.eps, tol=self.tol, **others)

    if not TYPE_CHECKING:
        # Type checkers see the constructor that `dataclass` would write. This one also says what to write instead of a
        # keyword of another library, and is no slower.
        def __init__(
            self,
            *,
            eps: Eps = None,
            x: Any = None,
            y: Any = None,
            a: Any = None,
            b: Any = None,
            tol: float | None = None,
            init: Any = None,
            cost: Any = "sqeuclidean",
            chain: Hashable = None,
            rho: Any = None,
            max_depth: int | None = None,
            **unknown: Any,
        ) -> None:
            if unknown:
                name = next(iter(unknown))
                raise ProblemError(f"a Problem has no {name!r}; {explain_keyword(name, type(self).__slots__)}")
            put = object.__setattr__
            put(self, "eps", eps)
            put(self, "x", x)
            put(self, "y", y)
            put(self, "a", a)
            put(self, "b", b)
            put(self, "tol", tol)
            put(self, "init", init)
            put(self, "cost", cost)
            put(self, "chain", chain)
            put(self, "rho", rho)
            put(self, "max_depth", max_depth)
