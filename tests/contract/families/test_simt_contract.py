"""The simt family under the contract of every family, for the H200 and for the smaller SMs of sm_86."""

from __future__ import annotations

from typing import ClassVar

from tests.contract.families import gpu_on_cpu
from tests.contract.families.family_contract import ComputedContract
from tirgemm.detect import device
from tirgemm.families import FAMILIES
from tirgemm.families.base import Program
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.binary import Binary


class SimtContract(ComputedContract):
    family = FAMILIES["simt"]
    other_device = device("cpu")
    gemms = (
        "4096x4096x4096:f32:nn",
        "1023x1021x1027:f16:nt",
        "1x4099x4097:f16:nt",
        "4097x3x4099:f16:tn",
        "16384x16384x512:f16:nn",
        "7x512x2048:f16:nn:acc=f16",
        "1..8192x1025x1027:bf16:tt",
        "1x1x1:f32:nn",
        "33x8x4096:f32:nn",
        "70000x70000x70000:f16:nt",
    )
    small_gemms: ClassVar[tuple[str, ...]] = (
        "127x65x33:f16:nt",
        "61x131x67:f16:nn:alpha:beta:bias:act=relu",
        "35x97x48:bf16:tn:batch=3:alpha:act=gelu:out=f32",
        "29x33x17:f32:tt:lda=40:ldb=23:ldd=37:beta:ldc=35:act=silu:align=4",
        "1..53x47x19:f16:tn:bias:act=gelu_tanh",
        "3..45x96x64:f32:nn:batch=2:beta",
        "5x64x32:f16:nn:out=f32",
        "1x1x1:f16:nt:align=2",
        "13x11x131:f16:tt:beta:acc=f16",
        "36x44x100:f32:nt:ldb=104:alpha",
    )

    def binary(self, program: Program) -> Binary:
        return gpu_on_cpu.compiled(program)

    def source(self, program: Program) -> str:
        return cuda.lower(program, self.device.arch)[1]


class TestSimtOnH200(SimtContract):
    device = named_device("sm_90a")


class TestSimtOnSm86(SimtContract):
    device = named_device("sm_86")
    small_gemms = SimtContract.small_gemms[:3]
    random_configs = 1
