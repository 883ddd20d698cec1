"""The leg and the update rule against sums over a dense plan, entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drainsinkhorn.numerics.update import PLAIN, STEP, Stride, alignment, log_ratios, logsumexp, update

SHAPES = [(1, 1), (1, 6), (7, 1), (5, 9), (40, 33)]


class Example:
    """A random problem and a random state of it."""

    def __init__(self, n: int, m: int, eps: float = 0.3, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.eps, self.cost = eps, rng.uniform(-1, 2, size=(n, m))
        self.a, self.b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        self.f, self.g = rng.normal(size=n), rng.normal(size=m)

    def plan(self) -> np.ndarray:
        """`P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps)`, one entry after another."""
        plan = np.empty(self.cost.shape)
        for i, j in np.ndindex(*plan.shape):
            exponent = (self.f[i] + self.g[j] - self.cost[i, j]) / self.eps
            plan[i, j] = self.a[i] * self.b[j] * math.exp(exponent)
        return plan

    def rows(self) -> np.ndarray:
        return log_ratios(self.f, self.g, np.log(self.b), self.cost / self.eps, self.eps)

    def cols(self) -> np.ndarray:
        return log_ratios(self.g, self.f, np.log(self.a), (self.cost / self.eps).T, self.eps)


@pytest.mark.parametrize(("n", "m"), SHAPES)
class TestLeg:
    def test_ratios_are_sums_of_the_plan_over_weights(self, n: int, m: int) -> None:
        example = Example(n, m)
        plan = example.plan()
        assert np.allclose(example.rows(), np.log(plan.sum(axis=1) / example.a), rtol=0, atol=1e-13)
        assert np.allclose(example.cols(), np.log(plan.sum(axis=0) / example.b), rtol=0, atol=1e-13)

    def test_a_work_matrix_changes_no_bit(self, n: int, m: int) -> None:
        example = Example(n, m)
        scaled, work = example.cost / example.eps, np.empty((n, m))
        rows = log_ratios(example.f, example.g, np.log(example.b), scaled, example.eps, work)
        assert rows.tobytes() == example.rows().tobytes()
        cols = log_ratios(example.g, example.f, np.log(example.a), scaled.T, example.eps, work.T)
        assert cols.tobytes() == example.cols().tobytes()
        assert np.array_equal(scaled, example.cost / example.eps)

    def test_after_a_plain_leg_the_marginal_of_its_side_is_exact(self, n: int, m: int) -> None:
        example = Example(n, m)
        example.f = update(example.f, example.rows(), example.eps)[0]
        assert np.allclose(example.plan().sum(axis=1), example.a, rtol=1e-13)
        example.g = update(example.g, example.cols(), example.eps)[0]
        assert np.allclose(example.plan().sum(axis=0), example.b, rtol=1e-13)


def test_points_without_weight_add_nothing() -> None:
    example = Example(4, 6)
    example.b[[1, 4]] = 0.0
    with np.errstate(divide="ignore"):
        assert np.allclose(example.rows(), np.log(example.plan().sum(axis=1) / example.a), rtol=0, atol=1e-13)


@pytest.mark.parametrize("shift", [-1e5, -800.0, 0.0, 800.0, 1e5])
def test_exponents_beyond_the_range_of_exp(shift: float) -> None:
    exponents = np.array([[0.0, 1.0, -2.0], [3.0, 3.0, 3.0]])
    truth = [math.log(sum(math.exp(e) for e in row)) + shift for row in exponents]
    assert np.allclose(logsumexp(exponents + shift), truth, rtol=1e-15)


class TestUpdate:
    @pytest.mark.parametrize("lam", [1.0, 0.4])
    @pytest.mark.parametrize("stride", [PLAIN, Stride(STEP, 1 / 3), Stride(1.1, 0.0)])
    def test_the_rule_point_by_point(self, stride: Stride, lam: float) -> None:
        rng = np.random.default_rng(1)
        f, logs, before = rng.normal(size=(3, 8))
        potentials, point = update(f, logs, 0.7, stride, before, lam)
        for i in range(8):
            x = f[i] - stride.step * lam * 0.7 * logs[i]
            assert point[i] == pytest.approx(x, rel=1e-14)
            assert potentials[i] == pytest.approx(x + stride.beta * (x - before[i]), rel=1e-14)

    def test_a_plain_leg_ignores_the_point_before(self) -> None:
        f, logs = np.array([0.5, 1.0]), np.array([0.25, -0.5])
        lost = np.full(2, np.nan)
        assert update(f, logs, 0.5, PLAIN, lost)[0].tolist() == [0.375, 1.25]
        assert update(f, logs, 0.5, Stride(1.0, 0.9))[0].tolist() == [0.375, 1.25]

    @pytest.mark.parametrize("kappa", [(0.5, 2.0), (0.0, 1.0), (3.0, 0.0)])
    def test_damped_legs_reach_the_optimum_of_penalised_marginals(self, kappa: tuple[float, float]) -> None:
        """With `L = log rho + kappa f` and `lam = 1 / (1 + eps kappa)` the fixed point has `rho = exp(-kappa f)`."""
        example = Example(6, 5)
        lam = [1 / (1 + example.eps * k) for k in kappa]
        for _ in range(500):
            logs = example.rows() + kappa[0] * example.f
            example.f = update(example.f, logs, example.eps, lam=lam[0])[0]
            logs = example.cols() + kappa[1] * example.g
            example.g = update(example.g, logs, example.eps, lam=lam[1])[0]
        plan = example.plan()
        assert np.allclose(plan.sum(axis=1), example.a * np.exp(-kappa[0] * example.f), rtol=1e-10)
        assert np.allclose(plan.sum(axis=0), example.b * np.exp(-kappa[1] * example.g), rtol=1e-10)


class TestAlignment:
    def test_term_by_term(self) -> None:
        rng = np.random.default_rng(2)
        a, logs, f, before = rng.uniform(size=(4, 9))
        truth = -math.fsum(a[i] * logs[i] * (f[i] - before[i]) for i in range(9))
        assert alignment(a, logs, f, before) == pytest.approx(truth, rel=1e-14)
        assert alignment(a, logs, f, before, add=lambda terms: 2 * terms.sum()) == pytest.approx(2 * truth, rel=1e-14)

    def test_its_sign_is_that_of_the_next_step_along_the_last(self) -> None:
        a, logs, before = np.array([0.5, 0.5]), np.array([1.0, -2.0]), np.zeros(2)
        onward = update(before, logs, 0.1)[0]
        assert alignment(a, logs, onward, before) > 0
        assert alignment(a, -logs, onward, before) < 0
