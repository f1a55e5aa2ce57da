"""Kernels of a few lines in TIR, with what they do to memory known by hand."""

from __future__ import annotations

from typing import Any

from tirgemm.families.base import Program
from tirgemm.launch import KernelLaunch, Launch, Pointer, TensorArg

SIZE = 1 << 16


def program(body: str, grid: int = 2, threads: int = 64, shared: int = 4096, dtype: str = "float32") -> Program:
    """A kernel over tensors ``a`` and ``d`` of ``SIZE`` elements and a shared buffer ``s``: ``body`` for block ``bx``
    and thread ``tx``."""
    from tvm.script import from_source

    lines = "\n".join(" " * 24 + line for line in body.strip("\n").splitlines())
    mod: Any = from_source(
        f"""
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer(({SIZE},), "{dtype}"), d: T.Buffer(({SIZE},), "{dtype}")):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
        with T.sblock("root"):
            s = T.sblock_alloc_buffer(({shared},), "{dtype}", scope="shared")
            for bx in T.thread_binding({grid}, thread="blockIdx.x"):
                for tx in T.thread_binding({threads}, thread="threadIdx.x"):
                    with T.sblock("all"):
                        T.reads(a[0:{SIZE}])
                        T.writes(d[0:{SIZE}])
{lines}
"""
    )
    short = {"float32": "f32", "float16": "f16", "int32": "i32"}[dtype]
    tensors = tuple(TensorArg(name, short, (SIZE,), (1,), 16, name == "d") for name in "ad")
    kernel = KernelLaunch("main", (Pointer("a"), Pointer("d")), (grid, 1, 1), (threads, 1, 1))
    config = (("tirx.disable_storage_rewrite", True), ("tirx.disable_cse_tir", True))
    return Program(mod, Launch(tensors, (), (kernel,)), "s_tir", config)
