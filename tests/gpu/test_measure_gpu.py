"""Measurement on a GPU with packaged cubins written by hand: right, wrong in five ways, crashing, hanging, slow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tirgemm.artifact import Contents, Signer, Trust, pack, read
from tirgemm.config import Config
from tirgemm.detect import devices
from tirgemm.expr import M, ceildiv
from tirgemm.gemm import Gemm, Regime
from tirgemm.launch import KernelLaunch, Launch, Pointer, Scalar, Size, scalar_args, tensor_args
from tirgemm.timings import Timings
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut, Measurer
from tirgemm.tuning.measure.requests import RaceOptions

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU")]

# d = alpha a b + beta c, fp16 in and out, fp32 sums, 16 x 16 a block; MUTANT says what is wrong with it.
SOURCE = r"""
enum { RIGHT, LAST_K, EDGE, BETA, SWAPPED, UNWRITTEN, ILLEGAL, HANG, SLOW };
__device__ float value(const unsigned short* p) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(*p));
  return f;
}
extern "C" __global__ void toy(const unsigned short* a, const unsigned short* b, const unsigned short* c,
                               unsigned short* d, float alpha, float beta, int m) {
  int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
  if (MUTANT == ILLEGAL) *(volatile int*)8 = 1;
  if (MUTANT == HANG) while (*(volatile unsigned short*)a == *(volatile unsigned short*)a) {}
  if (MUTANT == SLOW) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < 20000);
  }
  if (i >= (MUTANT == EDGE && m % 16 ? m - 1 : m) || j >= N) return;
  if (MUTANT == UNWRITTEN && i == m - 1 && j == N / 2) return;
  int from = MUTANT == SWAPPED && j == 1 ? N - 1 : MUTANT == SWAPPED && j == N - 1 ? 1 : j;
  float sum = 0;
  for (int k = 0; k < K - (MUTANT == LAST_K); ++k) sum += value(a + (long long)i * K + k) * value(b + k * N + from);
  float x = alpha * sum + (MUTANT == BETA ? 0 : beta * value(c + (long long)i * N + j));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d[(long long)i * N + j]) : "f"(x));
}
"""
MUTANTS = ["RIGHT", "LAST_K", "EDGE", "BETA", "SWAPPED", "UNWRITTEN", "ILLEGAL", "HANG", "SLOW"]
GEMM = Gemm.parse("3..317x131x67:f16:nn:alpha:beta")
SIGNER = Signer.generate()
TRUST = Trust.of(SIGNER.public)


@cache
def package(name: str) -> bytes:
    from tirgemm.tuning.driver.nvrtc import compile_source

    options = (f"-DMUTANT={MUTANTS.index(name)}", f"-DN={GEMM.n}", f"-DK={GEMM.k}")
    cubin = compile_source(SOURCE, GPUS[0].arch, options=options)
    params: tuple[Any, ...] = (*(Pointer(tensor) for tensor in "abcd"), Scalar("alpha"), Scalar("beta"), Size(M))
    kernel = KernelLaunch("toy", params, (ceildiv(GEMM.n, 16), ceildiv(M, 16), 1), (16, 16, 1))
    return pack(
        Contents(
            gemm=GEMM,
            config=Config("toy", ()),
            device=GPUS[0],
            launch=Launch(tensor_args(GEMM), scalar_args(GEMM), (kernel,)),
            binary=cubin.data,
            binary_format="cubin",
            sources={"kernel.cu": SOURCE},
            flags=cubin.flags,
            certificate=None,
            timings=Timings(),
        ),
        SIGNER,
    )


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    with Measurer(GPUS[0], TRUST, lock_dir=tmp_path_factory.mktemp("locks"), timeout_s=60.0) as measurer:
        yield measurer


def test_a_right_kernel_is_verified_and_timed_in_one_round_trip(measurer: Measurer) -> None:
    for level in ("candidate", "certificate"):
        verification = measurer.verify(package("RIGHT"), level=level, seed=5)
        assert verification.passed, verification.tests
        assert {t["method"] for t in verification.tests} == {"full"}
        assert {t["m"] for t in verification.tests} >= {3, 317}
    verification, samples = measurer.evaluate(package("RIGHT"), "sustained", seed=5)
    assert verification.passed, verification.tests
    assert verification.kernel_sha256 == read(package("RIGHT"), TRUST).manifest.kernel_sha256
    assert samples is not None
    assert len(samples.samples_us) >= 5
    assert 0.5 < samples.median_us < 1000
    conditions = samples.conditions
    assert conditions["rotated_bytes"] >= min(4 * conditions["cache_bytes"], 8192 * GEMM.nbytes)
    assert {"clock_mhz", "power_w", "throttled", "at", "fingerprint"} <= set(conditions)


@pytest.mark.parametrize("mutant", ["LAST_K", "EDGE", "BETA", "SWAPPED", "UNWRITTEN"])
def test_a_wrong_packaged_kernel_is_caught_and_not_timed(measurer: Measurer, mutant: str) -> None:
    verification, samples = measurer.evaluate(package(mutant), "sustained")
    assert not verification.passed
    assert verification.error > 1
    assert samples is None
    assert "wrong" in verification.tests[-1]["message"]


def test_an_illegal_address_is_a_crash_and_the_process_is_replaced(measurer: Measurer) -> None:
    with pytest.raises(MeasurementCrashed, match=r"ILLEGAL_ADDRESS|died"):
        measurer.evaluate(package("ILLEGAL"), "sustained")
    assert measurer.verify(package("RIGHT")).passed


def test_a_hang_is_killed_after_the_timeout(tmp_path: Path) -> None:
    with Measurer(GPUS[0], TRUST, lock_dir=tmp_path, timeout_s=20.0) as measurer:
        measurer.verify(package("RIGHT"))
        measurer.timeout_s = 2.0
        started = time.monotonic()
        with pytest.raises(MeasurementTimedOut, match="no sign of life for 2 s"):
            measurer.verify(package("HANG"))
        assert time.monotonic() - started < 15


@pytest.mark.parametrize("regime", ["sustained", "isolated"])
def test_times_are_the_gpus_own_beside_opponents(measurer: Measurer, regime: Regime) -> None:
    options = RaceOptions(regime, 6, 0.05, swap=True)
    actual = measurer.time(
        package("SLOW"), options, against={"default": package("RIGHT")}, baselines=measurer.baselines()
    )
    assert 19 < actual.median_us < 60  # it spins for 20 us in its one wave of blocks
    names = {"default", *measurer.baselines()} - set(actual.conditions.get("absent", {}))
    assert set(actual.baselines) == names
    assert all(len(samples) == len(actual.samples_us) >= 6 for samples in actual.baselines.values())
    assert statistics.median(actual.baselines["default"]) < 15
    assert actual.conditions["swapped"] is True
