"""Problems and solutions as .npz files: plain arrays only, nothing pickled is ever read.

The keys of both are documented in docs/guides/command-line.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.model.errors import FileError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.archives import read_limit
from drainsinkhorn.run.eps_text import parse_eps
from drainsinkhorn.run.marginals import parse_price
from drainsinkhorn.run.problem_arrays import count_problems, problems_from_arrays
from drainsinkhorn.run.saved import describe_ledger, read_format

PROBLEM_BYTES = 2048
"""Memory that a problem and its result take beside their arrays, about."""


def read_problems(
    path: Path, limit: int | None = None, eps: str | None = None, rho: str | None = None
) -> list[Problem[Any]]:
    """The problems of an .npz file.

    Args:
        path: The file.
        limit: Bytes of memory that it may take; None: see `read_arrays`.
        eps: The eps of problems in a file that has none, as text; None: 5 % of the mean cost.
        rho: The price of soft marginals of problems in a file that has none, as text; None: marginals are hard.
    """
    arrays = read_format(path, limit)
    if eps is not None and "eps" in arrays:
        raise FileError(f"{path} has an eps of its own; leave --eps {eps} out, or remove the key from the file")
    if rho is not None and "rho" in arrays:
        raise FileError(f"{path} has a rho of its own; leave --rho {rho} out, or remove the key from the file")
    _require_memory(path, count_problems(arrays), limit)
    price = None if rho is None else parse_price(rho)
    return problems_from_arrays(arrays, str(path), None if eps is None else parse_eps(eps), price)


def _require_memory(path: Path, count: int, limit: int | None) -> None:
    if count * PROBLEM_BYTES > read_limit(limit):
        raise FileError(
            f"{path} has {count:,} problems, for which there is no memory: each takes about {PROBLEM_BYTES:,} bytes, "
            f"and the limit is {read_limit(limit):,}; split the file, or give a larger --read-limit"
        )


def json_number(value: Any) -> float | None:
    """A number as JSON has it: null where it is not finite."""
    return float(value) if math.isfinite(value) else None


def read_solution(path: Path, limit: int | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A saved solution: one row per problem, and the ledger. It may take `limit` bytes; None: see `read_arrays`."""
    arrays = read_format(path, limit)
    columns = ("ticket", "status", "message", "depth", "row", "col")
    missing = sorted({*columns, "ledger"} - set(arrays))
    if missing:
        raise FileError(f"{path} is no solution: it has no {missing[0]!r}; write one with drain solve IN -o OUT")
    _require_memory(path, arrays["ticket"].size, limit)
    try:
        ledger = json.loads(str(arrays["ledger"]))
        rows = [
            {
                "ticket": int(ticket),
                "status": str(status),
                "depth": int(depth),
                "row": json_number(row),
                "col": json_number(col),
                "note": "" if status == "CONVERGED" else str(message).partition(": ")[2],
            }
            for ticket, status, message, depth, row, col in zip(*(arrays[name] for name in columns), strict=True)
        ]
        _check_ledger(ledger)
    # Deeply nested JSON ends in a RecursionError, an infinite depth in an OverflowError.
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FileError(f"{path} is a damaged solution: {error}") from None
    return rows, ledger


def _check_ledger(ledger: Any) -> None:
    """Raise ValueError unless this has all entries of `describe_ledger`, each of its type."""
    model = describe_ledger(Ledger())
    absent = sorted(set(model) - set(ledger))
    if absent:
        raise ValueError(f"its ledger has no {absent[0]!r}")
    counts = [name for name, value in model.items() if isinstance(value, int)]
    sound = {
        **{name: _is_count(ledger[name]) for name in counts},
        "survival": isinstance(ledger["survival"], list) and all(map(_is_count, ledger["survival"])),
        "widths": _is_list_of(ledger["widths"], 2, _is_count),
        "choices": _is_list_of(ledger["choices"], 3, lambda text: isinstance(text, str)),
        "seconds": isinstance(ledger["seconds"], dict) and all(map(_is_seconds, ledger["seconds"].values())),
    }
    for name, is_sound in sound.items():
        if not is_sound:
            raise ValueError(f"the entry {name!r} of its ledger has another form than drain solve writes")
    if ledger["rescue"] is not None:
        _check_ledger(ledger["rescue"])


def _is_count(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_list_of(value: Any, length: int, is_part: Callable[[Any], bool]) -> bool:
    """Whether this is a list of lists of this length, all of whose entries pass `is_part`."""
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == length and all(map(is_part, row)) for row in value
    )
