"""`drain warm` compiles what a first solve needs, so that the next process compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drainsinkhorn.cli.main import app

SETS = ["float32, cached", "float64, cached", "streaming"]
FIRST_SOLVES = """
import numpy as np
import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend

rng = np.random.default_rng(1)
x, y = rng.normal(size=(3, 90, 7)), rng.normal(size=(3, 70, 7))
for backend in ("auto", CpuBackend(precision="float64"), CpuBackend(representation="streaming", threads=1)):
    for settings in (
        {"eps": 3.0},
        {"eps": 0.1, "cost": "cosine", "tol": 1e-6, "max_depth": 20, "warn": False},
        {"eps": 0.3, "cost": "euclidean", "mode": "static", "certify": "always"},
        {"eps": 3.0, "init": "zero", "accelerate": "none", "recheck": "all", "mode": "mask"},
    ):
        solution = ds.solve(x, y, backend=backend, **{"warn": True, **settings})
        solution = [result for result in solution if result.converged]
        if solution:
            ds.sample(solution, 10, seed=0), ds.barycentric_map(solution), ds.top_match(solution)
            ds.apply(solution, [np.ones((70, 3))] * len(solution)), ds.transport_cost(solution)
    ds.solve([ds.Problem(cost=rng.uniform(size=(30, 20)), eps=1.0)], backend=backend)
    ds.divergence(x.astype("f4"), y.astype("f4"), eps=3.0, backend=backend)
"""
SIGNATURES = """
import gc
from numba.core.dispatcher import Dispatcher

def signatures():
    ours = [d for d in gc.get_objects() if isinstance(d, Dispatcher) and d.py_func.__module__.startswith("drainsink")]
    return {(d.py_func.__name__, str(signature)) for d in ours for signature in d.signatures}
"""
WARM = (
    "from typer.testing import CliRunner\nfrom drainsinkhorn.cli.main import app\nCliRunner().invoke(app, ['warm'])\n"
)


def drain(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "250"})


def run(code: str, **environment: str) -> str:
    known = os.environ | environment
    return subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True, check=True).stdout


def test_first_solves_use_only_kernels_that_warm_compiled() -> None:
    code = f"{SIGNATURES}{WARM}warmed = signatures()\n{FIRST_SOLVES}print(len(warmed), sorted(signatures() - warmed))"
    count, missing = run(code).strip().split(" ", 1)
    assert int(count) > 30
    assert missing == "[]"


def test_it_names_what_it_compiled() -> None:
    done = drain("warm", "--backend", "cpu", "--json")
    report = json.loads(done.stdout)
    assert [case["kernels"] for case in report["cases"]] == SETS
    assert report["backend"] == "cpu"
    assert all(case["seconds"] > 0 for case in report["cases"])
    # They were on disk before: see conftest.
    assert [case["compiled"] for case in report["cases"]] == [0, 0, 0]
    text = drain("warm").output
    assert all(name in text for name in SETS)
    assert "none, all are on disk" in text


def test_other_backends_and_bad_options() -> None:
    report = json.loads(drain("warm", "--backend", "reference", "--dims", "2, 5", "--json").stdout)
    assert [case["kernels"] for case in report["cases"]] == [
        f"{dim} coordinates, {cost}" for dim in (2, 5) for cost in ("sqeuclidean", "euclidean")
    ]
    for words in (["--dims", "2,x"], ["--dims", ""], ["--backend", "abacus"]):
        assert drain("warm", "--backend", "reference", *words).exit_code == 2


@pytest.mark.skipif(not os.environ.get("DRAIN_SOAK"), reason="compiles everything, which takes minutes; DRAIN_SOAK=1")
def test_after_warm_a_new_process_compiles_nothing(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    run(WARM, **cache)
    kernels = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")}
    assert len(kernels) > 50
    misses = "print(sum(sum(d.stats.cache_misses.values()) for d in gc.get_objects() if isinstance(d, Dispatcher)))"
    assert run(f"{SIGNATURES}{FIRST_SOLVES}{misses}", **cache).strip() == "0"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")} == kernels
