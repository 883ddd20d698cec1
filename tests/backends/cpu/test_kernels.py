"""Each kernel of the CPU backend against the function of `numerics` that its docstring names."""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import (
    CpuBackend,
    leg_kernels,
    loading_kernels,
    plan_kernels,
    scores,
    soft_kernels,
    streaming_kernels,
)
from drainsinkhorn.backends.cpu import update_kernels as k
from drainsinkhorn.backends.cpu.lane_table import ABSORBED, FRESH, new_lanes
from drainsinkhorn.backends.cpu.pack import CpuPack
from drainsinkhorn.backends.cpu.tiles import EXPANDED, padded_width
from drainsinkhorn.model.marginal import Marginal, Marginals
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import soft_bound
from drainsinkhorn.numerics.soft import log_deviations, log_total, soft_exponents, soft_residual, translation
from drainsinkhorn.numerics.starts import WORTH, start, worthwhile
from drainsinkhorn.numerics.transforms import conditionals
from drainsinkhorn.numerics.update import PLAIN, Momentum, Stride, alignment, log_ratios, update
from drainsinkhorn.run.validate import validate
from tests.gaussian import gaussian_starts

MODULES = (leg_kernels, loading_kernels, plan_kernels, scores, soft_kernels, streaming_kernels, k)
NAMES = re.compile(r"`numerics\.(\w+)\.(\w+)`")
STRIDE = Stride(1.25, 0.4)
N, M = 37, 29


def naming_kernels() -> dict[str, list[tuple[str, str]]]:
    """Kernels by name, and the functions of `numerics` in their docstrings."""
    kernels = {}
    for module in MODULES:
        for name, kernel in vars(module).items():
            function = getattr(kernel, "py_func", None)
            if function is not None and function.__module__ == module.__name__:
                named = NAMES.findall(function.__doc__ or "")
                if named:
                    kernels[name] = named
    return kernels


class Example:
    """A cached lane in the middle of its way, its vectors, and its problem in float64. Potentials are in nats.

    Attributes:
        lane: Its record in the lane table.
        s: Scores `C / eps`, (N, M).
        f: Potentials of rows, (N,).
        g: Potentials of columns, (M,).
        forms: The form of its scores, and that of scores from differences.
    """

    def __init__(self, dtype: str, *, momentum: bool = True, d: int = 3, rho: Any = None) -> None:
        rng = np.random.default_rng(5)
        a, b = rng.dirichlet(np.full(N, 3.0)), rng.dirichlet(np.full(M, 3.0))
        x, y = rng.normal(size=(N, d)), rng.normal(size=(M, d)) + 0.5
        b = b if rho is None else 1.4 * b
        self.instance = validate(ds.Problem(x=x, y=y, a=a, b=b, eps=0.4 * d, rho=rho), 1e-3)
        self.one, self.tol = np.dtype(dtype).type(1), 1e-11 if dtype == "float64" else 3e-5
        self.pack = CpuPack([self.instance], np.dtype(dtype), 1, momentum=momentum)
        self.pack.advance(4, [-np.inf])
        self.lane = self.pack._table[0]
        assert self.lane["state"] == ABSORBED
        self.s = cost_matrix(self.instance)[0] / self.instance.eps
        self.a, self.b = self.instance.a, self.instance.b
        self.forms = int(self.lane["form"]), scores.direct_form(self.lane)
        self.read_state()

    def read_state(self) -> None:
        self.f, self.g = np.empty(N), np.empty(M)
        leg_kernels.write_state(self.lane, self.one, self.f, self.g)

    def view(self, field: str, size: int, dtype: Any = np.float64) -> np.ndarray:
        """The vector of a field, where the kernels have it."""
        kind = ctypes.c_float if np.dtype(dtype) == np.float32 else ctypes.c_double
        return np.ctypeslib.as_array((kind * size).from_address(int(self.lane[field])))

    def own(self, field: str, size: int) -> np.ndarray:
        """A vector in the lane's precision."""
        return self.view(field, size, self.one.dtype)

    def rows(self, f: Any = None, g: Any = None) -> np.ndarray:
        """Log marginal ratios of the rows."""
        f, g = self.f if f is None else f, self.g if g is None else g
        return log_ratios(f, g, np.log(self.b), self.s, 1.0)

    def cols(self, f: Any = None, g: Any = None) -> np.ndarray:
        """Log marginal ratios of the columns."""
        f, g = self.f if f is None else f, self.g if g is None else g
        return log_ratios(g, f, np.log(self.a), self.s.T, 1.0)

    def agree(self, found: Any, truth: Any) -> None:
        assert np.allclose(found, truth, rtol=0, atol=self.tol * (1 + np.abs(truth).max()))


COMPARISONS: dict[str, Callable[[Example], None]] = {}


def compares(name: str) -> Callable[[Callable[[Example], None]], Callable[[Example], None]]:
    """Register the comparison of a kernel."""

    def register(comparison: Callable[[Example], None]) -> Callable[[Example], None]:
        COMPARISONS[name] = comparison
        return comparison

    return register


@compares("sum_rows")
def _(e: Example) -> None:
    r = np.empty(N, dtype=e.one.dtype)
    leg_kernels.sum_rows(e.own("kernel", N * M), M, e.own("w", M), r, 0, N)
    e.agree(np.log(r) + e.f - e.view("base_f", N), e.rows())


@compares("add_rows")
def _(e: Example) -> None:
    c, t = np.zeros(M, dtype=e.one.dtype), (e.a * np.exp(e.f - e.view("base_f", N))).astype(e.one.dtype)
    leg_kernels.add_rows(e.own("kernel", N * M), M, t, c, 0, N)
    e.agree(np.log(c) + e.g - e.view("base_g", M), e.cols())


@compares("sweep")
def _(e: Example) -> None:
    r, c, t = (np.empty(size, dtype=e.one.dtype) for size in (N, M, N))
    for given in (True, False):
        t[:] = e.a * np.exp(e.f - e.view("base_f", N)) if given else e.a
        leg_kernels.sweep(e.own("kernel", N * M), M, e.own("w", M), t, given, r, c, 0, N)
        e.agree(np.log(r) + e.f - e.view("base_f", N), e.rows())
        after = e.f if given else update(e.f, e.rows(), 1.0)[0]
        e.agree(np.log(c) + e.g - e.view("base_g", M), e.cols(f=after))


@compares("plain_leg")
def _(e: Example) -> None:
    legs = [leg_kernels.plain_leg(row.copy(), e.g, e.b)[0] for row in e.s]
    assert np.allclose(legs, -e.rows(f=np.zeros(N)), rtol=0, atol=1e-12)


@compares("log_columns")
def _(e: Example) -> None:
    out = np.empty(M)
    for form in e.forms:
        leg_kernels.log_columns(e.lane, form, np.log(e.a) + e.f, out)
        assert np.allclose(out, -e.cols(g=np.zeros(M)), rtol=0, atol=1e-12)


@compares("scaled_residual")
def _(e: Example) -> None:
    u, logs = np.exp(e.f), e.rows()
    found = leg_kernels.scaled_residual(e.a, np.exp(logs - e.f), u)
    assert found == pytest.approx(residual(e.a, logs), rel=1e-12)


@compares("log_residual")
def _(e: Example) -> None:
    plain = update(e.f, e.rows(), 1.0)[0]
    assert leg_kernels.log_residual(e.a, e.f, plain) == pytest.approx(residual(e.a, e.rows()), rel=1e-12)


@compares("log_row_residual")
def _(e: Example) -> None:
    for form in e.forms:
        found = leg_kernels.log_row_residual(e.lane, form, e.f, e.g)
        assert found == pytest.approx(residual(e.a, e.rows()), rel=1e-10)


@compares("verify_logs")
def _(e: Example) -> None:
    e.agree(leg_kernels.verify_logs(e.lane, e.f, e.g), [residual(e.a, e.rows()), residual(e.b, e.cols())])


@compares("verify_absorbed")
def _(e: Example) -> None:
    e.agree(leg_kernels.verify_absorbed(e.lane, e.f, e.g, e.one), [residual(e.a, e.rows()), residual(e.b, e.cols())])


@compares("leg_errors")
def _(e: Example) -> None:
    logs, before = e.view("logs", N), e.view("before", N)
    truth = residual(e.a, logs), alignment(e.a, logs, e.f, before)
    assert k.leg_errors(e.lane) == pytest.approx(truth, rel=1e-9)


@compares("update_rule")
def _(e: Example) -> None:
    logs, before = e.rows(), e.f + 0.3
    for stride, lam in ((PLAIN, 1.0), (STRIDE, 1.0), (STRIDE, 0.7)):
        truth = update(e.f, logs, 1.0, stride, before, lam)
        for rule in (k.update_rule, k.update_rule.py_func):
            found = [rule(*row, *stride, lam, 0.0, 1.0) for row in zip(e.f, before, logs, strict=True)]
            assert np.allclose(np.transpose(found), truth, rtol=1e-14, atol=1e-15)
        found = k.update_rule.py_func(e.f, before, logs, *stride, lam, 0.0, np.log(2))
        assert np.allclose(found, update(e.f, logs, 1 / np.log(2), stride, before, lam), rtol=1e-14)


@compares("decide")
def _(e: Example) -> None:
    momentum, lane = Momentum(), new_lanes(1)[0]
    for error, along in ((1.0, 0.0), (0.9, 1.0), (0.8, 1.0), (0.7, -1.0), (0.6, 1.0), (9.0, 1.0), (0.6, 1.0)):
        momentum.measured_columns(1.0)
        lane["col_residual"] = 1.0
        k.decide(lane, error, along)
        assert (lane["step"], lane["beta"]) == momentum.stride(error, along)


@compares("propose")
def _(e: Example) -> None:
    e.lane["step"], e.lane["beta"], e.lane["damping"] = *STRIDE, 0.7
    k.propose(e.lane, 0, N, e.one)
    truth = update(e.f, e.view("logs", N), 1.0, STRIDE, e.view("before", N), 0.7)
    assert np.allclose((e.view("next_f", N), e.view("next_x", N)), truth, rtol=1e-13, atol=1e-14)
    e.agree(e.own("t", N), e.a * np.exp(truth[0] - e.view("base_f", N)))


@compares("sweep_rows")
def _(e: Example) -> None:
    k.run_group(e.lane, k.SWEEP, 0, e.one)
    e.agree(e.view("logs", N), e.rows())
    e.agree(np.log(e.own("group_sums", M)) + e.g - e.view("base_g", M), e.cols(f=e.view("next_f", N)))


@compares("absorb_rows")
def _(e: Example) -> None:
    assert k.leave_kernel(e.lane, e.one) == k.ABSORB
    assert e.lane["state"] == FRESH
    k.run_group(e.lane, k.ABSORB, 0, e.one)
    e.agree(e.view("base_f", N), -e.rows(f=np.zeros(N)))
    absorbed = np.exp(e.view("base_f", N)[:, None] + e.g - e.s)
    e.agree(e.own("kernel", N * M), absorbed.ravel())


@compares("begin_cycle")
def _(e: Example) -> None:
    stride = Stride(float(e.lane["step"]), float(e.lane["beta"]))
    f, _ = update(e.f, e.rows(), 1.0, stride, e.view("before", N).copy())
    g, _ = update(e.g, e.cols(f=f), 1.0)
    assert k.begin_cycle(e.lane, e.one) == k.SWEEP
    e.read_state()
    e.agree(e.f, f)
    e.agree(e.g, g)


def test_logarithms_of_quotients() -> None:
    for apart in (0.0, 1e-15, -1e-9, 1e-4, 0.019, -0.0199, 0.0201, 0.3, 5.0, -20.0):
        found = soft_kernels.log_quotient(3e-90 * np.exp(apart), 3e-90)
        assert found == pytest.approx(apart, rel=1e-12, abs=5e-16)


PRICES = [(2.0, 3.0), (np.inf, 1.5), (0.9, np.inf)]


class Soft(Example):
    """A lane with soft marginals; kappa and lam in nats."""

    def __init__(self, e: Example, rho: tuple[float, float]) -> None:
        super().__init__(e.one.dtype.name, rho=rho)
        eps = self.instance.eps
        self.kappa, self.lam = (tuple(get(m) for m in self.instance.marginals) for get in (
            lambda m: eps * m.kappa, lambda m: m.damping(eps)
        ))  # fmt: skip

    def residuals(self) -> list[float]:
        sides = (self.a, self.rows(), self.f), (self.b, self.cols(), self.g)
        return [soft_residual(*side, kappa).residual for side, kappa in zip(sides, self.kappa, strict=True)]


@compares("log_sum")
def _(e: Example) -> None:
    assert soft_kernels.log_sum(e.a, 900 + 3 * e.f) == pytest.approx(log_total(e.a, 900 + 3 * e.f), rel=1e-14)


@compares("relative_residual")
def _(e: Example) -> None:
    for kappa in (0.0, 0.3, 2.0):
        for shift in (0.0, -900.0) if kappa else (0.0,):
            logs, f = e.rows() + shift, e.f - (shift / kappa if kappa else 0.0)
            found = soft_kernels.relative_residual(e.a, logs, f, kappa, np.empty(2 * N))
            assert found == pytest.approx(soft_residual(e.a, logs, f, kappa), rel=1e-9)


@compares("target_rounding")
def _(e: Example) -> None:
    soft = Soft(e, (2.0, 3.0))
    largest = [float(np.abs(side).max()) for side in (soft.f, soft.g)]
    truth = max(soft_exponents(kappa, size) for kappa, size in zip(soft.kappa, largest, strict=True))
    assert soft_kernels.target_rounding(soft.lane, soft.f, soft.g) == pytest.approx(soft_bound(0.0, truth, 0.0))


@compares("translate")
def _(e: Example) -> None:
    for arguments in (
        (1.0, 0.3, 0.5, 0.7, 0.2),
        (1.0, 0.3, 0.0, 1.0, 0.0),
        (np.nan, 0.3, 0.5, 0.7, 0.2),
        (9.0, 0.0, 1e-12, 1.0, 0.0),
    ):
        own, other, kappa, lam, kappa_other = arguments
        assert soft_kernels.translate(*arguments) == translation(own, other, kappa, lam, kappa_other, 1.0)


@compares("soft_errors")
def _(e: Example) -> None:
    for rho in PRICES:
        soft = Soft(e, rho)
        (kappa, kappa_other), (lam, _), logs = soft.kappa, soft.lam, soft.view("logs", N)
        before, leg = soft.view("before", N), log_deviations(logs, soft.f, kappa)
        truth = soft_residual(soft.a, logs, soft.f, kappa)
        assert soft_kernels.soft_errors(soft.lane) == pytest.approx(
            (truth.residual, alignment(soft.a, leg, soft.f, before)), rel=1e-9, abs=1e-13
        )
        own = log_total(soft.a, -kappa * update(soft.f, leg, 1.0, lam=lam)[0])
        other = truth.log_mass if kappa_other else np.log(soft.b.sum())
        shift = translation(own, other, kappa, lam, kappa_other, 1.0)
        assert soft.lane["translation"] == pytest.approx(shift, rel=1e-7, abs=1e-12)
        # Masses out of the range of float64.
        logs += 800.0
        truth = soft_residual(soft.a, logs, soft.f, kappa)
        assert soft_kernels.soft_errors(soft.lane)[0] == pytest.approx(truth.residual, rel=1e-9)


@compares("row_sums")
def _(e: Example) -> None:
    before = e.f - 0.1 * np.cos(np.arange(N))
    for kappa, lam in ((0.0, 1.0), (0.3, 0.6), (2.0, 0.01)):
        logs = e.rows() - kappa * e.f + 0.05 * np.sin(np.arange(N))
        missed, mass, along, asked, squares = soft_kernels.row_sums(e.a, logs, e.f, before, kappa, lam, np.empty(2 * N))
        truth, leg = soft_residual(e.a, logs, e.f, kappa), log_deviations(logs, e.f, kappa)
        assert (missed / mass, np.log(mass)) == pytest.approx(truth, rel=1e-9, abs=1e-12)
        assert along == pytest.approx(alignment(e.a, leg, e.f, before), rel=1e-9, abs=1e-13)
        assert squares == pytest.approx(((kappa * lam * leg) ** 2).sum(), rel=1e-9, abs=1e-16)
        if squares < soft_kernels.NEAR:
            assert np.log(asked) == pytest.approx(
                log_total(e.a, -kappa * update(e.f, leg, 1.0, lam=lam)[0]), abs=1e-7 * squares + 1e-13
            )


@compares("column_sums")
def _(e: Example) -> None:
    for kappa in (0.0, 0.3):
        moved, logs, base = e.g - 0.2, e.cols(g=e.g - 0.2), e.g + np.sin(np.arange(M))
        sums = np.exp(logs + base - moved - 0.1)
        missed, mass = soft_kernels.column_sums(e.b, sums, e.g, base, 0.2, 0.1, kappa)
        assert (missed / mass, np.log(mass)) == pytest.approx(soft_residual(e.b, logs, moved, kappa), rel=1e-9)


@compares("scale_columns")
def _(e: Example) -> None:
    logs, base, lam, kappa = e.cols(), e.g + np.sin(np.arange(M)), 0.8, 0.25
    # The update with lam = 1 / (1 + kappa) depends on g through p alone.
    sums, g = np.exp(base - (e.g - logs) - 0.1), e.g.copy()
    v, w, work = np.empty(M), np.empty(M), np.empty(M)
    assert soft_kernels.scale_columns(sums, e.b, g, base, v, w, lam, 0.1, 25.0, work)
    truth = update(e.g, log_deviations(logs, e.g, kappa), 1.0, lam=lam)[0]
    assert np.allclose(g, truth, rtol=0, atol=1e-12)
    assert np.allclose((v, w), (np.exp(truth - base), e.b * np.exp(truth - base)), rtol=1e-12)
    assert not soft_kernels.scale_columns(sums, e.b, g, base - 400, v, w, lam, 0.1, 25.0, work)


@compares("apply_columns")
def _(e: Example) -> None:
    for rho in PRICES:
        soft = Soft(e, rho)
        soft.lane["translation"], soft.lane["rows_exact"] = 0.2, 1.0
        kappa, lam = soft.kappa[1], soft.lam[1]
        moved = soft.g - 0.2
        logs = soft.cols(g=moved)
        plain = soft.view("col_work", 3 * M)[:M]
        plain[:] = moved - logs
        soft_kernels.apply_columns(soft.lane, plain)
        assert soft.lane["col_residual"] == pytest.approx(soft_residual(soft.b, logs, moved, kappa).residual, rel=1e-9)
        truth = update(moved, log_deviations(logs, moved, kappa), 1.0, lam=lam)[0]
        assert np.allclose(soft.view("g", M), truth, rtol=0, atol=1e-12)


@compares("soft_log_rows")
def _(e: Example) -> None:
    out = np.empty(N)
    for form in e.forms:
        leg_kernels.soft_log_rows(e.lane, form, e.f, e.g, out)
        assert np.allclose(out, e.rows(), rtol=0, atol=1e-12)


@compares("verify_soft")
def _(e: Example) -> None:
    for rho in PRICES:
        soft = Soft(e, rho)
        soft.agree(leg_kernels.verify_soft(soft.lane, soft.f, soft.g, soft.one), soft.residuals())
        # Far from the absorbed potentials it is computed in the log domain.
        far, soft.f = soft.f, soft.f + 40.0
        assert leg_kernels.verify_soft(soft.lane, soft.f, soft.g, soft.one) == pytest.approx(soft.residuals(), rel=1e-9)
        soft.f = far


@compares("load_scores")
def _(e: Example) -> None:
    block = np.empty((scores.BLOCK, padded_width(M)))
    for example in (e, Example(e.one.dtype.name, d=20)):
        for form in example.forms:
            scores.load_scores(example.lane, form, 3, 3 + scores.BLOCK, block)
            truth = example.s[3 : 3 + scores.BLOCK]
            assert np.allclose(block[:, :M], truth, rtol=0, atol=1e-12 * truth.max())


@compares("cache_scores")
def _(e: Example) -> None:
    e = Example(e.one.dtype.name, d=130)
    cached = e.view("scores", N * M)
    cached[:] = np.nan
    scores.cache_scores(e.lane, 0, N)
    assert np.allclose(cached.reshape(N, M), e.s, rtol=0, atol=1e-12 * e.s.max())


@compares("score_matrix")
def _(e: Example) -> None:
    x, y = (np.ascontiguousarray(points)[None] for points in e.instance.points)
    layout, out = scores.lay_out(x, y, scores.extent(x, y).middle), np.empty((N, M))
    scores.score_matrix(EXPANDED, *(array[0] for array in layout), 1 / e.instance.eps, out)
    assert np.allclose(out, e.s, rtol=0, atol=1e-12 * e.s.max())


def streamed(e: Example, dtype: Any) -> list[Any]:
    """Points scaled so that squared distances are scores in bits, padded to whole blocks of four rows."""
    scale = (e.instance.eps * np.log(2)) ** -0.5
    x, y = (scale * points for points in e.instance.points)
    rows = np.zeros((-(-N // 4) * 4, x.shape[1]))
    rows[:N] = x
    return [rows.astype(dtype), np.ascontiguousarray(y.T).astype(dtype), False]


@compares("ratio_rows")
def _(e: Example) -> None:
    dtype, padded_rows = e.one.dtype, -(-N // 4) * 4
    f_high, f_low, out = np.zeros(padded_rows, dtype=dtype), np.ones(padded_rows), np.empty(padded_rows)
    g_high, w = np.empty(M, dtype=dtype), np.empty(M, dtype=dtype)
    streaming_kernels.split(e.f / np.log(2), e.a, f_high, f_low, np.empty(N))
    streaming_kernels.split(e.g / np.log(2), e.b, g_high, np.empty(M), w)
    streaming_kernels.ratio_rows(*streamed(e, dtype), f_high, f_low, g_high, w, 0, padded_rows, out)
    e.agree(np.log(out[:N]), e.rows())


@compares("exact_rows")
def _(e: Example) -> None:
    out = np.empty(N)
    points = streamed(e, np.float64)
    streaming_kernels.exact_rows(*points, e.f / np.log(2), e.g / np.log(2), e.b, False, 0, N, out)
    assert np.allclose(out, e.rows(), rtol=0, atol=1e-12)


@compares("conditional_rows")
def _(e: Example) -> None:
    distributions, logs = np.empty((N, M)), np.empty(N)
    plan_kernels.conditional_rows(e.s, e.g, e.b, distributions, logs)
    truth = conditionals(np.zeros(N), e.g, e.b, e.s)
    assert np.allclose(distributions, truth.distributions, rtol=1e-12, atol=0)
    assert np.allclose(logs, truth.log_ratios, rtol=0, atol=1e-12)


@compares("quadratic")
def _(e: Example) -> None:
    x, y = (np.ascontiguousarray(points)[None] for points in e.instance.points)
    (found,) = gaussian_starts(x, y, e.a[None], e.b[None], np.array([e.instance.eps]))
    _, truth = start(replace(e.instance, init="gaussian"))
    assert np.allclose(e.instance.eps * found, truth, rtol=1e-11, atol=1e-12)


@compares("spread_of")
def _(e: Example) -> None:
    spread = loading_kernels.spread_of(e.g, e.b)
    assert np.isclose(spread, e.b @ (e.g - e.b @ e.g) ** 2, rtol=1e-12)
    for scale in (1 - 1e-6, 1 + 1e-6):
        values = scale * WORTH / spread**0.5 * e.g
        assert worthwhile(values[None], e.b[None])[0] == (loading_kernels.spread_of(values, e.b) >= WORTH**2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_kernel_is_the_function_it_names(name: str, dtype: str) -> None:
    COMPARISONS[name](Example(dtype))


def test_every_kernel_that_names_a_function_is_compared_with_it() -> None:
    kernels = naming_kernels()
    assert set(kernels) == set(COMPARISONS)
    for named in kernels.values():
        for module, function in named:
            assert hasattr(importlib.import_module(f"drainsinkhorn.numerics.{module}"), function)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalings_of_plain_lanes_are_the_rule_with_a_plain_stride(dtype: str) -> None:
    e = Example(dtype, momentum=False)
    assert e.lane["is_scaled"]
    for _ in range(3):
        f, _ = update(e.f, e.rows(), 1.0)
        g, _ = update(e.g, e.cols(f=f), 1.0)
        e.pack.advance(1, [-np.inf])
        e.read_state()
        e.agree(e.f, f)
        e.agree(e.g, g)


BACKENDS = {
    "float32": CpuBackend(precision="float32", representation="cached"),
    "float64": CpuBackend(precision="float64", representation="cached"),
    "streaming": CpuBackend(precision="float64", representation="streaming"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kappa", [0.3, 4.0])
class TestDamping:
    """A soft marginal is data of a lane: `lam = 1 / (1 + eps kappa)`, and kappa f in the rule."""

    def instance(self, kappa: float) -> Any:
        marginals = Marginals(Marginal(kappa), Marginal(1.5 * kappa))
        return replace(Example("float64").instance, marginals=marginals, init="zero")

    def potentials(self, backend: str, instance: Any, cycles: int) -> tuple[np.ndarray, np.ndarray]:
        pack = BACKENDS[backend].pack([instance])
        pack.advance(cycles, [-np.inf])
        return pack.emit([0]).f[0], pack.emit([0]).g[0]

    def test_cycles_are_those_of_the_damped_update(self, backend: str, kappa: float) -> None:
        instance = self.instance(kappa)
        eps, (lam, lam_g) = instance.eps, (side.damping(instance.eps) for side in instance.marginals)
        scaled, f, g = cost_matrix(instance)[0] / eps, np.zeros(N), np.zeros(M)
        for _ in range(3):
            logs = log_ratios(f, g, np.log(instance.b), scaled, eps)
            f, _ = update(f, logs + kappa * f, eps, lam=lam)
            logs = log_ratios(g, f, np.log(instance.a), scaled.T, eps)
            g, _ = update(g, logs + 1.5 * kappa * g, eps, lam=lam_g)
        tolerance = 1e-5 if backend == "float32" else 1e-11
        for found, truth in zip(self.potentials(backend, instance, 3), (f, g), strict=True):
            assert np.allclose(found, truth, rtol=0, atol=tolerance)

    def test_the_fixed_point_is_the_optimum_with_penalised_marginals(self, backend: str, kappa: float) -> None:
        instance = self.instance(kappa)
        f, g = self.potentials(backend, instance, 300)
        plan = instance.a[:, None] * instance.b * np.exp((f[:, None] + g - cost_matrix(instance)[0]) / instance.eps)
        tolerance = 1e-4 if backend == "float32" else 1e-9
        assert np.allclose(plan.sum(axis=1), instance.a * np.exp(-kappa * f), rtol=tolerance)
        assert np.allclose(plan.sum(axis=0), instance.b * np.exp(-1.5 * kappa * g), rtol=tolerance)
