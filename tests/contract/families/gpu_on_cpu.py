"""A GPU Program's schedule rebuilt for the CPU, to run what it means where there is no GPU.

Thread bindings become loops, shared memory ordinary memory, and copies that overlap take their turn. It shows wrong
indices, guards and epilogues; it cannot show a race or a barrier too few (``verification/emulator/cuda_emulator.py``
can).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from tests.contract.families import cpu_runner
from tirgemm import detect
from tirgemm.device import Device
from tirgemm.families.base import Program
from tirgemm.launch import Launch
from tirgemm.tuning.build import cpu
from tirgemm.tuning.build.binary import Binary
from verification.emulator.operands import KernelCall

if TYPE_CHECKING:
    from tvm.target import Target

# What says that steps overlap or that a copy passes through registers; it says nothing of what is computed.
_OVERLAP = {
    "software_pipeline_stage",
    "software_pipeline_order",
    "software_pipeline_async_stages",
    "tirx.manifest_shared_memory_local_stage",
    "double_buffer_scope",
}
# Kinds of loops, as TVM numbers them. What is unrolled is a loop again: it means the same, and compiles in less time.
_SERIAL, _UNROLLED, _THREAD_BINDING = 0, 3, 4


def run(program: Program, case: KernelCall) -> np.ndarray:
    """D as (batch, m, n) float64, having checked guards, gaps and inputs."""
    return cpu_runner.call(compiled(program), case)


def compiled(program: Program) -> Binary:
    """What ``program`` means for this machine, little optimised: it runs for milliseconds."""
    made, optimised = rebuilt(program), cpu.llvm_target

    def target(device: Device) -> Target:
        from tvm.target import Target

        plain = {"kind": "llvm", **optimised(device).attrs, "opt-level": 1}
        return Target(plain | {"host": plain})

    with patch.object(cpu, "llvm_target", target):
        return cpu.compile_program(made, detect.device("cpu"))


def rebuilt(program: Program) -> Program:
    """``program`` as serial code: one call of each kernel computes its whole grid."""
    import tvm

    mod = tvm.ir.load_json(_serial(tvm.ir.save_json(program.mod)))
    mod = tvm.IRModule({var: _with_block(function) for var, function in mod.functions.items()})
    kernels = tuple(replace(k, grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0) for k in program.launch.kernels)
    launch = Launch(program.launch.tensors, program.launch.scalars, kernels, program.launch.workspaces)
    config = tuple((name, value) for name, value in program.pass_config if name != "tirx.use_async_copy")
    return Program(mod, launch, program.pipeline, config)


def _serial(text: str) -> str:
    """A module as TVM saves it, a list of nodes that name others by their places, in serial loops over plain memory."""
    module = json.loads(text)
    nodes: list[dict[str, Any]] = module["nodes"]
    (nothing,) = (place for place, node in enumerate(nodes) if node["type"] == "None")
    nodes.append({"type": "ffi.String", "data": "global"})
    strings = {place: node["data"] for place, node in enumerate(nodes) if node["type"] == "ffi.String"}
    for node in nodes:
        data: Any = node.get("data")
        if node["type"] == "tirx.For" and data["kind"] in (_UNROLLED, _THREAD_BINDING):
            data |= {"kind": _SERIAL, "thread_binding": nothing}
        elif node["type"] == "tirx.BufferType" and strings[data["storage_scope"]].startswith("shared"):
            data["storage_scope"] = len(nodes) - 1
        elif node["type"] == "ffi.Map":
            pairs = zip(data[::2], data[1::2], strict=True)
            node["data"] = [place for pair in pairs if strings.get(pair[0]) not in _OVERLAP for place in pair]
    return json.dumps(module)


def _with_block(function: Any) -> Any:
    """``function`` with the block index that the launcher passes last, which the loops make superfluous."""
    from tvm import tirx

    params = [*function.params, tirx.Var("_block", "int32")]
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs)
