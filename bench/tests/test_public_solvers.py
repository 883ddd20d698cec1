"""Peers answer in our convention, whatever theirs is; the float64 auditor judges."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conftest import needs

import drainsinkhorn as ds
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn_bench import peers

for library in ("ott", "ot", "torch"):
    needs(library)

TOL = 1e-3


def problems(*, weighted: bool = False, scale: float = 1.0) -> list[ds.Problem[Any]]:
    made = []
    for k in range(3):
        rng = np.random.default_rng(k)
        x, y = rng.normal(size=(40, 3)), 0.5 + rng.normal(size=(40, 3))
        a, b = rng.dirichlet(np.full(40, 3.0), size=2) if weighted else (None, None)
        cost = ds.Cost("sqeuclidean", scale)
        made.append(ds.Problem(x=x.astype(np.float32), y=y.astype(np.float32), a=a, b=b, eps=0.5 * scale, cost=cost))
    return made


def dense(given: list[ds.Problem[Any]]) -> list[ds.Problem[Any]]:
    return [ds.Problem(cost=((p.x[:, None] - p.y[None]) ** 2).sum(-1), a=p.a, b=p.b, eps=p.eps) for p in given]


PEERS: dict[str, Callable[[], Callable[[peers.Problems], peers.Found]]] = {
    "ott serial": lambda: peers.Ott(TOL).serial,
    "ott vmap": lambda: peers.Ott(TOL).vmap,
    "ott momentum": lambda: peers.Ott(TOL, momentum=True).serial,
    "pot serial": lambda: peers.Pot(TOL).serial,
    "pot batch": lambda: peers.Pot(TOL).batch,
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(("weighted", "scale"), [(False, 1.0), (True, 3.0)])
def test_a_peer_solves_our_problems(name: str, weighted: bool, scale: float):
    given = problems(weighted=weighted, scale=scale)
    found = PEERS[name]()(given)
    for problem, potentials in zip(given, found.potentials(), strict=True):
        assert max(marginal_errors(problem, potentials)) <= 1.05 * TOL
    assert all(depth is None or 0 < depth < peers.MOST for depth in found.depths)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_takes_dense_costs(name: str):
    given = dense(problems())
    if name == "ott vmap":
        # Its lanes share one matrix.
        given = [ds.Problem(cost=given[0].cost, eps=given[0].eps) for _ in given]
    for problem, potentials in zip(given, PEERS[name]()(given).potentials(), strict=True):
        assert max(marginal_errors(problem, potentials)) <= 1.05 * TOL


def test_a_cost_that_no_peer_has_is_refused():
    (problem, *_) = problems()
    with pytest.raises(ValueError, match="squared distances"):
        peers.scale_of(ds.Problem(x=problem.x, y=problem.y, eps=1.0, cost="euclidean"))


@pytest.fixture
def flash_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashSinkhorn's three functions in plain torch, by the formulas of its documentation: it has no CPU path."""
    import torch

    def leg(x: Any, y: Any, other: Any, log_w: Any, eps: float, *, allow_tf32: bool) -> Any:
        # Shifted potentials: f_hat = f - |x|^2, so that the norms never meet the product.
        return -eps * torch.logsumexp((2 * x @ y.T + other[None, :]) / eps + log_w[None, :], dim=1)

    def push(
        x: Any, y: Any, f: Any, g: Any, log_a: Any, log_b: Any, vec: Any, *, eps: float, axis: int, allow_tf32: bool
    ) -> Any:
        plan = torch.exp((f[:, None] + g[None, :] + 2 * x @ y.T) / eps + log_a[:, None] + log_b[None, :])
        return plan @ vec if axis == 1 else plan.T @ vec

    def alternating(x: Any, y: Any, a: Any, b: Any, *, eps: float, n_iters: int, threshold: float, **_: Any) -> Any:
        nx, ny = x.square().sum(1), y.square().sum(1)
        f, g, before, cycle = -nx, -ny, None, 0
        for cycle in range(1, n_iters + 1):
            f = leg(x, y, g, b.log(), eps, allow_tf32=False)
            g = leg(y, x, f, a.log(), eps, allow_tf32=False)
            if cycle % 5 == 0:
                if before is not None and max((f - before[0]).abs().max(), (g - before[1]).abs().max()) < threshold:
                    break
                before = (f, g)
        return f + nx, g + ny, cycle

    modules = {
        "flash_sinkhorn": {},
        "flash_sinkhorn.kernels": {},
        "flash_sinkhorn.kernels.apply_flash": {"apply_plan_vec_flashstyle": push},
        "flash_sinkhorn.kernels.sinkhorn_flashstyle_sqeuclid": {"flashsinkhorn_lse_fused": leg},
        "flash_sinkhorn.sinkhorn_solvers": {"sinkhorn_flashstyle_alternating": alternating},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


@pytest.mark.usefixtures("flash_on_cpu")
@pytest.mark.parametrize(("weighted", "scale"), [(False, 1.0), (True, 3.0)])
def test_flash_sinkhorn_under_our_check(weighted: bool, scale: float):
    import torch

    given = [
        ds.Problem(x=torch.tensor(p.x) + 100, y=torch.tensor(p.y) + 100, a=p.a, b=p.b, eps=p.eps, cost=p.cost)
        for p in problems(weighted=weighted, scale=scale)
    ]
    flash = peers.Flash(TOL, 4)
    found = flash.serial(given)
    for problem, potentials in zip(given, found.potentials(), strict=True):
        assert max(marginal_errors(problem, potentials)) <= 1.01 * TOL
    assert all(depth is not None and depth % 4 == 0 for depth in found.depths)
    loose, tight = (flash.native(given[0], threshold, 500) for threshold in (1e-1, 1e-5))
    assert loose[1] < tight[1] < 500
    assert max(marginal_errors(given[0], tight[0])) < max(marginal_errors(given[0], loose[0])) < 0.1


def test_a_missing_peer_says_so():
    if "flash_sinkhorn" in sys.modules:
        pytest.skip("FlashSinkhorn is installed")
    with pytest.raises(ImportError, match="flash_sinkhorn"):
        peers.Flash(TOL)
