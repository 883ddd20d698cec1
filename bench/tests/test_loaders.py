"""Every form in which the data of a campaign may come: the public originals, the subsets, generated."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drainsinkhorn.model.errors import FileError
from drainsinkhorn_bench import loaders

RNG = np.random.default_rng(0)


class Trap:
    """Unpickling it would leave a trace."""

    sprung = False

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return setattr, (Trap, "sprung", True)


def test_the_published_csv_of_metropt3(tmp_path: Path):
    names = ["", "timestamp", *loaders.ANALOGUE, "COMP"]
    rows = RNG.normal(loc=5, size=(200, 8))
    text = [",".join(names)] + [
        f"{k},2020-02-01 00:00:{k % 60:02d}," + ",".join(map(str, row)) for k, row in enumerate(rows)
    ]
    path = tmp_path / "MetroPT3(AirCompressor).csv"
    path.write_text("\n".join(text))
    found = loaders.metropt3(tmp_path)
    assert found.rows.shape == (200, 7)
    assert np.allclose(found.rows, (rows[:, :7] - rows[:, :7].mean(0)) / rows[:, :7].std(0), atol=1e-6)
    assert found.source.inputs == {path.name: loaders.sha256(path)}
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="no column 'TP2'"):
        loaders.metropt3(tmp_path)


def test_a_sensor_that_never_moves_stays_finite():
    rows = loaders._standardised(np.column_stack([np.ones(9), np.arange(9.0)]))
    assert np.isfinite(rows).all()


def test_packer19_as_h5ad(tmp_path: Path):
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    count = 60
    obs = pandas.DataFrame(
        {"embryo.time": RNG.permutation(count).astype(float), "cell.type": RNG.choice(["a", "b"], count)},
        index=[f"cell {k}" for k in range(count)],
    )
    obs.loc["cell 3", "embryo.time"] = np.nan
    data = anndata.AnnData(X=np.zeros((count, 1), np.float32), obs=obs)
    data.obsm["X_pca"] = RNG.normal(size=(count, 70))
    data.write_h5ad(tmp_path / "packer2019.h5ad")
    found = loaders.packer19(tmp_path, 10)
    assert found.points.shape == (count - 1, 50)
    assert (np.diff(found.times) >= 0).all()
    first = int(np.nanargmin(obs["embryo.time"].to_numpy()))
    assert np.allclose(found.points[0], data.obsm["X_pca"][first, :50], atol=1e-6)
    del data.obsm["X_pca"]
    data.write_h5ad(tmp_path / "packer2019.h5ad")
    with pytest.raises(FileError, match="X_pca"):
        loaders.packer19(tmp_path, 10)


def test_the_packer19_subset_takes_many_cells_from_the_plane(tmp_path: Path):
    np.savez(
        tmp_path / "packer19.npz",
        pca=RNG.normal(size=(40, 50)), embryo_time=np.arange(40.0), cell_type=np.array(["x"] * 40),
        umap=RNG.normal(size=(300, 2)), umap_time=RNG.choice([0, 300, 400], 300),
    )  # fmt: skip
    assert loaders.packer19(tmp_path, 20).points.shape == (40, 50)
    many = loaders.packer19(tmp_path, 100)
    assert many.points.shape[1] == 2
    assert set(many.times) == {300, 400}
    assert len(set(many.groups)) > 5
    assert any("UMAP" in sentence for sentence in many.source.differs)


@pytest.mark.parametrize("given", [400, "400", "400_minutes", "400-450", "> 400"])
def test_times_are_read_from_what_tables_hold(given: Any):
    assert loaders._numbers(np.array([given, "mixed"], dtype=object)).tolist()[0] == 400


def test_imagenet_batches_are_turned_to_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loaders, "COMPONENTS", 50)
    images = RNG.integers(0, 256, size=(60, 3072), dtype=np.uint8)
    for part, some in enumerate((images[:35], images[35:]), 1):
        np.savez(tmp_path / f"train_data_batch_{part}.npz", data=some, labels=np.zeros(len(some)))
    found = loaders.imagenet(tmp_path)
    assert found.values.shape == (60, 50)
    assert np.allclose(found.values.mean(0), 0, atol=1e-5)
    assert found.values.var(0).mean() == pytest.approx(1, rel=1e-3)
    centred = images - images.mean(0)
    spectrum = np.linalg.svd(centred, compute_uv=False)[:50] ** 2
    ours = found.values.astype(float).var(0)
    assert np.allclose(ours / ours[0], spectrum / spectrum[0], rtol=1e-3)
    assert len(found.source.inputs) == 2


def test_pickled_images_are_refused_and_never_read(tmp_path: Path):
    (tmp_path / "train_data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(FileError, match=r"is a pickle.*npz"):
        loaders.imagenet(tmp_path)
    np.savez(tmp_path / "train_data_batch_1.npz", data=np.array([Trap()], dtype=object))
    with pytest.raises(FileError, match="plain arrays"):
        loaders.imagenet(tmp_path)
    assert not Trap.sprung


def test_scans_of_kitti_and_of_a2d2(tmp_path: Path):
    points = RNG.uniform(2, 30, size=(50, 4)).astype("<f4")
    points[0, :3] = 0  # The sensor's own echo.
    (tmp_path / "kitti").mkdir()
    for frame in range(2):
        points.tofile(tmp_path / "kitti" / f"{frame:010d}.bin")
    found = loaders.lidar(tmp_path / "kitti")
    assert [frame.shape for frame in found.frames] == [(49, 3)] * 2
    assert np.array_equal(found.frames[0], points[1:, :3])
    np.savez(tmp_path / "x_lidar_frontcenter_1.npz", pcloud_points=points[:, :3])
    assert loaders.lidar(tmp_path).frames[0].shape == (49, 3)
    np.savez(tmp_path / "x_lidar_frontcenter_1.npz", other=points)
    with pytest.raises(FileError, match="pcloud_points"):
        loaders.lidar(tmp_path)
    (tmp_path / "kitti" / "0000000002.bin").write_bytes(b"\0" * 12)
    with pytest.raises(FileError, match="no rows of x, y, z, reflectance"):
        loaders.lidar(tmp_path / "kitti")


LOADERS: dict[str, Callable[[Path | None], Any]] = {
    "metropt3": loaders.metropt3,
    "packer19": lambda data: loaders.packer19(data, 100),
    "imagenet": loaders.imagenet,
    "lidar": loaders.lidar,
}


@pytest.mark.parametrize("name", LOADERS)
def test_generated_data_is_the_same_every_time_and_says_so(name: str):
    first, second = LOADERS[name](None), LOADERS[name](None)
    assert first.source.text == "generated"
    assert first.source.differs
    assert first.source.inputs == {}
    values = [first_array(data) for data in (first, second)]
    assert np.array_equal(values[0], values[1])
    assert np.isfinite(values[0]).all()


def first_array(data: Any) -> Any:
    first = getattr(data, next(iter(data.__dataclass_fields__)))
    return first[0] if isinstance(first, list) else first


@pytest.mark.parametrize("name", LOADERS)
def test_a_folder_without_the_data_is_told_what_was_looked_for(name: str, tmp_path: Path):
    with pytest.raises(FileError, match=r"expected one of .*npz.*without --data"):
        LOADERS[name](tmp_path)
