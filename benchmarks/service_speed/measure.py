"""Measure how many known kernels a second one server process answers, beside a bare FastAPI route of that process.

A real server process on a temporary SQLite database; the load comes from this process, over connections on loopback.
The two routes are asked in alternating turns, so that what else the machine does meets both.

usage: python -m benchmarks.service_speed.measure [--out FILE]     from the root of the repository
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command import run
from benchmarks.service_speed import document
from benchmarks.service_speed.load import Turn, drive, request
from benchmarks.service_speed.server import BARE
from benchmarks.service_speed.stored_kernels import DEVICE, gemms, store_kernels
from benchmarks.tables import figures_document
from tirgemm.bench.results import environment, measured_at, write
from tirgemm.detect import device as detect_device
from verification.service.processes import server_process

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    about = environment(detect_device("cpu"), ROOT, options.commit)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tirgemm-service-") as folder:
        problems = gemms(options.kernels)
        store_kernels(Path(folder), problems)
        with server(Path(folder)) as (port, headers):
            hits = [
                request("POST", "/v1/kernels", headers, json.dumps({"gemm": str(g), "device": DEVICE.key}).encode())
                for g in problems
            ]
            same = {
                "kernels": len(problems),
                "connections": options.connections,
                "turn_seconds": options.seconds,
                "document_bytes": _document_bytes(port, headers, str(problems[0])),
            }
            figures = {
                f"hits, the same {options.few} kernels": hits[: options.few],
                f"hits, any of {len(hits):,} kernels": hits,
            }
            for figure, asked in figures.items():
                ours, bare = alternate(port, asked, options)
                rows.append(document.row_of(figure, same, ours, bare) | measured_at(about, None))
                print(f"{figure}: {rows[-1]['per_second']:.0f} a second, {rows[-1]['share']:.2f} of the bare route")
    if options.out is not None:
        write(options.out, figures_document(document.SUITE, about, rows))
    return 0


def alternate(port: int, asked: Sequence[bytes], options: argparse.Namespace) -> tuple[list[Turn], list[Turn]]:
    """Turns of ``asked`` and of the bare route, one after the other; the first of each is not kept."""
    ours: list[Turn] = []
    bare: list[Turn] = []
    for turn in range(options.turns + 1):
        for samples, requests in ((ours, asked), (bare, [request("GET", BARE, {})])):
            samples.append(drive(port, requests, options.connections, options.seconds, seed=turn))
    return ours[1:], bare[1:]


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """A server process on a data folder: its port, and the headers that it takes."""
    with server_process("benchmarks.service_speed.server", folder) as told:
        yield told["port"], {"Authorization": f"Bearer {told['key']}", "Content-Type": "application/json"}


def _document_bytes(port: int, headers: dict[str, str], gemm: str) -> int:
    """The length of one answer."""
    body = {"gemm": gemm, "device": DEVICE.key}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/kernels", json=body, headers=headers, timeout=START_SECONDS)
    return len(answer.raise_for_status().content)


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=100_000, help="kernels in the database")
    parser.add_argument("--few", type=int, default=64, help="kernels of the first figure, as many as a model has")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--commit", help="the program's, where its history is not here")
    parser.add_argument("--out", type=Path, help="the results file to write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
