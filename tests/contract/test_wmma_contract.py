"""The wmma family under the contract of every family, for the H200 and for the smaller SMs of sm_86.

What a kernel means is run on this machine: its schedule before instructions take the place of what spells them out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.contract import gpu_on_cpu
from tests.contract.family_contract import ComputedContract
from tests.contract.operands import Case
from tirgemm.detect import device
from tirgemm.families.base import Program
from tirgemm.families.wmma import Wmma
from tirgemm.families.wmma import program as programs
from tirgemm.families.wmma.tile import WmmaTiling
from tirgemm.hardware import named_device
from tirgemm.tuning.compile import cpu, cuda

# Fragments of all warps are tensors of a thread here.
_STACK_BYTES = 4 * 2**20


class WmmaContract(ComputedContract):
    family = Wmma()
    other_device = device("cpu")
    gemms = (
        "4096x4096x4096:f16:nt", "1023x1021x1027:f16:nt", "1x4099x4097:f16:nt", "4097x3x4099:bf16:tn", "16384x16384x512:f16:nn",
        "7x512x8192:f16:nn:acc=f16", "1..8192x1025x1027:bf16:tt", "1x1x1:f16:nn", "33x8x4096:f16:nn", "70000x70000x70000:f16:nt",
        "256x257x16384:f16:nt",
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
    def meant(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Remember what each program is cut as, so that its meaning can be run."""
        self.cuts: list[tuple[Program, WmmaTiling]] = []
        original = programs.program

        def noting(tiling: WmmaTiling) -> Program:
            self.cuts.append((original(tiling), tiling))
            return self.cuts[-1][0]

        monkeypatch.setattr(programs, "program", noting)
        monkeypatch.setattr(cpu, "_MAX_STACK_BYTES", _STACK_BYTES)
        yield
        self.cuts.clear()

    def run(self, program: Program, case: Case) -> np.ndarray:
        tiling = next(tiling for made, tiling in self.cuts if made is program)
        return gpu_on_cpu.run(programs.meaning(tiling), case)

    def source(self, program: Program) -> str:
        return cuda.lower(program, self.device.arch)[1]


class TestWmmaOnH200(WmmaContract):
    device = named_device("sm_90a")


class TestWmmaOnSm86(WmmaContract):
    device = named_device("sm_86")
    small_gemms = WmmaContract.small_gemms[1:3]
