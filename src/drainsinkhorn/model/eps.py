"""Entropic strengths that are no plain number: a share of the problem's cost, a sharpness of its plan, a falling list.

The numbers are found where problems become instances, by `run.relative` and `run.sharpness`. `run.stages` runs the
stages of a falling list.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from drainsinkhorn.model.errors import ProblemError

STATISTICS = ("mean", "median", "std")
"""Statistics of the cost of which eps may be a share."""
PART = 0.05
"""Tolerance of a sharpness that states none, as a part of the smaller of its target and 1 minus its target."""


def _is_number(value: Any) -> bool:
    return isinstance(cast(object, value), numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class RelativeEps:
    """An eps that is a share of a statistic of the problem's own cost; made by `relative`.

    Attributes:
        share: eps divided by the statistic.
        of: "mean", "median" or "std" of the costs of all pairs of points with positive weight, each counted once.
    """

    share: float
    of: str = "mean"

    def __post_init__(self) -> None:
        if not _is_number(self.share) or not 0 < float(self.share) < math.inf:
            raise ProblemError(
                f"the share of a relative eps must be a positive finite number, got {self.share!r}; 0.05 is the default"
            )
        if self.of not in STATISTICS:
            raise ProblemError(f"a relative eps is a share of one of {list(STATISTICS)} of the cost, got {self.of!r}")
        object.__setattr__(self, "share", float(self.share))

    def __str__(self) -> str:
        return f"{100 * self.share:.6g}% {self.of}"


@dataclass(frozen=True, slots=True)
class SharpnessEps:
    """The eps at which the plan has a given normalised entropy; made by `sharpness`.

    Attributes:
        target: The normalised entropy: near 0 for a permutation, near 1 for the independent plan.
        within: Largest distance of the plan's normalised entropy from the target.
    """

    target: float
    within: float

    def __post_init__(self) -> None:
        if not _is_number(self.target) or not 0 < float(self.target) < 1:
            raise ProblemError(
                f"the target of a sharpness is a normalised entropy between 0 (a permutation) and 1 (the independent "
                f"plan), both excluded; got {self.target!r}"
            )
        if not _is_number(self.within) or not 0 < float(self.within) < 1:
            raise ProblemError(f"a sharpness is found within a number between 0 and 1, got within={self.within!r}")
        object.__setattr__(self, "target", float(self.target))
        object.__setattr__(self, "within", float(self.within))

    def __str__(self) -> str:
        return f"sharpness {self.target:.6g}"


@dataclass(frozen=True, slots=True)
class FallingEps:
    """An eps that is lowered in stages to its target; made by `falling`.

    Attributes:
        target: The eps of the result.
        multiples: The eps of each stage before, divided by the target; each is smaller than the one before.
        cycles: Largest number of cycles of a stage.
        scale_rho: Whether each stage multiplies prices of soft marginals by the same factor as eps.
    """

    target: float | RelativeEps
    multiples: tuple[float, ...]
    cycles: int
    scale_rho: bool = False

    def __post_init__(self) -> None:
        is_integer = isinstance(cast(object, self.cycles), numbers.Integral) and not isinstance(self.cycles, bool)
        if not is_integer or self.cycles < 1:
            raise ProblemError(f"cycles of a stage must be a positive integer, got {self.cycles!r}; 10 is the default")
        factors = [*self.multiples, 1.0]
        # Written so that NaN is rejected.
        if not all(map(_is_number, factors)) or not all(own >= following for own, following in pairwise(factors)):
            raise ProblemError(
                f"multiples of an eps that falls are numbers of at least 1 that fall, got {self.multiples!r}; falling "
                "computes them from values"
            )
        object.__setattr__(self, "cycles", int(self.cycles))
        object.__setattr__(self, "multiples", tuple(map(float, self.multiples)))

    def __str__(self) -> str:
        return f"{self.target} in {len(self.multiples) + 1} stages"


Eps = float | RelativeEps | SharpnessEps | FallingEps | None
"""What an eps may be: a number in units of the cost, a descriptor, or None for `DEFAULT_EPS`."""
DEFAULT_EPS = RelativeEps(0.05, "mean")
"""The eps of problems that state none."""


def relative(share: float, of: str = "mean") -> RelativeEps:
    """Return an eps that is `share` times the mean, median or standard deviation of the problem's own cost.

    Every problem gets its own number, `result.eps`. The statistic counts each pair of points with positive weight once,
    whatever the weights are, so points of weight zero change nothing. `eps=None` stands for `relative(0.05)`.

    Args:
        share: A positive number. 0.05 to 0.1 of the mean gives a smooth plan, 0.01 a sharp one.
        of: "mean", "median" or "std". Mean and std of squared distances (and of cosine costs) are computed in closed
            form. The median, and statistics of other costs between points, are those of all pairs up to 2^20 pairs and
            of 2^20 sampled pairs above. The sample depends only on the numbers of points.

    Examples:
        >>> relative(0.05)
        RelativeEps(share=0.05, of='mean')
        >>> str(relative(0.1, of="median"))
        '10% median'
    """
    return RelativeEps(share, of)


def sharpness(target: float, *, within: float | None = None) -> SharpnessEps:
    """Return the eps at which the plan has the normalised entropy `target`; see `normalised_entropy`.

    The normalised entropy grows with eps, from about 0 (each point is sent to one point) to 1 (all points are sent to
    all). A search solves the problem a few times with a loose tol; the problems of a batch are searched together.

    Args:
        target: A number between 0 and 1, both excluded.
        within: Largest distance of the plan's normalised entropy from the target. None: 5 % of the target, or of
            1 - target if that is smaller.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(50, 2))
        >>> (result,) = ds.solve([ds.Problem(x=x, y=x + 1, eps=ds.sharpness(0.3))])
        >>> abs(ds.normalised_entropy(result) - 0.3) <= 0.015
        True
    """
    if within is None and _is_number(target) and 0 < float(target) < 1:
        within = PART * min(float(target), 1 - float(target))
    return SharpnessEps(target, PART if within is None else within)


def falling(values: Iterable[float], *, of: str | None = None, cycles: int = 10, scale_rho: bool = False) -> FallingEps:
    """Return an eps that is lowered in stages: each stage starts from the potentials of the one before.

    The result is that of the last value: its status, residual and potentials. Its depth counts the cycles of all
    stages, and so does `max_depth`; a stage that would leave no cycle for the last value is left out. The solution is
    that of the last value alone, so stages pay only where they save cycles (docs/guides/eps-and-tol.md).

    Args:
        values: Positive numbers, each smaller than the one before, such as `numpy.geomspace(1.0, 0.01, 5)`.
        of: None: values are in units of the cost. "mean", "median" or "std": they are shares of this statistic of the
            problem's own cost, as for `relative`.
        cycles: Largest number of cycles of each stage but the last, rounded up to the backend's stride. A stage ends
            before if it has reached tol.
        scale_rho: True: each stage multiplies prices of soft marginals by the same factor as eps, so that `eps / rho`
            is the same in all stages. False: prices do not change.

    Examples:
        >>> import numpy as np
        >>> import drainsinkhorn as ds
        >>> x = np.random.default_rng(0).normal(size=(50, 2))
        >>> (result,) = ds.solve(x, x + 1, eps=ds.falling([1.0, 0.3, 0.1], cycles=5))
        >>> result.converged, result.eps
        (True, 0.1)
    """
    if not isinstance(cast(object, values), Iterable):
        raise ProblemError(f"falling takes a list of numbers, got {values!r}; one number is an eps as it is")
    strengths = list[float]()
    for place, value in enumerate(values):
        before = strengths[-1] if strengths else math.inf
        # Python compares integers of any size with floats; those beyond the range of float64 have no float.
        if not _is_number(value) or not 0 < value < before:
            bound = f"below the one before it, {before!r}" if strengths else "finite"
            kind = type(cast(object, value)).__name__
            raise ProblemError(
                f"falling takes positive numbers, each below the one before; number {place} is {value!r} ({kind}), and "
                f"must be positive and {bound}"
            )
        try:
            strengths.append(float(value))
        except OverflowError:
            raise ProblemError(f"number {place} of falling is beyond the range of float64") from None
    if not strengths:
        raise ProblemError("falling takes at least one number, the eps of the result")
    target = strengths[-1]
    multiples = tuple(strength / target for strength in strengths[:-1])
    return FallingEps(target if of is None else RelativeEps(target, of), multiples, cycles, scale_rho)


def target_eps(eps: Any) -> Any:
    """Return the eps at which a problem is solved: the target of a falling one, and any other as it is."""
    return eps.target if isinstance(eps, FallingEps) else eps


def is_descriptor(eps: Any) -> bool:
    """True if an eps is no plain number: a descriptor, or None for the default."""
    return eps is None or isinstance(eps, (RelativeEps, SharpnessEps, FallingEps))


def stated_eps(problem: Any) -> float:
    """Return the eps that a problem states as a positive finite number; NaN if it states none."""
    eps: Any = target_eps(getattr(problem, "eps", None))
    try:
        return float(eps) if _is_number(eps) and 0 < eps < math.inf else math.nan
    except OverflowError:  # An integer beyond the range of float64.
        return math.nan
