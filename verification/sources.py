"""Source hashes of rows of evidence, as today's program gives them: each kernel is lowered again, and not compiled.

python -m verification.sources FILE...     takes out of evidence files what is about kernels of another source
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tirgemm.bench import results
from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import TirgemmError
from tirgemm.families import family_named
from tirgemm.families.base import Program
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.cuda import lower, with_looser_bounds
from verification.cases import Case
from verification.emulated import ARCH, EMULATORS

Row = dict[str, Any]


def hash_of(case: Case, device: Device) -> str:
    """The source hash of a case's kernel as the family writes it."""
    return _hashes(family_named(case.config.family).instantiate(case.gemm, case.config, device), device)[0]


def kernel_of(row: Row) -> tuple[str, str]:
    """What tells the kernel of a row from others of its file."""
    return str(row.get("emulated", row["gemm"])), str(row["config"])


def kernels(rows: Sequence[Row]) -> list[Row]:
    """One row of every kernel that rows are about, in an order that only their keys give."""
    distinct = {kernel_of(row): row for row in rows if row.get("source_sha256")}
    return sorted(distinct.values(), key=lambda row: hashlib.sha256(row["key"].encode()).hexdigest())


def stale(family: str, kind: str, rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """The rows whose kernel's source is another today, or that cannot be written any more, each with the reason."""
    device = named_device(ARCH)
    for row in rows:
        try:
            with quick_tracing():
                emulated = row["emulated"] if kind == "emulated" else None
                today = _today(family, row["gemm"], emulated, tuple(row["config"].items()), device)
        except TirgemmError as error:
            yield row, str(error)
            continue
        if row["source_sha256"] not in today:
            yield row, f"its source is {row['source_sha256'][:12]}, today's is {today[0][:12]}"


def without_stale(path: Path) -> int:
    """Take what is stale out of an evidence file; how many rows that were."""
    document = results.load(path)
    rows = document["rows"]
    gone = {kernel_of(row) for row, _ in stale(document["family"], document["kind"], kernels(rows))}
    document["rows"] = kept = [row for row in rows if kernel_of(row) not in gone]
    counts = dict(sorted(Counter(row["status"] for row in kept).items()))
    document["summary"] |= {"count": len(kept), "status": counts}
    if "caught_by" in document["summary"]:
        document["summary"]["caught_by"] = dict(Counter(row["status"] for row in kept if row["mutant"]))
    results.write(path, document)
    return len(rows) - len(kept)


@lru_cache(maxsize=4096)  # several files have rows about one kernel
def _today(
    family: str, gemm: str, emulated: str | None, knobs: tuple[tuple[str, Value], ...], device: Device
) -> list[str]:
    """The source hashes of the kernel that a row is about, without the knobs that its family has no more: the source
    tells what they did."""
    problem = Gemm.parse(gemm)
    known = {knob.name for knob in family_named(family).space(problem, device).knobs}
    config = Config(family, tuple((name, value) for name, value in knobs if name in known))
    if emulated is not None:
        return _hashes(EMULATORS[family].program(Gemm.parse(emulated), Case(problem, config)), device)
    return _hashes(family_named(family).instantiate(problem, config, device), device)


def _hashes(program: Program, device: Device) -> list[str]:
    """Of the source as it is lowered, then with the looser bounds that a kernel which spills is compiled with."""
    _, source = lower(program, device.arch)
    return [hashlib.sha256(text.encode()).hexdigest() for text in with_looser_bounds(source)]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {without_stale(Path(name))} rows taken out")
