"""The drain over PyKeOps: formulas of the caller's own, no matrix anywhere, and a crash that stays outside."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import needs

torch = needs("torch")
needs("pykeops")

import drainsinkhorn as ds  # noqa: E402
from drainsinkhorn.backends.keops import KeopsBackend, probe, reduction  # noqa: E402
from drainsinkhorn.run.validate import validate  # noqa: E402
from drainsinkhorn.testing import marginal_errors  # noqa: E402

# Not symmetric: what takes x for y is found out.
FORMULA = ds.Formula("SqDist(x, y) + Sum(x)")


def ragged(count: int = 5) -> list[ds.Problem[Any]]:
    found = []
    for i in range(count):
        rng = np.random.default_rng(i)
        x, y = rng.normal(size=(20 + 7 * i, 3)), rng.normal(size=(30 - 4 * i, 3)) + 0.3
        found.append(ds.Problem(x=torch.as_tensor(x).float(), y=torch.as_tensor(y).float(), eps=0.2 + 0.2 * i))
    return found


@pytest.mark.parametrize("accelerate", ["momentum", "none"])
def test_unequal_clouds_agree_with_the_reference_in_every_mode(accelerate: str) -> None:
    batch = ragged()
    truth = ds.solve(batch, backend="reference", accelerate=accelerate)
    found = {
        mode: ds.solve(batch, backend="keops", mode=mode, accelerate=accelerate, width=8)
        for mode in ("compact", "mask", "width-one", "stream")
    }
    for ticket, theirs in enumerate(truth):
        ours = found["compact"][ticket]
        assert ours.converged
        assert abs(ours.depth - theirs.depth) <= 1
        assert max(marginal_errors(ours.problem, ours.potentials)) <= 1e-3
        assert isinstance(ours.potentials.f, torch.Tensor)
        for other in found.values():
            assert torch.equal(other[ticket].potentials.f, ours.potentials.f)
    assert found["compact"].ledger.slots < found["mask"].ledger.slots


def test_a_formula_of_the_callers_own() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=(25, 3)) + 0.5
    # A tol that asks for float64: half as many formulas to compile.
    result = ds.solve(x, y, eps=0.5, cost=FORMULA, tol=1e-6)[0]
    assert (result.backend.name, result.converged) == ("keops", True)
    cost = ((x[:, None] - y) ** 2).sum(-1) + x.sum(-1)[:, None]
    f, g = result.potentials
    plan = np.exp((f[:, None] + g - cost) / 0.5) / (30 * 25)
    assert np.abs(plan.sum(1) - 1 / 30).sum() <= 1e-6
    assert np.abs(plan.sum(0) - 1 / 25).sum() <= 1e-6
    assert np.allclose(FORMULA.pairwise(x, y), cost)
    assert result.transport_cost().transport == pytest.approx((plan * cost).sum())
    assert np.allclose(result.apply(np.ones(30), side="col"), plan.sum(0))
    with pytest.raises(ds.ProblemError, match="gradients need a cost by name"):
        result.backend.couple([result.instance], [result.potentials]).slopes()
    there = ds.solve(x, y, eps=0.5, cost=ds.Cost(FORMULA, 2.0), backend="reference", tol=1e-6)[0]
    here = ds.solve(x, y, eps=0.5, cost=ds.Cost(FORMULA, 2.0), backend="keops", tol=1e-6)[0]
    assert np.abs(here.plan() - there.plan()).sum() <= 1e-5


def test_what_it_refuses_it_explains() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ds.ProblemError, match="computes costs from points"):
        ds.solve(cost=rng.uniform(size=(5, 6)), eps=0.3, backend="keops")
    with pytest.raises(ds.ProblemError, match="is none that KeOps knows"):
        ds.solve(rng.normal(size=(5, 3)), rng.normal(size=(6, 3)), eps=0.3, cost=ds.Formula("Nonsense(x, y)"))
    for text in ("__import__('os')", "x.grad", "", 3):
        with pytest.raises(ds.ProblemError, match="a formula is made of names"):
            ds.Formula(text)  # type: ignore[arg-type]
    with pytest.raises(ds.OptionsError, match="precision must be"):
        KeopsBackend(precision="half")  # type: ignore[arg-type]


def test_sixty_thousand_points_without_a_matrix() -> None:
    n = 65_536
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 3)).astype("f4"), rng.normal(size=(64, 3)).astype("f4")
    tracemalloc.start()
    # Many rows, few columns: the memory of n x n would show, the time of it need not be spent.
    pack = KeopsBackend().pack([validate(ds.Problem(x=x, y=y, eps=1.0), 1e-3)])
    pack.advance(2, [-np.inf])
    (residual,) = pack.verify([0]).rows()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.isfinite(residual.worst)
    assert peak < 64 * n * 8
    assert max(part.numel() for part in pack._arrays.values()) <= 3 * n


FAKE = {
    "aborts": "import os; os.abort()",
    "raises": "raise RuntimeError('[KeOps] Cuda error.')",
    "runs": "__version__ = '2.3'",
}


@pytest.fixture
def other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts another pykeops in the way of the probe's process, on a machine that seems to have a driver."""
    (tmp_path / "pykeops").mkdir()
    (tmp_path / "torch.py").write_text(
        "__version__ = '2.11'\nclass version: cuda = '13.0'\nclass zeros:\n"
        "    def __init__(self, *a, **k): pass\n    def cpu(self): pass\n"
    )

    def put(package: str, call: str) -> None:
        (tmp_path / "pykeops" / "__init__.py").write_text(package)
        lines = ["class Genred:", " def __init__(self, *a, **k): pass", " def __call__(self, *a):", f"  {call}"]
        (tmp_path / "pykeops" / "torch.py").write_text("\n".join([*lines, "  return a[0]", ""]))

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probe.ctypes.util, "find_library", lambda name: f"lib{name}.so")
    probe.try_reduction.cache_clear()
    probe.has_driver.cache_clear()
    yield put
    probe.try_reduction.cache_clear()
    probe.has_driver.cache_clear()


def test_a_crash_in_the_cuda_path_is_an_error_and_not_a_crash(other_process: Any) -> None:
    other_process(FAKE["runs"], "import os; os.abort()")
    with pytest.raises(ds.BackendUnavailable, match="was ended by SIGABRT while it compiled its first formula") as told:
        probe.require("cuda")
    assert "cuda 13.0" in str(told.value)
    with pytest.raises(ds.BackendUnavailable):
        KeopsBackend(device="cuda")


def test_an_import_that_fails_or_dies_is_told(other_process: Any) -> None:
    other_process(FAKE["raises"], "pass")
    with pytest.raises(ds.BackendUnavailable, match=r"failed while it was imported; it said: .*Cuda error"):
        probe.require("cpu")
    probe.try_reduction.cache_clear()
    other_process(FAKE["aborts"], "pass")
    with pytest.raises(ds.BackendUnavailable, match="SIGABRT while it was imported"):
        probe.require("cpu")


def test_where_it_runs_nothing_is_said(other_process: Any) -> None:
    other_process(FAKE["runs"], "pass")
    probe.require("cuda")


def test_no_driver_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ds.BackendUnavailable, match="finds no CUDA driver"):
        probe.require("cuda")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ds.BackendUnavailable, match="no C\\+\\+ compiler 'no-such-compiler'"):
        probe.require("cpu")


def test_the_first_compilation_is_announced(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __call__(self, x: Any, *_: Any, **__: Any) -> Any:
            threading.Event().wait(2.3)
            return x[:, :1]

    monkeypatch.setattr(reduction, "_import_genred", lambda: Slow)
    with caplog.at_level(logging.WARNING, logger="drainsinkhorn"):
        reduction._reducer("Slow(x, y)", 3, 1, True, "cpu", torch.float32)
    assert "PyKeOps compiles Slow(x, y)" in caplog.text
    reduction._reducer.cache_clear()


def test_processes_compile_one_after_another() -> None:
    script = (
        "from drainsinkhorn.backends.keops.reduction import alone\nprint('here', flush=True)\nwith alone(): print('in')"
    )
    with reduction.alone():
        other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
    assert other.communicate(timeout=60)[0] == "in\n"


def test_without_a_place_for_the_lock_it_runs_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reduction.tempfile, "gettempdir", lambda: str(tmp_path / "nowhere"))
    with reduction.alone():
        pass
