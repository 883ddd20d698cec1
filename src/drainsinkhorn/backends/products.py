"""Dot products in backends that compute squared distances: `@solves_products` on the class of a backend.

Lanes are packed as squared distances with the same plans (`numerics.products`), and potentials are shifted when they
are emitted: `f = f' - phi`. The residual of emitted potentials differs from that of the lane by the rounding of this
shift alone, which is added to the band. Write e for the largest error of a potential of each side: phi is off by
`(d + 8) u phi`, the difference by `u |f|`, and a narrower dtype by what it is measured to change. Then each exponent is
off by at most `E = (e_f + e_g) / eps`, and a residual by at most `1.06 E` times the mass of the plan if E < 0.1.
If a marginal is soft, a relative error w of weights adds w to E. The targets of the marginals have an error of
`T = (kappa_a e_f + kappa_b e_g) + w`, and a residual r, which is relative to the mass, by at most
`1.2 (2 E + T) (1 + r)` if E and T are below 0.1.
A certificate (`verify(exact=True)`) is computed from the emitted potentials and the dot products themselves.
"""

# pyright: basic
# torch is loaded where a tensor is.

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.emission import CHOICES, Rounded, emit_states, least_damping, round_state
from drainsinkhorn.backends.wrapped import WrappedPack
from drainsinkhorn.core.protocol import Emission, Hints, Pack, Progress
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.numerics.arrays import LARGEST, float_name, library, to_numpy
from drainsinkhorn.numerics.costs import UNIT
from drainsinkhorn.numerics.memory import memory_errors
from drainsinkhorn.numerics.products import (
    has_products,
    has_range,
    lengths,
    shift_rounding,
    shifts,
    squares_to_solve,
    translation_of_lengths,
    weight_rounding,
)
from drainsinkhorn.numerics.rounding import FIRST_ORDER, emission_budget

B = TypeVar("B", bound=type)


def solves_products(backend: B) -> B:
    """Class decorator: the backend solves dot products as squared distances. It is called on the finished class."""
    methods = {name: getattr(backend, name) for name in ("signature", "hints", "prepare", "pack")}

    def signature(self: Any, instance: Instance[Any]) -> Hashable:
        """As the method of the class; dot products have signatures of their own."""
        if not has_products(instance):
            return methods["signature"](self, instance)
        if not has_range(instance):
            raise ProblemError(
                f"backend {self.name!r} solves dot products with a soft marginal as squared distances with the weights "
                "a exp(s |x|^2 / (2 eps + 2 rho)), where s is the scale of the cost; they leave the range of float32 "
                "for points so far from the origin, or lose digits because weights are so small; "
                'use backend="reference", pass the matrix of costs, or raise rho'
            )
        return "products", methods["signature"](self, squares_to_solve(instance))

    def hints(self: Any, instance: Instance[Any]) -> Hints:
        """As the method of the class."""
        return methods["hints"](self, squares_to_solve(instance))

    def prepare(self: Any, instances: Sequence[Instance[Any]]) -> None:
        """As the method of the class."""
        are_products = has_products(instances[0])
        methods["prepare"](self, [squares_to_solve(each) for each in instances] if are_products else instances)

    def pack(self: Any, instances: Sequence[Instance[Any]]) -> Any:
        """As the method of the class; dot products never share a pack with other costs."""
        if not has_products(instances[0]):
            return methods["pack"](self, instances)
        return ProductPack(instances, lambda squares: methods["pack"](self, squares))

    for method in (signature, hints, prepare, pack):
        method.__doc__ = methods[method.__name__].__doc__
        setattr(backend, method.__name__, method)
    return backend


@dataclass(eq=False)
class _Lane:
    """A problem of dot products.

    Attributes:
        instance: The problem.
        squares: The same as squared distances: the problem that is packed.
        shifts: What is subtracted from potentials of both sides.
        errors: Bounds on the errors of both shifts, among points with weight.
        weight_error: Bound on the relative error of weights; 0 if both marginals are hard.
        hopeless: A bound on the rounding error of every state, if it exceeds tol; else 0.
    """

    instance: Instance[Any]
    squares: Instance[Any]
    shifts: tuple[Any, Any]
    errors: tuple[float, float] = (0.0, 0.0)
    weight_error: float = 0.0
    hopeless: float = 0.0

    def band(self, error: tuple[float, float], residual: float) -> float:
        """Bound on the change of a residual by errors of both potentials; inf if they exceed FIRST_ORDER."""
        nats = sum(error) / self.instance.eps + self.weight_error
        if self.instance.marginals.are_hard:
            return 1.06 * nats * (1 + residual) if nats < FIRST_ORDER else math.inf
        kappas = (side.kappa for side in self.instance.marginals)
        targets = sum(kappa * e for kappa, e in zip(kappas, error, strict=True)) + self.weight_error
        return 1.2 * (2 * nats + targets) * (1 + residual) if max(nats, targets) < FIRST_ORDER else math.inf


class ProductPack(WrappedPack):
    """A pack of dot products that are solved as squared distances.

    Args:
        instances: The problems of the first lanes.
        open_pack: Packs problems of squared distances.
    """

    def __init__(
        self, instances: Sequence[Instance[Any]], open_pack: Callable[[Sequence[Instance[Any]]], Pack[Any]]
    ) -> None:
        with memory_errors():
            self._lanes = _open(instances)
        super().__init__(open_pack([lane.squares for lane in self._lanes]))

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Run cycles. A lane that cannot converge because of rounding is not held, and its residual says so."""
        stops = [-math.inf if lane.hopeless else stop for lane, stop in zip(self._lanes, stops, strict=True)]
        progress = super().advance(cycles, stops, lockstep=lockstep)
        stale = [lane.hopeless + stale for lane, stale in zip(self._lanes, progress.stale, strict=True)]
        return Progress(progress.depths, stale)

    def screen(self, lanes: Sequence[int]) -> Sequence[float]:
        """Return the row residuals in a pass of their own."""
        return [self._lanes[i].hopeless + stale for i, stale in zip(lanes, super().screen(lanes), strict=True)]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the potentials as they will be emitted."""
        residuals = super().verify(lanes)
        emission, errors = self._emission(lanes)
        if exact:
            return certificates(emission, [math.isnan(row) or math.isnan(col) for row, col, _ in residuals.rows()])
        band: list[float] = []
        for i, (row, col, own), error in zip(lanes, residuals.rows(), errors, strict=True):
            shift = self._lanes[i].band(error, max(row, col))
            band.append(math.nan if math.isnan(own) else own + shift)
        return Residuals(residuals.row, residuals.col, band)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies of the potentials of the dot products for the caller."""
        return self._emission(lanes)[0]

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep some lanes, in this order, and append the admitted problems."""
        with memory_errors():
            admitted = _open(admit)
        super().repack(keep, [lane.squares for lane in admitted])
        self._lanes = [self._lanes[i] for i in keep] + admitted

    @memory_errors()
    def _emission(self, lanes: Sequence[int]) -> tuple[Emission, list[tuple[float, float]]]:
        """Return shifted potentials, and bounds on the errors of those of both sides, e_f and e_g, of each lane."""
        inner = super().emit(lanes)
        owners = {id(lane.squares): lane for lane in self._lanes}
        # The problem whose state the inner pack has emitted.
        chosen = [owners[id(instance)] for instance in inner.instances]
        shifted: list[Any] = [None] * len(chosen)
        groups: dict[Any, list[int]] = {}
        for place, lane in enumerate(chosen):
            like = lane.instance.like
            if library(like) == "torch":
                groups.setdefault((lane.instance.shape, like.device, like.dtype), []).append(place)
            else:
                shifted[place] = _shift_on_host(lane, inner.f[place], inner.g[place])
        for places in groups.values():
            sides = [[side[place] for place in places] for side in (inner.f, inner.g)]
            for place, state in zip(places, _shift_tensors([chosen[place] for place in places], *sides), strict=True):
                shifted[place] = state
        f, g, widened, errors = map(list, zip(*shifted, strict=True)) if shifted else ([], [], [], [])
        return Emission(f, g, widened, [lane.instance for lane in chosen]), errors


def _open(instances: Sequence[Instance[Any]]) -> list[_Lane]:
    """Return lanes for problems; largest shifts of lanes on a device are read back together."""
    lanes = [_Lane(instance, squares_to_solve(instance), shifts(instance)) for instance in instances]
    # Between hard marginals the shifts are the lengths.
    each = [lane.shifts if lane.instance.marginals.are_hard else lengths(lane.instance) for lane in lanes]
    largest = [
        _largest(length, mask)
        for lane, both in zip(lanes, each, strict=True)
        for length, mask in zip(both, _masses(lane), strict=True)
    ]
    # Problems of NumPy arrays may share the pack with problems of tensors.
    on_device = [place for place, value in enumerate(largest) if library(value) == "torch"]
    if on_device:
        values = sys.modules["torch"].stack([largest[place] for place in on_device]).tolist()
        for place, value in zip(on_device, values, strict=True):
            largest[place] = value
    for lane, both, phi, psi in zip(lanes, each, largest[::2], largest[1::2], strict=True):
        instance, t = lane.instance, abs(translation_of_lengths(lane.instance, *both))
        rounding = shift_rounding(instance.dim)
        lane.errors = rounding * (float(phi) + t), rounding * (float(psi) + t)
        lane.weight_error = weight_rounding(instance)
        bound = sum(lane.errors) / instance.eps
        # Written so that NaN counts as hopeless.
        lane.hopeless = 0.0 if bound <= lane.instance.tol else bound if bound < math.inf else math.inf
    return lanes


def _masses(lane: _Lane) -> tuple[Any, Any]:
    """Return which points have weight, as NumPy masks; None: all."""
    instance = lane.instance
    if instance.positive:
        return None, None
    masks = (to_numpy(weights) > 0 for weights in (instance.a, instance.b))
    first, second = (None if mask.all() else mask for mask in masks)
    return first, second


def _largest(shift: Any, mask: Any) -> Any:
    """Return the largest shift among points with weight."""
    if mask is None:
        return shift.max()
    places = np.flatnonzero(mask)
    return shift[places if library(shift) != "torch" else sys.modules["torch"].as_tensor(places).to(shift.device)].max()


@np.errstate(all="ignore")
def _shift_on_host(lane: _Lane, f: Any, g: Any) -> tuple[Any, Any, bool, tuple[float, float]]:
    """Return shifted potentials of one lane, whether they are widened, and bounds on the errors of both."""
    instance, weighted = lane.instance, []
    sides = [to_numpy(side).astype(np.float64) - shift for side, shift in zip((f, g), lane.shifts, strict=True)]
    sides = [np.where(np.isfinite(side), side, 0.0) for side in sides]
    for side, mask in zip(sides, _masses(lane), strict=True):
        weighted.append(side if mask is None else side[mask])
    state = round_state(instance, *weighted)
    row, col = (
        error + UNIT * float(np.abs(side).max()) + float(np.abs(short - side).max())
        for error, short, side in zip(lane.errors, state[:2], weighted, strict=True)
    )
    if state.dtype in LARGEST:
        # A point without weight may lie beyond the range of the dtype; its potential changes no result.
        sides = [np.clip(side, -LARGEST[state.dtype], LARGEST[state.dtype]) for side in sides]
    emitted = emit_states([instance], [Rounded(sides[0], sides[1], state.dtype)], [None])
    return emitted.f[0], emitted.g[0], emitted.widened[0], (row, col)


def _shift_tensors(
    lanes: Sequence[_Lane], fs: Sequence[Any], gs: Sequence[Any]
) -> list[tuple[Any, Any, bool, tuple[float, float]]]:
    """The same for lanes of one shape, dtype and device whose potentials are tensors: read back once."""
    torch, like = sys.modules["torch"], lanes[0].instance.like
    names = [*CHOICES.get(float_name(like), ()), "float64"]
    masks, sides, columns = list(zip(*map(_masses, lanes), strict=True)), [], []
    for place, potentials in enumerate((fs, gs)):
        shift = torch.stack([torch.as_tensor(lane.shifts[place], device=like.device) for lane in lanes])
        side = torch.stack([one.double() for one in potentials]) - shift
        side = torch.where(torch.isfinite(side), side, 0.0)
        sides.append(side)
        weight = _stacked_masks(masks[place], side)
        columns.append(UNIT * (weight * side).abs().amax(1))
        for name in names:
            change = (side.to(getattr(torch, name)).double() - side).abs()
            columns.append(torch.where(weight > 0, change, 0.0).amax(1))
    table = torch.stack(columns).T.tolist()
    out: list[tuple[Any, Any, bool, tuple[float, float]]] = []
    for place, (lane, measured) in enumerate(zip(lanes, table, strict=True)):
        allowed = emission_budget(lane.instance.eps, lane.instance.tol, least_damping(lane.instance))
        (row, *rows), (col, *cols) = measured[: len(names) + 1], measured[len(names) + 1 :]
        changes = list(map(sum, zip(rows, cols, strict=True)))
        k = next(k for k, change in enumerate(changes) if change <= allowed or k == len(names) - 1)
        most = torch.finfo(getattr(torch, names[k])).max
        f, g = (side[place].clamp(-most, most).to(getattr(torch, names[k]), copy=True) for side in sides)
        errors = lane.errors[0] + row + rows[k], lane.errors[1] + col + cols[k]
        out.append((f, g, names[k] != float_name(like), errors))
    return out


def _stacked_masks(masks: Sequence[Any], side: Any) -> Any:
    """Return which points have weight, (L, size), as ones and zeros in float64."""
    torch = sys.modules["torch"]
    if all(mask is None for mask in masks):
        return torch.ones_like(side)
    full = np.ones(tuple(side.shape))
    for row, mask in zip(full, masks, strict=True):
        if mask is not None:
            row[:] = mask
    return torch.from_numpy(full).to(side.device)
