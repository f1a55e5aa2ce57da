"""The x86 family under the contract of every family, for AVX-512 and for AVX2."""

from __future__ import annotations

import pytest

from tests.contract.families.family_contract import ComputedContract
from tirgemm.detect import device as detect
from tirgemm.device import Device
from tirgemm.families import FAMILIES
from tirgemm.families.base import Program
from tirgemm.hardware import named_device
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.compile import compile_program

_V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


def _cpu(arch: str, features: tuple[str, ...]) -> Device:
    return Device("cpu", arch, "Contract CPU", units=2, memory_bytes=2**34, features=tuple(sorted(features)))


class X86Contract(ComputedContract):
    family = FAMILIES["x86"]
    other_device = named_device("sm_80")
    gemms = (
        "512x512x512:f16:nt",
        "1023x1021x1027:f16:nt",
        "1x4099x4097:f16:nt",
        "4097x3x4099:f16:tn",
        "1024x1024x2048:f32:nn",
        "7x512x2048:f16:nn",
        "1..8192x1025x1027:bf16:tt",
        "1x1x1:f32:nn",
        "33x8x4096:f32:nn",
        "2x24x4096:f16:nn",
        "1x4096x4096:f16:nt",
        "16x515x2048:bf16:tt",
    )
    small_gemms = (
        "127x65x33:f16:nt",
        "61x131x67:f16:nn:alpha:beta:bias:act=relu",
        "35x97x48:bf16:tn:batch=3:alpha:act=gelu:out=f32",
        "29x33x17:f32:tt:lda=40:ldb=23:ldd=37:beta:ldc=35:act=silu:align=4",
        "1..53x47x19:f16:tn:bias:act=gelu_tanh",
        "3..45x96x64:f16:nn:batch=2:beta",
        "5x64x32:f16:nn:out=f32",
        "1x1x1:f16:nt:align=2",
        "13x11x1031:f16:tt:beta",
        "65x3x129:bf16:nt",
        "7x37x64:f16:nt:bias:act=silu",
        "1..19x45x48:bf16:tt:batch=2:beta",
    )

    def binary(self, program: Program) -> Binary:
        missing = set(self.device.features) - set(detect("cpu").features)
        if missing:
            pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
        return compile_program(program, self.device)

    def source(self, program: Program) -> str:
        return compile_program(program, self.device).source_sha256


class TestX86WithAvx512(X86Contract):
    device = _cpu("x86-64-v4", _V4)


class TestX86WithAvx2(X86Contract):
    device = _cpu("x86-64-v3", _V3)
    random_configs = 1
