"""Vectors of eight 64-bit words, for the few loops that look at every instance or every sequence at once.

Also of sixteen float32, for the units of a network. LLVM's own vectorisers give up on loops this short. `Ints`,
`Floats` and `Singles` are values like any other inside compiled code: they add, multiply and compare element by
element, with each other or with a scalar. On machines without 512-bit registers LLVM splits the operations; the
results are the same, element by element IEEE and two's complement.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from .compile import inline

WIDTH = 8
"""Elements of a vector."""

SINGLES = 16
"""Elements of a vector of float32."""

_LARGEST = (1 << 63) - 1

_i64, _f64, _f32, _i1 = ir.IntType(64), ir.DoubleType(), ir.FloatType(), ir.IntType(1)
_ints, _floats, _bits = (ir.VectorType(t, WIDTH) for t in (_i64, _f64, _i1))
_singles = ir.VectorType(_f32, SINGLES)


class _Vector(types.Type):
    """Numba type of a vector."""

    def __init__(self, name: str, llvm_type: Any) -> None:
        self.llvm_type = llvm_type
        super().__init__(name=name)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.llvm_type)


Ints = _Vector("Ints", _ints)
Floats = _Vector("Floats", _floats)
Mask = _Vector("Mask", _bits)
Singles = _Vector("Singles", _singles)

_SCALARS = {Ints: types.int64, Floats: types.float64, Singles: types.float32}


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    """A scalar in every element."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def _binary(operation: Any, emit: Callable[[Any, Any, Any, Any], Any], kinds: Any, result: Any = None) -> None:
    """Gives vectors the Python operation, lowered by `emit(builder, kind, left, right)`."""

    def lower(kind: Any, left: Any, right: Any) -> None:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ready = [
                value if given is kind else _spread(builder, value, kind.llvm_type)
                for given, value in zip((left, right), args, strict=True)
            ]
            return emit(builder, kind, *ready)

        lower_builtin(operation, left, right)(codegen)

    signatures = []
    for kind in kinds:
        scalar = _SCALARS[kind]
        for left, right in ((kind, kind), (kind, scalar), (scalar, kind)):
            signatures.append(signature(result or kind, left, right))
            lower(kind, left, right)
    infer_global(operation)(type("Vector", (ConcreteTemplate,), {"cases": signatures}))


_all, _both, _whole = (Ints, Floats, Singles), (Ints, Floats), (Ints,)
_binary(operator.add, lambda b, k, x, y: b.add(x, y) if k is Ints else b.fadd(x, y), _all)
_binary(operator.sub, lambda b, k, x, y: b.sub(x, y) if k is Ints else b.fsub(x, y), _both)
_binary(operator.mul, lambda b, k, x, y: b.mul(x, y) if k is Ints else b.fmul(x, y), _all)
_binary(operator.truediv, lambda b, k, x, y: b.fdiv(x, y), (Floats, Singles))
_binary(operator.and_, lambda b, k, x, y: b.and_(x, y), _whole)
_binary(operator.or_, lambda b, k, x, y: b.or_(x, y), _whole)
_binary(operator.rshift, lambda b, k, x, y: b.ashr(x, y), _whole)


def _comparison(operation: Any, sign: str) -> None:
    def emit(b: Any, kind: Any, x: Any, y: Any) -> Any:
        return b.icmp_signed(sign, x, y) if kind is Ints else b.fcmp_ordered(sign, x, y)

    _binary(operation, emit, _both, Mask)


_comparison(operator.lt, "<")
_comparison(operator.le, "<=")
_comparison(operator.gt, ">")
_comparison(operator.eq, "==")


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _function(result: Any, *kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """An intrinsic on operands of fixed types, lowered by the decorated `emit(builder, *operands)`."""

    def make(emit: Callable[..., Any]) -> Any:
        names = ", ".join("abcd"[: len(kinds)])

        def typer(typingctx: Any, *given: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                value = emit(builder, *args)
                return context.get_dummy_value() if result is types.void else value

            return result(*kinds), codegen

        scope: dict[str, Any] = {"typer": typer}
        exec(f"def {emit.__name__}(typingctx, {names}): return typer(typingctx, {names})", scope)
        function = intrinsic(scope[emit.__name__])
        function.__doc__ = emit.__doc__
        return function

    return make


def _pointer(builder: Any, address: Any, at: Any, vector: Any, cell: Any = _i64) -> Any:
    word = builder.gep(builder.inttoptr(address, cell.as_pointer()), [at])
    return builder.bitcast(word, vector.as_pointer())


@_function(Ints, types.int64, types.int64)
def load(b: Any, address: Any, at: Any) -> Any:
    """The eight int64 from word `at` on."""
    return b.load(_pointer(b, address, at, _ints), align=8)


@_function(Floats, types.int64, types.int64)
def load_floats(b: Any, address: Any, at: Any) -> Any:
    """The eight float64 from word `at` on."""
    return b.load(_pointer(b, address, at, _floats), align=8)


@_function(types.void, types.int64, types.int64, Ints)
def store(b: Any, address: Any, at: Any, value: Any) -> Any:
    """Writes eight int64."""
    return b.store(value, _pointer(b, address, at, _ints), align=8)


@_function(types.void, types.int64, types.int64, Floats)
def store_floats(b: Any, address: Any, at: Any, value: Any) -> Any:
    """Writes eight float64."""
    return b.store(value, _pointer(b, address, at, _floats), align=8)


@_function(Singles, types.int64, types.int64)
def load_singles(b: Any, address: Any, at: Any) -> Any:
    """The sixteen float32 from cell `at` on."""
    return b.load(_pointer(b, address, at, _singles, _f32), align=4)


@_function(types.void, types.int64, types.int64, Singles)
def store_singles(b: Any, address: Any, at: Any, value: Any) -> Any:
    """Writes sixteen float32."""
    return b.store(value, _pointer(b, address, at, _singles, _f32), align=4)


@_function(Singles, types.int64, types.int64)
def load_spread(b: Any, address: Any, at: Any) -> Any:
    """The float32 of cell `at` in every element."""
    return _spread(b, b.load(b.gep(b.inttoptr(address, _f32.as_pointer()), [at])), _singles)


@_function(Singles, types.float32)
def spread_single(b: Any, value: Any) -> Any:
    """The value in every element."""
    return _spread(b, value, _singles)


@_function(Singles, Singles, Singles)
def greater(b: Any, x: Any, y: Any) -> Any:
    """The greater one, element by element; of two equal ones the second."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@_function(Singles, Singles, Singles)
def lesser(b: Any, x: Any, y: Any) -> Any:
    """The lesser one, element by element; of two equal ones the second."""
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@_function(types.float32, Singles)
def sum_of(b: Any, x: Any) -> Any:
    """The sum: elements eight apart are added first, then four, two and one apart."""
    half = SINGLES // 2
    while half:
        lower, upper = (
            ir.Constant(ir.VectorType(ir.IntType(32), half), [start + k for k in range(half)]) for start in (0, half)
        )
        nothing = ir.Constant(x.type, ir.Undefined)
        x = b.fadd(b.shuffle_vector(x, nothing, lower), b.shuffle_vector(x, nothing, upper))
        half //= 2
    return b.extract_element(x, ir.Constant(ir.IntType(32), 0))


@intrinsic
def store_ratio_columns(
    typingctx: Any, address: Any, stride: Any, count: Any, columns: Any, divisors: Any
) -> Any:
    """Writes up to eight rows of float32, `stride` bytes apart, from their columns.

    A column is a `Floats` over the rows, each divided by its divisor and rounded to nearest, as `memory.store_ratios`
    does. The columns are written in fours: behind the last one anything may be written up to a multiple of four.

    Args:
        typingctx: numba's.
        address: of the first row.
        stride: bytes.
        count: rows, 1 to 8; the others are not written.
        columns: a tuple of them.
        divisors: a tuple of as many float64.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b, small = builder, ir.VectorType(_f32, WIDTH)

        def mixed(x: Any, y: Any, places: list[int]) -> Any:
            kind = ir.VectorType(ir.IntType(32), len(places))
            return b.shuffle_vector(x, y, ir.Constant(kind, places))

        cells = []
        for k in range(columns.count):
            divisor = _spread(b, b.extract_value(args[4], k), _floats)
            cells.append(b.fptrunc(b.fdiv(b.extract_value(args[3], k), divisor), small))
        cells += [ir.Constant(small, ir.Undefined)] * (-columns.count % 4)
        even, odd = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]  # within halves of four rows, as SSE does
        fours = []
        for k in range(0, len(cells), 4):
            one, two, three, four = cells[k : k + 4]
            rows = []
            for places in (even, odd):
                left, right = mixed(one, two, places), mixed(three, four, places)
                rows.append(mixed(left, right, [0, 1, 8, 9, 4, 5, 12, 13]))
                rows.append(mixed(left, right, [2, 3, 10, 11, 6, 7, 14, 15]))
            fours.append(rows)  # of the rows 0 and 4, 1 and 5, 2 and 6, 3 and 7
        for row in range(WIDTH):
            with b.if_then(b.icmp_signed(">", args[2], ir.Constant(_i64, row))):
                at = b.add(args[0], b.mul(args[1], ir.Constant(_i64, row)))
                base = b.inttoptr(at, _f32.as_pointer())
                half = [4 * (row // 4) + place for place in range(4)]
                for k, rows in enumerate(fours):
                    four = mixed(rows[row % 4], rows[row % 4], half)
                    pointer = b.gep(base, [ir.Constant(_i64, 4 * k)])
                    b.store(four, b.bitcast(pointer, four.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, columns, divisors), codegen


@_function(Ints, types.int64)
def spread(b: Any, value: Any) -> Any:
    """The value in every element."""
    return _spread(b, value, _ints)


@_function(Ints, types.int64)
def counting(b: Any, start: Any) -> Any:
    """Start, start + 1, … start + 7."""
    return b.add(_spread(b, start, _ints), ir.Constant(_ints, list(range(WIDTH))))


@_function(Floats, Ints)
def to_floats(b: Any, value: Any) -> Any:
    """As float64."""
    return b.sitofp(value, _floats)


@_function(Ints, Floats)
def to_ints(b: Any, value: Any) -> Any:
    """Truncated towards 0."""
    return b.fptosi(value, _ints)


@_function(Ints, Mask)
def ones(b: Any, mask: Any) -> Any:
    """1 where true, else 0."""
    return b.zext(mask, _ints)


@_function(Ints, Ints, Ints)
def minimum(b: Any, x: Any, y: Any) -> Any:
    """Element by element."""
    return _call(b, "llvm.smin.v8i64", _ints, x, y)


@_function(Ints, Ints, Ints)
def maximum(b: Any, x: Any, y: Any) -> Any:
    """Element by element."""
    return _call(b, "llvm.smax.v8i64", _ints, x, y)


@_function(Floats, Floats)
def square_root(b: Any, x: Any) -> Any:
    """Element by element."""
    return _call(b, "llvm.sqrt.v8f64", _floats, x)


@_function(Ints, Mask, Ints, Ints)
def choose(b: Any, mask: Any, x: Any, y: Any) -> Any:
    """X where true, else y."""
    return b.select(mask, x, y)


@_function(types.int64, Ints)
def least_of(b: Any, x: Any) -> Any:
    """The smallest element."""
    return _call(b, "llvm.vector.reduce.smin.v8i64", _i64, x)


@_function(types.int64, Ints)
def any_bits(b: Any, x: Any) -> Any:
    """The bitwise or of all elements."""
    return _call(b, "llvm.vector.reduce.or.v8i64", _i64, x)


@_function(types.int64, Mask)
def first_true(b: Any, mask: Any) -> Any:
    """Index of the first true element, 64 if there is none."""
    bits = b.zext(b.bitcast(mask, ir.IntType(WIDTH)), _i64)
    return _call(b, "llvm.cttz.i64", _i64, bits, ir.Constant(_i1, 0))


@inline
def first_least(words: int, groups: int, stride: int) -> int:
    """Index of the smallest int64 in `groups` vectors that lie `stride` words apart, the lowest of several."""
    least = spread(_LARGEST)
    for group in range(groups):
        least = minimum(least, load(words, group * stride))
    smallest = least_of(least)
    group = 0
    found = first_true(load(words, 0) == smallest)
    while found >= WIDTH:
        group += 1
        found = first_true(load(words, group * stride) == smallest)
    return group * WIDTH + found
