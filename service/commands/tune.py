"""``tirgemm tune``: search, with the records in the data folder, shown live."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from service.commands.live import SearchState, Watch
from service.data_dir import open_store, signer
from tirgemm import _console as console
from tirgemm._console import Json
from tirgemm.cli import GemmText, Regime

if TYPE_CHECKING:
    from tirgemm.tuning.records import KernelRecord

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", envvar="TIRGEMM_DATA", help="Data folder; default ~/.local/share/tirgemm."),
]
Url = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", envvar="TIRGEMM_DB", help="Database; default: SQLite in the data folder."),
]
LockDir = Annotated[
    Path | None,
    typer.Option("--lock-dir", metavar="DIR", envvar="TIRGEMM_LOCK_DIR", help="Folder of the host-wide device locks."),
]


def tune(
    gemm: GemmText,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU, else the CPU.")] = None,
    regime: Regime = "sustained",
    trials: Annotated[int, typer.Option(help="Candidates to build at most; recorded ones count.")] = 32,
    seconds: Annotated[float, typer.Option(help="Seconds of search at most.")] = 120.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    family: Annotated[list[str] | None, typer.Option(help="Only these families; repeatable.")] = None,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="Write the artifact here.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Trust this folder's signing key from now on.")] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest verified kernel for GEMM on a device of this machine."""
    from tirgemm.artifact import Trust
    from tirgemm.detect import device as detect
    from tirgemm.gemm import Gemm
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.tune import tune as run

    problem, budget, target = Gemm.parse(gemm), Budget(trials, seconds), detect(device)
    key = signer(data)
    if trust:
        Trust.default().add(key.public, "this machine")
    state = SearchState(problem)
    with open_store(data, db) as store, cancelled_by_interrupt() as cancel, Watch(state, console.err, as_json) as watch:
        found = run(
            problem, target, regime, budget, seed=seed, store=store, on_event=watch, cancel=cancel, families=family,
            lock_dir=lock_dir, signer=key,
        )  # fmt: skip
    if out is not None:
        found.save(out)
    document = describe(found.record) | {
        "search": state.to_json(),
        "signer": key.public,
        "file": str(out) if out else None,
    }
    console.emit(as_json, document, lambda: _show(found.record, out, key.public))


def describe(record: KernelRecord) -> dict[str, Any]:
    """A kernel record as one JSON object."""
    fields = {f: getattr(record, f) for f in ("id", "regime", "role", "kernel_sha256", "artifact_sha256", "trials")}
    certificate = record.certificate.to_json() if record.certificate else None
    return fields | {
        "gemm": str(record.gemm), "device": record.device.key, "config": record.config.to_json(),
        "config_hash": record.config.digest, "timings": record.timings, "certificate": certificate,
        "created_at": record.created_at,
    }  # fmt: skip


@contextmanager
def cancelled_by_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that the search ends with its records kept; the second one interrupts."""
    cancel = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: object) -> None:
        cancel.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


def _show(record: KernelRecord, out: Path | None, key: str) -> None:
    table = Table("regime", "us a call", "TFLOP/s", title=f"{record.gemm} on {record.device.model}: {record.config}")
    timings = {regime: t for regime, t in record.timings.items() if isinstance(t, dict) and "median_us" in t}
    names = sorted({name for timing in timings.values() for name in timing["baselines"]})
    for name in names:
        table.add_column(f"speed against {name}")
    for regime, timing in timings.items():
        us = timing["median_us"]
        ratios = [timing["baselines"].get(name, {}).get("ratio") for name in names]
        words = [f"{ratio:.3f}" if ratio else "-" for ratio in ratios]
        table.add_row(regime, f"{us:.2f}", f"{record.gemm.flops / us / 1e6:.3g}", *words)
    console.out.print(table)
    passed = record.certificate is not None and record.certificate.passed
    console.out.print(
        f"{record.role}; {'certified' if passed else 'not certified'}; kernel {record.kernel_sha256[:16]}"
    )
    if out is not None:
        console.out.print(f"{out}, signed by {key}")
