"""From depths to work: slots of every mode, what compaction removes, and whether that pays.

With depths l_1 .. l_W in one window and the survival curve `A_k = #{t : l_t >= k}`:

    S_compact = sum_k A_k = sum_t l_t        S_static = W max_t l_t        R = S_static - S_compact >= 0

`E[R] > 0` if and only if `Pr(0 < A_k < W) > 0` for some k: only the joint distribution of the depths in a
window counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drainsinkhorn.core.audit import Audit, is_count
from drainsinkhorn.core.ledger import survival
from drainsinkhorn.core.options import MODES
from drainsinkhorn.model.errors import OptionsError

Z = 1.96
"""Standard errors within which an estimate is called undecided."""


def windows(depths: Sequence[int], width: int) -> list[Sequence[int]]:
    """Depths in windows of a width, in the order of submission; the last may be narrower."""
    if not is_count(width):
        raise OptionsError(f"width must be an integer of at least 1, got {width!r}")
    return [depths[start : start + width] for start in range(0, len(depths), width)]


def slots(depths: Sequence[int], mode: str, width: int, audit: Audit | None = None) -> int:
    """Slots a mode spends on these depths, in windows of a width.

    Width-one, compact and stream spend `sum l_t`, since held lanes cost no slot. Mask spends `W max l_t` per window.
    Static does too, and runs on to the first audit at which all pass; without `audit`, an audit follows every cycle.

    Examples:
        >>> {mode: slots([3, 10, 4, 4], mode, 2) for mode in ("width-one", "compact", "stream", "mask", "static")}
        {'width-one': 21, 'compact': 21, 'stream': 21, 'mask': 28, 'static': 28}
        >>> slots([3, 10, 4, 4], "static", 2, Audit(every=8))
        48
    """
    if mode not in MODES:
        raise OptionsError(f"mode must be one of {list(MODES)}, got {mode!r}")
    if mode in ("width-one", "compact", "stream"):
        return sum(depths)
    audit = audit or Audit(every=1)
    last = (max(window) for window in windows(depths, width))
    boundaries = last if mode == "mask" else (audit.following(depth - 1) for depth in last)
    return sum(len(w) * boundary for w, boundary in zip(windows(depths, width), boundaries, strict=True))


def removable(depths: Sequence[int], width: int) -> int:
    """`R = sum over windows of (W max l_t - sum l_t)`: slots that compaction removes from static batches."""
    return slots(depths, "static", width) - sum(depths)


def padding(depths: Sequence[int], width: int) -> float:
    """Static slots per needed slot, minus one: `W max l_t / sum l_t - 1`."""
    needed = sum(depths)
    return slots(depths, "static", width) / needed - 1 if needed else 0.0


def saved(window: Sequence[int], per_cycle: Callable[[int], float]) -> float:
    """`sum_k [c(W) - c(A_k)]`: what a narrower kernel saves in one window, overheads not counted."""
    full = per_cycle(len(window))
    return sum(full - per_cycle(width) for width in survival(window))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over independent windows, and its standard error (inf for a single window)."""

    mean: float
    error: float

    @property
    def sign(self) -> int:
        """1 or -1 if the mean is more than `Z` standard errors from zero, else 0."""
        return 0 if abs(self.mean) <= Z * self.error else int(math.copysign(1, self.mean))


def _estimate(values: Sequence[float]) -> Estimate:
    if len(values) < 2:
        return Estimate(statistics.fmean(values), math.inf)
    return Estimate(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Opportunity:
    """Whether compaction pays, estimated from repeated windows of one width.

    Attributes:
        count: Windows seen.
        width: Lanes of each.
        unequal: Share of windows with `0 < A_k < W` at some k, which are those with R > 0.
        mixed: `Pr(0 < A_k < W)` for k = 1, 2, ...: where in the run lanes and vacancies coexist.
        removed: Removable slots R of a window.
        net: What compaction gains in a window, overheads paid: `sum_k [c(W) - c(A_k)] - H`, in units of `per_cycle`.
    """

    count: int
    width: int
    unequal: Estimate
    mixed: tuple[float, ...]
    removed: Estimate
    net: Estimate

    @property
    def exists(self) -> bool:
        """True if some window had removable work."""
        return self.unequal.mean > 0

    @property
    def verdict(self) -> str:
        """One of "pays", "does not pay" and "undecided", if the windows are too few to decide."""
        return {1: "pays", -1: "does not pay", 0: "undecided"}[self.net.sign]


def opportunity(
    repeated: Sequence[Sequence[int]],
    *,
    per_cycle: Callable[[int], float] = float,
    overhead: float | Callable[[Sequence[int]], float] = 0.0,
) -> Opportunity:
    """Estimate the joint-depth opportunity from windows of depths.

    Args:
        repeated: Windows of equal width, drawn independently.
        per_cycle: `c(A)`, the cost of one cycle at a width; by default a slot costs 1.
        overhead: `H`, what screens, verifies and repacks of a window cost beyond a static batch; a number, or a
            function of the window's depths.

    Examples:
        >>> synchronised = [[9, 9, 9], [40, 40, 40], [2, 2, 2]]  # depths vary, but never inside a window
        >>> opportunity(synchronised).exists
        False
        >>> opportunity([[2, 9, 40], [9, 2, 41], [40, 9, 3]], overhead=12.0).verdict
        'pays'
    """
    widths = {len(window) for window in repeated}
    if len(widths) != 1 or 0 in widths:
        raise OptionsError(
            f"expected windows of one width, got {len(repeated)} windows of widths {sorted(widths)}; "
            "leave the last, narrower window out"
        )
    (width,) = widths
    cost = overhead if callable(overhead) else (lambda _: overhead)
    curves = [survival(window) for window in repeated]
    deepest = max(map(len, curves))
    mixed = tuple(sum(k < len(curve) and curve[k] < width for curve in curves) / len(curves) for k in range(deepest))
    return Opportunity(
        count=len(repeated),
        width=width,
        unequal=_share([float(len(set(window)) > 1) for window in repeated]),
        mixed=mixed,
        removed=_estimate([float(removable(window, width)) for window in repeated]),
        net=_estimate([saved(window, per_cycle) - cost(window) for window in repeated]),
    )


def _share(hits: Sequence[float]) -> Estimate:
    """A proportion with the error of Agresti and Coull, which is not zero where none or all hit."""
    count = len(hits) + Z**2
    centre = (sum(hits) + Z**2 / 2) / count
    return Estimate(statistics.fmean(hits), math.sqrt(centre * (1 - centre) / count))
