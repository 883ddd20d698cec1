"""Kernels are compiled before they are launched: which ones, by several processes, and what happens if these fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, compiling, launching, rehearsal
from drainsinkhorn.run.validate import validate
from tests.device import CUDA

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MOST = 30
"""Forms of kernels that a first solve waits for, at most."""
IN_FRESH_PROCESS = """
import contextlib, hashlib, io, json, logging, os, stat, sys, tempfile
from pathlib import Path
import numpy as np
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Driver:
    "Stands for an H200: kernels are compiled for it and never launched."

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


driver.set_active(Driver())
import drainsinkhorn as ds
from drainsinkhorn.backends.triton import compiling, launching, rehearsal
from drainsinkhorn.backends.triton.kernels import layout, soft, update
from drainsinkhorn.backends.triton.precision import PrecisionPolicy
from drainsinkhorn.run.validate import validate

policy = PrecisionPolicy(momentum=True)
instance = validate(ds.Problem(x=np.zeros((30, 3)), y=np.ones((25, 3)), eps=1.0), 1e-3)
report, launches = {}, []


def few(**_):
    "The forms of two small kernels."
    run = lambda: rehearsal._solve(instance, policy.representation(instance), policy)
    return [task for task in compiling.collect_tasks(run) if task.name in ("extents", "report_lanes")]


def cubins():
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(knobs.cache.dir).rglob("*.cubin"))


def empty_cache():
    knobs.cache.dir = tempfile.mkdtemp()


def compile_serially(tasks):
    "Triton compiles at the first launch, and returns a kernel."
    kernels = []
    with launching.noted_by(lambda *launch: launches.append(launch)):
        rehearsal._solve(instance, policy.representation(instance), policy)
    keys = {task.key for task in tasks}
    for kernel, grid, args, constants in launches:
        key = launching.form_key(kernel, args, constants)
        if key in keys:
            keys.discard(key)
            kernels.append(kernel.warmup(*args, grid=grid, **constants))
    return sorted(hashlib.sha256(kernel.asm["cubin"]).hexdigest() for kernel in kernels)


def forget_compiled():
    for module in (layout, update, soft):
        for kernel in vars(module).values():
            getattr(kernel, "device_caches", {}).clear()


empty_cache()
tasks, heard = few(), io.StringIO()
handler = logging.StreamHandler(heard)
logging.getLogger("drainsinkhorn").addHandler(handler)
compiling.QUIET = 0.0
compiling.compile_tasks(tasks)
logging.getLogger("drainsinkhorn").removeHandler(handler)
report["message"] = heard.getvalue()
report["tasks"], report["by_workers"] = len(tasks), cubins()
report["left"] = len(few())
hits = []
knobs.compilation.listener = lambda **stated: hits.append(stated["cache_hit"])
compile_serially(tasks)
report["hits"], knobs.compilation.listener = hits, None

# A process that cannot be started, one that is killed, and a cache that cannot be written.
start, executable = compiling._start, sys.executable


def killed():
    process = start()
    process.kill()
    return process


def read_only():
    process = start()
    return process


for name in ("no process", "killed"):
    empty_cache()
    forget_compiled()
    # Workers that are still waiting know the cache before.
    compiling._workers = compiling._Workers()
    if name == "no process":
        sys.executable = "/nowhere/python"
    else:
        compiling._start = killed
    compiling.compile_tasks(few())
    report[name + ", on disk"] = cubins()
    sys.executable, compiling._start = executable, start
    report[name] = compile_serially(tasks)
    report[name + ", pending"] = len(launching.pending)

if os.getuid() == 0:
    knobs.cache.dir = "/proc/drainsinkhorn-no-such-folder"
else:
    empty_cache()
    os.chmod(knobs.cache.dir, stat.S_IREAD | stat.S_IEXEC)
forget_compiled()
compiling._workers = compiling._Workers()
compiling.compile_tasks(tasks)
report["read-only, pending"] = len(launching.pending)
empty_cache()
report["read-only"] = compile_serially(tasks)
print(json.dumps(report))
"""


def describe(kernel: Any, args: Any, constants: dict[str, Any]) -> Any:
    """What decides which form of a kernel is launched."""
    kinds = [(str(arg.dtype), arg.data_ptr() % 16 == 0) if hasattr(arg, "data_ptr") else "int" for arg in args]
    values = [(name, getattr(value, "value", value)) for name, value in constants.items()]
    return kernel.__name__, tuple(kinds), tuple(values)


@pytest.mark.skipif(CUDA, reason="launches are noted by Triton's interpreter")
@pytest.mark.parametrize(
    ("dim", "settings", "residents"),
    [
        (3, {"tol": 1e-3}, 0),
        (3, {"tol": 1e-8}, 0),
        (10, {"init": "zero", "rho": 5.0}, 0),
        (3, {"a": np.arange(1, 21) / 210}, 128),
        (3, {"cost": "euclidean"}, 0),
    ],
)
def test_first_solve_launches_only_what_was_compiled_for_it(
    monkeypatch: pytest.MonkeyPatch, dim: int, settings: dict[str, Any], residents: int
) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    launched, rehearsed = set[Any](), list[set[Any]]()
    interpret = InterpretedFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        launched.add(describe(kernel.fn, args, constants))
        return interpret(kernel, *args, grid=grid, warmup=warmup, **constants)

    def collect(rehearse: Any) -> list[Any]:
        rehearsed.append(set())
        with launching.noted_by(
            lambda kernel, _, args, constants: rehearsed[-1].add(describe(kernel.fn, args, constants))
        ):
            rehearse()
        return []

    monkeypatch.setattr(InterpretedFunction, "run", run)
    monkeypatch.setattr(compiling, "collect_tasks", collect)
    monkeypatch.setattr(rehearsal, "_rehearsed", set())
    prepare = rehearsal.compile_kernels
    monkeypatch.setattr(
        TritonBackend, "prepare", lambda self, instances: prepare(instances, self.policy, self._device())
    )
    rng = np.random.default_rng(0)
    sides = [{"x": rng.normal(size=(20, dim)), "y": rng.normal(size=(17, dim))} for _ in range(2)]
    solution = ds.solve(
        [ds.Problem(**side, eps=0.5 * dim, **settings) for side in sides],
        backend=TritonBackend(resident_points=residents),
    )
    assert all(result.converged for result in solution)
    needed, later = rehearsed
    assert launched <= needed
    assert len(needed - launched) <= 1
    assert len(needed) <= MOST
    assert later - needed


def test_solve_does_without_a_rehearsal_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no rehearsal")

    monkeypatch.setattr(rehearsal, "_rehearsed", set())
    monkeypatch.setattr(rehearsal, "_solve", fail)
    monkeypatch.setattr(compiling, "collect_tasks", lambda rehearse: rehearse())
    instance = validate(ds.Problem(x=np.zeros((3, 2)), y=np.ones((4, 2)), eps=1.0), 1e-3)
    backend = TritonBackend()
    rehearsal.compile_kernels([instance], backend.policy, backend._device())


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    known = os.environ | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
    known["PYTHONPATH"] = os.pathsep.join([str(Path(ds.__file__).parents[1]), known.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", IN_FRESH_PROCESS], env=known, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_workers_compile_what_this_process_then_loads(report: dict[str, Any]) -> None:
    assert report["tasks"] >= 3
    assert len(report["by_workers"]) == report["tasks"]
    assert report["left"] == 0
    assert report["hits"] == [True] * report["tasks"]


def test_long_compilation_is_logged(report: dict[str, Any]) -> None:
    assert f"compiling {report['tasks']} GPU kernels, once for this machine" in report["message"]


@pytest.mark.parametrize("what", ["no process", "killed", "read-only"])
def test_kernels_are_the_same_if_workers_fail(report: dict[str, Any], what: str) -> None:
    assert report.get(f"{what}, on disk", []) == []
    assert report[f"{what}, pending"] == 0
    assert report[what] == report["by_workers"]


def test_what_no_solve_waits_for_leaves_cores_and_a_launch_compiles_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_cores", lambda: 8)
    monkeypatch.setattr(compiling, "pending", {})
    workers = compiling._Workers()
    monkeypatch.setattr(workers, "_work", lambda: None)
    tasks = [compiling.KernelTask(number, "", "", "", (), number) for number in range(6)]
    later, urgent = tasks[:4], tasks[4:]
    workers.submit(later, urgency=0)
    assert workers._running == 2
    futures = workers.submit(urgent, urgency=1)
    # The two that run have not said that they are idle.
    assert workers._running == 6
    # The largest of those that do not wait is the next to begin; a launch cancels it before.
    assert compiling.pending[later[3].key].cancel()
    taken = [workers._take() for _ in range(5)]
    assert taken == [(urgent[1], True), (urgent[0], True), (later[2], False), (later[1], False), None]
    assert later[3].key not in compiling.pending
    workers._finish(is_urgent=False)
    assert workers._take() == (later[0], False)
    compiling._settle(urgent[0], succeeded=True)
    assert futures[0].result()
