"""The wheels that `make build` made work in a clean environment, outside of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DIST = os.environ.get("DRAIN_DIST")
SOLVE = """
import sys
import numpy as np
import drainsinkhorn as ds

rng = np.random.default_rng(0)
x, y = rng.normal(size=(4, 30, 2)), rng.normal(size=(4, 40, 2))
solution = ds.solve(x, y, eps=0.5)
solution.raise_for_status()
f, g = solution.potentials
cost = ((x[0][:, None] - y[0]) ** 2).sum(-1)
plan = np.exp((f[0][:, None] + g[0] - cost) / 0.5) / (30 * 40)
assert abs(plan.sum(1) - 1 / 30).sum() <= 1e-3 and abs(plan.sum(0) - 1 / 40).sum() <= 1e-3
assert sys.prefix in ds.__file__, ds.__file__
heavy = {"torch", "triton", "jax", "ott", "pykeops", "ray", "matplotlib", "scipy"} & sys.modules.keys()
assert not heavy, heavy
"""

pytestmark = pytest.mark.skipif(DIST is None, reason="make build makes wheels and runs this test")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel of the library and what it depends on."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install(folder, "drainsinkhorn-0")
    return folder


def install(environment: Path, prefix: str) -> None:
    assert DIST is not None
    (wheel,) = Path(DIST).resolve().glob(f"{prefix}*.whl")
    pip = [str(environment / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True)


def run(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment in the environment's folder, without settings of this process."""
    settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NUMBA_CACHE_DIR")}
    command = (str(environment / "bin" / command[0]), *command[1:])
    return subprocess.run(command, cwd=environment, env=settings, capture_output=True, text=True, timeout=300)


def test_the_library_solves(environment: Path) -> None:
    ended = run(environment, "python", "-c", SOLVE)
    assert ended.returncode == 0, ended.stderr


def test_the_command_line_runs_and_names_what_is_missing(environment: Path) -> None:
    assert run(environment, "drain", "backends").returncode == 0
    ended = run(environment, "drain", "bench", "run")
    assert ended.returncode != 0
    assert "drainsinkhorn-bench" in ended.stdout + ended.stderr


def test_the_benchmarks_register_their_command(environment: Path) -> None:
    install(environment, "drainsinkhorn_bench-0")
    ended = run(environment, "drain", "bench", "--help")
    assert ended.returncode == 0, ended.stderr
    assert "report" in ended.stdout
