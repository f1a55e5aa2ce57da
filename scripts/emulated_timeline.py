"""Recording of a small kernel by the CPU emulator, which the service shows where a kernel's timeline was not recorded.

    python scripts/emulated_timeline.py

writes ``service/explain/emulated_timeline.json``. Of the emulator's schedules the one of SEED is drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from verification.emulator.timeline import emulated_timelines

from tirgemm.config import Config
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import Gemm
from tirgemm.service.explain.kernel_timeline import EMULATED
from verification.emulator.operands import KernelCall

GEMM = Gemm.parse("256x128x512:f16:nt")
SEED, SLOTS, SMS = 5, 256, 2
CONFIG = Config(
    "wgmma",
    (
        ("tile_m", 64),
        ("tile_n", 64),
        ("tile_k", 64),
        ("stages", 4),
        ("schedule", "pingpong"),
        ("resident", 1),
        ("cluster_m", 1),
        ("cluster_n", 1),
        ("swap", 0),
        ("split", 1),
        ("reduction", "cluster"),
        ("load", "tma"),
        ("epilogue", "tma"),
        ("order", "m"),
        ("group", 1),
        ("l2_promotion", 2),
        ("eviction", "normal"),
    ),
)


def main() -> None:
    """Emulate the kernel and write what it recorded."""
    cut = plan(GEMM, CONFIG, SMS)
    call = KernelCall.integers(GEMM, GEMM.m_max, seed=0)
    ((_, recording),) = emulated_timelines(cut, SLOTS, call, [SEED])
    recording.write(EMULATED)
    print(f"{EMULATED}: {EMULATED.stat().st_size} bytes, {len(recording.tracks)} tracks")


if __name__ == "__main__":
    main()
