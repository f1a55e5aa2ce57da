"""Verify random cases of a family in full, as certificates are: exact and normal tests, guard bands, poisoned outputs.

    python -m verification.verify_family wgmma --device cuda:0 --count 640 --seconds 400 \\
        --out benchmarks/results/nvidia-h200/wgmma.verified.json.gz

Special cases (k, m or n of 1) come first, then random ones that cover every choice of every knob. All build processes
work ahead of the one that measures. Started again with the same arguments it goes on where it stopped. On a device
that is only named (``--device sm_90a``) cases are built, not run. The exit code is 1 where a case failed or is
missing, or more than one in a hundred spills.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice

from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, InvalidDevice, TirgemmError
from tirgemm.families import Family, family_named
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench
from verification import command
from verification.cases import Case, missing_choices, pairs_of, random_cases, special_cases
from verification.evidence import EvidenceFile, Row
from verification.kernel_status import kernel_status

SAVE_EVERY_S = 15.0
# Builds that wait or run ahead of the measuring process: a few for each build process.
_AHEAD = 6
PASSED, BUILT, WRONG, SPILLED, BUILD_FAILED, NO_CONFIG, SERIALISED = (
    "passed",
    "built",
    "wrong",
    "spilled",
    "build_failed",
    "no_config",
    "serialised",
)
GOOD = (PASSED, BUILT)
# Right, with a few bytes in local memory: no static rule foresees them all. Told and counted; so many of a hundred may.
MOST_SPILLED = 1


def main() -> int:
    options = _options()
    family, device = family_named(options.family), detect_device(options.device)
    cases, without = drawn(family, device, options.count, options.seed)
    evidence = EvidenceFile(options.out, "verified", family.name, device, commit=options.commit)
    for gemm in without:
        evidence.add(str(gemm), {"gemm": str(gemm), "config": {}, "status": NO_CONFIG, "message": "no config passes"})
    evidence.summary = coverage(family, device, cases)
    print(f"{len(cases)} cases, {len(evidence.rows)} rows kept; {evidence.summary}", flush=True)
    with evidence.saved():
        run(cases, device, evidence, seconds=options.seconds, processes=options.processes)
    return report(cases, evidence)


def drawn(family: Family, device: Device, count: int, seed: int) -> tuple[list[Case], list[Gemm]]:
    """The special cases, then random ones, ``count`` in all; and special problems for which the family has no config.

    Raises InvalidDevice where the family writes nothing for the device.
    """
    special, without = special_cases(family, device, seed)
    if not special:
        raise InvalidDevice(f"family {family.name} writes no problem of these for {device.name}")
    random = [case for case in random_cases(family, device, count, seed) if case not in special]
    return [*special, *random][:count], without


def coverage(family: Family, device: Device, cases: list[Case]) -> dict[str, object]:
    """How many choices of knobs, properties of problems and pairs of them the cases have, and which choices none
    has."""
    knobs = {choice for case in cases for choice in case.config.knobs}
    features = {feature for case in cases for feature in case.features}
    return {
        "choices": len(knobs),
        "features": len(features),
        "pairs": len({pair for case in cases for pair in pairs_of(case)}),
        "missing_choices": [list(choice) for choice in missing_choices(family, device, cases)],
    }


def run(cases: list[Case], device: Device, evidence: EvidenceFile, *, seconds: float, processes: int | None) -> None:
    """Build and verify what has no row yet, until the time is up; the file is always whole."""
    start = saved = time.monotonic()
    todo = iter([(number, case) for number, case in enumerate(cases) if case.key not in evidence.rows])
    with Workbench(device, MemoryStore(), processes=processes, timeout_s=30.0) as bench:
        building: dict[Future[Binary], tuple[int, Case]] = {}
        while True:
            late = time.monotonic() - start > seconds
            for number, case in islice(todo, 0 if late else _AHEAD * bench.pool.processes - len(building)):
                building[bench.build(case.gemm, case.config)] = (number, case)
            if late or not building:
                break
            for future in wait(building, timeout=1.0, return_when=FIRST_COMPLETED).done:
                number, case = building.pop(future)
                evidence.add(case.key, row_of(bench, number, case, future))
                if time.monotonic() - start > seconds:
                    break
            if time.monotonic() - saved > SAVE_EVERY_S:
                saved = time.monotonic()
                evidence.save()
                print(f"{saved - start:.0f} s: {len(evidence.rows)} of {len(cases)} cases", flush=True)
        for future in building:
            future.cancel()


def row_of(bench: Workbench, number: int, case: Case, future: Future[Binary]) -> Row:
    """What became of one case. The seed of its operands is its number. Raises DeviceUnavailable."""
    row: Row = {"gemm": str(case.gemm), "config": dict(case.config.knobs), "seed": number}
    try:
        binary = future.result()
    except BuildFailed as error:
        return row | {"status": BUILD_FAILED, "message": str(error)[:400]}
    row |= {"source_sha256": binary.source_sha256, "registers": binary.resources["registers"]}
    spilled = binary.resources["spill_bytes"]
    spills: Row = {"status": SPILLED, "message": f"{spilled} bytes are spilled"}
    # Right, and slow.
    if binary.resources["serialised"]:
        return row | {"status": SERIALISED, "message": "ptxas serialises the wgmmas"}
    if bench.measurer is None:
        return row | (spills if spilled else {"status": BUILT})
    try:
        certificate = bench.measurer.verify(
            bench.package(case.gemm, case.config, binary), level="certificate", seed=number
        )
    except TirgemmError as error:
        return row | {"status": str(kernel_status(error, bench.measurer)), "message": str(error)[:400]}
    row |= {
        "error": float(f"{certificate.error:.3g}"),
        "m": sorted({test["m"] for test in certificate.tests}),
        "tests": len(certificate.tests),
        "checked": sum(test["checked"] for test in certificate.tests),
        "kernel_sha256": certificate.kernel_sha256[:16],
    }
    if certificate.passed:
        return row | (spills if spilled else {"status": PASSED})
    worst = certificate.tests[-1]
    return row | {"status": WRONG, "message": f"{worst['name']} at m={worst['m']}: {worst['message']}"}


def report(cases: list[Case], evidence: EvidenceFile) -> int:
    """Print totals and every failure; 1 where any case failed or has no row, or a choice of a knob was not drawn."""
    rows = evidence.rows
    absent = [case for case in cases if case.key not in rows]
    for line in failures(list(rows.values())):
        print(line)
    counts = Counter(row["status"] for row in rows.values())
    worst = max((row.get("error", 0.0) for row in rows.values()), default=0.0)
    checked = sum(row.get("checked", 0) for row in rows.values())
    print(f"{evidence.path}: {dict(counts)}, {len(absent)} not reached; worst error over its bound {worst:.3f}")
    print(f"{checked:,} elements compared; {evidence.summary}")
    print(
        "\n".join(
            row["message"] + f": {row['gemm']} {row['config']}" for row in rows.values() if row["status"] == SPILLED
        )
    )
    bad = any(failures(list(rows.values()))) or too_many_spill(list(rows.values()))
    return int(bool(absent or bad or evidence.summary["missing_choices"]))


def too_many_spill(rows: list[Row]) -> bool:
    """Whether more than ``MOST_SPILLED`` of a hundred cases spill."""
    return 100 * Counter(row["status"] for row in rows)[SPILLED] > MOST_SPILLED * len(rows)


def failures(rows: list[Row]) -> Iterator[str]:
    """One line for each row that is not right, or serialised; those that spill are ``too_many_spill``'s."""
    for row in rows:
        if row["status"] not in (*GOOD, SPILLED):
            knobs = ", ".join(f"{name}={value}" for name, value in row["config"].items())
            yield f"{row['status']}: {row['gemm']} {knobs}: {row.get('message', '')}"


def _options() -> argparse.Namespace:
    made = command.family_parser(__doc__, 600.0)
    made.add_argument("--count", type=int, default=640)
    made.add_argument("--seed", type=int, default=2024)
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(command.run(main))
