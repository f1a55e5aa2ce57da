"""Recordings of the kernel that the emulator ran, and a stored kernel of the same config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.service.support import Service
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.timings import Timing, Timings
from tirgemm.tuning.records import KernelRecord

# Of tests/contract/families/emulated_timeline.py.
EMULATOR = Recording.read(Path(__file__).parents[2] / "data" / "emulated_timeline.json")
CONFIG = Config("wgmma", tuple(EMULATOR.config.items()))
# As if a GPU had recorded it: a step of the emulator is a cycle.
RECORDED = replace(
    EMULATOR,
    source="device",
    cycles_per_us=1755.5,
    timer_step_ns=32,
    environment={"device": "NVIDIA H200", "driver": "580.65", "date": "2026-11-01"},
)


def recorded_kernel(service: Service, config: Config = CONFIG) -> str:
    """The id of a stored kernel of the recording's problem."""
    blob = service.store.put_blob(b"artifact")
    timings = Timings({"sustained": Timing(5.0)})
    gemm, device = Gemm.parse(EMULATOR.gemm), named_device("sm_90a")
    record = KernelRecord(gemm, device, "sustained", "tuned", config, "ab" * 32, blob, 8, None, timings)
    return service.store.put_kernel(record).id


def put_recording(service: Service, kernel_id: str, recording: Recording, ending: str = ".json.gz") -> Path:
    """Put a recording where the service looks for it."""
    path = service.state.settings.data / "timelines" / f"{kernel_id}{ending}"
    path.parent.mkdir(exist_ok=True)
    recording.write(path)
    return path
