"""Kernels of cached lanes are compiled by two processes; if these fail, by the process that calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drainsinkhorn.backends.cpu import compile_worker, kernel_cache
from drainsinkhorn.backends.cpu import pack as cpu_pack

MOST = 180
"""Functions that the kernels of one precision consist of, at most."""
FIRST_SOLVE = """
import gc, json, sys
import numpy as np
import drainsinkhorn as ds
from numba.core.dispatcher import Dispatcher
from drainsinkhorn.backends.cpu import compile_worker

if sys.argv[1] == "no process":
    sys.executable = "/nowhere/python"
elif sys.argv[1] == "killed":
    wait = compile_worker.subprocess.Popen.wait

    def killed(process, *arguments):
        process.kill()
        return wait(process, *arguments)

    compile_worker.subprocess.Popen.wait = killed
rng = np.random.default_rng(0)
x, y = rng.normal(size=(3, 40, 3)), rng.normal(size=(3, 30, 3))
solution = ds.solve(x, y, eps=0.5, tol=1e-3, backend="cpu")
kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
ours = [each for each in kernels if each.py_func.__module__.startswith("drainsinkhorn")]
print(json.dumps({
    "compiled here": sum(sum(each.stats.cache_misses.values()) for each in ours),
    "f": [result.potentials.f.tolist() for result in solution],
    "depths": [result.depth for result in solution],
}))
"""


def first_solve(folder: Path, fails: str = "nothing") -> dict[str, Any]:
    known = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", FIRST_SOLVE, fails], env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not os.environ.get("DRAIN_SOAK"), reason="compiles everything, which takes minutes; DRAIN_SOAK=1")
def test_workers_compile_all_that_a_first_solve_calls_and_may_fail(tmp_path: Path) -> None:
    cold, warm = first_solve(tmp_path / "cold"), first_solve(tmp_path / "cold")
    assert cold["compiled here"] == 0
    assert cold == warm, "the process that compiles has the bits of later ones"
    assert 40 < len(list(tmp_path.rglob("*.nbc"))) <= MOST
    for fails in ("no process", "killed"):
        serial = first_solve(tmp_path / fails, fails)
        assert serial["compiled here"] > 40
        np.testing.assert_allclose(serial["f"], cold["f"], rtol=0, atol=1e-5)
        # Later processes load the same kernels, whoever has compiled them.
        assert first_solve(tmp_path / fails) == warm


def test_shares_have_the_types_that_packs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a share is compiled, a pack on a tiny problem finds every kernel of it compiled."""
    for dtype in ("float32", "float64"):
        for share in (compile_worker.CYCLES, compile_worker.REST):
            for kernel, args in compile_worker._calls(np.dtype(dtype), share):
                types = tuple(map(compile_worker.typeof, args))
                cpu_pack.compile_kernels.__wrapped__(dtype)
                assert types in kernel.overloads, kernel.__name__


def test_workers_start_only_if_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def refuse(*command: Any, **_: Any) -> Any:
        started.append(command)
        raise OSError("no more processes")

    monkeypatch.setattr(compile_worker.subprocess, "Popen", refuse)
    # Kernels are on disk: see conftest.
    cpu_pack.compile_kernels.__wrapped__("float32")
    assert started == []
    compile_worker.compile_apart("float32")
    if compile_worker.default_threads() > 1 and kernel_cache.fcntl is not None:
        assert len(started) == 1
