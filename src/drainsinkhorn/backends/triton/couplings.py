"""Finished plans on the device: lanes of like size stacked and consumed by one launch.

Precision follows the caller: problems in float32 are consumed in float32 from split scores, if some rows show that this
is right to ACCURACY, and in float64 elsewhere. The device is asked once for each verb (draws: once more), when all is
under way; lanes in doubt are then done again in float64, now and from then on.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.consumer_arguments import (
    check_pairs,
    checked_count,
    checked_rows,
    checked_side,
    checked_values,
    uniforms,
)
from drainsinkhorn.backends.triton.arena import ALIGN
from drainsinkhorn.backends.triton.layout import unit_rows
from drainsinkhorn.backends.triton.matrices import KEPT_PAIRS, PART_PAIRS
from drainsinkhorn.backends.triton.stacking import padded, stack_lanes, stacked
from drainsinkhorn.backends.triton.stacks import Stack
from drainsinkhorn.backends.triton.tiles import STORED
from drainsinkhorn.model.couplings import TransportCost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import is_single, library, to_caller, to_numpy
from drainsinkhorn.numerics.costs import require_slope, slope, slope_of_distances
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.transforms import plan_costs

ACCURACY, PROBES = 1e-5, 32
"""Largest error of probed rows of a lane that is consumed in float32, and how many rows are probed."""
LN2 = math.log(2.0)


class TritonCouplings:
    """Finished plans of some problems on one device."""

    def __init__(
        self,
        instances: Sequence[Instance[Any]],
        potentials: Sequence[Potentials[Any]],
        how: Callable[[Any], Any],
        device: Any,
    ) -> None:
        self._instances, self._potentials, self._device = list(instances), list(potentials), device
        self._stacks: list[Stack] = []
        groups = [(lanes, kind, self._exact(lanes, kind)) for lanes, kind in self._alike(how)]
        pairs = [0 if exact or kind.kind != STORED else self._pairs(lanes) for lanes, kind, exact in groups]
        keep = sum(each * len(lanes) for each, (lanes, *_) in zip(pairs, groups, strict=True)) <= KEPT_PAIRS
        for each, (alike, kind, exact) in zip(pairs, groups, strict=True):
            step = max(1, PART_PAIRS // each) if each else len(alike)
            for first in range(0, len(alike), step):
                lanes = alike[first : first + step]
                some = [self._instances[i] for i in lanes], [self._potentials[i] for i in lanes]
                uniform = all(self._instances[i].uniform for i in lanes)
                self._stacks.append(stack_lanes(lanes, *some, kind, device, uniform=uniform, exact=exact, keep=keep))
        # What is known of the precision that lanes need, by side.
        self._sides: dict[int, list[Stack]] = {}

    def _alike(self, how: Callable[[Any], Any]) -> list[tuple[list[int], Any]]:
        """Lanes that are stacked: one kind of scores, one dimension, sizes within a factor of two."""
        found: dict[Any, tuple[list[int], Any]] = {}
        for lane, instance in enumerate(self._instances):
            n, m = instance.shape
            if not instance.is_dense:
                kind = how(instance)
                size = tuple(max(ALIGN.bit_length(), side.bit_length()) for side in (n, m))
                key = (kind, instance.cost.kind, instance.x.shape[1], size, is_single(instance.x))
            else:
                # The caller's own matrix is read where it lies.
                kind, key = None, lane
            found.setdefault(key, ([], kind))[0].append(lane)
        return list(found.values())

    def _exact(self, lanes: Sequence[int], kind: Any) -> bool:
        """True for what is always consumed in float64: the caller's own matrices, and points in float64."""
        return kind is None or not all(is_single(self._instances[lane].like) for lane in lanes)

    def _pairs(self, lanes: Sequence[int]) -> int:
        """Pairs that each of these lanes takes, if they are stacked."""
        return math.prod(padded([self._instances[lane].shape for lane in lanes]))

    def _probe(self, stack: Stack, side: int) -> Any:
        """Lanes whose ratios, or means of random signs, are off in some rows: in the mean, or thrice that in one; (L,).

        A row alone may be off by more than the mean, if few rows carry what is costly.
        """
        size = stack.sizes[:, side : side + 1]
        rows = torch.arange(PROBES, device=self._device, dtype=torch.int64)[None, :] * size // PROBES
        signs = _signs(stack.pads[1 - side], self._device)
        sums, means = stack.signed(side, rows.int(), signs)
        logs, truth, _ = stack.exact_averages(side, signs[None, :, None].expand(len(stack.lanes), -1, -1), rows.int())
        fine, own = stack.fine(side).gather(1, rows), stack.potential(side).gather(1, rows)
        ratio = torch.exp2(logs + own)
        off = (sums * torch.exp2(fine) - ratio).abs() + ratio * (means - truth[:, :, 0]).abs()
        # Written so that what is no number is off.
        return (~(torch.maximum(off.mean(1), off.amax(1) / 3) <= ACCURACY)).int()

    def _each(
        self,
        side: int,
        verb: Callable[[Stack], tuple[Any, Any]],
        exact_verb: Callable[[Stack], Any],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[tuple[Stack, Any]]:
        """Outcomes of stacks, those in doubt from float64. `verb` returns its outcome and doubts, both by lane.

        The host does `meanwhile` before it waits for the device.
        """
        stacks, found, doubts = self._sides.get(side, self._stacks), [], []
        for stack in stacks:
            if stack.exact:
                found.append((stack, exact_verb(stack)))
                continue
            try:
                outcome, doubt = verb(stack)
            except torch.OutOfMemoryError:
                if stack.matrices is None:
                    raise
                streamed = stack.part(range(len(stack.lanes)), exact=True)
                found.append((streamed, exact_verb(streamed)))
                continue
            # A lane is probed once for each side, while the device is busy with it anyway; stored exponents are right.
            known = side in self._sides or stack.matrices is not None
            doubts.append(doubt if known else doubt + self._probe(stack, side))
            found.append((stack, outcome))
        if meanwhile is not None:
            meanwhile()
        wrong = iter(torch.cat(doubts).tolist() if doubts else [])
        parts = [part for stack, outcome in found for part in _parted(stack, outcome, wrong, exact_verb)]
        self._sides[side] = [stack for stack, _ in parts]
        return parts

    def _return(self, lane: int, tensor: Any) -> Any:
        """Return a tensor in the caller's library and device, in the dtype of the potentials but float32 at least."""
        like, f = self._instances[lane].like, self._potentials[lane].f
        if library(like) == "torch":
            # Points may be torch's and potentials NumPy's, as those that chains carry are.
            single = torch.float64 if to_numpy(f).dtype.itemsize > 4 else torch.float32
            dtype = torch.promote_types(f.dtype, torch.float32) if library(f) == "torch" else single
            return tensor.to(device=like.device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
        array = tensor.cpu().numpy()
        return to_caller(
            array if array.dtype.kind == "i" else array.astype(np.result_type(to_numpy(f).dtype, np.float32)), like
        )

    def _handed(self, lanes: Sequence[int], places: Any) -> list[Any]:
        """Places (L, count) lane by lane as `_return` does; for torch they are moved once, and views of one tensor."""
        likes = [self._instances[lane].like for lane in lanes]
        devices = {like.device if library(like) == "torch" else None for like in likes}
        if len(devices) == 1 and None not in devices:
            return list(places.to(devices.pop()).unbind(0))
        return [self._return(lane, one) for lane, one in zip(lanes, places.cpu(), strict=True)]

    def _collect(self, outcomes: list[tuple[Stack, Any]], side: int) -> list[Any]:
        """Rows of each lane, without padding, in the order of the problems."""
        found: list[Any] = [None] * len(self._instances)
        for stack, outcome in outcomes:
            for k, lane in enumerate(stack.lanes):
                found[lane] = outcome[k, : self._instances[lane].shape[side]]
        return found

    @memory_errors()
    def log_ratios(self, side: str = "row") -> list[Any]:
        """Log marginal ratios."""
        s = _index(side)
        found = self._collect(self._ratios(s), s)
        return [self._return(lane, logs * LN2) for lane, logs in enumerate(found)]

    def _ratios(self, side: int, meanwhile: Callable[[], None] | None = None) -> list[tuple[Stack, Any]]:
        """Log2 of marginal ratios in float64."""

        def narrow(stack: Stack) -> tuple[Any, Any]:
            sums, _, doubt = stack.totals(side)
            return sums.double().log2() + stack.fine(side), doubt

        def exact(stack: Stack) -> Any:
            return stack.exact_averages(side, None)[0] + stack.potential(side)

        return self._each(side, narrow, exact, meanwhile)

    def _means(self, values: Sequence[Any], side: int, *, weighted: bool) -> list[Any]:
        """Means of values, times the mass of the row if `weighted`; float64, flat channels."""
        if len(values) != len(self._instances):
            raise ProblemError(f"there are {len(self._problems)} results and values for {len(values)}")
        others = [instance.shape[1 - side] for instance in self._instances]
        flat = [checked_values(v, size).reshape(size, -1) for v, size in zip(values, others, strict=True)]

        def laid_out(stack: Stack) -> Any:
            return stacked([flat[lane] for lane in stack.lanes], self._device)

        def narrow(stack: Stack) -> tuple[Any, Any]:
            return stack.averages(side, laid_out(stack), weighted=weighted)

        def exact(stack: Stack) -> Any:
            logs, means, _ = stack.exact_averages(side, laid_out(stack))
            return _times(stack.masses(side, logs), means) if weighted else means

        found = self._collect(self._each(side, narrow, exact), side)
        return [out[:, : v.shape[1]] for out, v in zip(found, flat, strict=True)]

    def _shaped(self, found: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        shapes = [tuple(getattr(v, "shape", (len(v),)))[1:] for v in values]
        return [
            self._return(lane, out.reshape(len(out), *shape))
            for lane, (out, shape) in enumerate(zip(found, shapes, strict=True))
        ]

    @memory_errors()
    def apply(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Mass times means."""
        return self._shaped(self._means(values, _index(side), weighted=True), values)

    @memory_errors()
    def average(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Means."""
        return self._shaped(self._means(values, _index(side), weighted=False), values)

    @memory_errors()
    def barycentric_map(self, side: str = "row") -> list[Any]:
        """Means of the other cloud."""
        return self.average(self._clouds(1 - _index(side)), side)

    def _clouds(self, side: int) -> list[Any]:
        clouds = [(instance.x, instance.y)[side] for instance in self._instances]
        if any(cloud is None for cloud in clouds):
            raise ProblemError("a dense cost has no points to average; use apply with your own values")
        return clouds

    @memory_errors()
    def top_match(self, side: str = "row") -> list[Any]:
        """Places of the largest entries of rows."""
        s = _index(side)
        found = self._collect(self._each(s, lambda stack: stack.match(s), lambda stack: stack.exact_match(s)), s)
        return [self._return(lane, places.long()) for lane, places in enumerate(found)]

    @memory_errors()
    def sample(self, count: int, seeds: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Rows by their mass, then columns by the law of the row, both by inverting cumulative sums."""
        count = checked_count(count)
        numbers = torch.empty((2, len(seeds), count), dtype=torch.float64, pin_memory=self._device.type == "cuda")
        sent: list[Any] = []

        def choose() -> None:
            for lane, seed in enumerate(seeds):
                numbers.numpy()[:, lane] = uniforms(seed, count)
            sent.append(numbers.to(self._device, non_blocking=True))

        found: list[Any] = [None] * len(self._instances)
        for stack, logs in self._ratios(0, choose):
            first, second = _of_lanes(stack, sent[0])
            inside = torch.arange(stack.pads[0], device=self._device)[None, :] < stack.sizes[:, :1]
            mass = torch.where(inside & (stack.mass(0) > 0), stack.mass(0) * torch.exp2(logs), 0.0)
            # Sums in float32 that are not finite are in doubt, so that there are none.
            if stack.exact and not bool(mass.isfinite().all()):
                raise ProblemError("the plan is not finite, so nothing can be drawn from it; see the result's message")
            rows = _invert(mass, first)
            pairs = torch.stack([rows, _drawn(stack, rows, second, logs)]).long()
            for lane, i, j in zip(stack.lanes, *(self._handed(stack.lanes, some) for some in pairs), strict=True):
                found[lane] = i, j
        return found

    @memory_errors()
    def partners(self, rows: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        """Columns by the laws of given rows."""
        given = [checked_rows(some, instance.shape[0]) for some, instance in zip(rows, self._instances, strict=True)]
        numbers = [uniforms(seed, len(some))[1] for seed, some in zip(seeds, given, strict=True)]
        found: list[Any] = [None] * len(given)
        for stack, logs in self._ratios(0):
            # In float64, which holds every place.
            places, chosen = (
                stacked([np.asarray(some[lane], dtype=np.float64) for lane in stack.lanes], self._device)
                for some in (given, numbers)
            )
            cols = _drawn(stack, places.int().contiguous(), chosen.contiguous(), logs)
            for k, lane in enumerate(stack.lanes):
                found[lane] = self._return(lane, cols[k, : len(given[lane])].long())
        return found

    @memory_errors()
    def transport_cost(self) -> list[TransportCost]:
        """In one sweep over the rows."""

        def narrow(stack: Stack) -> tuple[Any, Any]:
            sums, (entropies, prices), doubt = stack.totals(0, costs=True)
            fine = stack.fine(0)
            parts = torch.stack([sums.double(), prices.double(), entropies.double() + fine * sums], dim=2)
            return _times(stack.mass(0) * torch.exp2(fine), parts), doubt

        def exact(stack: Stack) -> Any:
            logs, _, (exponents, prices) = stack.exact_averages(0, None)
            mass = stack.masses(0, logs)
            parts = torch.stack([torch.ones_like(mass), prices, exponents + stack.potential(0)], dim=2)
            return _times(mass, parts)

        rows = self._collect(self._each(0, narrow, exact), 0)
        potentials = [self._collect([(s, s.potential(side)) for s in self._stacks], side) for side in (0, 1)]
        masses = [self._collect([(s, s.mass(side)) for s in self._stacks], side) for side in (0, 1)]
        sums = [
            torch.cat([row.sum(0), ((a * f).sum() + (b * g).sum())[None]])
            for row, f, g, a, b in zip(rows, *potentials, *masses, strict=True)
        ]
        return [
            plan_costs(instance.eps, mass, *(LN2 * part for part in bits))
            for instance, (mass, *bits) in zip(self._instances, torch.stack(sums).tolist(), strict=True)
        ]

    @memory_errors()
    def slopes(self, side: str = "row", weights: Sequence[Any] | None = None) -> list[Any]:
        """Through the means of the other cloud; the euclidean cost, whose terms may be large, in float64."""
        s = _index(side)
        points = [self._on(cloud) for cloud in self._clouds(s)]
        for instance in self._instances:
            require_slope(instance)
        forms = [instance.cost.kind.distances for instance in self._instances]
        values: list[Any] = []
        for lane, cloud in enumerate(map(self._on, self._clouds(1 - s))):
            weight = torch.ones_like(cloud[:, 0]) if weights is None else self._on(weights[lane])
            others = unit_rows(cloud[None])[0] if forms[lane].directions else cloud
            values.append(weight[:, None] * torch.cat([others, torch.ones_like(others[:, :1])], dim=1))
        means = self._means(values, s, weighted=False)
        logs = self._collect(self._ratios(s), s)
        masses = self._collect([(stack, stack.mass(s)) for stack in self._stacks], s)
        near = [(stack, self._inverse(stack, values, s)) for stack in self._stacks if stack.rooted]
        over = self._collect(near, s)
        found: list[Any] = []
        for lane, instance in enumerate(self._instances):
            mass = torch.where(masses[lane] > 0, masses[lane] * torch.exp2(logs[lane]), 0.0)
            if forms[lane].root:
                # Scaled costs are in bits.
                value = slope_of_distances(instance.cost, instance.eps * LN2, points[lane], mass, over[lane])
            else:
                value = slope(instance.cost, points[lane], mass, means[lane])
            found.append(self._return(lane, value))
        return found

    def _inverse(self, stack: Stack, values: Sequence[Any], side: int) -> Any:
        laid_out = stacked([values[lane] for lane in stack.lanes], self._device)
        return stack.exact_averages(side, laid_out, inverse=True)[1]

    def _on(self, points: Any) -> Any:
        return stacked([points], self._device)[0].double()

    @memory_errors()
    def plan(self, max_pairs: int) -> list[Any]:
        """Exponents coordinate by coordinate, in float64."""
        check_pairs(self._instances, max_pairs)
        return [self._return(lane, self._dense(lane)) for lane in range(len(self._instances))]

    def _dense(self, lane: int) -> Any:
        stack = next(stack for stack in self._stacks if lane in stack.lanes)
        k, (n, m) = stack.lanes.index(lane), self._instances[lane].shape
        f, g = stack.potential(0)[k, :n], stack.potential(1)[k, :m]
        plan = torch.exp2(f[:, None] + g[None, :] - stack.scores(k, n, m))
        a, b = stack.mass(0)[k, :n], stack.mass(1)[k, :m]
        return torch.where((a[:, None] > 0) & (b > 0), a[:, None] * b * plan, 0.0)


def _of_lanes(stack: Stack, tensor: Any) -> Any:
    """What (k, lanes, ...) has for the lanes of a stack."""
    if stack.lanes == list(range(tensor.shape[1])):
        return tensor
    return tensor[:, torch.tensor(stack.lanes, device=tensor.device)]


def _drawn(stack: Stack, rows: Any, numbers: Any, logs: Any) -> Any:
    """Columns for listed rows; in float64 if stored exponents find no memory."""
    if not stack.exact:
        try:
            return stack.draw(rows, numbers)
        except torch.OutOfMemoryError:
            if stack.matrices is None:
                raise
    return stack.exact_draw(rows, numbers, logs)


def _times(mass: Any, rows: Any) -> Any:
    """Rows times their masses; zero without mass, however far away the point lies."""
    return torch.where(mass[:, :, None] > 0, mass[:, :, None] * rows, 0.0)


def _parted(
    stack: Stack, outcome: Any, wrong: Iterator[int], exact_verb: Callable[[Stack], Any]
) -> list[tuple[Stack, Any]]:
    """The lanes of a float32 stack that are right, and the others from float64."""
    if stack.exact:
        return [(stack, outcome)]
    doubts = [next(wrong) for _ in stack.lanes]
    if not any(doubts):
        return [(stack, outcome)]
    right, rest = ([k for k, doubt in enumerate(doubts) if bool(doubt) is odd] for odd in (False, True))
    again = stack.part(rest, exact=True)
    return [*([(stack.part(right, exact=False), outcome[right])] if right else []), (again, exact_verb(again))]


@lru_cache(maxsize=8)
def _signs(size: int, device: Any) -> Any:
    """Random signs, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (size,), generator=generator).double().mul(2).sub(1).float().to(device)


def _index(side: str) -> int:
    return 0 if checked_side(side) == "row" else 1


def _invert(mass: Any, numbers: Any) -> Any:
    """Places at which cumulative sums of rows of `mass` pass numbers in [0, 1) times their totals."""
    totals = torch.cumsum(mass, dim=1)
    last = mass.shape[1] - 1 - (mass > 0).int().flip(1).argmax(1, keepdim=True)
    places = torch.searchsorted(totals, numbers * totals[:, -1:], right=True)
    return torch.minimum(places, last).int().contiguous()
