"""Measure how long known kernels take while a job tunes on the same machine, beside the same on an idle one.

A real server process, and beside it for half of the turns a real worker with jobs that search on the CPU, one after
the other.

usage: python -m benchmarks.service_speed.while_tuning [--out FILE]     from the root of the repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.service_speed.stored_kernels import gemms, store_kernels
from benchmarks.service_speed.turns import Figures, asked, parser, server
from benchmarks.service_speed.working import await_status, submitted, worker
from tirgemm.tuning_db import Database
from verification.command import run

# More than are done in all turns together: a search ends when it expects no more.
TUNED = [f"{m}x511x513:f16:nt" for m in range(509, 629, 2)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    problems = gemms(options.kernels)
    same = {"kernels": len(problems)}
    with Figures.run(options) as (figures, folder):
        store_kernels(folder, problems)
        with server(folder) as service, Database.embedded(folder) as database:
            hits = service.hits(problems)
            figures.add("hits, nothing tunes", asked(service.port, hits, options), **same)
            with worker(folder):
                jobs = [submitted(database, gemm, seconds=120.0) for gemm in TUNED]
                await_status(database, jobs[0], "running")
                figures.add("hits, a job tunes on the CPU", asked(service.port, hits, options), **same)
                await_status(database, jobs[-1], "queued")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--kernels", type=int, default=64, help="known kernels, as many as a model has")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
