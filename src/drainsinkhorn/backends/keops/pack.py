"""A pack of lanes laid end to end. A kernel is as wide as the blocks it is given, so narrower needs no copy."""

# pyright: basic

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.emission import Rounded, emission, rounded
from drainsinkhorn.backends.keops.reduction import blocks, reduce
from drainsinkhorn.backends.scores import UNSAMPLED, Scores, samples, scores, unsampled
from drainsinkhorn.backends.support import Support, restrict
from drainsinkhorn.core.protocol import Counted, Emission, Progress, is_held
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import UNKNOWN, Residual, Residuals
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.costs import unit_rows
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.numerics.update import PLAIN, Momentum

UNIT = 2.0**-53
SINGLE = 2.0**-22
"""Band below which no comparison of float32 with float64 is trusted."""
SAMPLES = 32
SAFETY = 4.0
"""Factor on the mean error of the rows compared, which bounds what they do to an L1 residual."""

Span = tuple[int, int]


class How(NamedTuple):
    """How lanes are computed; lanes that share it share packs.

    Attributes:
        kind: A cost by distances, or a Formula.
        dim: Coordinates.
        single: float32, else float64.
        device: Where.
    """

    kind: Any
    dim: int
    single: bool
    device: str

    @property
    def dtype(self) -> Any:
        """Of the reduction; potentials are float64."""
        return torch.float32 if self.single else torch.float64


@dataclass
class Lane:
    """One problem and where it stands."""

    instance: Instance[Any]
    number: int
    inner: Instance[Any]
    support: Support | None
    scores: Scores
    momentum: Momentum | None
    samples: dict[str, Any]
    rows: Span = (0, 0)
    cols: Span = (0, 0)
    depth: int = 0
    error: float = math.inf
    band: float = math.inf
    broken: bool = False
    frozen: bool = False

    @property
    def stale(self) -> float:
        """Residual of the rows, band included."""
        return math.nan if self.broken else self.error + self.band


SIDES = ("x", "y")
VECTORS = {
    "x": ("short_x", "x", "a", "f", "next", "before", "scale_x", "owner"),
    "y": ("short_y", "y", "b", "g", "scale_y"),
}
"""Arrays with one row per point of a side. In "owner" every row of a lane has the lane's number."""
_numbers = itertools.count()


class KeopsPack(Counted):
    """Lanes of one How.

    Args:
        instances: What to open with.
        how: How they are computed.
        momentum: Whether lanes take long steps.
    """

    def __init__(self, instances: Sequence[Instance[Any]], how: How, *, momentum: bool = False) -> None:
        self._how, self._momentum = how, momentum
        self._device = torch.device(how.device)
        self._lanes: list[Lane] = []
        self._arrays: dict[str, Any] = {}
        self._slots = 0
        self._legs = 0
        self.repack([], instances)

    @memory_errors()
    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """One cycle after the other, for the lanes that are neither frozen nor held."""
        frozen = [i for i, lane in enumerate(self._lanes) if lane.frozen]
        moving = [i for i, lane in enumerate(self._lanes) if not lane.frozen]
        for _ in range(cycles):
            if not moving:
                break
            self._cycle(moving, frozen)
            self._slots += len(moving) + len(frozen)
            self._legs += 2 * (len(moving) + len(frozen))
            held = {i for i in moving if is_held(self._lanes[i].stale, stops[i])}
            moving = [] if lockstep and held else [i for i in moving if i not in held]
        return Progress([lane.depth for lane in self._lanes], [lane.stale for lane in self._lanes])

    def _cycle(self, moving: Sequence[int], frozen: Sequence[int]) -> None:
        """Apply the pending f-leg, run the g-leg, measure the next f-leg; of frozen lanes the outcome is discarded."""
        has, executed = self._arrays, [*moving, *frozen]
        ranges = self._blocks(executed)
        strides = {i: self._stride(i) for i in moving}
        step, beta = (self._per_row([strides.get(i, PLAIN)[k] for i in range(len(self._lanes))]) for k in (0, 1))
        x = has["f"] - step * has["next"]
        f = x + beta * (x - has["before"])
        ratio = has["g"] + self._leg(f, has["g"], 0, ranges)
        g = has["g"] - ratio
        after = f + self._leg(f, g, 1, ranges)
        rows, cols = self._places(moving)
        bad_f, bad_g = ~(torch.isfinite(f) & torch.isfinite(after)), ~torch.isfinite(g)
        told = torch.stack(
            [
                self._sums(bad_f.double(), "rows") + self._sums(bad_g.double(), "cols"),
                self._sums(has["a"] * torch.expm1(after).abs(), "rows"),
                self._sums(has["b"] * torch.expm1(ratio).abs(), "cols"),
                self._sums(-has["a"] * after * (f - x), "rows"),
            ]
        ).T.tolist()
        broken = [i for i in moving if told[i][0] > 0]
        if broken:
            rows, cols = self._places([i for i in moving if i not in broken])
        for name, new in (("f", f), ("before", x), ("next", after)):
            has[name][rows] = new[rows]
        has["g"][cols] = g[cols]
        for i in moving:
            lane = self._lanes[i]
            lane.depth += 1
            lane.broken = lane.broken or i in broken
            if not lane.broken:
                if lane.momentum is not None and lane.momentum.rows_exact:
                    lane.momentum.measured_columns(told[i][2])
                lane.error, self._along[i] = told[i][1], told[i][3]
        # At depths that do not depend on the calls, so that neither does a lane's first passage.
        self._sample([i for i in moving if self._lanes[i].depth & (self._lanes[i].depth - 1) == 0])

    def _stride(self, i: int) -> tuple[float, float]:
        lane = self._lanes[i]
        return PLAIN if lane.momentum is None else lane.momentum.stride(lane.error, self._along[i])

    def _leg(self, f: Any, g: Any, axis: int, ranges: Any) -> Any:
        """`logsumexp` of one side in nats, so that the side's own potential plus it is the log of its ratio."""
        has = self._arrays
        summed, weights, scale = (g, has["b"], "scale_y") if axis == 1 else (f, has["a"], "scale_x")
        s = None if self._how.kind.distances is not None else has[scale]
        return reduce(self._how.kind, has["short_x"], has["short_y"], summed + weights.log(), s, axis, ranges)

    def _blocks(self, lanes: Sequence[int]) -> tuple[Any, ...]:
        return blocks([self._lanes[i].rows for i in lanes], [self._lanes[i].cols for i in lanes], self._device)

    def _places(self, lanes: Sequence[int]) -> tuple[Any, Any]:
        """Places of all rows, and of all columns, of some lanes; everything, cheaply, if they are all."""
        if len(lanes) == len(self._lanes):
            return slice(None), slice(None)
        return tuple(
            torch.cat([torch.arange(*getattr(self._lanes[i], side)) for i in lanes] or [torch.arange(0)]).to(
                self._device
            )
            for side in ("rows", "cols")
        )  # type: ignore[return-value]

    def _sums(self, values: Any, side: str) -> Any:
        """Sums by lane, each in an order of its own."""
        return torch.segment_reduce(values, "sum", lengths=self._lengths[side], unsafe=True)

    def _per_row(self, values: Sequence[float]) -> Any:
        each = torch.tensor(values, dtype=torch.float64, device=self._device)
        return torch.repeat_interleave(each, self._lengths["rows"])

    def _sample(self, lanes: Sequence[int]) -> None:
        """Compare some rows of lanes with float64, at the state whose next f-leg is measured."""
        if not self._how.single:
            for i in lanes:
                self._lanes[i].band = self._own_band(i)
            return
        if lanes:
            has = self._arrays
            for i, missed in zip(lanes, self._missed(lanes, has["f"], has["g"], 1, has["next"]), strict=True):
                self._lanes[i].band = self._own_band(i) + SAFETY * missed + SINGLE

    def _missed(self, lanes: Sequence[int], f: Any, g: Any, axis: int, found: Any) -> list[float]:
        """Mean error of the ratios of some rows (axis 1) or columns (axis 0), by lane: those found against float64."""
        has, side = self._arrays, ("rows", "cols")[1 - axis]
        own, weights, points = (f, has["a"], "x") if axis == 1 else (g, has["b"], "y")
        picked = [getattr(self._lanes[i], side)[0] + self._lanes[i].samples[side] for i in lanes]
        some = torch.as_tensor(np.concatenate(picked).astype(np.int64), device=self._device)
        spans = [(k * SAMPLES, (k + 1) * SAMPLES) for k in range(len(lanes))]
        others = [getattr(self._lanes[i], "cols" if axis == 1 else "rows") for i in lanes]
        few, whole = has[points][some].contiguous(), has["y" if axis == 1 else "x"]
        summed = (g + has["b"].log()) if axis == 1 else (f + has["a"].log())
        s = None if self._how.kind.distances is not None else has["scale_y" if axis == 1 else "scale_x"]
        if axis == 1:
            truth = reduce(self._how.kind, few, whole, summed, s, 1, blocks(spans, others, self._device))
        else:
            truth = reduce(self._how.kind, whole, few, summed, s, 0, blocks(others, spans, self._device))
        missed = (torch.expm1(found[some]) - torch.expm1(own[some] + truth)).abs().view(len(lanes), SAMPLES)
        mass = weights[some].view(len(lanes), SAMPLES)
        mean = torch.maximum(missed.mean(1), (mass * missed).sum(1) / mass.sum(1))
        return torch.nan_to_num(mean, nan=math.inf, posinf=math.inf).tolist()

    def _own_band(self, i: int) -> float:
        """Rounding of what float64 measures, in nats."""
        lane, has = self._lanes[i], self._arrays
        potentials = float(has["f"][slice(*lane.rows)].abs().max() + has["g"][slice(*lane.cols)].abs().max())
        points = lane.rows[1] - lane.rows[0] + lane.cols[1] - lane.cols[0]
        return 2 * (lane.scores.rounding + UNIT * (8 * lane.scores.largest + points + 8 * potentials))

    @memory_errors()
    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state in a pass of its own, band included."""
        if not lanes:
            return []
        self._legs += len(lanes)
        has = self._arrays
        ratio = has["f"] + self._leg(has["f"], has["g"], 1, self._blocks(lanes))
        errors = self._sums(has["a"] * torch.expm1(ratio).abs(), "rows").tolist()
        return [math.nan if self._lanes[i].broken else errors[i] + self._lanes[i].band for i in lanes]

    @memory_errors()
    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted; sampled rows and columns are checked in float64.

        With `exact` the states are certified from the caller's own arrays.
        """
        if not lanes:
            return Residuals([], [], [])
        self._legs += 2 * len(lanes)
        if exact:
            return certificates(self.emit(lanes), [self._lanes[i].broken for i in lanes])
        has = self._arrays
        f, g = has["f"].clone(), has["g"].clone()
        far = list[float]()
        for i in lanes:
            lane, state = self._lanes[i], self._rounded(i)
            own, other = state.f / lane.instance.eps, state.g / lane.instance.eps
            f[slice(*lane.rows)] = torch.as_tensor(own, device=self._device)
            g[slice(*lane.cols)] = torch.as_tensor(other, device=self._device)
            sides = ((lane.inner.a, own, "rows"), (lane.inner.b, other, "cols"))
            far.append(sum(float(unsampled(np, to_numpy(w), p, lane.samples[side])) for w, p, side in sides))
        ranges = self._blocks(lanes)
        row = f + self._leg(f, g, 1, ranges)
        col = g + self._leg(f, g, 0, ranges)
        rows = self._sums(has["a"] * torch.expm1(row).abs(), "rows").tolist()
        cols = self._sums(has["b"] * torch.expm1(col).abs(), "cols").tolist()
        missed = [0.0] * len(lanes)
        if self._how.single:
            both = self._missed(lanes, f, g, 1, row), self._missed(lanes, f, g, 0, col)
            missed = [SAFETY * max(pair) + SINGLE + UNSAMPLED * extra for extra, *pair in zip(far, *both, strict=True)]
        return Residuals.from_rows(
            UNKNOWN if self._lanes[i].broken else Residual(rows[i], cols[i], self._own_band(i) + more)
            for i, more in zip(lanes, missed, strict=True)
        )

    def _rounded(self, i: int) -> Rounded:
        """A lane's potentials in units of the cost, as they will be emitted."""
        lane, has = self._lanes[i], self._arrays
        f, g = has["f"][slice(*lane.rows)].cpu().numpy(), has["g"][slice(*lane.cols)].cpu().numpy()
        return rounded(lane.instance, lane.instance.eps * f, lane.instance.eps * g)

    @memory_errors()
    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies for the caller; raises ContractError if the rows of a lane hold another lane's state."""
        for i in lanes:
            lane = self._lanes[i]
            if bool((self._arrays["owner"][slice(*lane.rows)] != lane.number).any()):
                raise ContractError(f"backend 'keops': the rows of lane {i} do not hold the state of lane {i}")
        return Emission.join(emission(self._lanes[i].instance, self._rounded(i), self._lanes[i].support) for i in lanes)

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True

    @memory_errors()
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, append the admitted, and give back the memory of the others."""
        state, spans = dict(vars(self)), [(lane, lane.rows, lane.cols) for lane in self._lanes]
        try:
            self._repack(keep, admit)
        except (MemoryError, RuntimeError):
            vars(self).update(state)
            for lane, rows, cols in spans:
                lane.rows, lane.cols = rows, cols
            raise

    def _repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]]) -> None:
        """Replace the arrays by new ones without writing to the old ones, and measure the admitted lanes."""
        arrays = dict[str, Any]()
        opened = [self._opened(instance) for instance in admit]
        for side, span in zip(SIDES, ("rows", "cols"), strict=True):
            for name in VECTORS[side]:
                kept = [self._arrays[name][slice(*getattr(self._lanes[i], span))] for i in keep]
                parts = [*kept, *(new[name] for _, new in opened)]
                arrays[name] = torch.cat(parts) if parts else torch.zeros(0)
        lanes = [self._lanes[i] for i in keep] + [lane for lane, _ in opened]
        along = [self._along[i] for i in keep] if self._lanes else []
        self._lanes, self._arrays, self._along = lanes, arrays, [*along, *[0.0] * len(opened)]
        self._lengths = {}
        for span, side in (("rows", 0), ("cols", 1)):
            lengths = [lane.inner.shape[side] for lane in lanes]
            ends = np.cumsum([0, *lengths]).tolist()
            for lane, first, last in zip(lanes, ends, ends[1:], strict=False):
                setattr(lane, span, (first, last))
            self._lengths[span] = torch.tensor(lengths, dtype=torch.int64, device=self._device)
        self._measure(list(range(len(keep), len(lanes))))

    def _measure(self, fresh: Sequence[int]) -> None:
        """Measure the first f-leg of lanes."""
        if not fresh:
            return
        self._legs += len(fresh)
        has = self._arrays
        ratio = has["f"] + self._leg(has["f"], has["g"], 1, self._blocks(fresh))
        places, _ = self._places(fresh)
        has["next"][places] = ratio[places]
        errors = self._sums(has["a"] * torch.expm1(has["next"]).abs(), "rows").tolist()
        for i in fresh:
            finite = bool(torch.isfinite(has["next"][slice(*self._lanes[i].rows)]).all())
            self._lanes[i].error = errors[i]
            self._lanes[i].broken = not finite or not math.isfinite(self._lanes[i].scores.largest)
        self._sample([i for i in fresh if not self._lanes[i].broken])

    def _opened(self, instance: Instance[Any]) -> tuple[Lane, dict[str, Any]]:
        """A lane and its arrays, potentials in nats."""
        inner, support = restrict(instance)
        (n, m), eps = inner.shape, instance.eps
        with np.errstate(all="ignore"):
            x, y, factor = _scaled(inner)
            f, g = (side / eps for side in start(inner))
        some = {side: samples(to_numpy(w), SAMPLES) for side, w in (("rows", inner.a), ("cols", inner.b))}
        momentum = Momentum() if self._momentum else None
        lane = Lane(instance, next(_numbers), inner, support, scores(inner), momentum, some)
        arrays = {
            "x": x, "y": y, "a": to_numpy(inner.a), "b": to_numpy(inner.b), "f": f, "g": g,
            "next": np.zeros(n), "before": f, "scale_x": np.full(n, factor), "scale_y": np.full(m, factor),
            "owner": np.full(n, lane.number),
        }  # fmt: skip
        moved = {key: torch.tensor(value, dtype=torch.float64, device=self._device) for key, value in arrays.items()}
        for side in SIDES:
            moved[f"short_{side}"] = moved[side].to(self._how.dtype)
        return lane, moved


def _scaled(instance: Instance[Any]) -> tuple[Any, Any, float]:
    """Points whose named cost comes in units of eps, or as they are, with the factor that a Formula's cost takes."""
    form, ratio = instance.cost.kind.distances, instance.cost.scale / instance.eps
    x, y = (to_numpy(points).astype(np.float64) for points in (instance.x, instance.y))
    if form is None:
        return x, y, ratio
    if form.directions:
        x, y = unit_rows(x), unit_rows(y)
    ratio *= form.factor
    # One vector for both clouds, so that differences stay what they are.
    centre = (to_numpy(instance.a) @ x + to_numpy(instance.b) @ y) / 2
    factor = ratio if form.root else math.sqrt(ratio)
    return factor * (x - centre), factor * (y - centre), 1.0
