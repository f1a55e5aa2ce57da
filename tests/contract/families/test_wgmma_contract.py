"""The wgmma family under the contract of every family.

What the contract runs on a CPU for other families is compiled here instead: nothing but a Hopper GPU runs wgmma.
Whether the kernels compute the problem is shown on one, by tests/gpu/test_wgmma_gpu.py.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.contract.families.family_contract import FamilyContract
from tirgemm import detect
from tirgemm.families.wgmma import Wgmma, heuristic
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.compile import compile_program

# Small problems, and the knobs that their random configs have: one of each for every way to load, to cut and to add up.
DRAWN_WITH: dict[str, dict[str, Any]] = {
    "127x65x40:f16:nt": {},
    "61x136x67:f16:nn:lda=72:alpha:beta:bias:act=relu": {},
    "40x97x48:bf16:tt:batch=3:alpha:act=gelu:out=f32:ldb=56:ldd=100": {},
    "3..700x1032x1024:bf16:nn:batch=2:beta:act=silu": {},
    "1x1x1:f16:nt": {"load": "repack"},
    "16x576x7168:f16:tn:beta:out=f32": {"swap": 1},
    "130x257x4104:bf16:nn:ldb=264:alpha": {"split": 4, "reduction": "cluster", "schedule": "cooperative"},
    "1..65x129x16392:f16:tt:lda=72:ldb=16392:bias": {"split": 16, "reduction": "kernel", "epilogue": "direct"},
    "64x256x24576:f16:nt": {"split": 48, "reduction": "kernel", "epilogue": "direct"},
    "1000x1544x1096:f16:nt:beta": {"schedule": "pingpong"},
    "1..333x577x523:f16:tt:lda=335:ldb=523:align=2": {"load": "repack"},
    "178x1002x523:bf16:tn:align=4": {
        "load": "copy",
        "split": 1,
        "schedule": "cooperative",
        "resident": 1,
    },
    "577x1003x524:f16:nt:align=8": {
        "load": "copy",
        "split": 1,
        "schedule": "cooperative",
        "resident": 1,
    },
    "1..300x600x200:f16:tn:lda=304:acc=f16:beta": {},
}


class TestWgmma(FamilyContract):
    family = Wgmma()
    device = named_device("sm_90a")
    other_device = detect.device("cpu")
    # A trained model ranks 256 cuts and 96 rasters.
    default_limit_s = 10e-3
    gemms = (
        "4096x4096x4096:f16:nt",
        "1023x1021x1032:f16:nt",
        "1x4104x4096:f16:nt",
        "16x576x7168:bf16:nt",
        "16384x16384x512:f16:nn",
        "1..8192x1032x1024:bf16:nn",
        "1x1x8:f16:nt",
        "64x64x32768:f16:tt",
        "64x32x49152:f16:nt",
        "65536x65536x65536:f16:tn",
        "128x576x7168:f16:nt",
        "1032x96x1000:f16:nn:batch=7",
        "200x1000x136:bf16:tn:alpha:beta:bias:act=gelu",
        "2000x224x4096:f16:nt",
    )
    growing_gemms = ("65x63x72:f16:nt", "1025x1023x1032:f16:nt")
    small_gemms = tuple(DRAWN_WITH)
    random_configs = 1

    def forget(self) -> None:
        heuristic._shortlist.cache_clear()
        heuristic._estimated.cache_clear()

    def test_default_and_random_configs_compile_as_predicted(self, small_gemm: str) -> None:
        """No spill, nothing serialised, shared memory and registers as the rules predicted."""
        gemm = Gemm.parse(small_gemm)
        rng = random.Random(small_gemm)
        drawn = (self.draw(gemm, rng, **DRAWN_WITH[small_gemm]) for _ in range(self.random_configs))
        for config in (self.default(gemm), *drawn):
            assert config is not None
            binary = compile_program(self.family.instantiate(gemm, config, self.device), self.device)
            cut = plan(gemm, config, self.device.units)
            assert (binary.resources["spill_bytes"], binary.resources["serialised"]) == (0, 0), config
            assert binary.resources["shared_bytes"] == cut.memory.nbytes
            assert binary.resources["registers"] * cut.warpgroups.threads <= self.device.limits.registers_per_sm

    @pytest.mark.parametrize(
        ("text", "arch", "word"),
        [
            ("64x64x64:f16:nt", "sm_80", "sm_90a"),
            ("64x64x64:f32:nt", "sm_90a", "f32"),
            ("131072x64x65537:f16:nt", "sm_90a", "copy"),
            ("2097152x64x524288:f16:nt", "sm_90a", "strides"),
        ],
    )
    def test_what_wgmma_cannot_do_is_not_supported_and_says_why(self, text: str, arch: str, word: str) -> None:
        reason = self.family.supports(Gemm.parse(text), named_device(arch))
        assert reason is not None
        assert word in reason
