"""Squared distances of a few rows to a few columns at a time, all sums in vector registers: a tile.

Three kinds of tile, for points x_i and y_j: DIRECT sums `(x_ik - y_jk)^2`, ROOT takes the root of that, EXPANDED is
`|x_i|^2 + |y_j|^2 - 2 x_i . y_j` from points that are centred and norms that are known. An expanded square costs one
operation for each coordinate where differences take two, and its error is at most `(d + 6) u (|x_i| + |y_j|)^2`.

Columns lie in panels, (dim, WIDE) one after another, so that a tile reads memory in its order. Every entry is one chain
of sums over the coordinates in their order: it does not depend on the tile it is in, nor on threads (docs/adr/0016).
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from drainsinkhorn.backends.cpu.primitives import ordered

# Sums of a tile fill the registers: 16 of 32 with AVX-512, 12 of 16 with AVX. Others split a vector of 32 bytes.
TALL, VECTORS, BYTES = (8, 2, 64) if binding.get_host_cpu_features().get("avx512f") else (4, 3, 32)
WIDE = VECTORS * BYTES // 8
"""Columns of a panel; TALL is the number of rows of a tile."""

DIRECT, ROOT, EXPANDED = range(3)

_INT, _PLACE, _DOUBLE = ir.IntType(64), ir.IntType(32), ir.DoubleType()
_LANES = BYTES // 8
_VECTOR = ir.VectorType(_DOUBLE, _LANES)


class _Code:
    """Writes the instructions of a tile."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Any, offset: Any, kind: Any) -> Any:
        """A pointer to `kind`, some bytes behind an address."""
        offset = ir.Constant(_INT, offset) if isinstance(offset, int) else offset
        return self.builder.inttoptr(self.builder.add(address, offset), kind.as_pointer())

    def vector(self, address: Any, offset: Any) -> Any:
        """A vector from memory."""
        return self.builder.load(self.at(address, offset, _VECTOR), align=8)

    def everywhere(self, number: Any) -> Any:
        """A vector of one number."""
        empty = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(empty, number, ir.Constant(_PLACE, 0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_PLACE, _LANES), [0] * _LANES))

    def call(self, name: str, *vectors: Any) -> Any:
        """A function of LLVM, entry by entry."""
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(vectors))
        full = f"llvm.{name}.v{_LANES}f64"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full), vectors)

    def rows(self, x: Any, step: Any, count: Any) -> list[Any]:
        """Addresses of TALL rows; the last of `count` stands for those that are missing."""
        addresses: list[Any] = []
        for row in range(TALL):
            place = ir.Constant(_INT, row)
            last = self.builder.sub(count, ir.Constant(_INT, 1))
            place = self.builder.select(self.builder.icmp_signed("<", place, count), place, last)
            addresses.append(self.builder.add(x, self.builder.mul(place, step)))
        return addresses


def _tile(kind: int) -> Any:
    @intrinsic
    def tile(typing, x, count, dim, panel, norms_x, norms_y, factor, out, width):
        signature = types.void(*[types.int64] * 6, types.float64, *[types.int64] * 2)

        def write(context, builder, signature, args):
            x, count, dim, panel, norms_x, norms_y, factor, out, width = args
            code, zero, eight = _Code(builder), ir.Constant(_VECTOR, [0.0] * _LANES), ir.Constant(_INT, 8)
            rows = code.rows(x, builder.mul(dim, eight), count)
            sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(VECTORS)] for _ in rows]
            for total in (total for row in sums for total in row):
                builder.store(zero, total)
            with cgutils.for_range(builder, dim, intp=_INT) as loop:
                at = builder.mul(loop.index, ir.Constant(_INT, 8 * WIDE))
                columns = [code.vector(builder.add(panel, at), BYTES * v) for v in range(VECTORS)]
                for row, mine in zip(rows, sums, strict=True):
                    place = code.at(row, builder.mul(loop.index, eight), _DOUBLE)
                    coordinate = code.everywhere(builder.load(place))
                    for total, right in zip(mine, columns, strict=True):
                        pair = (coordinate, right) if kind == EXPANDED else (builder.fsub(coordinate, right),) * 2
                        builder.store(code.call("fmuladd", *pair, builder.load(total)), total)
            scale = code.everywhere(factor)
            for norm, row, mine in zip(code.rows(norms_x, eight, count), range(TALL), sums, strict=True):
                line = builder.add(out, builder.mul(width, ir.Constant(_INT, 8 * row)))
                for v, total in enumerate(mine):
                    value = builder.load(total)
                    if kind == EXPANDED:
                        norm_x = code.everywhere(builder.load(code.at(norm, 0, _DOUBLE)))
                        both = builder.fadd(norm_x, code.vector(norms_y, BYTES * v))
                        value = builder.fsub(both, builder.fadd(value, value))
                    if kind == ROOT:
                        value = code.call("sqrt", value)
                    builder.store(builder.fmul(value, scale), code.at(line, BYTES * v, _VECTOR), align=8)
            return context.get_dummy_value()

        return signature, write

    return tile


_direct, _root, _expanded = _tile(DIRECT), _tile(ROOT), _tile(EXPANDED)


@ordered
def padded_width(cols):
    """How wide rows of scores are in memory: whole panels, and no power of two, which would share places in a cache."""
    return (cols + WIDE - 1) // WIDE * WIDE + 8


@ordered
def squares(kind, x, norms_x, panels, norms_y, dim, cols, factor, first, last, out):
    """`out_ij = factor |x_i - y_j|^2` (ROOT: its root) for rows first .. last - 1. Points and norms are addresses.

    `out` is (at least as many rows, up to a multiple of TALL; `padded_width(cols)`).
    """
    width = out.shape[1]
    for start in range(0, cols, WIDE):
        panel, norm = panels + 8 * start * dim, norms_y + 8 * start
        for i in range(first, last, TALL):
            target = out.ctypes.data + 8 * ((i - first) * width + start)
            row, norm_x = x + 8 * i * dim, norms_x + 8 * i
            if kind == EXPANDED:
                _expanded(row, last - i, dim, panel, norm_x, norm, factor, target, width)
            elif kind == ROOT:
                _root(row, last - i, dim, panel, norm_x, norm, factor, target, width)
            else:
                _direct(row, last - i, dim, panel, norm_x, norm, factor, target, width)
