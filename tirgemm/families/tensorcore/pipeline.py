"""The loop over steps of k as a pipeline: copies some steps ahead, fragments 16 of k ahead, one barrier a step.

TVM's own pass places its wait before the first read of a step, whichever that is. Then copies into what is read until
that barrier need a second one, or start a step later. Here the wait comes where fragments of the next step are first
read, and its barrier also says that everybody is done with the step before, whose place the next copies take:

    copy steps 0 to S - 2
    wait for step 0, barrier, load fragments 0 of step 0
    for every step
        for every 16 of k of it
            before the last: wait for the next step, barrier
            load the next fragments
            behind the first: copy the step S - 1 ahead
            multiply

Spread, a long step copies the one ahead later and in two: A behind the loads of the last 16 of k but one, B behind
those of the last, each before multiplications that hide it.

Without a second set of registers a step starts with the wait and the barrier, then copies, then loads and multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tirgemm.families.tensorcore.intrinsics import barrier, call

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# Marks the loops: over steps, with the stages; over 16 of k of a step, with the sets of registers.
STEPS, INNER = "tirgemm_stages", "tirgemm_registers"
_COMMIT = """
__forceinline__ __device__ void tirgemm_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
"""
_WAIT = """
__forceinline__ __device__ void tirgemm_wait_{n}() {{
  asm volatile("cp.async.wait_group {n};" ::: "memory");
}}
"""


def pipelined(func: PrimFunc, *, spread: bool) -> PrimFunc:
    """``func`` with its marked loop as a pipeline. What it copies to and loads from has a place for every stage.

    ``spread``: with two sets of registers and three or more 16 of k a step, the operands are copied one by one before
    its later multiplications, not together before the first.
    """
    from tvm.tirx import For
    from tvm_ffi.structural import structural_map

    def made(loop: Any) -> Any:
        return _pipeline(loop, spread) if STEPS in loop.annotations else loop

    return func.with_body(structural_map(func.body, (For, made)))


def _pipeline(loop: Any, spread: bool) -> Any:
    from tvm import tirx

    *copies, inner = loop.body.seq
    *loads, products = inner.body.seq
    stages, registers = int(loop.annotations[STEPS]), int(inner.annotations[INNER])
    steps, deep = loop.extent, inner.extent
    one = tirx.const(1, loop.loop_var.ty.dtype)

    def copy(step: Any, operands: list[Any], certain: bool) -> Any:
        statements = [_with(statement, {loop.loop_var: step}) for statement in operands]
        body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
        return body if certain else tirx.IfThenElse(step < steps, body, None)

    def load(step: Any, k: Any) -> list[Any]:
        return [_with(statement, {loop.loop_var: step, inner.loop_var: k}) for statement in loads]

    def multiply(k: Any) -> list[Any]:
        return [_with(products, {inner.loop_var: k})]

    def wait() -> list[Any]:
        return [call(f"tirgemm_wait_{stages - 2}", _WAIT.format(n=stages - 2)), barrier()]

    def number(value: int, var: Any) -> Any:
        return tirx.const(value, var.ty.dtype)

    commit = call("tirgemm_commit", _COMMIT)
    start: list[Any] = []
    for ahead in range(stages - 1):
        start += [copy(number(ahead, loop.loop_var), copies, ahead < int(steps)), commit]
    step, last = loop.loop_var, int(deep) - 1
    # What is copied behind the loads of which 16 of k.
    places = {0: copies}
    if spread and registers == 2 and last >= len(copies):
        places = {last - len(copies) + at: [statement] for at, statement in enumerate(copies)}
    following = {k: [copy(step + (stages - 1), operands, False)] for k, operands in places.items()}
    following[max(following)].append(commit)
    body: list[Any] = []
    if registers == 1:
        body += [*wait(), *following[0]]
        for k in range(int(deep)):
            at = number(k, inner.loop_var)
            body += [*load(step, at), *multiply(at)]
    else:
        start += [*wait(), *load(number(0, loop.loop_var), number(0, inner.loop_var))]
        for k in range(int(deep)):
            if k == last:
                body += wait()
            body += load(step + one if k == last else step, number((k + 1) % int(deep), inner.loop_var))
            body += following.get(k, [])
            body += multiply(number(k, inner.loop_var))
    # A few steps written out would take more registers than a thread has.
    over = tirx.For(step, loop.min, steps, loop.kind, tirx.SeqStmt(body), None, {"disable_unroll": True})
    return tirx.SeqStmt([*start, over])


def _with(statement: Any, values: dict[Any, Any]) -> Any:
    """``statement`` with values for variables."""
    from tvm.ir import Var
    from tvm_ffi.structural import structural_map

    replace: Callable[[Any], Any] = lambda var: next((v for k, v in values.items() if var.same_as(k)), var)  # noqa: E731
    return structural_map(statement, (Var, replace))
