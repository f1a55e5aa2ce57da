"""Lowering pipeline with one barrier per k step, for multi-stage shared memory.

TVM puts a barrier between a step's reads of a tile and the next writes to any tile. Where the tiles take turns, what a
step overwrites was read a step before, and the barrier that this step begins with has already waited for those reads:
it is the only one that is needed. Copies by cp.async must then follow that barrier, so they move behind it, and one
group of copies fewer is under way while it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import IRModule

PIPELINE = "simt_one_barrier"
_SYNC = "tirx.tvm_storage_sync"
_COMMIT, _WAIT, _INFLIGHT = "async_commit_queue_scope", "async_wait_queue_scope", "async_wait_inflight_count"


def register() -> str:
    """Make the pipeline known to TVM in this process, and return its name."""
    from tvm.tirx import compilation_pipeline

    compilation_pipeline.PIPELINE_MAP.setdefault(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[Any, Any, Any]:
    import tvm
    from tvm import tirx

    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")

    def lower_with_one_barrier(mod: IRModule, _: Any) -> IRModule:
        return one_barrier(lower(mod))

    made = tvm.transform.module_pass(lower_with_one_barrier, opt_level=0)
    return made, finalize_host, finalize_device


def one_barrier(mod: IRModule) -> IRModule:
    """``mod``, lowered, with one barrier in each step of its pipelined loops."""
    from tvm import IRModule, tirx
    from tvm_ffi.structural import structural_map

    functions = {
        var: function.with_body(structural_map(function.body, (tirx.For, _loop)))
        for var, function in mod.functions.items()
    }
    return IRModule(functions, attrs=mod.attrs)


def _loop(loop: Any) -> Any:
    from tvm import tirx

    body = _asynchronous(_statements(loop.body)) or _through_registers(_statements(loop.body))
    if body is None:
        return loop
    new = _sequence(body)
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, new, loop.thread_binding, loop.annotations)


def _through_registers(body: list[Any]) -> list[Any] | None:
    """A step that computes between two barriers and then stores: without the second."""
    barriers = [number for number, statement in enumerate(body) if _is_barrier(statement)]
    if len(barriers) != 2:
        return None
    return [statement for number, statement in enumerate(body) if number != barriers[1]]


def _asynchronous(body: list[Any]) -> list[Any] | None:
    """A step that copies, waits, synchronises and computes: waiting first, with its copies behind the barrier."""
    from tvm import tirx

    body = [statement for statement in body if not _is_barrier(statement)]
    if [getattr(statement, "attr_key", None) for statement in body] != [_COMMIT, _WAIT]:
        return None
    copies, wait = body
    inflight = wait.body
    barrier, *computation = _statements(inflight.body)
    if inflight.attr_key != _INFLIGHT or not _is_barrier(barrier):
        return None
    inside = [statement for statement in _statements(copies.body) if not _is_barrier(statement)]
    copies = tirx.AttrStmt(copies.node, _COMMIT, copies.value, _sequence(inside))
    order = _sequence([barrier, copies, *computation])
    fewer = tirx.AttrStmt(inflight.node, _INFLIGHT, inflight.value - 1, order)
    return [tirx.AttrStmt(wait.node, _WAIT, wait.value, fewer)]


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if type(body).__name__ == "SeqStmt" else [body]


def _sequence(body: list[Any]) -> Any:
    from tvm import tirx

    return tirx.SeqStmt(body) if len(body) > 1 else body[0]


def _is_barrier(statement: Any) -> bool:
    if type(statement).__name__ != "Evaluate":
        return False
    return getattr(getattr(statement.value, "op", None), "name", "") == _SYNC
