"""The instructions of ``mma``: ldmatrix.x4 and mma.sync.m16n8k16, in place of the blocks that spell them out.

Sources: PTX ISA, "ldmatrix" and "mma.m16n8k16".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tirgemm.families.mma.epilogue import Sums
from tirgemm.families.mma.tile import MMA_N, PAIR_N, VALUES
from tirgemm.families.tensorcore.copies import Stage
from tirgemm.families.tensorcore.intrinsics import (
    Exchange,
    address,
    call,
    exchanged,
    region,
    variables,
    with_body,
    with_buffers,
)
from tirgemm.families.tensorcore.tiling import MMA_K, RUN, Side, Tiling
from tirgemm.gemm import DTYPE_NAMES, Operand

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_LDMATRIX = """
__forceinline__ __device__ void tirgemm_ldmatrix_x4{suffix}(void* to, const void* from) {{
  unsigned* r = (unsigned*)to;
  unsigned address = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}}
"""
_MMA_F32 = """
__forceinline__ __device__ void tirgemm_mma_f32_{dtype}(void* sums, const void* left, const void* right) {{
  float* d = (float*)sums;
  const unsigned* a = (const unsigned*)left;
  const unsigned* b = (const unsigned*)right;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32 "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""
_MMA_F16 = """
__forceinline__ __device__ void tirgemm_mma_f16_f16(void* sums, const void* left, const void* right) {
  unsigned* d = (unsigned*)sums;
  const unsigned* a = (const unsigned*)left;
  const unsigned* b = (const unsigned*)right;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
               "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
"""


def with_instructions(func: PrimFunc, stage: Stage, sums: Sums, lane: Any, sets: int) -> PrimFunc:
    """``func`` with ldmatrix and mma.sync for the blocks of fragments and products; ``lane`` is an expression."""
    tiling = stage.tiling
    registers = {side.operand: _Registers(tiling, side, sets) for side in tiling.sides}
    blocks: dict[str, Exchange] = {
        f"{side.operand}_frag_o": partial(_load, stage, side, registers[side.operand], lane) for side in tiling.sides
    }
    blocks["gemm_init"] = sums.filled
    blocks["gemm_update_o"] = partial(_multiply, tiling, registers, sums)
    blocks["epilogue"] = sums.finished
    func = exchanged(func, blocks)
    # The fragments are a thread's own now.
    return exchanged(func, {"root": partial(_own, stage, registers, sums)})


class _Registers:
    """A thread's part of an operand's fragments, ``sets`` of them: eight values of each 16 rows or columns of its
    warp."""

    def __init__(self, tiling: Tiling, side: Side, sets: int) -> None:
        from tvm.tirx import decl_buffer

        self.side, self.sets = side, sets
        self.count = (tiling.warp_m if side.operand == "a" else tiling.warp_n) // 16
        name = f"{side.operand}_registers"
        self.buffer = decl_buffer([sets, self.count, VALUES], DTYPE_NAMES[tiling.gemm.dtype], name, scope="local")
        self.replaced: Any = None

    def at(self, ki: Any, number: Any, first: Any = 0) -> Any:
        """The address of value ``first`` of fragment ``number`` for the ``ki``-th 16 of k."""
        return address(self.buffer, [ki % self.sets, number, first])


def _load(stage: Stage, side: Side, registers: _Registers, lane: Any, block: Any) -> Any:
    registers.replaced = block.writes[0].source
    step, ki, warp, i = variables(block)[3:7]
    count = registers.count
    # Lane l points at row l % 8 of matrix l // 8, which fills register l // 8.
    matrix, within = lane // RUN, lane % RUN
    own_half, k_half = (matrix % 2, matrix // 2) if side.operand == "a" else (matrix // 2, matrix % 2)
    # In whole runs along the contiguous dimension, in rows along the other.
    if side.k_major:
        warp_row, row_start, row_inner = warp * (count * 16), i * 16, own_half * RUN + within
        run_start, run_inner = ki * (MMA_K // RUN), k_half
    else:
        warp_row, row_start, row_inner = 0, ki * MMA_K, k_half * RUN + within
        run_start, run_inner = warp * (count * 2) + i * 2, own_half
    # Rows start at a multiple of 16, the period of every permutation: its key is the lane's alone.
    _, run = side.layout.index_map(row_inner, run_start + run_inner)
    source = stage.behind(side, stage.at(side, step, warp_row + row_inner, run), row_start)
    suffix, modifier = ("", "") if side.k_major else ("_trans", ".trans")
    text = _LDMATRIX.format(suffix=suffix, modifier=modifier)
    body = call(f"tirgemm_ldmatrix_x4{suffix}", text, registers.at(ki, i), source)
    return with_body(block, body, [region(stage.buffer)], [region(registers.buffer)])


def _multiply(tiling: Tiling, registers: dict[Operand, _Registers], sums: Sums, block: Any) -> Any:
    ki, i, j = variables(block)[8:11]
    # To and fro along a row of instructions, as CUTLASS does: what multiplied last multiplies first in the next row.
    j = j + i % 2 * (tiling.warp_n // MMA_N - 1 - 2 * j)
    pair, which = j // (PAIR_N // MMA_N), j % (PAIR_N // MMA_N)
    left, right, whole = registers["a"], registers["b"], region(sums.buffer)
    half = tiling.gemm.acc == "f16"
    name, text = ("tirgemm_mma_f16_f16", _MMA_F16) if half else (f"tirgemm_mma_f32_{tiling.gemm.dtype}", _MMA_F32)
    text = text if half else text.format(dtype=tiling.gemm.dtype)
    target = address(sums.buffer, [i, j, 0])
    body = call(name, text, target, left.at(ki, i), right.at(ki, pair, which * (VALUES // 2)))
    return with_body(block, body, [whole, region(left.buffer), region(right.buffer)], [whole])


def _own(stage: Stage, registers: dict[Operand, _Registers], sums: Sums, block: Any) -> Any:
    gone = [*stage.replaced.values(), *(own.replaced for own in registers.values()), sums.replaced]
    return with_buffers(block, gone, [stage.buffer, *(own.buffer for own in registers.values()), *sums.buffers])
