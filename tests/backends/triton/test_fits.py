"""Legs, consumers and layouts compiled for an H200, which takes no GPU: do their tiles fit?"""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

import tests.device  # noqa: F401  first of all that loads Triton

SHARED = 227 * 1024
"""Bytes of memory that a program may share on a Hopper multiprocessor."""

BEGIN = """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from drainsinkhorn.backends.triton import matrices, precision, tiles
    from drainsinkhorn.backends.triton.kernels import layout as layout_kernels, leg, plan

    def compiled(kernel, types, constants, options):
        types = types | {name: "constexpr" for name in constants}
        aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name not in constants}
        given = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=types, constexprs=given, attrs=aligned)
        return compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared
"""

MEANS = """
    kernel = plan.average
    for dp, chunks, channels in ((16, 1, 16), (32, 1, 16), (64, 1, 64), (64, 8, 16), (64, 8, 64)):
        tile = tiles.consumer_tile(tiles.PRODUCT, dp, channels)
        constants = {"KIND": tiles.PRODUCT, "DP": dp, "CHUNKS": chunks, "INSIDE": dp < 64, "SIDE": 0, "CP": channels,
                     "WEIGHTED": True, "BM": tile["bm"], "BN": tile["bn"]}
        types = {name: "*fp32" for name in kernel.arg_names}
        types |= {name: "*fp16" for name in ("points", "other_points", "values")} | {"mass": "*fp64"}
        types |= {name: "*i32" for name in ("sizes", "inaccurate")}
        types |= {name: "i32" for name in ("dim", "pad", "other_pad", "channels")}
        types |= {name: "i64" for name in ("stride", "other_stride")}
        options = {"num_warps": tile["warps"], "num_stages": tile["stages"]}
        print(compiled(kernel, types, constants, options))
"""

MATRICES = """
    stored = {"KIND": tiles.STORED, "DP": 16, "CHUNKS": 1, "INSIDE": False}

    def consumer(kernel, channels, constants, others):
        tile = tiles.consumer_tile(tiles.STORED, 16, channels)
        constants = stored | constants | {"BM": tile["bm"], "BN": tile["bn"]}
        types = {name: "*fp32" for name in kernel.arg_names}
        types |= {name: "*i32" for name in ("sizes", "inaccurate", "found", "listed", "last") if name in types}
        names = ("dim", "pad", "other_pad", "stride", "other_stride", "channels", "count")
        types |= {name: "i32" for name in names if name in types} | others
        print(compiled(kernel, types, constants, {"num_warps": tile["warps"], "num_stages": tile["stages"]}))

    for side in (0, 1):
        for channels in (16, 64):
            constants = {"SIDE": side, "CP": channels, "WEIGHTED": side == 0}
            consumer(plan.average, channels, constants, {"values": "*fp16", "mass": "*fp64"})
        consumer(plan.total, 0, {"SIDE": side, "COSTS": True}, {})
        consumer(plan.match, 0, {"SIDE": side}, {})
    consumer(plan.draw, 0, {}, {"numbers": "*fp64"})
    for kernel, rows, block, single in (
        (layout_kernels.centre_points, matrices.CENTRE_ROWS, matrices.CENTRE_BLOCK, ("cloud", "middle")),
        (layout_kernels.fill_exponents, matrices.FILL_ROWS, matrices.FILL_BLOCK, ("matrix",)),
    ):
        types = {name: "*fp64" for name in kernel.arg_names} | {name: "*fp32" for name in single}
        types |= {name: "*i32" for name in ("sizes", "inaccurate") if name in types}
        names = ("cloud_stride", "first", "dim", "pad", "other_pad")
        types |= {name: "i32" for name in names if name in types}
        constants = {"ROOTED": False, "ROWS": rows, "BLOCK": block} | ({"SIDE": 0} if "SIDE" in types else {})
        print(compiled(kernel, types, constants, {"num_warps": 4}))
"""

LEGS = """
    kernel, types = leg.leg, {"points16": "*fp16", "points32": "*fp32", "vectors32": "*fp32"}
    types |= {name: "*i64" for name in ("table", "lanes")} | {name: "*i32" for name in ("counters", "halted")}
    types |= {name: "*fp64" for name in ("state", "vectors64", "errors", "stops")}
    kinds = [(tiles.DIRECT, 3, 1, False, 16), (tiles.ROOT, 16, 1, True, 0), (tiles.STORED, 16, 1, False, 0)]
    kinds += [(tiles.PRODUCT, dp, 1, False, dp) for dp in (16, 32, 64)]
    kinds += [(tiles.PRODUCT, 64, 8, False, 0)]
    for kind, dp, chunks, rooted, places in kinds:
        form = precision._represent(kind, dp, chunks, False, rooted, places, dp == 64)
        for inside in {False, places > 0}:
            constants = form.constants(inside) | {"PLACES": places, "NORMS": form.norms}
            constants |= {"INSIDE": inside, "HIGH_PARTS": form.high_parts, "LOCKSTEP": False, "BM64": 16, "BLOCK": 256}
            for fused in (False, True):
                constants |= {"SIDE": 1 - fused, "ROLE": 1 - fused, "FUSED": fused, "MOMENTUM": fused, "SOFT": False}
                print(compiled(kernel, types, constants, form.program))
"""

STARTS = """
    import numpy as np
    import torch
    from drainsinkhorn.backends.triton import layout

    def compile_instead(kernel, grid, *args, **constants):
        kinds = ["i32" if type(arg) is int else "*i64" if arg.dtype is torch.int64 else "*fp64" for arg in args]
        types = dict(zip(kernel.arg_names, kinds))
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
        print(compiled(kernel, types, constants, options))

    layout.launch = compile_instead
    for dim in (15, 20, 50, 500, 2000):
        points, numbers, places = torch.empty(2 * dim, dtype=torch.float64), torch.ones(1), torch.zeros(2).long()
        clouds = layout.Clouds([(points, 0, 2)], places, places, np.array([[300, 200]]), dim)
        layout.gaussian_starts(clouds, points, points, numbers, always=True)
"""


@pytest.mark.parametrize(
    ("kernels", "count"),
    [(MEANS, 5), (MATRICES, 11), (LEGS, 22), (STARTS, 25)],
    ids=["means", "matrices", "legs", "starts"],
)
def test_tiles_fit_into_shared_memory(kernels: str, count: int) -> None:
    # Not in this process, where kernels may be interpreted.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", dedent(BEGIN) + dedent(kernels)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shared = [int(line) for line in done.stdout.splitlines()]
    assert len(shared) == count
    assert max(shared) <= SHARED
