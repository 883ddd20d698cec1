"""Other libraries on our problems, called as their documentation says, with their answers in our convention.

A peer solves problems one after another (`serial`) or together and returns with its own output, which `potentials()`
converts, outside of any timing. Costs are squared distances (with a scale) or dense matrices. A peer that is missing
raises ImportError when it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import library, to_numpy
from drainsinkhorn.numerics.costs import as_cost, is_squares, resolve_cost

MOST = 20_000
"""Cycles after which a peer gives up."""
Array = NDArray[Any]
Problems = Sequence[Problem[Any]]


class Found(NamedTuple):
    """What a peer found: potentials in our convention, when asked for, and its cycles where it tells them."""

    potentials: Callable[[], list[Potentials[Any]]]
    depths: list[int | None]


def sizes(problem: Problem[Any]) -> tuple[int, int]:
    """Points of both sides."""
    return np.shape(problem.cost) if problem.x is None else (len(problem.x), len(problem.y))  # type: ignore[return-value]


def weights(problem: Problem[Any], dtype: Any = np.float32) -> tuple[Array, Array]:
    """Weights of mass one."""
    given = zip((problem.a, problem.b), sizes(problem), strict=True)
    raw = [np.ones(size) if side is None else to_numpy(side).astype(np.float64) for side, size in given]
    a, b = ((side / side.sum()).astype(dtype) for side in raw)
    return a, b


def log_weights(problem: Problem[Any]) -> tuple[Array, Array]:
    """Return the logarithms of both sides' weights, in float64."""
    a, b = weights(problem, np.float64)
    return np.log(a), np.log(b)


def scale_of(problem: Problem[Any]) -> float:
    """Return the factor from squared distances to costs, 1 for a matrix; raise ValueError for another kind of cost."""
    cost = as_cost(problem.cost)
    if not isinstance(cost, Cost):
        return 1.0
    resolved = resolve_cost(cost)
    if not is_squares(resolved):
        raise ValueError(f"peers are asked for squared distances, not for {cost.kind!r}")
    return cost.scale * resolved.kind.distances.factor


class Ott:
    """OTT-JAX: `Sinkhorn(threshold=tol, norm_error=1)` on a PointCloud or a Geometry, in the highest matmul precision.

    Arrays of torch stay on their device.

    Args:
        tol: Its own bound on the L1 error of one side; the other is exact.
        every: Iterations between its checks.
        momentum: Take `Momentum(start=20, value=1.0)`, its fastest setting.
    """

    def __init__(self, tol: float, every: int = 10, *, momentum: bool = False) -> None:
        import jax
        from ott.geometry import geometry, pointcloud
        from ott.problems.linear.linear_problem import LinearProblem
        from ott.solvers.linear.acceleration import Momentum
        from ott.solvers.linear.sinkhorn import Sinkhorn

        self._jax = jax
        more = {"momentum": Momentum(start=20, value=1.0)} if momentum else {}
        solver: Any = Sinkhorn(threshold=tol, norm_error=1, inner_iterations=every, max_iterations=MOST, **more)

        # eps is an argument, and a cost's scale is folded into it, so that one compilation serves all.
        def points(x: Any, y: Any, a: Any, b: Any, eps: Any) -> Any:
            out = solver(LinearProblem(pointcloud.PointCloud(x, y, epsilon=eps), a=a, b=b))
            return out.f, out.g, out.n_iters

        def dense(cost: Any, a: Any, b: Any, eps: Any) -> Any:
            out = solver(LinearProblem(geometry.Geometry(cost_matrix=cost, epsilon=eps), a=a, b=b))
            return out.f, out.g, out.n_iters

        self._points, self._dense = jax.jit(points), jax.jit(dense)
        self._many_points = jax.jit(jax.vmap(points))
        self._many_dense = jax.jit(jax.vmap(dense, in_axes=(None, 0, 0, 0)))

    def serial(self, problems: Problems) -> Found:
        """Solve problems one after another."""
        found = list[Any]()
        for p in problems:
            run, given = (self._dense, [p.cost]) if p.x is None else (self._points, [p.x, p.y])
            with self._exact():
                found.append(run(*map(self._jax_array, given), *weights(p), np.float32(p.eps / scale_of(p))))
                self._jax.block_until_ready(found[-1])
        return Found(lambda: [self._back(*each) for each in zip(problems, found, strict=True)], _ints(found))

    def vmap(self, problems: Problems) -> Found:
        """Solve problems together under `jax.vmap`: every lane runs until all have stopped."""
        a, b = (np.stack(side) for side in zip(*map(weights, problems), strict=True))
        eps = np.array([p.eps / scale_of(p) for p in problems], dtype=np.float32)
        with self._exact():
            if problems[0].x is None:
                out = self._many_dense(self._jax_array(problems[0].cost), a, b, eps)
            else:
                stacks = (self._jax.numpy.stack([self._jax_array(getattr(p, side)) for p in problems]) for side in "xy")
                out = self._many_points(*stacks, a, b, eps)
            self._jax.block_until_ready(out)
        found = list(zip(*out, strict=True))
        return Found(lambda: [self._back(*each) for each in zip(problems, found, strict=True)], _ints(found))

    @contextlib.contextmanager
    def _exact(self) -> Iterator[None]:
        with self._jax.default_matmul_precision("highest"):
            yield

    def _jax_array(self, value: Any) -> Any:
        return self._jax.dlpack.from_dlpack(value) if library(value) == "torch" else value

    def _back(self, problem: Problem[Any], out: Any) -> Potentials[Any]:
        """Convert potentials of OTT, where `P = exp((f + g - C) / eps)`, to this library's convention."""
        f, g = (scale_of(problem) * np.asarray(side, np.float64) for side in out[:2])
        log_a, log_b = log_weights(problem)
        return Potentials(f - problem.eps * log_a, g - problem.eps * log_b)


def _ints(found: Sequence[Any]) -> list[int | None]:
    return [int(out[2]) for out in found]


class Pot:
    """POT: `ot.sinkhorn(method="sinkhorn_log")`, or `ot.batch.solve_batch`, on dense costs.

    Args:
        tol: What the L1 error is to be; its own L2 rule is asked for tol / sqrt(points).
    """

    def __init__(self, tol: float) -> None:
        import ot
        import ot.batch

        self._ot, self._tol = ot, tol

    def _cost(self, problem: Problem[Any]) -> Array:
        if problem.x is None:
            return to_numpy(problem.cost)
        return scale_of(problem) * self._ot.dist(to_numpy(problem.x), to_numpy(problem.y))

    def serial(self, problems: Problems) -> Found:
        """Solve problems one after another."""
        found, depths = list[Any](), list[int | None]()
        for p in problems:
            a, b = weights(p)
            _, log = self._ot.sinkhorn(
                a, b, self._cost(p), p.eps, method="sinkhorn_log", stopThr=self._tol / len(b) ** 0.5,
                numItermax=MOST, log=True, warn=False,
            )  # fmt: skip
            found.append((log["log_u"], log["log_v"]))
            depths.append(int(log["niter"]) + 1 if "niter" in log else None)
        return Found(lambda: [_from_pot(*each) for each in zip(problems, found, strict=True)], depths)

    def batch(self, problems: Problems) -> Found:
        """Solve problems of equal shape and eps together; one stopping test ends the iteration for all of them."""
        a, b = (np.stack(side) for side in zip(*map(weights, problems), strict=True))
        cost = np.stack([self._cost(p) for p in problems])
        tol = self._tol / a.shape[1] ** 0.5
        out = self._ot.batch.solve_batch(cost, problems[0].eps, a, b, tol=tol, max_iter=MOST, grad="detach")
        pairs = list(zip(*out.potentials, strict=True))
        return Found(lambda: [_from_pot(*each) for each in zip(problems, pairs, strict=True)], [None] * len(problems))


def _from_pot(problem: Problem[Any], found: tuple[Any, Any]) -> Potentials[Any]:
    """POT: `P = exp(u + v - C / eps)`."""
    pairs = zip(found, log_weights(problem), strict=True)
    u, v = (problem.eps * (np.asarray(side, np.float64) - mass) for side, mass in pairs)
    return Potentials(u, v)


@dataclass(frozen=True, slots=True)
class Flash:
    """FlashSinkhorn's own kernels on a GPU, alternating, under our two-sided check: what the paper calls public serial.

    Attributes:
        tol: Bound on the larger L1 residual, as its plan application measures it.
        every: Cycles between checks.
        tf32: Its default; False computes products in float32.
    """

    tol: float
    every: int = 4
    tf32: bool = False
    _kernels: tuple[Any, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from flash_sinkhorn.kernels import apply_flash, sinkhorn_flashstyle_sqeuclid  # type: ignore[import-not-found]

        object.__setattr__(
            self,
            "_kernels",
            (sinkhorn_flashstyle_sqeuclid.flashsinkhorn_lse_fused, apply_flash.apply_plan_vec_flashstyle),
        )

    def serial(self, problems: Problems) -> Found:
        """Solve problems one after another."""
        found = [self.one(p) for p in problems]
        return Found(lambda: [potentials for potentials, _ in found], [depth for _, depth in found])

    def one(self, problem: Problem[Any]) -> tuple[Potentials[Any], int]:
        """Potentials on the device, and cycles."""
        import torch

        leg, push = self._kernels
        x, y, a, b, eps = self._given(problem)
        log_a, log_b, nx, ny = a.log(), b.log(), x.square().sum(1), y.square().sum(1)
        g, how = -ny, {"eps": eps, "allow_tf32": self.tf32}
        f, cycle = -nx, 0
        for cycle in range(1, MOST):
            f = leg(x, y, g, log_b, eps, allow_tf32=self.tf32)
            g = leg(y, x, f, log_a, eps, allow_tf32=self.tf32)
            if cycle % self.every == 0:
                row = push(x, y, f, g, log_a, log_b, torch.ones_like(b), axis=1, **how)
                col = push(x, y, f, g, log_a, log_b, torch.ones_like(a), axis=0, **how)
                if max(float((row - a).abs().sum()), float((col - b).abs().sum())) <= self.tol:
                    break
        scale = scale_of(problem)
        return Potentials(scale * (f + nx), scale * (g + ny)), cycle

    def native(self, problem: Problem[Any], threshold: float, most: int) -> tuple[Potentials[Any], int]:
        """Its own alternating solver, stopped by its own rule: no potential changed by `threshold` between checks."""
        import warnings

        from flash_sinkhorn import sinkhorn_solvers  # type: ignore[import-not-found]

        x, y, a, b, eps = self._given(problem)
        with warnings.catch_warnings():
            # It warns where the rule was not met; the row says so by its depth.
            warnings.simplefilter("ignore")
            f, g, cycles = sinkhorn_solvers.sinkhorn_flashstyle_alternating(
                x, y, a, b, eps=eps, n_iters=most, threshold=threshold, allow_tf32=self.tf32, return_n_iters=True
            )
        scale = scale_of(problem)
        return Potentials(scale * f, scale * g), int(cycles)

    def _given(self, problem: Problem[Any]) -> tuple[Any, Any, Any, Any, float]:
        """Centred points and weights on the device; a cost's scale is folded into eps."""
        import torch

        x, y = problem.x, problem.y
        middle = (x.mean(0) + y.mean(0)) / 2  # type: ignore[union-attr]
        x, y = (x - middle).contiguous(), (y - middle).contiguous()  # type: ignore[operator]
        a, b = (torch.as_tensor(side, device=x.device) for side in weights(problem))
        return x, y, a, b, float(problem.eps / scale_of(problem))
