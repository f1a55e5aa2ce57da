"""Measure how many known kernels a second ``tirgemm serve --server-processes N`` answers, for several N.

Each N is a real service without a worker, all of them on one SQLite database. The bare FastAPI route is that of a
process of its own, which is idle in the other turns. The load comes from this process, which takes a processor, too.

usage: python -m benchmarks.service_speed.server_processes [--processes 1 2] [--out FILE]     from the root of the
repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import httpx

from benchmarks.service_speed.stored_kernels import gemms, store_kernels
from benchmarks.service_speed.turns import Figures, asked, parser, server
from verification.command import run
from verification.service.processes import Serve


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    problems = gemms(options.kernels)
    with Figures.run(options) as (figures, folder):
        store_kernels(folder, problems)
        with server(folder) as bare:
            hits = bare.hits(problems)
            for count in options.processes:
                with Serve(folder, "--no-worker", "--server-processes", str(count)) as service:
                    port = httpx.URL(service.url).port
                    assert port is not None
                    same = {"kernels": len(problems), "server_processes": count}
                    for kernels, requests in {
                        f"the same {options.few}": hits[: options.few],
                        f"any of {len(hits):,}": hits,
                    }.items():
                        measured = asked(port, requests, options, bare_port=bare.port)
                        figures.add(f"hits, {kernels} kernels, {_counted(count)}", measured, **same)
    return 0


def _counted(processes: int) -> str:
    return "1 server process" if processes == 1 else f"{processes} server processes"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--kernels", type=int, default=100_000, help="kernels in the database")
    options.add_argument("--few", type=int, default=64, help="kernels of the first figure, as many as a model has")
    options.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="server processes, one after another")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
