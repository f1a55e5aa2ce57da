"""The wmma family under the contract of every family, for the H200 and for the smaller SMs of sm_86.

What a kernel means is run on this machine: its schedule before instructions take the place of what spells them out.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.contract.families import gpu_on_cpu
from tests.contract.families.family_contract import ComputedContract
from tests.contract.families.tensorcore_problems import GEMMS, SMALL_GEMMS
from tirgemm.detect import device
from tirgemm.families.base import Program
from tirgemm.families.tensorcore import default_choice
from tirgemm.families.tensorcore import program as assembled
from tirgemm.families.wmma import Wmma
from tirgemm.families.wmma import program as programs
from tirgemm.families.wmma.fragment_blocks import SYMBOL
from tirgemm.families.wmma.schedule import scheduled
from tirgemm.families.wmma.tile import WmmaTiling
from tirgemm.hardware import WARP, named_device
from tirgemm.tuning.build import cpu, cuda
from tirgemm.tuning.build.binary import Binary

# Fragments of all warps are tensors of a thread here.
_STACK_BYTES = 4 * 2**20


class WmmaContract(ComputedContract):
    family = Wmma()
    other_device = device("cpu")
    gemms = GEMMS
    small_gemms = SMALL_GEMMS
    random_configs = 1

    cuts: ClassVar[list[tuple[Program, WmmaTiling]]] = []
    """What every program is cut as, so that its meaning can be run; the programs are shared by tests."""

    def forget(self) -> None:
        default_choice._shortlist.cache_clear()

    @pytest.fixture(autouse=True)
    def meant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Remember what each program is cut as."""
        original = programs.program

        def noting(tiling: WmmaTiling) -> Program:
            self.cuts.append((original(tiling), tiling))
            return self.cuts[-1][0]

        monkeypatch.setattr(programs, "program", noting)
        monkeypatch.setattr(cpu, "_MAX_STACK_BYTES", _STACK_BYTES)

    def binary(self, program: Program) -> Binary:
        tiling = next(tiling for made, tiling in self.cuts if made is program)
        func = scheduled(tiling).mod[SYMBOL]
        return gpu_on_cpu.compiled(assembled.program("wmma", tiling, func, (WARP, tiling.threads // WARP, 1)))

    def source(self, program: Program) -> str:
        return cuda.lower(program, self.device.arch)[1]


class TestWmmaOnH200(WmmaContract):
    device = named_device("sm_90a")
    # A trained model ranks the variants of twelve cuts.
    default_limit_s = 10e-3


class TestWmmaOnSm86(WmmaContract):
    device = named_device("sm_86")
    small_gemms = SMALL_GEMMS[1:3]
