"""From finished problems to a stack: a few launches for all lanes, and nothing waits for the device."""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from drainsinkhorn.backends.triton import kernels as k
from drainsinkhorn.backends.triton import stacking_kernels as s
from drainsinkhorn.backends.triton.launching import upload
from drainsinkhorn.backends.triton.layout import on_device, unit_rows
from drainsinkhorn.backends.triton.loading import How
from drainsinkhorn.backends.triton.matrices import Matrices
from drainsinkhorn.backends.triton.stacks import Stack, folded
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.weights import uniform as uniform_weights

PAD = 128
"""Sides are padded to multiples of the largest tile, so that tiles are read whole."""
ROWS = 64
"""Points that one program lays out."""
COORDINATES = 16
"""Coordinates that it takes at once, where scores come from differences."""


def stacked(values: Sequence[Any], device: Any) -> Any:
    """Arrays (size,) or (size, channels), sizes and channels unequal, as one tensor; integers in float64."""
    if len(values) > 1 and all(value is values[0] for value in values):
        one = stacked(values[:1], device)
        return one.expand(len(values), *one.shape[1:])
    tensors = [on_device(value, device) for value in values]
    dtypes = {t.dtype for t in tensors}
    dtype = reduce(torch.promote_types, (d if d.is_floating_point else torch.float64 for d in dtypes), torch.float32)
    if len(dtypes) == 1 and len({t.shape for t in tensors}) == 1:
        return torch.stack(tensors).to(dtype)
    most = [max(t.shape[axis] for t in tensors) for axis in range(tensors[0].ndim)]
    out = torch.zeros((len(tensors), *most), dtype=dtype, device=device)
    for lane, t in enumerate(tensors):
        out[(lane, *map(slice, t.shape))] = t
    return out


def padded(shapes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Rows and columns of a stack of lanes of these sizes."""
    rows, cols = (-(-max(shape[side] for shape in shapes) // PAD) * PAD for side in (0, 1))
    return rows, cols


def stack_lanes(
    lanes: list[int], instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]], how: How | None,
    device: Any, *, uniform: bool, exact: bool, keep: bool = True,
) -> Stack:  # fmt: skip
    """Lay finished problems of one kind out on the device; stored exponents are made when used, and kept if `keep`."""
    shapes = [instance.shape for instance in instances]
    pads = padded(shapes)
    true = upload(shapes, torch.int32, device)
    units = [instance.eps * math.log(2) for instance in instances]
    factors = [_factor(instance) / unit for instance, unit in zip(instances, units, strict=True)]
    weights = None if uniform else [stacked([(p.a, p.b)[side] for p in instances], device) for side in (0, 1)]
    clouds, rooted = _clouds(instances, true, device), how is not None and how.rooted
    # Nobody asks for float32 coordinates of what is consumed in float64.
    laid = None if exact else how
    # Coordinates times these have squared distances, or distances, that are scores in bits.
    scales = factors if rooted else [math.sqrt(factor) for factor in factors]
    numbers = upload([units, factors, scales], torch.float64, device)
    blank = torch.zeros(1, dtype=torch.float32, device=device)
    middle = blank if laid is None else _middle(clouds, weights, true, len(set(shapes)) > 1)
    stored = laid is not None and laid.kind == k.STORED.value
    doubt = torch.zeros(len(lanes), dtype=torch.int32, device=device)
    points, vectors, wide = [], [], []
    for side, pad in enumerate(pads):
        given = stacked([pair[side] for pair in potentials], device)
        uniforms = [uniform_weights(shape[side])[0] for shape in shapes]
        weight = upload(uniforms, torch.float64, device) if weights is None else weights[side]
        kind = _kind(laid, clouds[side].shape[-1])
        points.append(_room(laid, len(lanes), clouds[side].shape[-1], pad, device))
        vectors.append(torch.empty((s.VECTORS.value, len(lanes), pad), dtype=torch.float32, device=device))
        wide.append(torch.empty((2, len(lanes), pad), dtype=torch.float64, device=device))
        s.lay_out[(pad // ROWS, len(lanes))](
            clouds[side], clouds[side].stride(0), middle, numbers[0], numbers[2], given, given.stride(0), weight,
            weight.stride(0), true, points[side], points[side].stride(0), vectors[side], wide[side], doubt,
            clouds[side].shape[2], pad, **kind, SIDE=side, UNIFORM=uniform, ROWS=ROWS,
        )  # fmt: skip
    return Stack(
        lanes=lanes, how=how, exact=exact, rooted=rooted, sizes=true, pads=pads, clouds=clouds, factors=numbers[1],
        doubt=doubt, points=tuple(points), vectors=tuple(vectors), wide=tuple(wide),
        matrices=Matrices(shapes, middle, keep) if stored else None,
    )  # fmt: skip


def _factor(instance: Instance[Any]) -> float:
    """From squared distances, distances, or entries of a matrix, to costs."""
    return 1.0 if instance.is_dense else instance.cost.scale * instance.cost.kind.distances.factor


def _clouds(instances: Sequence[Instance[Any]], true: Any, device: Any) -> tuple[Any, Any]:
    """The points of both sides, (L, size, dim); of a dense cost the caller's matrix, read where it lies."""
    if instances[0].is_dense:
        matrix = on_device(instances[0].matrix, device)[None]
        return matrix, matrix
    clouds = [stacked([(p.x, p.y)[side] for p in instances], device) for side in (0, 1)]
    if instances[0].cost.kind.distances.directions:
        clouds = [torch.where(_inside(cloud, true, side), unit_rows(cloud), 0.0)
                  for side, cloud in enumerate(clouds)]  # fmt: skip
    return clouds[0], clouds[1]


def _inside(cloud: Any, true: Any, side: int) -> Any:
    """Which rows of stacked clouds are points, (L, size, 1)."""
    return (torch.arange(cloud.shape[1], device=cloud.device)[None, :] < true[:, side : side + 1])[:, :, None]


def _middle(clouds: tuple[Any, Any], weights: list[Any] | None, true: Any, ragged: bool) -> Any:
    """The middle of the box around both clouds, (L, dim); what has no weight may lie anywhere and has no say."""
    lows, highs = [], []
    for side, cloud in enumerate(clouds):
        if weights is None and not ragged:
            low, high = torch.aminmax(cloud, dim=1)
        else:
            counts = _inside(cloud, true, side) if weights is None else (weights[side] > 0)[:, :, None]
            low = torch.where(counts, cloud, math.inf).amin(1)
            high = torch.where(counts, cloud, -math.inf).amax(1)
        lows.append(low)
        highs.append(high)
    return torch.minimum(*lows) / 2 + torch.maximum(*highs) / 2


def _kind(how: How | None, dim: int) -> dict[str, Any]:
    """How a side is laid out: chunks of coordinates as products want them, or all of them one after another."""
    if how is None or how.kind == k.STORED.value:
        return {"KIND": k.STORED.value, "DP": COORDINATES, "CHUNKS": 0, "FOLD": False}
    if how.kind == k.PRODUCT.value:
        return {"KIND": how.kind, "DP": how.dp, "CHUNKS": how.chunks, "FOLD": folded(how)}
    return {"KIND": how.kind, "DP": COORDINATES, "CHUNKS": -(-dim // COORDINATES), "FOLD": False}


def _room(how: How | None, lanes: int, dim: int, pad: int, device: Any) -> Any:
    """Memory for the points of one side: float16 pairs (L, pad, chunks, 2, dp), float32 (L, dim, pad), or none."""
    if how is None or how.kind == k.STORED.value:
        return torch.empty((lanes, 0), dtype=torch.float32, device=device)
    if how.kind == k.PRODUCT.value:
        return torch.empty((lanes, pad * how.chunks * 2 * how.dp), dtype=torch.float16, device=device)
    return torch.empty((lanes, dim * pad), dtype=torch.float32, device=device)
