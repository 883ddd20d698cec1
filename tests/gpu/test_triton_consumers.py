"""Consumers of the Triton backend: on a CUDA device where there is one, in Triton's interpreter elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conftest import needs

torch = needs("torch")
CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"
needs("triton")

from tests.dense import array, cost_of, plan_of, ragged, weights  # noqa: E402

import drainsinkhorn as ds  # noqa: E402
from drainsinkhorn.backends import load  # noqa: E402
from drainsinkhorn.backends.triton import TritonBackend  # noqa: E402
from drainsinkhorn.backends.triton import couplings as module  # noqa: E402

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ACCURACY = 2e-5
"""1e-5, and what float32 callers lose when they get float32 back."""


def on_device(value: Any) -> Any:
    return torch.as_tensor(value).to("cuda" if CUDA else "cpu") if isinstance(value, np.ndarray) else value


def moved(problem: ds.Problem[Any]) -> ds.Problem[Any]:
    return replace(problem, **{name: on_device(getattr(problem, name)) for name in ("x", "y", "cost")})


@pytest.fixture(scope="module")
def results() -> Any:
    """Ragged results solved on the host, to be consumed on the device."""
    dims = (1, 3, 5, 70)
    largest, few = (400, None) if CUDA else (24, 13)
    batch = [p for seed in (0, 1) for p in ragged(np.random.default_rng(seed), 9, largest, dims)][:few]
    solution = ds.solve(batch, backend="reference", tol=1e-3)
    backend = TritonBackend()
    return [
        replace(
            r,
            problem=moved(r.problem),
            backend=backend,
            emitted=ds.Potentials(*(on_device(p) for p in r.potentials)),
        )
        for r in solution
    ]


@pytest.fixture(scope="module")
def plans(results: Any) -> Any:
    """All of them at once."""
    return coupled(results)


def coupled(results: Any) -> Any:
    return TritonBackend().couple([r.problem for r in results], [r.potentials for r in results])


def points_only(results: Any) -> Any:
    return [r for r in results if r.problem.x is not None]


@pytest.fixture(scope="module")
def point_plans(results: Any) -> Any:
    return coupled(points_only(results))


def close(found: Any, truth: Any, scale: float = 0.0) -> None:
    found, truth = array(found), np.asarray(truth)
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() <= ACCURACY * max(np.abs(truth).max(), scale, 1e-30)


def test_both_precisions_are_seen(results: Any, plans: Any) -> None:
    kinds = {stack.exact for stack in plans._stacks}
    assert kinds == {True, False}
    assert sorted(lane for stack in plans._stacks for lane in stack.lanes) == list(range(len(results)))
    assert len(coupled([*results, *results])._stacks) < 2 * len(plans._stacks), "lanes of like size share a launch"


@pytest.mark.parametrize("side", ["row", "col"])
@pytest.mark.parametrize("channels", [(), (5,), (40,)])
def test_apply(results: Any, plans: Any, side: str, channels: tuple[int, ...]) -> None:
    rng, dense = np.random.default_rng(1), [plan_of(r) if side == "row" else plan_of(r).T for r in results]
    values = [rng.normal(size=(plan.shape[1], *channels)) for plan in dense]
    for out, plan, value in zip(plans.apply([on_device(v) for v in values], side), dense, values, strict=True):
        close(out, plan @ value, float((plan @ np.abs(value)).max()))


@pytest.mark.parametrize("side", ["row", "col"])
def test_maps(results: Any, point_plans: Any, side: str) -> None:
    for found, result in zip(point_plans.barycentric_map(side), points_only(results), strict=True):
        plan = plan_of(result) if side == "row" else plan_of(result).T
        mass, other = plan.sum(1), array(result.problem.y if side == "row" else result.problem.x)
        inside = mass > 0
        close(found[on_device(inside)], (plan @ other)[inside] / mass[inside, None], float(np.abs(other).max()))
        assert np.isfinite(array(found)).all()
        assert found.device == result.problem.x.device


def test_plan_costs_and_ratios(results: Any, plans: Any) -> None:
    for dense, costs, logs, result in zip(
        plans.plan(2**30), plans.transport_cost(), plans.log_ratios("col"), results, strict=True
    ):
        plan, cost, eps = plan_of(result), cost_of(result.problem), result.problem.eps
        close(dense, plan)
        f, g = (array(p) for p in result.potentials)
        a, b = weights(result.problem.a, len(f)), weights(result.problem.b, len(g))
        inside = plan > 0
        kl = (plan[inside] * np.log(plan[inside] / (a[:, None] * b)[inside])).sum() - plan.sum() + 1
        assert costs.transport == pytest.approx((plan * cost).sum(), rel=ACCURACY)
        assert costs.kl == pytest.approx(kl, rel=ACCURACY, abs=ACCURACY)
        assert costs.entropic == pytest.approx((plan * cost).sum() + eps * kl, rel=ACCURACY, abs=ACCURACY * eps)
        assert costs.dual == pytest.approx(a @ f + b @ g - eps * (plan.sum() - 1), rel=ACCURACY, abs=ACCURACY * eps)
        close(np.exp(array(logs))[b > 0], (plan.sum(0)[b > 0] / b[b > 0]))


@pytest.mark.parametrize("side", ["row", "col"])
def test_top_match(results: Any, plans: Any, side: str) -> None:
    for found, result in zip(plans.top_match(side), results, strict=True):
        plan = plan_of(result) if side == "row" else plan_of(result).T
        there = np.take_along_axis(plan, found.cpu().numpy()[:, None], axis=1)[:, 0]
        assert there == pytest.approx(plan.max(1), rel=10 * ACCURACY)


@pytest.mark.parametrize("side", ["row", "col"])
def test_slopes_are_those_of_the_host(results: Any, point_plans: Any, side: str) -> None:
    some = points_only(results)
    truth = load("reference").couple([r.problem for r in some], [r.potentials for r in some]).slopes(side)
    for ours, theirs in zip(point_plans.slopes(side), truth, strict=True):
        close(ours, array(theirs), 1e-3 * float(np.abs(array(theirs)).max()))


def test_draws_are_those_of_the_host(results: Any, plans: Any) -> None:
    count, agree = 64, []
    seeds = [(3, r.ticket) for r in results]
    host = load("reference").couple([r.problem for r in results], [r.potentials for r in results])
    for (i, j), (p, q), result in zip(plans.sample(count, seeds), host.sample(count, seeds), results, strict=True):
        agree.append(float(((i == p) & (j == q)).double().mean()))
        assert (plan_of(result)[i.cpu().numpy(), j.cpu().numpy()] > 0).all()
        assert i.device == result.potentials.f.device
    # The same numbers choose; only a number within rounding of a cumulative sum may choose a neighbour.
    assert np.mean(agree) > 0.995


def test_rows_out_of_range_are_done_again(results: Any) -> None:
    """A result that did not converge has ratios that float32 terms cannot show."""
    result = next(r for r in points_only(results) if r.potentials.f.dtype == torch.float32)
    f, g = result.potentials
    shifted = f.clone()
    shifted[-1] += 60 * result.problem.eps
    odd = replace(result, emitted=ds.Potentials(shifted, g))
    values = np.ones(len(g))
    close(ds.apply([odd], [on_device(values)])[0], plan_of(odd) @ values)


def test_a_coarse_probe_sends_lanes_to_float64(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCURACY", 0.0)
    assert all(stack.exact for stack in coupled(results[:3])._stacks)
