"""Accept or not: the decision of a check in several precisions, on states whose residual lies next to tol.

A case is a state (potentials rounded to float32) and a tol that its float64 residual misses or meets by a small part
`delta`. Raw checks compute both marginals in float32 from `|x|^2 + |y|^2 - 2 x.y`, with products in float32, in TF32,
or split into two halves of fp16 each; points are centred for all of them. The guarded check is the library's own:
residual and band, and float64 with direct differences where the band reaches across tol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn_bench.arms import on
from drainsinkhorn_bench.loaders import Array

DELTAS = (3e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""How near to tol, as a part of it; each on both sides."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """A kind of problem: points, dimension, eps as a share of the mean cost, tol, and its distance from the origin."""

    n: int
    d: int
    eps: float
    tol: float = 1e-3
    offset: float = 0.0
    weighted: bool = False

    @property
    def name(self) -> str:
        """In words."""
        more = f", {self.offset:g} off the origin" * bool(self.offset) + ", weighted" * self.weighted
        return f"n={self.n} d={self.d} eps={self.eps:g} tol={self.tol:g}{more}"

    def problem(self, seed: int) -> Problem[Any]:
        """Two mixtures of eight clusters, in float32."""
        rng = np.random.default_rng([seed, self.n, self.d])
        x, y = (
            rng.normal(size=(8, self.d))[rng.integers(8, size=self.n)] + 0.4 * rng.normal(size=(self.n, self.d))
            for _ in range(2)
        )
        mean = float(((x.mean(0) - y.mean(0)) ** 2).sum() + x.var(0).sum() + y.var(0).sum())
        a, b = rng.dirichlet(np.full(self.n, 3.0), size=2) if self.weighted else (None, None)
        x, y = ((points + self.offset).astype(np.float32) for points in (x, y))
        return Problem(x=x, y=y, a=a, b=b, eps=self.eps * mean)


CLOUDS = (
    Cloud(256, 2, 0.02),
    Cloud(256, 3, 0.02),
    Cloud(256, 3, 0.05, offset=30.0),
    Cloud(256, 3, 0.1, offset=1000.0),
    Cloud(256, 8, 0.1, weighted=True),
    Cloud(256, 15, 0.1),
    Cloud(256, 15, 0.05, tol=1e-4),
    Cloud(256, 50, 0.1),
    Cloud(256, 50, 0.03),
    Cloud(256, 500, 0.1),
)


def near(cloud: Cloud, seed: int) -> tuple[Problem[Any], Potentials[Any], float]:
    """A state whose residual is about tol: the problem, its potentials in float32, and their float64 residual."""
    problem = cloud.problem(seed)
    result = solve([problem], tol=cloud.tol, backend="reference", accelerate="none", init="zero", max_depth=100_000)[0]
    f, g = (np.asarray(side, np.float32) for side in result.potentials)
    state = Potentials(f, g)
    return problem, state, max(marginal_errors(problem, state))


@dataclass(frozen=True, slots=True)
class Decision:
    """One case: what each check says (True: accept)."""

    case: str
    delta: float
    residual: float
    float64: bool
    fp32: bool
    tf32: bool
    split: bool
    guarded: bool
    escalated: bool
    screen_gap: float


def decisions(clouds: Sequence[Cloud], seed: int, backend: Backend[Any], device: str) -> Iterator[Decision]:
    """All cases of some clouds: each with DELTAS on both sides of its residual."""
    for cloud in clouds:
        problem, state, truth = near(cloud, seed)
        raw = {how: raw_residual(problem, state, how, device) for how in ("fp32", "tf32", "split")}
        for delta in sorted((*DELTAS, *(-delta for delta in DELTAS))):
            tol = truth * (1 + delta)
            accepted, escalated, gap = _guarded(problem, state, tol, backend, device)
            # Written so that a residual that is NaN is not accepted.
            verdicts = {how: bool(residual <= tol) for how, residual in raw.items()}
            yield Decision(
                case=f"{cloud.name}, {delta:+.0e}", delta=delta, residual=truth, float64=truth <= tol, **verdicts,
                guarded=accepted, escalated=escalated, screen_gap=gap,
            )  # fmt: skip


def _guarded(
    problem: Problem[Any], state: Potentials[Any], tol: float, backend: Backend[Any], device: str
) -> tuple[bool, bool, float]:
    """Return whether the library's check accepts a state, whether it needed float64, and the gap of its screen.

    The gap is the absolute difference of the row residuals that screen and verify measure, bands included.
    """
    there = {side: on(device, to_numpy(getattr(problem, side))) for side in ("x", "y")}
    start = Potentials(*(on(device, side) for side in state))
    pack = backend.pack([validate(replace(problem, init=start, **there), tol)])
    (found,), (screened,) = pack.verify([0]).rows(), pack.screen([0])
    gap = abs(screened - found.row - found.band)
    if _worst(found) + found.band <= tol:
        return True, False, gap
    if _worst(found) - found.band > tol:
        return False, False, gap
    (found,) = pack.verify([0], exact=True).rows()
    return _worst(found) + found.band <= tol, True, gap


def _worst(residual: Residual) -> float:
    return max(residual.row, residual.col)


def raw_residual(problem: Problem[Any], state: Potentials[Any], how: str, device: str) -> float:
    """The larger L1 residual with all arithmetic in float32, products as `how` says."""
    x, y = (to_numpy(points).astype(np.float64) for points in (problem.x, problem.y))
    middle = (x.mean(0) + y.mean(0)) / 2
    x, y = ((points - middle).astype(np.float32) for points in (x, y))
    n, m = len(x), len(y)
    a, b = (
        np.full(size, 1 / size, np.float32) if side is None else (side / side.sum()).astype(np.float32)
        for side, size in ((problem.a, n), (problem.b, m))
    )
    costs = (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :] - np.float32(2) * product(x, y, how, device)
    scores = (to_numpy(state.f)[:, None] + to_numpy(state.g)[None, :] - costs) / np.float32(problem.eps)
    with np.errstate(over="ignore"):
        plan = a[:, None] * b[None, :] * np.exp(scores)
    return float(max(np.abs(plan.sum(1) - a).sum(), np.abs(plan.sum(0) - b).sum()))


def product(x: Array, y: Array, how: str, device: str) -> Array:
    """`x y^T` in float32, with factors of 24, 11 or twice 11 bits; on CUDA, TF32 is what the tensor cores do."""
    if how == "fp32":
        return x @ y.T
    if how == "tf32":
        if device == "cuda":
            return _tensor_cores(x, y)
        return tf32(x) @ tf32(y).T
    (x_high, x_low), (y_high, y_low) = (_halves(points) for points in (x, y))
    return x_high @ y_high.T + (x_high @ y_low.T + x_low @ y_high.T)


def tf32(values: Array) -> Array:
    """Rounded to the ten explicit bits of TF32, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return rounded.view(np.float32)


def _tensor_cores(x: Array, y: Array) -> Array:
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return (torch.as_tensor(x, device="cuda") @ torch.as_tensor(y, device="cuda").T).cpu().numpy()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _halves(points: Array) -> tuple[Array, Array]:
    """fp16 high and low parts, scaled by a power of two into the range of fp16, as float32."""
    scale = np.float32(2.0 ** np.floor(np.log2(1024 / max(float(np.abs(points).max()), 1e-30))))
    high = (points * scale).astype(np.float16).astype(np.float32)
    low = (points * scale - high).astype(np.float16).astype(np.float32)
    return high / scale, low / scale
