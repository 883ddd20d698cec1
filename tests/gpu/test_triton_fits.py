"""Consumers' kernels compiled for an H200, which takes no GPU: do their tiles fit?"""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

from tests.conftest import needs

needs("torch")
needs("triton")

SHARED = 227 * 1024
"""Bytes of memory that a program may share on a Hopper multiprocessor."""

COMPILE = """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from drainsinkhorn.backends.triton import coupling_kernels, tiles

    kernel = coupling_kernels.average
    for dp, chunks, channels in ((16, 1, 16), (32, 1, 16), (64, 1, 64), (64, 8, 16), (64, 8, 64)):
        tile = tiles.consumer_tile(tiles.PRODUCT, dp, channels)
        constants = {"KIND": tiles.PRODUCT, "DP": dp, "CHUNKS": chunks, "FOLD": dp < 64, "SIDE": 0, "CP": channels,
                     "WEIGHTED": True, "BM": tile["bm"], "BN": tile["bn"]}
        types = {name: "*fp32" for name in kernel.arg_names} | {name: "constexpr" for name in constants}
        types |= {name: "*fp16" for name in ("points", "other_points", "values")} | {"mass": "*fp64"}
        types |= {name: "*i32" for name in ("sizes", "doubt")}
        types |= {name: "i32" for name in ("dim", "pad", "other_pad", "channels")}
        types |= {name: "i64" for name in ("stride", "other_stride")}
        aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name not in constants}
        given = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=types, constexprs=given, attrs=aligned)
        options = {"num_warps": tile["warps"], "num_stages": tile["stages"]}
        found = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        print(dp, chunks, channels, found.metadata.shared)
"""


def test_tiles_fit_into_shared_memory() -> None:
    # Not in this process, where kernels may be interpreted.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", dedent(COMPILE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) == 5
    assert [row for row in rows if row[-1] > SHARED] == []
