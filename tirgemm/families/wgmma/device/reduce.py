# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Split-K reduction kernel: adds the parts of k in a fixed order and finishes D, two outputs a thread.

Where there are many parts, lanes of a block add every so many of them, and the first lane adds what the others have.
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.common.cuda_maths import CUDA_BEFORE_ACTIVATION, cuda_activation
from tirgemm.families.wgmma.device.arguments import WORDS
from tirgemm.families.wgmma.planning.launch import REDUCE_SYMBOL, REDUCE_THREADS, reduce_grid, reduce_lanes
from tirgemm.gemm import DTYPE_BYTES, DTYPE_NAMES
from tirgemm.workload import combine


def reduce_kernel(plan, arguments):
    """The PrimFunc that reads the partial sums of ``plan`` and writes D."""
    lanes = reduce_lanes(plan)
    outputs_of_block = REDUCE_THREADS // lanes

    @T.prim_func
    def kernel():
        T.func_attr({"global_symbol": REDUCE_SYMBOL})
        args = T.meta_var(arguments())
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 1})
        block = T.cta_id([args.dim(reduce_grid(plan))])
        thread = T.thread_id([REDUCE_THREADS])
        lane: T.let = thread // outputs_of_block
        number: T.let = block * outputs_of_block + thread % outputs_of_block
        row: T.let = number // (plan.grid.pitch // 2) % args.m
        matrix: T.let = number // (plan.grid.pitch // 2) // args.m
        column: T.let = number % (plan.grid.pitch // 2) * 2
        # Launched while the parts are still computed.
        T.ptx.griddepcontrol.wait()
        inside: T.let = T.And(matrix < plan.gemm.batch, column < plan.gemm.n)
        outputs = T.meta_var(Outputs(plan, args, matrix, row, column))
        if lanes == 1:
            if inside:
                outputs.add_parts(0, 1)
                outputs.store()
        else:
            shown = T.alloc_shared([2, lanes, outputs_of_block], "float32")
            outputs.clear()
            if inside:
                outputs.add_parts(lane, lanes)
            for e in T.unroll(2):
                shown[e, lane, thread % outputs_of_block] = outputs.total[e]
            T.cuda.cta_sync()
            if T.And(inside, lane == 0):
                for other in T.unroll(lanes - 1):
                    for e in T.unroll(2):
                        outputs.total[e] = outputs.total[e] + shown[e, other + 1, thread % outputs_of_block]
                outputs.store()

    return kernel


@T.meta_class
class Outputs:
    """Two neighbouring outputs of one row."""

    def __init__(self, plan, args, matrix, row, column):
        self.plan, self.gemm, self.args = plan, plan.gemm, args
        self.matrix, self.row, self.column = matrix, row, column
        self.total = T.alloc_local([2], "float32")
        self.part = T.alloc_local([1], WORDS[4])
        self.word = T.alloc_local([1], WORDS[DTYPE_BYTES[plan.gemm.out]])

    def clear(self):
        for e in range(2):
            T.buffer_store(self.total, T.float32(0), [e])

    def add_parts(self, first, stride):
        """Add every ``stride``-th part, from ``first`` on."""
        plan = self.plan
        loaded = self.part.view("float32")
        for turn in range(-(-plan.split // stride)):
            part = first + turn * stride
            certain = (turn + 1) * stride <= plan.split
            with T.If(T.bool(True) if certain else part < plan.split), T.Then():
                place = self.args.partial(part * self.gemm.batch + self.matrix, self.row, self.column)
                T.buffer_store(self.part, self.args.memory["partials"][place // 2], [0])
                for e in range(2):
                    T.buffer_store(self.total, self.total[e] + loaded[e] if turn else loaded[e], [e])

    def store(self):
        dtype = DTYPE_NAMES[self.gemm.out]
        if self.plan.pairs:
            halves = self.word.view(dtype)
            for e in range(2):
                T.buffer_store(halves, T.cast(self.finished(e), dtype), [e])
            place = self.args.element("d", self.matrix, self.row, self.column)
            T.buffer_store(self.args.memory["d"], self.word[0], [place // 2])
            return
        for e in range(2):
            with T.If(self.column + e < self.gemm.n), T.Then():
                place = self.args.element("d", self.matrix, self.row, self.column + e)
                T.buffer_store(self.args.memory["d"], T.cast(self.finished(e), dtype), [place])

    def finished(self, e):
        gemm, args = self.gemm, self.args
        bias = args.elements_of("bias")[self.column + e] if gemm.bias else None
        c = None
        if gemm.beta:
            place = args.element("c", self.matrix, self.row, self.column + e)
            c = args.elements_of("c")[place]
        scalars = args.scalars
        value = combine(
            gemm, self.total[e], c, bias, scalars.get("alpha"), scalars.get("beta"), maths=CUDA_BEFORE_ACTIVATION
        )
        # The activation's formula mentions the value several times, so that is computed first.
        T.buffer_store(self.total, value, [e])
        return cuda_activation(gemm, self.total[e])
