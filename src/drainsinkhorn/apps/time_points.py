"""Which labels of cells are time points, and in which order."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable
from typing import Any

from drainsinkhorn.model.errors import ProblemError

MISSING = ("", "nan", "NaN", "NaT", "None", "<NA>")
"""Labels, as texts, with which NumPy and pandas mark cells without a time."""
NO_TIME = frozenset({"mixed", "mixture", "pooled", "unknown", "unassigned", "undefined", "undetermined", "na", "none"})
"""Words that mark cells of no single time; a label that contains one is never a time point."""
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
NUMBERED = re.compile(r"(?P<prefix>.*?)(?P<number>[0-9]+(\.[0-9]+)?)", re.DOTALL)


def categories_of(key: Any) -> list[Any] | None:
    """The categories of an ordered categorical of pandas, in order; None for anything else."""
    dtype: Any = getattr(key, "dtype", None)
    return list(dtype.categories) if getattr(dtype, "ordered", False) else None


def time_points(times: Iterable[Any] | None, labels: list[Any], categories: list[Any] | None) -> list[Any]:
    """Time points in order.

    Args:
        times: The order that the caller gave, or None.
        labels: Labels of all cells, or the keys of a mapping.
        categories: Ordered categories, if the labels have them.
    """
    names = list(dict.fromkeys(labels))
    present = [name for name in names if str(name).strip() not in MISSING]
    if times is not None:
        wanted = list(times)
        absent = [name for name in wanted if name not in present]
        if absent:
            near = difflib.get_close_matches(str(absent[0]), [str(name) for name in present], 1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise ProblemError(f"time point {absent[0]!r} has no cells; there are {present}{guess}")
        _refuse_no_time(wanted)
        return wanted
    missing = [name for name in names if str(name).strip() in MISSING]
    if missing:
        raise ProblemError(
            f"cell {labels.index(missing[0])} has no time ({missing[0]!r}); leave such cells out, or name the time "
            "points in times="
        )
    _refuse_no_time(present)
    if categories is not None:
        return _in_category_order(present, categories)
    if any(isinstance(name, (str, bytes)) for name in present):
        return _in_number_order(present)
    try:
        return sorted(present)
    except TypeError as error:
        raise ProblemError(f"the order of time points {present} is unknown ({error}); give it as times=[...]") from None


def _refuse_no_time(names: list[Any]) -> None:
    for name in names:
        if isinstance(name, str) and not NO_TIME.isdisjoint(re.split(r"[^a-z0-9]+", name.lower())):
            raise ProblemError(
                f"label {name!r} is no time point; leave such cells out, name the other time points in times=, or "
                "rename it if it is one"
            )


def _in_category_order(present: list[Any], categories: list[Any]) -> list[Any]:
    """Time points in the order of their categories; warns where numbers in their names say otherwise."""
    order = [name for name in categories if name in present]
    numbers = _numbers(order)
    if numbers is not None and numbers != sorted(numbers):
        _warn(f"the ordered categories have the time points in the order {order}, which is not that of their numbers")
    return order


def _in_number_order(present: list[Any]) -> list[Any]:
    """Sort texts by the numbers they end in and state the order in a warning; ProblemError if they cannot be sorted."""
    numbers = _numbers(present)
    if numbers is None or len(set(numbers)) < len(numbers):
        raise ProblemError(
            f"the order of time points {present} is unknown: texts are sorted only if they have one prefix and end in "
            "different numbers; give the order as times=[...], or make the column an ordered categorical"
        )
    order = [name for _, name in sorted(zip(numbers, present, strict=True))]
    _warn(f"time points are taken in the order {order}, by the numbers they end in")
    return order


def _numbers(names: list[Any]) -> list[float] | None:
    """Return the number that each text is, or ends in after a prefix common to all; None if some text has none."""
    if not all(isinstance(name, str) for name in names):
        return None
    if all(NUMBER.fullmatch(name.strip()) for name in names):
        return [float(name) for name in names]
    ends = [NUMBERED.fullmatch(name.strip()) for name in names]
    # "E18" and "P0", or "day-1" and "day1", have numbers that cannot be compared.
    if None in ends or len({end["prefix"].rstrip(" _").lower() for end in ends if end}) > 1:
        return None
    return [float(end["number"]) for end in ends if end]


def _warn(order: str) -> None:
    warnings.warn(f"{order}; pass times=[...] to choose another order or to silence this", UserWarning, stacklevel=6)
