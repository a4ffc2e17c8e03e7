"""Arrays: everything that kernels work on, handed to them as one table of addresses.

Passing an array to compiled code takes as long as fifty of its stores, so a kernel gets the addresses of all of them in
one. Owns no memory.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, get_args, get_type_hints

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from kvledger.views import F64, I16, I32, I64, U8, U64


class Arrays(NamedTuple):
    """C-contiguous arrays by name. Those of the ledger are its sections; the others are private to the cache."""

    control: I64
    stats: F64
    seq: U64
    """The open publication, [1]."""
    now_ns: I64
    """The ledger clock at its begin, [1]."""
    charged: U8
    """Tenant columns that blocks were ever charged to, marked 1."""
    # Blocks, by id.
    ref_count: I32
    state: U8
    group: U8
    tenant: I16
    owner: U64
    prefix_hash: U64
    filled_tokens: I32
    allocated_ns: I64
    changed_seq: U64
    share_clock: F64
    share_since_ns: I64
    index_slot: I32
    evict_ticket: I64
    # Structures.
    free_list: I32
    index_key: U64
    index_block: I32
    ring: I32
    chunk: I32
    """[chunks, chunk_blocks]."""
    next_chunk: I32
    free_chunks: I32
    # Slots, by slot; the three of tables by slot × groups + group.
    serial: U64
    slot_tenant: I16
    slot_changed: U64
    prompt_tokens: I32
    output_tokens: I32
    max_tokens: I32
    last_token_ns: I64
    computed_tokens: I32
    own_from_token: I32
    peak_blocks: I32
    table_blocks: I32
    first_chunk: I32
    last_chunk: I32
    # Private: what indexed blocks stand for, by block.
    content: I64
    parent: I64
    salt: U64
    passed: I32
    """Entries of the index that lie further on since a bucket was full, by bucket."""
    block_tokens: I32
    """[capacity_blocks, block_size_tokens]."""
    # Private: where the chain of each slot stands, and what its tables have no more.
    chain_sum: U64
    chain_content: I64
    skipped: I32
    attached_ns: I64
    # Private: lives of blocks, see `lives`.
    lives: U8
    whole_lives: U8
    # Private: numbers that never change, and those that do, by the constants below.
    settings: I64
    words: I64
    seed: U64
    """[1]: salts every prefix key."""
    lifetime_bounds: F64
    scratch: I64
    """Room for a kernel and for what it answers, as many as there can be table entries or blocks."""


_TWO_DIMENSIONAL = ("chunk", "block_tokens")

BLOCK_TOKENS, GROUPS, CHUNK_BLOCKS, KEY_BITS, POLICY = range(5)
FREE_GAUGE, CACHED_GAUGE, ACTIVE_GAUGE, EVICTIONS, TENANT_BLOCKS, LIFETIME_ALONE, LIFETIME_SHARED = range(5, 12)
SETTINGS = 12
"""`settings`: sizes, the eviction policy, and indices into `stats`."""
NEXT_CONTENT, INDEX_CHANGES = range(2)
WORDS = 2
"""`words`: the content id that the next indexed block gets, and how often the index has changed."""


def handle_of(arrays: Arrays) -> Any:
    """The first argument of every kernel: the addresses of arrays, which it keeps alive."""
    if numba.config.DISABLE_JIT:
        return arrays
    owner: Any = (ctypes.c_int64 * (3 * len(arrays)))()
    owner.arrays = arrays
    handle: I64 = np.frombuffer(owner, np.int64)
    of_any_kind: tuple[Any, ...] = arrays
    for row, array, numba_type in zip(handle.reshape(-1, 3), of_any_kind, _array_types(), strict=True):
        assert (array.flags.c_contiguous, from_dtype(array.dtype)) == (True, numba_type.dtype), numba_type
        row[0] = array.ctypes.data
        row[1 : 1 + array.ndim] = array.shape
    return handle


def _array_types() -> list[Any]:
    hints = get_type_hints(Arrays)
    found = []
    for name in Arrays._fields:
        (scalar,) = get_args(get_args(hints[name])[1])
        found.append(types.Array(from_dtype(np.dtype(scalar)), 2 if name in _TWO_DIMENSIONAL else 1, "C"))
    return found


@intrinsic
def _unpacked(typing_context: Any, handle: Any) -> Any:
    array_types = _array_types()
    result = types.NamedTuple(array_types, Arrays)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        made = [
            _array(context, builder, array_type, cgutils.gep_inbounds(builder, rows, 3 * number))
            for number, array_type in enumerate(array_types)
        ]
        return context.make_tuple(builder, signature.return_type, made)

    return result(handle), generate


def _array(context: Any, builder: Any, array_type: Any, row: Any) -> Any:
    """The array whose address and shape lie at `row`, owned by nobody in here."""
    array = context.make_array(array_type)(context, builder)
    address = builder.inttoptr(builder.load(row), array.data.type)
    shape = [builder.load(cgutils.gep_inbounds(builder, row, 1 + axis)) for axis in range(array_type.ndim)]
    item = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    strides: list[Any] = []
    stride = item
    for length in reversed(shape):
        strides.insert(0, stride)
        stride = builder.mul(stride, length)
    populate_array(array, data=address, shape=shape, strides=strides, itemsize=item, meminfo=None)
    return array._getvalue()


def unpack(handle: Any) -> Arrays:
    """The arrays behind a handle."""
    arrays: Arrays = handle
    return arrays


# Not `inline="always"`: numba then takes stores into these arrays for dead ones, as nobody returns the arrays.
@overload(unpack, jit_options={"forceinline": True})
def _unpack(handle: Any) -> Any:
    def unpacked(handle: Any) -> Any:
        return _unpacked(handle)

    return unpacked
