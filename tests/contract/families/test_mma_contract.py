"""The mma family under the contract of every family, for the H200 and for the smaller SMs of sm_86.

What a kernel means is run on this machine: its schedule before instructions take the place of what spells them out.
"""

from __future__ import annotations

import pytest
from tvm.tirx import PrimFunc

from tests.contract.families import gpu_on_cpu
from tests.contract.families.family_contract import ComputedContract
from tests.contract.families.tensorcore_problems import GEMMS, SMALL_GEMMS
from tirgemm.detect import device
from tirgemm.families.base import Program
from tirgemm.families.mma import Mma
from tirgemm.families.mma import program as programs
from tirgemm.families.mma.schedule import SYMBOL, scheduled
from tirgemm.families.tensorcore import default_choice
from tirgemm.families.tensorcore.tiling import Tiling
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.binary import Binary


def spelled_out(tiling: Tiling, registers: int) -> PrimFunc:
    """The same kernel with every instruction element by element and nothing overlapped: what it means, on any
    device."""
    sch, _ = scheduled(tiling, registers)
    return sch.mod[SYMBOL]


class MmaContract(ComputedContract):
    family = Mma()
    other_device = device("cpu")
    gemms = (*GEMMS, "64x4098x1026:f16:nn:acc=f16")
    small_gemms = SMALL_GEMMS
    random_configs = 1

    def forget(self) -> None:
        default_choice._shortlist.cache_clear()

    @pytest.fixture(autouse=True)
    def meant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What ``binary`` gets is what the kernel means."""
        self.kernel = programs.kernel
        monkeypatch.setattr(programs, "kernel", spelled_out)

    def binary(self, program: Program) -> Binary:
        return gpu_on_cpu.compiled(program)


class TestMmaOnH200(MmaContract):
    device = named_device("sm_90a")
    # A trained model ranks the variants of twelve cuts.
    default_limit_s = 10e-3

    def test_the_same_config_gives_the_same_source_twice(self) -> None:
        programs.kernel = self.kernel
        super().test_the_same_config_gives_the_same_source_twice()

    def source(self, program: Program) -> str:
        return cuda.lower(program, self.device.arch)[1]


class TestMmaOnSm86(MmaContract):
    device = named_device("sm_86")
    small_gemms = SMALL_GEMMS[:3]
