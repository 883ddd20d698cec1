"""Clouds of points from files and folders: the problems are those that the library makes of the same arrays."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import drainsinkhorn as ds
from drainsinkhorn.cli.main import app
from tests.conftest import needs

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(12, 3)), rng.normal(size=(9, 3)) + 1
FRAMES = [rng.normal(size=(8 + k, 3)).astype(np.float32) for k in range(11)]


def drain(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "250"})


def solved(out: Path, *arguments: str | Path, eps: str = "0.5") -> dict[str, Any]:
    done = drain("solve", *arguments, "--eps", eps, "-o", out, "--backend", "reference")
    assert done.exit_code == 0, done.output
    with np.load(out) as archive:
        return dict(archive)


def write_pcd(path: Path, points: Any, data: str = "binary") -> Path:
    """A PCD file with a colour and padding beside the coordinates."""
    head = "# .PCD v0.7\nVERSION 0.7\nFIELDS rgb x y z _\nSIZE 1 4 4 4 1\nTYPE U F F F U\nCOUNT 3 1 1 1 2\n"
    head += f"WIDTH {len(points)}\n"
    head += f"HEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(points)}\nDATA {data}\n"
    if data == "binary":
        rows = b"".join(struct.pack("<3B3f2B", 1, 2, 3, *map(float, point), 0, 0) for point in points)
    else:
        rows = "".join(f"1 2 3 {x!r} {y!r} {z!r} 0 0\n" for x, y, z in points.tolist()).encode()
    path.write_bytes(head.encode() + rows)
    return path


def write(path: Path, points: Any) -> Path:
    """Points in the format of the suffix."""
    if path.suffix == ".npy":
        np.save(path, points)
    elif path.suffix == ".csv":
        np.savetxt(path, points, delimiter=",", fmt="%.17g", header="x,y,z", comments="")
    elif path.suffix == ".bin":
        np.c_[points, np.ones(len(points))].astype("<f4").tofile(path)
    elif path.suffix == ".pcd":
        write_pcd(path, points)
    else:
        pd = needs("pandas")
        needs("pyarrow")
        pd.DataFrame(np.asarray(points), columns=["x", "y", "z"], index=range(5, 5 + len(points))).to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".bin", ".pcd"])
def test_two_files_are_two_sides(suffix: str, tmp_path: Path) -> None:
    x, y = (points.astype(np.float32) for points in (X, Y))
    found = solved(tmp_path / "out.npz", write(tmp_path / f"x{suffix}", x), write(tmp_path / f"y{suffix}", y))
    # Text and tables have no float32.
    wide = suffix == ".csv"
    truth = ds.solve(*((x, y) if not wide else (x.astype(float), y.astype(float))), eps=0.5, backend="reference")
    assert np.array_equal(found["f"], truth.potentials.f)
    assert found["f"].dtype == (np.float64 if wide else np.float32)


def test_parquet(tmp_path: Path) -> None:
    needs("pyarrow")
    found = solved(tmp_path / "out.npz", write(tmp_path / "x.parquet", X), write(tmp_path / "y.parquet", Y))
    assert np.array_equal(found["f"], ds.solve(X, Y, eps=0.5, backend="reference").potentials.f)


def test_stacks_and_shared_clouds(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.stack([X, X + 1]))
    np.save(tmp_path / "y.npy", Y)
    found = solved(tmp_path / "out.npz", tmp_path / "x.npy", tmp_path / "y.npy")
    assert np.array_equal(found["g"], ds.solve(np.stack([X, X + 1]), Y, eps=0.5, backend="reference").potentials.g)


def test_folders_pair_their_files_in_natural_order(tmp_path: Path) -> None:
    for side, shift in (("a", 0), ("b", 1)):
        (tmp_path / side).mkdir()
        for k, frame in enumerate(FRAMES):
            write(tmp_path / side / f"frame{k}.bin", frame + shift)
        (tmp_path / side / "notes.txt").write_text("no cloud")
    found = solved(tmp_path / "out.npz", tmp_path / "a", tmp_path / "b")
    assert found["f_sizes"].tolist() == [len(frame) for frame in FRAMES]
    truth = ds.solve(FRAMES, [frame + 1 for frame in FRAMES], eps=0.5, backend="reference")
    assert np.array_equal(found["f"], np.concatenate([result.potentials.f for result in truth]))


@pytest.mark.parametrize("given", ["folder", "files", "stack"])
def test_consecutive_clouds(given: str, tmp_path: Path) -> None:
    frames = [frame[:8] for frame in FRAMES[:4]]
    sources = [write(tmp_path / f"{k}.pcd", frame) for k, frame in enumerate(frames)]
    if given == "folder":
        sources = [tmp_path]
    if given == "stack":
        np.save(tmp_path / "clip.npy", np.stack(frames))
        sources = [tmp_path / "clip.npy"]
    found = solved(tmp_path / "out.npz", *sources, "--consecutive")
    truth = ds.solve(frames[:-1], frames[1:], eps=0.5, backend="reference")
    assert np.array_equal(found["f"], truth.potentials.f)


CSV = ("1,2\n3,4\n", "1;2\n3;4\n", "1\t2\n3\t4", "1 2\n3 4\n", "\ufeffa,b\n1,2\n3,4\n", '"a","b"\n"1","2"\n3,4\n')


@pytest.mark.parametrize("text", CSV)
def test_csv_of_any_kind(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    np.save(tmp_path / "y.npy", Y[:, :2])
    found = solved(tmp_path / "out.npz", tmp_path / "x.csv", tmp_path / "y.npy")
    truth = ds.solve(np.array([[1.0, 2.0], [3.0, 4.0]]), Y[:, :2], eps=0.5, backend="reference")
    assert np.array_equal(found["f"], truth.potentials.f)


def test_pcd_in_ascii_and_without_invalid_returns(tmp_path: Path) -> None:
    points = X.astype(np.float32)
    holes = np.insert(points, 3, [np.nan, 0, 0], axis=0)
    binary = solved(tmp_path / "b.npz", write_pcd(tmp_path / "b.pcd", holes), write_pcd(tmp_path / "y.pcd", Y))
    ascii_ = solved(tmp_path / "a.npz", write_pcd(tmp_path / "a.pcd", holes, "ascii"), tmp_path / "y.pcd")
    assert binary["f"].shape == (1, 12)
    assert np.allclose(binary["f"], ascii_["f"], atol=1e-5)


class TestTimePoints:
    @pytest.fixture
    def course(self, tmp_path: Path) -> Path:
        anndata, pd = needs("anndata"), needs("pandas")
        days = ["E9", "E8", "E10"] * 10
        obs = pd.DataFrame({"day": days, "hour": np.repeat([2.0, 1.0], 15)}, index=[f"c{k}" for k in range(30)])
        points = rng.normal(size=(30, 4))
        data = anndata.AnnData(X=rng.normal(size=(30, 6)), obs=obs, obsm={"X_pca": points})
        data.write_h5ad(tmp_path / "cells.h5ad")
        return tmp_path / "cells.h5ad"

    def test_consecutive_time_points(self, course: Path, tmp_path: Path) -> None:
        needs("anndata")
        data = needs("anndata").read_h5ad(course)
        points, hours = data.obsm["X_pca"], data.obs["hour"].to_numpy()
        found = solved(tmp_path / "out.npz", course, "--key", "hour")
        truth = ds.solve(points[hours == 1], points[hours == 2], eps=0.5, backend="reference")
        assert np.array_equal(found["f"], truth.potentials.f)
        assert len(solved(tmp_path / "out.npz", course, "--key", "hour", "--rep", "X")["f"][0]) == 15

    def test_orders_of_texts(self, course: Path, tmp_path: Path) -> None:
        done = drain("solve", course, "--key", "day", "--eps", "1", "-o", tmp_path / "o.npz")
        assert done.exit_code == 0
        assert "in the order ['E8', 'E9', 'E10']" in done.output
        assert "--times" in done.output
        found = solved(tmp_path / "out.npz", course, "--key", "day", "--times", "E10,E8")
        assert found["f"].shape == (1, 10)
        done = drain("solve", course, "--key", "day", "--times", "E7", "--eps", "1", "-o", tmp_path / "o.npz")
        assert done.exit_code == 2
        assert "time point 'E7' has no cells" in done.output

    def test_what_is_missing(self, course: Path, tmp_path: Path) -> None:
        for words, message in (
            ([], "needs --key"),
            (["--key", "week"], "it has no entry 'obs/week'"),
            (["--key", "day", "--rep", "X_umap"], "it has no entry 'obsm/X_umap'"),
            (["--key", "day", "--read-limit", "1e-7"], "--read-limit"),
        ):
            done = drain("solve", course, *words, "--eps", "1", "-o", tmp_path / "o.npz")
            assert done.exit_code == 2
            assert message in done.output

    def test_links_are_not_followed(self, course: Path, tmp_path: Path) -> None:
        h5py = needs("h5py")
        with h5py.File(course, "a") as file:
            file["obsm/far"] = h5py.ExternalLink(str(course), "/obsm/X_pca")
        done = drain("solve", course, "--key", "hour", "--rep", "far", "--eps", "1", "-o", tmp_path / "o.npz")
        assert done.exit_code == 2
        assert "is a link" in done.output


class TestWants:
    def test_everything_is_what_the_library_computes(self, tmp_path: Path) -> None:
        x, y = rng.normal(size=(3, 12, 2)), rng.normal(size=(3, 9, 2))
        np.savez(tmp_path / "in.npz", x=x, y=y, eps=[0.5, 1.0, -1.0], f=np.zeros((3, 12)), g=np.zeros((3, 9)))
        out, wants = tmp_path / "out.npz", "cost,divergence, map,matches"
        done = drain("solve", tmp_path / "in.npz", "-o", out, "--want", wants, "--json")
        assert done.exit_code == 1
        report = json.loads(done.stdout)
        assert (report["problems"], report["converged"]) == (3, 2)
        with np.load(tmp_path / "out.npz") as archive:
            found = dict(archive)
        truth = ds.solve(x[:2], y[:2], eps=[0.5, 1.0], init=(np.zeros((2, 12)), np.zeros((2, 9))))
        costs = ds.transport_cost(truth)
        for name in ("transport", "kl", "entropic", "dual"):
            assert found[name].tolist()[:2] == [getattr(cost, name) for cost in costs]
            assert np.isnan(found[name][2])
        assert np.array_equal(found["map"], np.concatenate(ds.barycentric_map(truth)))
        assert np.array_equal(found["matches"], np.concatenate(ds.top_match(truth)))
        assert found["f_sizes"].tolist() == [12, 12, 0]
        assert found["divergence"][:2] == pytest.approx(ds.divergence(x[:2], y[:2], eps=[0.5, 1.0]).values, rel=1e-2)
        assert np.isnan(found["divergence"][2])
        # drain explain reads such a file.
        assert drain("explain", tmp_path / "out.npz").exit_code == 0

    def test_equal_sizes_are_stacked(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.stack([X, X + 1]))
        np.save(tmp_path / "y.npy", Y)
        found = solved(tmp_path / "o.npz", tmp_path / "x.npy", tmp_path / "y.npy", "--want", "map,matches,divergence")
        assert (found["map"].shape, found["matches"].shape) == ((2, 12, 3), (2, 12))
        # Clouds with themselves are counted apart.
        assert len(found["ticket"]) == 2
        assert found["divergence"].shape == (2,)

    def test_impossible_wants_fail_before_the_work(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "dense.npz", cost=rng.uniform(size=(2, 4, 5)), eps=0.5)
        for names, message in (("map", "dense cost"), ("divergence", "dense cost"), ("plan", "want 'plan' is unknown")):
            done = drain("solve", tmp_path / "dense.npz", "-o", tmp_path / "out.npz", "--want", names)
            assert done.exit_code == 2
            assert message in done.output
        assert drain("solve", tmp_path / "dense.npz", "-o", tmp_path / "out.npz", "--want", "cost").exit_code == 0


class TestDistance:
    def test_a_pair(self, tmp_path: Path) -> None:
        write(tmp_path / "x.npy", X)
        write(tmp_path / "y.npy", Y)
        truth = ds.divergence(X, Y, eps=0.5)
        done = drain("distance", tmp_path / "x.npy", tmp_path / "y.npy", "--eps", "0.5")
        assert done.exit_code == 0
        assert float(done.stdout) == pytest.approx(float(truth.values[0]))
        done = drain("distance", tmp_path / "x.npy", tmp_path / "y.npy", "--eps", "0.5", "--json")
        (pair,) = json.loads(done.stdout)["pairs"]
        assert pair["divergence"] == pytest.approx(float(truth.values[0]))
        assert (pair["n"], pair["m"], pair["eps"], pair["converged"]) == (12, 9, 0.5, True)
        for name, part in zip(("xy", "xx", "yy"), truth.parts(0), strict=True):
            assert pair["problems"][name]["row"] == part.residual.row
            assert pair["problems"][name]["depth"] == part.depth

    def test_many_pairs_and_failures(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.stack([X, X * np.nan]))
        np.save(tmp_path / "y.npy", Y)
        done = drain("distance", tmp_path / "x.npy", tmp_path / "y.npy", "--eps", "0.5")
        assert done.exit_code == 1
        assert done.stdout.splitlines()[1] == "-  not converged"
        assert "x[0, 0] is nan" in done.output
        assert drain("distance", tmp_path / "x.npy").exit_code == 2

    def test_each_line_names_its_files(self, tmp_path: Path) -> None:
        frames = tmp_path / "frames"
        frames.mkdir()
        for place in (10, 2, 1):
            np.save(frames / f"f{place}.npy", X + place)
        done = drain("distance", frames, "--consecutive", "--eps", "0.5")
        assert [line.split("  ")[1] for line in done.stdout.splitlines()] == ["f1.npy f2.npy", "f2.npy f10.npy"]
        np.save(tmp_path / "y.npy", Y)
        done = drain("distance", frames, tmp_path / "y.npy", "--eps", "0.5")
        assert [line.split("  ")[1] for line in done.stdout.splitlines()] == [f"f{n}.npy y.npy" for n in (1, 2, 10)]


class TestArguments:
    def test_what_does_not_go_together(self, tmp_path: Path) -> None:
        write(tmp_path / "x.npy", X)
        np.savez(tmp_path / "in.npz", x=X, y=Y, eps=1.0)
        (tmp_path / "empty").mkdir()
        x, whole = tmp_path / "x.npy", tmp_path / "in.npz"
        for words, message in (
            ([x], "1 files or folders were given"),
            ([x, x, x], "--consecutive"),
            ([x, "--consecutive"], "at least two"),
            ([whole, x], "pass it alone"),
            ([whole, "--consecutive"], "does not go with an .npz file"),
            ([x, tmp_path / "y.las"], "unknown suffix '.las'; clouds are read from .npy, .csv"),
            ([x, tmp_path / "empty"], "has no files of clouds"),
            ([x, tmp_path / "no.npy"], "does not exist"),
        ):
            eps = [] if whole in words else ["--eps", "1"]
            done = drain("solve", *words, *eps, "-o", tmp_path / "out.npz")
            assert done.exit_code == 2, words
            assert message in done.output, words
        assert "has an eps of its own" in drain("solve", whole, "--eps", "1", "-o", tmp_path / "out.npz").output

    def test_an_output_within_a_folder_of_inputs(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        before = write(tmp_path / "a" / "0.npy", X).read_bytes()
        done = drain("solve", tmp_path / "a", tmp_path / "a", "--eps", "1", "-o", tmp_path / "a" / "0.npy")
        assert "holds the problems" in done.output
        assert (tmp_path / "a" / "0.npy").read_bytes() == before
