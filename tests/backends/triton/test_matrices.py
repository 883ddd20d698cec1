"""Consumers of points of many coordinates: stored exponents in place of streamed scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.backends.triton import couplings as module
from drainsinkhorn.backends.triton import stacks
from drainsinkhorn.backends.triton.matrices import Matrices
from tests.backends.triton.consumed import ACCURACY, close, cloud_result, coupled, on_device, solved
from tests.dense import array, cost_of, plan_of, weights
from tests.device import torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KINDS = ("sqeuclidean", "euclidean", "cosine")
VERBS = ("apply", "average", "log_ratios", "top_match", "sample", "partners", "transport_cost")


def problem(rng: np.random.Generator, kind: str, n: int, m: int, dim: int, *, weighted: bool) -> ds.Problem[Any]:
    """Far from the origin, some points without weight; float32."""
    x, y = (rng.normal(size=(size, dim)).astype(np.float32) + 2 for size in (n, m))
    a, b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
    a[[0, 2]], b[-1] = 0.0, 0.0
    masses = {"a": a / a.sum(), "b": b / b.sum()} if weighted else {}
    eps = 0.03 * float(np.median(cdist(x, y, kind)))
    return ds.Problem(x=x, y=y, eps=eps, cost=ds.Cost(kind, 0.7), **masses)


@pytest.fixture(scope="module")
def results() -> list[ds.Result[Any]]:
    """Three costs, two of each in one stack, with and without weights; one of more than one tile of rows."""
    rng = np.random.default_rng(0)
    sizes = ((33, 21), (26, 47), (140, 20))
    return solved(
        [
            problem(rng, kind, n, m, 70 + 5 * k, weighted=at % 2 == 0)
            for k, kind in enumerate(KINDS)
            for at, (n, m) in enumerate(sizes[: 3 if k == 0 else 2])
        ]
    )


@pytest.fixture(scope="module")
def plans(results: list[ds.Result[Any]]) -> Any:
    """All of them at once."""
    return coupled(results)


def told(results: list[ds.Result[Any]], verb: str, side: str) -> tuple[Any, ...]:
    """What a verb is given."""
    rng = np.random.default_rng(1)
    if verb in ("apply", "average"):
        return [on_device(rng.normal(size=(len(r.potentials[side == "row"]), 3))) for r in results], side
    seeds = [(5, r.ticket) for r in results]
    return {
        "sample": (24, seeds),
        "partners": ([np.arange(0, len(r.potentials.f), 3) for r in results], seeds),
        "transport_cost": (),
    }.get(verb, (side,))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(equal(*pair) for pair in zip(one, other, strict=True))
    return one == other if isinstance(one, float) else torch.equal(one, other)


@pytest.mark.parametrize("side", ["row", "col"])
def test_means_ratios_and_matches(results: list[ds.Result[Any]], plans: Any, side: str) -> None:
    values, _ = told(results, "apply", side)
    pushed, means, logs = plans.apply(values, side), plans.average(values, side), plans.log_ratios(side)
    best, maps = plans.top_match(side), plans.barycentric_map(side)
    for k, result in enumerate(results):
        plan = plan_of(result) if side == "row" else plan_of(result).T
        value, mass, inside = array(values[k]), plan.sum(1), plan.sum(1) > 0
        other = array(result.problem.y if side == "row" else result.problem.x)
        weight = weights(result.problem.a if side == "row" else result.problem.b, len(mass))
        close(pushed[k], plan @ value, float((plan @ np.abs(value)).max()))
        close(means[k][on_device(inside)], (plan @ value)[inside] / mass[inside, None], float(np.abs(value).max()))
        close(maps[k][on_device(inside)], (plan @ other)[inside] / mass[inside, None])
        close(np.exp(array(logs[k]))[inside], mass[inside] / weight[inside])
        there = np.take_along_axis(plan, best[k].cpu().numpy()[:, None], axis=1)[:, 0]
        assert there == pytest.approx(plan.max(1), rel=ACCURACY)
    stacks = [stack for some in (plans._stacks, *plans._sides.values()) for stack in some]
    assert all(stack.matrices is not None and not stack.float64 for stack in stacks)
    assert len(plans._stacks) < len(results), "lanes of like size share a stack"


def test_costs(results: list[ds.Result[Any]], plans: Any) -> None:
    for costs, result in zip(plans.transport_cost(), results, strict=True):
        plan, cost, eps = plan_of(result), cost_of(result.problem), result.problem.eps
        f, g = (array(p) for p in result.potentials)
        a, b = weights(result.problem.a, len(f)), weights(result.problem.b, len(g))
        inside = plan > 0
        kl = (plan[inside] * np.log(plan[inside] / (a[:, None] * b)[inside])).sum() - plan.sum() + 1
        assert costs.transport == pytest.approx((plan * cost).sum(), rel=ACCURACY)
        assert costs.kl == pytest.approx(kl, rel=ACCURACY)
        assert costs.dual == pytest.approx(a @ f + b @ g - eps * (plan.sum() - 1), rel=ACCURACY)


def test_draws_are_those_of_the_host(results: list[ds.Result[Any]], plans: Any) -> None:
    host = load("reference").couple([r.instance for r in results], [r.potentials for r in results])
    agree = []
    for verb in ("sample", "partners"):
        given = told(results, verb, "row")
        pairs = zip(getattr(plans, verb)(*given), getattr(host, verb)(*given), strict=True)
        for ours, theirs in pairs:
            ours, theirs = (torch.stack(each) if verb == "sample" else each[None] for each in (ours, theirs))
            agree += (ours == theirs).all(0).tolist()
    # The same numbers choose; only a number within rounding of a cumulative sum may choose a neighbour.
    assert np.mean(agree) > 0.995


def test_lanes_are_consumed_as_if_alone(results: list[ds.Result[Any]], plans: Any) -> None:
    """Whatever their neighbours, to the bit: the first two of a stack, and one that takes roots."""
    for k in (0, 1, 4):
        alone = coupled([results[k]])
        for verb, side in [(verb, "row") for verb in VERBS] + [(verb, "col") for verb in VERBS[:4]]:
            given = told(results, verb, side)
            one = [some if isinstance(some, (str, int)) else [some[k]] for some in given]
            assert equal(getattr(alone, verb)(*one)[0], getattr(plans, verb)(*given)[k]), (verb, side)


def test_stacks_too_large_to_keep_are_the_same_to_the_bit(
    results: list[ds.Result[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = results[:2]
    kept = coupled(some)
    monkeypatch.setattr(module, "KEPT_PAIRS", 128)
    monkeypatch.setattr(module, "PART_PAIRS", 128)
    anew = coupled(some)
    assert [len(stack.lanes) for stack in anew._stacks] == [1, 1]
    for verb in ("apply", "sample"):
        given = told(some, verb, "row")
        assert equal(tuple(getattr(kept, verb)(*given)), tuple(getattr(anew, verb)(*given)))
    assert all(stack.matrices.kept is None for stack in anew._stacks)
    assert all(stack.matrices.kept is not None for stack in kept._stacks)


def test_huge_lanes_are_consumed_in_slabs(results: list[ds.Result[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: a product of two points does not depend on the points beside them."""
    wide = solved([problem(np.random.default_rng(3), "sqeuclidean", 20, 140, 70, weighted=True)])
    some, sizes = [results[2], results[0], *wide], list[tuple[int, ...]]()
    whole, of = coupled(some), Matrices.of

    def record(self: Matrices, stack: Any) -> Any:
        matrix = of(self, stack)
        sizes.append(tuple(matrix.shape))
        return matrix

    for owner in (module, stacks):
        monkeypatch.setattr(owner, "PART_PAIRS", 2**14)
    monkeypatch.setattr(stacks, "SLAB_PAIRS", 2**14)
    monkeypatch.setattr(Matrices, "of", record)
    slabs = coupled(some)
    for verb, side in [(verb, "row") for verb in VERBS] + [(verb, "col") for verb in VERBS[:4]]:
        given = told(some, verb, side)
        assert equal(tuple(getattr(whole, verb)(*given)), tuple(getattr(slabs, verb)(*given))), (verb, side)
    assert set(sizes) == {(1, 128, 128), (1, 128, 256), (1, 256, 128)}
    assert not any(stack.float64 for side in slabs._sides.values() for stack in side)


@pytest.mark.parametrize("times", [0, 1])
def test_no_memory_for_a_matrix_loses_nothing(
    results: list[ds.Result[Any]], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Neither when it is made first, nor when a draw wants it again."""
    some, given = results[:2], told(results[:2], "sample", "row")
    truth, left, of = coupled(some).sample(*given), iter(range(times)), Matrices.of

    def full(self: Matrices, stack: Any) -> Any:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("no memory")
        return of(self, stack)

    monkeypatch.setattr(Matrices, "of", full)
    plans = coupled(some)
    for ours, theirs in zip(plans.sample(*given), truth, strict=True):
        assert float((torch.stack(ours) == torch.stack(theirs)).all(0).double().mean()) > 0.95
    assert all(stack.float64 is (times == 0) for stack in plans._sides[0])
    values, _ = told(some, "apply", "row")
    for out, result, value in zip(plans.apply(values), some, values, strict=True):
        close(out, plan_of(result) @ array(value), 1e-2)


def test_constants_may_move_between_potentials() -> None:
    """What float16 pairs could not hold, float64 does before anything is rounded."""
    result = cloud_result(0, 30, 70)
    f, g = (p.double() for p in result.potentials)
    shift = 2.0**17 * result.problem.eps
    plans = coupled([replace(result, emitted=ds.Potentials(f + shift, g - shift))])
    values = np.random.default_rng(1).normal(size=len(g))
    close(plans.apply([on_device(values)])[0], plan_of(result) @ values)
    transport = (plan_of(result) * cost_of(result.problem)).sum()
    assert plans.transport_cost()[0].transport == pytest.approx(transport, rel=1e-6)
    assert [stack.float64 for stack in plans._sides[0]] == [False]


def test_lanes_in_doubt_are_consumed_in_float64_and_others_are_not() -> None:
    """Too far apart for products in float64, a weight so small that exponents are large, no number at all."""
    light = np.r_[2.0**-150, np.ones(29)]
    some = [cloud_result(0, 30, 70), cloud_result(1, 30, 70, a=light / light.sum()), cloud_result(2, 30, 70)]
    far = some[2].problem.x.clone()
    far[3] += 1e6
    some[2] = replace(some[2], problem=replace(some[2].problem, x=far))
    plans = coupled(some)
    values = [on_device(np.random.default_rng(1).normal(size=33)) for _ in some]
    for out, result, value in zip(plans.apply(values), some, values, strict=True):
        close(out, plan_of(result) @ array(value), 1e-2)
    assert {lane: stack.float64 for stack in plans._sides[0] for lane in stack.lanes} == {0: False, 1: True, 2: True}
    some[0].potentials.f[5] = torch.nan
    with pytest.raises(ds.ProblemError, match="not finite"):
        coupled(some[:1]).sample(3, [0])


def test_points_without_weight_may_lie_anywhere() -> None:
    light = np.r_[0.0, np.ones(29)]
    result = cloud_result(0, 30, 70, a=light / light.sum())
    x = result.problem.x.clone()
    x[0] = 1e18
    odd = replace(result, problem=replace(result.problem, x=x))
    values = [on_device(np.random.default_rng(1).normal(size=size)) for size in (33, 30)]
    plan = plan_of(odd)
    plans = coupled([odd])
    close(plans.apply(values[:1])[0], plan @ array(values[0]))
    close(plans.apply(values[1:], "col")[0], plan.T @ array(values[1]))
