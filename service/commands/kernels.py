"""``tirgemm kernels``: the kernels of a service or of a tuning database, listed, shown, pinned, deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.tables import Column, Fields, Table
from tirgemm._terminal.unused_options import require_unused
from tirgemm.errors import InvalidRequest, KernelPinned
from tirgemm.gemm import REGIMES, Gemm, Regime, regime_named
from tirgemm.progress import role_name, role_of_document
from tirgemm.service.commands.tune import Data, Url
from tirgemm.service.views.search_summary_text import search_summary_text
from tirgemm.service.views.timing_tables import member_table
from tirgemm.timings import MemberTiming, Timings

if TYPE_CHECKING:
    from tirgemm.client import Client
    from tirgemm.tuning_db import Database, SqlStore

app = console.command_group(
    "List, show, pin and delete kernels: of a service where --url is given, else of a tuning database."
)
ServiceUrl = Annotated[str | None, typer.Option("--url", help="A service; by default the data folder is looked into.")]
KernelId = Annotated[str, typer.Argument(metavar="ID", help="A kernel, by its id.")]
KernelIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Kernels, by their ids.")]
Document = dict[str, Any]


@app.command("list")
def list_kernels(
    gemm: Annotated[str | None, typer.Option(help="Only kernels of this problem.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Only kernels of this device: cpu, sm_90a, a device's key.")
    ] = None,
    regime: Annotated[str | None, typer.Option(help="Only those of sustained, or isolated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    url: ServiceUrl = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """The newest kernels. Of several tuned ones for a problem, device and regime the newest is the one that is
    served."""
    with _kernels(url, data, db) as kernels:
        asked = None if regime is None else regime_named(regime)
        documents = kernels.kernels(limit, gemm=gemm, device=device, regime=asked)

    def show() -> None:
        table = Table(
            "kernel",
            "role",
            "problem",
            "device",
            Column("regime", optional=3),
            ">us a call",
            Column("x default", number=True, optional=1),
            Column("trials", number=True, optional=2),
            Column("made", optional=4),
        )
        for kernel in documents:
            us, ratio = _figures(kernel, kernel["regime"])
            made = str(kernel["created_at"])[:16].replace("T", " ")
            name = kernel["device"]["name"]
            table.add_row(
                kernel["id"],
                role_name(kernel["role"], portable=kernel.get("portable", False))
                + (", pinned" if kernel.get("pinned") else ""),
                kernel["gemm"],
                name,
                kernel["regime"],
                us,
                ratio,
                str(kernel["trials"]),
                made,
            )
        console.out.print(table if documents else "there is no such kernel")

    console.emit(as_json, {"kernels": documents}, show)


@app.command()
def show(kernel_id: KernelId, url: ServiceUrl = None, data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """A kernel: its problem, device, config, times and certificate."""
    from tirgemm.config import Config

    with _kernels(url, data, db) as kernels:
        kernel = kernels.kernel_document(kernel_id)

    def tell() -> None:
        config = Config(kernel["family"], tuple(kernel["config"].items()))
        times = []
        for regime in REGIMES:
            us, ratio = _figures(kernel, regime)
            if us:
                times.append((regime, f"{us} us a call" + (f", {ratio} x the default" if ratio else "")))
        timings = Timings.from_json(kernel["timings"])
        certificate = kernel["certificate"]
        pinned = ", pinned" if kernel.get("pinned") else ""
        tests = f"{len(certificate['tests'])} tests against {certificate['reference']}" if certificate else "none"
        fields = [
            ("kernel", kernel["id"]),
            ("role", role_of_document(kernel) + pinned),
            ("problem", kernel["gemm"]),
            ("device", f"{kernel['device']['model']} ({kernel['device']['key']})"),
            ("regime", kernel["regime"]),
            ("config", str(config)),
            *times,
            ("trials", search_summary_text(timings.search, kernel["trials"])),
            ("chosen", timings.reason),
            ("certificate", tests),
            ("artifact", f"{kernel['artifact']['sha256']} ({kernel['artifact']['bytes']} bytes)"),
            ("made", kernel["created_at"]),
        ]
        console.out.print(Fields(fields))
        if kernel.get("members"):
            console.out.print(member_table(MemberTiming.from_json(member) for member in kernel["members"]))

    console.emit(as_json, kernel, tell)


@app.command()
def delete(
    kernel_ids: KernelIds, url: ServiceUrl = None, data: Data = None, db: Url = None, as_json: Json = False
) -> None:
    """Delete kernels with their artifacts. What was measured stays, so that making one again is quick."""
    with _kernels(url, data, db) as kernels:
        documents = [kernels.kernel_document(kernel_id) for kernel_id in dict.fromkeys(kernel_ids)]
        pinned = [kernel["id"] for kernel in documents if kernel.get("pinned")]
        if pinned:
            raise KernelPinned(f"kernel {pinned[0]} is pinned; unpin it first. Nothing was deleted")
        for kernel in documents:
            kernels.delete(kernel["id"])

    def tell() -> None:
        for kernel in documents:
            where = f"{kernel['device']['name']} ({kernel['regime']})"
            what = f"{role_name(kernel['role'])} kernel of {kernel['gemm']} on {where}"
            console.out.print(f"deleted {kernel['id']}, the {what}; what was measured for it stays")

    console.emit(as_json, {"deleted": [kernel["id"] for kernel in documents]}, tell)


@app.command()
def pin(kernel_id: KernelId, url: ServiceUrl = None, data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Pin a kernel: it is what is served, whatever is tuned later, and is neither deleted nor pruned."""
    with _kernels(url, data, db) as kernels:
        kernel = kernels.pin(kernel_id, pinned=True)
    words = f"pinned {kernel['id']}: {kernel['gemm']} on {kernel['device']['name']} is answered with it from now on"
    console.emit(as_json, kernel, lambda: console.out.print(words))


@app.command()
def unpin(
    kernel_id: KernelId, url: ServiceUrl = None, data: Data = None, db: Url = None, as_json: Json = False
) -> None:
    """Unpin a kernel: the newest tuned one is served again."""
    with _kernels(url, data, db) as kernels:
        kernel = kernels.pin(kernel_id, pinned=False)
    console.emit(as_json, kernel, lambda: console.out.print(f"kernel {kernel['id']} is not pinned"))


def _figures(kernel: Document, regime: Regime) -> tuple[str, str]:
    """Microseconds a call in a regime and the ratio to the default, as texts; empty where nobody took them."""
    timing = Timings.from_json(kernel["timings"]).of(regime)
    if timing is None:
        return "", ""
    ratio = timing.ratio_to("default")
    return f"{timing.median_us:.2f}", f"{ratio:.3f}" if ratio is not None else ""


@contextmanager
def _kernels(url: str | None, data: Path | None, db: str | None) -> Iterator[Client | _Stored]:
    """Those of the service at ``url`` where that is given, else those of a database, which must be there."""
    if url is not None:
        # What only a variable says is where this machine's database is.
        require_unused(
            "--url is a service, which has a database of its own",
            ("--data", data is not None and str(data) != os.environ.get("TIRGEMM_DATA")),
            ("--db", db is not None and db != os.environ.get("TIRGEMM_DB")),
        )
        from tirgemm._commands.jobs import client_of

        with client_of(url) as client:
            yield client
        return
    from tirgemm.tuning_db.data_folder import existing_database
    from tirgemm.tuning_db.shipped.layered_store import LayeredStore

    with existing_database(data, db, or_give="a service with --url") as database:
        yield _Stored(database, LayeredStore(database))


class _Stored:
    """Kernels of a tuning database as the API's documents, as a ``Client`` has them of a service."""

    def __init__(self, database: Database, store: SqlStore) -> None:
        self._database = database
        self._store = store

    def kernels(self, limit: int, *, gemm: str | None, device: str | None, regime: Regime | None) -> list[Document]:
        from tirgemm.service.views.queries import KernelFilter, device_keys, list_kernels
        from tirgemm.tuning_db.answers.kernel_document import kernel_members

        problem = None if gemm is None else Gemm.parse(gemm)
        keys = None if device is None else device_keys(self._database, device)
        records = list_kernels(self._database, KernelFilter(problem, keys, regime), limit)
        return [kernel_members(record) for record in records]

    def kernel_document(self, kernel_id: str) -> Document:
        from tirgemm.tuning_db.answers.kernel_document import kernel_members

        record = self._store.kernel_by_id(kernel_id)
        if record is None:
            raise InvalidRequest(
                f"{self._database.place} has no kernel {kernel_id!r:.80}; `tirgemm kernels list` shows those that it "
                f"has"
            )
        return kernel_members(record)

    def delete(self, kernel_id: str) -> None:
        from tirgemm.tuning_db.access.audit import note_command

        if self._store.delete_kernel(kernel_id):
            note_command(self._database, "kernels delete", f"/v1/kernels/{kernel_id}")

    def pin(self, kernel_id: str, *, pinned: bool) -> Document:
        from tirgemm.tuning_db.access.audit import note_command
        from tirgemm.tuning_db.answers.kernel_document import kernel_members
        from tirgemm.tuning_db.upkeep.pins import set_pinned

        record = set_pinned(self._database, kernel_id, pinned=pinned)
        if record is None:
            return self.kernel_document(kernel_id)
        note_command(self._database, f"kernels {'pin' if pinned else 'unpin'}", f"/v1/kernels/{kernel_id}")
        return kernel_members(record)
