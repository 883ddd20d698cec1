"""Solutions in .npz files: plain arrays only, nothing pickled is ever written or read.

docs/guides/command-line.md describes the keys of `write_solution`; `save` adds the problems, so that `load` returns
results from which plans can be taken.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from drainsinkhorn.backends import choose
from drainsinkhorn.backends import load as load_backend
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable, FileError, OptionsError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import COSTS, as_cost
from drainsinkhorn.run.archives import read_arrays
from drainsinkhorn.run.marginals import parse_marginals
from drainsinkhorn.run.validate import validate

FORMAT = 1
"""Version of the keys of files of problems and solutions. A file that does not state its format has this one."""
FIELDS = ("eps", "x", "y", "a", "b", "tol", "cost", "init", "chain", "rho", "max_depth")
"""Fields of a problem that are saved, or that change only how its result was reached."""


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` once it is written, so that no partial file is ever visible.

    It is made in the same folder under a random name. Exclusive creation fails where the name exists, and does not
    follow a symbolic link. After an error nothing is left of it, and what was at `path` is untouched.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_format(path: Path, limit: int | None) -> dict[str, np.ndarray[Any, Any]]:
    """Return all arrays of a file of the format that is read here; raises FileError for any other."""
    arrays = read_arrays(path, limit)
    version = arrays.get("format", np.array(FORMAT))
    if version.shape != () or version.dtype.kind not in "iu" or version != FORMAT:
        value = repr(version.item())[:40] if version.shape == () else f"of shape {version.shape}"
        raise FileError(
            f"{path} has format {value}, and this version of drainsinkhorn reads format {FORMAT}; use the version that "
            "wrote it"
        )
    return arrays


def write_solution(
    path: Path,
    results: Sequence[Result[Any]],
    ledger: Ledger,
    tol: float,
    more: Mapping[str, np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]] | None = None,
) -> None:
    """Write results and ledger as an .npz file, beside it first so that no half file is ever seen.

    Args:
        path: The file.
        results: The results.
        ledger: The account of the run.
        tol: The tol of problems without their own.
        more: Further entries by key: a vector with one number for each result, or a list with one array for each.
    """
    others = {name: join_arrays(value) if isinstance(value, list) else value for name, value in (more or {}).items()}
    write_arrays(path, {**solution_arrays(results, ledger, tol), **others})


def solution_arrays(results: Sequence[Result[Any]], ledger: Ledger, tol: float) -> dict[str, Any]:
    """Return results and ledger as arrays by key; docs/guides/command-line.md describes the keys."""
    arrays: dict[str, Any] = {
        "format": FORMAT,
        "ticket": [r.ticket for r in results],
        "status": [r.status.name for r in results],
        "message": [r.message for r in results],
        "depth": [r.depth for r in results],
        "row": [r.residual.row for r in results],
        "col": [r.residual.col for r in results],
        "band": [r.residual.band for r in results],
        "rescued": [r.rescued for r in results],
        "widened": [r.widened for r in results],
        "streamed": [r.streamed for r in results],
        "eps": [_as_number(r.problem.eps) if math.isnan(r.eps) else r.eps for r in results],
        "tol": [_as_number(tol if r.problem.tol is None else r.problem.tol) for r in results],
        "ledger": json.dumps(describe_ledger(ledger)),
    }
    for name in ("f", "g"):
        vectors = [np.empty(0) if r.emitted is None else to_numpy(getattr(r.emitted, name)) for r in results]
        arrays[name] = join_arrays(vectors)
        if len({vector.shape for vector in vectors}) != 1:
            arrays[f"{name}_sizes"] = [len(vector) for vector in vectors]
    return arrays


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file; it appears at `path` once it is complete."""
    try:
        with replace_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error}") from None


def join_arrays(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Stack arrays of equal shapes; join others along their first axis."""
    if not parts:
        return np.empty(0)
    return np.stack(parts) if len({part.shape for part in parts}) == 1 else np.concatenate(parts)


def _as_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def describe_ledger(ledger: Ledger) -> dict[str, Any]:
    """The account as plain numbers, for JSON."""
    return {
        "slots": ledger.slots,
        "static_slots": ledger.static_slots,
        "removed_slots": ledger.removed_slots,
        "legs": ledger.legs,
        "audits": ledger.audits,
        "verified": ledger.verified,
        "rejected": ledger.rejected,
        "repacks": ledger.repacks,
        "refills": ledger.refills,
        "survival": ledger.survival,
        "widths": [list(run) for run in ledger.widths],
        "seconds": ledger.seconds,
        "choices": [[choice.what, choice.picked, choice.reason] for choice in ledger.choices],
        "rescue": None if ledger.rescue is None else describe_ledger(ledger.rescue),
    }


def save_results(path: Path, results: Sequence[Result[Any]], ledger: Ledger) -> None:
    """Write results, the account of their run and their problems to an .npz file; see `Solution.save`."""
    first = results[0] if results else None
    facts = {
        "backend": "" if first is None else first.backend.name,
        "acceleration": "" if first is None else first.acceleration,
        "account": json.dumps(ledger.save()),
    }
    columns = {name: [getattr(r, name) for r in results] for name in ("detail", "arithmetic")}
    arrays = {**solution_arrays(results, ledger, math.nan), **facts, **columns}
    arrays["eps"] = [r.eps for r in results]
    arrays["tol"] = [math.nan if r.emitted is None else r.instance.tol for r in results]
    write_arrays(path, {**arrays, **_problem_arrays([None if r.emitted is None else r.problem for r in results])})


def load_results(path: Path, limit: int | None = None) -> tuple[list[Result[Any]], Ledger]:
    """Return the results of a file that `save_results` wrote, with NumPy arrays, and the account of their run."""
    arrays = read_format(path, limit)
    if "account" not in arrays:
        raise FileError(
            f"{path} holds no problems, so Solution.save did not write it; drain explain prints what it holds"
        )
    try:
        columns = {name: arrays[name].tolist() for name in (*COLUMNS, "status")}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        problems = _problems(arrays, [row["eps"] for row in rows])
        backend = _backend(str(arrays["backend"]), problems)
        common = {"backend": backend, "acceleration": str(arrays["acceleration"])}
        states = zip(problems, *(_split(arrays, name) for name in ("f", "g")), rows, strict=True)
        results = [_restore_result(*state, **common) for state in states]
        ledger = Ledger.restore(json.loads(str(arrays["account"])))
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FileError(f"{path} is a damaged solution: {type(error).__name__}: {error}") from None
    if sorted(result.ticket for result in results) != list(range(len(results))):
        raise FileError(f"{path} is a damaged solution: its tickets are not 0 to {len(results) - 1}")
    return results, ledger


COLUMNS = ("ticket", "depth", "row", "col", "band", "eps", "tol", "rescued", "widened", "streamed", "detail",
           "arithmetic")  # fmt: skip
"""Keys with one entry for each result, beside its status, potentials and problem."""


def _restore_result(
    problem: Problem[Any], f: Any, g: Any, row: dict[str, Any], *, backend: Backend[Any], acceleration: str
) -> Result[Any]:
    used = backend.precise() if row["rescued"] else backend
    return Result(
        problem=problem,
        validate=partial(validate, tol=row["tol"]),
        emitted=Potentials(f, g) if len(f) else None,
        residual=Residual(row["row"], row["col"], row["band"]),
        status=Status[row["status"]],
        backend=used.frugal() if row["streamed"] else used,
        acceleration=acceleration,
        **{name: row[name] for name in COLUMNS if name not in ("row", "col", "band", "tol")},
    )


def _backend(name: str, problems: Sequence[Problem[Any]]) -> Backend[Any]:
    """Return the backend of that name; if it cannot run on this machine, the one that "auto" takes."""
    try:
        return load_backend(name)
    except (BackendUnavailable, OptionsError):
        return choose(problems[0] if problems else None)[0]


def _split(arrays: Mapping[str, Any], name: str) -> list[np.ndarray[Any, Any]]:
    """Return the vectors that `solution_arrays` joined."""
    joined, sizes = arrays[name], arrays.get(f"{name}_sizes")
    return list(joined) if sizes is None else np.split(joined, np.cumsum(sizes)[:-1])[: len(sizes)]


def _problem_arrays(problems: Sequence[Problem[Any] | None]) -> dict[str, Any]:
    """Return problems as arrays by key: an array that several problems share once. A problem that is None is empty."""
    for place, problem in enumerate(problems):
        for field in dataclasses.fields(Problem):
            if problem is not None and field.name not in FIELDS and getattr(problem, field.name) != field.default:
                raise FileError(
                    f"problem {place} has {field.name}={getattr(problem, field.name)!r}, which a file cannot hold"
                )
    costs = [None if problem is None else as_cost(problem.cost) for problem in problems]
    for place, cost in enumerate(costs):
        if isinstance(cost, Cost) and cost.kind not in COSTS:
            raise FileError(f"problem {place} has a cost of your own ({cost.kind}), which a file cannot hold")
    arrays: dict[str, Any] = {
        "in_cost": np.array([cost.kind if isinstance(cost, Cost) else "" for cost in costs], dtype=np.str_),
        "in_scale": [float(cost.scale) if isinstance(cost, Cost) else 1.0 for cost in costs],
    }
    marginals = [parse_marginals(None if problem is None else problem.rho) for problem in problems]
    arrays["in_rho"] = np.array([[side.rho for side in pair] for pair in marginals]).reshape(-1, 2)
    matrices = [None if isinstance(cost, Cost) else cost for cost in costs]
    columns = {name: [None if problem is None else getattr(problem, name) for problem in problems] for name in "xyab"}
    for name, values in {**columns, "matrix": matrices}.items():
        places = {id(value): value for value in values if value is not None}
        numbers = {key: place for place, key in enumerate(places)}
        parts = [to_numpy(value) for value in places.values()]
        arrays[f"in_{name}"] = np.concatenate([part.ravel() for part in parts]) if parts else np.empty(0)
        arrays[f"in_{name}_shapes"] = np.array([part.shape for part in parts], dtype=np.int64)
        arrays[f"in_{name}_places"] = [-1 if value is None else numbers[id(value)] for value in values]
    return arrays


def _problems(arrays: Mapping[str, Any], eps: Sequence[float]) -> list[Problem[Any]]:
    """Return the problems that `_problem_arrays` described; arrays that were shared are shared again."""
    columns: dict[str, list[Any]] = {}
    for name in (*"xyab", "matrix"):
        shapes = [tuple(shape) for shape in arrays[f"in_{name}_shapes"].tolist()]
        ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
        flat = np.split(arrays[f"in_{name}"], ends[:-1]) if shapes else []
        parts = [part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]
        columns[name] = [None if place < 0 else parts[place] for place in arrays[f"in_{name}_places"].tolist()]
    named = zip(arrays["in_cost"].tolist(), arrays["in_scale"].tolist(), columns.pop("matrix"), strict=True)
    costs = [Cost(kind, scale) if kind else matrix for kind, scale, matrix in named]
    prices = [None if prices == [math.inf, math.inf] else tuple(prices) for prices in arrays["in_rho"].tolist()]
    rows = zip(*columns.values(), eps, costs, prices, strict=True)
    return [Problem(x=x, y=y, a=a, b=b, eps=number, cost=cost, rho=rho) for x, y, a, b, number, cost, rho in rows]
