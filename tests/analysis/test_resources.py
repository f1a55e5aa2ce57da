"""Resources of a kernel and its occupancy: against ptxas, the vendor's calculator and plain counting."""

from __future__ import annotations

import random
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

from tirgemm.analysis.resources import Resources, coverage, occupancy_of, resources_of, waves_of
from tirgemm.analysis.sass.cubin import kernels
from tirgemm.analysis.sass.disassembler import disassembly, nvdisasm
from tirgemm.analysis.sass.program import disassemble
from tirgemm.errors import AnalysisFailed, InvalidDevice
from tirgemm.expr import M, make
from tirgemm.families import family_named, supporting
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES, CLUSTERS_OF_H200, named_device, resident_clusters
from tirgemm.launch import KernelLaunch
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.driver.nvrtc import Cubin, compile_source, include_folders

H200 = named_device("sm_90a")

# Ninety-six sums in 32 registers spill; an array indexed at run time lies in local memory without being a spill.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float* a, float* b) {
  float v[96];
  #pragma unroll
  for (int i = 0; i < 96; i++) v[i] = a[i * 1024 + threadIdx.x];
  for (int k = 0; k < 100; k++) {
    #pragma unroll
    for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i * 7 + 1) % 96] + a[k];
  }
  #pragma unroll
  for (int i = 0; i < 96; i++) b[i * 1024 + threadIdx.x] = v[i];
}
extern "C" __global__ void indexes(const int* a, float* b) {
  float v[32];
  for (int i = 0; i < 32; i++) v[i] = b[i];
  for (int i = 0; i < 32; i++) v[a[i] & 31] += i;
  for (int i = 0; i < 32; i++) b[i] = v[i];
}
extern "C" __global__ void shares(float* a) {
  __shared__ float fixed[300];
  extern __shared__ float more[];
  fixed[threadIdx.x] = more[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = fixed[threadIdx.x ^ 1] + more[threadIdx.x ^ 2];
}
"""


@lru_cache(maxsize=4)
def planted(arch: str) -> Cubin:
    return compile_source(SPILLING, arch)


def read(cubin: bytes) -> dict[str, Resources]:
    return resources_of(cubin, disassemble(cubin))


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_cubin_says_what_ptxas_said(arch: str) -> None:
    cubin = planted(arch)
    actual = read(cubin.data)
    assert set(actual) == set(cubin.resources)
    for name, said in cubin.resources.items():
        own = actual[name]
        assert (own.registers, own.stack_bytes, own.shared_bytes) == (
            said.registers,
            said.stack_bytes,
            said.shared_bytes,
        )
        assert (own.spill_store_bytes, own.spill_load_bytes) == (said.spill_store_bytes, said.spill_load_bytes)


def test_planted_spill_is_seen_and_told_from_an_indexed_array() -> None:
    actual = read(planted("sm_90a").data)
    assert actual["spills"].spill_bytes > 0
    assert actual["spills"].local_store_bytes == actual["spills"].local_load_bytes == 0
    assert actual["indexes"].spill_bytes == 0
    assert actual["indexes"].local_store_bytes > 0
    assert actual["indexes"].local_load_bytes > 0
    assert actual["shares"].shared_bytes == 1200
    assert actual["shares"].barriers == 1
    assert actual["shares"].stack_bytes == 0


_BEFORE_HOPPER = {"sm_80": "simt", "sm_86": "wmma", "sm_89": "mma"}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_disassembly_is_all_that_the_disassembler_tells(arch: str, tmp_path: Path) -> None:
    """Of every family's kernel once before Hopper, and on it."""
    gemm, device = Gemm.parse("200x264x96:f16:nn:bias"), named_device(arch)
    families = [f for f in supporting(gemm, device) if arch == "sm_90a" or f.name == _BEFORE_HOPPER[arch]]
    assert families
    made = [build(gemm, family.default(gemm, device, "sustained"), device).data for family in families]
    for cubin in (planted(arch).data, *made):
        file = tmp_path / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([nvdisasm(), "-c", "-g", str(file)], capture_output=True, text=True, check=True)
        assert disassembly(cubin) == done.stdout


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("simt", "1024x1024x1024:f16:nt"),
        ("wmma", "200x264x96:bf16:nn:bias"),
        ("mma", "64x2112x7168:f16:nt"),
        ("wgmma", "16x2112x7168:bf16:nt:bias"),
    ],
)
def test_kernels_of_families_take_what_their_build_reports(family: str, text: str) -> None:
    gemm = Gemm.parse(text)
    binary = build(gemm, family_named(family).default(gemm, H200, "sustained"), H200)
    actual = read(binary.data)
    main = next(actual[kernel.symbol] for kernel in binary.launch.kernels if "gemm" in kernel.symbol)
    assert main.registers == binary.resources["registers"]
    assert sum(r.spill_bytes for r in actual.values()) == binary.resources["spill_bytes"] == 0
    for kernel in binary.launch.kernels:
        occupancy = occupancy_of(kernel, actual[kernel.symbol], H200)
        assert 0 < occupancy.share <= 1


# -- occupancy -------------------------------------------------------------------------------------


def taking(registers: int, shared: int = 0) -> Resources:
    return Resources("k", registers, 0, 0, 0, 0, 0, shared, 1)


# (architecture, threads, registers, dynamic and static shared) -> blocks, warps' share, limit: the vendor's calculator.
@pytest.mark.parametrize(
    ("arch", "threads", "registers", "dynamic", "static", "blocks", "share", "bound"),
    [
        ("sm_90a", 256, 128, 8320, 0, 2, 0.25, ("registers",)),
        ("sm_90a", 256, 32, 0, 0, 8, 1.0, ("threads", "registers")),
        ("sm_90a", 384, 168, 229488, 0, 1, 0.1875, ("registers", "shared")),
        ("sm_90a", 128, 40, 49152, 0, 4, 0.25, ("shared",)),
        ("sm_90a", 32, 16, 0, 0, 32, 0.5, ("blocks",)),
        ("sm_90a", 96, 168, 0, 0, 4, 0.1875, ("registers",)),
        ("sm_80", 256, 64, 32768, 0, 4, 0.5, ("registers", "shared")),
        ("sm_80", 128, 32, 0, 16384, 9, 0.5625, ("shared",)),
        ("sm_86", 256, 40, 0, 0, 6, 1.0, ("threads", "registers")),
        ("sm_86", 32, 16, 0, 0, 16, 1 / 3, ("blocks",)),
        ("sm_89", 128, 96, 24576, 8192, 3, 0.25, ("shared",)),
    ],
)
def test_occupancy_is_the_calculators_and_names_its_limit(
    arch: str,
    threads: int,
    registers: int,
    dynamic: int,
    static: int,
    blocks: int,
    share: float,
    bound: tuple[str, ...],
) -> None:
    launch = KernelLaunch("k", (), block=(threads, 1, 1), shared_bytes=dynamic)
    actual = occupancy_of(launch, taking(registers, static), named_device(arch))
    assert (actual.blocks, actual.bound_by) == (blocks, bound)
    assert actual.share == pytest.approx(share)


def test_occupancy_is_that_of_the_vendors_header(tmp_path: Path) -> None:
    """``cuda_occupancy.h``, compiled, against ours over random kernels."""
    compiler = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler to build cuda_occupancy.h with")
    (tmp_path / "occupancy.cc").write_text(CALCULATOR)
    program = tmp_path / "occupancy"
    command = [compiler, "-w", f"-I{include_folders()[0]}", "-o", str(program), str(tmp_path / "occupancy.cc")]
    subprocess.run(command, check=True)
    rng = random.Random(5)
    cases = []
    for _ in range(2000):
        device = named_device(rng.choice(("sm_80", "sm_86", "sm_89", "sm_90a")))
        threads = rng.choice((32, 64, 96, 128, 160, 256, 384, 512, 1000, 1024, rng.randint(1, 1024)))
        static, dynamic = rng.choice((0, 1, 1200, 16384)), rng.choice((0, 4096, 49152, 65537, 100000, 164000, 200000))
        cases.append((device, threads, rng.randint(16, 255), static, dynamic, rng.randint(0, 16)))
    lines = []
    for device, threads, registers, static, dynamic, barriers in cases:
        limits, (major, minor) = device.limits, ARCHITECTURES[device.arch].capability
        fields = (
            major,
            minor,
            limits.threads_per_block,
            limits.threads_per_sm,
            limits.registers_per_sm,
            limits.shared_per_sm,
            limits.shared_per_block,
            limits.shared_reserved_per_block,
            device.units,
            threads,
            registers,
            static,
            dynamic,
            barriers,
        )
        lines.append(" ".join(map(str, fields)))
    done = subprocess.run([str(program)], input="\n".join(lines), check=True, capture_output=True, text=True)
    expected = [int(word) for word in done.stdout.split()]
    actual = []
    for device, threads, registers, static, dynamic, barriers in cases:
        launch = KernelLaunch("k", (), block=(threads, 1, 1), shared_bytes=dynamic)
        taken = Resources("k", registers, 0, 0, 0, 0, 0, static, barriers)
        try:
            actual.append(occupancy_of(launch, taken, device).blocks)
        except AnalysisFailed:
            actual.append(0)
    wrong = [(case, e, f) for case, e, f in zip(cases, expected, actual, strict=True) if e != f]
    assert not wrong, wrong[:3]
    assert len(set(expected)) > 8


CALCULATOR = r"""
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  cudaOccDeviceProp p;
  cudaOccFuncAttributes a;
  cudaOccDeviceState s;
  cudaOccResult r;
  int threads;
  size_t dynamic;
  while (std::scanf("%d %d %d %d %d %zu %zu %zu %d %d %d %zu %zu %d", &p.computeMajor, &p.computeMinor,
                    &p.maxThreadsPerBlock,
                    &p.maxThreadsPerMultiprocessor, &p.regsPerMultiprocessor, &p.sharedMemPerMultiprocessor,
                    &p.sharedMemPerBlockOptin, &p.reservedSharedMemPerBlock, &p.numSms, &threads, &a.numRegs,
                    &a.sharedSizeBytes, &dynamic, &a.numBlockBarriers) == 14) {
    p.warpSize = 32;
    p.regsPerBlock = p.regsPerMultiprocessor;
    p.sharedMemPerBlock = 49152;
    a.maxThreadsPerBlock = p.maxThreadsPerBlock;
    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    a.maxDynamicSharedSizeBytes = p.sharedMemPerBlockOptin - a.sharedSizeBytes;
    s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, dynamic) != CUDA_OCC_SUCCESS) return 1;
    std::printf("%d\n", r.activeBlocksPerMultiprocessor);
  }
}
"""


def test_kernel_of_which_no_block_fits_is_refused_with_its_limit() -> None:
    launch = KernelLaunch("big", (), block=(1024, 1, 1))
    with pytest.raises(AnalysisFailed, match=r"no block of big fits .* 72 registers.*bound by registers"):
        occupancy_of(launch, taking(72), H200)


# -- waves -----------------------------------------------------------------------------------------


def test_waves_tail_and_loss() -> None:
    launch = KernelLaunch("k", (), grid=(32, 32, 1), block=(256, 1, 1))
    waves = waves_of(launch, occupancy_of(launch, taking(128), H200), H200)
    assert (waves.items, waves.slots, waves.turns, waves.tail) == (1024, 264, 4, 232)
    assert waves.waves == pytest.approx(1024 / 264)
    assert waves.loss == pytest.approx(1 - 1024 / (4 * 264))
    assert waves.idle_units == 0


def test_one_block_more_than_the_slots_costs_a_turn() -> None:
    for blocks, turns, tail in ((132, 1, 132), (133, 2, 1), (1, 1, 1), (264, 2, 132)):
        launch = KernelLaunch("k", (), grid=(blocks, 1, 1), block=(384, 1, 1), shared_bytes=200 * 1024)
        waves = waves_of(launch, occupancy_of(launch, taking(168), H200), H200)
        assert (waves.turns, waves.tail) == (turns, tail)


@pytest.mark.parametrize(
    ("cluster", "clusters", "idle"),
    [(2, 66, 0), (3, 39, 15), (4, 30, 12), (5, 22, 22), (6, 17, 30), (7, 15, 27), (8, 15, 12)],
)
def test_clusters_leave_idle_what_the_driver_counted(cluster: int, clusters: int, idle: int) -> None:
    launch = KernelLaunch(
        "k", (), grid=(cluster * 100, 1, 1), block=(384, 1, 1), cluster=(cluster, 1, 1), shared_bytes=200 * 1024
    )
    waves = waves_of(launch, occupancy_of(launch, taking(168), H200), H200)
    assert (waves.slots, waves.idle_units, waves.items) == (clusters, idle, 100)


def test_grids_in_m_are_evaluated() -> None:
    rows = make("ceildiv", M, 128)
    launch = KernelLaunch("k", (), grid=(rows, 4, 1), block=(256, 1, 1))
    occupancy = occupancy_of(launch, taking(128), H200)
    assert waves_of(launch, occupancy, H200, m=1).items == 4
    assert waves_of(launch, occupancy, H200, m=1025).items == 36


def test_clusters_where_there_are_none_are_refused() -> None:
    launch = KernelLaunch("k", (), grid=(4, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1))
    device = named_device("sm_86")
    with pytest.raises(InvalidDevice, match="a cluster of 2 blocks needs sm_90a; sm_86 is sm_86"):
        waves_of(launch, occupancy_of(launch, taking(32), device), device)
    with pytest.raises(InvalidDevice, match="a cluster has 1 to 8 blocks, not 9"):
        resident_clusters(H200, 9, 1)
    with pytest.raises(AnalysisFailed, match="k launches 5 blocks in clusters of 2 at m=1"):
        waves_of(
            KernelLaunch("k", (), grid=(5, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1)),
            occupancy_of(launch, taking(32), H200),
            H200,
        )


def test_smaller_chips_hold_clusters_in_proportion() -> None:
    smaller = H200.with_(units=66)
    assert [resident_clusters(smaller, size, 1) for size in range(1, 9)] == [count // 2 for count in CLUSTERS_OF_H200]


def test_edges_of_tiles_are_counted() -> None:
    assert coverage(4096, 4096, 4096, (128, 128, 64)) == coverage(128, 128, 64, (128, 128, 64)).__class__(1024, 0.0)
    actual = coverage(129, 127, 65, (128, 128, 64), batch=3)
    assert actual.tiles == 6
    assert actual.loss == pytest.approx(1 - 129 * 127 * 65 / (256 * 128 * 128))


# -- what is no cubin ------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 4, 63, 700, 2000])
def test_truncated_cubin_is_refused(cut: int) -> None:
    data = planted("sm_90a").data
    with pytest.raises(AnalysisFailed, match=rf"{cut} bytes are not a whole cubin"):
        kernels(data[:cut])


def test_host_object_is_refused() -> None:
    with pytest.raises(AnalysisFailed, match="not as a 64-bit ELF file"):
        kernels(b"MZ" + bytes(200))
