"""Leg, update rule and momentum: how one cycle changes the potentials.

Convention: `P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)`. A leg measures the log marginal ratios of one side,

    L_i = log rho_i = f_i / eps + logsumexp_j(log b_j + (g_j - C_ij) / eps),        rho_i = (P 1)_i / a_i

and the update rule changes the potentials of that side:

    x = f - step lam eps L,    f <- x + beta (x - before)

where `before` is the x of the cycle before. With step 1, beta 0 and lam 1 this is Sinkhorn's iteration (Cuturi:
Sinkhorn distances, 2013; in the log domain, Peyre and Cuturi: Computational optimal transport, 2019, section 4.4).
`lam` damps the update where a marginal is only penalised. It is 1 where marginals are constraints, as all are today.

Momentum chooses step and beta of each f-leg. The g-leg stays plain, so the columns are exact whenever an f-leg is
measured, and the row residual that comes with the leg is the residual of the state. With the columns exact, the
Jacobian of `f -> log rho(f)` has its spectrum in [0, 1] at every state, not only at the optimum, so a step of up to 4/3
with any momentum below 1 is stable in the linear sense; STEP keeps a margin. The direction test is that of O'Donoghue
and Candes (Adaptive restart for accelerated gradient schemes, 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

STEP = 1.25
"""Step of a leg with momentum."""
OFFSET = 2.0
"""The k-th leg with momentum in a row has beta = k / (k + OFFSET)."""
FAST = 0.3
"""Momentum is not used while a plain cycle multiplies the squared residual by less than this."""
GROWTH = 4.0
"""A residual above this multiple of the smallest one so far causes plain legs."""
MAX_BACKOFF = 10
"""Growth of the residual causes 2^k more plain legs; k counts earlier growths, up to this."""


def logsumexp(exponents: Matrix) -> Vector:
    """`log sum_j exp(e_ij)` of every row, (n,). The exponents, (n, m), are overwritten.

    The largest exponent of a row is subtracted first, so that no exponential overflows.
    """
    largest = exponents.max(axis=1, keepdims=True)
    np.exp(np.subtract(exponents, largest, out=exponents), out=exponents)
    return np.log(exponents.sum(axis=1)) + largest[:, 0]


def log_ratios(
    own: Vector, other: Vector, log_weights: Vector, scaled_cost: Matrix, eps: float, work: Matrix | None = None
) -> Vector:
    """Log marginal ratios of one side, `own_i / eps + logsumexp_j(log w_j + other_j / eps - C_ij / eps)`, (n,).

    Args:
        own: Potentials of this side, (n,).
        other: Potentials of the other side, (m,).
        log_weights: Logarithms of the weights of the other side, (m,).
        scaled_cost: `C / eps`, (n, m): one row for each point of this side. For columns pass the transposed matrix.
        eps: Strength of the entropic term.
        work: A matrix like `scaled_cost` to be overwritten; None: a new one is allocated.
    """
    return own / eps + logsumexp(np.subtract(log_weights + other / eps, scaled_cost, out=work))


class Stride(NamedTuple):
    """Step and beta of the update rule: numbers, or arrays over the points of all lanes if lanes are concatenated."""

    step: Any
    beta: Any


PLAIN = Stride(1.0, 0.0)
"""The stride of a plain leg."""


def update(
    potentials: Any,
    log_ratios: Any,
    eps: float,
    stride: Stride = PLAIN,
    before: Any = None,
    lam: float = 1.0,
) -> tuple[Any, Any]:
    """Apply a measured leg, `x = f - step lam eps L`, `f <- x + beta (x - before)`: return the new f, and x.

    Arrays may belong to any library.

    Args:
        potentials: f, (n,).
        log_ratios: L, (n,).
        eps: Strength of the entropic term; 1 where potentials are in nats.
        stride: Step and beta.
        before: x of the update before, (n,); None if there was none, so that no displacement is added.
        lam: Damping: 1 where the marginal of this side is a constraint.
    """
    x = potentials - eps * lam * stride.step * log_ratios
    if before is None or stride is PLAIN:
        return x, x
    return x + stride.beta * (x - before), x


def total(values: Vector) -> float:
    """The sum of one value for each point of a side."""
    return float(np.sum(values))


def alignment(weights: Any, log_ratios: Any, potentials: Any, before: Any, add: Callable[[Any], Any] = total) -> Any:
    """`-sum_i a_i L_i (f_i - before_i)`: negative if the measured leg points against the last displacement.

    Args:
        weights: Weights a of the side, (n,).
        log_ratios: L, (n,).
        potentials: f, (n,).
        before: x of the last update, as in the update rule, (n,).
        add: Sums values over the points of the side; if lanes are concatenated, over the points of each lane.
    """
    return -add(weights * log_ratios * (potentials - before))


class Momentum:
    """Decides the strides of one lane from residuals that the lane has measured."""

    def __init__(self) -> None:
        self._age = 0
        self._best = float("inf")
        self._cooldown = 0
        self._backoff = 0
        self._rows_exact = False
        self._columns = float("inf")
        self._started = False

    @property
    def rows_exact(self) -> bool:
        """True after a plain f-leg: the g-leg after it measures the columns of a state whose rows are exact."""
        return self._rows_exact

    def measured_columns(self, error: float) -> None:
        """Record the column residual that the g-leg has measured; needed if `rows_exact`."""
        self._columns = error

    def stride(self, error: float, along: float) -> Stride:
        """Return the stride of the next f-leg.

        The stride is PLAIN (step 1, beta 0) at the first leg; if the residual has grown, and for 2^k legs after that,
        where k counts earlier growths; while plain legs contract fast; and if the leg points against the last
        displacement. Otherwise the leg has momentum.

        Args:
            error: Row residual of the state, without its rounding bound.
            along: `alignment` of the leg.
        """
        if not self._started:
            # Columns are not exact yet, and nothing is known of the rate.
            self._started = self._rows_exact = True
            return PLAIN
        # Written so that NaN counts as growth.
        grown = self._age > 0 and not error <= GROWTH * self._best
        self._best = min(self._best, error)
        if grown:
            self._cooldown = 2**self._backoff
            self._backoff = min(self._backoff + 1, MAX_BACKOFF)
        fast = self._rows_exact and error * error < FAST * self._columns * self._columns
        restart = self._age > 0 and along < 0
        if grown or self._cooldown > 0 or fast or restart:
            self._cooldown -= not grown and self._cooldown > 0
            self._age, self._rows_exact = 0, True
            return PLAIN
        self._age, self._rows_exact = self._age + 1, False
        return Stride(STEP, self._age / (self._age + OFFSET))
