"""Kernels against what the machine allows: a cycle of one lane, beside the least time its arithmetic or traffic takes.

The floor is the largest of what a cycle cannot do without. Streaming: 2 n m exponentials and, beyond a few dimensions,
as many products of coordinates. Cached: reading the lane's matrix once (CPU) or its scores twice (CUDA). On CUDA
exponentials go through the special-function units, 16 for each multiprocessor and clock, and products, in three parts
of fp16, through the tensor cores; reading is timed with torch. On a CPU everything is timed with one thread:
exponentials by NumPy, products and reading by BLAS.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.backends.door import admit
from drainsinkhorn.campaign import meters
from drainsinkhorn.campaign.plan import Finding, Place
from drainsinkhorn.core.problem import Problem
from drainsinkhorn.core.protocol import Backend

EX2_PER_CLOCK = 16
PRODUCTS_PER_CLOCK = {8: 1024, 9: 2048}
"""Products of fp16 that the tensor cores of a multiprocessor finish in a clock, by major capability."""
SPLIT = 3
"""Products of halves that make one of a split coordinate."""
SETTLED, ROUNDS = 16, 5
"""Cycles before anything is timed; timings, of which the fastest counts, as for a floor nothing else would do."""


DIRECT = 4
"""Dimensions up to which kernels take differences, and BLAS has too little to do to be a floor."""


class Shape(NamedTuple):
    """Points, dimension and lanes of a kernel that is timed, and whether it recomputes its scores."""

    n: int
    d: int
    width: int
    streams: bool


CPU = {
    "small": (Shape(512, 3, 4, False), Shape(2048, 3, 4, False), Shape(1024, 3, 4, True), Shape(1024, 50, 4, True)),
    "full": (Shape(512, 3, 8, False), Shape(4096, 3, 8, False), Shape(4096, 3, 4, True), Shape(4096, 50, 4, True)),
}
CUDA = {
    "small": (Shape(4096, 15, 8, True), Shape(4096, 50, 8, True), Shape(4096, 3, 8, True), Shape(1024, 500, 8, False)),
    "full": (
        Shape(16384, 15, 16, True),
        Shape(16384, 50, 8, True),
        Shape(8192, 3, 8, True),
        Shape(1024, 500, 8, False),
    ),
}


def shapes(scale: str, device: str) -> list[Shape]:
    """What is timed on a device."""
    return list((CUDA if device == "cuda" else CPU)[scale])


def roofline(scale: str, place: Place) -> Iterator[Finding]:
    """A fact for every shape: kernel, seconds of a cycle of one lane, its floor, and what sets the floor."""
    for shape in shapes(scale, place.device):
        backend = _backend(shape, place.device)
        lanes = [admit(problem, 1e-3) for problem in _clouds(shape, place.device)]
        floor, bound = (_cuda_floor if place.device == "cuda" else _cpu_floor)(shape, place.clock)
        kind = "streaming" if shape.streams else "cached"
        value = {
            "kernel": f"{kind} cycle, n = {shape.n:,}, d = {shape.d}, {shape.width} lanes",
            "arithmetic": backend.describe(lanes[0]),
            "seconds": _cycle(backend, lanes, place.clock),
            "floor": floor,
            "bound": bound,
        }
        yield Finding("roofline", value)


def _backend(shape: Shape, device: str) -> Backend[Any]:
    if device == "cuda":
        from drainsinkhorn.backends.triton import TritonBackend

        return TritonBackend(stored_pairs=0) if shape.streams else TritonBackend()
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend(threads=1, representation="streaming" if shape.streams else "cached")


def _clouds(shape: Shape, device: str) -> list[Problem[Any]]:
    rng = np.random.default_rng(0)
    clouds = rng.normal(size=(shape.width, 2, shape.n, shape.d)).astype(np.float32)
    # eps is a tenth of the mean cost.
    eps = 0.2 * shape.d
    if device == "cuda":
        import torch

        return [Problem(x=torch.as_tensor(x).cuda(), y=torch.as_tensor(y).cuda(), eps=eps) for x, y in clouds]
    return [Problem(x=x, y=y, eps=eps) for x, y in clouds]


def _cycle(backend: Backend[Any], lanes: list[Problem[Any]], clock: Callable[[], float]) -> float:
    """Seconds of one cycle of one lane, all lanes at work."""
    backend.prepare(lanes)
    pack, never = backend.pack(lanes), [-math.inf] * len(lanes)
    pack.advance(SETTLED, never)
    return _fastest(lambda: pack.advance(SETTLED, never), clock) / (SETTLED * len(lanes))


def _fastest(work: Callable[[], object], clock: Callable[[], float]) -> float:
    spent = list[float]()
    for _ in range(ROUNDS):
        begun = clock()
        work()
        spent.append(clock() - begun)
    return min(spent)


def _cpu_floor(shape: Shape, clock: Callable[[], float]) -> tuple[float, str]:
    n = shape.n
    with _one_blas_thread():
        if not shape.streams:
            # One matrix for each lane: lanes take turns in the caches here as they do there.
            matrices = np.ones((shape.width, n, n), np.float32)
            vector, out = np.ones(n, np.float32), np.empty(n, np.float32)
            swept = _fastest(lambda: [np.dot(matrix, vector, out=out) for matrix in matrices], clock)
            return swept / shape.width, "reading the matrix (BLAS)"
        rows, names = min(n, 256), dict[float, str]()
        if shape.d > DIRECT:
            points, scores = np.ones((n, shape.d), np.float32), np.empty((rows, n), np.float32)
            products = _fastest(lambda: np.dot(points[:rows], points.T, out=scores), clock) / rows
            names[products] = "products of coordinates (BLAS)"
    row = np.linspace(-20, 0, n, dtype=np.float32)
    out = np.empty_like(row)
    exponentials = _fastest(lambda: [np.exp2(row, out=out) for _ in range(rows)], clock) / rows
    names[exponentials] = "exponentials (NumPy)"
    return 2 * n * max(names), names[max(names)]


def _one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """One thread for BLAS where threadpoolctl is at hand; small products often have one anyway."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(1)


def _cuda_floor(shape: Shape, clock: Callable[[], float]) -> tuple[float, str]:
    import torch

    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    mhz = float(meters.machine("cuda").get("clocks.max.sm") or 1980)
    names = device_floors(shape, seen.multi_processor_count, seen.major, mhz * 1e6)
    if not shape.streams:
        much = torch.ones(2**28, device="cuda")
        much.sum()
        rate = 4 * much.numel() / _fastest(much.sum, clock)
        names = {2 * 4 * shape.n**2 / rate: f"reading the scores twice at {rate / 1e12:.1f} TB/s"}
    return max(names), names[max(names)]


def device_floors(shape: Shape, multiprocessors: int, major: int, hertz: float) -> dict[float, str]:
    """Seconds of a streaming cycle of one lane in the special-function units and in the tensor cores."""
    pairs, padded = 2 * shape.n**2, max(16, 2 ** math.ceil(math.log2(shape.d)))
    floors = {pairs / (multiprocessors * EX2_PER_CLOCK * hertz): "exponentials (special-function units)"}
    if major in PRODUCTS_PER_CLOCK and shape.d > DIRECT:
        rate = multiprocessors * PRODUCTS_PER_CLOCK[major] * hertz
        floors[SPLIT * pairs * padded / rate] = "products of coordinates (tensor cores)"
    return floors
