"""Row sharding: the same depths and potentials over any number of ranks, and ranks that never disagree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.model.errors import FleetError
from drainsinkhorn.parallel import RowShardedBackend
from tests.conftest import needs

torch = needs("torch")
from tests.fleet.ranks import problems  # noqa: E402  it imports torch

PROGRAM = Path(__file__).with_name("ranks.py")


def run(task: str, size: int, folder: Path) -> list[tuple[int, str]]:
    """Exit code and last words of every rank."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), str(size), folder, task], stderr=subprocess.PIPE, text=True, env=env
        )
        for rank in range(size)
    ]
    ends = [rank.communicate(timeout=100)[1] for rank in ranks]
    return [(rank.returncode, said) for rank, said in zip(ranks, ends, strict=True)]


def found(folder: Path, rank: int = 0) -> dict[str, Any]:
    with np.load(folder / f"{rank}.npz") as saved:
        return dict(saved)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    assert run("dense", 1, folder) == [(0, "")]
    return found(folder)


@pytest.mark.parametrize(("size", "kernels"), [(2, "dense"), (3, "dense"), (2, "streaming")])
def test_ranks_agree_with_one_rank(size: int, kernels: str, alone: dict[str, Any], tmp_path: Path) -> None:
    assert run(kernels, size, tmp_path) == [(0, "")] * size
    first = found(tmp_path)
    assert first.keys() == alone.keys()
    for key, mine in first.items():
        if key.endswith("facts"):
            # Depth, whether it was rescued, status.
            assert mine[3:].tolist() == alone[key][3:].tolist(), key
        elif first[key[:-1] + "facts"][-1] == 0:
            assert mine.dtype == alone[key].dtype
            np.testing.assert_allclose(mine, alone[key], rtol=0, atol=1e-6, err_msg=key)
    for rank in range(1, size):
        other = found(tmp_path, rank)
        assert all(np.array_equal(other[key], first[key], equal_nan=True) for key in first)


def test_one_rank_is_the_reference(alone: dict[str, Any]) -> None:
    for r in ds.solve(problems(), backend="reference", max_depth=60, width=4, warn=False):
        assert alone[f"{r.ticket} facts"][3] == r.depth
        if r.converged:
            np.testing.assert_allclose(alone[f"{r.ticket} f"], r.potentials.f, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_the_contract(size: int, tmp_path: Path) -> None:
    assert run("contract", size, tmp_path) == [(0, "")] * size


def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    *others, (code, _) = run("desert", 3, tmp_path)
    assert time.monotonic() - began < 25, "the others waited for their timeout"
    assert code == -9
    for code, said in others:
        assert code == 1
        assert "another rank has died, failed or fallen silent" in said


def test_ranks_with_different_problems(tmp_path: Path) -> None:
    for code, said in run("differ", 2, tmp_path):
        assert code == 1
        assert "ranks were given different problems" in said


def test_a_rank_without_memory_speaks_for_all(tmp_path: Path) -> None:
    assert run("full", 2, tmp_path) == [(0, "")] * 2
    for rank in range(2):
        assert "not enough memory for this problem alone" in (tmp_path / f"{rank}.txt").read_text()


def test_a_rank_that_runs_out_of_memory_in_a_cycle_ends_and_the_others_notice(tmp_path: Path) -> None:
    """It cannot give its lanes back: the others are in the midst of what all ranks compute together."""
    (code, said), (short, reason) = run("short", 2, tmp_path)
    assert (code, short) == (1, 1)
    assert "FleetError: rank 1 of 2 ran out of memory while all ranks computed together (nothing left)" in reason
    assert "another rank has died, failed or fallen silent" in said


def test_without_a_group() -> None:
    with pytest.raises(FleetError, match="init_process_group"):
        ds.solve(np.zeros((4, 2)), np.ones((4, 2)), eps=1.0, backend=RowShardedBackend())


def test_kernels_that_do_not_exist() -> None:
    with pytest.raises(ds.OptionsError, match='kernels must be "auto", "dense" or "streaming", got \'x\''):
        RowShardedBackend(kernels="x")  # type: ignore[arg-type]
