"""compute-sanitizer over kernels that cover every path of a family's source.

    python -m verification.sanitize wgmma --device cuda:0 --seconds 200 \\
        --out benchmarks/results/nvidia-h200/wgmma.sanitized.json.gz

Everything is built first, outside the sanitizer; then each kernel runs once under each tool, several in a process and
several processes at a time; where a process is not clean, each of its kernels again in one of its own. A planted access
outside of memory and a planted race show that the tools see such kernels at all. Started again it goes on where it
stopped. On a named device kernels are only built. The exit code is 1 where a tool found anything in a kernel of ours,
missed what was planted, failed itself, or was not reached. A GPU that cannot be opened any more ends the run, with 2,
and no row comes of that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from tirgemm.detect import device as detect_device
from tirgemm.errors import BuildFailed
from tirgemm.families import family_named
from tirgemm.tuning.workbench import Workbench
from verification import command
from verification.alterations import OUTSIDE, RACE
from verification.altered import altered_bench, with_alteration
from verification.cases import Case, Feature
from verification.covering import build_cost, covering, paths, small_cases, warps
from verification.evidence import EvidenceFile, Row
from verification.sanitizer import AT_ONCE, CLEAN, FOUND, TOOLS, each
from verification.sources import hash_of
from verification.threads import Threads

BUILT, NOTICED, MISSED, BUILD_FAILED = "built", "noticed", "missed", "build_failed"
GOOD = (BUILT, CLEAN, NOTICED)
DRAWN = 300
# Tool -> what is planted for it.
PLANTED = {"memcheck": OUTSIDE, "racecheck": RACE}


@dataclass(frozen=True)
class SanitizerRun:
    """One kernel under one tool."""

    tool: str
    case: Case
    alteration: str = ""

    @property
    def key(self) -> str:
        return " ".join(part for part in (self.tool, self.case.key, self.alteration) if part)


def main() -> int:
    options = _options()
    family, device = family_named(options.family), detect_device(options.device)
    cases = chosen(small_cases(family, device, DRAWN, plain=False))
    jobs = [SanitizerRun(tool, case) for case in cases for tool in options.tool or TOOLS]
    jobs = [*(SanitizerRun(tool, plantable(cases), what) for tool, what in PLANTED.items()), *jobs]
    evidence = EvidenceFile(options.out, "sanitized", family.name, device, commit=options.commit)
    todo = [job for job in jobs if job.key not in evidence.rows]
    print(f"{len(cases)} kernels, {len(jobs)} runs, {len(todo)} to go", flush=True)
    deadline = time.monotonic() + options.seconds
    with evidence.saved(), altered_bench(device, options.processes) as bench, tempfile.TemporaryDirectory() as folder:
        files = built(bench, todo, Path(folder), evidence)
        sources = {case: hash_of(case, device) for case in dict.fromkeys(job.case for job in files)}
        with Threads(options.parallel) as pool:
            waiting = [
                pool.submit(_run, bench, part, files, deadline)
                for part in batches([job for job in todo if job in files], options.parallel)
            ]
            for future in as_completed(waiting):
                for job, row in future.result().items():
                    evidence.add(job.key, row | {"source_sha256": sources[job.case]})
                    print(f"{row['status']}: {job.key} {row.get('findings', '')}", flush=True)
                evidence.save()
    absent = [job.key for job in jobs if job.key not in evidence.rows]
    bad = [row["key"] for row in evidence.rows.values() if row["status"] not in GOOD]
    print(f"{options.out}: {len(evidence.rows)} runs, {len(bad)} bad, {len(absent)} not reached")
    return int(bool(absent or bad))


def chosen(cases: list[Case]) -> list[Case]:
    """Few of the cases that have every path, activation, combination of addends and output that any has."""

    def features(case: Case) -> frozenset[Feature]:
        kept = ("act", "alpha, beta, bias", "acc, out", "odd n")
        return paths(case) | {(name, value) for name, value in case.features if name in kept}

    return covering(cases, features, build_cost)


def plantable(cases: list[Case]) -> Case:
    """The first whose blocks have several warps, between which there can be a race, and shared memory."""
    return next(case for case in cases if warps(case) > 1 and dict(case.config.knobs).get("reads") != "global")


def built(bench: Workbench, jobs: list[SanitizerRun], folder: Path, evidence: EvidenceFile) -> dict[SanitizerRun, Path]:
    """Each job's package as a file; what does not build is a row."""
    futures = {
        (case, alteration): bench.build(case.gemm, with_alteration(case.config, alteration))
        for case, alteration in dict.fromkeys((job.case, job.alteration) for job in jobs)
    }
    files: dict[SanitizerRun, Path] = {}
    for job in jobs:
        try:
            binary = futures[job.case, job.alteration].result()
        except BuildFailed as error:
            evidence.add(job.key, _row(job) | {"status": BUILD_FAILED, "message": str(error)[:400]})
            continue
        file = folder / f"{job.case.gemm.digest}-{job.case.config.digest}-{job.alteration or 'asis'}.tirgemm"
        if not file.exists():
            altered = with_alteration(job.case.config, job.alteration)
            file.write_bytes(bench.package(job.case.gemm, altered, binary))
        files[job] = file
    return files


def batches(jobs: list[SanitizerRun], parallel: int) -> list[list[SanitizerRun]]:
    """What one process does: one tool; what is planted alone, it is to be found."""
    lists = [[job] for job in jobs if job.alteration]
    for tool in TOOLS:
        mine = [job for job in jobs if job.tool == tool and not job.alteration]
        count = max(1, min(AT_ONCE, -(-len(jobs) // parallel)))
        lists += [mine[at : at + count] for at in range(0, len(mine), count)]
    return lists


def _run(
    bench: Workbench, jobs: list[SanitizerRun], files: dict[SanitizerRun, Path], deadline: float
) -> dict[SanitizerRun, Row]:
    """Rows of those that were reached."""
    if not bench.device.present:
        return {job: _row(job) | {"status": BUILT} for job in jobs if time.monotonic() <= deadline}
    started = time.monotonic()
    reports = each(jobs[0].tool, [files[job] for job in jobs], bench.signer.public, bench.device.uuid, deadline)
    seconds = round((time.monotonic() - started) / len(jobs), 1)
    rows: dict[SanitizerRun, Row] = {}
    for job in jobs:
        report = reports[files[job]]
        if report is None:
            continue
        status = report.status
        if job.alteration:
            status = {FOUND: NOTICED, CLEAN: MISSED}.get(status, status)
        findings = {"count": report.count, "findings": list(report.findings)} if report.findings else {}
        rows[job] = _row(job) | {"status": status, "seconds": seconds} | findings
    return rows


def _row(job: SanitizerRun) -> Row:
    planted = {"planted": job.alteration} if job.alteration else {}
    return {"tool": job.tool, "gemm": str(job.case.gemm), "config": dict(job.case.config.knobs)} | planted


def _options() -> argparse.Namespace:
    made = command.family_parser(__doc__, 300.0)
    made.add_argument("--tool", action="append", choices=TOOLS, help="only this tool (again for another)")
    made.add_argument("--parallel", type=int, default=6, help="sanitizers at a time")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(command.run(main))
