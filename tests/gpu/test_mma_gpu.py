"""The mma family on a GPU: random problems with random configs and the defaults of its suite, verified in full."""

from __future__ import annotations

import pytest

from tests.gpu.family_on_gpu import FamilyOnGpu
from tirgemm.detect import devices
from tirgemm.families.mma import Mma
from tirgemm.gemm import LAYOUTS, Gemm
from tirgemm.hardware import ARCHITECTURES
from verification.cases import Case, random_cases

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch in ARCHITECTURES]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason=f"this machine has no GPU of {', '.join(ARCHITECTURES)}"),
]

FAMILY = Mma()
# ``verification`` runs hundreds, with every choice of every knob.
RANDOM = 60
# Every layout of operands with every layout of shared memory, at sizes that end inside tiles.
NAMED = [
    (f"1000x1032x2056:{'bf16' if number % 2 else 'f16'}:{layout}", shared)
    for number, layout in enumerate(LAYOUTS)
    for shared in ("none", "padded", "permuted")
]


def drawn() -> list[Case]:
    device = GPUS[0]
    named = [Gemm.parse(text) for text, _ in NAMED]
    configs = [
        FAMILY.default(gemm, device, "sustained").with_(shared=shared)
        for gemm, (_, shared) in zip(named, NAMED, strict=True)
    ]
    cases = [Case(gemm, config) for gemm, config in zip(named, configs, strict=True)]
    return [*cases, *random_cases(FAMILY, device, RANDOM, seed=1)]


class TestMmaOnGpu(FamilyOnGpu):
    family = FAMILY
    gpus = GPUS
    cases = drawn() if GPUS else []
    timed = ("4096x4096x4096:f16:nt", "64x4096x8192:f16:nn", "1023x1021x1027:bf16:nt")
