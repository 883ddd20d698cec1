"""Data of the named campaigns: the public originals, the small npz subsets, or, without a folder, generated data.

Nothing is ever unpickled. What was read is named with its sha256, so that a manifest changes with its data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.errors import BackendUnavailable, FileError
from drainsinkhorn_bench import generated

Array = NDArray[Any]

ANALOGUE = ("TP2", "TP3", "H1", "DV_pressure", "Reservoirs", "Oil_temperature", "Motor_current")
"""The seven analogue sensors of MetroPT-3, which original and subset share."""
EMBRYO_TIMES = ("embryo.time", "embryo_time", "embryo.time.bin", "time.point", "time_point")
CELL_TYPES = ("cell.type", "cell_type", "cell.subtype", "lineage")
SCAN_KEYS = ("points", "pcloud_points")
"""What A2D2 calls the points of a scan."""
COMPONENTS = 500
CHUNK = 20_000
"""Images that are in float64 at a time."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where data came from.

    Attributes:
        text: Description of the source; "generated" if no file was read.
        inputs: sha256 by file name.
        differs: Sentences on what is other than in the paper.
    """

    text: str
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Sensors:
    """A sensor log: standardised rows (rows, d), in time."""

    rows: Array
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cells in order of time: points (cells, d), times (cells,) and the name of each cell's group."""

    points: Array
    times: Array
    groups: Array
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of images (images, d), centred, of mean variance one."""

    values: Array
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Scans:
    """Consecutive LiDAR scans, each (points, 3), in metres."""

    frames: list[Array]
    source: Source


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hashes(paths: Sequence[Path]) -> dict[str, str]:
    return {path.name: sha256(path) for path in paths}


def arrays(path: Path, *names: str) -> list[Array]:
    """Arrays of an npz file by name; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise FileError(f"{path} has no array {missing[0]!r}; it has {sorted(file.files)}")
            return [file[name] for name in names]
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as an npz file of plain arrays ({error})") from error


def _read_first(data: Path, what: str, choices: Mapping[str, Callable[[list[Path]], Any]]) -> Any:
    """Read the first pattern of a folder that has files."""
    if not data.is_dir():
        raise FileError(f"{data} is no folder; --data names a folder with files of the data sets")
    for pattern, read in choices.items():
        paths = sorted(data.glob(pattern))
        if paths:
            return read(paths)
    raise FileError(
        f"{data} holds no {what}: expected one of {', '.join(choices)}; without --data the campaign generates its data"
    )


def _standardised(rows: Array) -> Array:
    rows = rows.astype(np.float64)
    spread = rows.std(0)
    return ((rows - rows.mean(0)) / np.where(spread > 0, spread, 1.0)).astype(np.float32)


# MetroPT-3


def metropt3(data: Path | None, seed: int = 0) -> Sensors:
    """The log of a compressor: the CSV of UCI data set 791, the subset `metropt3.npz`, or a generated log."""
    if data is None:
        return Sensors(
            _standardised(generated.sensor_log(seed)), Source("generated", differs=("the sensor log is generated",))
        )
    return _read_first(
        data,
        "MetroPT-3 log",
        {"*MetroPT3*.csv": _metropt_csv, "*metropt*.csv": _metropt_csv, "metropt3.npz": _metropt_npz},
    )


def _metropt_csv(paths: list[Path]) -> Sensors:
    path = paths[0]
    with path.open() as file:
        header = [name.strip().strip('"') for name in file.readline().split(",")]
    missing = [name for name in ANALOGUE if name not in header]
    if missing:
        raise FileError(f"{path} has no column {missing[0]!r}; its first line names {header}")
    try:
        rows = np.loadtxt(path, delimiter=",", skiprows=1, usecols=[header.index(name) for name in ANALOGUE], ndmin=2)
    except ValueError as error:
        raise FileError(f"{path} is not the MetroPT-3 table ({error})") from error
    return Sensors(_standardised(rows), Source("MetroPT-3, the CSV of UCI data set 791", _hashes([path])))


def _metropt_npz(paths: list[Path]) -> Sensors:
    (rows,) = arrays(paths[0], "failure_x")
    differs = ("of MetroPT-3 only the 29,961 rows inside the four failures and their 7 analogue sensors",)
    return Sensors(_standardised(rows), Source("MetroPT-3, rows of failures (subset)", _hashes(paths), differs))


# Packer19


def packer19(data: Path | None, per_time: int, seed: int = 0) -> Cells:
    """Cells of the C. elegans embryo over time: an h5ad of GSE126954, the subset `packer19.npz`, or generated cells.

    Args:
        data: The folder.
        per_time: Cells needed in each time window. The subset has 50-dimensional points of few cells and
            two-dimensional points of many; the latter are read if the former are fewer than `2 * per_time`.
        seed: Seed of generated cells.
    """
    if data is None:
        return _in_time(*generated.cells(seed, per_time), Source("generated", differs=("the cells are generated",)))
    return _read_first(
        data,
        "Packer19 cells",
        {
            "*acker*.h5ad": _packer_h5ad,
            "*GSE126954*.h5ad": _packer_h5ad,
            "packer19.npz": lambda paths: _packer_npz(paths, per_time),
        },
    )


def _packer_h5ad(paths: list[Path]) -> Cells:
    try:
        import anndata
    except ImportError as error:
        raise BackendUnavailable(f"an h5ad needs anndata ({error}); pip install 'drainsinkhorn[anndata]'") from error
    data = anndata.read_h5ad(paths[0])
    if "X_pca" not in data.obsm:
        raise FileError(f"{paths[0]} has no obsm['X_pca'] but {list(data.obsm)}; compute 50 components and store them")
    time, group = (_column(data.obs, names, paths[0]) for names in (EMBRYO_TIMES, CELL_TYPES))
    times = _numbers(data.obs[time].to_numpy())
    known = np.isfinite(times)
    points, groups = np.asarray(data.obsm["X_pca"])[known, :50], data.obs[group].to_numpy()[known]
    return _in_time(points, times[known], groups, Source("Packer19, h5ad of GSE126954, X_pca", _hashes(paths)))


def _column(table: Any, names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in table:
            return name
    raise FileError(f"{path}: obs has none of the columns {list(names)}; it has {list(table.columns)}")


def _numbers(values: Array) -> Array:
    """Times as numbers: 400, "400" or "400_minutes"; NaN for what is no time."""

    def number(value: Any) -> float:
        digits = str(value).split("_")[0].split("-")[0].strip("<> ")
        try:
            return float(digits)
        except ValueError:
            return float("nan")

    return np.array([number(value) for value in values])


def _packer_npz(paths: list[Path], per_time: int) -> Cells:
    source = _hashes(paths)
    pca, embryo, names = arrays(paths[0], "pca", "embryo_time", "cell_type")
    if len(pca) >= 2 * per_time:
        differs = ("of Packer19 only 1,805 amphid neurons and their progenitors, in 50 components",)
        return _in_time(pca, embryo, names, Source("Packer19, 1,805 cells in PCA-50 (subset)", source, differs))
    umap, times = arrays(paths[0], "umap", "umap_time")
    known = times > 0
    umap, times = umap[known], times[known]
    differs = ("cells of Packer19 in the authors' two-dimensional UMAP, not in 50 components",)
    return _in_time(umap, times, _blocks(umap), Source("Packer19, 60,255 cells in 2-D UMAP (subset)", source, differs))


def _blocks(points: Array, side: int = 5) -> Array:
    """Assign cells without names to blocks of a grid whose lines are quantiles of the first two coordinates."""
    place = [
        np.searchsorted(np.quantile(points[:, k], np.linspace(0, 1, side + 1)[1:-1]), points[:, k]) for k in (0, 1)
    ]
    return np.array([f"block {i}{j}" for i, j in zip(*place, strict=True)])


def _in_time(points: Array, times: Array, groups: Array, source: Source) -> Cells:
    order = np.argsort(times, kind="stable")
    return Cells(
        np.asarray(points)[order].astype(np.float32), times[order], np.asarray(groups).astype(str)[order], source
    )


# ImageNet-32


def imagenet(data: Path | None, seed: int = 0) -> Features:
    """Principal components of 32 x 32 images: ImageNet-32 as npz, the PCA-500 subset, or generated ones."""
    if data is None:
        return Features(
            _unit_variance(generated.features(seed, COMPONENTS)),
            Source("generated", differs=("features are generated",)),
        )
    return _read_first(
        data,
        "ImageNet-32 images",
        {
            "train_data_batch_*.npz": _imagenet_batches,
            "imagenet200_32px_pca500.npz": _imagenet_subset,
            "train_data_batch_*": _imagenet_pickles,
        },
    )


def _imagenet_pickles(paths: list[Path]) -> Features:
    raise FileError(
        f"{paths[0]} is a pickle, which can run any code when it is read, so it is not; take the npz form of "
        "ImageNet-32 (Imagenet32_train_npz.zip, train_data_batch_1.npz ...) from image-net.org, or convert it "
        "yourself with numpy.savez_compressed('train_data_batch_1.npz', data=batch['data'])"
    )


def _imagenet_batches(paths: list[Path]) -> Features:
    pixels = [arrays(path, "data")[0] for path in paths]
    bad = [(path, part.shape) for path, part in zip(paths, pixels, strict=True) if part.shape[1:] != (3072,)]
    if bad:
        raise FileError(f"{bad[0][0]}: data must be (images, 3072), 32 x 32 pixels in three colours, got {bad[0][1]}")
    images = np.concatenate(pixels)
    mean = images.mean(0, dtype=np.float64)
    parts = np.array_split(images, max(1, len(images) // CHUNK))
    if len(images) <= images.shape[1]:
        vectors = np.linalg.svd(images - mean, full_matrices=False)[2].T
    else:
        vectors = np.linalg.eigh(sum((part - mean).T @ (part - mean) for part in parts))[1][:, ::-1]
    kept = vectors[:, :COMPONENTS].astype(np.float32)
    scores = np.concatenate([(part - mean).astype(np.float32) @ kept for part in parts])
    source = Source(f"ImageNet-32, {len(images)} images, PCA-{COMPONENTS} of them", _hashes(paths))
    return Features(_unit_variance(scores), source)


def _imagenet_subset(paths: list[Path]) -> Features:
    scores, step = arrays(paths[0], "scores_q", "step")
    differs = ("16,400 images of 200 classes, made from Tiny ImageNet, not the 1.28 million of ImageNet-32",)
    source = Source("ImageNet images of 200 classes at 32 x 32, PCA-500 (subset)", _hashes(paths), differs)
    return Features(_unit_variance(scores.astype(np.float32) * float(step)), source)


def _unit_variance(values: Array) -> Array:
    values = values - values.mean(0, dtype=np.float64)
    return (values / np.sqrt(values.var(0).mean())).astype(np.float32)


# LiDAR


def lidar(data: Path | None, seed: int = 0) -> Scans:
    """Consecutive scans: A2D2 npz files, KITTI .bin files, the subset `kitti_0005_lidar.npz`, or a generated street."""
    if data is None:
        return Scans(generated.street(seed), Source("generated", differs=("the scans are of a generated street",)))
    return _read_first(
        data,
        "LiDAR scans",
        {
            "*lidar_front*.npz": _a2d2,
            "a2d2/*.npz": _a2d2,
            "*.bin": _kitti_bins,
            "velodyne_points/data/*.bin": _kitti_bins,
            "kitti_*_lidar.npz": _kitti_npz,
        },
    )


def _scan(points: Array, path: Path) -> Array:
    """Finite points of a scan that are no echo of the sensor itself."""
    if points.ndim != 2 or points.shape[1] < 3:
        raise FileError(f"{path}: a scan is (points, 3), got {points.shape}")
    points = points[:, :3].astype(np.float32)
    return points[np.isfinite(points).all(1) & (np.square(points).sum(1) > 1.0)]


def _a2d2(paths: list[Path]) -> Scans:
    frames = list[Array]()
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            key = next((key for key in SCAN_KEYS if key in file.files), None)
            if key is None:
                raise FileError(f"{path} has none of the arrays {list(SCAN_KEYS)}; it has {sorted(file.files)}")
            frames.append(_scan(file[key], path))
    return Scans(frames, Source(f"A2D2, {len(frames)} scans", _hashes(paths)))


def _kitti_bins(paths: list[Path]) -> Scans:
    frames = list[Array]()
    for path in paths:
        raw = np.fromfile(path, dtype="<f4")
        if raw.size % 4:
            raise FileError(f"{path} is no KITTI scan: {raw.size} numbers are no rows of x, y, z, reflectance")
        frames.append(_scan(raw.reshape(-1, 4), path))
    differs = ("scans of KITTI in place of A2D2",)
    return Scans(frames, Source(f"KITTI, {len(frames)} scans", _hashes(paths), differs))


def _kitti_npz(paths: list[Path]) -> Scans:
    (xyz,) = arrays(paths[0], "xyz")
    differs = ("twelve scans of KITTI, thinned to 32,768 points, in place of A2D2",)
    frames = [_scan(frame, paths[0]) for frame in xyz]
    return Scans(frames, Source("KITTI 2011_09_26_drive_0005, 12 scans (subset)", _hashes(paths), differs))
