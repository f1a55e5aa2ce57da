"""The wgmma family on a Hopper GPU: named paths, and random problems with random configs, verified in full."""

from __future__ import annotations

import pytest

from tests.gpu.family_on_gpu import FamilyOnGpu
from tests.helpers.wgmma_paths import named_cases
from tirgemm.detect import devices
from tirgemm.families.wgmma import Wgmma
from tirgemm.hardware import named_device
from verification.cases import random_cases

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU")]

FAMILY = Wgmma()
H200 = named_device("sm_90a")
# As many again as the named ones, about; ``verification`` runs hundreds, with every choice of every knob.
RANDOM = 80


class TestWgmmaOnGpu(FamilyOnGpu):
    family = FAMILY
    gpus = GPUS
    cases = [*named_cases(H200), *random_cases(FAMILY, H200, RANDOM, seed=1)] if GPUS else []
    timed = ("4096x4096x4096:f16:nt", "16x576x7168:f16:nt", "1024x1024x1024:bf16:nn")
