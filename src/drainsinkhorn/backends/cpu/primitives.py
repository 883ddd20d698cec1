"""What kernels are made of: decorators, vectors at addresses, an exponential that vectorises, small reductions."""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# Numba gives intrinsics another signature than Python sees.

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic, overload

from drainsinkhorn.backends.cpu.kernel_cache import kernel_compiler

# `ordered` keeps the order of every sum as written; `reordered` lets the compiler split a sum over vector registers,
# the same way for every lane of a process. The process that compiles may get other last bits than those that load what
# it compiled from disk.
ordered = kernel_compiler(fastmath={"contract"})
reordered = kernel_compiler(fastmath={"reassoc", "contract", "nsz", "arcp"})
no_nan = kernel_compiler(fastmath={"nnan", "nsz"})
# `inlined` copies a function into every kernel that calls it, with the rounding of that kernel.
inlined = kernel_compiler(inline="always")


@intrinsic
def _float_of_bits(typing, bits):
    return types.float64(types.int64), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.DoubleType())


@intrinsic
def _bits_of_float(typing, value):
    return types.int64(types.float64), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def float32_at(typing, address):
    """A pointer to float32 at an address."""
    pointer = types.CPointer(types.float32)
    return pointer(types.int64), lambda _c, builder, _s, args: builder.inttoptr(args[0], ir.FloatType().as_pointer())


@intrinsic
def float64_at(typing, address):
    """A pointer to float64 at an address."""
    pointer = types.CPointer(types.float64)
    return pointer(types.int64), lambda _c, builder, _s, args: builder.inttoptr(args[0], ir.DoubleType().as_pointer())


def vector(address, size, one):
    """A vector at an address, in the precision of `one`."""
    raise NotImplementedError


@overload(vector)
def _vector_overload(address, size, one):
    if one == types.float32:
        return lambda address, size, one: carray(float32_at(address), (size,))
    return lambda address, size, one: carray(float64_at(address), (size,))


@ordered
def double(address, size):
    """A float64 vector at an address."""
    return carray(float64_at(address), (size,))


@ordered
def copy(target, source):
    """Copy a vector. Numba compiles a loop much faster than an assignment to a slice, which checks shapes."""
    for k in range(target.size):
        target[k] = source[k]


_MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer and leaves that integer in the low bits.
_MAGIC_BITS = np.int64(np.float64(_MAGIC).view(np.int64))
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_T13, _T12, _T11, _T10, _T9, _T8, _T7, _T6, _T5, _T4, _T3, _T2 = (1 / math.factorial(k) for k in range(13, 1, -1))


@ordered
def exp(x):
    """`e^x` to one unit in the last place, in a form that is vectorised: x = k ln 2 + r, Taylor series in r."""
    x = min(max(x, -708.0), 708.0)
    t = x * _LOG2E + _MAGIC
    k = t - _MAGIC
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = _T13
    p = p * r + _T12
    p = p * r + _T11
    p = p * r + _T10
    p = p * r + _T9
    p = p * r + _T8
    p = p * r + _T7
    p = p * r + _T6
    p = p * r + _T5
    p = p * r + _T4
    p = p * r + _T3
    p = p * r + _T2
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _float_of_bits((_bits_of_float(t) - _MAGIC_BITS + 1023) << 52)


_LN2 = math.log(2)
_A21, _A19, _A17, _A15, _A13, _A11, _A9, _A7, _A5, _A3 = (2 / k for k in range(21, 1, -2))


@ordered
def log(x):
    """`log x` of a normal positive number to a few units in the last place, in a form that is vectorised.

    x = 2^k m with m near 1, then the series of 2 artanh(s) in s = (m - 1) / (m + 1).
    """
    bits = _bits_of_float(x)
    # Subtracting the bits of sqrt(1/2) puts m between sqrt(1/2) and sqrt(2).
    k = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = _float_of_bits(bits - (k << 52))
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    p = _A21
    p = p * q + _A19
    p = p * q + _A17
    p = p * q + _A15
    p = p * q + _A13
    p = p * q + _A11
    p = p * q + _A9
    p = p * q + _A7
    p = p * q + _A5
    p = p * q + _A3
    return np.float64(k) * _LN2 + (s * 2.0 + s * q * p)


@no_nan
def maximum(values):
    """The largest of some numbers, none of them NaN."""
    m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = values[0]
    unrolled = values.size // 8 * 8
    for k in range(0, unrolled, 8):
        m0, m1, m2, m3 = max(m0, values[k]), max(m1, values[k + 1]), max(m2, values[k + 2]), max(m3, values[k + 3])
        m4, m5, m6, m7 = max(m4, values[k + 4]), max(m5, values[k + 5]), max(m6, values[k + 6]), max(m7, values[k + 7])
    for k in range(unrolled, values.size):
        m0 = max(m0, values[k])
    return max(max(max(m0, m1), max(m2, m3)), max(max(m4, m5), max(m6, m7)))


@reordered
def dot(x, y):
    """`sum_k x_k y_k`."""
    total = x.dtype.type(0)
    for k in range(x.size):
        total += x[k] * y[k]
    return total


@ordered
def largest_of(values):
    """The largest absolute value."""
    largest = 0.0
    for k in range(values.size):
        largest = max(largest, abs(values[k]))
    return largest


@ordered
def all_finite(values):
    """True if none is NaN or infinite."""
    bad = 0
    for k in range(values.size):
        # NaN and inf alike.
        bad += not abs(values[k]) < np.inf
    return bad == 0
