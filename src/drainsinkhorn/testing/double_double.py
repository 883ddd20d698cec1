"""Double-double arithmetic on NumPy arrays, for the auditor."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class DoubleDouble(NamedTuple):
    """The unevaluated sum of two float64 arrays, `lo` at most half a unit in the last place of `hi`.

    See Joldes, Muller and Popescu: Tight and rigorous error bounds for basic building blocks of double-word arithmetic,
    2017. Products split their factors (Veltkamp), so entries beyond 1e300 become NaN.
    """

    hi: Any
    lo: Any

    @classmethod
    def sum(cls, p: Any, q: Any) -> DoubleDouble:
        """Sum of two float64 arrays, exactly."""
        s = p + q
        t = s - p
        return cls(s, (p - (s - t)) + (q - t))

    @classmethod
    def product(cls, p: Any, q: Any) -> DoubleDouble:
        """Product of two float64 arrays, exactly unless it leaves the range."""

        def split(v: Any) -> tuple[Any, Any]:
            c = 134217729.0 * v
            high = c - (c - v)
            return high, v - high

        product, (p1, p2), (q1, q2) = p * q, split(p), split(q)
        return cls(product, ((p1 * q1 - product) + p1 * q2 + p2 * q1) + p2 * q2)

    def plus(self, other: DoubleDouble) -> DoubleDouble:
        """Sum of two double-doubles."""
        s, t = DoubleDouble.sum(self.hi, other.hi), DoubleDouble.sum(self.lo, other.lo)
        v = DoubleDouble.sum(s.hi, s.lo + t.hi)
        return DoubleDouble.sum(v.hi, v.lo + t.lo)

    def minus(self, other: DoubleDouble) -> DoubleDouble:
        """Difference of two double-doubles."""
        return self.plus(DoubleDouble(-other.hi, -other.lo))

    def times(self, other: DoubleDouble) -> DoubleDouble:
        """Product of two double-doubles."""
        product = DoubleDouble.product(self.hi, other.hi)
        return DoubleDouble.sum(product.hi, product.lo + (self.hi * other.lo + self.lo * other.hi))

    def over(self, other: DoubleDouble) -> DoubleDouble:
        """Quotient of two double-doubles."""
        first = self.hi / other.hi
        rest = self.minus(DoubleDouble(first, 0.0 * first).times(other))
        return DoubleDouble.sum(first, (rest.hi + rest.lo) / other.hi)

    def root(self) -> DoubleDouble:
        """Square root; zero for zero."""
        first = np.sqrt(self.hi)
        rest = self.minus(DoubleDouble.product(first, first))
        correction = np.where(first > 0, (rest.hi + rest.lo) / (2 * np.where(first > 0, first, 1.0)), 0.0)
        return DoubleDouble.sum(first, correction)
