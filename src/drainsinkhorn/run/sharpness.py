"""The search for the eps at which a plan has a given normalised entropy; all problems of a batch are searched together.

The normalised entropy E grows with eps (`plans.consumers.normalised_entropy`). Each step solves all problems whose eps
is not found yet as one batch, to a loose tol and from the potentials of the step before. Then each problem gets its
next eps, by interpolation of logit E over log eps within the bracket known so far. The eps that is found for a problem
does not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainsinkhorn.core.options import Options
from drainsinkhorn.model.eps import RelativeEps, SharpnessEps
from drainsinkhorn.model.errors import Interrupted, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.plans.consumers import normalised_entropies

Solve = Callable[[list[Problem[Any]]], Sequence[Result[Any]]]

SHARE = 0.1
"""The first eps for a target of 1/2, as a share of the standard deviation of the cost."""
LOOSENESS = 0.5
"""The tol of a search, as a part of `SharpnessEps.within`. A residual r changes E by about r / 2 at most."""
LARGEST_TOL = 1e-2
ACCEPTED = 0.7
"""Part of `within` by which E may differ from the target for an eps to be accepted; the rest is for the loose tol."""
LARGEST_STEP = math.log(30)
"""Largest step of log eps while only one end of the bracket is known."""
SMALLEST_STEP = 0.1
"""Smallest such step, and the smallest part of a bracket that a step cuts off."""
GROWTH = 1.5
"""Factor by which such a step exceeds the one before at least, where E hardly depends on eps."""
SHARPEST = 1e-13
"""The smallest eps that is tried, as a share of the standard deviation of the cost."""
FAILURES = 1
"""Trials of one search that may end unconverged, at an eps that is too small; after one more the search ends."""
STEPS = 60
"""Largest number of steps of a search."""


def trial_options(options: Options) -> Options:
    """Return the options under which trials are solved: as these are no results, they are not rescued or rechecked."""
    return replace(options, rescue=False, warn=False, strict=False, recheck="none", certify="auto")


def find_sharpness(problems: Sequence[Problem[Any]], solve: Solve) -> list[Problem[Any] | ProblemError]:
    """Return the problems with the eps that was found, which start from the potentials of the search.

    In place of a problem whose eps cannot be found, return an error that says why.

    Args:
        problems: Problems whose eps is a SharpnessEps.
        solve: Solves a list of problems, each to its own tol, and returns their results; nothing is rescued.
    """
    searches = [_Search(problem) for problem in problems]
    for _ in range(STEPS):
        active = [search for search in searches if search.answer is None]
        if not active:
            break
        try:
            results = solve([search.trial() for search in active])
        except Interrupted:
            # The results are those of the search, which the caller did not ask for.
            raise KeyboardInterrupt from None
        ran = [place for place, result in enumerate(results) if result.emitted is not None]
        entropies = dict(zip(ran, normalised_entropies([replace(results[k], warns=False) for k in ran]), strict=True))
        for place, (search, result) in enumerate(zip(active, results, strict=True)):
            search.take(result, entropies.get(place, math.nan))
    return [search.answer or search.give_up() for search in searches]


@dataclass(frozen=True, slots=True)
class _Point:
    """A solved trial: log eps, and logit E less the logit of the target."""

    place: float
    height: float


class _Search:
    """The search of one problem.

    Args:
        problem: The problem; its eps is a SharpnessEps.

    Attributes:
        answer: The problem with the eps that was found, or the error that says why none was; None: not known yet.
    """

    def __init__(self, problem: Problem[Any]) -> None:
        assert isinstance(problem.eps, SharpnessEps)
        self.answer: Problem[Any] | ProblemError | None = None
        self._problem, self._wanted = problem, problem.eps
        odds = self._wanted.target / (1 - self._wanted.target)
        self._eps: float | RelativeEps = RelativeEps(max(SHARPEST, SHARE * odds), "std")
        self._start: Any = problem.init
        self._floor = -math.inf
        # The trials nearest to the target on either side, whether the last trial was at the lower end, the entropy at
        # the upper end, and the log eps at and below which a trial did not converge.
        self._low: _Point | None = None
        self._high: _Point | None = None
        self._stale = 0
        self._sharpest = math.inf
        self._blocked = -math.inf
        self._failures = 0
        self._step = 0.0

    def trial(self) -> Problem[Any]:
        """Return the problem to solve next."""
        tol = min(LARGEST_TOL, LOOSENESS * self._wanted.within)
        return replace(self._problem, eps=self._eps, tol=tol, init=self._start, chain=None)

    def take(self, result: Result[Any], entropy: float) -> None:
        """Take the result of a trial: set the answer, or the next eps."""
        if result.emitted is None:
            self.answer = ProblemError(result.detail)
            return
        if isinstance(self._eps, RelativeEps):
            # The first eps is this share of the standard deviation.
            self._floor = math.log(result.eps) - math.log(self._eps.share / SHARPEST)
        place = math.log(result.eps)
        if result.status is not Status.CONVERGED:
            self._failures += 1
            self._blocked = max(self._blocked, place)
        elif math.isnan(entropy):
            self.answer = ProblemError(
                f"no eps gives a plan of {self._wanted}: one side has a single point with weight, so there is one plan "
                "only; pass a number as eps"
            )
            return
        elif abs(entropy - self._wanted.target) <= ACCEPTED * self._wanted.within:
            self.answer = replace(self._problem, eps=result.eps, init=result.potentials)
            return
        else:
            self._start = result.potentials
            self._narrow(_Point(place, _logit(entropy) - _logit(self._wanted.target)), entropy)
        if self._failures > FAILURES or (self._high is not None and self._high.place <= self._floor + 1e-9):
            self.answer = self.give_up()
            return
        self._eps = math.exp(max(self._floor, self._next()))

    def give_up(self) -> ProblemError:
        """Return the error of a search that ended without an answer."""
        sharpest = f"the sharpest plan that converged has {self._sharpest:.3g}"
        sharpest = sharpest if self._sharpest < math.inf else "no plan converged"
        return ProblemError(
            f"no eps was found for {self._wanted}, the normalised entropy of the plan: {sharpest}; raise the target or "
            "max_depth, or pass a number as eps"
        )

    def _narrow(self, point: _Point, entropy: float) -> None:
        """Make a trial the end of the bracket on its side. An end that stays for a second time loses weight."""
        self._sharpest = min(self._sharpest, entropy)
        if point.height < 0:
            self._stale = self._stale + 1 if self._stale > 0 else 1
            self._low = point
            if self._stale > 1 and self._high is not None:
                self._high = replace(self._high, height=self._high.height / 2)
        else:
            self._stale = self._stale - 1 if self._stale < 0 else -1
            self._high = point
            if self._stale < -1 and self._low is not None:
                self._low = replace(self._low, height=self._low.height / 2)

    def _next(self) -> float:
        """Return the log eps of the next trial."""
        low, high = self._low, self._high
        if low is not None and high is not None:
            # Illinois' variant of the false position, at some distance from both ends.
            fraction = low.height / (low.height - high.height)
            fraction = min(max(fraction, SMALLEST_STEP), 1 - SMALLEST_STEP)
            return low.place + fraction * (high.place - low.place)
        if high is not None:
            step = self._grow(high.height)
            # A trial below did not converge: go half way.
            return max(high.place - step, (high.place + self._blocked) / 2)
        if low is not None:
            return low.place + self._grow(-low.height)
        return self._blocked + LARGEST_STEP

    def _grow(self, height: float) -> float:
        """Return a step of log eps beyond the only end of the bracket that is known, which has this height."""
        self._step = min(max(1.2 * height, GROWTH * self._step, SMALLEST_STEP), LARGEST_STEP)
        return self._step


def _logit(share: float) -> float:
    share = min(max(share, 1e-12), 1 - 1e-12)
    return math.log(share) - math.log1p(-share)
