"""Powers of two in float32: polynomials, one number, and two numbers whose sum is far more accurate."""

from __future__ import annotations

import numpy as np

from drainsinkhorn.numerics.exponentials import HIGH, LOW, POWER, REMAINDER, compensated_power, power
from drainsinkhorn.numerics.rounding import (
    COMPENSATED_ERROR,
    POWER_POLYNOMIAL,
    REMAINDER_POLYNOMIAL,
    TRIPLE_ERROR,
)
from tests.conftest import needs


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exponents on a grid, small rests, and the powers of their sums in float64."""
    rng = np.random.default_rng(0)
    exponents = (np.round(rng.uniform(-100, 20, size=200_000) * 2**15) / 2**15).astype(np.float32)
    rests = (0.05 * rng.normal(size=exponents.size)).astype(np.float32)
    return exponents, rests, np.exp2(exponents.astype(np.float64) + rests.astype(np.float64))


def test_polynomials_are_as_accurate_as_bounds_assume() -> None:
    mp = needs("mpmath")
    with mp.workdps(30):
        ends = [mp.mpf(k) / 2000 * mp.mpf("0.5005") for k in range(-2000, 2001)]
        ln2 = mp.log(2)
        worst, worst_remainder = mp.mpf(0), mp.mpf(0)
        for r in ends:
            truth = mp.mpf(2) ** r
            found = sum(mp.mpf(value) * r**k for k, value in enumerate(POWER))
            remainder = sum(mp.mpf(value) * r**k for k, value in enumerate(REMAINDER))
            worst = max(worst, abs(found / truth - 1))
            worst_remainder = max(worst_remainder, abs((1 + r * ln2 + r**2 * remainder) / truth - 1))
        assert worst <= POWER_POLYNOMIAL <= 1.1 * worst
        assert worst_remainder <= REMAINDER_POLYNOMIAL <= 1.2 * worst_remainder
        assert abs(mp.mpf(HIGH) + mp.mpf(LOW) - ln2) <= 2.0**-39


def test_coefficients_are_float32_numbers() -> None:
    for value in (*POWER, *REMAINDER, HIGH, LOW):
        assert value == float(np.float32(value))


def test_errors_of_powers_average_out() -> None:
    exponents, rests, truth = drawn()
    found = power(exponents, rests)
    errors = found.astype(np.float64) / truth - 1
    assert found.dtype == np.float32
    assert np.abs(errors).max() <= 2.0**-23
    assert abs(errors.mean()) <= TRIPLE_ERROR / 100


def test_two_parts_are_far_more_accurate_than_one() -> None:
    exponents, rests, truth = drawn()
    first, second = compensated_power(exponents, rests)
    errors = (first.astype(np.float64) + second.astype(np.float64)) / truth - 1
    assert first.dtype == second.dtype == np.float32
    assert np.abs(errors).max() <= 2.0**-26
    assert abs(errors.mean()) <= COMPENSATED_ERROR


def test_sizes_up_to_the_largest_exponent_are_in_range() -> None:
    for size in (-120.0, 120.0):
        exponent, rest = np.float32([size]), np.float32([0.25])
        truth = 2.0 ** (size + 0.25)
        assert np.isclose(power(exponent, rest).astype(float), truth, rtol=1e-6).all()
        assert np.isclose(sum(part.astype(float) for part in compensated_power(exponent, rest)), truth, rtol=1e-8).all()
