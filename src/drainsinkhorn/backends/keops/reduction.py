"""One reduction for all lanes: blocks of a block-diagonal log-sum-exp, so that unequal lanes need no padding.

    out_i = logsumexp_j (h_j - s_j C(x_i, y_j))        # over the j of i's own lane

This module imports PyKeOps when the first reduction is compiled. Call `probe.require` before that.
"""

# pyright: basic

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.keops.probe import require
from drainsinkhorn.model.errors import ProblemError

_log = logging.getLogger("drainsinkhorn")

SQUARES, DISTANCES = "SqDist(x, y)", "Norm2(x - y)"
"""Formulas of costs by distances, over coordinates that are scaled so that costs come in units of eps."""


SILENT = {"KEOPS_VERBOSE": "0", "PYKEOPS_VERBOSE": "0"}


@lru_cache(maxsize=1)
def _import_genred() -> Any:
    """Import PyKeOps with its messages switched off, unless the caller has set its verbosity."""
    unset = {name: value for name, value in SILENT.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        from pykeops.torch import Genred
    finally:
        for name in unset:
            os.environ.pop(name, None)
    return Genred


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context that one process of a user enters at a time: PyKeOps would load files that another is still writing."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        held = os.open(Path(tempfile.gettempdir()) / f"drainsinkhorn-keops-{os.getuid()}.lock", flags, 0o600)
    except OSError:
        # Nowhere to write, or not ours: as PyKeOps does it itself.
        yield
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


@lru_cache(maxsize=256)
def _reducer(formula: str, dim: int, axis: int, weighted: bool, device: str, dtype: Any) -> Any:
    """Return a compiled reduction over j (axis 1) or i (axis 0); PyKeOps compiles one for each set of arguments."""
    with alone():
        return _compile(formula, dim, axis, weighted, device, dtype)


def _compile(formula: str, dim: int, axis: int, weighted: bool, device: str, dtype: Any) -> Any:
    require(device)
    over = "Vj" if axis == 1 else "Vi"
    variables = [f"x = Vi({dim})", f"y = Vj({dim})", f"h = {over}(1)", *([f"s = {over}(1)"] if weighted else [])]
    text = f"h - s * ({formula})" if weighted else f"h - ({formula})"
    reducer = _import_genred()(text, variables, reduction_op="LogSumExp", axis=axis)
    said = threading.Timer(2.0, _log.warning, ["PyKeOps compiles %s (%s), once for this machine", formula, dtype])
    said.daemon = True
    said.start()
    try:
        one = torch.zeros((1, dim), device=device, dtype=dtype)
        block = blocks([(0, 1)], [(0, 1)], one.device)
        reducer(one, one, *[one[:, :1].contiguous()] * (1 + weighted), ranges=block, backend=_backend(one))
    except Exception as error:  # KeOps reads a formula as Python, which may raise anything.
        if not weighted:
            raise
        raise ProblemError(f"the formula {formula!r} is none that KeOps knows: {error}") from None
    finally:
        said.cancel()
    return reducer


def _backend(array: Any) -> str:
    return "GPU_1D" if array.is_cuda else "CPU"


def blocks(rows: list[tuple[int, int]], cols: list[tuple[int, int]], device: Any) -> tuple[Any, ...]:
    """Ranges of a block-diagonal reduction: rows of block k meet columns of block k."""
    over, under = (torch.tensor(part, dtype=torch.int32, device=device) for part in (rows, cols))
    ends = torch.arange(1, len(rows) + 1, dtype=torch.int32, device=device)
    return over, ends, under, under, ends, over


def reduce(kind: Any, x: Any, y: Any, h: Any, s: Any, axis: int, ranges: tuple[Any, ...]) -> Any:
    """The log-sum-exp of every row (axis 1) or column (axis 0) in float64; rows outside of all blocks have no result.

    Args:
        kind: A cost by distances, of coordinates scaled so that eps is 1, or a Formula.
        x: Rows' points.
        y: Columns' points.
        h: Log weights and potentials of the side that is summed over, in nats.
        s: Factors of a Formula's costs, on the side that is summed over; None for a cost by distances.
        axis: 1 for rows, 0 for columns.
        ranges: From `blocks`, rows first.
    """
    dim, device = x.shape[1], x.device.type
    weights = [h.to(x.dtype)[:, None].contiguous(), *([] if s is None else [s.to(x.dtype)[:, None].contiguous()])]
    if kind.distances is not None:
        # Costs by name are symmetric: columns are rows of the transposed problem, and one formula serves both.
        reducer = _reducer(DISTANCES if kind.distances.root else SQUARES, dim, 1, False, device, x.dtype)
        if axis == 0:
            x, y, ranges = y, x, (*ranges[3:], *ranges[:3])
    else:
        reducer = _reducer(kind.text, dim, axis, True, device, x.dtype)
    return reducer(x, y, *weights, ranges=ranges, backend=_backend(x))[:, 0].double()


def formula_matrix(formula: Any, x: Any, y: Any) -> Any:
    """Return all costs of a formula, (n, m), in float64.

    PyKeOps reduces each column in a batch of its own: the log-sum-exp over a single column is minus its cost.
    """
    rows, cols = (torch.as_tensor(np.ascontiguousarray(p, dtype=np.float64)) for p in (x, y))
    one = torch.ones((len(cols), 1, 1), dtype=torch.float64)
    reducer = _reducer(formula.text, rows.shape[1], 1, True, "cpu", torch.float64)
    log_sums = reducer(rows[None], cols[:, None, :].contiguous(), torch.zeros_like(one), one, backend="CPU")
    return -log_sums[:, :, 0].T.numpy()
