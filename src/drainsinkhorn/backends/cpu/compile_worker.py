"""Compile the kernels of cached lanes in two worker processes at once.

Within one process Numba compiles one function at a time. Each worker compiles its share of the kernels and saves it in
the kernel cache; the process that started the workers then loads the kernels. It compiles the kernels that no worker
has saved itself, when it first calls them.
"""

# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import config, typeof

from drainsinkhorn.backends.cpu import certificate_kernels, kernel_cache
from drainsinkhorn.backends.cpu import leg_kernels as legs
from drainsinkhorn.backends.cpu import loading_kernels as loading
from drainsinkhorn.backends.cpu import update_kernels as updates
from drainsinkhorn.backends.cpu.lane_table import new_lanes
from drainsinkhorn.backends.cpu.resources import default_threads

_log = logging.getLogger("drainsinkhorn")

CYCLES, REST = "cycles", "rest"
"""The two shares of the kernels. They take about equally long; kernels that call the same kernels share a process."""


PATIENCE = 300.0
"""Seconds after which the process compiles the kernels itself."""


def compile_apart(dtype: str) -> None:
    """Let a worker compile each share of the kernels of cached lanes, and wait; without a second core do nothing."""
    if default_threads() < 2 or kernel_cache.fcntl is None or kernel_cache.kernel_folder(config.CACHE_DIR) is None:
        return
    known = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    if config.CACHE_DIR:
        known["NUMBA_CACHE_DIR"] = config.CACHE_DIR
    workers: list[Any] = []
    try:
        for share in (CYCLES, REST):
            code = f"from drainsinkhorn.backends.cpu.compile_worker import compile_share as c; c({dtype!r}, {share!r})"
            output: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.DEVNULL,
                "stderr": subprocess.DEVNULL,
            }
            workers.append(subprocess.Popen([sys.executable, "-P", "-c", code], env=known, **output))
        for worker in workers:
            worker.wait(PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.debug("kernels are compiled by one process: %r", error)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


def compile_share(dtype: str, share: str) -> None:
    """Compile a share of the kernels into the kernel cache."""
    kernel_cache._Cache.is_read = False
    # A compiler allocates much and lives as long as this process.
    gc.disable()
    for kernel, args in _calls(np.dtype(dtype), share):
        kernel.compile(tuple(map(typeof, args)))


def _calls(dtype: np.dtype[Any], share: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Kernels that `CpuPack` calls, with arguments of the types that it passes."""
    table, order, one = new_lanes(1), np.zeros(1, dtype=np.int64), dtype.type(1)
    vector, matrix, stack = np.zeros(1), np.zeros((1, 1)), np.zeros((1, 1, 1))
    lanes, clouds, weights = (table, order, 0, 1), (matrix, order, matrix, order), (vector, order, vector, order)
    if share == CYCLES:
        yield updates.open_lanes, (*lanes, one)
        yield updates.run_lanes, (*lanes, 1, vector, order, one)
        yield updates.begin_row, (table, 0, one)
        yield updates.run_row_group, (table, 0, 0, 0, one)
        yield updates.end_row_phase, (table, 0, 0, one)
        yield updates.fill_cold_rows, (table[0], 0, 0, one)
        yield updates.copy_base, (table, order)
        return
    yield loading.fill_lanes, (*lanes, *weights, one)
    yield loading.measure_extents, (*lanes, *clouds, matrix, vector, one)
    yield loading.lay_lanes, (*lanes, *clouds, matrix, vector, one)
    yield legs.verify_lanes, (*lanes, *weights, vector, matrix, one)
    yield legs.write_states, (*lanes, *weights, one)
    yield legs.screen_lane, (table[0], one)
    yield legs.discard_lanes, (*lanes, 1, one)
    yield certificate_kernels.sweep_points, (matrix, matrix, False, 1.0, vector, vector, 0, 1, vector, vector)
    moments = matrix[None], stack[None]
    yield loading.measure_moments, (*lanes, *clouds, *weights, *moments, True, one)
    yield loading.start_lanes, (*lanes, matrix, order, matrix, stack, matrix, True, np.zeros(1, bool), 0.0, one)
