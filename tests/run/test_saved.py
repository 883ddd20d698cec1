"""Solutions in files: what is loaded is what was saved, and a damaged file is one error."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.model.errors import FileError
from tests.conftest import needs
from tests.outside.costs import Uphill

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 2)), RNG.normal(size=(9, 2))
DROPPED = {"problem", "validate", "emitted", "residual", "backend", "warns"}


def mixed() -> list[ds.Problem[Any]]:
    weights = RNG.dirichlet(np.ones(12))
    return [
        ds.Problem(x=X, y=Y, eps=0.5),
        ds.Problem(x=np.float32(X[:5]), y=np.float32(Y), eps=ds.relative(0.1), tol=1e-5),
        ds.Problem(x=X, y=Y, a=weights, eps=0.5, cost=ds.Cost("euclidean", 2.0)),
        ds.Problem(cost=RNG.uniform(size=(4, 6)), eps=0.3),
        ds.Problem(x=X, y=Y, eps=-1.0),
        ds.Problem(x=X, y=Y, eps=1e-4, init="zero"),
    ]


SOFT = [ds.Problem(x=X, y=Y, eps=0.5, rho=0.7), ds.Problem(x=X, y=Y[:4], a=np.full(12, 0.3), eps=0.5, rho=(2.0, None))]


def test_prices_of_marginals_come_back(tmp_path: Path) -> None:
    solution = ds.solve([*SOFT, ds.Problem(x=X, y=Y, eps=0.5)], backend="reference")
    assert solution.converged
    solution.save(tmp_path / "solution.npz")
    loaded = ds.Solution.load(str(tmp_path / "solution.npz"))
    check_same(loaded, solution)
    assert [result.problem.rho for result in loaded] == [(0.7, 0.7), (2.0, np.inf), None]


def check_same(loaded: ds.Solution[Any], saved: ds.Solution[Any]) -> None:
    assert len(loaded) == len(saved)
    for one, other in zip(loaded, saved, strict=True):
        for field in dataclasses.fields(one):
            if field.name not in DROPPED:
                mine, theirs = getattr(one, field.name), getattr(other, field.name)
                assert mine == theirs or (mine != mine and theirs != theirs), field.name
        assert repr(one.residual) == repr(other.residual)
        assert one.backend.name == other.backend.name
        if other.emitted is not None:
            assert np.array_equal(one.potentials.f, np.asarray(other.potentials.f))
            assert np.array_equal(one.potentials.g, np.asarray(other.potentials.g))
            assert np.allclose(one.plan(), other.plan(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_everything_comes_back(backend: str, tmp_path: Path) -> None:
    solution = ds.solve(mixed(), backend=backend, max_depth=20, width=2, warn=False)
    assert {status.name for status in solution.counts} == {"CONVERGED", "INVALID", "DEPTH_LIMIT"}
    solution.save(tmp_path / "solution.npz")
    loaded = ds.Solution.load(str(tmp_path / "solution.npz"))
    with warnings.catch_warnings(action="ignore", category=ds.ConvergenceWarning):
        check_same(loaded, solution)
    for name in ("slots", "static_slots", "removed_slots", "survival", "widths", "depths", "choices", "padding"):
        assert getattr(loaded.ledger, name) == getattr(solution.ledger, name), name
    assert loaded.ledger.rescue is not None
    assert loaded.ledger.rescue.slots == solution.ledger.rescue.slots
    assert repr(loaded) == repr(solution)
    assert loaded[0].problem.x is loaded[2].problem.x, "an array that problems share is stored once"
    assert len(list(loaded.to_frame()["status"])) == 6
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").stat().st_size == pytest.approx((tmp_path / "solution.npz").stat().st_size, rel=0.1)


def test_stacks_of_torch_come_back_as_numpy(tmp_path: Path) -> None:
    torch = needs("torch")
    x = torch.randn(5, 20, 3, generator=torch.Generator().manual_seed(0))
    solution = ds.solve(x, x + 1, eps=0.5, backend="reference")
    solution.save(tmp_path / "solution.npz")
    check_same(loaded := ds.Solution.load(tmp_path / "solution.npz"), solution)
    assert loaded.potentials.f.dtype == np.float32


def test_no_problems(tmp_path: Path) -> None:
    ds.solve([], backend="reference").save(tmp_path / "solution.npz")
    assert len(ds.Solution.load(tmp_path / "solution.npz")) == 0


def test_what_a_file_cannot_hold(tmp_path: Path) -> None:
    solution = ds.solve([ds.Problem(x=X, y=Y, eps=0.5, cost=Uphill(1.0))], backend="reference")
    with pytest.raises(FileError, match="problem 0 has a cost of your own"):
        solution.save(tmp_path / "solution.npz")
    with pytest.raises(FileError, match="cannot be written"):
        ds.solve(X, Y, backend="reference").save(tmp_path / "missing" / "solution.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": np.array(2)}, "has format 2"),
        ({"account": np.array("{}")}, "damaged solution: KeyError"),
        ({"account": np.array("[" * 100_000)}, "damaged solution"),
        ({"in_x_places": np.array([7])}, "damaged solution: IndexError"),
        ({"in_x_shapes": np.array([[5, 5]])}, "damaged solution: ValueError"),
        ({"status": np.array(["MARVELLOUS"])}, "damaged solution: KeyError"),
        ({"ticket": np.array([3])}, "its tickets are not 0 to 0"),
    ],
)
def test_damage_is_one_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "solution.npz"
    ds.solve(X, Y, backend="reference").save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **{**arrays, **change})
    with pytest.raises(FileError, match=message):
        ds.Solution.load(path)


def test_other_files_say_what_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    with pytest.raises(FileError, match=r"Solution\.save did not write it"):
        ds.Solution.load(tmp_path / "in.npz")
    with pytest.raises(FileError, match="does not exist"):
        ds.Solution.load(tmp_path / "none.npz")
