"""A backend with problems to try it on, and its packs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.core.protocol import Backend, Pack, Progress
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.marginal import Marginal, Marginals
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.validate import validate

SOFT_PRICES = ((2.0, 0.7), (math.inf, 3.0), (5.0, math.inf))
"""Prices of soft problems, one for each."""
NEVER, ALWAYS = -math.inf, math.inf
"""Stops that hold no lane, and every lane."""

CLOSE = 1e-5
"""How far a backend that is not bitwise may miss, as part of the largest of the numbers compared (1 at least)."""


class Bench:
    """A backend with problems to try it on."""

    def __init__(self, backend: Backend[Any], like: Callable[[Any], Any], shape: tuple[int, int, int]) -> None:
        self.backend = backend
        self.like = like
        self.shape = shape

    def problem(self, seed: int, *, spread: float = 1.0, eps: float = 0.5, tol: float = 1e-3) -> Instance[Any]:
        """A validated problem that may share a pack with the bench's others; spread and eps decide its depth."""
        instance = self._draw(seed, spread, eps, tol)
        shared = self.backend.signature(self._draw(1, 1.0, 0.5, tol))
        # A larger eps needs less precision, on which a signature may depend.
        while self.backend.signature(instance) != shared and eps < 100:
            eps *= 1.5
            instance = self._draw(seed, spread, eps, tol)
        return instance

    def _draw(self, seed: int, spread: float, eps: float, tol: float) -> Instance[Any]:
        n, m, d = self.shape
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(n, d)), spread * rng.normal(size=(m, d)) + 0.5
        a, b = rng.uniform(0.5, 1.5, size=n), rng.uniform(0.5, 1.5, size=m)
        if min(n, m) > 1:
            a[0] = b[-1] = 0.0
        problem = Problem(
            x=self.like(x), y=self.like(y), a=self.like(a / a.sum()), b=self.like(b / b.sum()), eps=eps, tol=tol
        )
        return validate(problem, tol)

    def problems(self) -> list[Instance[Any]]:
        """Three problems of unequal depth that may share a pack."""
        return [self.problem(1), self.problem(2, spread=2.0, eps=0.3), self.problem(3, spread=0.5, eps=1.0)]

    def soften(self, instance: Instance[Any], rhos: tuple[float, float]) -> Instance[Any]:
        """The problem with soft marginals of these prices, and half as much mass again on the columns."""
        row, col = (Marginal(1 / rho) for rho in rhos)
        return replace(instance, b=1.5 * instance.b, marginals=Marginals(row, col), masses=(1.0, 1.5), init="zero")

    def overflowing_problem(self) -> Instance[Any]:
        """A problem whose costs overflow."""
        problem = self.problem(4)
        n, _, d = self.shape
        return validate(Problem(x=self.like(np.full((n, d), 1e30)), y=problem.y, eps=1e-300, tol=1e-3), 1e-3)

    def same(self, ours: Sequence[Any], theirs: Sequence[Any], what: str) -> None:
        """Equal to the bit where the backend says so, else close: potentials are in units of about eps here."""
        for one, other in zip(ours, theirs, strict=True):
            one, other = to_numpy(one), to_numpy(other)
            if self.backend.bitwise:
                assert np.array_equal(one, other, equal_nan=True), f"{what} differ: {one} and {other}"
            else:
                slack = CLOSE * max(1.0, float(np.nan_to_num(np.abs(other)).max()))
                assert np.allclose(one, other, rtol=0, atol=slack, equal_nan=True), f"{what} differ: {one}, {other}"

    def open(self, problems: Sequence[Instance[Any]]) -> DrivenPack:
        """A pack of these problems."""
        return DrivenPack(self.backend, self.backend.pack(problems), len(problems))

    def alone(self, problem: Instance[Any], strides: int) -> list[Any]:
        """Potentials and residual of a problem after that many strides in a pack of its own."""
        driven = self.open([problem])
        driven.go(strides)
        return driven.state(0)


class DrivenPack:
    """A pack with its number of occupied lanes, driven in strides."""

    def __init__(self, backend: Backend[Any], pack: Pack[Any], lanes: int) -> None:
        self.stride = backend.stride
        self.pack = pack
        self.lanes = lanes

    def go(self, strides: int, stop: float = NEVER) -> Progress:
        """Advance every lane with the same stop."""
        progress = self.pack.advance(strides * self.stride, [stop] * self.lanes)
        for column in progress:
            assert len(column) == self.lanes, f"progress has {len(column)} entries for {self.lanes} occupied lanes"
        return progress

    def reach(self, stop: float, strides: int) -> None:
        """Advance by single strides, at most so many, until lane 0 is at its stop."""
        for _ in range(strides):
            if not self.go(1, stop).stale[0] > stop:
                return

    def strides(self, progress: Progress) -> list[int]:
        """Return the depth of each lane divided by `Backend.stride`, of which every advance runs a multiple."""
        return [depth // self.stride for depth in progress.depths]

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Repack, and note the number of occupied lanes."""
        self.pack.repack(keep, admit)
        self.lanes = len(keep) + len(admit)

    def state(self, lane: int) -> list[Any]:
        """Potentials that the lane would emit, and its verified residual."""
        return [*self.potentials(lane), *self.residual(lane)]

    def potentials(self, lane: int) -> Potentials[Any]:
        """Potentials that the lane would emit."""
        return self.pack.emit([lane]).potentials(0)

    def residual(self, lane: int, *, exact: bool = False) -> Residual:
        """Verified residual of the lane."""
        residuals = self.pack.verify([lane], exact=exact)
        for column in residuals:
            assert len(column) == 1, f"verify of one lane returned {len(column)} residuals"
        return residuals.rows()[0]
