"""A coupling sampler with the interface of torchcfm's `OTPlanSampler`, on the device of its tensors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.apps.flow.gathering import gather_entries, ranks_of
from drainsinkhorn.apps.flow.problems import ENTRIES, problems_of, refuse_other_than_tensors
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
DRAINED = ("sinkhorn", "unbalanced")
"""Methods whose problems this library solves; the others are POT's."""
CHUNK = 1024
"""Rows of the distance matrix that are computed at a time to find its largest entry."""

Tensor = torch.Tensor


class _Draws:
    """Random numbers of a sampler.

    Args:
        seed: Seed of all draws; None: they come from NumPy's global generator, as torchcfm's do.
    """

    def __init__(self, seed: int | None) -> None:
        self._seeds = None if seed is None else np.random.default_rng(seed)

    def next_seed(self, count: int) -> int:
        """A seed for `count` draws, made from as many numbers of NumPy's generator as torchcfm draws for them."""
        if self._seeds is None:
            return int.from_bytes(np.random.random_sample(count)[:2].tobytes(), "little")  # noqa: NPY002
        return int(self._seeds.integers(2**62))

    def numbers(self, count: int) -> Any:
        """Numbers in [0, 1), (count,)."""
        if self._seeds is None:
            return np.random.random_sample(count)  # noqa: NPY002
        return np.random.default_rng(self.next_seed(count)).random(count)

    def pairs(self, plan: Any, count: int, replace: bool) -> tuple[Any, Any]:
        """Indices (i, j) of `count` pairs drawn from a dense plan, each (count,)."""
        mass = np.asarray(plan, dtype=np.float64).ravel()
        generator: Any = np.random if self._seeds is None else np.random.default_rng(self.next_seed(count))
        return np.divmod(
            generator.choice(mass.size, p=mass / mass.sum(), size=count, replace=replace), np.shape(plan)[1]
        )


class OTPlanSampler:
    """Draws pairs of a source and a target minibatch from an optimal transport plan for squared distances.

    `method="sinkhorn"` solves the entropic problem with this library, on the device of the tensors and to a verified
    tol; only `get_map` builds a plan. "unbalanced" does the same with soft marginals of the price `reg_m`: the problem
    of POT's `sinkhorn_knopp_unbalanced`. "exact" and "partial" call POT on the CPU, as torchcfm does.

    Without `seed`, draws follow `np.random.seed` and do not use torch's generator, as in torchcfm. From a plan of POT
    the sampler draws the pairs that torchcfm draws. From a plan of "sinkhorn" it draws other pairs, and takes as many
    numbers of NumPy's global generator as torchcfm. "unbalanced" draws as "sinkhorn" does.

    Args:
        method: One of METHODS.
        reg: eps: a number in units of the squared distance; for "sinkhorn" and "unbalanced" also `relative` or
            `sharpness`.
        reg_m: Price of both marginals of "unbalanced", or a pair; infinity: hard.
        normalize_cost: Divide costs by the largest one.
        num_threads: Threads of "exact".
        warn: Warn of a problem that did not converge; its last state is used.
        tol: Bound on the larger L1 marginal residual of "sinkhorn" and "unbalanced"; of the latter relative to the
            transported mass.
        seed: Seed of all draws; None: NumPy's global generator, so that `np.random.seed` decides.
        backend: "auto", a name, or a Backend.
        group: A group of torch.distributed, or "world" for all ranks. Every rank passes its own
            minibatch; they are gathered and coupled as one, pairs are drawn from the seed of rank 0, and each rank
            receives as many of them as its x0 has points. None: this process couples alone.
        **unknown: Any other keyword raises OptionsError, which says what to write instead.
    """

    def __init__(
        self,
        method: str,
        reg: Eps = 0.05,
        reg_m: float | tuple[float, float] = 1.0,
        normalize_cost: bool = False,
        num_threads: int | str = 1,
        warn: bool = True,
        *,
        tol: float = 1e-3,
        seed: int | None = None,
        backend: str | Backend[Any] = "auto",
        group: Any = None,
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
        if method not in DRAINED and is_descriptor(reg):
            raise OptionsError(f"POT's method {method!r} needs a number as reg, got {reg!r}")
        if method not in DRAINED:
            _pot(method)
        self.method, self.reg, self.reg_m = method, reg, reg_m
        self.normalize_cost, self.num_threads, self.warn = normalize_cost, num_threads, warn
        self.tol, self.backend, self.group = tol, backend, group
        self._draws = _Draws(seed)

    def _solve(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Solution[Any]:
        flat = [tuple(points.detach().reshape(len(points), -1) for points in pair) for pair in pairs]
        scales = [1 / _largest(x, y) if self.normalize_cost else 1.0 for x, y in flat]
        rho = self.reg_m if self.method == "unbalanced" else None
        problems = problems_of(pairs, [self.reg] * len(flat), scales, self.backend, rho)
        solution = solve(problems, tol=self.tol, backend=self.backend, warn=False)
        for result in solution:
            _judge(result, warn=self.warn)
        return solution

    def get_map(self, x0: Tensor, x1: Tensor) -> Any:
        """The dense plan as a NumPy array, (n, m); with a group, n and m are the numbers of points of all ranks."""
        x0, x1 = self._gather(x0, x1)[0]
        if self.method in DRAINED:
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
        return self._draws.pairs(pi, batch_size, replace)

    def _gather(self, *entries: Any) -> tuple[tuple[Any, ...], _Draws, slice]:
        """Return the entries of a minibatch, the random numbers of its draws, and the slice of the pairs to return.

        Args:
            *entries: x0, x1, and the labels of x1 and of x0, each a tensor or None. With a group, those of all
                ranks are returned.
        """
        try:
            names = ("x0", "x1") if self.group is None else ENTRIES
            named = zip(names, entries, strict=False)
            refuse_other_than_tensors(**{name: entry for name, entry in named if entry is not None})
        except ProblemError as error:
            if self.group is not None:
                gather_entries((), ranks_of(self.group), "the minibatch", error=error)
            raise
        if self.group is None:
            return entries, self._draws, slice(None)
        seed = self._draws.next_seed(len(entries[0]))
        gathered = gather_entries(entries, ranks_of(self.group), "the minibatch", remark=seed)
        return gathered.batch, _Draws(gathered.remarks[0]), slice(gathered.first, gathered.last)

    def sample_plan(self, x0: Tensor, x1: Tensor, replace: bool = True) -> tuple[Tensor, Tensor]:
        """Pairs drawn from the plan, as many as x0 has points."""
        return self.sample_plan_with_labels(x0, x1, replace=replace)[:2]

    def sample_plan_with_labels(
        self, x0: Tensor, x1: Tensor, y0: Any = None, y1: Any = None, replace: bool = True
    ) -> tuple[Tensor, Tensor, Any, Any]:
        """Pairs drawn from the plan, and the labels that belong to them."""
        (x0, x1, y1, y0), draws, own = self._gather(x0, x1, y1, y0)
        count = len(x0)
        if self.method in DRAINED:
            draw = sample if replace else _distinct
            i, j = draw(self._solve([(x0, x1)])[0], count, seed=draws.next_seed(count))
        else:
            places = draws.pairs(self._pot_map(x0, x1), count, replace)
            i, j = (torch.from_numpy(k).to(x.device) for k, x in zip(places, (x0, x1), strict=True))
        i, j = i[own], j[own]
        return x0[i], x1[j], None if y0 is None else y0[i], None if y1 is None else y1[j]

    def sample_trajectory(self, X: Tensor) -> Any:
        """Trajectories (n, times, ...) through populations X, each step drawn from the plan to the next time.

        All steps are solved as one batch. The result is a NumPy array, as in torchcfm.
        """
        (X,), draws, own = self._gather(X)
        steps = [(X[:, t], X[:, t + 1]) for t in range(X.shape[1] - 1)]
        places = [torch.arange(len(X), device=X.device)]
        solution = self._solve(steps) if self.method in DRAINED and steps else None
        for t, (x0, x1) in enumerate(steps):
            if solution is not None:
                places.append(partners(solution[t], places[-1], seed=draws.next_seed(len(X))))
                continue
            rows = self._pot_map(x0, x1)[places[-1].cpu().numpy()]
            sums = (rows / rows.sum(axis=1, keepdims=True)).cumsum(axis=1)
            passed = sums / sums[:, -1:] <= draws.numbers(len(rows))[:, None]
            columns = np.minimum(passed.sum(axis=1), rows.shape[1] - 1)
            places.append(torch.from_numpy(columns).to(X.device))
        return torch.stack([X[:, t][i[own]] for t, i in enumerate(places)], dim=1).detach().cpu().numpy()


def _pot(method: str) -> Any:
    try:
        import ot
    except ImportError as error:
        raise BackendUnavailable(
            f"method {method!r} is POT's ({error}); pip install 'drainsinkhorn[flow]', or use one of {DRAINED}"
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


def _distinct(result: Result[Any], count: int, *, seed: int) -> tuple[Any, Any]:
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
