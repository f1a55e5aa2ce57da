"""The TMA descriptors of a plan, as the launch describes them."""

from __future__ import annotations

from dataclasses import replace

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.wgmma.planning.names import REPACK
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.repacking import repacked
from tirgemm.families.wgmma.planning.tile import Tile
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand
from tirgemm.launch import TensorMap


def load_maps(plan: Plan, operand: Operand) -> tuple[TensorMap, ...]:
    """The descriptors by which a block loads its part of a slab of A or B, one for each class of rows. What lies
    outside reads as zero."""
    tile: Tile = plan.left if operand == plan.orientation.left_operand else plan.right
    classes = plan.loads.classes[operand]
    whole = _map(plan, operand, (tile.width, tile.rows_loaded // classes), tile.swizzle, plan.l2_promotion)
    return tuple(_of_class(plan.gemm, operand, whole, number, classes) for number in range(classes))


def _of_class(gemm: Gemm, operand: Operand, whole: TensorMap, number: int, classes: int) -> TensorMap:
    """The descriptor of every ``classes``-th row, from row ``number`` on, out of that of all rows.

    Its rows begin with row 0 of the operand: those before row ``number`` are skipped by the coordinate along k, and
    they end where row ``number`` does, so that zeros follow k. Without a row of that number all is outside.
    """
    if classes == 1:
        return whole
    rows, k = gemm.matrix(operand)
    distance = gemm.leading(operand)
    skipped = expr.minimum(expr.make("sub", rows, 1), number)
    row_ends = expr.make("add", expr.make("mul", skipped, distance), k)
    # No dimension of a map is 0.
    of_class = expr.make("max", expr.ceildiv(expr.make("max", expr.make("sub", rows, number), 0), classes), 1)
    strides = (expr.make("mul", whole.strides[0], classes), *whole.strides[1:])
    return replace(whole, dims=(row_ends, of_class, *whole.dims[2:]), strides=strides)


def store_map(plan: Plan) -> TensorMap:
    """The descriptor by which a consumer stores a chunk of 64 rows of its tile. What lies outside is not written."""
    rows, columns = plan.staging.shape
    return _map(plan, "d", (columns, rows), plan.staging.swizzle, 0)


def _map(plan: Plan, operand: Operand, box: tuple[int, int], swizzle: int, l2_promotion: int) -> TensorMap:
    gemm = plan.gemm
    dtype = gemm.operand_dtype(operand)
    size = DTYPE_BYTES[dtype]
    rows, columns = gemm.matrix(operand)
    # D's rows are what TMA can store wherever it does.
    copy = repacked(gemm, operand) if operand != "d" and plan.load == REPACK else None
    name, ld = (copy.name, copy.ld) if copy else (operand, gemm.leading(operand))
    dims: tuple[Dim, ...] = (columns, rows)
    strides: tuple[Dim, ...] = (expr.make("mul", ld, size),)
    if gemm.batch > 1:
        dims += (gemm.batch,)
        strides += (expr.make("mul", copy.stride if copy else gemm.batch_stride(operand), size),)
    boxes = (*box, 1)[: len(dims)]
    return TensorMap(name, dtype, dims, strides, boxes, (1,) * len(dims), swizzle=swizzle, l2_promotion=l2_promotion)
