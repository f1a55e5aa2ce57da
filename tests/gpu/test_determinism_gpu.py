"""Deterministic kernels give the same bits at every launch, whatever else runs and however late their blocks are.

The definitions' test: 100 launches beside a competing kernel and with random delays per block. Kernels of every family
that splits k cover every way to schedule, to reduce, to load and to store; a split-K that adds in order of arrival must
fail. That altered sources compile is tested without a GPU (``tests/verification``).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tests.gpu.disturbance import Competitor, differing, outputs
from tests.verification.covering_cases import SPLITTING, deterministic_cases
from tirgemm.artifact import Contents, Trust, load, pack
from tirgemm.artifact.sign import Signer
from tirgemm.config import Config
from tirgemm.detect import devices
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES
from tirgemm.launch import KernelLaunch, Launch, Pointer, scalar_args, tensor_args
from tirgemm.timings import Timings
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.driver.nvrtc import compile_source
from tirgemm.tuning.verify.plan import GemmTest
from tirgemm.tuning.workbench import Workbench
from verification.alterations import DELAY, LATE, altered
from verification.altered import altered_bench, with_alteration
from verification.cases import Case

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch in ARCHITECTURES]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason=f"this machine has no GPU of {', '.join(ARCHITECTURES)}"),
]

_ANY = Gemm.parse("64x64x64:f16:nt")
LAUNCHES = 100
# How the source of a kernel is altered: not at all, blocks that start late, warps that are late everywhere.
ALTERATIONS = ("", LATE, DELAY)

# D += a part of A B for each of 32 parts of k, by whichever block comes first.
ARRIVAL = """
__device__ float half_at(const unsigned short* p) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(*p));
  return f;
}
extern "C" __global__ void clear(float* d) {
  d[blockIdx.x * 256 + threadIdx.x] = 0;
}
extern "C" __global__ void arrive(const unsigned short* a, const unsigned short* b, float* d) {
  int part = blockIdx.x / 256, row = blockIdx.x % 256, column = threadIdx.x;
  float sum = 0;
  for (int k = part * 256; k < part * 256 + 256; ++k)
    sum += half_at(a + row * 8192 + k) * half_at(b + k * 256 + column);
  atomicAdd(d + row * 256 + column, sum);
}
"""


def deterministic() -> list[Case]:
    """The cases of every family that splits k on this GPU."""
    return [
        case
        for family in map(family_named, SPLITTING)
        if family.supports(_ANY, GPUS[0]) is None
        for case in deterministic_cases(family, GPUS[0])
    ]


CASES = deterministic() if GPUS else []
Builds = dict[tuple[Case, str], "Future[Binary]"]


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with altered_bench(GPUS[0], processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> Builds:
    """Every case in every alteration, all begun at once."""
    return {
        (case, alteration): bench.build(case.gemm, with_alteration(case.config, alteration))
        for case in CASES
        for alteration in ALTERATIONS
    }


@pytest.fixture(scope="module")
def gpu() -> Any:
    from tirgemm.tuning.driver.cuda import Gpu

    return Gpu(GPUS[0])


@pytest.fixture(scope="module")
def backend(gpu: Any) -> Any:
    from tirgemm.tuning.verify.cuda import CudaBackend

    return CudaBackend(gpu)


@pytest.fixture(scope="module")
def competitor(gpu: Any) -> Competitor:
    return Competitor(gpu)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.config.family} {case.key}" for case in CASES])
def test_disturbed_launches_give_the_same_bits(
    bench: Workbench, builds: Builds, gpu: Any, backend: Any, competitor: Competitor, case: Case
) -> None:
    problem = backend.prepare(GemmTest(case.gemm, case.gemm.m_max, "normal", 3))
    first: Any = None
    for alteration in ALTERATIONS:
        config = with_alteration(case.config, alteration)
        package = bench.package(case.gemm, config, builds[case, alteration].result())
        kernel = load(package, trust=Trust.of(bench.signer.public))
        if first is None:
            first = next(outputs(gpu, backend, problem, kernel.raw, None, 1))
            assert np.unique(first).size > 100
        actual = differing(outputs(gpu, backend, problem, kernel.raw, competitor, LAUNCHES), first)
        assert actual == 0, f"{actual} of {LAUNCHES} launches of {case.config} differ ({alteration or 'as it is'})"
        kernel.close()


def test_adding_in_order_of_arrival_fails(gpu: Any, backend: Any, competitor: Competitor) -> None:
    gemm = Gemm.parse("256x256x8192:f16:nn:out=f32")
    signer = Signer.generate()
    a, b, d = (Pointer(name) for name in "abd")
    kernels = (
        KernelLaunch("clear", (d,), (256, 1, 1), (256, 1, 1)),
        KernelLaunch("arrive", (a, b, d), (256 * 32, 1, 1), (256, 1, 1)),
    )
    cubin = compile_source(altered(ARRIVAL, LATE), GPUS[0].arch)
    package = pack(
        Contents(
            gemm=gemm,
            config=Config("hand", ()),
            device=GPUS[0].with_(uuid="", index=0, environment=()),
            launch=Launch(tensor_args(gemm), scalar_args(gemm), kernels),
            binary=cubin.data,
            binary_format="cubin",
            sources={},
            flags=cubin.flags,
            certificate=None,
            timings=Timings(),
        ),
        signer,
    )
    kernel = load(package, trust=Trust.of(signer.public))
    problem = backend.prepare(GemmTest(gemm, 256, "normal", 3))
    first = next(outputs(gpu, backend, problem, kernel.raw, None, 1))
    # It computes the problem: only the last bits of the sums depend on the order.
    assert backend.compare(problem, slice(0, 256), slice(0, 256)).failures == 0
    assert differing(outputs(gpu, backend, problem, kernel.raw, competitor, LAUNCHES), first) > 0
