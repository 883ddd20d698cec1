"""Kernels against what the machine allows: a cycle of one lane, beside the least time its arithmetic or traffic takes.

A cycle needs several kinds of work; the floor is the time of the slowest of them. Streaming: 2 n m exponentials and,
beyond a few dimensions, as many products of coordinates. Cached: reading the lane's matrix once (CPU) or its scores
twice (CUDA). On CUDA exponentials go through the special-function units, 16 for each multiprocessor and clock, and
products, in three parts of fp16, through the tensor cores; reading is timed with torch. On a CPU everything is timed
with one thread: exponentials by NumPy, products and reading by BLAS.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.run.validate import validate
from drainsinkhorn_bench import meters
from drainsinkhorn_bench.plan import Finding, Place

EX2_PER_CLOCK = 16
PRODUCTS_PER_CLOCK = {8: 1024, 9: 2048}
"""Products of fp16 that the tensor cores of a multiprocessor finish in a clock, by major capability."""
SPLIT = 3
"""Products of halves that make one of a split coordinate."""
SETTLED, CYCLES, ROUNDS = 16, 4, 15
"""Cycles before anything is timed; of one timing; timings, of which the fastest counts: other work only adds time."""


DIRECT = 4
"""Dimensions up to which kernels take differences, and BLAS has too little to do to be a floor."""


class Shape(NamedTuple):
    """Points, dimension and lanes of a kernel that is timed, and whether it recomputes its scores."""

    n: int
    d: int
    width: int
    streams: bool


class Timed(NamedTuple):
    """Work to time, and the share of it that belongs to one cycle of one lane."""

    work: Callable[[], object]
    share: float


KERNEL = "kernel"
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
    """Return the shapes whose kernels are timed on a device."""
    return list((CUDA if device == "cuda" else CPU)[scale])


def roofline(scale: str, place: Place) -> Iterator[Finding]:
    """A fact for every shape: kernel, seconds of a cycle of one lane, its floor, and what sets the floor."""
    for shape in shapes(scale, place.device):
        backend = _backend(shape, place.device)
        lanes = [validate(problem, 1e-3) for problem in _clouds(shape, place.device)]
        known, timed = (_cuda_floors if place.device == "cuda" else _cpu_floors)(shape)
        seconds = _fastest({KERNEL: _cycles(backend, lanes), **timed}, place.clock)
        kernel = seconds.pop(KERNEL)
        floors = {**known, **seconds}
        bound = max(floors, key=lambda name: floors[name])
        kind = "streaming" if shape.streams else "cached"
        value = {
            "kernel": f"{kind} cycle, n = {shape.n:,}, d = {shape.d}, {shape.width} lanes",
            "arithmetic": backend.hints(lanes[0]).arithmetic,
            "seconds": kernel,
            "floor": floors[bound],
            "bound": bound,
        }
        yield Finding("roofline", value)


def _backend(shape: Shape, device: str) -> Backend[Any]:
    if device == "cuda":
        from drainsinkhorn.backends.triton import TritonBackend

        return TritonBackend(cached_bytes=0) if shape.streams else TritonBackend()
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


def _cycles(backend: Backend[Any], lanes: list[Instance[Any]]) -> Timed:
    """Some cycles of all lanes."""
    backend.prepare(lanes)
    pack, never = backend.pack(lanes), [-math.inf] * len(lanes)
    pack.advance(SETTLED, never)
    return Timed(lambda: pack.advance(CYCLES, never), 1 / (CYCLES * len(lanes)))


def _fastest(works: Mapping[str, Timed], clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of a cycle of one lane by name, all of them measured in turns."""
    best = dict.fromkeys(works, math.inf)
    with _one_blas_thread():
        for _ in range(ROUNDS):
            for name, (work, share) in works.items():
                # Once for the caches, which the others have filled.
                work()
                begun = clock()
                work()
                best[name] = min(best[name], share * (clock() - begun))
    return best


def _cpu_floors(shape: Shape) -> tuple[dict[str, float], dict[str, Timed]]:
    n = shape.n
    if not shape.streams:
        # One matrix for each lane: lanes take turns in the caches here as they do there.
        matrices = np.ones((shape.width, n, n), np.float32)
        vector, out = np.ones(n, np.float32), np.empty(n, np.float32)
        sweep = Timed(lambda: [np.dot(matrix, vector, out=out) for matrix in matrices], 1 / shape.width)
        return {}, {"reading the matrix (BLAS)": sweep}
    rows = min(n, 256)
    row, out = np.linspace(-20, 0, n, dtype=np.float32), np.empty(n, np.float32)
    timed = {"exponentials (NumPy)": Timed(lambda: [np.exp2(row, out=out) for _ in range(rows)], 2 * n / rows)}
    if shape.d > DIRECT:
        points, scores = np.ones((n, shape.d), np.float32), np.empty((rows, n), np.float32)
        product = Timed(lambda: np.dot(points[:rows], points.T, out=scores), 2 * n / rows)
        timed["products of coordinates (BLAS)"] = product
    return {}, timed


def _one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """One thread for BLAS where threadpoolctl is at hand; small products often have one anyway."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(1)


def _cuda_floors(shape: Shape) -> tuple[dict[str, float], dict[str, Timed]]:
    import torch

    if not shape.streams:
        much = torch.ones(2**28, device="cuda")
        much.sum()
        return {}, {"reading the scores twice (torch)": Timed(much.sum, 2 * shape.n**2 / much.numel())}
    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    mhz = float(meters.machine("cuda").get("clocks.max.sm") or 1980)
    return device_floors(shape, seen.multi_processor_count, seen.major, mhz * 1e6), {}


def device_floors(shape: Shape, multiprocessors: int, major: int, hertz: float) -> dict[str, float]:
    """Seconds of a streaming cycle of one lane in the special-function units and in the tensor cores."""
    pairs, padded = 2 * shape.n**2, max(16, 2 ** math.ceil(math.log2(shape.d)))
    floors = {"exponentials (special-function units)": pairs / (multiprocessors * EX2_PER_CLOCK * hertz)}
    if major in PRODUCTS_PER_CLOCK and shape.d > DIRECT:
        rate = multiprocessors * PRODUCTS_PER_CLOCK[major] * hertz
        floors["products of coordinates (tensor cores)"] = SPLIT * pairs * padded / rate
    return floors
