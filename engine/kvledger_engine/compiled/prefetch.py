"""Prefetching: asking for an element that will be read soon, so that the processor need not wait for it then."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload


@intrinsic
def _prefetched(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        element = cgutils.gep_inbounds(builder, data, arguments[1])
        address = builder.bitcast(element, cgutils.voidptr_t)
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def prefetch(array: Any, index: int) -> None:
    """`array[index]` is read soon. Interpreted code has nothing to gain."""


@overload(prefetch, jit_options={"forceinline": True})
def _prefetch(array: Any, index: Any) -> Any:
    def prefetched(array: Any, index: Any) -> None:
        _prefetched(array, index)

    return prefetched
