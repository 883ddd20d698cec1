"""Problems and outcomes as plain numbers and arrays, for the way between processes."""

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
from drainsinkhorn.model.outcome import Outcome
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import BFLOAT16, float_name, is_array, library, to_numpy
from drainsinkhorn.numerics.costs import Formula, as_cost

FORMAT = 2
"""Version of all messages between a fleet and its workers. Increase it with every change that the other end must know.
Format 1 did not state its version."""
Array = NDArray[Any]
ALIGNMENT = 64
PLAIN = (np.dtype(np.float32), np.dtype(np.float64))
POINTS = ("x", "y", "a", "b")
PARTS = 1024
"""Pieces of memory that a system takes at once."""
GAP = np.zeros(ALIGNMENT, np.uint8)


def other_format(version: object) -> str:
    """Return the error message for a message whose format is not FORMAT."""
    return (
        f"messages have format {version} at one end and {FORMAT} at the other: the fleet and its worker run different "
        "versions of drainsinkhorn; install the same one for both and start the program again"
    )


class Unsendable(TypeError):
    """A problem that the door would turn away, or that holds what is neither number nor array."""


class Parcel(NamedTuple):
    """Problems on their way to a worker: what JSON can hold, and arrays that the former refer to by number."""

    tickets: list[int]
    problems: list[dict[str, Any]]
    arrays: list[Array]


def send(tickets: Sequence[int], problems: Sequence[Problem[Any]]) -> Parcel:
    """Problems as a parcel. Arrays that problems share are sent once, and shared again at the other end."""
    arrays: list[Array] = []
    places: dict[int, int] = {}

    def place(value: Any) -> int:
        if id(value) not in places:
            places[id(value)] = len(arrays)
            arrays.append(plain(value))
        return places[id(value)]

    return Parcel(list(tickets), [_sent(problem, place) for problem in problems], arrays)


def plain(value: Any) -> Array:
    """An array of numbers that a worker reads as its caller meant it."""
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


def plain_problem(problem: Any) -> Problem[Any]:
    """The same problem in NumPy; raises for what cannot be sent."""
    if _is_plain(problem):
        return problem
    (received,) = receive(send([0], [problem]))
    return replace(received, chain=problem.chain)


def _is_plain(problem: Any) -> bool:
    """True for the common case, in which nothing is to be done: float arrays of NumPy, and a cost by name."""
    return (
        type(problem) is Problem
        and type(problem.eps) is float
        and (problem.tol is None or type(problem.tol) is float)
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
    """Pairs of points of a problem that can be sent; 1 for one that makes no sense and will be refused."""
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


def _sent(problem: Any, place: Any) -> dict[str, Any]:
    if _is_plain(problem):
        sent = {"eps": problem.eps, "cost": problem.cost, "tol": problem.tol, "init": problem.init}
        return sent | _placed(problem, place)
    if not isinstance(problem, Problem):
        raise Unsendable(f"{type(problem).__name__} is no Problem")
    if library(problem.x) != library(problem.y):
        raise Unsendable("x and y belong to different libraries")
    sent: dict[str, Any] = {"eps": _number(problem.eps)} | _placed(problem, place)
    if problem.tol is not None:
        sent["tol"] = _number(problem.tol)
    sent["cost"] = _sent_cost(problem.cost, place)
    if isinstance(problem.init, (tuple, list)):
        sent["init"] = [place(part) for part in problem.init]
    elif isinstance(problem.init, str):
        sent["init"] = problem.init
    elif problem.init is not None:
        raise Unsendable(f"{type(problem.init).__name__} is no start")
    return sent


def _placed(problem: Any, place: Any) -> dict[str, int]:
    return {name: place(part) for name in POINTS if (part := getattr(problem, name)) is not None}


def _sent_cost(given: Any, place: Any) -> Any:
    """A name as it is, a cost between points as a list, a matrix as its place."""
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
    return [_received(sent, parcel.arrays) for sent in parcel.problems]


def _received(sent: dict[str, Any], arrays: Sequence[Array]) -> Problem[Any]:
    parts: dict[str, Any] = {name: arrays[sent[name]] for name in POINTS if name in sent}
    cost, init = _received_cost(sent["cost"], arrays), sent.get("init")
    if isinstance(init, list):
        init = Potentials(*(arrays[place] for place in init))
    return Problem(eps=sent["eps"], tol=sent.get("tol"), cost=cost, init=init, **parts)


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
    left = deque(part for part in parts if part.nbytes)
    while left:
        written = os.writev(handle, list(islice(left, PARTS)))  # pyright: ignore[reportArgumentType]  arrays are buffers
        while left and written >= left[0].nbytes:
            written -= left.popleft().nbytes
        if written:
            left[0] = left[0][written:]


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
    ]
    return [*facts, result.arithmetic, result.detail, kinds], raw


def to_outcomes(many: Sequence[Sequence[Any]], raw: Any) -> Iterator[Outcome]:
    """Yield the outcomes that a worker sent; their potentials are views of the bytes."""
    place = 0
    for ticket, status, depth, row, col, band, widened, rescued, streamed, arithmetic, detail, kinds in many:
        potentials = None
        if kinds:
            dtype, size, other, rest = kinds
            f, g = raw[place : place + size], raw[place + size : place + size + rest]
            potentials = Potentials(np.frombuffer(f, dtype=dtype), np.frombuffer(g, dtype=other))
            place += size + rest
        residual = Residual(row, col, band)
        rest = widened, arithmetic, detail, streamed, rescued
        yield Outcome(ticket, potentials, residual, Status[status], depth, *rest)
