"""Results files made up for the tests of tables, and the cells of a table."""

from __future__ import annotations

from typing import Any

from tirgemm import Config, Device, Gemm
from tirgemm.bench.results import MeasuredKernel, measured_row
from tirgemm.config import Value
from tirgemm.tuning.records import SampleSet

GPU = Device(
    "cuda", "sm_90a", "NVIDIA H200", 132, 2**37, uuid="GPU-1", environment=(("python", "3.12"), ("tvm", "0.27"))
)

KNOBS: dict[str, Value]

KNOBS = {"tile_m": 128, "tile_n": 128, "split": 1, "swap": 0, "load": "tma", "schedule": "cooperative"}

SUITES = {
    "square": ["1024x1024x1024:f16:nt", "8192x8192x8192:f16:nt"],
    "deepgemm": ["16x24576x1536:f16:nt", "16x576x7168:f16:nt", "128x4096x7168:f16:nt"],
    "llama": ["1x28672x4096:f16:nt"],
    "skinny": ["64x64x8192:f16:nt"],
    "odd": ["1025x1024x1024:f16:nt", "1024x1025x1024:f16:nt"],
}

# Speed of default and tuned over torch.matmul; the tuned one takes 10 us.
SPEEDS = {
    "1024x1024x1024:f16:nt": (0.91, 0.96),
    "8192x8192x8192:f16:nt": (1.0, 1.05),
    "16x24576x1536:f16:nt": (1.1, 1.21),
    "16x576x7168:f16:nt": (1.0, 1.0),
    "128x4096x7168:f16:nt": (1.2, 1.2),
    "1x28672x4096:f16:nt": (1.5, 1.6),
    "64x64x8192:f16:nt": (2.0, 2.0),
    "1025x1024x1024:f16:nt": (0.98, 0.99),
    "1024x1025x1024:f16:nt": (4.0, 5.0),
    "7168x9216x64:f16:nt": (1.0, 1.0),
}


def config(**changes: Any) -> Config:
    return Config("wgmma", tuple((KNOBS | changes).items()))


def contest(text: str, read_gbps: float, count: int = 50, **knobs: Any) -> list[dict[str, Any]]:
    """The default's and the tuned row of two races."""
    default, tuned = SPEEDS[text]
    baselines = {"torch.matmul": (10.0 * tuned,) * count, "cublaslt_best": (10.0 * tuned / 1.1,) * count}
    conditions = {"clock_mhz": 1410, "power_w": 690.0, "throttled": ["power_cap"]}
    about = {"at": "2026-11-21T13:00:00+00:00", "read_gbps": read_gbps, "swapped": False}
    ours = {"default": (10.0 * tuned / default,) * count, "tuned": (9.9, 10.1) * (count // 2)}
    return [
        measured_row(
            Gemm.parse(text),
            config(tile_k=64 + 64 * (variant == "tuned"), **knobs),
            variant,
            [
                SampleSet(
                    raw,
                    "selection",
                    baselines | ({"default": ours["default"]} if variant == "tuned" else {}),
                    conditions,
                )
            ]
            * 2,
            MeasuredKernel(0.5, 0, "a" * 64, "b" * 64),
            about,
        )
        for variant, raw in ours.items()
    ]


def cells(table: str, first: str) -> list[str]:
    """The cells of the first line that begins with a cell."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def raced(text: str, variant: str, us: float, beside: dict[str, float]) -> dict[str, Any]:
    """A row of two races."""
    baselines: dict[str, tuple[float, ...]] = {name: (taken,) * 24 for name, taken in beside.items()}
    races = [SampleSet((us,) * 24, "selection", baselines, {"at": "2026-11-23T04:00:00+00:00"})] * 2
    kernel = MeasuredKernel(error=0.5, artifact_sha256="a" * 64, source_sha256="b" * 64, workspace_bytes=0)
    return measured_row(Gemm.parse(text), config(), variant, races, kernel)
