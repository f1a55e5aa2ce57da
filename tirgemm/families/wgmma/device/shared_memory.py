# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""The block's shared memory and its barriers."""

from __future__ import annotations

from tvm.backend.cuda.lang.pipeline import MBarrier, Pipeline
from tvm.script import tirx as T

from tirgemm.families.wgmma.planning.copies import COPYING_THREADS
from tirgemm.families.wgmma.planning.tile import SLAB_BYTES
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, WARPGROUP
from tirgemm.gemm import DTYPE_NAMES

# TMA's and wgmma's swizzles repeat every so many bytes.
_ALIGN = 1024


@T.meta_class
class Shared:
    """The block's shared memory and its barriers."""

    def __init__(self, plan):
        pool = T.SMEMPool()
        dtype = DTYPE_NAMES[plan.gemm.dtype]
        self.sums = None
        if plan.cluster.adds_parts:
            # In the place of the stages, whose last use comes before.
            self.sums = pool.alloc((plan.memory.exchanged_bytes // 4,), "float32", align=_ALIGN, layout=None)
            pool.offset = 0
        self.left = pool.alloc((plan.stages, plan.left.elements), dtype, align=_ALIGN, layout=None)
        self.right = pool.alloc((plan.stages, plan.right.elements), dtype, align=_ALIGN, layout=None)
        self.staging = None
        if plan.staging.used:
            shape = (plan.warpgroups.consumers, plan.staging.buffers, MMA_M * plan.staging.chunk)
            self.staging = pool.alloc(shape, DTYPE_NAMES[plan.gemm.out], align=_ALIGN, layout=None)
        if plan.memory.slack_bytes:
            self.slack = pool.alloc((plan.memory.slack_bytes,), "uint8", align=SLAB_BYTES, layout=None)
        # In ping-pong one consumer reads a stage, else all; a stage may hold data for other blocks of the cluster too.
        readers = (1 if plan.warpgroups.pingpong else plan.warpgroups.consumers) * plan.cluster.readers
        # By TMA one thread fills it, by copies every thread of the producer.
        fillers = int(plan.loads.uses_tma) + (COPYING_THREADS if plan.loads.copies else 0)
        self.ring = Pipeline(pool, plan.stages, full="tma", empty="mbar", init_full=fillers, init_empty=readers)
        self.turn = None
        if plan.warpgroups.pingpong:
            self.turn = MBarrier(pool, 2)
            # One arrival from each warp of the other consumer: otherwise that could pass the turn on twice while one of
            # its warps has yet to wait for it.
            self.turn.init(WARPGROUP // 32)
        pool.commit()


def cluster_sync(plan):
    """Wait for every thread of the cluster, and see what they wrote to shared memory."""
    if plan.cluster.size == 1:
        T.evaluate(T.cuda.cta_sync())
        return
    T.evaluate(T.ptx["barrier.cluster.arrive.release.aligned"]())
    T.evaluate(T.ptx["barrier.cluster.wait.acquire.aligned"]())
