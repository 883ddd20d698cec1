"""Prices of marginals, `Problem.rho`, in normal form; and columns of them for `problems`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.marginal import BALANCED, Marginal, Marginals
from drainsinkhorn.numerics.arrays import is_array, to_numpy

RHO_HINT = (
    "it is the price of KL(P 1 | a) in units of the cost, for both marginals or a pair (rows, columns); inf or None is "
    "a hard marginal"
)


def parse_marginals(rho: Any) -> Marginals:
    """Return the constraints that a rho stands for; ProblemError if it is no price, or no pair of prices."""
    if rho is None:
        return BALANCED
    if is_array(rho):
        rho = to_numpy(rho)
        if rho.dtype.kind not in "fiu":
            raise ProblemError(f"rho has dtype {rho.dtype}, which holds no prices; {RHO_HINT}")
        rho = rho.item() if rho.ndim == 0 else rho.tolist()
    if not isinstance(rho, (tuple, list)):
        marginal = _marginal("rho", rho)
        return BALANCED if marginal.is_hard else Marginals(marginal, marginal)
    if len(rho) != 2:
        raise ProblemError(f"rho has {len(rho)} entries; {RHO_HINT}")
    marginals = Marginals(_marginal("rho[0]", rho[0]), _marginal("rho[1]", rho[1]))
    return BALANCED if marginals.are_hard else marginals


def _marginal(name: str, value: Any) -> Marginal:
    if value is None:
        return Marginal()
    if is_array(value) and value.ndim == 0:
        value = to_numpy(value).item()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Written so that NaN is rejected.
    if not is_number or not value > 0:
        shown = repr(value)
        shown = shown if len(shown) < 60 else f"{shown[:57]}..."
        raise ProblemError(f"{name} must be positive, got {shown} ({type(value).__name__}); {RHO_HINT}")
    kappa = 0.0 if value == math.inf or (isinstance(value, int) and value.bit_length() > 1023) else 1 / float(value)
    if not math.isfinite(kappa):
        raise ProblemError(f"{name} is {value!r}, whose reciprocal float64 cannot hold; raise it")
    return Marginal(kappa)


def parse_price(text: str) -> float | tuple[float, float]:
    """Return the rho that a text stands for: "0.5", or "0.5,inf" for a pair; ProblemError for any other text.

    Examples:
        >>> parse_price("0.5"), parse_price("0.5, inf")
        (0.5, (0.5, inf))
    """
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if len(prices) not in (1, 2):
        raise ProblemError(f"rho is {text!r}; write a number, or two with a comma between them; {RHO_HINT}")
    rho = prices[0] if len(prices) == 1 else (prices[0], prices[1])
    parse_marginals(rho)
    return rho


def prices_to_array(rho: Any) -> np.ndarray[Any, Any]:
    """Return a rho as files hold it: a number, (1, 2) for a pair of all problems, (W, 2) for one entry per problem."""
    prices, count = price_column(rho)
    if count is None and not isinstance(prices, tuple):
        parse_marginals(prices)
        return np.array(math.inf if prices is None else float(prices))
    entries = [prices] if count is None else prices
    return np.array([[side.rho for side in parse_marginals(entry)] for entry in entries])


def price_column(rho: Any) -> tuple[Any, int | None]:
    """Return a rho as a column: a number, None or a tuple is shared, a list or an array has one entry per problem.

    A list may hold numbers, None and pairs; an array is (W,) or (W, 2).
    """
    if is_array(rho) and rho.ndim > 0:
        values = to_numpy(rho)
        if values.ndim > 2 or (values.ndim == 2 and values.shape[1] != 2) or values.dtype.kind not in "fiu":
            raise ProblemError(
                f"rho has shape {values.shape} and dtype {values.dtype}, expected a number, a pair, or real numbers of "
                f"shape (W,) or (W, 2); {RHO_HINT}"
            )
        prices: list[Any] = values.astype(np.float64).tolist()
        return [tuple(price) if isinstance(price, list) else price for price in prices], len(prices)
    return (rho, len(rho)) if isinstance(rho, list) else (rho, None)
