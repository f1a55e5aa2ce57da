"""A config as a Program: one kernel, its grid an expression in m where m is a range."""

from __future__ import annotations

from tirgemm.families.base import Program
from tirgemm.families.simt import barriers
from tirgemm.families.simt.schedule import scheduled
from tirgemm.families.simt.tile_blocks import SYMBOL
from tirgemm.families.simt.tiling import ThreadTiling, grid
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Param, Pointer, Scalar, Size, scalar_args, tensor_args

_PASS_CONFIG: tuple[tuple[str, object], ...] = (
    # It would retype shared tiles as vectors, which cp.async does not match and which hides the scalar stores.
    ("tirx.disable_storage_rewrite", True),
    # NVRTC eliminates common subexpressions itself; TVM's would become kernel parameters.
    ("tirx.disable_cse_tir", True),
)


def program(gemm: Gemm, tiling: ThreadTiling) -> Program:
    """The scheduled module of ``tiling`` and the launch that runs it."""
    tensors = tensor_args(gemm)
    scalars = scalar_args(gemm)
    params: list[Param] = [*(Pointer(t.name) for t in tensors), *(Scalar(s.name) for s in scalars)]
    if isinstance(gemm.m, Range):
        params.append(Size(gemm.m_dim))
    kernel = KernelLaunch(
        symbol=SYMBOL,
        params=tuple(params),
        grid=grid(gemm, tiling),
        block=(tiling.threads, 1, 1),
        shared_bytes=tiling.shared_bytes,
    )
    config = (*_PASS_CONFIG, ("tirx.use_async_copy", True)) if tiling.asynchronous else _PASS_CONFIG
    pipeline = barriers.register() if tiling.barriers == 1 else "s_tir"
    return Program(scheduled(gemm, tiling), Launch(tensors, scalars, (kernel,)), pipeline, config)
