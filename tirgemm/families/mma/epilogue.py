"""Epilogue of ``mma``: from a thread's registers, or sixteen rows of a warp at a time through shared memory.

Registers hold two neighbouring sums of a row here and two of another there: stores of them touch half sectors of eight
rows. Through shared memory a warp stores whole lines, and C is read in whole lines too. A warp's sixteen rows are its
own, so that nothing but the warp waits; only what the tiles held has to be done with before, in every warp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tirgemm.families.mma.tile import MMA_M, MMA_N, SUMS, VECTOR, rows_at_once
from tirgemm.families.tensorcore.copies import Stage
from tirgemm.families.tensorcore.intrinsics import address, barrier, call, region, with_body
from tirgemm.families.tensorcore.names import STAGED
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, STAGED_ROWS, Tiling
from tirgemm.gemm import DTYPE_BYTES, DTYPE_NAMES
from tirgemm.hardware import WARP

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.tirx import PrimFunc

# Marks the loops: over sixteen rows, and over the turns of a warp over them.
ROWS, TURNS = "tirgemm_rows", "tirgemm_turns"
# Two sums from registers to shared memory, four back: fp32 or fp16.
_STAGE = """
__forceinline__ __device__ void tirgemm_stage_{bits}(void* to, const void* from) {{
  *({word}*)to = *(const {word}*)from;
}}
"""
_UNSTAGE = """
__forceinline__ __device__ void tirgemm_unstage_{bits}(void* to, const void* from) {{
  *({words}*)to = *(const {words}*)from;
}}
"""
_MEET = """
__forceinline__ __device__ void tirgemm_meet_warp() {
  __syncwarp();
}
"""
_WORDS = {4: {"bits": 32, "word": "float2", "words": "float4"}, 2: {"bits": 16, "word": "unsigned", "words": "uint2"}}


class Sums:
    """A thread's sums as its own buffer, and four of a row as they come back from shared memory."""

    def __init__(self, tiling: Tiling) -> None:
        from tvm.tirx import decl_buffer

        self.tiling = tiling
        dtype = DTYPE_NAMES[tiling.gemm.acc]
        shape = [tiling.warp_m // MMA_M, tiling.warp_n // MMA_N, SUMS]
        self.buffer = decl_buffer(shape, dtype, "sums", scope="local")
        self.vector = decl_buffer([VECTOR], dtype, "row_sums", scope="local")
        self.replaced: Any = None

    @property
    def buffers(self) -> list[Any]:
        return [self.buffer, self.vector] if self.tiling.epilogue == STAGED else [self.buffer]

    def filled(self, block: Any) -> Any:
        """The block that clears a sum, on the buffer."""
        self.replaced = block.writes[0].source
        return _exchanged(block, self.replaced, self.buffer, lambda indices: list(indices)[-3:])

    def finished(self, block: Any) -> Any:
        """The block that finishes an output, from the buffer or from a row's sums."""
        if self.tiling.epilogue != STAGED:
            return _exchanged(block, self.replaced, self.buffer, lambda indices: list(indices)[-3:])
        last = block.iter_vars[-1].var
        return _exchanged(block, self.replaced, self.vector, lambda _: [last])


def finish_rows(sch: Schedule, thread: Any, rows: Any, turns: Any, vector: Any, tiling: Tiling) -> None:
    """Let every warp finish its outputs row by row, a vector a lane."""
    sch.bind(thread, "threadIdx.x")
    sch.annotate(rows, ROWS, 1)
    sch.annotate(turns, TURNS, 1)
    # The parts of a split have rows of whole vectors; what lies behind a row of D may be another's.
    _, inner = sch.split(vector, [None, VECTOR if tiling.split > 1 else tiling.width_d])
    sch.vectorize(inner)


def stage_outputs(func: PrimFunc, stage: Stage, sums: Sums, thread: Any) -> PrimFunc:
    """``func`` with the sums going through shared memory; ``thread`` is the variable of the outputs' loop over
    threads."""
    from tvm import tirx
    from tvm_ffi.structural import structural_map

    tiling = stage.tiling
    size = DTYPE_BYTES[tiling.gemm.acc]
    words, scale = _WORDS[size], size // ELEMENT_BYTES
    lane, warp = thread % WARP, thread // WARP
    rows = rows_at_once(tiling)
    lanes = WARP // rows

    def place(row: Any, column: Any) -> Any:
        """The address of a sum in the warp's part of shared memory."""
        index = (warp * STAGED_ROWS + row) * tiling.staged_pitch + column
        return address(stage.buffer, [index * scale])

    def changed(loop: Any) -> Any:
        if TURNS in loop.annotations:
            source = place(loop.loop_var * rows + lane // lanes, lane % lanes * VECTOR)
            name = f"tirgemm_unstage_{words['bits']}"
            load = call(name, _UNSTAGE.format(**words), address(sums.vector, [0]), source)
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt([load, loop.body]))
        if ROWS in loop.annotations:
            meet = call("tirgemm_meet_warp", _MEET)
            body = tirx.SeqStmt([*stores(loop.loop_var), meet, loop.body, meet])
            return tirx.SeqStmt(
                [barrier(), tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, body)]
            )
        return loop

    def stores(number: Any) -> list[Any]:
        """The statements that store the sixteen rows ``number``."""
        calls = []
        for j in range(tiling.warp_n // MMA_N):
            for half in range(2):
                to = place(half * 8 + lane // 4, j * MMA_N + lane % 4 * 2)
                source = address(sums.buffer, [number, j, half * 2])
                calls.append(call(f"tirgemm_stage_{words['bits']}", _STAGE.format(**words), to, source))
        return calls

    return func.with_body(structural_map(func.body, (tirx.For, changed)))


def _exchanged(block: Any, old: Any, new: Any, place: Any) -> Any:
    """``block`` with ``new`` for ``old``, at the indices that ``place`` makes of the old ones."""
    from tvm.ir import TensorLoad
    from tvm.tirx import BufferStore
    from tvm_ffi.structural import structural_map

    def load(node: Any) -> Any:
        return new[tuple(place(node.indices))] if node.source.same_as(old) else node

    def store(node: Any) -> Any:
        return BufferStore(new, node.value, place(node.indices)) if node.buffer.same_as(old) else node

    body = structural_map(block.body, [(TensorLoad, load), (BufferStore, store)])
    reads, writes = (
        [region(new) if access.source.same_as(old) else access for access in accesses]
        for accesses in (block.reads, block.writes)
    )
    return with_body(block, body, reads, writes)
