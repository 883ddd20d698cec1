"""Sensor logs and LiDAR clips: drift of windows against healthy ones, and flow from frame to frame."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.divergences import Divergences, divergence
from drainsinkhorn.model.brief import call, count_of, status_counts
from drainsinkhorn.model.eps import Eps, SharpnessEps, is_descriptor
from drainsinkhorn.model.errors import OptionsError, ProblemError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.arrays import is_array, to_numpy
from drainsinkhorn.plans.consumers import barycentric_map, couplings
from drainsinkhorn.run.resolve import require_fixed, resolve_eps
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import DEFAULTS, solve
from drainsinkhorn.run.validate import validate

Array = NDArray[np.float64]


def windows(log: Any, length: int, step: int | None = None) -> Array:
    """Windows (W, length, d) of a log (rows, d) that begin `step` rows apart; None: `length` rows.

    Rows after the last whole window are dropped.

    Examples:
        >>> windows(np.zeros((100, 3)), 40, 30).shape
        (3, 40, 3)
    """
    rows = to_numpy(log).astype(np.float64)
    step = length if step is None else step
    if rows.ndim != 2 or not is_count(length) or not is_count(step) or len(rows) < length:
        raise ProblemError(
            f"a log of shape {rows.shape} has no windows of {length} rows {step} apart; it needs (rows, d)"
        )
    starts = range(0, len(rows) - length + 1, step)
    return np.stack([rows[k : k + length] for k in starts])


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Drift of windows.

    Attributes:
        values: One score for each window, (W,); NaN for a window with values that are not finite.
        alarms: Whether each score exceeds the threshold or is NaN, (W,).
        divergences: The divergence of each window from each reference, window by window.
        threshold: The score above which a window is an alarm.
    """

    values: Array
    alarms: NDArray[np.bool_]
    divergences: Divergences
    threshold: float = np.inf

    def __repr__(self) -> str:
        counts = count_of(len(self.values), "window"), count_of(int(self.alarms.sum()), "alarm")
        return call("Scores", *counts, threshold=self.threshold)


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """A detector: how far a window is from healthy ones, as a Sinkhorn divergence; made by `fit`.

    Attributes:
        references: Healthy windows, centred and scaled, with which other windows are compared.
        middle: Mean of each sensor over healthy windows, (d,).
        scale: Standard deviation of each sensor over healthy windows, (d,); 1 for a sensor that is constant.
        eps: Entropic strength, in units of the squared distance after scaling.
        threshold: The score above which a window is an alarm.
        healthy: Scores of the healthy windows that are not references.
        settings: Keywords of `divergence`.
    """

    references: list[Array]
    middle: Array
    scale: Array
    eps: float
    threshold: float
    healthy: Array
    settings: dict[str, Any]

    @classmethod
    def fit(
        cls,
        healthy: Any,
        *,
        references: int = 4,
        quantile: float = 0.99,
        eps: Eps = 0.05,
        seed: int = 0,
        **settings: Any,
    ) -> Drift:
        """Learn from healthy windows, of which some, drawn at random, become references.

        Args:
            healthy: Windows (W, rows, d), or a list of windows of any lengths.
            references: Number of references.
            quantile: Quantile of the scores of the other healthy windows that becomes the threshold.
            eps: A number: share of the mean squared distance within healthy windows, which is 2 d after scaling. Or
                `relative`: share of a statistic of the squared distances between all healthy rows after scaling. Or
                `sharpness`: the median of what is found for pairs of references. All windows are scored with one eps.
                None: `relative(0.05)`.
            seed: Seed of the draw of references.
            **settings: Keywords of `divergence`.
        """
        check_settings(settings.keys() - {"a", "b", "cost"}, cls.fit)
        clouds = _clouds(healthy)
        # Written so that NaN is not positive.
        number: Any = eps
        is_positive = is_descriptor(eps) or number > 0
        if not is_count(references) or not 0 < quantile <= 1 or not is_positive:
            raise OptionsError(f"bad settings: references={references}, quantile={quantile}, eps={eps}")
        if len(clouds) < references + 2:
            raise ProblemError(
                f"{len(clouds)} healthy windows are too few for {references} references and a threshold; "
                f"give at least {references + 2}, or fewer references"
            )
        rows = np.concatenate(clouds)
        if not np.isfinite(rows).all():
            raise ProblemError("healthy windows hold values that are not finite; leave those windows out")
        middle, scale = rows.mean(0), rows.std(0)
        scale = np.where(scale > 1e-12 * np.abs(middle).clip(1e-300), scale, 1.0)
        order = np.random.default_rng(seed).permutation(len(clouds))
        chosen = [(clouds[k] - middle) / scale for k in order[:references]]
        strength = _find_eps(eps, (rows - middle) / scale, chosen, settings)
        untrained = cls(chosen, middle, scale, strength, np.inf, np.empty(0), settings)
        scores = untrained.score([clouds[k] for k in sorted(order[references:])]).values
        return cls(chosen, middle, scale, strength, float(np.quantile(scores, quantile)), scores, settings)

    def score(self, given: Any) -> Scores:
        """Score windows: mean divergence from the references, all of them lanes of one batch."""
        clouds = [(cloud - self.middle) / self.scale for cloud in _clouds(given, len(self.middle))]
        count = len(self.references)
        x = [cloud for cloud in clouds for _ in range(count)]
        divergences = divergence(x, self.references * len(clouds), eps=self.eps, **self.settings)
        values = to_numpy(divergences.values).reshape(len(clouds), count).mean(axis=1)
        # Not `>`: a score of NaN must be an alarm.
        return Scores(values, ~(values <= self.threshold), divergences, self.threshold)

    def __repr__(self) -> str:
        counts = count_of(len(self.references), "reference"), count_of(len(self.middle), "sensor")
        return call("Drift", *counts, eps=self.eps, threshold=self.threshold)


def _find_eps(eps: Any, rows: Array, references: list[Array], settings: dict[str, Any]) -> float:
    """The eps of a detector, from healthy rows and references after scaling."""
    cost = settings.get("cost", "sqeuclidean")
    if isinstance(eps, SharpnessEps):
        others = references[1:] + references[:1]
        pairs = [Problem(x=x, y=y, eps=eps, cost=cost) for x, y in zip(references, others, strict=True)]
        options = settings.get("options", DEFAULTS).with_fields(settings.get("tol"), settings)
        resolved = resolve_eps(pairs, backend=settings.get("backend", "auto"), options=options)
        numbers = [pair.eps for pair in resolved if isinstance(pair.eps, float)]
        if not numbers:
            raise ProblemError(f"no eps was found for {eps} between healthy windows; raise the target, or pass a share")
        return float(np.median(numbers))
    require_fixed(eps)
    if is_descriptor(eps):
        return validate(Problem(x=rows, y=rows, eps=eps, cost=cost), tol=1.0).eps
    return eps * 2 * rows.shape[1]


def _clouds(given: Any, dim: int | None = None) -> list[Array]:
    if not isinstance(given, (list, tuple)) and not (is_array(given) and given.ndim == 3):
        raise ProblemError("windows must be an array (W, rows, d) or a list of arrays (rows, d); see sensors.windows")
    clouds = [to_numpy(window).astype(np.float64) for window in given]
    dims = {cloud.shape[1] if cloud.ndim == 2 else -1 for cloud in clouds}
    if len(dims) != 1 or -1 in dims or (dim is not None and dims != {dim}):
        raise ProblemError(f"windows must all have the same sensors ({dim or 'd'}), got shapes {_shapes(clouds)}")
    return clouds


def _shapes(clouds: Sequence[Array]) -> list[tuple[int, ...]]:
    return sorted({cloud.shape for cloud in clouds})[:4]


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Flow from frame to frame of a clip.

    Attributes:
        displacement: For every frame but the last, where its points go on average, less where they are, (n, d); None
            where the problem is INVALID.
        results: Couplings of consecutive frames.
        matched: With `rho`, for every frame but the last, the part of each point's weight that the plan moves to the
            next frame, (n,); near 0 for a point without a counterpart. None without `rho`.
    """

    displacement: list[Any]
    results: list[Result[Any]]
    matched: list[Any] | None = None

    def __repr__(self) -> str:
        return call("Flow", count_of(len(self.results), "pair"), status_counts(each.status for each in self.results))


def frame_flow(
    clips: Any, *, eps: Eps = None, rho: Any = None, carry: bool = True, tol: float | None = None, **settings: Any
) -> list[Flow]:
    """Barycentric flow between consecutive frames of clips, all of them lanes of one batch.

    With `carry`, frames of a clip run in order, each from its predecessor's potentials, and clips side by side.

    Args:
        clips: A list of clips, each an array (T, n, d) or a list of frames (n, d) of any sizes.
        eps: A number in units of the squared distance, `relative` or `sharpness`, which give each pair of frames its
            own number. None: `relative(0.05)`.
        rho: The price of soft marginals in units of the squared distance, for frames whose points need not all have a
            counterpart (see `Problem`). All points of a pair of frames then weigh the same. None: every point has one.
        carry: Whether frames of a clip start from their predecessor's potentials.
        tol: Bound on the larger L1 marginal residual.
        **settings: Keywords of `solve`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> clip = rng.normal(size=(1, 60, 3)) + 0.1 * np.arange(4)[:, None, None]
        >>> (flow,) = frame_flow([clip], eps=0.01)
        >>> len(flow.displacement), bool(np.abs(flow.displacement[0] - 0.1).max() < 0.01)
        (3, True)
    """
    check_settings(settings, frame_flow)
    problems, lengths = list[Problem[Any]](), list[int]()
    for number, clip in enumerate(clips):
        if len(clip) < 2:
            raise ProblemError(f"clip {number} has {len(clip)} frame(s); flow needs at least two")
        frames = list(clip)
        if any(np.ndim(frame) != 2 for frame in frames):
            raise ProblemError(
                f"clip {number} must be an array (T, n, d) or a list of frames (n, d), got frames of "
                f"{sorted({np.ndim(frame) for frame in frames})} dimensions; a single clip goes in a list: [clip]"
            )
        lengths.append(len(frames) - 1)
        chain = number if carry else None
        for x, y in itertools.pairwise(frames):
            weights: dict[str, Any] = (
                {} if rho is None else {"a": np.full(len(x), 1 / len(x)), "b": np.full(len(y), 1 / len(x))}
            )
            problems.append(Problem(x=x, y=y, eps=eps, rho=rho, chain=chain, **weights))
    solution: Solution[Any] = solve(problems, tol=tol, **settings)
    fine = [k for k, result in enumerate(solution) if result.emitted is not None]
    solved = [replace(solution[k], warns=False) for k in fine]
    images = dict(zip(fine, barycentric_map(solved), strict=True))
    shares = dict(zip(fine, _row_shares(solved), strict=True)) if rho is not None else {}
    flows, first = list[Flow](), 0
    for length in lengths:
        places = range(first, first + length)
        displacement = [images[k] - problems[k].x if k in images else None for k in places]
        matched = None if rho is None else [shares.get(k) for k in places]
        flows.append(Flow(displacement, [solution[k] for k in places], matched))
        first += length
    return flows


def _row_shares(results: Sequence[Result[Any]]) -> list[Any]:
    """For every point of x of each problem the part of its weight that the plan moves, (n,) in NumPy."""
    shares: list[Any] = [None] * len(results)
    for places, plans in couplings(results):
        for place, logs in zip(places, plans.log_ratios("row"), strict=True):
            shares[place] = np.exp(to_numpy(logs).astype(np.float64))
    return shares
