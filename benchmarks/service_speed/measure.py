"""Measure how many known kernels a second one server process answers, beside a bare FastAPI route of that process.

A real server process on a temporary database, SQLite or, with --postgres, a PostgreSQL server of its own; the load
comes from this process, over connections on loopback. The two routes are asked in alternating turns, so that what else
the machine does meets both.

usage: python -m benchmarks.service_speed.measure [--postgres] [--out FILE]     from the root of the repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import httpx

from benchmarks.service_speed.stored_kernels import DEVICE, gemms, store_kernels
from benchmarks.service_speed.turns import Figures, Server, asked, parser, server
from verification.command import run
from verification.service.postgres_server import find_programs, running

ANSWER_SECONDS = 60.0
# As a server is operated, but for the flush to the disk: what is measured only reads.
SETTINGS = ("fsync=off", "shared_buffers=256MB")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    problems = gemms(options.kernels)
    kind = "PostgreSQL, " if options.postgres else ""
    with ExitStack() as stack:
        figures, folder = stack.enter_context(Figures.run(options))
        url = ""
        if options.postgres:
            url = stack.enter_context(running(find_programs(), SETTINGS)).url.replace("DATABASE", "postgres")
        store_kernels(folder, problems, url)
        service = stack.enter_context(server(folder, {"TIRGEMM_DB": url}))
        hits = service.hits(problems)
        same = {"kernels": len(problems), "document_bytes": _document_bytes(service, str(problems[0]))}
        for figure, requests in {
            f"{kind}hits, the same {options.few} kernels": hits[: options.few],
            f"{kind}hits, any of {len(hits):,} kernels": hits,
        }.items():
            figures.add(figure, asked(service.port, requests, options), **same)
    return 0


def _document_bytes(service: Server, gemm: str) -> int:
    """The length of one answer."""
    body, url = {"gemm": gemm, "device": DEVICE.key}, f"http://127.0.0.1:{service.port}/v1/kernels"
    answer = httpx.post(url, json=body, headers=service.headers, timeout=ANSWER_SECONDS)
    return len(answer.raise_for_status().content)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--kernels", type=int, default=100_000, help="kernels in the database")
    options.add_argument("--few", type=int, default=64, help="kernels of the first figure, as many as a model has")
    options.add_argument("--postgres", action="store_true", help="on PostgreSQL, not SQLite")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
