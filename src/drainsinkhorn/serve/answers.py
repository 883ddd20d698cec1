"""Writes results as JSON or npz, with the quantities of the plans that a request wants."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import numpy as np

from drainsinkhorn.model.couplings import TransportCost
from drainsinkhorn.model.errors import DeadlineError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import UNKNOWN, Residual, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.model.text import escape
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.plans.consumers import barycentric_map, top_match, transport_costs
from drainsinkhorn.serve.bodies import JSON
from drainsinkhorn.serve.limits import Refusal

WANTS: dict[str, Callable[[list[Result[Any]]], list[Any]]] = {
    "cost": transport_costs,
    "map": barycentric_map,
    "map_col": lambda results: barycentric_map(results, "col"),
    "matches": top_match,
    "matches_col": lambda results: top_match(results, "col"),
}
"""Quantities of plans that a request may want, by name."""
ARRAYS = ("map", "map_col", "matches", "matches_col")
"""Those that are arrays."""
COLUMNS = (
    "ticket", "status", "message", "depth", "row", "col", "band", "rescued", "widened", "streamed", "eps", "tol",
)  # fmt: skip
"""What both formats say of each problem, except arrays."""


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """How one problem of a request ended.

    Attributes:
        ticket: Its number in the request.
        problem: The problem.
        status: How it ended.
        message: Status, advice and detail in one line.
        result: Its result; None if it did not run before the deadline.
    """

    ticket: int
    problem: Problem[Any]
    status: Status
    message: str
    result: Result[Any] | None

    @property
    def has_plan(self) -> bool:
        """True if there are potentials."""
        return self.result is not None and self.result.emitted is not None

    @property
    def residual(self) -> Residual:
        """The residual of the potentials; NaN if there are none."""
        return UNKNOWN if self.result is None else self.result.residual

    def potential(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the potential "f" or "g" as a NumPy array; None if there is none."""
        if self.result is None or self.result.emitted is None:
            return None
        return to_numpy(getattr(self.result.emitted, name))


def make_row(ticket: int, problem: Problem[Any], ended: Result[Any] | BaseException | None) -> ProblemRow:
    """Return the row of a problem from its result, or from the exception of its future.

    Args:
        ticket: Its number in the request.
        problem: The problem.
        ended: Its result, or the exception of its future: DeadlineError may hold an unconverged result. None if the
            future is not done.
    """
    if isinstance(ended, Result):
        return ProblemRow(ticket, problem, ended.status, escape(ended.message), ended)
    if isinstance(ended, DeadlineError) and isinstance(ended.result, Result):
        return make_row(ticket, problem, ended.result)
    if ended is None or isinstance(ended, DeadlineError | CancelledError):
        return ProblemRow(ticket, problem, Status.EXPIRED, f"EXPIRED: {Status.EXPIRED.value}", None)
    reason = f"the run failed ({type(ended).__name__}: {escape(ended)[:300]})"
    raise Refusal(500, reason, "send the request again; if it fails again, look at the log of the service")


def consume(rows: Sequence[ProblemRow], wants: Sequence[str]) -> dict[str, list[Any]]:
    """Return the wanted quantities by name, one entry per row; None where a problem has no plan."""
    places = [place for place, row in enumerate(rows) if row.has_plan]
    results = [row.result for row in rows if row.result is not None and row.has_plan]
    quantities: dict[str, list[Any]] = {}
    for name in wants:
        quantities[name] = [None] * len(rows)
        try:
            values = WANTS[name](results)
        except ProblemError as error:
            raise Refusal(422, f"want={name}: {escape(error)}", "leave it out of want") from None
        for place, value in zip(places, values, strict=True):
            quantities[name][place] = value if name == "cost" else to_numpy(value)
    return quantities


def encode(rows: Sequence[ProblemRow], tol: float, quantities: Mapping[str, list[Any]], content: str) -> bytes:
    """Return the body of an answer.

    Args:
        rows: How the problems ended, in the order of the request.
        tol: The tol of problems that have none.
        quantities: What was wanted, see `consume`.
        content: JSON or NPZ.
    """
    if content == JSON:
        return dump_json({"format": 1, "results": describe_rows(rows, tol, quantities)})
    return _encode_npz(rows, tol, quantities)


def dump_json(value: object) -> bytes:
    """Return a value as strict JSON in ASCII."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _numbers(row: ProblemRow, tol: float) -> dict[str, Any]:
    """Return the numbers and texts of a problem that both formats hold; arrays are added later."""
    result, problem = row.result, row.problem
    flags = (False, False, False) if result is None else (result.rescued, result.widened, result.streamed)
    depth = 0 if result is None else result.depth
    # The number that was found, if the problem states none.
    eps = _as_float(problem.eps) if result is None or math.isnan(result.eps) else result.eps
    aims = eps, tol if problem.tol is None else _as_float(problem.tol)
    values = (row.ticket, row.status.name, row.message, depth, *map(float, row.residual), *flags, *aims)
    return dict(zip(COLUMNS, values, strict=True))


def describe_rows(
    rows: Sequence[ProblemRow], tol: float, quantities: Mapping[str, list[Any]] | None = None
) -> list[dict[str, object]]:
    """Return one JSON object per problem; see `encode`."""
    described: list[dict[str, object]] = []
    for place, row in enumerate(rows):
        entry: dict[str, Any] = {name: _as_json(value) for name, value in _numbers(row, tol).items()}
        entry |= {name: _as_json(row.potential(name)) for name in ("f", "g")}
        for name, values in (quantities or {}).items():
            entry[name] = _as_json(values[place])
        described.append(entry)
    return described


def _encode_npz(rows: Sequence[ProblemRow], tol: float, quantities: Mapping[str, list[Any]]) -> bytes:
    described = [_numbers(row, tol) for row in rows]
    arrays: dict[str, Any] = {"format": 1, **{name: [numbers[name] for numbers in described] for name in COLUMNS}}
    potentials = {name: [row.potential(name) for row in rows] for name in ("f", "g")}
    # A stack of float32 and float64 is float64; the dtype says which potentials were float32.
    arrays["dtype"] = ["" if each is None else each.dtype.name for each in potentials["f"]]
    columns: dict[str, list[Any]] = {**potentials, **{name: quantities[name] for name in ARRAYS if name in quantities}}
    for name, values in columns.items():
        arrays |= join(name, values)
    for place, field in enumerate(TransportCost._fields if "cost" in quantities else ()):
        arrays[field] = [math.nan if costs is None else costs[place] for costs in quantities["cost"]]
    body = io.BytesIO()
    np.savez(body, allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})
    return body.getvalue()


def join(name: str, values: Sequence[np.ndarray[Any, Any] | None]) -> dict[str, Any]:
    """Return arrays as one entry of an archive: stacked if their shapes agree, else joined, with their sizes."""
    present = [value for value in values if value is not None]
    if len(present) == len(values) and len({value.shape for value in present}) == 1:
        return {name: np.stack(present)}
    joined = np.concatenate(present) if present else np.empty(0)
    return {name: joined, f"{name}_sizes": [0 if value is None else len(value) for value in values]}


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it: nested lists for arrays, null for what is not finite or not there."""
    if isinstance(value, TransportCost):
        return {name: _as_json(float(part)) for name, part in value._asdict().items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
