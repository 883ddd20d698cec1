"""Residuals, and one Result per problem, which is made when it is accessed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple

from drainsinkhorn.model.brief import html_table
from drainsinkhorn.model.couplings import Certificate, Coupler, Couplings, TransportCost
from drainsinkhorn.model.eps import is_descriptor
from drainsinkhorn.model.errors import ConvergenceWarning, ProblemError, warn, warn_of_constants
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import A, Potentials, Problem
from drainsinkhorn.model.status import Status

MAX_PAIRS = 2**26
"""Largest number of entries of a dense plan, unless the caller allows more: half a gigabyte in float64."""


class Residual(NamedTuple):
    """L1 errors of both marginals of a state, and the rounding error of that measurement.

    If a marginal is soft, both errors are relative to the mass of the plan, and a soft marginal is compared with the
    masses that its potentials ask for: `sum_i |(P 1)_i - a_i exp(-f_i / rho_a)| / sum_ij P_ij`.

    Attributes:
        row: `sum_i |(P 1)_i - a_i|`.
        col: `sum_j |(P^T 1)_j - b_j|`.
        band: Rounding error of both. With `certify="always"` it is a rigorous bound, otherwise a calibrated estimate
            (see docs/explanation/precision.md).
    """

    row: float
    col: float
    band: float

    @property
    def worst(self) -> float:
        """The larger side plus the band; NaN if either side is NaN."""
        return _worst(*self)


def _worst(row: float, col: float, band: float) -> float:
    return math.nan if math.isnan(row) or math.isnan(col) else max(row, col) + band


UNKNOWN = Residual(math.nan, math.nan, math.nan)
"""The residual of a problem that did not run."""


class Residuals(NamedTuple):
    """Residuals of several lanes as columns; see Residual for what the entries mean.

    Attributes:
        row: Errors of the rows, one for each lane.
        col: Errors of the columns.
        band: Rounding errors of both.
    """

    row: Sequence[float]
    col: Sequence[float]
    band: Sequence[float]

    @classmethod
    def from_rows(cls, residuals: Iterable[Residual]) -> Residuals:
        """Return the columns of these residuals."""
        rows = list(residuals)
        return cls([each.row for each in rows], [each.col for each in rows], [each.band for each in rows])

    def rows(self) -> list[Residual]:
        """Return the residual of each lane."""
        return list(map(Residual, *self))

    def worst(self) -> list[float]:
        """Return `Residual.worst` of each lane."""
        row, col, band = self
        total = sum(row) + sum(col)
        if total == total:
            # Nothing is NaN: these functions are much faster for many lanes.
            return list(map(operator.add, map(max, row, col), band))
        return list(map(_worst, *self))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Result(Generic[A]):
    """The answer to one problem.

    Attributes:
        ticket: The problem's number in the order of submission.
        problem: The problem as given; not copied.
        validate: Makes the normal form of the problem, with the options of the run.
        emitted: Last finite potentials (zeros if there were none), in the caller's library, device and dtype; None only
            if INVALID or QUARANTINED.
        residual: Residual of exactly those potentials.
        status: How it ended.
        eps: Strength of the entropic term, in units of the cost: the number that was found if the problem's eps is
            relative or a sharpness, the last one if it falls, else the problem's own. NaN for an INVALID problem
            without one.
        depth: Cycles of the run that gave the result: the rescue if `rescued`, else the first, with all stages of an
            eps that falls. At most `max_depth`, rounded up to the backend's stride. The ledger has both
            (`ledger.depths`, `ledger.rescue.depths`).
        backend: The backend that ran it.
        arithmetic: Precision and representation in which it ran.
        acceleration: Name of the acceleration; "none" for plain Sinkhorn.
        rescued: True if this is the result of the rescue (a second run, in float64): it converged, or came nearer to
            tol than the first run. `detail` mentions a rescue that did not help.
        widened: True if potentials have a wider dtype than the points: that of the points is not accurate enough for
            tol, or is an integer dtype.
        detail: The reason, if the status alone does not state it.
        streamed: True if this lane streamed only because memory ran out, although the problem and the options say
            cached. It is verified like any other, but need not equal a cached run to the bit; nor need problems that
            start from its potentials in a chain.
        warns: Whether taking a plan from an unconverged result issues a warning (`Options.warn`).
    """

    ticket: int
    problem: Problem[A]
    validate: Callable[..., Instance[A]]
    emitted: Potentials[A] | None
    residual: Residual
    status: Status
    depth: int
    backend: Coupler[A]
    eps: float = math.nan
    arithmetic: str = ""
    acceleration: str = "none"
    rescued: bool = False
    widened: bool = False
    detail: str = ""
    streamed: bool = False
    warns: bool = True

    @property
    def converged(self) -> bool:
        """True if the two-sided check passed."""
        return self.status is Status.CONVERGED

    @property
    def potentials(self) -> Potentials[A]:
        """The potentials f and g; raises ProblemError for an INVALID problem, which has none."""
        if self.emitted is None:
            raise ProblemError(f"problem {self.ticket} has no potentials: {self.message}")
        return self.emitted

    @property
    def instance(self) -> Instance[A]:
        """The problem in normal form, made anew; raises ProblemError for an INVALID problem, which has none."""
        problem = self.problem
        if is_descriptor(getattr(problem, "eps", 0.0)):
            if math.isnan(self.eps):
                raise ProblemError(f"problem {self.ticket} has no normal form: {self.message}")
            problem = replace(problem, eps=self.eps)
        return self.validate(problem)

    @property
    def message(self) -> str:
        """Status, advice and detail in one line."""
        return f"{self.status.name}: {self.detail or self.status.value}"

    @property
    def couplings(self) -> Couplings[A]:
        """The finished plan, as a batch of one; warns if the problem did not converge."""
        warn_of_plans([self])
        potentials = [self.potentials]
        return self.backend.couple([self.instance], potentials)

    def plan(self, *, max_pairs: int = MAX_PAIRS) -> A:
        """The dense (n, m) plan; refused above `max_pairs` entries."""
        return self.couplings.plan(max_pairs)[0]

    def apply(self, values: A, side: str = "row") -> A:
        """`P @ values` for side "row" (values over y), `P.T @ values` for "col" (values over x)."""
        return self.couplings.apply([values], side)[0]

    def barycentric_map(self, side: str = "row") -> A:
        """Where each point goes on average: (n, d) images of x for "row", (m, d) images of y for "col"."""
        return self.couplings.barycentric_map(side)[0]

    def map(self, points: A, side: str = "row") -> A:
        """Where the entropic map moves other points than those of the problem, (k, d) to (k, d).

        Args:
            points: Points in the space of x for side "row", of y for "col".
            side: "row" or "col".
        """
        warn_of_plans([self])
        instance, potentials = self.place(points, side)
        return self.backend.couple([instance], [potentials]).barycentric_map(side)[0]

    def place(self, points: A, side: str = "row") -> tuple[Instance[A], Potentials[A]]:
        """The problem with other points on one side, and potentials of which those of the other side are this result's.

        Conditional distributions do not depend on the potential of their own point, so the new points have zeros.
        """
        f, g = self.potentials
        if self.instance.is_dense:
            raise ProblemError("a dense cost says nothing of other points; solve a problem with points x and y")
        if side not in ("row", "col"):
            raise ProblemError(f'side must be "row" or "col", got {side!r}')
        changes = {"x": points, "a": None} if side == "row" else {"y": points, "b": None}
        problem = replace(self.problem, **changes, eps=self.eps, init=None)
        instance = self.validate(problem, finite=False)
        own: Any = instance.x if side == "row" else instance.y
        zeros = 0 * own[:, 0]
        return instance, Potentials(zeros, g) if side == "row" else Potentials(f, zeros)

    def top_match(self, side: str = "row") -> A:
        """The point of the other side to which each point sends most mass."""
        return self.couplings.top_match(side)[0]

    def sample(self, count: int, *, seed: Any = None) -> tuple[A, A]:
        """Index pairs (i, j), each of shape (count,), drawn from the plan.

        Args:
            count: Number of pairs.
            seed: A non-negative integer (the ticket is part of the seed), or a generator of torch or NumPy. None: other
                pairs at every call.
        """
        return self.couplings.sample(count, [(seed, self.ticket)])[0]

    def transport_cost(self) -> TransportCost:
        """Transport cost, KL, entropic value and dual value of the plan, as constants."""
        warn_of_constant_costs([self])
        return self.couplings.transport_cost()[0]

    def certificate(self) -> Certificate:
        """What is certain of the plan, computed anew: residuals, duality gap, and the distance from the optimal plan.

        It warns of nothing: the certificate of a problem that did not converge says how far it came.
        """
        return self.backend.couple([self.instance], [self.potentials]).certificates()[0]

    @property
    def shape(self) -> tuple[int, int] | None:
        """Number of points on each side, (n, m); None for an INVALID problem."""
        if self.emitted is None:
            return None
        f: Any = self.emitted.f
        g: Any = self.emitted.g
        return int(f.shape[0]), int(g.shape[0])

    @property
    def flags(self) -> list[str]:
        """Which of "rescued", "widened" and "streamed" are true."""
        return [name for name in ("rescued", "widened", "streamed") if getattr(self, name)]

    def _repr_html_(self) -> str:
        size = "" if self.shape is None else "{:,} x {:,} points".format(*self.shape)
        rows: list[tuple[str, Any]] = [
            ("status", self.message),
            ("size", size),
            ("problem", repr(self.problem)),
            ("depth", self.depth),
            ("row residual", self.residual.row),
            ("col residual", self.residual.col),
            ("rounding", self.residual.band),
            ("backend", ", ".join(filter(None, (self.backend.name, self.arithmetic, self.acceleration)))),
            ("notes", ", ".join(self.flags)),
        ]
        return html_table(f"Result of problem {self.ticket}", (), [row for row in rows if row[1] != ""])

    def __repr__(self) -> str:
        extra = (", rescued" if self.rescued else "") + (", streamed" if self.streamed else "")
        return (
            f"Result({self.ticket}, {self.status.name}, depth={self.depth}, "
            f"row={self.residual.row:.3g}, col={self.residual.col:.3g}{extra})"
        )


def warn_of_plans(results: Sequence[Result[Any]]) -> None:
    """Issue one ConvergenceWarning if plans are taken from unconverged results."""
    failed = [result for result in results if result.warns and not result.converged and result.emitted is not None]
    if failed:
        first, others = failed[0], f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        warn(
            ConvergenceWarning(
                f"problem {first.ticket} did not converge ({first.status.name}, residual {first.residual.worst:.3g})"
                f"{others}: quantities computed from such a plan have errors of that size; see result.message"
            )
        )


def warn_of_constant_costs(results: Sequence[Result[Any]]) -> None:
    """Issue one GradientWarning if costs are taken of problems whose tensors require gradients."""
    problems = [result.problem for result in results]
    arrays = [value for each in problems for value in (each.x, each.y, each.a, each.b, each.eps, each.cost)]
    warn_of_constants("transport costs", "drainsinkhorn.grad.torch.value", arrays)
