"""Replacement of TensorIR blocks by instructions, with block variables at hand.

A block that ``Schedule.blockize`` made computes one instruction's work element by element. Here its body becomes a
call, written in terms of the block's variables. The schedule before is what the kernel means and runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# cp.async of 16 bytes passes L1 by; narrower ones cannot. L2 fetches whole lines: the next step needs the other half of
# a line of which this one needs half. A copy of nothing writes zeros, and has an address of which all could be read.
_CP_ASYNC = """
__forceinline__ __device__ void tirgemm_cp_async_{n}(void* to, const void* from) {{
  unsigned address = __cvta_generic_to_shared(to);
  asm volatile("cp.async.{cache}.shared.global.L2::128B [%0], [%1], {n};" :: "r"(address), "l"(from));
}}
"""
_CP_ASYNC_OR_ZERO = """
__forceinline__ __device__ void tirgemm_cp_async_{n}_or_zero(void* to, const void* from, const void* start, \
bool inside) {{
  unsigned address = __cvta_generic_to_shared(to);
  const void* source = inside ? from : start;
  int count = inside ? {n} : 0;
  asm volatile("cp.async.{cache}.shared.global.L2::128B [%0], [%1], {n}, %2;" :: "r"(address), "l"(source), "r"(count));
}}
"""

# From a block to the block that takes its place.
Exchange = Callable[[Any], Any]


def exchanged(func: PrimFunc, blocks: Mapping[str, Exchange]) -> PrimFunc:
    """``func`` with every block whose name is in ``blocks`` exchanged."""
    from tvm.s_tir import SBlock
    from tvm_ffi.structural import structural_map

    def exchange(block: Any) -> Any:
        made = blocks.get(str(block.name_hint))
        return made(block) if made else block

    return func.with_body(structural_map(func.body, (SBlock, exchange)))


def with_body(block: Any, body: Any, reads: list[Any], writes: list[Any]) -> Any:
    """``block`` with another body, and what that reads and writes.

    Addresses do not tell how much is read or written behind them, so that TVM takes the regions' word for it.
    """
    from tvm.s_tir import SBlock

    explicit = {"explicit_read_region": list(range(len(reads))), "explicit_write_region": list(range(len(writes)))}
    annotations = {**dict(block.annotations.items()), **explicit}
    return SBlock(block.iter_vars, reads, writes, block.name_hint, body, annotations=annotations)


def with_buffers(block: Any, gone: list[Any], made: list[Any]) -> Any:
    """``block`` with other buffers allocated."""
    from tvm.s_tir import SBlock

    kept = [buffer for buffer in block.alloc_buffers if not any(buffer.same_as(other) for other in gone)]
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        block.body,
        block.init,
        [*kept, *made],
        block.match_buffers,
        block.annotations,
    )


def region(buffer: Any) -> Any:
    """All of a buffer."""
    from tvm.ir import Range
    from tvm.tirx import BufferRegion

    return BufferRegion(buffer, [Range(0, extent) for extent in buffer.shape])


def call(name: str, source: str, *args: Any) -> Any:
    """A statement that calls ``name``, which ``source`` defines."""
    from tvm import tirx
    from tvm.backend.cuda.op import cuda_func_call

    return tirx.Evaluate(cuda_func_call(name, *args, source_code=source))


def address(buffer: Any, indices: list[Any]) -> Any:
    """The address of an element. TVM's search for barriers does not look behind it: see ``barriers``."""
    from tvm.tirx.script import builder as tir

    return tir.address_of(buffer[tuple(indices)])


def behind(pointer: Any, nbytes: Any, dtype: str) -> Any:
    """The address ``nbytes`` behind ``pointer``, by an addition of its own.

    What is a constant behind a common address ends up in the instruction's own offset. As a part of an index it does
    not: NVRTC adds it up in 32 bits and widens every sum by itself.
    """
    from tvm import tirx

    return tirx.ptr_byte_offset(pointer, nbytes, dtype)


def barrier() -> Any:
    """The statement at which a block's threads wait for each other."""
    from tvm import tirx
    from tvm.tirx.script import builder as tir

    return tirx.Evaluate(tir.tvm_storage_sync("shared"))


def cp_async(nbytes: int, to: Any, source: Any, inside: Any | None, start: Any) -> Any:
    """The statement that copies ``nbytes`` (4, 8 or 16), or writes zeros where ``inside`` is false.

    ``start`` is where the operand starts. Without a condition everything is copied.
    """
    words = {"n": nbytes, "cache": "cg" if nbytes == 16 else "ca"}
    if inside is None:
        return call(f"tirgemm_cp_async_{nbytes}", _CP_ASYNC.format(**words), to, source)
    text = _CP_ASYNC_OR_ZERO.format(**words)
    return call(f"tirgemm_cp_async_{nbytes}_or_zero", text, to, source, start, inside)


def variables(block: Any) -> list[Any]:
    """The block's variables, as expressions."""
    return [iter_var.var for iter_var in block.iter_vars]
