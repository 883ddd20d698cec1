"""From the arguments of a command to problems: one .npz file, two sides, consecutive clouds, or an .h5ad file."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.apps.time_points import categories_of, time_points
from drainsinkhorn.cli.clouds import READERS, Room, faults_of, read_cloud
from drainsinkhorn.cli.files import PROBLEM_BYTES, read_problems
from drainsinkhorn.cli.messages import warn
from drainsinkhorn.model.eps import Eps
from drainsinkhorn.model.errors import BackendUnavailable, FileError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.eps_text import parse_eps
from drainsinkhorn.run.marginals import parse_price
from drainsinkhorn.run.stack import problems

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Settings with which the files of a command are read as problems.

    Attributes:
        eps: The eps of all problems as text; None: that of an .npz file, and the default of `Problem` between clouds.
        rho: The price of soft marginals as text; None: that of an .npz file, and hard marginals between clouds.
        consecutive: Whether each cloud is coupled with the next one.
        key: Column of obs in an .h5ad file that has the times of cells.
        rep: Entry of obsm that has their points; "X" is X.
        times: Time points of an .h5ad file, in order; None: all, in their own order.
        limit: Bytes that all files together may take; None: see `Room`.
    """

    eps: str | None = None
    rho: str | None = None
    consecutive: bool = False
    key: str | None = None
    rep: str = "X_pca"
    times: Sequence[str] | None = None
    limit: int | None = None


def read_inputs(sources: Sequence[Path], how: Reading) -> list[Problem[Any]]:
    """Return the problems of some files and folders; raise FileError or ProblemError if they make none."""
    suffixes = [path.suffix.lower() for path in sources]
    if suffixes == [".npz"]:
        if how.consecutive:
            raise ProblemError(f"--consecutive does not go with an .npz file: {sources[0]} has whole problems")
        return read_problems(sources[0], how.limit, how.eps, how.rho)
    if ".npz" in suffixes:
        raise ProblemError("an .npz file has whole problems: pass it alone, or save its clouds as .npy files")
    eps = None if how.eps is None else parse_eps(how.eps)
    rho = None if how.rho is None else parse_price(how.rho)
    room = Room(how.limit)
    if suffixes == [".h5ad"]:
        if how.key is None:
            raise ProblemError(f"{sources[0]} needs --key: the column of obs that has the times of the cells")
        return _pairs(read_time_points(sources[0], how, room), eps, rho)
    if ".h5ad" in suffixes:
        raise ProblemError("an .h5ad file has all time points: pass it alone")
    if how.consecutive:
        clouds: list[Array] = []
        for path in files_of(sources):
            cloud = read_cloud(path, room)
            clouds += list(cloud) if cloud.ndim == 3 else [cloud]
        return _pairs(clouds, eps, rho)
    if len(sources) != 2:
        raise ProblemError(
            f"{len(sources)} files or folders were given; pass two sides X Y, many clouds with --consecutive, or one "
            ".npz file of problems"
        )
    x, y = (_side(source, room) for source in sources)
    count = max(len(side) if isinstance(side, list) or side.ndim == 3 else 1 for side in (x, y))
    room.take(sources[0], PROBLEM_BYTES * count)
    return problems(x, y, eps=eps, rho=rho)


def _side(source: Path, room: Room) -> Any:
    """The clouds of one side: those of a folder as a list, or the array of a file."""
    if source.is_dir():
        return [read_cloud(path, room) for path in files_of([source])]
    return read_cloud(source, room)


def files_of(sources: Sequence[Path]) -> list[Path]:
    """The files themselves, and those of clouds in each folder, in natural order ("frame2" before "frame10")."""
    files: list[Path] = []
    for source in sources:
        if not source.is_dir():
            files.append(source)
            continue
        clouds = [path for path in source.iterdir() if path.suffix.lower() in READERS and path.is_file()]
        if not clouds:
            raise FileError(f"{source} has no files of clouds ({', '.join(READERS)})")
        files += sorted(clouds, key=_natural)
    return files


def name_pairs(sources: Sequence[Path], consecutive: bool, count: int) -> list[str]:
    """Return the files that each of `count` pairs was read from, as text; empty where files do not tell pairs apart.

    A file may hold several clouds.
    """
    sides = [[path.name for path in files_of([source])] for source in sources]
    if consecutive:
        names = list(itertools.pairwise(itertools.chain.from_iterable(sides)))
    else:
        names = list(zip(*(side * (count if len(side) == 1 else 1) for side in sides), strict=False))
    has_own_files = len(names) == count and len(set(names)) == count and all(len(name) == 2 for name in names)
    return [" ".join(name) for name in names] if has_own_files else [""] * count


def _natural(path: Path) -> list[Any]:
    parts = re.split(r"([0-9]+)", path.name)
    return [*((int(part), part) if part.isdecimal() and part.isascii() else (0, part) for part in parts)]


def _pairs(clouds: Sequence[Array], eps: Eps, rho: Any) -> list[Problem[Any]]:
    """Each cloud with the next one."""
    if len(clouds) < 2:
        raise ProblemError(f"{len(clouds)} cloud was given, and consecutive pairs need at least two")
    return [Problem(x=x, y=y, eps=eps, rho=rho) for x, y in itertools.pairwise(clouds)]


def read_time_points(path: Path, how: Reading, room: Room) -> list[Array]:
    """Return the points of each time point of an .h5ad file, in the order of time.

    Only the points and the column of times are read, after their sizes were checked.
    """
    try:
        import h5py
        from anndata.io import read_elem
    except ImportError as error:
        raise BackendUnavailable(f"{path} needs anndata ({error}); pip install 'drainsinkhorn[anndata]'") from None
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is no regular file")
    with faults_of(path, "an .h5ad file"), h5py.File(path, "r") as file:
        entries = [_entry(file, *(["X"] if how.rep == "X" else ["obsm", how.rep])), _entry(file, "obs", str(how.key))]
        room.take(path, sum(map(_size, entries)))
        points: Any = read_elem(entries[0])
        column: Any = read_elem(entries[1])
    points = points.toarray() if hasattr(points, "toarray") else np.asarray(points)
    labels = np.asarray(column)
    if points.ndim != 2 or labels.shape != (len(points),):
        raise FileError(f"{path} has points of shape {points.shape} and times of shape {labels.shape}")
    names = labels.tolist()
    by_text = {str(name): name for name in names}
    unknown = [name for name in how.times or () if name not in by_text]
    if unknown:
        raise ProblemError(f"time point {unknown[0]!r} has no cells; there are {list(by_text)}")
    wanted = None if how.times is None else [by_text[name] for name in how.times]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        order = time_points(wanted, names, categories_of(column))
    for warning in caught:
        warn(str(warning.message).replace("pass times=[...]", "pass --times"))
    return [np.ascontiguousarray(points[labels == name]) for name in order]


def _entry(file: Any, *names: str) -> Any:
    """An entry of an HDF5 file by its path; links to other places and files are not followed."""
    import h5py

    group = file
    for name in names:
        if not isinstance(group, h5py.Group) or name not in group:
            known = list(group) if isinstance(group, h5py.Group) else []
            raise ValueError(f"it has no entry {'/'.join(names)!r}; {group.name} has {known[:20]}")
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"its entry {'/'.join(names)!r} is a link, which is not followed")
        group = group[name]
    return group


def _size(entry: Any) -> int:
    """Bytes that an entry takes in memory: those of its arrays, or of the dense matrix of a sparse one."""
    shape = entry.attrs.get("shape")
    if shape is not None:
        return 8 * int(np.prod([int(length) for length in shape], dtype=object))
    if hasattr(entry, "nbytes"):
        return int(entry.nbytes)
    return sum(_size(entry[name]) for name in entry)
