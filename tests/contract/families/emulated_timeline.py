"""Timelines of ``wgmma`` kernels on the CPU emulator: the order of things as a GPU's would be recorded, and no times.

The emulator's clocks count its steps, so that a recording of one says ``emulator``, not ``device``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tirgemm.analysis.timeline.recording import Recording
from tirgemm.expr import evaluate
from tirgemm.families.common.ring_buffer import TIMELINE
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.program import timed_program
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.cuda import checked_launch, lower
from tirgemm.tuning.timed_kernel import TimedKernel, recorded
from verification.emulator.operands import KernelCall, decode
from verification.emulator.wgmma_on_cpu import Kernels

_ARCH = "sm_90a"
_ENVIRONMENT = {"device": f"emulator of {_ARCH}"}


def emulated_timelines(
    plan: Plan, slots: int, call: KernelCall, seeds: Iterable[int]
) -> Iterator[tuple[np.ndarray, Recording]]:
    """D as (batch, m, n) float64 and the recording of every block, under each of the schedules that ``seeds`` mean.

    The plan's rules are not asked for, which mind that small problems keep few SMs busy.
    """
    timed = timed_program(plan, slots)
    host, source = lower(timed.program, _ARCH)
    launch = checked_launch(timed.program, host)
    kernel = TimedKernel(plan.gemm, plan.config, timed, Binary(b"", "cubin", launch, {"kernel.cu": source}, ()))
    blocks = evaluate(timed.blocks, call.m)
    with (
        tempfile.TemporaryDirectory(prefix="tirgemm-timeline-") as folder,
        Kernels(source, launch, Path(folder)) as run,
    ):
        for seed in seeds:
            outputs = run.outputs(call, seed)
            d = decode(outputs["d"], plan.gemm.out)
            words = outputs[TIMELINE].view(np.uint32)
            recording = recorded(kernel, call.m, words, "emulator", _ENVIRONMENT, blocks=blocks)
            yield (d if d.ndim == 3 else d[None]), recording
