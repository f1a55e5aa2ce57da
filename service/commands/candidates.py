"""``tirgemm candidates``: every recorded candidate of a problem, with its time, its knobs, or why it was left out."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.tables import Table
from tirgemm._terminal.unused_options import require_unused
from tirgemm.cli import GemmText, RegimeOption
from tirgemm.gemm import Gemm, regime_named
from tirgemm.service.commands.tune import Data, Url
from tirgemm.tuning_db.data_folder import existing_database

if TYPE_CHECKING:
    from tirgemm.config import Value
    from tirgemm.service.views.candidate_list import ListedCandidate, Recorded


def candidates(
    gemm: GemmText,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, sm_90a, or a device's key; default: the one that has candidates.")
    ] = None,
    regime: RegimeOption = "sustained",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all of it as CSV, a column for each knob.")] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """List every recorded candidate of GEMM, the fastest first: times with 95 % intervals, errors, knobs, rules."""
    from tirgemm.service.views.candidate_list import recorded

    if as_csv:
        require_unused("--csv prints CSV", ("--json", as_json))
    problem = Gemm.parse(gemm)
    with existing_database(data, db) as database:
        of_problem = recorded(database, problem, device, regime_named(regime))
    if as_csv:
        sys.stdout.write(of_problem.to_csv())
        return
    console.emit(as_json, of_problem.to_json(), lambda: _show(of_problem))


def _show(shown: Recorded) -> None:
    from tirgemm.service.views.candidate_list import knobs_of, other_knobs, same_knobs

    statuses = Counter(entry.candidate.status.value.replace("_", " ") for entry in shown.entries)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
    console.out.print(f"{shown.gemm} on {shown.device_key}, {shown.regime}: {counts}", style="bold")
    for entries, heads, cells in (
        (shown.measured, (">us", ">95 % interval", "taken in", ">error", ">MHz"), _figures),
        (shown.others, ("status", "why"), _reasons),
    ):
        if not entries:
            continue
        same = _words(same_knobs(entries))
        console.out.print()
        console.out.print(f"the same in all {len(entries)}: {same}" if same else "")
        names = other_knobs(entries)
        apart = Table(*heads, *names)
        together = Table(*heads, "config")
        for entry in entries:
            knobs = knobs_of(entry)
            apart.add_row(*cells(entry), *(str(knobs.get(name, "-")) for name in names))
            together.add_row(*cells(entry), _words({name: knobs[name] for name in names if name in knobs}))
        console.out.print(apart if names and apart.fits(console.out.width) else together)
    console.out.print()
    console.out.print(
        "selection: again, in one run beside the other finalists; search: one after the other, on a GPU each beside a "
        "yardstick, by which they are ordered; shipped: it came with tirgemm. Of what the rules pruned some examples "
        "of each rule are kept.",
        style="dim",
    )


def _figures(entry: ListedCandidate) -> list[str]:
    timed = entry.times[0] if entry.times else None
    # Of many shipped ones the median alone is stored, which says nothing of how certain it is.
    certain = timed is not None and len(timed.samples.samples_us) > 1
    return [
        f"{timed.interval.value:.2f}" if timed else "-",
        f"{timed.interval.low:.2f} to {timed.interval.high:.2f}" if timed and certain else "-",
        f"{timed.stage}{', shipped' if entry.shipped else ''}" if timed else "-",
        f"{entry.candidate.error:.3g}" if entry.candidate.error is not None else "-",
        str(entry.clock_mhz or "-"),
    ]


def _reasons(entry: ListedCandidate) -> list[str]:
    status = entry.candidate.status.value.replace("_", " ")
    return [f"{status}, shipped" if entry.shipped else status, entry.note]


def _words(knobs: dict[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items())
