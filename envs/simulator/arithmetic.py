"""Integer arithmetic of the core: unsigned division, block counts, and the closed form of a decode leap.

A leap is a run of decode steps with an unchanged batch. Its first step lasts `first` ps, and each further one
`growth` = C·B ps longer, because every sequence adds a token of context. Hence after k steps

    T(k) = k·first + growth·k(k−1)/2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from . import lanes as V
from .compile import inline


@intrinsic
def udiv(typingctx: Any, a: Any, b: Any) -> Any:
    """A // b for a ≥ 0, b > 0, without the sign fix-up of floor division."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.udiv(args[0], args[1])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def high_product(typingctx: Any, a: Any, b: Any) -> Any:
    """The high half of the product of two uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def log2_of(typingctx: Any, n: Any) -> Any:
    """⌊log2 n⌋ for n ≥ 1."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, bit = ir.IntType(64), ir.IntType(1)
        count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(word, [word, bit]), "llvm.ctlz.i64")
        return builder.sub(ir.Constant(word, 63), builder.call(count, [args[0], ir.Constant(bit, 1)]))

    return types.int64(types.int64), codegen


@intrinsic
def lowest_bit(typingctx: Any, n: Any) -> Any:
    """Place of the lowest bit of n that is 1, n ≠ 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, bit = ir.IntType(64), ir.IntType(1)
        count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(word, [word, bit]), "llvm.cttz.i64")
        return builder.call(count, [args[0], ir.Constant(bit, 1)])

    return types.int64(types.int64), codegen


@intrinsic
def pick(typingctx: Any, condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b` for int64, without a branch: for conditions that no processor can predict."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chosen = builder.select(args[0], args[1], args[2])
        chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
        return chosen

    return types.int64(types.boolean, types.int64, types.int64), codegen


@intrinsic
def rarely(typingctx: Any, condition: Any) -> Any:
    """The condition itself; the compiler lays out what depends on it for it being false."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bit = ir.IntType(1)
        kind = ir.FunctionType(bit, [bit, bit])
        expect = cgutils.get_or_insert_function(builder.module, kind, "llvm.expect.i1")
        return builder.call(expect, [builder.trunc(args[0], bit), ir.Constant(bit, 0)])

    return types.boolean(types.boolean), codegen


@inline
def leap_time(first: int, growth: int, k: int) -> int:
    """T(k): ps that k steps of a leap take."""
    return k * first + growth * ((k * (k - 1)) >> 1)


@inline
def steps_within(first: int, growth: int, x: int) -> int:
    """Largest k with T(k) ≤ x, for x ≥ 0.

    T(k) ≤ x is a quadratic in k; with h = growth/2 and b = first − h its root is 2x / (b + √(b² + 4hx)), in the
    form that has no cancellation and holds for h = 0. The float is off by less than one step; the integer
    comparisons make it exact.
    """
    h = 0.5 * growth
    b = first - h
    k = int(2.0 * x / (b + np.sqrt(b * b + 4.0 * h * x)))
    taken = leap_time(first, growth, k)
    return k - int(taken > x) + int(taken + first + growth * k <= x)


@inline
def steps_within_each(first: Any, growth: Any, x: Any) -> Any:
    """`steps_within` for eight leaps at once (vectors of `lanes`)."""
    h = V.to_floats(growth) * 0.5
    b = V.to_floats(first) - h
    z = V.to_floats(x)
    k = V.to_ints(z * 2.0 / (b + V.square_root(b * b + h * z * 4.0)))
    taken = leap_time(first, growth, k)
    return k - V.ones(taken > x) + V.ones(taken + first + growth * k <= x)
