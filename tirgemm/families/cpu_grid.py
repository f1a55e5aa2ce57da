"""``grid_program``: a scheduled TensorIR workload as a CPU Program whose blocks are the turns of its outermost loop.

Public API of families in other packages (docs/adding-a-family.md); no family of ours schedules its kernel so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tirgemm.errors import InvalidConfig
from tirgemm.families.base import Program
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Param, Pointer, Scalar, Size, scalar_args, tensor_args

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

_SYMBOL = "gemm"


def grid_program(gemm: Gemm, schedule: Schedule) -> Program:
    """The Program of ``schedule``, a schedule of ``workload(gemm)`` with one loop around everything else.

    That loop's variable becomes the block index, which the launcher spreads over its threads; turns must not depend on
    each other. Raises InvalidConfig where the root has no such loop, or one whose extent is not a constant.
    """
    from tvm import IRModule, tirx
    from tvm.s_tir import SBlock, SBlockRealize
    from tvm_ffi.structural import structural_map

    func = schedule.mod["main"]
    root = func.body.block
    loop = root.body
    if not isinstance(loop, tirx.For) or not isinstance(loop.extent, tirx.IntImm):
        raise InvalidConfig(
            f"the schedule of {gemm} has no single outermost loop with a constant extent; a CPU kernel's grid is that "
            "loop"
        )
    block = tirx.Var("block", "int32")
    body = structural_map(loop.body, (tirx.Var, lambda var: block if var.same_as(loop.loop_var) else var))
    inner = SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    taken = tirx.PrimFunc(
        [*func.params, block],
        SBlockRealize(func.body.iter_values, func.body.predicate, inner),
        func.ret_type,
        func.attrs,
    ).with_attr("global_symbol", _SYMBOL)
    kernel = KernelLaunch(_SYMBOL, _params(gemm), grid=(int(loop.extent), 1, 1))
    return Program(IRModule({_SYMBOL: taken}), Launch(tensor_args(gemm), scalar_args(gemm), (kernel,)))


def _params(gemm: Gemm) -> tuple[Param, ...]:
    """The parameters of ``workload(gemm)``, in order."""
    tensors = [Pointer(tensor.name) for tensor in tensor_args(gemm)]
    scalars = [Scalar(scalar.name) for scalar in scalar_args(gemm)]
    sizes = [Size(gemm.m_dim)] if isinstance(gemm.m, Range) else []
    return (*tensors, *scalars, *sizes)
