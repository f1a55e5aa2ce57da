"""The instructions of ``wmma``: fragments loaded, filled, multiplied and stored in place of the blocks that spell it
out.

Fragments are buffers of TVM's scopes ``wmma.*``, 256 elements each; which lane holds which is the hardware's secret.
Source: PTX ISA, "Warp-level Matrix Instructions: wmma".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tirgemm.families.tensorcore.copies import Stage
from tirgemm.families.tensorcore.intrinsics import Exchange, exchanged, region, variables, with_body, with_buffers
from tirgemm.families.tensorcore.schedule import SHARED
from tirgemm.families.tensorcore.tiling import RUN, Side
from tirgemm.families.wmma.tile import FRAGMENT, WmmaTiling
from tirgemm.gemm import DTYPE_NAMES

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_SIZES = (FRAGMENT, FRAGMENT, FRAGMENT)


def with_fragments(func: PrimFunc, stage: Stage, tiling: WmmaTiling) -> PrimFunc:
    """``func`` with WMMA instructions for the blocks of fragments, products and staged sums."""
    m, n, acc = tiling.fragments_m, tiling.fragments_n, DTYPE_NAMES[tiling.gemm.acc]
    sums = _Fragments("sums", "wmma.accumulator", acc, 1, m * n)
    factors: dict[str, _Fragments] = {
        side.operand: _Fragments(
            f"{side.operand}_fragments",
            f"wmma.matrix_{side.operand}",
            DTYPE_NAMES[tiling.gemm.dtype],
            tiling.sets,
            m if side.operand == "a" else n,
        )
        for side in tiling.sides
    }
    blocks: dict[str, Exchange] = {
        f"{side.operand}_tile_local_o": partial(_load, stage, side, factors[side.operand]) for side in tiling.sides
    }
    blocks["gemm_init_o"] = partial(_fill, tiling, sums)
    blocks["gemm_update_o"] = partial(_multiply, tiling, factors, sums)
    blocks[f"acc_local_{SHARED}_o"] = partial(_store, tiling, sums)
    func = exchanged(func, blocks)
    every = (sums, *factors.values())
    gone = [*stage.replaced.values(), *(one.replaced for one in every)]
    made = [stage.buffer, *(one.buffer for one in every)]
    return exchanged(func, {"root": lambda block: with_buffers(block, gone, made)})


class _Fragments:
    """``sets`` of ``count`` fragments of a warp, and what they replace."""

    def __init__(self, name: str, scope: str, dtype: str, sets: int, count: int) -> None:
        from tvm.tirx import decl_buffer

        self.sets, self.count = sets, count
        self.buffer = decl_buffer([sets * count, FRAGMENT, FRAGMENT], dtype, name, scope=scope)
        self.replaced: Any = None

    def number(self, which: Any, turn: Any = 0) -> Any:
        """The fragment's number in the buffer; ``turn`` picks the set."""
        return turn % self.sets * self.count + which if self.sets > 1 else which


def _load(stage: Stage, side: Side, target: _Fragments, block: Any) -> Any:
    from tvm.tirx.script import builder as tir

    target.replaced = block.writes[0].source
    step, row, run = variables(block)[3:6]
    own, deep = (row, run) if side.k_major else (run, row)
    # What fragments call row-major: A by rows of m, B by rows of k.
    layout = "row_major" if side.k_major == (side.operand == "a") else "col_major"
    # An access that TVM knows to be one: it takes a load from a mere address for one without effect.
    place = stage.at(side, step, row * FRAGMENT, run * (FRAGMENT // RUN)).args[0].indices[0]
    source = stage.buffer.access_ptr("r", ptr_type=DTYPE_NAMES[stage.tiling.gemm.dtype], offset=place)
    number = target.number(own % target.count, deep)
    pitch = side.layout.stride * RUN
    body = tir.tvm_load_matrix_sync(target.buffer.data, *_SIZES, number, source, pitch, layout)
    return with_body(block, _statement(body), [region(stage.buffer)], [region(target.buffer)])


def _fill(tiling: WmmaTiling, sums: _Fragments, block: Any) -> Any:
    from tvm import tirx
    from tvm.tirx.script import builder as tir

    number = _sum(tiling, block)
    body = tir.tvm_fill_fragment(sums.buffer.data, *_SIZES, number, tirx.const(0.0, "float32"))
    return with_body(block, _statement(body), [], [region(sums.buffer)])


def _multiply(tiling: WmmaTiling, factors: dict[str, _Fragments], sums: _Fragments, block: Any) -> Any:
    from tvm.tirx.script import builder as tir

    sums.replaced = block.writes[0].source
    fi, fj, _, depth = variables(block)[6:10]
    a, b = factors["a"], factors["b"]
    number = _sum(tiling, block)
    body = tir.tvm_mma_sync(
        sums.buffer.data,
        number,
        a.buffer.data,
        a.number(fi, depth),
        b.buffer.data,
        b.number(fj, depth),
        sums.buffer.data,
        number,
    )
    whole = region(sums.buffer)
    return with_body(block, _statement(body), [whole, region(a.buffer), region(b.buffer)], [whole])


def _store(tiling: WmmaTiling, sums: _Fragments, block: Any) -> Any:
    """An accumulator to shared memory, through a view of its place there: where that is, TVM says after this."""
    from tvm.s_tir import MatchBufferRegion, SBlock
    from tvm.tirx import Var, decl_buffer
    from tvm.tirx.script import builder as tir

    fi, _, fj = variables(block)[6:9]
    target = block.writes[0]
    strides = [Var(f"stride{i}", "int32") for i in range(3)]
    view = decl_buffer(
        [FRAGMENT, 1, FRAGMENT],
        DTYPE_NAMES[tiling.gemm.acc],
        "staged",
        strides=strides,
        elem_offset=Var("start", "int32"),
        scope=SHARED,
        data_alignment=32,
        offset_factor=RUN,
    )
    place = view.access_ptr("w", ptr_type=DTYPE_NAMES[tiling.gemm.acc])
    number = fi * tiling.fragments_n + fj
    body = tir.tvm_store_matrix_sync(sums.buffer.data, *_SIZES, number, place, strides[0], "row_major")
    made = with_body(block, _statement(body), [region(sums.buffer)], [target])
    return SBlock(
        made.iter_vars,
        made.reads,
        made.writes,
        made.name_hint,
        made.body,
        match_buffers=[MatchBufferRegion(view, target)],
        annotations=made.annotations,
    )


def _sum(tiling: WmmaTiling, block: Any) -> Any:
    """The number of the accumulator that the block is about."""
    fi, fj = variables(block)[6:8]
    return fi * tiling.fragments_n + fj


def _statement(value: Any) -> Any:
    from tvm import tirx

    return tirx.Evaluate(value)
