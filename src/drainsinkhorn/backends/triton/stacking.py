"""Stacks of finished problems on the device: a few launches for all lanes, and nothing waits for the device."""

# pyright: basic, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# Kernels are called through Triton, arrays through torch, which is loaded when this backend is.

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import layout as kernels
from drainsinkhorn.backends.triton.launching import upload
from drainsinkhorn.backends.triton.layout import unit_rows
from drainsinkhorn.backends.triton.matrices import Matrices
from drainsinkhorn.backends.triton.representation import Representation
from drainsinkhorn.backends.triton.stacks import Stack, is_inside
from drainsinkhorn.backends.triton.tiles import PRODUCT, STORED
from drainsinkhorn.backends.triton.transfer import on_device
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.weights import uniform as uniform_weights

PAD = 128
"""Sides are padded to multiples of the largest tile, so that tiles are read whole."""
ROWS = 64
"""Points of a program that packs them."""
COORDINATES = 16
"""Coordinates that it takes at once if scores come from differences."""


def stacked(values: Sequence[Any], device: Any) -> Any:
    """Return arrays (size,) or (size, channels), of unequal sizes and channels, as one tensor; integers in float64."""
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
    """Return rows and columns of a stack of lanes of these sizes."""
    rows, cols = (-(-max(shape[side] for shape in shapes) // PAD) * PAD for side in (0, 1))
    return rows, cols


def stack_lanes(
    lanes: list[int], instances: Sequence[Instance[Any]], potentials: Sequence[Potentials[Any]],
    form: Representation | None, device: Any, *, uniform: bool, float64: bool, keep: bool = True,
) -> Stack:  # fmt: skip
    """Return finished problems of one kind as a stack; cached exponents are computed when used, and kept if `keep`."""
    shapes = [instance.shape for instance in instances]
    pads = padded(shapes)
    sizes = upload(shapes, torch.int32, device)
    units = [instance.eps * math.log(2) for instance in instances]
    factors = [_factor(instance) / unit for instance, unit in zip(instances, units, strict=True)]
    weights = None if uniform else [stacked([(p.a, p.b)[side] for p in instances], device) for side in (0, 1)]
    clouds, rooted = _clouds(instances, sizes, device), form is not None and form.rooted
    # Stacks that are consumed in float64 have no float32 coordinates.
    packed = None if float64 else form
    # Squared distances, or distances, of coordinates times these are scaled costs in bits.
    scales = factors if rooted else [math.sqrt(factor) for factor in factors]
    numbers = upload([units, factors, scales], torch.float64, device)
    blank = torch.zeros(1, dtype=torch.float32, device=device)
    middle = blank if packed is None else _middle(clouds, weights, sizes, len(set(shapes)) > 1)
    is_cached = packed is not None and packed.kind == STORED
    inaccurate = torch.zeros(len(lanes), dtype=torch.int32, device=device)
    soft = upload([not instance.marginals.are_hard for instance in instances], torch.bool, device)
    points, vectors32, vectors64 = [], [], []
    for side, pad in enumerate(pads):
        own = stacked([pair[side] for pair in potentials], device)
        uniforms = [uniform_weights(shape[side])[0] for shape in shapes]
        weight = upload(uniforms, torch.float64, device) if weights is None else weights[side]
        kind = _kind(packed, clouds[side].shape[-1])
        points.append(_allocate(packed, len(lanes), clouds[side].shape[-1], pad, device))
        vectors32.append(torch.empty((c.VECTORS.value, len(lanes), pad), dtype=torch.float32, device=device))
        vectors64.append(torch.empty((2, len(lanes), pad), dtype=torch.float64, device=device))
        kernels.stack_side[(pad // ROWS, len(lanes))](
            clouds[side], clouds[side].stride(0), middle, numbers[0], numbers[2], own, own.stride(0), weight,
            weight.stride(0), sizes, points[side], points[side].stride(0), vectors32[side], vectors64[side], inaccurate,
            clouds[side].shape[2], pad, **kind, SIDE=side, UNIFORM=uniform, ROWS=ROWS,
        )  # fmt: skip
    return Stack(
        lanes=lanes, form=form, float64=float64, rooted=rooted, shapes=shapes, sizes=sizes, pads=pads, clouds=clouds,
        factors=numbers[1], inaccurate=inaccurate, soft=soft, points=tuple(points), vectors32=tuple(vectors32),
        vectors64=tuple(vectors64), matrices=Matrices(shapes, middle, keep) if is_cached else None,
    )  # fmt: skip


def _factor(instance: Instance[Any]) -> float:
    """Return the factor from squared distances, distances, or entries of a matrix, to costs."""
    return 1.0 if instance.is_dense else instance.cost.scale * instance.cost.kind.distances.factor


def _clouds(instances: Sequence[Instance[Any]], sizes: Any, device: Any) -> tuple[Any, Any]:
    """Return the points of both sides, (L, size, dim); for a dense cost the caller's matrix, which is not copied."""
    if instances[0].is_dense:
        matrix = on_device(instances[0].matrix, device)[None]
        return matrix, matrix
    clouds = [stacked([(p.x, p.y)[side] for p in instances], device) for side in (0, 1)]
    if instances[0].cost.kind.distances.directions:
        clouds = [torch.where(_inside(cloud, sizes, side), unit_rows(cloud), 0.0)
                  for side, cloud in enumerate(clouds)]  # fmt: skip
    return clouds[0], clouds[1]


def _inside(cloud: Any, sizes: Any, side: int) -> Any:
    """Return which rows of stacked clouds are points, (L, size, 1)."""
    return (torch.arange(cloud.shape[1], device=cloud.device)[None, :] < sizes[:, side : side + 1])[:, :, None]


def _middle(clouds: tuple[Any, Any], weights: list[Any] | None, sizes: Any, ragged: bool) -> Any:
    """Return the middle of the box around both clouds, (L, dim), without points of zero weight."""
    lows, highs = [], []
    for side, cloud in enumerate(clouds):
        if weights is None and not ragged:
            low, high = torch.aminmax(cloud, dim=1)
        else:
            counts = _inside(cloud, sizes, side) if weights is None else (weights[side] > 0)[:, :, None]
            low = torch.where(counts, cloud, math.inf).amin(1)
            high = torch.where(counts, cloud, -math.inf).amax(1)
        lows.append(low)
        highs.append(high)
    return torch.minimum(*lows) / 2 + torch.maximum(*highs) / 2


def _kind(form: Representation | None, dim: int) -> dict[str, Any]:
    """Return constants of a packed side: chunks of coordinates for products, or coordinates one after another."""
    if form is None or form.kind == STORED:
        return {"KIND": STORED, "DP": COORDINATES, "CHUNKS": 0, "INSIDE": False}
    if form.kind == PRODUCT:
        return {"KIND": PRODUCT, "DP": form.dp, "CHUNKS": form.chunks, "INSIDE": is_inside(form)}
    return {"KIND": form.kind, "DP": COORDINATES, "CHUNKS": -(-dim // COORDINATES), "INSIDE": False}


def _allocate(form: Representation | None, lanes: int, dim: int, pad: int, device: Any) -> Any:
    """Allocate points of one side: float16 parts (L, pad, chunks, 2, dp), float32 (L, dim, pad), or none."""
    if form is None or form.kind == STORED:
        return torch.empty((lanes, 0), dtype=torch.float32, device=device)
    if form.kind == PRODUCT:
        return torch.empty((lanes, pad * form.chunks * 2 * form.dp), dtype=torch.float16, device=device)
    return torch.empty((lanes, dim * pad), dtype=torch.float32, device=device)
