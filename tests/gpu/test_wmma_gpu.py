"""WMMA kernels on the GPU: every layout by every way to load, and random problems with random configs, verified in
full."""

from __future__ import annotations

import pytest

from tests.gpu.family_on_gpu import FamilyOnGpu
from tests.helpers.named_config import named_config
from tirgemm.detect import devices
from tirgemm.families.wmma import Wmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from verification.cases import Case, random_cases

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU")]

FAMILY = Wmma()
# ``verification`` runs hundreds, with every choice of every knob.
RANDOM = 40
NAMED = (
    (
        "4000x4000x1000:f16:nt",
        "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=4 registers=2 pad=8 raster=4",
    ),
    (
        "4000x4000x1000:f16:nn",
        "tile_m=256 tile_n=128 tile_k=32 warps_m=4 warps_n=2 stages=3 registers=1 pad=0 raster=2",
    ),
    (
        "4000x4008x1000:bf16:tn",
        "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=3 registers=2 pad=16 raster=2",
    ),
    (
        "4000x4008x1000:bf16:tt:beta:bias:act=silu",
        "tile_m=128 tile_n=128 tile_k=64 warps_m=2 warps_n=2 stages=2 registers=2 pad=8",
    ),
    ("4001x4003x1000:f16:nt:acc=f16", "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=3 registers=2 pad=8"),
    ("2001x2003x1004:f16:nt:alpha", "tile_m=64 tile_n=128 tile_k=32 warps_m=2 warps_n=2 stages=4 registers=2 pad=8"),
    (
        "2002x2004x1004:bf16:tn:lda=2004:beta",
        "tile_m=64 tile_n=128 tile_k=32 warps_m=2 warps_n=2 stages=3 registers=1 pad=8",
    ),
    (
        "2001x2002x1002:f16:nn:lda=1006:bias:act=relu",
        "tile_m=128 tile_n=64 tile_k=32 warps_m=2 warps_n=2 stages=3 registers=2 pad=8",
    ),
    (
        "2001x2003x1005:f16:tt:out=f32",
        "tile_m=128 tile_n=64 tile_k=32 warps_m=2 warps_n=2 stages=3 registers=2 pad=8 load=repack",
    ),
    (
        "128x576x7168:f16:nt:beta:bias",
        "tile_m=64 tile_n=64 tile_k=64 warps_m=2 warps_n=2 stages=4 registers=2 pad=8 split=6",
    ),
    (
        "1..100x520x4104:bf16:tt:batch=2",
        "tile_m=32 tile_n=64 tile_k=64 warps_m=2 warps_n=2 stages=3 registers=2 pad=8 split=4",
    ),
)


def drawn() -> list[Case]:
    device = named_device(GPUS[0].arch)
    named = [Case(gemm := Gemm.parse(text), named_config(FAMILY, gemm, device, knobs)) for text, knobs in NAMED]
    return [*named, *random_cases(FAMILY, device, RANDOM, seed=1)]


class TestWmmaOnGpu(FamilyOnGpu):
    family = FAMILY
    gpus = GPUS
    cases = drawn() if GPUS else []
    timed = ("4096x4096x4096:f16:nt", "16x576x7168:f16:nt", "1024x1024x1024:bf16:nn")
