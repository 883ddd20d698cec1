"""What only the compiled CPU backend promises: memory, precision, threads, announcements."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend, resources
from drainsinkhorn.backends.cpu import pack as cpu_pack
from drainsinkhorn.backends.cpu.resources import MemoryBlock
from drainsinkhorn.run.validate import validate


def clouds(n: int, m: int | None = None, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)).astype("f4"), (rng.normal(size=(m or n, 3)) + 0.5).astype("f4")


PEAK = """
import resource, sys, numpy as np, drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
n, depth = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
x, y = rng.normal(size=(n, 3)).astype("f4"), (rng.normal(size=(n, 3)) + 0.5).astype("f4")
ds.solve(x[:200], y[:200], eps=0.5, backend=CpuBackend(representation="streaming"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = ds.solve(x, y, eps=0.5, max_depth=depth, rescue=False, warn=False)[0]
print(result.arithmetic, result.depth, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, sep=";")
"""


@pytest.mark.parametrize(("n", "depth"), [(20_000, 3), (65_536, 1)])
def test_large_problems_stream_in_little_memory(n: int, depth: int) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, str(n), str(depth)], capture_output=True, text=True, check=True)
    arithmetic, ran, megabytes = done.stdout.strip().split(";")
    assert arithmetic == "float32, float64 where needed, streaming"
    assert int(ran) == depth
    assert float(megabytes) < 100


def test_precision_follows_tol() -> None:
    x, y = clouds(60, 50)
    assert [ds.solve(x, y, eps=0.5, tol=tol)[0].arithmetic for tol in (1e-3, 1e-7)] == [
        "float32, cached",
        "float64, cached",
    ]


def test_streaming_climbs_to_float64_and_is_true() -> None:
    from drainsinkhorn.testing import marginal_errors

    x, y = clouds(300)
    backend = CpuBackend(representation="streaming")
    for tol in (1e-3, 1e-6, 1e-9):
        result = ds.solve(x, y, eps=0.3, tol=tol, backend=backend)[0]
        assert result.converged
        assert max(marginal_errors(result.problem, result.potentials)) <= tol


def test_representations_agree() -> None:
    x, y = clouds(400, 300)
    found = [
        ds.solve(x, y, eps=0.3, tol=1e-8, backend=backend)[0].potentials
        for backend in ("reference", CpuBackend(), CpuBackend(representation="streaming"))
    ]
    for other in found[1:]:
        assert np.abs(found[0].f - other.f - (found[0].f - other.f).mean()).max() < 1e-6


def test_a_dense_cost_is_cached_whatever_was_asked() -> None:
    cost = np.random.default_rng(0).uniform(size=(30, 40))
    result = ds.solve(cost=cost, eps=0.1, backend=CpuBackend(representation="streaming"))[0]
    assert result.arithmetic == "float32, cached"
    assert result.converged


def test_concurrent_solves_do_not_disturb_each_other() -> None:
    alone = [ds.solve(*clouds(150, 120, seed), eps=0.2)[0].potentials.f for seed in range(6)]
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        found[seed] = ds.solve(*clouds(150, 120, seed), eps=0.2)[0].potentials.f

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[seed], alone[seed]) for seed in range(6))


def test_a_long_compilation_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow:
        def __init__(self, *_: object) -> None:
            threading.Event().wait(2.5)

        def verify(self, *_: object, **__: object) -> None:
            pass

    monkeypatch.setattr(cpu_pack, "StreamingPack", Slow)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="drainsinkhorn"):
        cpu_pack.compile_kernels.__wrapped__("streaming")
    assert "compiling CPU kernels (streaming), once for this machine" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="drainsinkhorn"):
        cpu_pack.compile_kernels.__wrapped__("streaming")
    assert not caplog.text, "kernels that are on disk are loaded, however long that takes"


def test_stacks_go_through_the_door_at_once_and_bad_ones_one_by_one() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 8, 2)), rng.normal(size=(50, 8, 2))
    whole = ds.solve(x, y, eps=0.5)
    single = [ds.solve([ds.Problem(x=x[i], y=y[i], eps=0.5)])[0] for i in (0, 17)]
    assert np.array_equal(whole[17].potentials.f, single[1].potentials.f)
    x[3, 2, 1] = np.nan
    partly = ds.solve(x, y, eps=0.5, warn=False)
    assert partly.counts == {ds.Status.INVALID: 1, ds.Status.CONVERGED: 49}
    assert "x[2, 1] is nan" in partly[3].message
    assert np.array_equal(partly[17].potentials.f, whole[17].potentials.f)
    edited = ds.problems(x, y, eps=0.5)
    edited[3] = ds.Problem(x=y[3], y=y[4], eps=0.5)
    assert ds.solve(edited).converged
    mixed = ds.solve(x[:3], y[:3], eps=[0.5, -1.0, 0.5], warn=False)
    assert [r.status.name for r in mixed] == ["CONVERGED", "INVALID", "CONVERGED"]


def test_the_memory_of_retired_lanes_is_reused_and_bounded() -> None:
    x, y = clouds(700, 600)
    for _ in range(3):
        ds.solve([ds.Problem(x=x, y=y, eps=0.5 + 0.01 * i) for i in range(20)], width=4)
    assert 0 < MemoryBlock.idle_bytes <= resources.POOL_BYTES
    assert MemoryBlock.idle_bytes == sum(size * len(blocks) for size, blocks in MemoryBlock.idle.items())


class Interrupting(dict[int, Any]):
    """A pool of memory in which a garbage collection frees another block whenever the pool is read or filled."""

    def __init__(self, others: list[MemoryBlock]) -> None:
        super().__init__()
        self.others = others

    def setdefault(self, key: int, default: Any = None) -> Any:
        self.others.clear()
        return super().setdefault(key, default)

    def get(self, key: int, default: Any = None) -> Any:
        self.others.clear()
        return super().get(key, default)


@pytest.mark.parametrize("when", ["given up", "taken"])
def test_a_block_may_be_collected_while_the_pool_of_memory_changes(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A collection may free a block within a method of another one, on the same thread."""
    blocks = [MemoryBlock(10_000) for _ in range(3)]
    size, others = blocks[0].size, blocks[1:]
    del blocks[1:]
    monkeypatch.setattr(resources, "POOL_BYTES", size)
    monkeypatch.setattr(MemoryBlock, "idle", Interrupting(others))
    monkeypatch.setattr(MemoryBlock, "idle_bytes", 0)
    if when == "given up":
        blocks.clear()
    else:
        blocks.append(MemoryBlock(10_000))
    assert not others
    assert MemoryBlock.idle_bytes == size * len(MemoryBlock.idle.get(size, [])) <= resources.POOL_BYTES
    assert not MemoryBlock.lock.locked()


def test_a_row_of_the_table_that_is_not_the_lanes_own_is_not_emitted() -> None:
    given = [ds.Problem(x=x, y=y, eps=0.5) for x, y in (clouds(20, seed=0), clouds(30, seed=1))]
    pack = CpuBackend().pack([validate(problem, 1e-3) for problem in given])
    assert list(pack.emit([1, 0]).instances) == [pack._lanes.instances[i] for i in (1, 0)]
    pack._table = pack._table[::-1].copy()
    with pytest.raises(ds.ContractError, match="row 0 of the lane table does not hold the state of lane 0"):
        pack.emit([0, 1])


@pytest.mark.parametrize(("mode", "first_passage", "spans"), [
    ("static", False, {4}), ("static", True, {4}), ("mask", False, {4}), ("mask", True, {1}),
])  # fmt: skip
def test_lanes_in_step_are_run_one_cycle_at_a_time_only_where_one_can_be_held(
    monkeypatch: pytest.MonkeyPatch, mode: str, first_passage: bool, spans: set[int]
) -> None:
    """Static and mask must not pay for calls that compact does not make."""
    seen, run = set[int](), cpu_pack.CpuPack._run

    def watched(pack: Any, moving: Any, cycles: int, stops: Any) -> Any:
        seen.add(cycles)
        return run(pack, moving, cycles, stops)

    problems = [ds.Problem(x=x, y=y, eps=eps) for eps in (0.05, 0.2, 1.0) for x, y in [clouds(40)]]
    audit, backend = ds.Audit(every=4, first_passage=first_passage), CpuBackend()
    ds.solve(problems[0], backend=backend, accelerate="none")  # compiles, for which lanes are run too
    monkeypatch.setattr(cpu_pack.CpuPack, "_run", watched)
    solution, expected = (
        ds.solve(problems, backend=each, mode=mode, audit=audit, accelerate="none", init="zero")
        for each in (backend, "reference")
    )
    assert solution.converged
    assert seen == spans
    # Whatever the calls, lanes are those of the reference, and all of them are executed in every cycle.
    assert [r.depth for r in solution] == [r.depth for r in expected]
    assert solution.ledger.slots == expected.ledger.slots == 3 * max(r.depth for r in solution)
