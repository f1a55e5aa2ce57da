"""A GPU Program's schedule rebuilt for the CPU, to run what it means where there is no GPU.

Thread bindings become loops, shared memory ordinary memory, and copies that overlap take their turn. It shows wrong
indices, guards and epilogues; it cannot show a race or a barrier too few (``verification/emulator/cuda_emulator.py``
can).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from tests.contract.families import cpu_runner
from tirgemm.detect import device
from tirgemm.families.base import Program
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.launch import Launch
from verification.emulator.operands import KernelCall

_OVERLAP = ("software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages")
_ON_BLOCKS = ("tirx.manifest_shared_memory_local_stage", "double_buffer_scope")


def run(program: Program, case: KernelCall) -> np.ndarray:
    """D as (batch, m, n) float64, having checked guards, gaps and inputs."""
    return cpu_runner.run(rebuilt(program), case, device("cpu"))


def rebuilt(program: Program) -> Program:
    """``program`` as serial code: one call of each kernel computes its whole grid."""
    from tvm.script import from_source

    text = program.mod.script()
    text = re.sub(r'T\.thread_binding\((.*?), thread="\w+\.[xyz]"(, annotations=\{[^}]*\})?\)', r"T.serial(\1)", text)
    text = re.sub(r', scope="shared(\.dyn)?"', "", text)
    for name in _OVERLAP:
        text = re.sub(rf'"{name}": (T\.\w+\()?\[[^\]]*\]\)?(, )?', "", text)
    for name in _ON_BLOCKS:
        text = re.sub(rf'"{re.escape(name)}": \d+(, )?', "", text)
    # The launcher passes a block index last, which the loops above make superfluous.
    text = re.sub(r"^(    def \w+\(.*)\):$", r"\1, _block: T.int32):", text, flags=re.MULTILINE)
    kernels = tuple(replace(k, grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0) for k in program.launch.kernels)
    launch = Launch(program.launch.tensors, program.launch.scalars, kernels, program.launch.workspaces)
    config = tuple((name, value) for name, value in program.pass_config if name != "tirx.use_async_copy")
    with quick_tracing():
        return Program(from_source(text), launch, program.pipeline, config)
