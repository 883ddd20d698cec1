from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.budget import pytest_runtest_logreport as pytest_runtest_logreport
from tests.budget import pytest_terminal_summary as pytest_terminal_summary

# One profile everywhere: examples are derandomised so that a failure on one machine is a failure on all.
settings.register_profile("drain", derandomize=True, deadline=None, database=None)
settings.load_profile("drain")


# Programs of several processes, which need torch where they are imported.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*ranks.py"]


def _sees_cuda() -> bool:
    return importlib.util.find_spec("torch") is not None and importlib.import_module("torch").cuda.is_available()


# OpenMP reads this when it is first loaded. Workers of xdist have more threads than there are cores; threads that spin
# while they wait, as they do by default, keep those from a core that have work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# JAX reads these when it is first imported. Compilation is most of the time of tests with JAX, and workers of xdist,
# processes that tests start and later runs compile the same functions.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# Triton reads this when it is first imported, whichever module of tests does that.
if importlib.util.find_spec("triton") is not None and not _sees_cuda():
    os.environ["TRITON_INTERPRET"] = "1"

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Numba links a function that it has just compiled otherwise than one that it finds on disk, so the process that
# compiles may differ from all later ones in the last bits. Tests that compare processes need kernels from disk in all.
COMPILE = """
from drainsinkhorn.backends.cpu.pack import compile_kernels
for kernels in ("float32", "float64", "streaming"):
    compile_kernels(kernels)
"""


def pytest_configure(config: pytest.Config) -> None:
    """Let another process compile what is not on disk, before any test and any worker of xdist.

    Tests of the GPU alone do without: what little of the CPU they need is compiled when it is used.
    """
    only_gpu = bool(config.args) and all("tests/backends/triton" in arg for arg in config.args)
    if not (only_gpu or hasattr(config, "workerinput")) and importlib.util.find_spec("numba") is not None:
        compile_kernels()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker neighbouring tests, which share fixtures and compiled functions, and let it steal at the end."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@cache
def compile_kernels() -> None:
    """Compile what is not on disk in a process of its own, once in a run."""
    subprocess.run([sys.executable, "-c", COMPILE], check=True)


@pytest.fixture(scope="module", autouse=True)
def _freeze_imported_objects() -> None:
    """Keep the garbage collector from visiting what earlier modules imported.

    Where memory runs out, the library collects garbage before it tries again. A process that has imported JAX and
    torch holds a million objects, and to visit them takes longer than the tests that run out of memory.
    """
    gc.collect()
    gc.freeze()


WARNED = ("test_warnings", "test_rescue", "test_cli")
"""Modules of tests in which a ConvergenceWarning that is not expected is an error, as every other warning is."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of other things leave problems unconverged."""
    ignored = pytest.mark.filterwarnings("ignore::drainsinkhorn.model.errors.ConvergenceWarning")
    for item in items:
        if item.path.stem not in WARNED:
            item.add_marker(ignored)


def needs(module: str) -> Any:
    """Import an optional library, or skip with the reason; in CI nothing is optional."""
    if os.environ.get("DRAIN_CI"):
        with warnings.catch_warnings():
            # What a library warns of while it is imported is not ours to mend.
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    return pytest.importorskip(module, reason=f"{module} is not installed")
