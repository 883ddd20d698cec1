"""A pack of lanes end to end in one array per quantity. KeOps reduces the blocks of the lanes that are advanced."""

# pyright: basic

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.cost_sizes import cost_sizes, leg_rounding, samples, unit_weights
from drainsinkhorn.backends.emission import Rounded, emission, round_state
from drainsinkhorn.backends.keops.lane import COLS, ROWS, SAMPLES, SIDES, KeopsLane, SideArrays
from drainsinkhorn.backends.keops.loading import load_arrays
from drainsinkhorn.backends.keops.precision import KeopsArithmetic
from drainsinkhorn.backends.keops.reduction import blocks, reduce
from drainsinkhorn.backends.keops.soft import SoftState, log_totals, relative_residuals, segment
from drainsinkhorn.backends.lanes import CyclePack
from drainsinkhorn.backends.support import restrict
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import UNKNOWN, Residual, Residuals
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import largest_potentials, sampled_error, soft_bound, unsampled_size
from drainsinkhorn.numerics.soft import log_deviations
from drainsinkhorn.numerics.update import PLAIN, Momentum, Stride, alignment, update

_numbers = itertools.count()


class KeopsPack(CyclePack[KeopsLane]):
    """Lanes that share an arithmetic.

    Args:
        instances: The problems of the first lanes.
        arithmetic: How lanes are computed.
        momentum: True to use momentum on f.
    """

    def __init__(
        self, instances: Sequence[Instance[Any]], arithmetic: KeopsArithmetic, *, momentum: bool = False
    ) -> None:
        super().__init__()
        self._arithmetic, self._momentum = arithmetic, momentum
        self._device = torch.device(arithmetic.device)
        self._arrays: dict[str, Any] = {}
        self._are_soft: Any = None
        self.repack([], instances)

    @memory_errors()
    def _cycle(self, moving: Sequence[int], frozen: Sequence[int]) -> None:
        """Apply the pending f-leg, run the g-leg, measure the next f-leg; discard the outcome of frozen lanes.

        Both legs are applied by `numerics.update.update`, with potentials in nats.
        """
        arrays, ranges = self._arrays, self._blocks([*moving, *frozen])
        row_leg = self._deviations(ROWS, arrays["next"], arrays["f"])
        f, x = update(arrays["f"], row_leg, 1.0, self._strides(moving), arrays["before"], self._damping(ROWS))
        f, x, before_g = self._translate(moving, f, x)
        col_ratios = before_g + self._leg(COLS, f, ranges)
        g, _ = update(before_g, self._deviations(COLS, col_ratios, before_g), 1.0, lam=self._damping(COLS))
        row_ratios = f + self._leg(ROWS, g, ranges)
        bad_f, bad_g = ~(torch.isfinite(f) & torch.isfinite(row_ratios)), ~torch.isfinite(g)
        sums = torch.stack(
            [
                self._sums(ROWS, bad_f.double()) + self._sums(COLS, bad_g.double()),
                self._residuals(ROWS, row_ratios, f),
                self._residuals(COLS, col_ratios, before_g),
                alignment(arrays["a"], self._deviations(ROWS, row_ratios, f), f, x, partial(self._sums, ROWS)),
                *self._log_masses(row_ratios, f),
            ]
        ).T.tolist()
        broken = {i for i in moving if sums[i][0] > 0}
        rows, cols = self._places([i for i in moving if i not in broken])
        for name, new in (("f", f), ("before", x), ("next", row_ratios)):
            arrays[name][rows] = new[rows]
        arrays["g"][cols] = g[cols]
        for i in moving:
            lane = self._lanes[i]
            lane.depth += 1
            lane.broken = lane.broken or i in broken
            if not lane.broken:
                if lane.momentum is not None and lane.momentum.rows_exact:
                    lane.momentum.measured_columns(sums[i][2])
                lane.error, lane.along = sums[i][1], sums[i][3]
                if lane.soft is not None:
                    lane.soft.log_own, lane.soft.log_other = sums[i][4:]
        # At depths that do not depend on the calls, so that neither does a lane's first passage.
        self._bound([i for i in moving if self._lanes[i].depth & (self._lanes[i].depth - 1) == 0])

    def _strides(self, moving: Sequence[int]) -> Stride:
        """Step and beta of every row; those of lanes that do not move are plain."""
        strides = [PLAIN] * len(self._lanes)
        for i in moving:
            strides[i] = self._lanes[i].stride()
        each = torch.tensor(strides, dtype=torch.float64, device=self._device)
        return Stride(*torch.repeat_interleave(each, self._lengths["rows"], 0).unbind(1))

    def _leg(self, side: SideArrays, others: Any, ranges: Any) -> Any:
        """`logsumexp` over the other side in nats: with the side's own potential, the log marginal ratio of a point."""
        arrays = self._arrays
        return self._reduce(side, arrays["short_x"], arrays["short_y"], others, ranges)

    def _reduce(self, side: SideArrays, x: Any, y: Any, others: Any, ranges: Any) -> Any:
        """`_leg` with given points x and y: those of one side may be a sample."""
        kind, other = self._arithmetic.kind, SIDES[side.axis]
        scales = None if kind.distances is not None else self._arrays[other.scale]
        return reduce(kind, x, y, others + self._arrays[other.weights].log(), scales, side.axis, ranges)

    def _blocks(self, lanes: Sequence[int]) -> tuple[Any, ...]:
        return blocks([self._lanes[i].rows for i in lanes], [self._lanes[i].cols for i in lanes], self._device)

    def _places(self, lanes: Sequence[int]) -> tuple[Any, Any]:
        """Indices of all rows, and of all columns, of some lanes; a slice if they are all."""
        if len(lanes) == len(self._lanes):
            return slice(None), slice(None)
        return tuple(
            torch.cat([torch.arange(*getattr(self._lanes[i], side.span)) for i in lanes] or [torch.arange(0)]).to(
                self._device
            )
            for side in SIDES
        )  # type: ignore[return-value]

    def _sums(self, side: SideArrays, values: Any) -> Any:
        """Sums by lane, in an order that does not depend on other lanes."""
        return segment(values, "sum", self._lengths[side.span])

    def _residuals(self, side: SideArrays, log_ratios: Any, potentials: Any) -> Any:
        """The residual of one side of every lane: `numerics.residual.residual`, or that of `numerics.soft`."""
        weights = self._arrays[side.weights]
        hard = residual(weights, log_ratios, partial(self._sums, side), torch.expm1)
        if self._are_soft is None:
            return hard
        kappa, lengths = self._arrays[f"kappa_{side.potentials}"], self._lengths[side.span]
        return torch.where(self._are_soft, relative_residuals(weights, log_ratios, potentials, kappa, lengths)[0], hard)

    def _deviations(self, side: SideArrays, log_ratios: Any, potentials: Any) -> Any:
        """The L of one side of all lanes: `numerics.soft.log_deviations`."""
        kappa = 0.0 if self._are_soft is None else self._arrays[f"kappa_{side.potentials}"]
        return log_deviations(log_ratios, potentials, kappa)

    def _damping(self, side: SideArrays) -> Any:
        """The lambda of every point of a side; the number 1 if no lane is soft."""
        return 1.0 if self._are_soft is None else self._arrays[f"lam_{side.potentials}"]

    def _log_masses(self, row_ratios: Any, f: Any) -> list[Any]:
        """What `SoftState.shift` needs of every lane whose columns are exact; nothing if no lane is soft."""
        if self._are_soft is None:
            return []
        arrays, lengths = self._arrays, self._lengths["rows"]
        kappa = arrays["kappa_f"]
        plain, _ = update(f, self._deviations(ROWS, row_ratios, f), 1.0, lam=arrays["lam_f"])
        _, mass = relative_residuals(arrays["a"], row_ratios, f, kappa, lengths)
        return [log_totals(arrays["a"], -kappa * plain, lengths), mass]

    def _translate(self, moving: Sequence[int], f: Any, x: Any) -> tuple[Any, Any, Any]:
        """Apply the translation of lanes that move (`numerics.soft.translation`): return the new f, its x, and g."""
        arrays = self._arrays
        if self._are_soft is None or not self._momentum:
            return f, x, arrays["g"]
        shifts = [0.0] * len(self._lanes)
        for i in moving:
            soft = self._lanes[i].soft
            shifts[i] = 0.0 if soft is None else soft.shift()
        each = torch.tensor(shifts, dtype=torch.float64, device=self._device)
        rows, cols = (torch.repeat_interleave(each, self._lengths[side.span]) for side in SIDES)
        return f + arrays["lam_f"] * rows, x + arrays["lam_f"] * rows, arrays["g"] - cols

    def _bound(self, lanes: Sequence[int]) -> None:
        """Bound the rounding error of lanes, at the state whose next f-leg is measured."""
        f, g, errors = self._arrays["f"], self._arrays["g"], [0.0] * len(lanes)
        if self._arithmetic.single and lanes:
            errors = self._sampled_errors(lanes, ROWS, f, g, self._arrays["next"])
        for i, error in zip(lanes, errors, strict=True):
            lane = self._lanes[i]
            lane.band = self._band(i, error)
            if lane.soft is not None:
                lane.soft.exponents = lane.soft.largest_exponents(*self._potentials(i))

    def _band(self, i: int, error: float, far: float = 0.0) -> float:
        """The rounding bound of a lane; see `KeopsArithmetic.bound`."""
        largest = float(largest_potentials(*self._potentials(i)))
        return self._arithmetic.bound(self._lanes[i].rounding, largest, error, far)

    def _with_targets(self, i: int, band: float, residual: float) -> float:
        """The bound on the rounding error of a residual, from that of hard marginals, at the state as it is now."""
        soft = self._lanes[i].soft
        return band if soft is None else soft_bound(band, soft.largest_exponents(*self._potentials(i)), residual)

    def _potentials(self, i: int) -> tuple[Any, Any]:
        """Potentials of a lane in nats."""
        return tuple(self._arrays[side.potentials][slice(*getattr(self._lanes[i], side.span))] for side in SIDES)

    def _sampled_errors(
        self, lanes: Sequence[int], side: SideArrays, own: Any, others: Any, log_ratios: Any
    ) -> list[float]:
        """`sampled_error` of one side of lanes: log marginal ratios of sampled points, compared with float64.

        Args:
            lanes: The lanes.
            side: The side.
            own: Potentials of the side in nats.
            others: Potentials of the other side in nats.
            log_ratios: Log marginal ratios of the side.
        """
        arrays, other = self._arrays, SIDES[side.axis]
        places = [getattr(self._lanes[i], side.span)[0] + self._lanes[i].samples[side.span] for i in lanes]
        sampled = torch.as_tensor(np.concatenate(places).astype(np.int64), device=self._device)
        x, y = arrays[side.points][sampled].contiguous(), arrays[other.points]
        rows = [(k * SAMPLES, (k + 1) * SAMPLES) for k in range(len(lanes))]
        cols = [getattr(self._lanes[i], other.span) for i in lanes]
        if side is COLS:
            x, y, rows, cols = y, x, cols, rows
        exact = own[sampled] + self._reduce(side, x, y, others, blocks(rows, cols, self._device))
        errors = (torch.expm1(log_ratios[sampled]) - torch.expm1(exact)).abs()
        weights, errors = (part.view(len(lanes), SAMPLES) for part in (arrays[side.weights][sampled], errors))
        mean = sampled_error(torch, weights, errors)
        return torch.nan_to_num(mean, nan=math.inf, posinf=math.inf).tolist()

    @memory_errors()
    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state in a pass of its own, with its rounding bound."""
        if not lanes:
            return []
        self._legs += len(lanes)
        f, g = self._arrays["f"], self._arrays["g"]
        errors = self._residuals(ROWS, f + self._leg(ROWS, g, self._blocks(lanes)), f).tolist()
        screened = ((self._lanes[i], errors[i]) for i in lanes)
        return [math.nan if lane.broken else error + lane.bound(error) for lane, error in screened]

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
        f, g = self._arrays["f"].clone(), self._arrays["g"].clone()
        far = list[float]()
        for i in lanes:
            lane, state = self._lanes[i], self._round_state(i)
            own, other = state.f / lane.instance.eps, state.g / lane.instance.eps
            f[slice(*lane.rows)] = torch.as_tensor(own, device=self._device)
            g[slice(*lane.cols)] = torch.as_tensor(other, device=self._device)
            sides = ((lane.inner.a, own, "rows"), (lane.inner.b, other, "cols"))
            far.append(sum(float(unsampled_size(np, to_numpy(w), p, lane.samples[side])) for w, p, side in sides))
        ranges = self._blocks(lanes)
        row_ratios, col_ratios = f + self._leg(ROWS, g, ranges), g + self._leg(COLS, f, ranges)
        rows, cols = self._residuals(ROWS, row_ratios, f).tolist(), self._residuals(COLS, col_ratios, g).tolist()
        errors = [0.0] * len(lanes)
        if self._arithmetic.single:
            row_errors = self._sampled_errors(lanes, ROWS, f, g, row_ratios)
            errors = map(max, row_errors, self._sampled_errors(lanes, COLS, g, f, col_ratios))
        return Residuals.from_rows(
            UNKNOWN
            if self._lanes[i].broken
            else Residual(rows[i], cols[i], self._with_targets(i, self._band(i, error, extra), max(rows[i], cols[i])))
            for i, error, extra in zip(lanes, errors, far, strict=True)
        )

    def _round_state(self, i: int) -> Rounded:
        """A lane's potentials in units of the cost, as they will be emitted."""
        lane, has = self._lanes[i], self._arrays
        f, g = has["f"][slice(*lane.rows)].cpu().numpy(), has["g"][slice(*lane.cols)].cpu().numpy()
        return round_state(lane.instance, lane.instance.eps * f, lane.instance.eps * g)

    @memory_errors()
    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies for the caller; raises ContractError if the rows of a lane hold another lane's state."""
        for i in lanes:
            lane = self._lanes[i]
            if bool((self._arrays["owner"][slice(*lane.rows)] != lane.number).any()):
                raise ContractError(f"backend 'keops': the rows of lane {i} do not hold the state of lane {i}")
        return Emission.join(
            emission(self._lanes[i].instance, self._round_state(i), self._lanes[i].support) for i in lanes
        )

    @memory_errors()
    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, append lanes of new instances, and free the memory of the others."""
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
        opened = [self._open_lane(instance) for instance in admit]
        lanes = [self._lanes[i] for i in keep] + [lane for lane, _ in opened]
        for side in SIDES:
            for name in side.vectors:
                remaining = [self._arrays[name][slice(*getattr(self._lanes[i], side.span))] for i in keep]
                parts = [*remaining, *(new[name] for _, new in opened)]
                arrays[name] = torch.cat(parts) if parts else torch.zeros(0)
        self._lanes, self._arrays, self._lengths = lanes, arrays, {}
        for number, side in enumerate(SIDES):
            lengths = [lane.inner.shape[number] for lane in lanes]
            ends = np.cumsum([0, *lengths]).tolist()
            for lane, first, last in zip(lanes, ends, ends[1:], strict=False):
                setattr(lane, side.span, (first, last))
            self._lengths[side.span] = torch.tensor(lengths, dtype=torch.int64, device=self._device)
        # None where no lane is soft: then nothing of soft marginals is computed.
        are_soft = [lane.soft is not None for lane in lanes]
        self._are_soft = torch.tensor(are_soft, device=self._device) if any(are_soft) else None
        self._measure(list(range(len(keep), len(lanes))))

    def _measure(self, fresh: Sequence[int]) -> None:
        """Measure the first f-leg of lanes."""
        if not fresh:
            return
        self._legs += len(fresh)
        arrays = self._arrays
        log_ratios = arrays["f"] + self._leg(ROWS, arrays["g"], self._blocks(fresh))
        places, _ = self._places(fresh)
        arrays["next"][places] = log_ratios[places]
        residuals = self._residuals(ROWS, arrays["next"], arrays["f"]).tolist()
        if self._are_soft is not None:
            own, _ = (part.tolist() for part in self._log_masses(arrays["next"], arrays["f"]))
            # Columns are not exact yet, so that the mass of the plan is not what they ask for.
            other = log_totals(arrays["b"], -arrays["kappa_g"] * arrays["g"], self._lengths["cols"]).tolist()
        for i in fresh:
            lane = self._lanes[i]
            if lane.soft is not None:
                lane.soft.log_own, lane.soft.log_other = own[i], other[i]
            finite = bool(torch.isfinite(arrays["next"][slice(*lane.rows)]).all())
            lane.error = residuals[i]
            lane.broken = not finite or not math.isfinite(cost_sizes(lane.inner).largest)
        self._bound([i for i in fresh if not self._lanes[i].broken])

    def _open_lane(self, instance: Instance[Any]) -> tuple[KeopsLane, dict[str, Any]]:
        """A lane and its arrays."""
        inner, support = restrict(instance)
        sampled = {side: samples(w, SAMPLES) for side, w in zip(("rows", "cols"), unit_weights(inner), strict=True)}
        momentum = Momentum() if self._momentum else None
        lane = KeopsLane(
            instance, next(_numbers), inner, support, leg_rounding(inner), momentum, sampled, SoftState.of(inner)
        )
        return lane, load_arrays(inner, lane.number, self._arithmetic)
