"""Every code path of wgmma compiles for sm_90a: no spill, nothing serialised, resources as the rules predict."""

from __future__ import annotations

import re

import pytest

from tirgemm.families.base import require_valid
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wgmma.plan import Plan
from tirgemm.families.wgmma.program import program
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import TensorMap
from tirgemm.tuning.compile import cuda
from tirgemm.tuning.compile.nvrtc import Cubin, compile_source

H200 = named_device("sm_90a")
# What ptxas says where it runs wgmmas one by one.
SERIALISED = re.compile(r"\(C751\d\)")
# tile_m, tile_n, tile_k, stages, schedule, cluster_m, cluster_n, split, epilogue, order, group, l2_promotion
CASES = [
    ("8192x8192x8192:f16:nt", (128, 192, 64, 4, "pingpong", 2, 1, 1, "tma", "m", 8, 2)),
    ("4096x4096x4096:f16:nn", (256, 192, 64, 3, "cooperative", 1, 2, 1, "tma", "n", 8, 3)),
    ("1..8192x1032x1024:bf16:tt:lda=8192:batch=2:alpha:beta:bias:act=silu", (128, 256, 64, 4, "cooperative", 2, 1, 1, "tma", "m", 8, 2)),
    ("2000x4097x4104:f16:tt:beta:act=gelu", (128, 96, 64, 4, "pingpong", 1, 1, 1, "staged", "m", 4, 2)),
    ("700x4001x4096:f16:nt:bias:act=gelu_tanh", (192, 192, 64, 4, "cooperative", 1, 1, 1, "direct", "m", 4, 0)),
    ("1..64x576x7168:f16:nt:batch=2:alpha:beta:bias:out=f32", (64, 64, 128, 4, "cooperative", 1, 1, 4, "direct", "m", 1, 2)),
]  # fmt: skip


def built(text: str, knobs: tuple[object, ...]) -> tuple[Plan, str, Cubin]:
    gemm = Gemm.parse(text)
    cut = Plan(gemm, H200.units, *knobs)  # type: ignore[arg-type]
    require_valid(Wgmma(), gemm, cut.config, H200)
    written = program(cut)
    host, source = cuda.lower(written, H200.arch)
    launch = cuda.checked_launch(written, host)
    maps = [p.name for p in launch.kernels[0].params if isinstance(p, TensorMap)]
    assert sorted(maps) == ["a", "b", *(["d"] if cut.epilogue == "tma" else [])]
    return cut, source, compile_source(source, H200.arch)


@pytest.mark.parametrize(("text", "knobs"), CASES, ids=[text for text, _ in CASES])
def test_path_compiles_without_spills_or_serialised_wgmmas(text: str, knobs: tuple[object, ...]) -> None:
    cut, source, cubin = built(text, knobs)
    assert not SERIALISED.search(cubin.log), cubin.log
    kernel = cubin.resources["wgmma_gemm_kernel"]
    assert kernel.spill_bytes == 0
    assert kernel.stack_bytes == 0
    # The launch's dynamic shared memory starts where TMA's and wgmma's swizzles do: nothing static lies before it.
    assert kernel.shared_bytes == 0
    assert kernel.registers * cut.threads <= H200.limits.registers_per_sm
    given = 128 * (cut.producer_registers + cut.consumers * cut.consumer_registers)
    assert given <= kernel.registers * cut.threads
    assert source.count("setmaxnreg_inc") >= 1
    assert ("wgmma_reduce_kernel" in cubin.resources) == (cut.split > 1)


def test_a_serialised_kernel_is_noticed() -> None:
    text, knobs = "4096x4096x4096:f16:nt", (128, 128, 64, 4, "cooperative", 1, 1, 1, "tma", "m", 8, 2)
    _, source, _ = built(text, knobs)
    # The accumulators are used while wgmmas write them.
    wait = "tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1();"
    place = source.rindex(wait)
    mutant = source[:place] + "acc_ptr[0] += 1.0f; " + source[place:]
    assert SERIALISED.search(compile_source(mutant, H200.arch).log)
