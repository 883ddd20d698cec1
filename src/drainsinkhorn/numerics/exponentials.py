"""Powers of two in float32 with errors far below its unit roundoff on average: polynomials, and exact leading parts.

An exponent e is an integer n plus a fraction r in [-1/2, 1/2]. The integer goes into the exponent bits, and a
polynomial computes 2^r. `power` returns one float32 number: its error is that of one rounding. `compensated_power`
returns two, whose sum is far more accurate:

    2^r = (1 + HIGH h) + (HIGH l + r (LOW + r Q(r))),    r = h + l,    ln 2 = HIGH + LOW

h is r rounded to multiples of 2^-11, and HIGH is ln 2 rounded to multiples of 2^-12, so that the first part is exact.
Bounds on the errors of both are in `numerics.rounding`. Coefficients are float32 numbers that minimise the largest
relative error for |r| <= 0.5005, found one after another by weighted least squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

POWER = (
    1.0,
    0.6931471824645996,
    0.24022647738456726,
    0.05550359562039375,
    0.009618503041565418,
    0.0013390997191891074,
    0.0001532784226583317,
)
"""Coefficients of 2^r, constant first."""
REMAINDER = (
    0.24022650718688965,
    0.05550410598516464,
    0.009618079289793968,
    0.001333386986516416,
    0.00015455558605026454,
    1.5192410501185805e-05,
)
"""Coefficients of `Q(r) = (2^r - 1 - r ln 2) / r^2`, constant first."""
HIGH = 0.693115234375
"""ln 2 rounded to multiples of 2^-12."""
LOW = 3.194618329871446e-05
"""ln 2 - HIGH in float32."""
WHOLE = 1.5 * 2.0**23
"""Adding this to a float32 number of at most 2^22 and subtracting it again rounds the number to an integer."""
FINE = 1.5 * 2.0**12
"""The same to multiples of 2^-11, for numbers of at most 2^11."""


def power(exponents: Any, rests: Any) -> Any:
    """Return `2^(e + p)` in float32.

    Args:
        exponents: e, float32, of at most 120 bits.
        rests: p, float32, added after the integer has been taken out.
    """
    one = np.float32
    integer = (exponents + rests + one(WHOLE)) - one(WHOLE)
    r = (exponents - integer) + rests
    return np.ldexp(_polynomial(POWER, r), integer.astype(int))


def compensated_power(exponents: Any, rests: Any) -> tuple[Any, Any]:
    """Return two float32 numbers whose sum is `2^(e + p)`; arguments are those of `power`."""
    one = np.float32
    total = exponents + rests
    integer, near = (total + one(WHOLE)) - one(WHOLE), (total + one(FINE)) - one(FINE)
    high, low = near - integer, (exponents - near) + rests
    r = high + low
    first = one(1.0) + one(HIGH) * high
    second = r * _polynomial((LOW, *REMAINDER), r) + one(HIGH) * low
    return np.ldexp(first, integer.astype(int)), np.ldexp(second, integer.astype(int))


def _polynomial(coefficients: tuple[float, ...], r: Any) -> Any:
    value = np.float32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * r + np.float32(coefficient)
    return value
