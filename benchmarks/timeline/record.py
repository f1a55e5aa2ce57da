"""Timelines of a few kernels of ``wgmma`` on a GPU, each into a file that is read wherever there is none.

    python -m benchmarks.timeline.record --device cuda:0

The kernels are defaults: one that takes many tiles in ping-pong, one of few rows, one whose k is split over a cluster.
``tirgemm explain --timeline FILE`` draws a file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tirgemm.bench.results import device_folder, environment
from tirgemm.detect import device as detect_device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.timed_kernel import record, timed_kernel
from verification import command

ROOT = Path(__file__).resolve().parents[2]
FAMILY = "wgmma"
ENDING = ".timeline.json.gz"
KERNELS = {
    "square": "4096x4096x4096:f16:nt",
    "few_rows": "16x4096x4096:f16:nt",
    "split": "128x4096x7168:f16:nt",
}
REGIME: Regime = "sustained"
# Few: a block of the square problem has some thousands of spans.
BLOCKS = 4


def main() -> int:
    options = _options()
    device = detect_device(options.device)
    out = options.out or ROOT / "benchmarks" / "results" / device_folder(device)
    out.mkdir(parents=True, exist_ok=True)
    about = environment(device, ROOT, options.commit)
    for name, text in KERNELS.items():
        gemm = Gemm.parse(text)
        config = family_named(FAMILY).default(gemm, device, REGIME)
        recording = record(timed_kernel(gemm, config, device), device, about, blocks=BLOCKS)
        file = out / f"{name}{ENDING}"
        recording.write(file)
        print(
            f"{file}: {recording.length:.1f} us, {sum(len(track.spans) for track in recording.tracks)} spans",
            flush=True,
        )
    return 0


def _options() -> argparse.Namespace:
    parser = command.parser(__doc__, "--device", "--commit")
    parser.add_argument("--out", type=Path, help="the folder (default: the device's under benchmarks/results)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(command.run(main))
