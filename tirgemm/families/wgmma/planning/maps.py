"""The TMA descriptors of a plan, as the launch describes them."""

from __future__ import annotations

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.repacking import repacked
from tirgemm.gemm import DTYPE_BYTES, Operand
from tirgemm.launch import TensorMap


def load_map(plan: Plan, operand: Operand) -> TensorMap:
    """The descriptor by which a block loads its part of a slab of A or B. What of it lies outside reads as zero."""
    tile = plan.loads.tile(operand)
    return _map(plan, operand, (tile.width, plan.loads.rows_loaded(operand)), tile.swizzle, plan.l2_promotion)


def edge_map(plan: Plan, operand: Operand) -> TensorMap | None:
    """The descriptor by which a block loads the rows that are inside of a tile that reaches beyond A or B; None where
    that takes none of its own."""
    rows, tile = plan.loads.edge_rows(operand), plan.loads.tile(operand)
    if isinstance(rows, int) and rows == 0:
        return None
    return _map(plan, operand, (tile.width, rows), tile.swizzle, plan.l2_promotion)


def store_map(plan: Plan) -> TensorMap:
    """The descriptor by which a consumer stores a chunk of 64 rows of its tile, or a part of it. What lies outside is
    not written."""
    rows, columns = plan.staging.shape
    return _map(plan, "d", (columns, rows), plan.staging.swizzle, 0)


def _map(plan: Plan, operand: Operand, box: tuple[int, Dim], swizzle: int, l2_promotion: int) -> TensorMap:
    gemm = plan.gemm
    dtype = gemm.operand_dtype(operand)
    size = DTYPE_BYTES[dtype]
    rows, columns = gemm.matrix(operand)
    # D's rows are what TMA can store wherever it does.
    copy = None if operand == "d" else repacked(gemm, operand)
    name, ld = (copy.name, copy.ld) if copy else (operand, gemm.leading(operand))
    dims: tuple[Dim, ...] = (columns, rows)
    strides: tuple[Dim, ...] = (expr.make("mul", ld, size),)
    if gemm.batch > 1:
        dims += (gemm.batch,)
        strides += (expr.make("mul", copy.stride if copy else gemm.batch_stride(operand), size),)
    boxes = (*box, 1)[: len(dims)]
    return TensorMap(name, dtype, dims, strides, boxes, (1,) * len(dims), swizzle=swizzle, l2_promotion=l2_promotion)
