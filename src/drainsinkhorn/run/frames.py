"""Results as a pandas DataFrame."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from drainsinkhorn.model.errors import BackendUnavailable
from drainsinkhorn.model.result import Result

COLUMNS = (
    "ticket",
    "status",
    "n",
    "m",
    "eps",
    "depth",
    "row",
    "col",
    "band",
    "backend",
    "arithmetic",
    "rescued",
    "widened",
    "streamed",
    "message",
)


def to_frame(results: Iterable[Result[Any]]) -> Any:
    """Return a pandas DataFrame with one row for each result, in their order.

    Columns are `ticket`, `status` (its name), `n`, `m` (points; missing for an INVALID problem), `eps`, `depth`, `row`,
    `col`, `band` (residuals and their rounding error), `backend`, `arithmetic`, `rescued`, `widened`, `streamed` and
    `message`. Raises BackendUnavailable without pandas (extra `frame`).

    Args:
        results: A Solution, a stream, or any Results.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> rng = np.random.default_rng(0)
        >>> solution = ds.solve(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 30, 2)), eps=[0.5, 1.0, 2.0])
        >>> frame = ds.to_frame(solution)
        >>> frame[["ticket", "status", "n", "m", "eps"]].values.tolist()[0]
        [0, 'CONVERGED', 20, 30, 0.5]
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise BackendUnavailable(f"a DataFrame needs pandas ({error}); pip install 'drainsinkhorn[frame]'") from error
    columns: Any = list(COLUMNS)
    frame = pd.DataFrame([_row(result) for result in results], columns=columns)
    return frame.astype({"ticket": int, "n": "Int64", "m": "Int64", "eps": float, "depth": int})


def _row(result: Result[Any]) -> tuple[Any, ...]:
    n, m = result.shape or (None, None)
    return (
        result.ticket,
        result.status.name,
        n,
        m,
        _number(result.problem.eps),
        result.depth,
        *result.residual,
        result.backend.name,
        result.arithmetic,
        result.rescued,
        result.widened,
        result.streamed,
        result.message,
    )


def _number(value: Any) -> float:
    """The value as a number; NaN for an eps that is not a number, whose problem is INVALID."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
