"""A coupling sampler with the interface of torchcfm's `OTPlanSampler`, on the device of its tensors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.apps.flow.problems import problems_of, refuse_other_than_tensors
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.eps import Eps, is_descriptor
from drainsinkhorn.model.errors import BackendUnavailable, ConvergenceWarning, OptionsError, ProblemError
from drainsinkhorn.model.errors import warn as issue
from drainsinkhorn.model.keywords import explain_keyword
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.plans.consumers import partners, plan, sample
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import solve

METHODS = ("sinkhorn", "exact", "unbalanced", "partial")
CHUNK = 1024
"""Rows of the distance matrix that are computed at a time to find its largest entry."""

Tensor = torch.Tensor


class OTPlanSampler:
    """Draws pairs of a source and a target minibatch from an optimal transport plan for squared distances.

    `method="sinkhorn"` solves the entropic problem with this library, on the device of the tensors and to a verified
    tol; only `get_map` builds a plan. "exact", "unbalanced" and "partial" call POT on the CPU, as torchcfm does.

    Args:
        method: One of METHODS.
        reg: eps: a number in units of the squared distance, or for "sinkhorn" `relative` or `sharpness`.
        reg_m: Strength of the marginal penalty of "unbalanced".
        normalize_cost: Divide costs by the largest one.
        num_threads: Threads of "exact".
        warn: Warn of a problem that did not converge; its last state is used.
        tol: Bound on the larger L1 marginal residual of "sinkhorn".
        seed: Seed of all draws; None: torch's generator gives one, so that `torch.manual_seed` decides.
        backend: "auto", a name, or a Backend.
        **unknown: Any other keyword raises OptionsError, which says what to write instead.
    """

    def __init__(
        self,
        method: str,
        reg: Eps = 0.05,
        reg_m: float = 1.0,
        normalize_cost: bool = False,
        num_threads: int | str = 1,
        warn: bool = True,
        *,
        tol: float = 1e-3,
        seed: int | None = None,
        backend: str | Backend[Any] = "auto",
        **unknown: Any,
    ) -> None:
        for name in unknown:
            known = [*inspect.signature(OTPlanSampler).parameters][:-1]
            advice = (
                "its name is reg here, as in torchcfm" if name in ("eps", "epsilon") else explain_keyword(name, known)
            )
            raise OptionsError(f"OTPlanSampler has no keyword {name!r}; {advice}")
        if method not in METHODS:
            raise ValueError(f"Unknown method: {method}; use one of {list(METHODS)}")
        if method != "sinkhorn" and is_descriptor(reg):
            raise OptionsError(f"POT's method {method!r} needs a number as reg, got {reg!r}")
        if method != "sinkhorn":
            _pot(method)
        self.method, self.reg, self.reg_m = method, reg, reg_m
        self.normalize_cost, self.num_threads, self.warn = normalize_cost, num_threads, warn
        self.tol, self.backend = tol, backend
        self._seeds = None if seed is None else np.random.default_rng(seed)

    def _next_seed(self) -> int:
        if self._seeds is not None:
            return int(self._seeds.integers(2**62))
        return int(torch.randint(2**62, ()).item())

    def _solve(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Solution[Any]:
        flat = [tuple(points.detach().reshape(len(points), -1) for points in pair) for pair in pairs]
        scales = [1 / _largest(x, y) if self.normalize_cost else 1.0 for x, y in flat]
        problems = problems_of(pairs, [self.reg] * len(flat), scales, self.backend)
        solution = solve(problems, tol=self.tol, backend=self.backend, warn=False)
        for result in solution:
            _judge(result, warn=self.warn)
        return solution

    def get_map(self, x0: Tensor, x1: Tensor) -> Any:
        """The dense plan as a NumPy array, (n, m)."""
        refuse_other_than_tensors(x0=x0, x1=x1)
        if self.method == "sinkhorn":
            return plan(self._solve([(x0, x1)])[0]).cpu().numpy()
        return self._pot_map(x0, x1)

    def _pot_map(self, x0: Tensor, x1: Tensor) -> Any:
        x, y = (p.detach().reshape(len(p), -1).double().cpu() for p in (x0, x1))
        cost = (torch.cdist(x, y) ** 2).numpy()
        cost = cost / cost.max() if self.normalize_cost else cost
        a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
        ot = _pot(self.method)
        if self.method == "exact":
            coupling = ot.emd(a, b, cost, numThreads=self.num_threads)
        elif self.method == "unbalanced":
            coupling = ot.unbalanced.sinkhorn_knopp_unbalanced(a, b, cost, reg=self.reg, reg_m=self.reg_m)
        else:
            coupling = ot.partial.entropic_partial_wasserstein(a, b, cost, reg=self.reg)
        coupling = np.asarray(coupling)
        if not np.isfinite(coupling).all() or not coupling.sum() > 1e-8:
            raise ProblemError(
                f"POT's {self.method} plan is not finite or empty (sum {coupling.sum():.3g}); raise reg={self.reg}"
            )
        return coupling

    def sample_map(self, pi: Any, batch_size: int, replace: bool = True) -> tuple[Any, Any]:
        """Indices (i, j) of pairs drawn from a dense plan."""
        mass = np.asarray(pi, dtype=np.float64).ravel()
        rng = np.random.default_rng(self._next_seed())
        drawn = rng.choice(mass.size, p=mass / mass.sum(), size=batch_size, replace=replace)
        return np.divmod(drawn, np.shape(pi)[1])

    def _places(self, x0: Tensor, x1: Tensor, replace: bool) -> tuple[Any, Any]:
        """Indices (i, j) of as many pairs as x0 has points."""
        refuse_other_than_tensors(x0=x0, x1=x1)
        if self.method != "sinkhorn":
            i, j = self.sample_map(self._pot_map(x0, x1), len(x0), replace=replace)
            return torch.from_numpy(i).to(x0.device), torch.from_numpy(j).to(x1.device)
        result = self._solve([(x0, x1)])[0]
        return (
            sample(result, len(x0), seed=self._next_seed())
            if replace
            else _distinct(result, len(x0), self._next_seed())
        )

    def sample_plan(self, x0: Tensor, x1: Tensor, replace: bool = True) -> tuple[Tensor, Tensor]:
        """Pairs drawn from the plan, as many as x0 has points."""
        i, j = self._places(x0, x1, replace)
        return x0[i], x1[j]

    def sample_plan_with_labels(
        self, x0: Tensor, x1: Tensor, y0: Any = None, y1: Any = None, replace: bool = True
    ) -> tuple[Tensor, Tensor, Any, Any]:
        """Pairs drawn from the plan, and the labels that belong to them."""
        i, j = self._places(x0, x1, replace)
        return x0[i], x1[j], None if y0 is None else y0[i], None if y1 is None else y1[j]

    def sample_trajectory(self, X: Tensor) -> Any:
        """Trajectories (n, times, ...) through populations X, each step drawn from the plan to the next time.

        All steps are solved as one batch. The result is a NumPy array, as in torchcfm.
        """
        refuse_other_than_tensors(X=X)
        steps = [(X[:, t], X[:, t + 1]) for t in range(X.shape[1] - 1)]
        places = [torch.arange(len(X), device=X.device)]
        solution = self._solve(steps) if self.method == "sinkhorn" and steps else None
        for t, (x0, x1) in enumerate(steps):
            if solution is not None:
                places.append(partners(solution[t], places[-1], seed=self._next_seed()))
                continue
            rows = self._pot_map(x0, x1)[places[-1].cpu().numpy()]
            rng = np.random.default_rng(self._next_seed())
            passed = rows.cumsum(axis=1) <= rng.random((len(rows), 1)) * rows.sum(axis=1, keepdims=True)
            columns = np.minimum(passed.sum(axis=1), rows.shape[1] - 1)
            places.append(torch.from_numpy(columns).to(X.device))
        return torch.stack([X[:, t][i] for t, i in enumerate(places)], dim=1).detach().cpu().numpy()


def _pot(method: str) -> Any:
    try:
        import ot
    except ImportError as error:
        raise BackendUnavailable(
            f"method {method!r} is POT's ({error}); pip install 'drainsinkhorn[flow]', or use method='sinkhorn'"
        ) from error
    return ot


def _judge(result: Result[Any], *, warn: bool) -> None:
    """Raise ProblemError for an INVALID result; warn of one that did not converge."""
    if result.status is Status.INVALID:
        raise ProblemError(f"this minibatch cannot be coupled: {result.message}")
    if warn and not result.converged:
        issue(
            ConvergenceWarning(
                f"the coupling did not converge ({result.message}); its last state, with residual "
                f"{result.residual.worst:.2g}, is used"
            )
        )


def _largest(x: Tensor, y: Tensor) -> float:
    """The largest squared distance, CHUNK rows at a time; 1 if all points are equal."""
    largest = max(float(torch.cdist(rows, y).amax()) for rows in x.split(CHUNK)) ** 2
    return largest if largest > 0 else 1.0


def _distinct(result: Result[Any], count: int, seed: int) -> tuple[Any, Any]:
    """Draw pairs without replacement: repeated pairs are skipped."""
    n, m = (len(p) for p in result.potentials)
    if count > n * m:
        raise ProblemError(f"{count} distinct pairs cannot be drawn from a plan of {n} x {m}")
    known: dict[tuple[int, int], None] = {}
    for attempt in range(1000):
        i, j = sample(result, 2 * count, seed=seed + attempt)
        known.update(dict.fromkeys(zip(i.tolist(), j.tolist(), strict=True)))
        if len(known) >= count:
            pairs = torch.tensor(list(known)[:count], device=i.device)
            return pairs[:, 0], pairs[:, 1]
    raise ProblemError(
        f"only {len(known)} distinct pairs of {count} came up: the plan holds nearly all mass in few; use replace=True"
    )
