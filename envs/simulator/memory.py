"""Raw memory for the compiled core: loads, stores and block copies by address.

NumPy arrays cost seven words each as arguments and a wrap-around check at every index; the core keeps its
state in one flat block of 64-bit words instead and reaches it through the functions below. Nothing
outside `envs/simulator` may use them: an address that is wrong crashes the process.

Addresses are int64 byte addresses; offsets count elements of the accessed width.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def _tag(builder: Any, instruction: Any, name: str) -> None:
    """Tells the compiler that accesses of different kinds never touch the same memory.

    So it is in the core: no word is ever read as two kinds, but by `copy_words`.
    """
    module = builder.module
    whole = ir.Constant(ir.IntType(64), 0)
    root = module.add_metadata(["disaggroute"])
    kind = module.add_metadata([name, root, whole])
    instruction.set_metadata("tbaa", module.add_metadata([kind, kind, whole]))


def _loader(numba_type: Any, llvm_type: Any, result: Any, constant: bool = False) -> Any:
    def load(typingctx: Any, address: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], llvm_type.as_pointer())
            value = builder.load(builder.gep(base, [args[1]]))
            if constant:
                value.set_metadata("invariant.load", builder.module.add_metadata([]))
            elif isinstance(llvm_type, ir.IntType):
                _tag(builder, value, f"int{llvm_type.width}")
            return builder.sext(value, ir.IntType(64)) if numba_type is not result else value

        return result(types.int64, types.int64), codegen

    return intrinsic(load)


def _storer(numba_type: Any, llvm_type: Any, given: Any) -> Any:
    def store(typingctx: Any, address: Any, offset: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], llvm_type.as_pointer())
            value = builder.trunc(args[2], llvm_type) if numba_type is not given else args[2]
            instruction = builder.store(value, builder.gep(base, [args[1]]))
            if isinstance(llvm_type, ir.IntType):
                _tag(builder, instruction, f"int{llvm_type.width}")
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, given), codegen

    return intrinsic(store)


ld = _loader(types.int64, ir.IntType(64), types.int64)
"""ld(address, k): the k-th int64 word."""
st = _storer(types.int64, ir.IntType(64), types.int64)
"""st(address, k, value): writes the k-th int64 word."""
ld32 = _loader(types.int32, ir.IntType(32), types.int64)
"""ld32(address, k): the k-th int32, as int64."""
st32 = _storer(types.int32, ir.IntType(32), types.int64)
"""st32(address, k, value): writes the low 32 bits of value."""
st16 = _storer(types.int16, ir.IntType(16), types.int64)
"""st16(address, k, value): writes the low 16 bits of value."""
ldc = _loader(types.int64, ir.IntType(64), types.int64, constant=True)
"""`ld` of a word that no compiled function changes: the compiler need not load it again after a store."""
ldc32 = _loader(types.int32, ir.IntType(32), types.int64, constant=True)
"""`ld32` of a constant."""
ldc8 = _loader(types.int8, ir.IntType(8), types.int64, constant=True)
"""The k-th int8, as int64, a constant."""
ldcf = _loader(types.float64, ir.DoubleType(), types.float64, constant=True)
"""`ldf` of a constant."""
ldf = _loader(types.float64, ir.DoubleType(), types.float64)
"""ldf(address, k): the k-th float64."""
stf = _storer(types.float64, ir.DoubleType(), types.float64)
"""stf(address, k, value): writes the k-th float64."""
ld8 = _loader(types.int8, ir.IntType(8), types.int64)
"""ld8(address, k): the k-th int8, as int64."""
ld16 = _loader(types.int16, ir.IntType(16), types.int64)
"""ld16(address, k): the k-th int16, as int64."""
st8 = _storer(types.int8, ir.IntType(8), types.int64)
"""st8(address, k, value): writes the low 8 bits of value."""


def _store_each(builder: Any, address: Any, cell: Any, name: str, values: Any) -> None:
    """Stores LLVM values of the type `cell` one after the other."""
    base = builder.inttoptr(address, cell.as_pointer())
    for k, value in enumerate(values):
        _tag(builder, builder.store(value, builder.gep(base, [ir.Constant(ir.IntType(64), k)])), name)


@intrinsic
def store_words(typingctx: Any, address: Any, values: Any) -> Any:
    """Writes a tuple of int64 as words."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [builder.extract_value(args[1], k) for k in range(values.count)]
        _store_each(builder, args[0], ir.IntType(64), "int64", words)
        return context.get_dummy_value()

    return types.void(types.int64, values), codegen


@intrinsic
def store_cells(typingctx: Any, address: Any, values: Any) -> Any:
    """Writes a tuple of int64 as int32, cut off at the largest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        largest = ir.Constant(ir.IntType(64), (1 << 31) - 1)
        cells = []
        for k in range(values.count):
            word = builder.extract_value(args[1], k)
            least = builder.select(builder.icmp_signed("<", word, largest), word, largest)
            cells.append(builder.trunc(least, ir.IntType(32)))
        _store_each(builder, args[0], ir.IntType(32), "int32", cells)
        return context.get_dummy_value()

    return types.void(types.int64, values), codegen


def _ratios(builder: Any, kinds: Any, values: Any, divisors: Any) -> list[Any]:
    """LLVM values of a tuple of int64 and float64, each divided by its divisor, as float32, rounded to nearest."""
    ratios = []
    for k, kind in enumerate(kinds):
        value = builder.extract_value(values, k)
        if kind is types.int64:
            value = builder.sitofp(value, ir.DoubleType())
        ratios.append(builder.fptrunc(builder.fdiv(value, builder.extract_value(divisors, k)), ir.FloatType()))
    return ratios


@intrinsic
def store_ratios(typingctx: Any, address: Any, values: Any, divisors: Any) -> Any:
    """Writes each of a tuple of int64 and float64, divided by its divisor, as float32, rounded to nearest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store_each(builder, args[0], ir.FloatType(), "float32", _ratios(builder, values, args[1], args[2]))
        return context.get_dummy_value()

    return types.void(types.int64, values, divisors), codegen


@intrinsic
def store_clipped(typingctx: Any, address: Any, values: Any, divisors: Any, bound: Any) -> Any:
    """`store_ratios` of what is clipped to ±bound (float32)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        high, low, cells = args[3], builder.fneg(args[3]), []
        for ratio in _ratios(builder, values, args[1], args[2]):
            least = builder.select(builder.fcmp_ordered("<", ratio, high), ratio, high)
            cells.append(builder.select(builder.fcmp_ordered(">", least, low), least, low))
        _store_each(builder, args[0], ir.FloatType(), "float32", cells)
        return context.get_dummy_value()

    return types.void(types.int64, values, divisors, types.float32), codegen


@intrinsic
def dot_ratios(typingctx: Any, total: Any, address: Any, values: Any, divisors: Any) -> Any:
    """Adds to a total, one after the other, the float64 from an address on times what `store_ratios` would write."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, base = args[0], builder.inttoptr(args[1], ir.DoubleType().as_pointer())
        for k, ratio in enumerate(_ratios(builder, values, args[2], args[3])):
            factor = builder.load(builder.gep(base, [ir.Constant(ir.IntType(64), k)]))
            total = builder.fadd(total, builder.fmul(factor, builder.fpext(ratio, ir.DoubleType())))
        return total

    return types.float64(types.float64, types.int64, values, divisors), codegen


@intrinsic
def copy_words(typingctx: Any, to: Any, source: Any, count: Any) -> Any:
    """Copies `count` int64 words from `source` to `to`; the two do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
        size = builder.mul(args[2], ir.Constant(ir.IntType(64), 8))
        ends = [builder.inttoptr(a, pointer) for a in args[:2]]
        builder.call(memcpy, [*ends, size, ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def clear_bytes(typingctx: Any, address: Any, count: Any) -> Any:
    """Writes `count` zero bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        memset = builder.module.declare_intrinsic("llvm.memset", [pointer, ir.IntType(64)])
        zero, volatile = ir.Constant(ir.IntType(8), 0), ir.Constant(ir.IntType(1), 0)
        builder.call(memset, [builder.inttoptr(args[0], pointer), zero, args[1], volatile])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def scratch(typingctx: Any, count: Any) -> Any:
    """Address of `count` int64 words on the stack, at a cache line, with anything in them.

    They last until the function that asks returns, also where it is merged into its caller.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.alloca(ir.IntType(64), size=args[0])
        words.align = 64
        return builder.ptrtoint(words, ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Asks for the cache line at an address; the address need not be valid."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(ask, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _caller(arguments: int) -> Any:
    def call(typingctx: Any, address: Any, *given: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            pointer = ir.FunctionType(word, [word] * arguments).as_pointer()
            return builder.call(builder.inttoptr(args[0], pointer), args[1:])

        return types.int64(*[types.int64] * (1 + arguments)), codegen

    return call


@intrinsic
def call2(typingctx: Any, address: Any, first: Any, second: Any) -> Any:
    """Calls the function of two int64 at an address (`compile.address_of`)."""
    return _caller(2)(typingctx, address, first, second)


@intrinsic
def call3(typingctx: Any, address: Any, first: Any, second: Any, third: Any) -> Any:
    """Calls the function of three int64 at an address (`compile.address_of`)."""
    return _caller(3)(typingctx, address, first, second, third)
