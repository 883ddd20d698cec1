"""Potentials come back in the caller's dtype where that holds tol, on every backend alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.numerics import arrays
from drainsinkhorn.numerics.arrays import float_name, round_to, to_numpy
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors
from tests.conftest import needs

RNG = np.random.default_rng(0)
X, Y = 0.5 * RNG.normal(size=(20, 2)), 0.5 * RNG.normal(size=(24, 2)) + 0.3
BACKENDS = {
    "reference": lambda: "reference",
    "cached": lambda: CpuBackend(representation="cached"),
    "float32": lambda: CpuBackend(representation="cached", precision="float32"),
    "streaming": lambda: CpuBackend(representation="streaming"),
    "ott": lambda: needs("ott") and "ott",
    "keops": lambda: needs("pykeops") and "keops",
}
EXPECTED = {0.3: None, 1e-3: "float32", 1e-8: "float64"}
"""The dtype of potentials by tol; None for the caller's own of sixteen bits."""


def points(library: str, dtype: str) -> list[Any]:
    if library == "numpy":
        return [p.astype(dtype) for p in (X, Y)]
    module = needs(library)
    if library == "torch":
        return [module.as_tensor(p).to(getattr(module, dtype)) for p in (X, Y)]
    return [module.numpy.asarray(p, dtype=dtype) for p in (X, Y)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("library", "dtype"), [("numpy", "float16"), ("torch", "float16"), ("torch", "bfloat16"), ("jax", "bfloat16")]
)
def test_sixteen_bits_come_back_where_they_hold_tol(backend: str, library: str, dtype: str) -> None:
    x, y = points(library, dtype)
    for tol, name in EXPECTED.items():
        if (backend, tol) == ("float32", 1e-8):
            continue
        result = ds.solve([x], [y], eps=1.0, tol=tol, backend=BACKENDS[backend]())[0]
        assert result.converged
        assert {float_name(p) for p in result.potentials} == {name or dtype}
        assert arrays.library(result.potentials.f) == library
        assert result.widened == (name is not None)
        # Of the potentials as the caller has them.
        assert max(marginal_errors(result.problem, result.potentials)) <= tol


@pytest.mark.parametrize("backend", ["reference", "cached"])
def test_lanes_of_all_dtypes_share_a_pack(backend: str) -> None:
    problems = [ds.Problem(x=x, y=y, eps=1.0) for x, y in (points("numpy", d) for d in ("f2", "f4", "f8", "i4"))]
    problems += [ds.Problem(x=x, y=y, eps=1.0) for x, y in (points("torch", d) for d in ("float16", "bfloat16"))]
    together = ds.solve(problems, tol=0.3, backend=BACKENDS[backend]())
    names = ["float16", "float32", "float64", "float64", "float16", "bfloat16"]
    assert [float_name(result.potentials.f) for result in together] == names
    assert [result.widened for result in together] == [False, False, False, True, False, False]
    for problem, result in zip(problems, together, strict=True):
        alone = ds.solve([problem], tol=0.3, backend=BACKENDS[backend]())[0]
        assert np.array_equal(to_numpy(result.potentials.f), to_numpy(alone.potentials.f))
    assert float_name(ds.solve(problems[5:] * 2, tol=0.3).potentials.f) == "bfloat16"
    assert float_name(ds.solve([problems[4], problems[5]], tol=0.3).potentials.f) == "float32", "holds both"


@pytest.mark.parametrize("backend", ["reference", "cached"])
def test_points_without_weight_may_lie_beyond_the_range_of_float16(backend: str) -> None:
    x, y = points("numpy", "float16")
    x[0] = 6e4
    a = np.ones(20, dtype=np.float16)
    a[0] = 0
    result = ds.solve([x], [y], a=[a], b=[np.full(24, 19 / 24)], eps=1.0, tol=0.3, backend=BACKENDS[backend]())[0]
    assert result.converged
    assert {p.dtype for p in result.potentials} == {np.dtype("f2")}
    assert all(np.isfinite(p).all() for p in result.potentials)


def test_plans_of_sixteen_bits_have_float32() -> None:
    x, y = points("numpy", "float16")
    result = ds.solve([x], [y], eps=1.0, tol=0.3)[0]
    assert result.plan().dtype == result.barycentric_map().dtype == np.float32
    assert np.abs(result.plan().sum(1) - 1 / 20).sum() <= 0.3


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    torch = needs("torch")
    values = RNG.normal(size=20_000) * 10.0 ** RNG.integers(-42, 37, size=20_000)
    ties = (np.arange(1, 4001) * 2**-9) * 2.0 ** RNG.integers(-20, 20, size=4000)
    values = np.concatenate([values, ties, [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38]]).astype("f4")
    found, truth = round_to(values.astype("f8"), "bfloat16"), torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(found.view("u4")[values == values], truth.view("u4")[values == values])
    assert np.isnan(found[values != values]).all()


def test_a_journal_gives_bfloat16_back(tmp_path: Path) -> None:
    needs("torch")
    x, y = points("torch", "bfloat16")
    problems = [ds.Problem(x=x, y=y, eps=1.0, tol=tol) for tol in EXPECTED]
    first, again = (ds.solve(problems, journal=tmp_path / "journal", backend="reference") for _ in range(2))
    assert again.ledger.slots == 0
    for one, two in zip(first, again, strict=True):
        assert one.potentials.f.dtype == two.potentials.f.dtype
        assert bool((one.potentials.f == two.potentials.f).all())
        assert one.widened == two.widened
    single = ds.Problem(x=x.float(), y=y.float(), eps=1.0, tol=0.3)
    with pytest.raises(ds.DrainError, match="is not the one that the journal"):
        ds.solve([single], journal=tmp_path / "journal", backend="reference")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [3, 100, 5000])
def test_weights_that_were_normalised_in_their_own_dtype_have_equal_masses(dtype: str, size: int) -> None:
    torch = needs("torch")
    rng = np.random.default_rng(size)
    x = np.zeros((size, 1))
    for _ in range(100 if size < 1000 else 5):
        a, b = (torch.softmax(torch.as_tensor(3 * rng.normal(size=size)).to(getattr(torch, dtype)), 0) for _ in "ab")
        validate(ds.Problem(x=x, y=x, a=a, b=b, eps=1.0), 1e-3)
        with pytest.raises(ds.ProblemError, match="balanced transport needs equal masses"):
            validate(ds.Problem(x=x, y=x, a=a, b=1.1 * b.double(), eps=1.0), 1e-3)


def test_masses_of_float64_are_judged_as_before() -> None:
    x, a = np.zeros((4, 1)), np.full(4, 0.25)
    validate(ds.Problem(x=x, y=x, a=a, b=a * (1 + 9e-6), eps=1.0), 1e-3)
    with pytest.raises(ds.ProblemError, match="balanced transport needs equal masses"):
        validate(ds.Problem(x=x, y=x, a=a, b=a * (1 + 2e-5), eps=1.0), 1e-3)
