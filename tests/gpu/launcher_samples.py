"""Kernels for the launcher's GPU tests: the simt family's defaults and some written by hand, with PyTorch operands."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tirgemm.artifact import Contents, Kernel, Signer, Trust, load, pack
from tirgemm.config import Config
from tirgemm.detect import devices
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.launch import KernelLaunch, Launch, Workspace, scalar_args, tensor_args
from tirgemm.timings import Timings

GPUS = [device for device in devices() if device.kind == "cuda"]

SIGNER = Signer.generate()
TRUST = Trust.of(SIGNER.public)
PLAIN = "257x129x65:f16:nt:align=2"

HELPERS = r"""
__device__ float get(const unsigned short* p) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(*p)); return f; }
__device__ void put(unsigned short* p, float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*p) : "f"(f)); }
"""


@cache
def artifact(text: str = PLAIN) -> bytes:
    """The simt family's default for a gemm, built and packed."""
    from tirgemm.tuning.build.compile import build

    gemm = Gemm.parse(text)
    config = FAMILIES["simt"].default(gemm, GPUS[0], "isolated")
    binary = build(gemm, config, GPUS[0])
    return pack(
        binary.contents(gemm, config, GPUS[0]),
        SIGNER,
    )


def by_hand(text: str, source: str, *kernels: KernelLaunch, workspaces: tuple[Workspace, ...] = ()) -> bytes:
    """A kernel written in CUDA, packed."""
    from tirgemm.tuning.driver.nvrtc import compile_source

    gemm = Gemm.parse(text)
    cubin = compile_source(HELPERS + source, GPUS[0].arch)
    return pack(
        Contents(
            gemm=gemm,
            config=Config("hand", ()),
            device=GPUS[0],
            launch=Launch(tensor_args(gemm), scalar_args(gemm), kernels, workspaces),
            binary=cubin.data,
            binary_format="cubin",
            sources={},
            flags=cubin.flags,
            certificate=None,
            timings=Timings(),
        ),
        SIGNER,
    )


def loaded(data: bytes) -> Kernel:
    return load(data, trust=TRUST)


def operands(gemm: Gemm, m: int | None = None, device: str = "cuda:0", seed: int = 0) -> dict[str, Any]:
    """Small integers, so that every sum is exact."""
    generator = torch.Generator(device).manual_seed(seed)
    m = m or gemm.m_max
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[gemm.dtype]
    shapes = {"a": (m, gemm.k), "b": (gemm.k, gemm.n), "c": (m, gemm.n), "bias": (gemm.n,)}
    transposed = {"a": gemm.trans_a, "b": gemm.trans_b}
    return {
        name: torch.randint(
            -2, 3, shapes[name][::-1] if transposed.get(name) else shapes[name], device=device, generator=generator
        ).to(dtype)
        for name in gemm.inputs
    }


def expected(gemm: Gemm, tensors: dict[str, Any], alpha: float = 1.0, beta: float = 0.0) -> Any:
    a, b = tensors["a"].double(), tensors["b"].double()
    product = alpha * ((a.T if gemm.trans_a else a) @ (b.T if gemm.trans_b else b))
    if "c" in tensors:
        product = product + beta * tensors["c"].double()
    return product + tensors["bias"].double() if "bias" in tensors else product


def check(kernel: Kernel, m: int | None = None, device: str = "cuda:0", seed: int = 0) -> None:
    tensors = operands(kernel.gemm, m, device, seed)
    assert torch.equal(kernel(**tensors).double(), expected(kernel.gemm, tensors))


def zeros(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.zeros(*shape, dtype=dtype, device="cuda")
