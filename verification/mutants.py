"""Mutation testing of synchronisation: every barrier, wait and fence of a family's kernels removed one at a time.

    python -m verification.mutants wgmma --device cuda:0 --seconds 400 \\
        --out benchmarks/results/nvidia-h200/wgmma.mutants.json.gz

Each mutant runs the exact test as it is, then with random delays, many times; what both miss runs under
compute-sanitizer, several kernels in a process, and alone where anything was found there. What an earlier start left
for the sanitizer goes there first, and the tests leave it a part of the time. A row says what caught it. All waits are
bounded, so that what would hang is a failed launch; a hang in a barrier of the hardware is killed with its measuring
process. The unaltered kernels run through the same mill and must pass. Started again it goes on where it stopped. On a
named device mutants are only built. The exit code is 1 where an unaltered kernel failed or a mutant was not reached; a
mutant that nothing catches is a row, not a failure. A device that cannot be opened any more ends the run, with 2, and
no row comes of that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from tirgemm.artifact import Trust
from tirgemm.artifact.closing import Closing
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, TirgemmError
from tirgemm.families import Family, family_named
from tirgemm.status import Status
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.workbench import Workbench
from verification import alterations, command
from verification.alterations import DELAY, LIMIT, Mutant
from verification.altered import altered_bench, lowered, with_alteration
from verification.cases import Case
from verification.covering import build_cost, covering, paths, small_cases, warps
from verification.evidence import EvidenceFile, Row
from verification.kernel_status import kernel_status
from verification.sanitizer import AT_ONCE, CLEAN, FOUND, SanitizerReport, each
from verification.threads import Threads

DRAWN = 200
# In a block of one warp nothing shows that a barrier is gone.
_LEAST_WARPS = 4
UNALTERED = Mutant("", "nothing", "")
BUILT, PASSED, SAME_CODE, BUILD_FAILED, NOT_CAUGHT = "built", "passed", "same code", "build failed", "not caught"
# The compiler repairs the kernel at the price of speed and warns: a test of every path's build looks for that warning.
SERIALISED = "ptxas warning"
# Verifications, each of two launches or more: as it is, and with random delays.
PLAIN_TRIES, DELAYED_TRIES = 3, 12
_SILENCE_S = 10.0
# How much of the time is for what comes before the sanitizer.
_TESTS_SHARE = 0.6
# The tool that finds what a removed barrier does comes first. Starting a process takes longer than a kernel does.
_TOOLS = ("racecheck", "memcheck", "synccheck")
# Behind the status of what a tool did not judge.
_FAILED = ", tools failed"
# What the driver answers after a trap, which is how a bounded wait ends.
_TRAPS = ("LAUNCH_FAILED", "ILLEGAL_INSTRUCTION")


@dataclass(frozen=True)
class MutantRun:
    """One mutant of one case, without a mutant the kernel as it is, and the source hash of that."""

    case: Case
    mutant: Mutant
    source_sha256: str = ""

    @property
    def key(self) -> str:
        return f"{self.case.key} {self.mutant.alteration or 'unaltered'}"

    def config(self, *more: str) -> Config:
        return with_alteration(self.case.config, "+".join(word for word in (self.mutant.alteration, *more) if word))

    @property
    def row(self) -> Row:
        fields: Row = {
            "gemm": str(self.case.gemm),
            "config": dict(self.case.config.knobs),
            "mutant": self.mutant.alteration,
            "source_sha256": self.source_sha256,
        }
        return fields | {"what": self.mutant.what, "where": self.mutant.where}


def main() -> int:
    options = _options()
    family, device = family_named(options.family), detect_device(options.device)
    jobs = list(all_jobs(family, device, options.kernels))
    evidence = EvidenceFile(options.out, "mutants", family.name, device, commit=options.commit)
    todo = [job for job in jobs if job.key not in evidence.rows]
    print(f"{len({job.case for job in jobs})} kernels, {len(jobs)} mutants and kernels, {len(todo)} to go", flush=True)
    deadline = time.monotonic() + options.seconds
    with evidence.saved(), altered_bench(device, options.processes) as bench:
        if not device.present or options.no_sanitizer:
            _tested(bench, todo, evidence, options.parallel, deadline)
        else:
            tools = partial(sanitized, bench, jobs, evidence, options.parallel, options.at_once, deadline)
            tools()
            now = time.monotonic()
            _tested(bench, todo, evidence, options.parallel, now + _TESTS_SHARE * (deadline - now))
            tools()
            todo = [job for job in todo if job.key not in evidence.rows]
            _tested(bench, todo, evidence, options.parallel, deadline)
    bad = [row["key"] for row in evidence.rows.values() if not row["mutant"] and row["status"] not in (PASSED, BUILT)]
    return ended(evidence, jobs, bad)


def ended(evidence: EvidenceFile, jobs: list[MutantRun], bad: list[str]) -> int:
    """Save what caught the mutants, and print it: 1 where ``bad`` has unaltered kernels or a job was not reached."""
    rows = list(evidence.rows.values())
    evidence.summary = {"caught_by": dict(Counter(row["status"] for row in rows if row["mutant"]))}
    evidence.save()
    for line in table(rows):
        print(line)
    absent = sum(job.key not in evidence.rows for job in jobs)
    counts = evidence.summary["caught_by"]
    print(f"{evidence.path}: {counts}, {absent} not reached; unaltered kernels that fail: {bad}")
    return int(bool(absent or bad))


def all_jobs(family: Family, device: Device, kernels: int | None) -> Iterator[MutantRun]:
    """Every mutant of the kernels that cover every path (the first ``kernels`` of them), each kernel itself first."""
    cases = [case for case in small_cases(family, device, DRAWN, plain=True) if warps(case) >= _LEAST_WARPS]
    for case in covering(cases, paths, build_cost)[:kernels]:
        _, source = lowered(case.gemm, case.config, device.device_class)
        for mutant in (UNALTERED, *alterations.mutants(source)):
            yield MutantRun(case, mutant, sha256(source.encode()).hexdigest())


def _tested(bench: Workbench, jobs: list[MutantRun], evidence: EvidenceFile, parallel: int, deadline: float) -> None:
    """Build all; run the exact test with and without delays, a few mutants at a time."""
    builds = {
        job: (bench.build(job.case.gemm, job.config(LIMIT)), bench.build(job.case.gemm, job.config(LIMIT, DELAY)))
        for job in jobs
    }
    # The machine code of a kernel as it is, by which a mutant that changes nothing is known.
    own = {job.case: builds[job][0] for job in jobs if job.mutant == UNALTERED}
    with MeasurerPerThread(bench, parallel) as measurers, Threads(parallel) as pool:
        waiting = {
            pool.submit(_caught, bench, measurers, job, *builds[job], own.get(job.case), deadline): job for job in jobs
        }
        saved = time.monotonic()
        for future in as_completed(waiting):
            row = future.result()
            if row is not None:
                evidence.add(waiting[future].key, waiting[future].row | row)
            if time.monotonic() - saved > 15:
                saved = time.monotonic()
                evidence.save()
                print(f"{len(evidence.rows)} rows", flush=True)
    evidence.save()


class MeasurerPerThread(Closing):
    """A measuring process for each thread, with locks of their own: correctness may be tested by several at a time."""

    def __init__(self, bench: Workbench, count: int) -> None:
        self._bench, self._count = bench, count
        self._folder = tempfile.TemporaryDirectory()
        self._own = threading.local()
        self._all: list[Measurer] = []

    def measurer(self) -> Measurer:
        """This thread's."""
        if not hasattr(self._own, "measurer"):
            folder = Path(self._folder.name) / str(threading.get_ident())
            trust = Trust.of(self._bench.signer.public)
            self._own.measurer = Measurer(self._bench.device, trust, lock_dir=folder, timeout_s=_SILENCE_S)
            self._all.append(self._own.measurer)
        measurer: Measurer = self._own.measurer
        return measurer

    def close(self) -> None:
        for measurer in self._all:
            measurer.close()
        self._folder.cleanup()


def _caught(
    bench: Workbench,
    measurers: MeasurerPerThread,
    job: MutantRun,
    plain: Future[Binary],
    delayed: Future[Binary],
    own: Future[Binary] | None,
    deadline: float,
) -> Row | None:
    """What catches the mutant, short of the sanitizer; None where the time is up before that is known."""
    for future, words, tries in ((plain, (LIMIT,), PLAIN_TRIES), (delayed, (LIMIT, DELAY), DELAYED_TRIES)):
        if time.monotonic() > deadline:
            future.cancel()
            return None
        try:
            binary = future.result()
        except BuildFailed as error:
            return {"status": BUILD_FAILED, "message": str(error)[-300:]}
        if binary.resources["serialised"]:
            return {"status": SERIALISED, "message": "ptxas runs the wgmmas one by one, and says so"}
        if not bench.device.present:
            continue
        if job.mutant != UNALTERED and own is not None and words == (LIMIT,) and binary.data == own.result().data:
            return {"status": SAME_CODE}
        package = bench.package(job.case.gemm, job.config(*words), binary)
        noticed = _noticed(measurers.measurer(), package, tries)
        if noticed is not None:
            word, message = noticed
            return {"status": f"delays: {word}" if DELAY in words else word, "message": message[:200]}
    if not bench.device.present:
        return {"status": BUILT}
    return {"status": PASSED if job.mutant == UNALTERED else NOT_CAUGHT}


def _noticed(measurer: Measurer, package: bytes, tries: int) -> tuple[str, str] | None:
    """Which test fails first, in words, or None. Raises DeviceUnavailable."""
    for seed in range(tries):
        try:
            certificate = measurer.verify(package, level="candidate", seed=seed)
        except TirgemmError as error:
            hangs = kernel_status(error, measurer) == Status.TIMED_OUT or any(trap in str(error) for trap in _TRAPS)
            return "hang" if hangs else "crash", str(error)
        if not certificate.passed:
            worst = certificate.tests[-1]
            return f"{worst['name']} test" if worst["method"] != "guard bands" else "guard bands", worst["message"]
    return None


def sanitized(
    bench: Workbench, jobs: list[MutantRun], evidence: EvidenceFile, parallel: int, at_once: int, deadline: float
) -> None:
    """Run what nothing has caught, and the kernels as they are, under the sanitizer's tools, ``at_once`` in a process.

    Of several in a process one finding runs all again, each alone: what is nearly always caught goes faster one by one.
    """
    left = [job for job in jobs if _is_left(evidence.rows.get(job.key))]
    builds = {job: bench.build(job.case.gemm, job.config()) for job in left}
    count = max(1, min(at_once, -(-len(left) // parallel)))
    with tempfile.TemporaryDirectory() as folder, Threads(parallel) as pool:
        waiting = [
            pool.submit(_by_tools, bench, left[i : i + count], builds, Path(folder), deadline)
            for i in range(0, len(left), count)
        ]
        for future in as_completed(waiting):
            for job, row in future.result().items():
                evidence.add(job.key, job.row | row)
            evidence.save()


def _is_left(row: Row | None) -> bool:
    """Whether the tools have not said, or not to the end, what they find of what nothing else has caught."""
    if row is None:
        return False
    return row["status"].endswith(_FAILED) or (row["status"] in (NOT_CAUGHT, PASSED) and "tools" not in row)


def _by_tools(
    bench: Workbench, jobs: list[MutantRun], builds: dict[MutantRun, Future[Binary]], folder: Path, deadline: float
) -> dict[MutantRun, Row]:
    """Rows of those jobs about which every tool has said its word, or one has found something."""
    rows: dict[MutantRun, Row] = {}
    said: dict[MutantRun, dict[str, str]] = {job: {} for job in jobs}
    for tool in _TOOLS:
        going = [job for job in jobs if job not in rows and job in said]
        for job, report in _reports(bench, tool, going, builds, folder, deadline).items():
            if report is None:
                del said[job]
                continue
            said[job][tool] = report.status
            if report.status == FOUND:
                rows[job] = {"status": tool, "message": report.findings[0][:200], "tools": said[job]}
    for job, words in said.items():
        if job not in rows:
            status = PASSED if job.mutant == UNALTERED else NOT_CAUGHT
            clean = all(word == CLEAN for word in words.values())
            rows[job] = {"status": status if clean else status + _FAILED, "tools": words}
    return rows


def _reports(
    bench: Workbench,
    tool: str,
    jobs: list[MutantRun],
    builds: dict[MutantRun, Future[Binary]],
    folder: Path,
    deadline: float,
) -> dict[MutantRun, SanitizerReport | None]:
    """What a tool says about each; None: out of time."""
    if not jobs or time.monotonic() > deadline:
        return dict.fromkeys(jobs)
    files: dict[MutantRun, Path] = {}
    for job in jobs:
        name = f"{job.case.config.digest}-{job.mutant.alteration or 'asis'}".replace(":", "-").replace(",", "-")
        files[job] = folder / f"{job.case.gemm.digest}-{name}.tirgemm"
        if not files[job].exists():
            files[job].write_bytes(bench.package(job.case.gemm, job.config(), builds[job].result()))
    reports = each(tool, list(files.values()), bench.signer.public, bench.device.uuid, deadline)
    return {job: reports[file] for job, file in files.items()}


def table(rows: list[Row]) -> Iterator[str]:
    """Which mutants of which places were caught by what, most general first."""
    statuses: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        if row["mutant"]:
            statuses.setdefault((row["what"], row["where"]), Counter())[row["status"]] += 1
    for (what, where), counts in sorted(statuses.items()):
        yield f"{what} | {where} | {', '.join(f'{status} {count}' for status, count in counts.most_common())}"


def _options() -> argparse.Namespace:
    made = command.family_parser(__doc__, 400.0)
    made.add_argument("--kernels", type=int, default=None, help="only the first so many kernels")
    made.add_argument("--parallel", type=int, default=5, help="measuring processes, then sanitizers, at a time")
    made.add_argument(
        "--at-once", type=int, default=AT_ONCE, help="kernels in one process under the sanitizer, at most"
    )
    made.add_argument("--no-sanitizer", action="store_true", help="stop before compute-sanitizer")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(command.run(main))
