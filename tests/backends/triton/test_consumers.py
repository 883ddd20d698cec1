"""Consumers of the Triton backend: on a CUDA device where there is one, in Triton's interpreter elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.backends.triton import stacks as module
from drainsinkhorn.run.couple import couple
from tests.backends.triton.consumed import ACCURACY, close, cloud_result, coupled, on_device, solved
from tests.dense import array, cost_of, plan_of, ragged, weights
from tests.device import CUDA, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def results() -> Any:
    """Ragged results solved on the host, to be consumed on the device."""
    dims = (1, 3, 5, 70)
    largest, few = (400, None) if CUDA else (24, 13)
    batch = [p for seed in (0, 1) for p in ragged(np.random.default_rng(seed), 9, largest, dims)][:few]
    return solved(batch)


@pytest.fixture(scope="module")
def plans(results: Any) -> Any:
    """All of them at once."""
    return coupled(results)


def points_only(results: Any) -> Any:
    return [r for r in results if r.problem.x is not None]


@pytest.fixture(scope="module")
def point_plans(results: Any) -> Any:
    return coupled(points_only(results))


def test_both_precisions_are_seen(results: Any, plans: Any) -> None:
    kinds = {stack.float64 for stack in plans._stacks}
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


@pytest.mark.parametrize("cost", ["dot", ds.Cost("negdot", 0.5)], ids=str)
def test_dot_products_are_consumed_as_squared_distances(cost: Any) -> None:
    """In float32, far from the origin: potentials of the squared distances are smaller than those of the product."""
    rng = np.random.default_rng(4)
    x, y = ((rng.normal(size=(size, 5)) + 3).astype(np.float32) for size in (20, 23))
    some = solved([ds.Problem(x=x, y=y, eps=2.0, cost=cost), ds.Problem(x=x, y=y, eps=2.0)])
    plans, host = coupled(some), load("reference").couple([r.instance for r in some], [r.potentials for r in some])
    values = [rng.normal(size=(23, 2))] * 2
    for ours, theirs in zip(plans.apply([on_device(v) for v in values]), host.apply(values), strict=True):
        close(ours, array(theirs))
    for ours, theirs in zip(plans.slopes("col"), host.slopes("col"), strict=True):
        close(ours, array(theirs), 1e-3 * float(np.abs(array(theirs)).max()))
    assert [stack.float64 for stack in plans._sides[0]] == [False] * len(plans._sides[0])
    for ours, theirs in zip(plans.transport_cost(), host.transport_cost(), strict=True):
        assert np.allclose(ours, theirs, rtol=ACCURACY, atol=ACCURACY)
    for ours, theirs in zip(plans.barycentric_map(), host.barycentric_map(), strict=True):
        close(ours, array(theirs))


@pytest.mark.parametrize("side", ["row", "col"])
def test_slopes_are_those_of_the_host(results: Any, point_plans: Any, side: str) -> None:
    some = points_only(results)
    truth = load("reference").couple([r.instance for r in some], [r.potentials for r in some]).slopes(side)
    for ours, theirs in zip(point_plans.slopes(side), truth, strict=True):
        close(ours, array(theirs), 1e-3 * float(np.abs(array(theirs)).max()))


def test_draws_are_those_of_the_host(results: Any, plans: Any) -> None:
    count, agree = 64, []
    seeds = [(3, r.ticket) for r in results]
    host = load("reference").couple([r.instance for r in results], [r.potentials for r in results])
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
    monkeypatch.setattr(module, "ACCURACY", -1.0)
    plans = coupled(results[:3])
    assert not all(stack.float64 for stack in plans._stacks)
    for side in ("row", "col"):
        values = [on_device(np.ones(len(r.potentials[side == "row"]))) for r in results[:3]]
        for out, result, value in zip(plans.apply(values, side), results[:3], values, strict=True):
            plan = plan_of(result) if side == "row" else plan_of(result).T
            close(out, plan @ array(value))
    assert all(stack.float64 for stacks in plans._sides.values() for stack in stacks)
    assert list(plans._sides) == [0, 1], "what one side needs says nothing of the other"


@pytest.mark.parametrize("dim", [5, 16, 20])
def test_lanes_are_consumed_as_if_alone(dim: int) -> None:
    """Whatever their neighbours, to the bit; 16 coordinates leave no room for potentials in the product."""
    some = [
        cloud_result(seed, n, dim, scale=scale) for seed, (n, scale) in enumerate(((70, 1.0), (90, 30.0), (100, 0.1)))
    ]
    for side, place in (("row", 1), ("col", 0)):
        values = [on_device(np.random.default_rng(1).normal(size=(len(r.potentials[place]), 5))) for r in some]
        for verb in ("apply", "average"):
            together = getattr(coupled(some), verb)(values, side)
            for result, value, out in zip(some, values, together, strict=True):
                plan = plan_of(result) if side == "row" else plan_of(result).T
                truth = plan @ array(value)
                close(out, truth if verb == "apply" else truth / plan.sum(1, keepdims=True), float(plan.max()))
                assert torch.equal(out, getattr(coupled([result]), verb)([value], side)[0])


def test_float32_is_enough_for_ordinary_clouds() -> None:
    """Lanes of unequal sizes and weights, all of them consumed by one float32 launch."""
    weights_of = np.r_[0.0, np.full(60, 1e-6), np.ones(19)]
    some = [cloud_result(0, 70, 5), cloud_result(1, 80, 5, a=weights_of / weights_of.sum())]
    plans = coupled(some)
    for side in ("row", "col"):
        plans.log_ratios(side)
    assert [stack.float64 for stacks in plans._sides.values() for stack in stacks] == [False, False]


def test_potentials_that_float16_cannot_hold_are_consumed_in_float64() -> None:
    """A constant may move from one potential to the other; halves of the one that carries it do not see it."""
    result = cloud_result(0, 70, 5)
    f, g = (p.double() for p in result.potentials)
    shift = 2.0**17 * result.problem.eps
    plans = coupled([replace(result, emitted=ds.Potentials(f + shift, g - shift))])
    values = np.random.default_rng(1).normal(size=len(g))
    close(plans.apply([on_device(values)])[0], plan_of(result) @ values)
    assert [stack.float64 for stack in plans._sides[0]] == [True]


def test_small_masses_keep_their_means() -> None:
    """Terms of a row of little mass are among the smallest float16 numbers, or none."""
    result = cloud_result(0, 70, 5)
    f, g = result.potentials
    shifted = f.clone()
    shifted[7] -= 25 * result.problem.eps
    odd = replace(result, emitted=ds.Potentials(shifted, g))
    plan, y = plan_of(odd), array(odd.problem.y)
    close(ds.barycentric_map([odd])[0], plan @ y / plan.sum(1, keepdims=True))


def test_uniform_weights_are_the_same_beside_a_neighbour_that_has_others() -> None:
    rng = np.random.default_rng(3)
    x, y = (on_device(rng.normal(size=(2, 49, 3))) for _ in range(2))
    batch = [ds.Problem(x=x[k], y=y[k], eps=0.5) for k in range(2)]
    solution = ds.solve(batch, backend="triton")
    potentials = [r.potentials for r in solution]
    values = [on_device(rng.normal(size=(49, 2)))] * 2
    weights = np.arange(1, 50) / 1225
    beside = [batch[0], replace(batch[1], a=weights)]
    plain, mixed = (couple(TritonBackend(), each, potentials).apply(values)[0] for each in (batch, beside))
    assert torch.equal(plain, mixed)


@pytest.mark.parametrize("side", ["f", "g"])
@pytest.mark.parametrize("d", [3, 70])
def test_nothing_is_drawn_from_a_plan_that_is_no_number(d: int, side: str) -> None:
    result = cloud_result(3, 20, d)
    getattr(result.potentials, side)[5] = torch.nan
    with pytest.raises(ds.ProblemError, match="not finite"):
        coupled([result]).sample(3, [0])
