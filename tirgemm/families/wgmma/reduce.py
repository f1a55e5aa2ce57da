# mypy: ignore-errors
# ruff: noqa: N812, SIM102
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""The second kernel of a split: adds the parts of k in their order and finishes D, two outputs a thread."""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.wgmma.arguments import WORDS
from tirgemm.families.wgmma.launch import REDUCE_SYMBOL, REDUCE_THREADS, reduce_grid
from tirgemm.gemm import DTYPE_BYTES, DTYPE_NAMES
from tirgemm.workload import activation, combine, later


def reduce_kernel(plan, arguments):
    """The PrimFunc that reads the partial sums of ``plan`` and writes D."""

    @T.prim_func
    def kernel():
        T.func_attr({"global_symbol": REDUCE_SYMBOL})
        args = T.meta_var(arguments())
        T.device_entry()
        block = T.cta_id([args.dim(reduce_grid(plan))])
        thread = T.thread_id([REDUCE_THREADS])
        number: T.let = block * REDUCE_THREADS + thread
        row: T.let = number // (plan.pitch // 2) % args.m
        matrix: T.let = number // (plan.pitch // 2) // args.m
        column: T.let = number % (plan.pitch // 2) * 2
        outputs = T.meta_var(Outputs(plan, args, matrix, row, column))
        if matrix < plan.gemm.batch:
            if column < plan.gemm.n:
                outputs.add_parts()
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

    def add_parts(self):
        plan = self.plan
        loaded = self.part.view("float32")
        for part in range(plan.split):
            place = self.args.partial(part * self.gemm.batch + self.matrix, self.row, self.column)
            T.buffer_store(self.part, self.args.memory["partials"][place // 2], [0])
            for e in range(2):
                T.buffer_store(self.total, self.total[e] + loaded[e] if part else loaded[e], [e])

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
        bias = args.memory["bias"][self.column + e] if gemm.bias else None
        c = None
        if gemm.beta:
            place = args.element("c", self.matrix, self.row, self.column + e)
            c = args.elements_of("c")[place]
        scalars = args.scalars
        value = combine(gemm, self.total[e], c, bias, scalars.get("alpha"), scalars.get("beta"), activate=later)
        # The activation's formula mentions the value several times, so that is computed first.
        T.buffer_store(self.total, value, [e])
        return activation(gemm.act, self.total[e])
