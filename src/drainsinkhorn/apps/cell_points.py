"""Points, times and weights of cells, read from arrays, DataFrames and AnnData, in memory or in a file."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.apps.time_points import categories_of, time_points
from drainsinkhorn.model.errors import BackendUnavailable, ProblemError
from drainsinkhorn.numerics.arrays import to_numpy

Array = NDArray[Any]

DENSE_BYTES = 2**32
"""Largest size of a dense array that is made of a sparse matrix, in bytes."""
BLOCK_BYTES = 2**26
"""How much of a file is read at a time, in bytes."""


class _DefaultRep(str):
    """The default of `rep`, which can be told from the same text passed by the caller."""


DEFAULT_REP = _DefaultRep("X_pca")


class Annotated(NamedTuple):
    """Points of cells, and their times, weights and names.

    Attributes:
        points: Points of the cells, (n, d): an array, a sparse matrix or an open file.
        key: Times of the cells, (n,).
        weights: Weights of the cells, (n,), or None.
        index: Names of the cells as an index of pandas, or None.
    """

    points: Any
    key: Any
    weights: Any
    index: Any


def unknown_name(what: str, name: Any, names: Iterable[Any]) -> ProblemError:
    """An error for a name that does not exist, with the nearest of the names that do."""
    known = list(names)
    near = difflib.get_close_matches(str(name), [str(each) for each in known], 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return ProblemError(f"{what} {name!r}; it has {known}{guess}")


def chosen_rep(rep: Any, use_rep: Any) -> Any:
    """The representation that `rep`, or its alias `use_rep`, names; ProblemError if both are given."""
    if use_rep is None:
        return rep
    if rep is not DEFAULT_REP:
        raise ProblemError(f"rep={rep!r} and use_rep={use_rep!r} are two names of one argument; pass one of them")
    return use_rep


def read_cells(data: Any, key: Any, rep: Any, weights: Any) -> Annotated:
    """Return points, times and weights of cells. Columns are looked up, and a Series is matched by cell names."""
    if hasattr(data, "obs"):
        cells = _from_anndata(data, key, rep, weights)
    elif hasattr(data, "columns") and hasattr(data, "index"):
        cells = _from_frame(data, key, weights)
    else:
        points = data if is_sparse(data) else to_numpy(data)
        cells = Annotated(points, key, weights, None)
    key, weights = (
        match_index(values, cells.index, what) for values, what in ((cells.key, "key"), (cells.weights, "weights"))
    )
    return Annotated(cells.points, key, weights, cells.index)


def match_index(values: Any, index: Any, what: str) -> Any:
    """Values in the order of the cells: a Series whose index has names of cells is sorted by them.

    Other values, and a Series whose index has no name of a cell, are in the order of the cells already.
    """
    own = getattr(values, "index", None)
    if index is None or own is None or not hasattr(values, "reindex") or own.equals(index) or not index.is_unique:
        return values
    missing = index.difference(own)
    if len(missing) == len(index):
        return values
    if len(missing) or not own.is_unique:
        trouble = f"no value for cell {missing[0]!r}" if len(missing) else "several values for one cell"
        raise ProblemError(
            f"{what} is a Series with {trouble}; pass one value for each cell, or an array in their order"
        )
    return values.reindex(index)


def _from_frame(data: Any, key: Any, weights: Any) -> Annotated:
    """Columns that `key` and `weights` name; all others are coordinates."""
    named = [name for name in (key, weights) if isinstance(name, str)]
    for name in named:
        if name not in data.columns:
            raise unknown_name("the DataFrame has no column", name, data.columns)
    points = data.drop(columns=named)
    texts = [name for name, dtype in points.dtypes.items() if dtype.kind not in "biuf"]
    if texts:
        raise ProblemError(
            f"columns {texts} of the DataFrame are no coordinates; leave them out: data.drop(columns={texts})"
        )
    key, weights = (data[name] if isinstance(name, str) else name for name in (key, weights))
    return Annotated(points.to_numpy(), key, weights, data.index)


def _from_anndata(data: Any, key: Any, rep: Any, weights: Any) -> Annotated:
    try:
        import anndata
    except ImportError as error:
        raise BackendUnavailable(f"anndata cannot be loaded ({error}); pip install 'drainsinkhorn[anndata]'") from error
    if not isinstance(data, anndata.AnnData):
        raise ProblemError(f"expected an AnnData, an array or a mapping, got {type(data).__name__}")
    for column in (key, weights):
        if isinstance(column, str) and column not in data.obs:
            raise unknown_name("obs has no column", column, data.obs.columns)
    if rep is None or rep == "X":
        points: Any = data.X
    elif rep in data.obsm:
        points = data.obsm[rep]
    else:
        raise ProblemError(f'{unknown_name("obsm has no entry", rep, data.obsm)}; use_rep="X" takes X')
    if points is None:
        raise ProblemError(f"this AnnData has no X; name an entry of obsm, which has {list(data.obsm)}, in use_rep=")
    if not is_sparse(points) and not _is_file(points):
        points = np.asarray(points)
    key, weights = (data.obs[name] if isinstance(name, str) else name for name in (key, weights))
    return Annotated(points, key, weights, data.obs_names)


def is_sparse(points: Any) -> bool:
    """Whether points are a sparse matrix of SciPy, or one in a file of anndata."""
    return hasattr(points, "toarray") or (hasattr(points, "to_memory") and hasattr(points, "format"))


def _is_file(points: Any) -> bool:
    return type(points).__module__.partition(".")[0] in ("h5py", "zarr")


def clouds_of(points: Any, groups: Sequence[Array]) -> list[Array]:
    """Dense points of groups of cells, each (size, d); a sparse matrix becomes dense with a warning that says its size.

    Args:
        points: An array (n, d), a sparse matrix or an open file.
        groups: Indices of cells, ascending.
    """
    if is_sparse(points):
        _announce_dense(sum(map(len, groups)), points)
    if type(points) is np.ndarray:
        return [np.ascontiguousarray(points[cells]) for cells in groups]
    if hasattr(points, "tocsr"):
        points = points.tocsr()
        return [np.ascontiguousarray(points[cells].toarray()) for cells in groups]
    return [_read_rows(points, cells) for cells in groups]


def _announce_dense(count: int, points: Any) -> None:
    """Warn that `count` rows of a sparse matrix become dense; ProblemError if they are too large."""
    size = count * points.shape[1] * np.dtype(points.dtype).itemsize
    description = f"{count} cells x {points.shape[1]} features of {points.dtype} are {size:,} bytes as a dense array"
    if size > DENSE_BYTES:
        raise ProblemError(
            f"the points are a sparse matrix; {description}, more than the {DENSE_BYTES:,} allowed; couple in "
            'principal components (scanpy.pp.pca, then use_rep="X_pca"), choose features, or pass a dense array'
        )
    warnings.warn(
        f"the points are a sparse matrix and become dense: {description}; principal components "
        '(scanpy.pp.pca, then use_rep="X_pca") are smaller and coupled faster',
        UserWarning,
        stacklevel=5,
    )


def _read_rows(points: Any, cells: Array) -> Array:
    """Read rows of a file, some of them at a time, because reading many scattered rows is slow."""
    count, width = points.shape
    step = max(1, BLOCK_BYTES // max(1, width * np.dtype(points.dtype).itemsize))
    cloud = np.empty((len(cells), width), dtype=points.dtype)
    done = 0
    for first in range(0, count, step):
        inside = cells[(cells >= first) & (cells < first + step)] - first
        if not inside.size:
            continue
        block = points[first : first + step]
        rows = block[inside]
        cloud[done : done + inside.size] = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
        done += inside.size
    return cloud


def read_timepoints(
    data: Any, key: Any, rep: Any, times: Any, weights: Any
) -> tuple[list[Any], list[Array], list[Any], Any, Any]:
    """Return the time points in order; the indices of the cells of each, their points and their weights; cell names.

    Raises ProblemError for data that have no such points, times or weights.
    """
    if isinstance(data, Mapping):
        if weights is not None or key is not None:
            raise ProblemError("with a mapping from times to clouds there is neither key nor weights")
        names = time_points(times, list(data), None)
        clouds: list[Any] = []
        for name in names:
            points = data[name]
            clouds += clouds_of(points, [np.arange(points.shape[0])]) if is_sparse(points) else [to_numpy(points)]
        places = [np.arange(len(c)) for c in clouds]
        _require_finite(names, places, clouds)
        return names, places, clouds, [np.ones(len(c)) for c in clouds], None
    points, key, weights, index = read_cells(data, key, rep, weights)
    if key is None:
        raise ProblemError("key is missing: the times of the cells, or the column of obs that has them")
    labels = np.asarray(key)
    if labels.dtype.kind in "mM":
        # Python has no dates in nanoseconds: NumPy would turn them into integers.
        labels = labels.astype(f"{labels.dtype.str[:3]}[us]")
    count = points.shape[0]
    if len(points.shape) != 2 or labels.shape != (count,):
        raise ProblemError(f"key must name one time for each of {count} cells, got shape {labels.shape}")
    masses = np.ones(count) if weights is None else to_numpy(weights).astype(np.float64)
    if masses.shape != (count,):
        raise ProblemError(f"weights must be one for each of {count} cells, got shape {masses.shape}")
    names = time_points(times, labels.tolist(), categories_of(key))
    for name in names:
        own = masses[labels == name]
        if not (np.isfinite(own).all() and (own >= 0).all() and own.sum() > 0):
            raise ProblemError(f"weights of time point {name!r} must be finite, not negative, and not all zero")
    cells = [np.flatnonzero(labels == name) for name in names]
    clouds = clouds_of(points, cells)
    _require_finite(names, cells, clouds)
    return names, cells, clouds, [masses[c] for c in cells], index


def _require_finite(names: list[Any], cells: list[Array], clouds: list[Array]) -> None:
    """Raise ProblemError at the first coordinate that is not finite, with its cell and time point."""
    for name, places, cloud in zip(names, cells, clouds, strict=True):
        try:
            finite = np.isfinite(cloud.astype(np.float64))
        except (TypeError, ValueError):
            raise ProblemError(f"points of time point {name!r} must be numbers, got {cloud.dtype}") from None
        if finite.all():
            continue
        cell, *coordinate = np.argwhere(~finite)[0]
        count = len(cloud) - int(finite.reshape(len(cloud), -1).all(1).sum())
        raise ProblemError(
            f"coordinate {', '.join(map(str, coordinate))} of cell {places[cell]}, of time point {name!r}, is "
            f"{cloud[(cell, *coordinate)]} ({count} cells of this time point are not finite); leave such cells out, or "
            "compute their coordinates anew"
        )
