"""Launch of a plan: kernels, grids, workspaces. What each kernel's parameters are, the Program says."""

from __future__ import annotations

from tirgemm import expr
from tirgemm.expr import Dim, make
from tirgemm.families.wgmma.planning.names import REPACK
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.repacking import REPACK_SYMBOL, REPACK_THREADS, copies, repack_grid
from tirgemm.launch import DEPENDENT_LAUNCH, KernelLaunch, Launch, Param, Workspace, scalar_args, tensor_args

SYMBOL = "wgmma_gemm"
REDUCE_SYMBOL = "wgmma_reduce"
REDUCE_THREADS = 256
_FLOAT_BYTES = 4
# A kernel that starts before the one ahead of it in the call has finished, and waits for it by griddepcontrol.
EARLY = (DEPENDENT_LAUNCH,)


def launch(
    plan: Plan, params: tuple[Param, ...], reduce_params: tuple[Param, ...], repack_params: tuple[Param, ...]
) -> Launch:
    """The Launch of ``plan``; a kernel before exists where operands are copied, one behind where k is split."""
    block, cluster = (plan.warpgroups.threads, 1, 1), (plan.cluster.size, 1, 1)
    items = copies(plan.gemm) if plan.load == REPACK else ()
    early = EARLY if items else ()
    kernels = [KernelLaunch(SYMBOL, params, (plan.grid.blocks, 1, 1), block, cluster, plan.memory.nbytes, early)]
    workspaces: tuple[Workspace, ...] = ()
    if plan.cluster.writes_partials:
        kernels.append(
            KernelLaunch(
                REDUCE_SYMBOL, reduce_params, (reduce_grid(plan), 1, 1), (REDUCE_THREADS, 1, 1), attributes=EARLY
            )
        )
        workspaces = (Workspace("partials", make("mul", plan.grid.partial_elements, _FLOAT_BYTES)),)
    if items:
        # Without the attribute: it must not begin before what is ahead in the stream is done with the copies.
        grid = (repack_grid(items, plan.units), 1, 1)
        kernels.insert(0, KernelLaunch(REPACK_SYMBOL, repack_params, grid, (REPACK_THREADS, 1, 1)))
        workspaces += tuple(Workspace(item.name, item.nbytes) for item in items)
    return Launch(tensor_args(plan.gemm), scalar_args(plan.gemm), tuple(kernels), workspaces)


def reduce_lanes(plan: Plan) -> int:
    """Threads that add the parts of one output: more where the parts are many, and so the outputs few."""
    return next(lanes for lanes in (16, 8, 4, 1) if plan.split >= 4 * lanes or lanes == 1)


def reduce_grid(plan: Plan) -> Dim:
    """Blocks of the second kernel: a thread, or as many as there are lanes, for two outputs."""
    outputs = make("mul", plan.gemm.m_dim, plan.gemm.batch * plan.grid.pitch // 2)
    return expr.ceildiv(outputs, REDUCE_THREADS // reduce_lanes(plan))
