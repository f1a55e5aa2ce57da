"""``tirgemm keys``: the API keys of a service: make, list and revoke them; list its audit log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.tables import Table
from tirgemm.service.commands.tune import Data, Url
from tirgemm.tuning_db.data_folder import existing_database, new_database, open_database

app = console.command_group("Make, list and revoke the API keys of a service; list its audit log.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, for the list.")],
    scope: Annotated[str, typer.Option(help="read, tune or admin; each may what those before it may.")] = "tune",
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires; default: never.")] = None,
    requests_per_second: Annotated[float | None, typer.Option(help="Its rate limit.")] = None,
    live_jobs: Annotated[int | None, typer.Option(help="How many queued and running jobs it may have.")] = None,
    trials_a_day: Annotated[int | None, typer.Option(help="Trials that its jobs may ask for within a day.")] = None,
    bytes_stored: Annotated[int | None, typer.Option(help="Bytes of artifacts that its jobs may make.")] = None,
    batch_problems_a_day: Annotated[
        int | None, typer.Option(help="Problems that its batches may name within a day.")
    ] = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept. Quotas are the service's by default."""
    from tirgemm.tuning_db.access.api_keys import KeyTable, Quotas
    from tirgemm.tuning_db.access.audit import note_command

    quotas = Quotas(requests_per_second, live_jobs, trials_a_day, bytes_stored, batch_problems_a_day)
    made = new_database(data, db)
    with open_database(data, db) as database:
        key, secret = KeyTable(database).create(name, scope, expires_days=expires_days, quotas=quotas)
        note_command(database, "keys create", f"key {key.id}, {key.scope}, {key.name}")

    def show() -> None:
        if made is not None:
            console.err.print(f"there is a new tuning database in {made}", markup=False, soft_wrap=True)
        console.err.print(
            f"key {key.id} of the scope {key.scope} for {key.name}; it is not shown again:",
            markup=False,
            soft_wrap=True,
        )
        console.out.print(secret, soft_wrap=True)

    console.emit(as_json, key.to_json() | {"key": secret}, show)


@app.command("list")
def list_keys(data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Every key that there ever was, by id and prefix, with its scope, state and last use."""
    import time

    from tirgemm.tuning_db.access.api_keys import KeyTable

    with existing_database(data, db) as database:
        keys = KeyTable(database).entries()
    now = time.time()

    def show() -> None:
        if not keys:
            console.out.print(
                "there is no key: whoever reaches the service may ask it; `tirgemm keys create` makes one"
            )
            return
        table = Table("id", "prefix", "name", "scope", "state", "last use")
        for key in keys:
            table.add_row(
                key.id, key.prefix, key.name, key.scope, key.fault(now) or "valid", key.last_used_at or "never"
            )
        console.out.print(table)

    console.emit(as_json, {"keys": [key.to_json() for key in keys]}, show)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The id or the prefix of the key.")],
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """End a key for good. A running service takes it no more within seconds."""
    from tirgemm.tuning_db.access.api_keys import KeyTable
    from tirgemm.tuning_db.access.audit import note_command

    with existing_database(data, db) as database:
        revoked = KeyTable(database).revoke(key)
        note_command(database, "keys revoke", f"key {revoked.id}, {revoked.scope}, {revoked.name}")
    words = f"key {revoked.id} ({revoked.prefix}..., {revoked.name}) {revoked.fault(0.0)}"
    console.emit(as_json, revoked.to_json(), lambda: console.out.print(words))


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest first.")] = 100,
    key: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this key.")] = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """What was changed through the service, with which key and from where, what was refused, and what commands have
    changed in the database."""
    from tirgemm.tuning_db.access.audit import AuditLog

    with existing_database(data, db) as database:
        entries = AuditLog(database).entries(limit, key)

    def show() -> None:
        table = Table("time", "key", "action", "object", "outcome", "address", "times")
        for stored in entries:
            entry = stored.entry
            table.add_row(
                stored.at,
                entry.key_id or "none",
                entry.action,
                entry.object,
                str(entry.outcome),
                entry.address,
                str(entry.count),
            )
        console.out.print(table)

    listed = [{"id": stored.id, "at": stored.at} | asdict(stored.entry) for stored in entries]
    console.emit(as_json, {"entries": listed}, show)
