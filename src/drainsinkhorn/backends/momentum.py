"""Momentum on the f side: when a lane may take a long step, and when it takes a plain one.

The g-leg stays plain, so at every measured f-leg the columns are exact and the free screen stays valid. With the
columns exact the Jacobian of `f -> log rho(f)` has its spectrum in [0, 1] at every state, not only at the optimum, so
a step of up to 4/3 with any momentum below 1 is stable in the linear sense; STEP keeps a margin. With `L = log rho`:

    x = f - step eps L,    f <- x + beta (x - x_before)

step = 1, beta = 0 is the plain leg. Everything is decided per lane from the lane's own numbers. The direction test is
that of O'Donoghue and Candes (Adaptive restart for accelerated gradient schemes, 2015).
"""

from __future__ import annotations

from typing import NamedTuple

STEP = 1.25
OFFSET = 2.0
"""The momentum of a lane that has gone k long steps in a row is k / (k + OFFSET)."""
FAST = 0.3
"""A lane whose plain legs contract by more than this per cycle, in squares, is left alone."""
GROWTH = 4.0
"""A residual that grows beyond so many times its best one calls for plain legs."""
MAX_BACKOFF = 10


class Stride(NamedTuple):
    """How far the next f-leg goes: step 1 without momentum is the plain leg."""

    step: float
    beta: float


PLAIN = Stride(1.0, 0.0)


class Momentum:
    """The rules of one lane. Told each measured leg, it says how the leg is to be applied."""

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
        """Told the column residual that the g-leg measured."""
        self._columns = error

    def stride(self, error: float, along: float) -> Stride:
        """The next stride.

        Args:
            error: Row residual of the state, without its band.
            along: `-sum_i a_i L_i (f_i - x_i)`: negative if the leg points against the last displacement.
        """
        if not self._started:
            # Columns are not exact yet, and nothing is known of the rate.
            self._started = self._rows_exact = True
            return PLAIN
        # Written so that NaN is bad.
        bad = self._age > 0 and not error <= GROWTH * self._best
        self._best = min(self._best, error)
        if bad:
            self._cooldown = 2**self._backoff
            self._backoff = min(self._backoff + 1, MAX_BACKOFF)
        fast = self._rows_exact and error * error < FAST * self._columns * self._columns
        restart = self._age > 0 and along < 0
        if bad or self._cooldown > 0 or fast or restart:
            self._cooldown -= not bad and self._cooldown > 0
            self._age, self._rows_exact = 0, True
            return PLAIN
        self._age, self._rows_exact = self._age + 1, False
        return Stride(STEP, self._age / (self._age + OFFSET))
