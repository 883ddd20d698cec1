"""Problems and outcomes as plain numbers and arrays, for transport between processes."""

from __future__ import annotations

import math
import numbers
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.eps import DEFAULT_EPS, FallingEps, RelativeEps, SharpnessEps, is_descriptor
from drainsinkhorn.model.outcomes import Outcome
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import BFLOAT16, float_name, is_array, library, to_numpy
from drainsinkhorn.numerics.costs import Formula, as_cost

FORMAT = 4
"""Version of all messages between a fleet and its workers. Increase it with every change that the other end must know.
Format 1 did not state its version."""
Array = NDArray[Any]
ALIGNMENT = 64
PLAIN = (np.dtype(np.float32), np.dtype(np.float64))
POINTS = ("x", "y", "a", "b")
PARTS = 1024
"""Largest number of buffers in one call of writev (IOV_MAX on Linux)."""
GAP = np.zeros(ALIGNMENT, np.uint8)


def other_format(version: object) -> str:
    """Return the error message for a message whose format is not FORMAT."""
    return (
        f"messages have format {version} at one end and {FORMAT} at the other: the fleet and its worker run different "
        "versions of drainsinkhorn; install the same one for both and start the program again"
    )


class Unsendable(TypeError):
    """A problem that validation would reject, or a field of it that is neither a number nor an array."""


class Parcel(NamedTuple):
    """Problems in transit to a worker: values that JSON can hold, and arrays to which they refer by number."""

    tickets: list[int]
    problems: list[dict[str, Any]]
    arrays: list[Array]


def send(tickets: Sequence[int], problems: Sequence[Problem[Any]]) -> Parcel:
    """Return problems as a parcel. Arrays that problems share are sent once, and shared again by the worker."""
    arrays: list[Array] = []
    places: dict[int, int] = {}

    def place(value: Any) -> int:
        if id(value) not in places:
            places[id(value)] = len(arrays)
            arrays.append(plain(value))
        return places[id(value)]

    return Parcel(list(tickets), [_to_plain_dict(problem, place) for problem in problems], arrays)


def plain(value: Any) -> Array:
    """Return a contiguous NumPy array of the same numbers and dtype; raise Unsendable if there is none."""
    if type(value) is np.ndarray and value.dtype in PLAIN:
        return np.ascontiguousarray(value)
    if isinstance(value, (np.ma.MaskedArray, str, bytes)):
        raise Unsendable(f"{type(value).__name__} is no plain array")
    array = to_numpy(value)
    if array.dtype.kind not in "fiub":
        raise Unsendable(f"{array.dtype} is no dtype of real numbers")
    array = np.ascontiguousarray(array)
    # Potentials are rounded to the caller's dtype where they are verified.
    return array.view(BFLOAT16) if is_array(value) and float_name(value) == "bfloat16" else array


def provisional(problem: Problem[Any]) -> Problem[Any]:
    """Return the problem with the default eps in place of a sharpness, for which only the worker searches."""
    return replace(problem, eps=DEFAULT_EPS) if isinstance(problem.eps, SharpnessEps) else problem


def plain_problem(problem: Any) -> Problem[Any]:
    """Return the same problem with NumPy arrays; raise Unsendable if it cannot be sent."""
    if _is_plain(problem):
        return problem
    (received,) = receive(send([0], [problem]))
    return replace(received, chain=problem.chain)


def _is_plain(problem: Any) -> bool:
    """True if a problem can be sent as it is, the common case: float arrays of NumPy, and a cost by name."""
    return (
        type(problem) is Problem
        and (type(problem.eps) is float or is_descriptor(problem.eps))
        and (problem.tol is None or type(problem.tol) is float)
        and (problem.rho is None or type(problem.rho) is float)
        and problem.max_depth is None
        and (problem.init is None or type(problem.init) is str)
        and type(problem.cost) is str
        and type(problem.x) is type(problem.y)
        and _is_float(problem.x)
        and _is_float(problem.y)
        and _is_float(problem.a)
        and _is_float(problem.b)
    )


def _is_float(part: Any) -> bool:
    return part is None or (type(part) is np.ndarray and part.dtype in PLAIN)


def pairs(problem: Problem[Any]) -> float:
    """Number of pairs of points of a problem; 1 for a problem whose shapes are invalid."""
    cost: Any = problem.cost
    x: Any = problem.x
    y: Any = problem.y
    if type(x) is np.ndarray and type(y) is np.ndarray and x.ndim and y.ndim and not is_array(cost):
        return float(max(1, x.shape[0] * y.shape[0]))
    try:
        n, m = cost.shape if is_array(cost) else (len(side) for side in (x, y))
        return float(max(1, n * m))
    except (TypeError, ValueError):
        return 1.0


def _to_plain_dict(problem: Any, place: Any) -> dict[str, Any]:
    """A problem as numbers and texts, with arrays replaced by their place in the parcel."""
    if _is_plain(problem):
        sent = {"eps": _sent_eps(problem.eps), "cost": problem.cost, "tol": problem.tol, "init": problem.init}
        if problem.rho is not None:
            sent["rho"] = problem.rho
        return sent | _array_places(problem, place)
    if not isinstance(problem, Problem):
        raise Unsendable(f"{type(problem).__name__} is no Problem")
    if library(problem.x) != library(problem.y):
        raise Unsendable("x and y belong to different libraries")
    sent: dict[str, Any] = {"eps": _sent_eps(problem.eps)} | _array_places(problem, place)
    if problem.tol is not None:
        sent["tol"] = _number(problem.tol)
    if problem.rho is not None:
        sent["rho"] = _sent_rho(problem.rho)
    if problem.max_depth is not None:
        sent["max_depth"] = int(problem.max_depth)
    sent["cost"] = _sent_cost(problem.cost, place)
    if isinstance(problem.init, (tuple, list)):
        sent["init"] = [place(part) for part in problem.init]
    elif isinstance(problem.init, str):
        sent["init"] = problem.init
    elif problem.init is not None:
        raise Unsendable(f"{type(problem.init).__name__} is no start")
    return sent


def _array_places(problem: Any, place: Any) -> dict[str, int]:
    return {name: place(part) for name in POINTS if (part := getattr(problem, name)) is not None}


def _sent_cost(given: Any, place: Any) -> Any:
    """A cost in transit: a name is sent as it is, a cost between points as a list, a matrix as its place."""
    cost = given if isinstance(given, str) else as_cost(given)
    if not isinstance(cost, Cost):
        return cost if isinstance(cost, str) else place(cost)
    kind: Any = cost.kind
    if isinstance(kind, Formula):
        return [kind.text, _number(cost.scale), "formula"]
    if not isinstance(kind, str):
        raise Unsendable(
            f"the cost {kind} does not travel to the workers of a fleet; use solve or stream, or pass its matrix"
        )
    return [kind, _number(cost.scale)]


def _sent_eps(eps: Any) -> float | list[Any] | None:
    """An eps in transit: a number, None, or a descriptor as a list."""
    if type(eps) is float or eps is None:
        return eps
    if isinstance(eps, RelativeEps):
        return ["relative", eps.share, eps.of]
    if isinstance(eps, SharpnessEps):
        return ["sharpness", eps.target, eps.within]
    if isinstance(eps, FallingEps):
        return ["falling", _sent_eps(eps.target), list(eps.multiples), eps.cycles, eps.scale_rho]
    return _number(eps)


def _sent_rho(rho: Any) -> float | list[float | None]:
    """A price of marginals in transit: a number, or a pair as a list."""
    if is_array(rho) and rho.ndim > 0:
        rho = to_numpy(rho).tolist()
    if isinstance(rho, (tuple, list)):
        return [None if price is None else _number(price) for price in rho]
    return _number(rho)


def _received_eps(sent: Any) -> Any:
    if not isinstance(sent, list):
        return sent
    kind, *parts = sent
    if kind == "falling":
        target, multiples, cycles, scale_rho = parts
        return FallingEps(_received_eps(target), tuple(multiples), cycles, scale_rho)
    return {"relative": RelativeEps, "sharpness": SharpnessEps}[kind](*parts)


def _received_cost(sent: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(sent, list):
        kind, scale, *formula = sent
        return Cost(Formula(kind) if formula else kind, scale)
    return arrays[sent] if isinstance(sent, int) else sent


def _number(value: Any) -> float:
    if is_array(value) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Unsendable(f"{type(value).__name__} is no number")
    return float(value)


def receive(parcel: Parcel) -> list[Problem[Any]]:
    """The problems of a parcel."""
    return [_from_plain_dict(sent, parcel.arrays) for sent in parcel.problems]


def _from_plain_dict(sent: dict[str, Any], arrays: Sequence[Array]) -> Problem[Any]:
    parts: dict[str, Any] = {name: arrays[sent[name]] for name in POINTS if name in sent}
    cost, init = _received_cost(sent["cost"], arrays), sent.get("init")
    if isinstance(init, list):
        init = Potentials(*(arrays[place] for place in init))
    rho = sent.get("rho")
    numbers = {
        "eps": _received_eps(sent["eps"]),
        "tol": sent.get("tol"),
        "max_depth": sent.get("max_depth"),
        "rho": tuple(rho) if isinstance(rho, list) else rho,
    }
    return Problem(**numbers, cost=cost, init=init, **parts)


def layout(arrays: Sequence[Array]) -> tuple[list[list[Any]], int]:
    """Dtype, shape and place of each array in one block of memory, and the size of the block."""
    rows: list[list[Any]] = []
    end = 0
    for array in arrays:
        dtype = "bfloat16" if float_name(array) == "bfloat16" else array.dtype.str
        rows.append([dtype, list(array.shape), end])
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return rows, max(end, 1)


def pieces(arrays: Sequence[Array]) -> list[Array]:
    """Arrays as bytes, in the order and at the distances of their layout."""
    parts = list[Array]()
    for array in arrays:
        parts.append(array.reshape(-1).view(np.uint8))
        if gap := -array.nbytes % ALIGNMENT:
            parts.append(GAP[:gap])
    return parts


def write(handle: int, parts: Sequence[Array]) -> None:
    """Write pieces to a file, one after the other, many in each call; nothing is copied on the way."""
    # NumPy's types do not say that an array is a buffer.
    unwritten: deque[Any] = deque(part for part in parts if part.nbytes)
    while unwritten:
        written = os.writev(handle, list(islice(unwritten, PARTS)))
        while unwritten and written >= unwritten[0].nbytes:
            written -= unwritten.popleft().nbytes
        if written:
            unwritten[0] = unwritten[0][written:]


def views(block: Any, rows: Sequence[Sequence[Any]]) -> list[Array]:
    """Arrays that lie in a block; nothing is copied."""
    return [
        np.frombuffer(
            block, dtype=BFLOAT16 if dtype == "bfloat16" else dtype, count=math.prod(shape), offset=start
        ).reshape(shape)
        for dtype, shape, start in rows
    ]


def from_result(ticket: int, result: Result[Any]) -> tuple[list[Any], bytes]:
    """A result on its way back: what JSON can hold, and the bytes of its potentials."""
    raw, kinds = b"", list[Any]()
    if result.emitted is not None:
        for potential in map(to_numpy, result.emitted):
            kinds += [potential.dtype.str, potential.nbytes]
            raw += potential.tobytes()
    facts = [
        ticket,
        result.status.name,
        result.depth,
        *result.residual,
        result.widened,
        result.rescued,
        result.streamed,
        result.eps,
    ]
    return [*facts, result.arithmetic, result.detail, kinds], raw


def to_outcomes(many: Sequence[Sequence[Any]], raw: Any) -> Iterator[Outcome]:
    """Yield the outcomes that a worker sent; their potentials are views of the bytes."""
    place = 0
    for ticket, status, depth, row, col, band, widened, rescued, streamed, eps, arithmetic, detail, kinds in many:
        potentials = None
        if kinds:
            dtype, size, other, rest = kinds
            f, g = raw[place : place + size], raw[place + size : place + size + rest]
            potentials = Potentials(np.frombuffer(f, dtype=dtype), np.frombuffer(g, dtype=other))
            place += size + rest
        residual = Residual(row, col, band)
        rest = widened, arithmetic, detail, streamed, rescued, eps
        yield Outcome(ticket, potentials, residual, Status[status], depth, *rest)
