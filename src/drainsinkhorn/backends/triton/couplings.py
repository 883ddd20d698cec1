"""Finished plans on the device: lanes of similar size are stacked and consumed by one launch.

Problems in float32 are consumed in float32 (inner products by float16 high and low parts) if probed rows show that
errors are below ACCURACY. All others are consumed in float64. The host reads back once for each method (for
draws twice), when all is launched. Lanes that turn out to be inaccurate are then consumed again in float64, and later
methods consume that side of them in float64 at once.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.backends.conditionals import plain_couplings
from drainsinkhorn.backends.consumer_arguments import (
    check_pairs,
    checked_count,
    checked_rows,
    checked_side,
    checked_values,
    uniforms,
)
from drainsinkhorn.backends.soft_terms import soft_terms
from drainsinkhorn.backends.triton.buffers import ALIGN
from drainsinkhorn.backends.triton.layout import unit_rows
from drainsinkhorn.backends.triton.matrices import KEPT_PAIRS, PART_PAIRS
from drainsinkhorn.backends.triton.outcomes import invert_totals, over_slabs, repeat_marked, select_lanes, times_mass
from drainsinkhorn.backends.triton.precision import has_blocks
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.stacking import padded, stack_lanes, stacked
from drainsinkhorn.backends.triton.stacks import Stack
from drainsinkhorn.backends.triton.tiles import STORED
from drainsinkhorn.model.couplings import Certificate, TransportCost
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import is_single, library, to_caller, to_numpy
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.products import as_squares, has_products, shift_potentials
from drainsinkhorn.numerics.slopes import require_slope, slope, slope_of_distances
from drainsinkhorn.numerics.transforms import plan_costs

LN2 = math.log(2.0)


class TritonCouplings:
    """Finished plans of some problems on one device."""

    def __init__(
        self,
        instances: Sequence[Instance[Any]],
        potentials: Sequence[Potentials[Any]],
        represent: Callable[[Any], Representation],
        device: Any,
    ) -> None:
        self._instances, self._potentials, self._device = list(instances), list(potentials), device
        # Dot products are consumed as squared distances with the same plan.
        self._squares = [as_squares(instance) for instance in self._instances]
        shifted = [shift_potentials(*pair) for pair in zip(self._instances, self._potentials, strict=True)]
        self._stacks: list[Stack] = []
        groups = [(lanes, form, self._is_float64(lanes, form)) for lanes, form in self._alike(represent)]
        pairs = [0 if float64 or form.kind != STORED else self._pairs(lanes) for lanes, form, float64 in groups]
        keep = sum(each * len(lanes) for each, (lanes, *_) in zip(pairs, groups, strict=True)) <= KEPT_PAIRS
        for each, (alike, form, float64) in zip(pairs, groups, strict=True):
            step = max(1, PART_PAIRS // each) if each else len(alike)
            for first in range(0, len(alike), step):
                lanes = alike[first : first + step]
                part = [self._squares[i] for i in lanes], [shifted[i] for i in lanes]
                more = {"uniform": all(p.uniform for p in part[0]), "float64": float64, "keep": keep}
                self._stacks.append(stack_lanes(lanes, *part, form, device, **more))
        # Stacks by the precision that their lanes need, for sides that have been probed.
        self._sides: dict[int, list[Stack]] = {}

    def _alike(self, represent: Callable[[Any], Representation]) -> list[tuple[list[int], Any]]:
        """Lanes that are stacked, of one representation, one dimension and sizes within a factor of two."""
        groups: dict[Any, tuple[list[int], Any]] = {}
        for lane, instance in enumerate(self._squares):
            if not instance.is_dense:
                form = represent(instance)
                size = tuple(max(ALIGN.bit_length(), side.bit_length()) for side in instance.shape)
                kind, dim = instance.cost.kind, instance.dim
                key = (form, kind, dim, size, is_single(instance.x), has_blocks(instance.shape, dim))
            else:
                # The caller's own matrix is not copied.
                form, key = None, lane
            groups.setdefault(key, ([], form))[0].append(lane)
        return list(groups.values())

    def _is_float64(self, lanes: Sequence[int], form: Representation | None) -> bool:
        """Whether lanes are always consumed in float64: the caller's own matrices, and points in float64."""
        return form is None or not all(is_single(self._instances[lane].like) for lane in lanes)

    def _pairs(self, lanes: Sequence[int]) -> int:
        """The number of pairs, padding included, of each of these lanes in a stack."""
        return math.prod(padded([self._instances[lane].shape for lane in lanes]))

    def _each(
        self,
        side: int,
        verb: Callable[[Stack], tuple[Any, Any]],
        float64_verb: Callable[[Stack], Any],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[tuple[Stack, Any]]:
        """Outcomes of stacks, in float64 for inaccurate lanes. `verb` returns outcomes and which lanes are inaccurate.

        The host calls `meanwhile` before it waits for the device.
        """
        stacks, outcomes, marks = self._sides.get(side, self._stacks), [], []
        for stack in stacks:
            if stack.float64:
                outcomes.append((stack, float64_verb(stack)))
                continue
            try:
                outcome, inaccurate = over_slabs(stack, side, verb)
            except torch.OutOfMemoryError:
                if stack.matrices is None:
                    raise
                streamed = stack.part(range(len(stack.lanes)), float64=True)
                outcomes.append((streamed, float64_verb(streamed)))
                continue
            # A lane is probed once for each side; cached exponents are accurate unless they are marked.
            is_known = side in self._sides or stack.matrices is not None
            marks.append(inaccurate if is_known else inaccurate + stack.probe(side))
            outcomes.append((stack, outcome))
        if meanwhile is not None:
            meanwhile()
        marked = iter(torch.cat(marks).tolist() if marks else [])
        parts = [part for stack, outcome in outcomes for part in repeat_marked(stack, outcome, marked, float64_verb)]
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

    def _return_places(self, lanes: Sequence[int], places: Any) -> list[Any]:
        """Return places (L, count) lane by lane; torch tensors are moved once, and are views of one tensor."""
        likes = [self._instances[lane].like for lane in lanes]
        devices = {like.device if library(like) == "torch" else None for like in likes}
        if len(devices) == 1 and None not in devices:
            return list(places.to(devices.pop()).unbind(0))
        return [self._return(lane, one) for lane, one in zip(lanes, places.cpu(), strict=True)]

    def _collect(self, outcomes: list[tuple[Stack, Any]], side: int) -> list[Any]:
        """Outcomes of the rows of each lane, without padding, in the order of the problems."""
        rows: list[Any] = [None] * len(self._instances)
        for stack, outcome in outcomes:
            for k, lane in enumerate(stack.lanes):
                rows[lane] = outcome[k, : self._instances[lane].shape[side]]
        return rows

    @memory_errors()
    def log_ratios(self, side: str = "row") -> list[Any]:
        """Log marginal ratios."""
        s = _index(side)
        ratios = self._collect(self._ratios(s), s)
        return [self._return(lane, logs * LN2) for lane, logs in enumerate(ratios)]

    def _ratios(self, side: int, meanwhile: Callable[[], None] | None = None) -> list[tuple[Stack, Any]]:
        """Log2 of marginal ratios in float64."""

        def in_float32(stack: Stack) -> tuple[Any, Any]:
            sums, _, inaccurate = stack.totals(side)
            return sums.double().log2() + stack.rest(side), inaccurate

        def in_float64(stack: Stack) -> Any:
            return stack.float64_averages(side, None)[0] + stack.potential(side)

        return self._each(side, in_float32, in_float64, meanwhile)

    def _means(self, values: Sequence[Any], side: int, *, weighted: bool) -> list[Any]:
        """Means of values, times the mass of the row if `weighted`; float64, flat channels."""
        if len(values) != len(self._instances):
            raise ProblemError(f"there are {len(self._instances)} results and values for {len(values)}")
        others = [instance.shape[1 - side] for instance in self._instances]
        flat = [checked_values(v, size).reshape(size, -1) for v, size in zip(values, others, strict=True)]

        def stacked_values(stack: Stack) -> Any:
            return stacked([flat[lane] for lane in stack.lanes], self._device)

        def in_float32(stack: Stack) -> tuple[Any, Any]:
            return stack.averages(side, stacked_values(stack), weighted=weighted)

        def in_float64(stack: Stack) -> Any:
            logs, means, _ = stack.float64_averages(side, stacked_values(stack))
            return times_mass(stack.masses(side, logs), means) if weighted else means

        means = self._collect(self._each(side, in_float32, in_float64), side)
        return [mean[:, : v.shape[1]] for mean, v in zip(means, flat, strict=True)]

    def _return_shaped(self, means: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Return means with the channels of the values."""
        shapes = [tuple(getattr(v, "shape", (len(v),)))[1:] for v in values]
        return [
            self._return(lane, out.reshape(len(out), *shape))
            for lane, (out, shape) in enumerate(zip(means, shapes, strict=True))
        ]

    @memory_errors()
    def apply(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Return products of plans with values."""
        return self._return_shaped(self._means(values, _index(side), weighted=True), values)

    @memory_errors()
    def average(self, values: Sequence[Any], side: str = "row") -> list[Any]:
        """Return means of values over conditional distributions."""
        return self._return_shaped(self._means(values, _index(side), weighted=False), values)

    @memory_errors()
    def barycentric_map(self, side: str = "row") -> list[Any]:
        """Return means of the other cloud over conditional distributions."""
        return self.average(self._clouds(1 - _index(side)), side)

    def _clouds(self, side: int) -> list[Any]:
        clouds = [(instance.x, instance.y)[side] for instance in self._instances]
        if any(cloud is None for cloud in clouds):
            raise ProblemError("a dense cost has no points to average; use apply with your own values")
        return clouds

    @memory_errors()
    def top_match(self, side: str = "row") -> list[Any]:
        """Return columns of the largest entries of rows."""
        s = _index(side)
        matches = self._collect(self._each(s, lambda stack: stack.match(s), lambda stack: stack.float64_match(s)), s)
        return [self._return(lane, places.long()) for lane, places in enumerate(matches)]

    @memory_errors()
    def sample(self, count: int, seeds: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Draw rows by their mass, then columns from their conditional distributions, by inverting sums."""
        count = checked_count(count)
        numbers = torch.empty((2, len(seeds), count), dtype=torch.float64, pin_memory=self._device.type == "cuda")
        uploaded: list[Any] = []

        def draw_numbers() -> None:
            for lane, seed in enumerate(seeds):
                numbers.numpy()[:, lane] = uniforms(seed, count)
            uploaded.append(numbers.to(self._device, non_blocking=True))

        samples: list[Any] = [None] * len(self._instances)
        for stack, logs in self._ratios(0, draw_numbers):
            first, second = select_lanes(stack, uploaded[0])
            inside = torch.arange(stack.pads[0], device=self._device)[None, :] < stack.sizes[:, :1]
            mass = torch.where(inside & (stack.mass(0) > 0), stack.mass(0) * torch.exp2(logs), 0.0)
            # Lanes whose float32 sums are not finite are inaccurate, so there are none in float32.
            if stack.float64 and not bool(mass.isfinite().all()):
                raise ProblemError("the plan is not finite, so nothing can be drawn from it; see the result's message")
            rows = invert_totals(mass, first)
            pairs = torch.stack([rows, stack.draw(rows, second, logs)]).long()
            drawn = (self._return_places(stack.lanes, places) for places in pairs)
            for lane, i, j in zip(stack.lanes, *drawn, strict=True):
                samples[lane] = i, j
        return samples

    @memory_errors()
    def partners(self, rows: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        """Draw columns from the conditional distributions of given rows."""
        checked = [checked_rows(some, instance.shape[0]) for some, instance in zip(rows, self._instances, strict=True)]
        numbers = [uniforms(seed, len(some))[1] for seed, some in zip(seeds, checked, strict=True)]
        partners: list[Any] = [None] * len(checked)
        for stack, logs in self._ratios(0):
            # As float64, which holds every place.
            places, chosen = (
                stacked([np.asarray(some[lane], dtype=np.float64) for lane in stack.lanes], self._device)
                for some in (checked, numbers)
            )
            cols = stack.draw(places.int().contiguous(), chosen.contiguous(), logs)
            for k, lane in enumerate(stack.lanes):
                partners[lane] = self._return(lane, cols[k, : len(checked[lane])].long())
        return partners

    def certificates(self) -> list[Certificate]:
        """What is certain of each plan, by NumPy in float64."""
        return plain_couplings(self._instances, self._potentials).certificates()

    @memory_errors()
    def transport_cost(self) -> list[TransportCost]:
        """Return costs of plans, from one pass over the rows."""

        def in_float32(stack: Stack) -> tuple[Any, Any]:
            sums, (entropies, prices), inaccurate = stack.totals(0, costs=True)
            rest = stack.rest(0)
            parts = torch.stack([sums.double(), prices.double(), entropies.double() + rest * sums], dim=2)
            return times_mass(stack.mass(0) * torch.exp2(rest), parts), inaccurate

        def in_float64(stack: Stack) -> Any:
            logs, _, (exponents, prices) = stack.float64_averages(0, None)
            mass = stack.masses(0, logs)
            parts = torch.stack([torch.ones_like(mass), prices, exponents + stack.potential(0)], dim=2)
            return times_mass(mass, parts)

        rows = self._collect(self._each(0, in_float32, in_float64), 0)
        potentials = [self._collect([(s, s.potential(side)) for s in self._stacks], side) for side in (0, 1)]
        masses = [self._collect([(s, s.mass(side)) for s in self._stacks], side) for side in (0, 1)]
        totals = [row.sum(0) for row in rows]
        self._restore_products(totals, potentials)
        sums = [
            torch.cat([total, ((a * f).sum() + (b * g).sum())[None]])
            for total, f, g, a, b in zip(totals, *potentials, *masses, strict=True)
        ]
        soft = [None] * len(sums)
        if not all(instance.marginals.are_hard for instance in self._instances):
            logs = zip(*(self._collect(self._ratios(side), side) for side in (0, 1)), strict=True)
            soft = [
                None
                if instance.marginals.are_hard
                else soft_terms(instance, potentials, [LN2 * side.cpu().numpy() for side in log2_ratios])
                for instance, potentials, log2_ratios in zip(self._instances, self._potentials, logs, strict=True)
            ]
        return [
            plan_costs(instance.eps, mass, *(LN2 * part for part in bits), terms)
            for instance, (mass, *bits), terms in zip(self._instances, torch.stack(sums).tolist(), soft, strict=True)
        ]

    def _restore_products(self, totals: list[Any], potentials: list[list[Any]]) -> None:
        """For dot products, replace sums of scaled costs and potentials, which are those of the squared distances.

        `sum_ij P_ij <x_i, y_j>` is the sum of `<x_i, (P y)_i>`.
        """
        if not any(map(has_products, self._instances)):
            return
        images = self._means(self._clouds(1), 0, weighted=True)
        for lane, instance in enumerate(self._instances):
            if has_products(instance):
                bit = instance.eps * LN2
                product = (self._on(instance.x) * images[lane].double()).sum()
                totals[lane] = totals[lane].clone()
                totals[lane][1] = instance.cost.scale * instance.cost.kind.sign * product / bit
                for side in (0, 1):
                    potentials[side][lane] = self._on(self._potentials[lane][side]) / bit

    @memory_errors()
    def slopes(self, side: str = "row", weights: Sequence[Any] | None = None) -> list[Any]:
        """Return gradients of the cost with respect to the points, from means of the other cloud.

        Gradients of the euclidean cost are computed in float64.
        """
        s = _index(side)
        points = [self._on(cloud) for cloud in self._clouds(s)]
        for instance in self._instances:
            require_slope(instance)
        forms = [instance.cost.kind.distances for instance in self._instances]
        values: list[Any] = []
        for lane, cloud in enumerate(map(self._on, self._clouds(1 - s))):
            weight = torch.ones_like(cloud[:, 0]) if weights is None else self._on(weights[lane])
            others = unit_rows(cloud[None])[0] if forms[lane] is not None and forms[lane].directions else cloud
            values.append(weight[:, None] * torch.cat([others, torch.ones_like(others[:, :1])], dim=1))
        means = self._means(values, s, weighted=False)
        logs = self._collect(self._ratios(s), s)
        masses = self._collect([(stack, stack.mass(s)) for stack in self._stacks], s)
        inverse = [(stack, self._inverse(stack, values, s)) for stack in self._stacks if stack.rooted]
        over_distances = self._collect(inverse, s)
        slopes: list[Any] = []
        for lane, instance in enumerate(self._instances):
            mass = torch.where(masses[lane] > 0, masses[lane] * torch.exp2(logs[lane]), 0.0)
            if forms[lane] is not None and forms[lane].root:
                # Scaled costs are in bits.
                value = slope_of_distances(instance.cost, instance.eps * LN2, points[lane], mass, over_distances[lane])
            else:
                value = slope(instance.cost, points[lane], mass, means[lane])
            slopes.append(self._return(lane, value))
        return slopes

    def _inverse(self, stack: Stack, values: Sequence[Any], side: int) -> Any:
        """Means of values over distances, in float64."""
        stacked_values = stacked([values[lane] for lane in stack.lanes], self._device)
        return stack.float64_averages(side, stacked_values, inverse=True)[1]

    def _on(self, points: Any) -> Any:
        return stacked([points], self._device)[0].double()

    @memory_errors()
    def plan(self, max_pairs: int) -> list[Any]:
        """Return dense plans, from exponents coordinate by coordinate in float64."""
        check_pairs(self._instances, max_pairs)
        plans: list[Any] = [None] * len(self._instances)
        for stack in self._stacks:
            for k, lane in enumerate(stack.lanes):
                plans[lane] = self._return(lane, stack.plan(k, *self._instances[lane].shape))
        return plans


def _index(side: str) -> int:
    return 0 if checked_side(side) == "row" else 1
