"""Recording of timelines without a GPU: what is refused and why, and what the launcher is given."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.wgmma_paths import TMA_KNOBS
from tirgemm.analysis.timeline.decoding import UNWRITTEN
from tirgemm.artifact import Signer, pack
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest, MeasurementFailed, Unsupported
from tirgemm.families import family_named
from tirgemm.families.common.ring_buffer import BEGUN, ENDED, HEADER_WORDS, RECORDED, TIMELINE
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Pointer, TensorMap
from tirgemm.tuning.timed_kernel import TimedKernel, record, recorded, timed_kernel
from tirgemm.tuning.verify.host import HostBackend

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


class _HostGpu:
    """A GPU whose memory is the host's."""

    ordinal = 0

    def __init__(self, device: Device) -> None:
        self.device = device

    def to_device(self, address: int, array: np.ndarray) -> None:
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def to_host(self, address: int, out: np.ndarray) -> None:
        ctypes.memmove(out.ctypes.data, address, out.nbytes)


class _HostMemory:
    """Memory of the host, as device memory is asked for; the last piece is kept."""

    last: ClassVar[_HostMemory]

    def __init__(self, nbytes: int) -> None:
        self.words = np.zeros(nbytes // 4, np.uint32)
        self.address = self.words.ctypes.data
        _HostMemory.last = self


class _TimedCalls:
    """Stands for the kernel: computes D, and records that call number i began at cycle 2,000 i; ``factor``: D's."""

    def __init__(self, kernel: TimedKernel, factor: float = 1.0) -> None:
        self.kernel, self.factor, self.count = kernel, factor, 0
        self.unwritten: list[bool] = []

    def __call__(self, a: Any, b: Any, d: Any, ring: Any, alpha: float) -> None:
        ours = _HostMemory.last.words
        assert ring.data_ptr() == ours.ctypes.data
        self.unwritten.append(bool((ours == UNWRITTEN).all()))
        self.count += 1
        ours[:] = _words(self.kernel, 2000 * self.count, 1000 * self.count).ravel()
        left, right, out = (np.from_dlpack(tensor) for tensor in (a, b, d))
        out[...] = (self.factor * alpha * (left.astype(np.float32) @ right.astype(np.float32).T)).astype(np.float16)


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> TimedKernel:
    """A kernel that takes a scalar behind the tensors, on a GPU that is the host."""
    monkeypatch.setattr("tirgemm.tuning.driver.cuda.Gpu", _HostGpu)
    monkeypatch.setattr("tirgemm.tuning.driver.cuda.Memory", _HostMemory)
    monkeypatch.setattr("tirgemm.tuning.verify.cuda.CudaBackend", lambda *_: HostBackend())
    config = Config("wgmma", tuple((TMA_KNOBS | {"tile_n": 96, "stages": 2}).items()))
    return timed_kernel(Gemm.parse("1024x1024x128:f16:nt:alpha"), config, _H200, _SLOTS)


def test_the_last_of_some_calls_is_recorded_beside_one_long_before(
    scaled: TimedKernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = _TimedCalls(scaled)
    monkeypatch.setattr("tirgemm.tuning.timed_kernel.loaded", lambda *_: calls)
    gpu = _H200.with_(uuid="GPU-1")
    recording = record(scaled, gpu, {"device": gpu.model}, blocks=2, lock_dir=tmp_path)
    assert recording.measured
    assert recording.blocks == (0, scaled.timed.ring.blocks // 2)
    assert {track.begun.cycles for track in recording.tracks} == {2000 * calls.count}
    assert recording.cycles_per_us == 2000.0
    # Each of the two was begun with ring buffers in which nothing was written.
    assert sum(calls.unwritten) == 2
    assert calls.count > 6


def test_a_kernel_that_is_wrong_with_time_stamps_is_not_recorded(
    scaled: TimedKernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tirgemm.tuning.timed_kernel.loaded", lambda *_: _TimedCalls(scaled, factor=1.01))
    with pytest.raises(MeasurementFailed, match="is wrong with time stamps"):
        record(scaled, _H200.with_(uuid="GPU-1"), {}, lock_dir=tmp_path)


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
from tirgemm.tuning.timed_kernel import loaded
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
