"""Batch vectors: points of many problems in one array are split as they are named, and outputs go back in order."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.run.batches import group_points
from tests.conftest import needs

SIZES, OTHERS = [5, 1, 9, 4], [3, 8, 2, 6]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(sum(SIZES), 2)), RNG.normal(size=(sum(OTHERS), 2))
A, B = RNG.uniform(0.5, 1.5, size=len(X)), RNG.uniform(0.5, 1.5, size=len(Y))
BATCH_X, BATCH_Y = (np.repeat(np.arange(4), sizes) for sizes in (SIZES, OTHERS))
MIXED = np.random.default_rng(1).permutation(len(X))


def normalised(weights: Any, batch: Any) -> Any:
    """Weights whose sum over each problem is 1, since both sides need equal masses."""
    return weights / np.bincount(batch, weights)[batch]


def lists(values: Any, batch: Any) -> list[Any]:
    return [values[batch == k] for k in range(4)]


def test_problems_are_those_of_the_lists() -> None:
    a, b = normalised(A, BATCH_X), normalised(B, BATCH_Y)
    eps = [0.5, 0.6, 0.7, 0.8]
    ours = ds.solve(X, Y, a=a, b=b, eps=eps, batch=(BATCH_X, BATCH_Y))
    theirs = ds.solve(
        *(lists(p, batch) for p, batch in ((X, BATCH_X), (Y, BATCH_Y))),
        a=lists(a, BATCH_X), b=lists(b, BATCH_Y), eps=eps,
    )  # fmt: skip
    assert ours.converged
    for one, two in zip(ours, theirs, strict=True):
        assert all(np.array_equal(p, q) for p, q in zip(one.potentials, two.potentials, strict=True))


def test_points_may_be_in_any_order_and_outputs_come_back_in_it() -> None:
    plain = ds.solve(X, Y, eps=0.5, batch=(BATCH_X, BATCH_Y))
    mixed = ds.solve(X[MIXED], Y, eps=0.5, batch=(BATCH_X[MIXED], BATCH_Y))
    for images, batch in ((ds.barycentric_map(plain), BATCH_X), (ds.barycentric_map(mixed), BATCH_X[MIXED])):
        joined = ds.concatenate(images, batch)
        assert joined.shape == (len(X), 2)
        for k in range(4):
            assert np.array_equal(joined[batch == k], images[k])
    f = ds.concatenate([result.potentials.f for result in mixed], BATCH_X[MIXED])
    assert np.allclose(f, ds.concatenate([result.potentials.f for result in plain], BATCH_X)[MIXED], atol=1e-12)


def test_starts_are_split() -> None:
    cold = ds.solve(X, Y, eps=0.5, batch=(BATCH_X, BATCH_Y))
    f, g = (ds.concatenate([r.potentials[side] for r in cold], v) for side, v in ((0, BATCH_X), (1, BATCH_Y)))
    warm = ds.solve(X, Y, eps=0.5, batch=(BATCH_X, BATCH_Y), init=(f, g))
    assert max(result.depth for result in warm) <= 2
    assert [p.init for p in ds.problems(X, Y, eps=0.5, batch=(BATCH_X, BATCH_Y), init="zero")] == ["zero"] * 4


def test_sorted_clouds_are_views() -> None:
    torch = needs("torch")
    for problem in ds.problems(X, Y, eps=0.5, batch=(BATCH_X, BATCH_Y)):
        assert problem.x.base is X
    points = torch.as_tensor(X)
    split = ds.problems(points, torch.as_tensor(Y), eps=0.5, batch=[torch.as_tensor(BATCH_X), torch.as_tensor(BATCH_Y)])
    assert all(p.x.untyped_storage().data_ptr() == points.untyped_storage().data_ptr() for p in split)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_libraries_come_back(library: str) -> None:
    convert = needs("torch").as_tensor if library == "torch" else needs("jax").numpy.asarray
    x, y, batch_x, batch_y = (convert(v) for v in (X.astype("f4")[MIXED], Y.astype("f4"), BATCH_X[MIXED], BATCH_Y))
    solution = ds.solve(x, y, eps=0.5, batch=(batch_x, batch_y))
    images = ds.concatenate(ds.barycentric_map(solution), batch_x)
    assert type(solution[0].problem.x) is type(x)
    assert type(images) is type(x)
    plain = ds.solve(X.astype("f4"), Y.astype("f4"), eps=0.5, batch=(BATCH_X, BATCH_Y))
    expected = ds.concatenate(ds.barycentric_map(plain), BATCH_X)[MIXED]
    assert np.allclose(np.asarray(images), expected, atol=1e-5)


def test_a_thousand_clouds_are_split_in_milliseconds() -> None:
    """About one millisecond on an idle core; the bound leaves room for a busy machine, and none for a loop of masks."""
    sizes = np.random.default_rng(0).integers(20, 60, size=1000)
    batch = np.repeat(np.arange(1000), sizes)
    points = np.random.default_rng(1).normal(size=(len(batch), 3))
    order = np.random.default_rng(2).permutation(len(batch))
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        grouping = group_points("batch", batch[order], len(batch))
        clouds = [points[first:last] for first, last in pairwise(grouping.bounds)]
        seconds.append(time.perf_counter() - begun)
    assert len(clouds) == 1000
    assert min(seconds) < 0.02


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "one vector": ({"batch": BATCH_X}, "batch must be a pair of vectors, for x and for y, got ndarray"),
    "floats": (
        {"batch": (BATCH_X * 1.0, BATCH_Y)},
        "batch of x must be a vector of integers, got float64 of shape (19,)",
    ),
    "matrix": (
        {"batch": (BATCH_X[None], BATCH_Y)},
        "batch of x must be a vector of integers, got int64 of shape (1, 19)",
    ),
    "length": (
        {"batch": (BATCH_X, BATCH_Y[1:])},
        "batch of y has 18 entries for 19 points; it needs one for each point",
    ),
    "negative": ({"batch": (BATCH_X - 1, BATCH_Y)}, "batch of x has the entry -1; problems are numbered from 0"),
    "gap": ({"batch": (BATCH_X, 2 * BATCH_Y)}, "batch of y goes up to 6 and has no point of problem 1; number"),
    "huge": ({"batch": (BATCH_X + 10**15, BATCH_Y)}, "has no point of problem 0; number the problems 0, 1, 2"),
    "unequal": ({"batch": (BATCH_X, np.minimum(BATCH_Y, 2))}, "batch names 4 problems for x and 3 for y"),
    "weights": ({"a": A[:-1]}, "with batch, a must have one entry for each of 19 points, got shape (18,)"),
    "start": ({"init": (A, B[1:])}, "with batch, g must have one entry for each of 19 points, got shape (18,)"),
    "stack": ({"x": X[None]}, "with batch, x must hold the points of all problems, (N, d), got (1, 19, 2)"),
    "no points": ({"x": None, "y": None, "cost": np.eye(3)}, "with batch, x must hold the points of all problems"),
    "eps": ({"eps": [0.5, 0.6]}, "inputs do not agree on the number of problems"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    changes, message = BAD[name]
    arguments = {"x": X, "y": Y, "eps": 0.5, "batch": (BATCH_X, BATCH_Y), **changes}
    with pytest.raises(ds.ProblemError, match=re.escape(message)):
        ds.solve(**arguments)


def test_problems_have_no_batch() -> None:
    with pytest.raises(ds.ProblemError, match="problems passed as such have none"):
        ds.solve([ds.Problem(x=X, y=Y, eps=1.0)], batch=(BATCH_X, BATCH_Y))


def test_values_that_do_not_fit_are_refused() -> None:
    values = lists(X, BATCH_X)
    with pytest.raises(ds.ProblemError, match=r"there are 3 values, and batch names 4 problems|has 19 entries for 15"):
        ds.concatenate(values[:3], BATCH_X)
    with pytest.raises(ds.ProblemError, match=r"values\[0\] has 1 rows, and problem 0 5 points"):
        ds.concatenate([values[1], values[0], *values[2:]], BATCH_X)
    with pytest.raises(ds.ProblemError, match="values must be arrays, one for each problem"):
        ds.concatenate([1.0, 2.0], BATCH_X)
