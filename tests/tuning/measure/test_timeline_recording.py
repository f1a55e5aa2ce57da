"""Recording of timelines without a GPU: what is refused and why, and what the launcher is given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.wgmma_paths import TMA_KNOBS
from tirgemm.analysis.timeline.decoding import UNWRITTEN
from tirgemm.artifact import Signer, pack
from tirgemm.config import Config
from tirgemm.errors import DeviceUnavailable, InvalidRequest, MeasurementFailed, Unsupported
from tirgemm.families import family_named
from tirgemm.families.common.ring_buffer import BEGUN, ENDED, HEADER_WORDS, RECORDED, TIMELINE
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Pointer, TensorMap
from tirgemm.tuning.timeline import TimedKernel, record, recorded, timed_kernel

_H200 = named_device("sm_90a")
_GEMM = Gemm.parse("1024x1024x512:f16:nt")
_SLOTS = 8


@pytest.fixture(scope="module")
def kernel() -> TimedKernel:
    return timed_kernel(_GEMM, Config("wgmma", tuple((TMA_KNOBS | {"tile_n": 96}).items())), _H200, _SLOTS)


def _words(kernel: TimedKernel, cycles: int = 1000, ns: int = 7000) -> np.ndarray:
    """Ring buffers in which each warpgroup waited and loaded for 100 cycles from ``cycles`` and ``ns`` on."""
    ring = kernel.timed.ring
    words = np.full((ring.blocks * len(ring.roles), ring.track_words), UNWRITTEN, np.uint32)
    kinds = [list(ring.kinds).index(kind) for kind in ("wait", "load", "tile")]
    spans = [(0, 60, kinds[0], 0), (60, 100, kinds[1], 0), (0, 100, kinds[2], 3)]
    for row in words:
        row[RECORDED : RECORDED + 2] = len(spans), 5
        row[BEGUN : BEGUN + 4] = cycles, 0, ns, 0
        row[ENDED : ENDED + 4] = cycles + 100, 0, ns + 50, 0
        row[HEADER_WORDS : HEADER_WORDS + 4 * len(spans)] = [
            word + cycles * (at < 2) for span in spans for at, word in enumerate(span)
        ]
    return words


def test_a_family_without_time_stamps_names_those_that_have_them() -> None:
    config = family_named("simt").default(_GEMM, _H200, "sustained")
    with pytest.raises(Unsupported, match="family simt have no time stamps; families that have them: wgmma"):
        timed_kernel(_GEMM, config, _H200)


def test_a_device_that_is_only_named_records_nothing(kernel: TimedKernel) -> None:
    with pytest.raises(DeviceUnavailable, match="recorded by a GPU of this machine"):
        record(kernel, _H200, {})


def test_a_recording_tells_its_kernel_and_keeps_a_few_blocks(kernel: TimedKernel) -> None:
    earlier, later = _words(kernel).ravel(), _words(kernel, 201000, 107000).ravel()
    about = {"device": "NVIDIA H200"}
    recording = recorded(kernel, 1024, later, "device", about, blocks=3, earlier=earlier)
    launched = kernel.timed.ring.blocks
    assert (recording.gemm, recording.m, recording.family) == (str(_GEMM), 1024, "wgmma")
    assert recording.config == dict(kernel.config.knobs)
    assert recording.resources["registers"] == 168
    assert recording.source_sha256 == kernel.binary.source_sha256
    assert (recording.launched, recording.blocks) == (launched, (0, launched // 3, 2 * launched // 3))
    assert (recording.cycles_per_us, recording.timer_step_ns, recording.length) == (2000.0, 50, 0.05)


def test_words_that_no_kernel_recorded_are_refused(kernel: TimedKernel) -> None:
    words = _words(kernel)
    words[4, HEADER_WORDS + 4] -= 1
    with pytest.raises(MeasurementFailed, match="begins before"):
        recorded(kernel, 1024, words.ravel(), "emulator", {}, blocks=kernel.timed.ring.blocks)
    words[4, RECORDED] = UNWRITTEN
    with pytest.raises(InvalidRequest, match="consumer 0 of block 1 did not end"):
        recorded(kernel, 1024, words.ravel(), "emulator", {})


def test_no_artifact_is_made_of_a_kernel_with_time_stamps(kernel: TimedKernel) -> None:
    contents = kernel.binary.contents(kernel.gemm, kernel.config, _H200)
    with pytest.raises(InvalidRequest, match="the launch's tensors and scalars are not those of"):
        pack(contents, Signer.generate())


def test_the_launcher_passes_the_ring_buffers_to_the_kernel(kernel: TimedKernel, tmp_path: Path) -> None:
    (main,) = kernel.binary.launch.kernels
    # The fake driver reads parameters by the letters of a kernel's name.
    letters = "".join({TensorMap: "m", Pointer: "p"}[type(param)] for param in main.params)
    launch = replace(kernel.binary.launch, kernels=(replace(main, symbol=f"timed__{letters}"),))
    fake = FakeCuda(tmp_path)
    ring = 0x90000
    code = f"""
from tests.helpers.artifact_samples import fake_cubin
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.timeline import loaded
from tvm_ffi import from_dlpack
import json
binary = Binary(fake_cubin(), "cubin", Launch.from_json(json.loads({json.dumps(launch.to_json())!r})), {{}}, ())
call = loaded(Gemm.parse({str(_GEMM)!r}), binary, named_device("sm_90a"))
shapes = (1024, 512), (1024, 512), (1024, 1024)
tensors = [CudaTensor(shape, address=0x1000000 * (i + 1)) for i, shape in enumerate(shapes)]
ring = CudaTensor(({kernel.timed.ring.words},), "f32", address={ring})
call(*map(from_dlpack, (*tensors, ring)))
"""
    try:
        _, events = fake.run(code)
    finally:
        fake.close()
    (launched,) = (event for event in events if event["call"] == "cuLaunchKernelEx")
    place = [isinstance(param, Pointer) and param.name == TIMELINE for param in main.params].index(True)
    assert launched["params"][place] == ring
    assert launched["grid"][0] == kernel.timed.blocks
