"""Groups: minibatches of all ranks coupled as one give, in union, what one process gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.model.errors import FleetError
from tests.conftest import needs

torch = needs("torch")

from drainsinkhorn.flow import CoupledBatches, OTPlanSampler, couple_minibatches  # noqa: E402
from tests.apps.flow_ranks import SETTINGS, joined, minibatch  # noqa: E402

PROGRAM = Path(__file__).with_name("flow_ranks.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of three ranks has saved."""
    size, folder = 3, tmp_path_factory.mktemp("ranks")
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    running = [
        subprocess.Popen([sys.executable, PROGRAM, str(rank), str(size), folder], stderr=subprocess.PIPE, env=env)
        for rank in range(size)
    ]
    said = [process.communicate(timeout=100)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * size, said
    saved = []
    for rank in range(size):
        with np.load(folder / f"{rank}.npz", allow_pickle=True) as arrays:
            saved.append(dict(arrays))
    return saved


def union(ranks: list[dict[str, Any]], name: str) -> Any:
    return np.concatenate([rank[name] for rank in ranks])


def test_the_union_over_ranks_is_the_result_of_one_process(ranks: list[dict[str, Any]]) -> None:
    batches = [joined(len(ranks), place) for place in range(3)]
    alone = couple_minibatches([batch[:2] for batch in batches], seed=3, **SETTINGS)
    within = couple_minibatches(batches, by_class=True, **SETTINGS)
    for k, (plain, by_class) in enumerate(zip(alone, within, strict=True)):
        assert np.array_equal(union(ranks, f"plain {k} 0"), plain.x0)
        assert np.array_equal(union(ranks, f"plain {k} 1"), plain.x1)
        assert np.array_equal(union(ranks, f"class {k} 0"), by_class.x0)
        assert np.array_equal(union(ranks, f"class {k} 1"), by_class.x1)
        assert np.array_equal(union(ranks, f"class {k} label"), by_class.label)
        for rank, saved in enumerate(ranks):
            assert len(saved[f"plain {k} 0"]) == len(saved[f"class {k} 0"]) == len(minibatch(rank, k)[0])


def test_minibatches_coupled_ahead(ranks: list[dict[str, Any]]) -> None:
    source = (joined(len(ranks), place)[:3] for place in range(7))
    alone = list(CoupledBatches(source, window=2, **SETTINGS))
    assert len(alone) == 7
    for k, pairs in enumerate(alone):
        assert np.array_equal(union(ranks, f"ahead {k} 0"), pairs.x0)
        assert np.array_equal(union(ranks, f"ahead {k} 1"), pairs.x1)
        assert np.array_equal(union(ranks, f"ahead {k} label"), pairs.label)


@pytest.mark.parametrize("method", ["sinkhorn", "exact"])
def test_the_sampler(ranks: list[dict[str, Any]], method: str) -> None:
    if method == "exact":
        needs("ot")
    x0, x1, *_ = joined(len(ranks), 0)
    plan = OTPlanSampler(method, reg=0.5).get_map(x0, x1)
    for saved in ranks:
        assert np.array_equal(saved[f"{method} map"], plan)
    assert [len(saved[f"{method} 0"]) for saved in ranks] == [12 + 5 * rank for rank in range(len(ranks))]
    drawn = [union(ranks, f"{method} {part}") for part in "01"]
    # Every pair is one of the plan, and some cross from one rank to another.
    places = [
        (points[:, None] == every.numpy()).all(-1).argmax(1) for points, every in zip(drawn, (x0, x1), strict=True)
    ]
    assert (plan[tuple(places)] > 0).all()
    owners = [np.repeat(range(len(ranks)), sizes)[at] for sizes, at in zip(sizes_of(len(ranks)), places, strict=True)]
    assert (owners[0] != owners[1]).any()
    paths = union(ranks, f"{method} path")
    assert np.array_equal(paths[:, 0], x0)


def sizes_of(size: int) -> list[list[int]]:
    """Numbers of sources, and of targets, of every rank."""
    return [[len(minibatch(rank, 0)[side]) for rank in range(size)] for side in (0, 1)]


def test_draws_without_replacement_are_distinct_over_all_ranks(ranks: list[dict[str, Any]]) -> None:
    drawn = union(ranks, "distinct").tolist()
    assert len(drawn) == len(set(map(tuple, drawn))) == sum(12 + 5 * rank for rank in range(len(ranks)))


def test_every_rank_learns_of_an_error_of_one(ranks: list[dict[str, Any]]) -> None:
    *others, last = [saved["said"].item() for saved in ranks]
    size = len(ranks)
    counts = [3] * (size - 1) + [2]
    for said in (*others, last):
        assert said["count"].endswith(f"have {counts} minibatches; pass the same number on every rank")
        name = f"minibatch 0 of rank {size - 1} has torch.float"
        assert said["dtype"].startswith(f"ProblemError: {name}")
        assert "only the number of points may differ" in said["width"]
        assert "pass one label for each point" in said["label"]
    assert last["entry"] == (
        "ProblemError: x1 of minibatch 0 must be a torch tensor, got ndarray; write torch.as_tensor(...), with numbers "
        "in place of names"
    )
    assert last["sampler"].startswith("ProblemError: x0 must be a torch tensor")
    assert last["read"] == "OSError: the disk is gone"
    for said in others:
        begin = f"FleetError: rank {size - 1} of {size} has failed to read"
        assert said["entry"].startswith(f"{begin} minibatch 0: ProblemError: x1 of minibatch 0 must be")
        assert said["sampler"].startswith(f"{begin} the minibatch: ProblemError: x0 must be")
        assert said["read"] == f"{begin} minibatch 1: OSError: the disk is gone"


def test_without_a_group() -> None:
    with pytest.raises(FleetError, match="init_process_group"):
        couple_minibatches([minibatch(0, 0)], group="world", **SETTINGS)
    with pytest.raises(ds.ProblemError, match=r"group must be \"world\" or a group of torch.distributed, got 'gloo'"):
        couple_minibatches([minibatch(0, 0)], group="gloo", **SETTINGS)
