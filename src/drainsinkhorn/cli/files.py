"""Problems and solutions as .npz files: plain arrays only, nothing pickled is ever read.

The keys of both are documented in docs/files.md.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.backends.arrays import to_numpy
from drainsinkhorn.batch import problems
from drainsinkhorn.core.errors import FileError
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.problem import Cost, Problem
from drainsinkhorn.core.result import Result

Arrays = Mapping[str, np.ndarray[Any, Any]]
KEYS = ("x", "y", "a", "b", "eps", "tol", "f", "g", "cost", "scale", "x_sizes", "y_sizes")


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of an .npz file, read without pickle."""
    try:
        # Opened here, since NumPy leaves the file open when it is torn.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise FileError(f"{path} holds a single array; expected an .npz archive, as numpy.savez writes it")
            arrays = {name: archive[name] for name in archive.files}
            strange = [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]
            if strange:
                raise FileError(f"{path} has a member {strange[0]!r} that is no array")
            return arrays
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except FileError:
        raise
    # Damaged archives make zipfile raise NotImplementedError and RuntimeError as well.
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        hint = " Object arrays need pickle, which is never read: store numbers." if "pickle" in str(error) else ""
        raise FileError(f"{path} cannot be read as an .npz of plain arrays: {error}.{hint}") from None


def read_problems(path: Path) -> list[Problem[Any]]:
    """The problems of an .npz file."""
    arrays = read_arrays(path)
    unknown = sorted(set(arrays) - set(KEYS))
    if unknown:
        raise FileError(f"{path} has an unknown key {unknown[0]!r}; known keys are {', '.join(KEYS)}")
    if "eps" not in arrays:
        raise FileError(f"{path} has no eps, the entropic strength: one number or one per problem")
    rows, cols = _sizes(arrays, "x_sizes"), _sizes(arrays, "y_sizes")
    start = ("f" in arrays) + ("g" in arrays)
    if start == 1:
        raise FileError(f"{path} has only one of f and g; a start needs both potentials")
    init = (_split(arrays, "f", rows), _split(arrays, "g", cols)) if start else None
    columns = {
        name: _split(arrays, name, sizes) for name, sizes in (("x", rows), ("a", rows), ("y", cols), ("b", cols))
    }
    return problems(**columns, eps=arrays["eps"], tol=arrays.get("tol"), init=init, cost=_cost(arrays, rows, cols))


def _sizes(arrays: Arrays, key: str) -> list[int] | None:
    if key not in arrays:
        return None
    sizes = arrays[key]
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise FileError(f"{key} must be a vector of counts, one per problem, got {sizes.dtype} of shape {sizes.shape}")
    return [int(size) for size in sizes]


def _split(arrays: Arrays, key: str, sizes: list[int] | None) -> Any:
    if key not in arrays or sizes is None:
        return arrays.get(key)
    return _cut(arrays[key], sizes, key)


def _cut(array: np.ndarray[Any, Any], sizes: list[int], key: str) -> list[np.ndarray[Any, Any]]:
    if array.ndim == 0 or sum(sizes) != len(array):
        raise FileError(f"{key} has shape {array.shape}, but its sizes add up to {sum(sizes)} rows")
    return np.split(array, np.cumsum(sizes)[:-1]) if sizes else []


def _cost(arrays: Arrays, rows: list[int] | None, cols: list[int] | None) -> Any:
    cost = arrays.get("cost", np.array("sqeuclidean"))
    scale = arrays.get("scale", np.array(1.0))
    if scale.ndim != 0:
        raise FileError(f"scale must be one number, got shape {scale.shape}")
    if cost.dtype.kind == "U" and cost.ndim == 0:
        return Cost(str(cost), scale.item())
    if "scale" in arrays:
        raise FileError("scale belongs to a named cost; multiply dense costs yourself")
    if cost.ndim == 0:
        raise FileError(f"cost must be a text or matrices, got {cost.dtype} of shape ()")
    if cost.ndim == 1 and cost.dtype.kind in "fiu" and rows is not None and cols is not None:
        if len(rows) != len(cols):
            raise FileError(f"x_sizes is for {len(rows)} problems and y_sizes for {len(cols)}")
        matrices = _cut(cost, [n * m for n, m in zip(rows, cols, strict=True)], "cost")
        return [matrix.reshape(n, m) for matrix, n, m in zip(matrices, rows, cols, strict=True)]
    return cost


def write_solution(path: Path, results: list[Result[Any]], ledger: Ledger, tol: float) -> None:
    """Results and ledger as an .npz file, written beside it first so that no half file is ever seen."""
    arrays: dict[str, Any] = {
        "ticket": [r.ticket for r in results],
        "status": [r.status.name for r in results],
        "message": [r.message for r in results],
        "depth": [r.depth for r in results],
        "row": [r.residual.row for r in results],
        "col": [r.residual.col for r in results],
        "band": [r.residual.band for r in results],
        "rescued": [r.rescued for r in results],
        "widened": [r.widened for r in results],
        "eps": [_number(r.problem.eps) for r in results],
        "tol": [_number(tol if r.problem.tol is None else r.problem.tol) for r in results],
        "ledger": json.dumps(describe_ledger(ledger)),
    }
    for name in ("f", "g"):
        vectors = [np.empty(0) if r.emitted is None else to_numpy(getattr(r.emitted, name)) for r in results]
        if len({vector.shape for vector in vectors}) == 1:
            arrays[name] = np.stack(vectors)
        else:
            arrays[name] = np.concatenate(vectors) if vectors else np.empty(0)
            arrays[f"{name}_sizes"] = [len(vector) for vector in vectors]
    beside = path.with_name(path.name + ".partial")
    try:
        with beside.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise FileError(f"{path} cannot be written: {error}") from None


def _number(value: Any) -> float:
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


def json_number(value: Any) -> float | None:
    """A number as JSON has it: null where it is not finite."""
    return float(value) if math.isfinite(value) else None


def read_solution(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A saved solution: one row per problem, and the ledger."""
    arrays = read_arrays(path)
    columns = ("ticket", "status", "message", "depth", "row", "col")
    missing = sorted({*columns, "ledger"} - set(arrays))
    if missing:
        raise FileError(f"{path} is no solution: it has no {missing[0]!r}; write one with drain solve IN -o OUT")
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
        absent = sorted(set(describe_ledger(Ledger())) - set(ledger))
        if absent:
            raise ValueError(f"its ledger has no {absent[0]!r}")
    except (ValueError, TypeError) as error:
        raise FileError(f"{path} is a damaged solution: {error}") from None
    return rows, ledger
