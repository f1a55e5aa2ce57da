"""The mma family under the contract of every family, for the H200 and for the smaller SMs of sm_86.

What a kernel means is run on this machine: its schedule before instructions take the place of what spells them out.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.contract import gpu_on_cpu
from tests.contract.family_contract import ComputedContract
from tests.contract.operands import Case
from tirgemm.detect import device
from tirgemm.families.base import Program
from tirgemm.families.mma import Mma
from tirgemm.families.mma import program as programs
from tirgemm.hardware import named_device
from tirgemm.tuning.compile import cuda


class MmaContract(ComputedContract):
    family = Mma()
    other_device = device("cpu")
    gemms = (
        "4096x4096x4096:f16:nt", "1023x1021x1027:f16:nt", "1x4099x4097:f16:nt", "4097x3x4099:bf16:tn", "16384x16384x512:f16:nn",
        "7x512x8192:f16:nn:acc=f16", "1..8192x1025x1027:bf16:tt", "1x1x1:f16:nn", "33x8x4096:f16:nn", "70000x70000x70000:f16:nt",
        "256x257x16384:f16:nt", "64x4098x1026:f16:nn:acc=f16",
    )  # fmt: skip
    small_gemms = (
        "127x65x33:f16:nt",
        "61x132x68:f16:nn:alpha:beta:bias:act=relu:align=8",
        "35x97x48:bf16:tn:batch=3:alpha:act=gelu:out=f32:align=4",
        "29x33x17:f16:tt:lda=40:ldb=24:ldd=37:beta:ldc=35:act=silu:align=4",
        "1..53x47x19:f16:tn:bias:act=gelu_tanh",
        "3..45x96x264:bf16:nn:batch=2:beta:lda=268:stride_a=13000",
        "1x1x1:f16:nt:align=2",
        "13x11x131:f16:tt:beta:acc=f16",
        "36x44x200:f16:nt:ldb=208:alpha:acc=f16:out=f32",
    )
    random_configs = 1

    @pytest.fixture(autouse=True)
    def meant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What ``run`` gets is what the kernel means."""
        self.kernel = programs.kernel
        monkeypatch.setattr(programs, "kernel", programs.spelled_out)

    def run(self, program: Program, case: Case) -> np.ndarray:
        return gpu_on_cpu.run(program, case)


class TestMmaOnH200(MmaContract):
    device = named_device("sm_90a")

    def test_the_same_config_gives_the_same_source_twice(self) -> None:
        programs.kernel = self.kernel
        super().test_the_same_config_gives_the_same_source_twice()

    def source(self, program: Program) -> str:
        return cuda.lower(program, self.device.arch)[1]


class TestMmaOnSm86(MmaContract):
    device = named_device("sm_86")
    small_gemms = MmaContract.small_gemms[:3]
