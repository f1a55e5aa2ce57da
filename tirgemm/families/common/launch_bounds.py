"""Launch bounds: minimum resident blocks, which cap registers per thread.

No schedule primitive writes them. Without them ptxas may spill a few registers to reach an occupancy that nobody asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_RESIDENT = "tirx.launch_bounds_min_blocks_per_sm"


def bounded(func: PrimFunc, resident: int) -> PrimFunc:
    """``func``, one kernel, with ``resident`` blocks an SM."""
    from tvm import tirx
    from tvm_ffi.structural import structural_map

    def bound(loop: Any) -> Any:
        if loop.thread_binding is None or loop.thread_binding.thread_tag != "blockIdx.x":
            return loop
        body = tirx.AttrStmt(tirx.IntImm("int32", 0), _RESIDENT, tirx.IntImm("int32", resident), loop.body)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)

    return func.with_body(structural_map(func.body, (tirx.For, bound)))
