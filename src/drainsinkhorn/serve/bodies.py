"""Reads bodies of requests, JSON or npz, as problems. The keys are those of files of problems."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from drainsinkhorn.model.errors import FileError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.archives import unpack_arrays
from drainsinkhorn.run.problem_arrays import KEYS, STACKED, count_problems, is_batch, problems_from_arrays
from drainsinkhorn.serve.limits import Refusal, ServerLimits

NPZ, JSON = "application/x-npz", "application/json"
FORMATS = {JSON: JSON, NPZ: NPZ, "application/octet-stream": NPZ}
"""Content types of bodies, and the format that each stands for."""
COUNTS = ("x_sizes", "y_sizes", "format")
"""Keys whose numbers are integers."""
RAGGED = ("x", "y", "a", "b", "f", "g", "cost")
"""Keys whose JSON lists may have one entry of its own size for each problem."""
EXACT = 2**53
"""Integers up to this size are exact in float64."""
MEMBERS, ENTRY = 64, b"PK\x01\x02"
"""Largest number of arrays of an archive, and the bytes with which each entry of its directory begins."""
SEE = "GET / lists the keys of a request"


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """The problems of one request.

    Attributes:
        problems: The problems.
        is_batch: False if the request describes a single problem, without an axis of problems.
        memory: Bytes that the arrays and the results take, about.
    """

    problems: list[Problem[Any]]
    is_batch: bool
    memory: int


def read_body(
    body: bytes, content: str, limits: ServerLimits, *, tol: float | None = None, images: bool = False
) -> ParsedBody:
    """Return the problems of a body; raises Refusal if it cannot be read or is too large.

    Args:
        body: The body.
        content: JSON or NPZ.
        limits: The limits of the service.
        tol: The tol of problems that have none in the body; None: that of the service.
        images: Whether maps of the points are wanted, which take memory too.
    """
    try:
        arrays = _read_json(body, limits) if content == JSON else _read_npz(body, limits)
        _check_format(arrays)
        count = count_problems(arrays)
        if count > limits.max_problems:
            raise Refusal(
                413,
                f"the request has {count:,} problems, and the limit is {limits.max_problems:,}",
                "send the problems in several requests; they share kernels all the same",
            )
        if tol is not None and "tol" not in arrays:
            arrays["tol"] = np.array(tol)
        problems = problems_from_arrays(arrays, "the body")
    except ProblemError as error:
        raise Refusal(422, str(error), f"correct the problems; {SEE}") from None
    except FileError as error:
        raise Refusal(400, str(error), f"correct the body; {SEE}") from None
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        reason = f"the body cannot be read as problems ({type(error).__name__}: {str(error)[:200]})"
        raise Refusal(400, reason, f"correct the body; {SEE}") from None
    memory = sum(each.nbytes for value in arrays.values() for each in (value if isinstance(value, list) else [value]))
    return ParsedBody(problems, is_batch(arrays), memory + _check_sizes(problems, limits, images=images))


def _read_npz(body: bytes, limits: ServerLimits) -> dict[str, Any]:
    if body.count(ENTRY) > MEMBERS:
        raise FileError(f"the body has more than {MEMBERS} arrays; known keys are {', '.join(KEYS)}")

    def require_room(size: int) -> None:
        if size > limits.max_unpacked:
            raise Refusal(
                413,
                f"the body unpacks to {size:,} bytes, and the limit is {limits.max_unpacked:,}",
                "send fewer or smaller problems in one request",
            )

    return dict[str, Any](unpack_arrays(body, "the body", require_room))


def _read_json(body: bytes, limits: ServerLimits) -> dict[str, Any]:
    try:
        # Bytes that are no UTF-8 raise UnicodeDecodeError, integers of too many digits and bad syntax ValueError.
        content = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise FileError("the body is nested too deeply to be read as JSON") from None
    except ValueError as error:
        raise FileError(f"the body cannot be read as JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise FileError(f"the body must be a JSON object, got {type(content).__name__}")
    return {key: _read_value(key, value, limits) for key, value in content.items()}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; remove or replace numbers that are not finite")


def _with_infinities(value: Any) -> Any:
    """Return prices of marginals with infinity in place of null, since JSON has no number for a hard marginal."""
    if isinstance(value, list):
        return [_with_infinities(each) for each in value]
    return math.inf if value is None else value


def _read_value(key: str, value: Any, limits: ServerLimits) -> Any:
    """Return a JSON value as an array, or as a list of arrays where the entries of a list have unequal sizes."""
    if key == "cost" and isinstance(value, str):
        return np.array(value)
    if key == "rho":
        value = _with_infinities(value)
    try:
        return _numbers(key, np.asarray(value))
    except ValueError as error:
        if isinstance(error, FileError) or not isinstance(value, list) or key not in RAGGED:
            raise
    if len(value) > limits.max_problems:
        raise Refusal(
            413,
            f"{key} has {len(value):,} entries of unequal sizes, and the limit is {limits.max_problems:,} problems",
            "send the problems in several requests",
        )
    entries = [_numbers(f"{key}[{place}]", np.asarray(entry)) for place, entry in enumerate(value)]
    if any(entry.ndim != STACKED[key] - 1 for entry in entries):
        raise FileError(f"{key} must hold numbers, in nested lists whose rows are of equal length")
    return entries


def _numbers(key: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return JSON numbers as float64, or as integers for counts."""
    if array.dtype.kind == "f" and (key not in COUNTS or not array.size):
        return array.astype(np.int64) if key in COUNTS else array
    if array.dtype.kind in "iu":
        if key in COUNTS:
            return array
        if not ((array <= EXACT) & (array >= -EXACT)).all():
            raise FileError(f"{key} has integers above 2^53, which float64 cannot hold; subtract a common offset first")
        return array.astype(np.float64)
    wanted = "integers" if key in COUNTS else "numbers, in nested lists whose rows are of equal length"
    raise FileError(f"{key[:40]} must hold {wanted}" + (", or be a text" if key == "cost" else ""))


def _check_format(arrays: Mapping[str, Any]) -> None:
    version = arrays.get("format", np.array(1))
    if version.shape != () or version.dtype.kind not in "iu" or version != 1:
        raise FileError("the body has a format other than 1, and this version of drainsinkhorn reads format 1")


def _check_sizes(problems: list[Problem[Any]], limits: ServerLimits, *, images: bool) -> int:
    """Refuse problems with too many pairs of points; return the bytes that the results take, in two copies."""
    numbers = 0
    for place, problem in enumerate(problems):
        n, m, dim = _shape(problem)
        if n * m > limits.max_pairs:
            raise Refusal(
                413,
                f"problem {place} has {n:,} x {m:,} pairs of points, and the limit is {limits.max_pairs:,}",
                "use fewer points, or solve it in a process of its own",
            )
        numbers += (n + m) * (2 + (dim if images else 0))
    return 2 * 8 * numbers


def _shape(problem: Problem[Any]) -> tuple[int, int, int]:
    """Return the numbers of points and of coordinates, as far as the arrays have the shape of a problem."""
    cost: Any = problem.cost
    if isinstance(cost, np.ndarray) and cost.ndim == 2:
        return *cost.shape, 0
    clouds = [points for points in (problem.x, problem.y) if isinstance(points, np.ndarray) and points.ndim == 2]
    return (len(clouds[0]), len(clouds[1]), clouds[0].shape[1]) if len(clouds) == 2 else (0, 0, 0)


def positive(name: str, text: str, limit: float = math.inf) -> float:
    """Return a parameter of the address as a positive number; raises Refusal for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or value > limit:
        bound = "" if limit == math.inf else f" of at most {limit:g}"
        raise Refusal(400, f"{name} must be a positive number{bound}, got {text[:40]!r}", f"correct {name}")
    return value
