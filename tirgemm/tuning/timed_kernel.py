"""Recording of kernel timelines from a build with time stamps.

The kernel with time stamps is another one than that which is tuned, served and measured: it is built for the recording
and kept by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm._extras import require
from tirgemm.analysis.timeline.decoding import UNWRITTEN, cycles_per_us, spread, timer_step_ns, tracks_of
from tirgemm.analysis.timeline.recording import Recording, Source
from tirgemm.artifact import native
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, MeasurementFailed, Unsupported
from tirgemm.expr import evaluate
from tirgemm.families import families
from tirgemm.families.base import TimedProgram, WithTimeline
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.compile import compile_program
from tirgemm.tuning.explain import writing
from tirgemm.tuning.process.locks import DeviceLock

SLOTS = 4096
"""Spans that a warpgroup keeps; a tile of k = 4096 takes some 130."""
BLOCKS = 8
"""Blocks that a recording keeps, of all that are launched."""
# Before the one that is recorded, and the one whose clocks it is compared with: of each the last counts.
_CALLS = 4
_SEED = 1
_WORD_BYTES = 4


@dataclass(frozen=True)
class TimedKernel:
    """A config's kernel with time stamps, compiled; ``binary`` has the launch as the cubin takes it."""

    gemm: Gemm
    config: Config
    timed: TimedProgram
    binary: Binary


def timed_kernel(gemm: Gemm, config: Config, device: Device, slots: int = SLOTS) -> TimedKernel:
    """Build ``config`` of ``gemm`` for ``device`` with time stamps; each warpgroup keeps its last ``slots`` spans.

    Raises Unsupported for a family without time stamps, and as ``explain`` does; InvalidConfig, InvalidRequest,
    BuildFailed.
    """
    require("recording a timeline", "tune")
    family = writing(gemm, config.family, device)
    if not isinstance(family, WithTimeline):
        able = ", ".join(name for name, each in families().items() if isinstance(each, WithTimeline))
        raise Unsupported(f"kernels of family {family.name} have no time stamps; families that have them: {able}")
    timed = family.timed_program(gemm, config, device, slots)
    return TimedKernel(gemm, config, timed, compile_program(timed.program, device))


def recorded(
    kernel: TimedKernel,
    m: int,
    words: Any,
    source: Source,
    environment: Mapping[str, Any],
    *,
    blocks: int = BLOCKS,
    earlier: Any = None,
) -> Recording:
    """The recording of one call at ``m``, after which ``words`` (uint32) are in the ring buffers.

    ``environment`` as results files have it; ``blocks``: how many are kept, evenly spread; ``earlier``: of a device the
    words of a call some time before, from which on its clocks are compared. Raises MeasurementFailed
    where the words are nothing that a kernel can have recorded, InvalidRequest where it did not end or ran too long.
    """
    ring, measured = kernel.timed.ring, source == "device"
    launched = evaluate(kernel.timed.blocks, m)
    tracks = tracks_of(words, ring, launched)
    rate = cycles_per_us(tracks_of(earlier, ring, launched), tracks) if measured else 0.0
    kept = spread(launched, blocks)
    recording = Recording(
        source=source,
        environment=environment,
        gemm=str(kernel.gemm),
        m=m,
        family=kernel.config.family,
        config=dict(kernel.config.knobs),
        kernel=kernel.timed.symbol,
        resources=kernel.binary.resources,
        source_sha256=kernel.binary.source_sha256,
        kinds=ring.kinds,
        slots=ring.slots,
        launched=launched,
        cycles_per_us=rate,
        timer_step_ns=timer_step_ns(tracks) if measured else 0,
        tracks=tuple(track for track in tracks if track.block in kept),
    )
    fault = next(recording.faults(), None)
    if fault is not None:
        raise MeasurementFailed(f"the timeline of {kernel.config} for {kernel.gemm} cannot be: {fault}")
    return recording


def loaded(gemm: Gemm, binary: Binary, device: Device) -> Callable[..., None]:
    """The call of a kernel with time stamps: tensors in the launch's order, the ring buffers as float32 behind d, then
    the scalars."""
    described = {"gemm": gemm.to_json(), "device": device.to_json(), "launch": binary.launch.to_json()}
    return native.load([binary.data], [json.dumps(described)]).call


def record(
    kernel: TimedKernel,
    device: Device,
    environment: Mapping[str, Any],
    *,
    m: int = 0,
    blocks: int = BLOCKS,
    lock_dir: Path | None = None,
) -> Recording:
    """Verify ``kernel`` on ``device``, a GPU of this machine, then record a call of it at ``m`` (the largest by
    default) on warm caches, under the device's lock.

    Raises DeviceUnavailable for a device that is only named, MeasurementFailed where the kernel is wrong or what it
    recorded cannot be.
    """
    if not device.present or device.kind != "cuda":
        raise DeviceUnavailable(
            f"a timeline is recorded by a GPU of this machine, and {device.name} is none; "
            f"`tirgemm explain --timeline FILE` draws one that was recorded elsewhere"
        )
    from tirgemm.tuning.driver.cuda import Gpu, Memory
    from tirgemm.tuning.driver.tensors import CUDA, View
    from tirgemm.tuning.verify.cuda import CudaBackend
    from tirgemm.tuning.verify.flow import verify
    from tirgemm.tuning.verify.plan import GemmTest

    with DeviceLock(device.lock_key, lock_dir):
        gpu = Gpu(device)
        backend, function = CudaBackend(gpu), loaded(kernel.gemm, kernel.binary, device)
        ring = Memory(_WORD_BYTES * kernel.timed.ring.words)
        view = View(ring.address, "f32", (kernel.timed.ring.words,), (1,), CUDA, gpu.ordinal)
        tensors = len(kernel.binary.launch.tensors) - 1

        def call(*arguments: object) -> None:
            function(*arguments[:tensors], view.tensor, *arguments[tensors:])

        report = verify(
            backend, kernel.gemm, call, kernel_sha256=kernel.binary.binary_sha256, level="candidate", seed=_SEED
        )
        if not report.passed:
            raise MeasurementFailed(f"{kernel.config} for {kernel.gemm} is wrong with time stamps: {report.tests}")
        m = m or kernel.gemm.m_max
        case = backend.prepare(GemmTest(kernel.gemm, m, "normal", _SEED))
        words = np.full((2, kernel.timed.ring.words), UNWRITTEN, np.uint32)
        for taken in words:
            gpu.to_device(ring.address, taken)
            for _ in range(_CALLS):
                backend.run(case, call)
            gpu.to_host(ring.address, taken)
    return recorded(kernel, m, words[1], "device", environment, blocks=blocks, earlier=words[0])
