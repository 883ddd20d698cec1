"""A pack of stacked lanes. Kernels run at the next power of two of the number of lanes, which is called a rung."""

# pyright: basic

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.backends.certificate import certificates
from drainsinkhorn.backends.emission import Rounded, emission, round_state
from drainsinkhorn.backends.ottjax.kernels import STATE, CompiledKernels, Lane, kernels
from drainsinkhorn.backends.ottjax.loading import Loaded, load
from drainsinkhorn.backends.ottjax.precision import OttArithmetic
from drainsinkhorn.core.protocol import Emission, Progress, Spent, is_held
from drainsinkhorn.model.errors import ContractError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.result import UNKNOWN, Residual, Residuals
from drainsinkhorn.numerics.arrays import x64
from drainsinkhorn.numerics.memory import memory_errors

Vector = NDArray[np.float64]


def rung(lanes: int) -> int:
    """The rung of a number of lanes, the next power of two: with few widths, few functions are compiled."""
    return 0 if lanes == 0 else 1 << (lanes - 1).bit_length()


@contextmanager
def careful(device: Any) -> Iterator[None]:
    """Context with float64, products in full precision (not TF32), and MemoryError when memory has run out."""
    with memory_errors(), x64(jax), jax.default_matmul_precision("highest"), jax.default_device(device):
        yield


class OttPack:
    """Lanes that share an arithmetic.

    Args:
        instances: The problems of the first lanes.
        arithmetic: How lanes are computed.
        device: The device of JAX.
    """

    def __init__(self, instances: Sequence[Instance[Any]], arithmetic: OttArithmetic, device: Any) -> None:
        self._arithmetic, self._device = arithmetic, device
        self._lanes: list[Loaded] = []
        self._keep({})
        self._width = 0
        self._slots = 0
        self._legs = 0
        self.repack([], instances)

    @property
    def _kernels(self) -> CompiledKernels:
        """The functions for the lanes of the pack; without soft lanes, those that know hard marginals alone."""
        return kernels(replace(self._arithmetic, soft=any(lane.is_soft for lane in self._lanes)))

    @property
    def width(self) -> int:
        """The rung the lanes stand on."""
        return self._width

    @property
    def spent(self) -> Spent:
        """Slots and legs so far, including those of copies that pad the lanes to a power of two."""
        return Spent(self._slots, self._legs)

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Run phase after phase. After lanes are held, the others continue in a stack that is as wide as their rung."""
        moving = [i for i, lane in enumerate(self._lanes) if not lane.frozen]
        frozen = [i for i, lane in enumerate(self._lanes) if lane.frozen]
        with careful(self._device):
            seats, stack = list(range(len(self._lanes))), self._stack
            for _ in range(-(-cycles // self._arithmetic.stride)):
                if not moving:
                    break
                seats, stack = self._narrow(seats, stack, [*moving, *frozen])
                stack = self._run_phase(seats, stack, set(moving))
                held = {i for i in moving if is_held(self._lanes[i].stale, stops[i])}
                moving = [] if lockstep and held else [i for i in moving if i not in held]
            self._settle(seats, stack)
        return Progress([lane.depth for lane in self._lanes], [lane.stale for lane in self._lanes])

    def _run_phase(self, seats: Sequence[int], stack: Lane, moving: set[int]) -> Lane:
        """Run one phase of a stack whose places hold the lanes `seats`, and store what moving lanes report."""
        width, stride = len(stack["a"]), self._arithmetic.stride
        moves = np.array([i in moving for i in seats] + [False] * (width - len(seats)))
        new = self._kernels.phase(stack, moves)
        self._slots += width * stride
        self._legs += 2 * width * stride
        errors, bands = jax.device_get((new["error"], new["band"]))
        for place, i in enumerate(seats):
            if i in moving:
                self._lanes[i].depth += stride
                self._lanes[i].stale = float(errors[place] + bands[place])
        return stack | new

    def _narrow(self, seats: list[int], stack: Lane, wanted: Sequence[int]) -> tuple[list[int], Lane]:
        """Return the stack with the wanted lanes alone, if their rung is lower than that of the stack."""
        if rung(len(wanted)) == len(stack["a"]):
            return seats, stack
        self._settle(seats, stack)
        return list(wanted), self._kernels.take(self._stack, _fill_rung(wanted))

    def _settle(self, seats: Sequence[int], stack: Lane) -> None:
        """Write the state of a stack back to the lanes of the pack."""
        if not seats or stack is self._stack:
            return
        if len(stack["a"]) == self._width:
            self._keep(stack)
            return
        # Places beyond the pack are dropped, so the lanes that pad a rung are not written back.
        places = _fill_rung(seats)
        places[len(seats) :] = self._width
        state, updates = ({key: lanes[key] for key in STATE} for lanes in (self._stack, stack))
        self._keep(self._stack | self._kernels.put(state, places, updates))

    def _keep(self, stack: Lane) -> None:
        """Replace the stack of the pack. The first verify or emit copies its potentials to the host."""
        self._stack, self._read = stack, None

    def screen(self, lanes: Sequence[int]) -> list[float]:
        """The row residual of the state in a pass of its own, band included."""
        self._legs += len(lanes)
        with careful(self._device):
            readings = [self._kernels.screen(self._stack, i) for i in lanes]
            return [float(one["error"]) + float(one["band"]) for one in readings]

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Return both residuals of the states as they will be emitted; `exact` certifies from the caller's arrays."""
        self._legs += 2 * len(lanes)
        if exact:
            return certificates(self.emit(lanes), [math.isnan(self._lanes[i].stale) for i in lanes])
        sound = [i for i in lanes if not math.isnan(self._lanes[i].stale)]
        with careful(self._device):
            # All are sent off before the first is read: the device never waits for the host in between.
            checks = jax.device_get([self._check_on_device(i) for i in sound])
        known = {i: Residual(*map(float, one)) for i, one in zip(sound, checks, strict=True)}
        return Residuals.from_rows(known.get(i, UNKNOWN) for i in lanes)

    def _check_on_device(self, i: int) -> tuple[Any, Any, Any]:
        """Residuals of rows and columns and the band of a lane, on the device."""
        lane, state = self._lanes[i], self._round_state(i)
        return self._kernels.check(self._kernels.pick(self._stack, i), *lane.from_support(state.f, state.g))

    def _round_state(self, i: int) -> Rounded:
        """A lane's potentials on its support, in our convention and in units of the cost, as they will be emitted."""
        if self._read is None:
            with careful(self._device):
                self._read = jax.device_get([self._stack[key] for key in ("f", "g", "owner")])
        *sides, owners = self._read
        f, g = (side[i].astype(np.float64) for side in sides)
        lane = self._lanes[i]
        if owners[i] != lane.number:
            raise ContractError(f"backend 'ott': place {i} of the stack does not hold the state of lane {i}")
        return round_state(lane.instance, *lane.to_support(f, g))

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Return copies of the potentials for the caller."""
        return Emission.join(
            emission(self._lanes[i].instance, self._round_state(i), self._lanes[i].support) for i in lanes
        )

    def freeze(self, lanes: Sequence[int]) -> None:
        """These lanes no longer change."""
        for i in lanes:
            self._lanes[i].frozen = True

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Keep these lanes, in this order, append the admitted, and widen or narrow the stack to the rung of all."""
        with careful(self._device):
            # The device opens a lane while the host reads the next.
            opened = [self._open_lane(instance) for instance in admit]
            lanes, stack = [*(self._lanes[i] for i in keep), *(lane for lane, _ in opened)], self._stack
            if lanes and not opened:
                stack = self._kernels.take(self._stack, _fill_rung(keep))
            elif lanes:
                stack = self._kernels.stack([opened[i][1] for i in _fill_rung(range(len(opened)))])
                if keep:
                    places = [*keep, *(self._width + i for i in range(len(opened)))]
                    stack = self._kernels.join(self._stack, stack, _fill_rung(places))
            jax.block_until_ready(stack)
            errors, bands = jax.device_get([stack.get(key, ()) for key in ("error", "band")])
        for place, (lane, _) in enumerate(opened, len(keep)):
            lane.stale = float(errors[place] + bands[place])
        self._keep(stack)
        self._lanes, self._width = lanes, rung(len(lanes))
        self._legs += len(opened)

    def _open_lane(self, instance: Instance[Any]) -> tuple[Loaded, Lane]:
        """A lane, and its arrays on the device."""
        lane = load(instance, self._arithmetic)
        arrays, lane.arrays = lane.arrays, {}
        return lane, kernels(replace(self._arithmetic, soft=lane.is_soft)).load(arrays)


def _fill_rung(places: Sequence[int]) -> NDArray[np.int32]:
    """Pad places of lanes to a rung with copies of the first place, whose results are never read."""
    return np.array([*places, *[places[0]] * (rung(len(places)) - len(places))], dtype=np.int32)
