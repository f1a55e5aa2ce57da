"""``tirgemm worker``: the process that tunes on the devices of a machine, for a service on this or another machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Annotated

import typer

from tirgemm._interpreter import collect_seldom, switch_often
from tirgemm.service.commands import service_options as options

# A worker that was told to stop may still be releasing its job when the next one is started.
SUPERVISED_WAIT_SECONDS = 20.0
# The exit code of one whose main thread hangs.
HUNG = 70
# How long the answer of a database server is awaited.
DATABASE_SECONDS = 30.0
_REPAIRS = "its server repairs it while no worker has it open; start this worker again"


def worker(
    data: options.DataFolder = None,
    db: options.DatabaseUrl = None,
    devices: options.Devices = None,
    engine: options.EngineName = None,
    address: options.RayAddress = None,
    processes: options.BuildProcesses = None,
    lock_dir: options.LockFolder = None,
    lease_seconds: options.LeaseSeconds = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True, help="End with this process.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print name and devices as one JSON object.")] = False,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Claim jobs from the database and tune until stopped. Options not given come from TIRGEMM_* variables.

    Exits with 2 where there is no such database or device, the database is to be repaired, the signing key is replaced,
    another worker of this machine is on it, or a setting is wrong, and with 70 when it hangs.
    """
    arguments = options.setting_arguments(locals())
    from tirgemm.artifact.sign import Signer
    from tirgemm.errors import DamagedDatabase, InvalidRequest, TirgemmError
    from tirgemm.service.jobs.alive_file import require_alive_file
    from tirgemm.service.jobs.condition_watch import ConditionWatch
    from tirgemm.service.jobs.data_lock import ProcessLock
    from tirgemm.service.jobs.fleets import open_fleet, require_devices
    from tirgemm.service.jobs.heartbeat import Heartbeat
    from tirgemm.service.jobs.process import on_termination
    from tirgemm.service.jobs.worker import Worker
    from tirgemm.service.log_lines import log_to_stderr
    from tirgemm.service.settings import Settings
    from tirgemm.service.traces import traces_of
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.process.child_rpc import die_with
    from tirgemm.tuning_db import JobQueue
    from tirgemm.tuning_db.data_folder import open_database, require_database
    from tirgemm.tuning_db.shipped.layered_store import LayeredStore
    from tirgemm.tuning_db.upkeep.repair_files import is_repair_due

    if parent is not None:
        die_with(parent, signal.SIGTERM)
    try:
        settings = Settings.load(**arguments)
        log_to_stderr(verbose=verbose, log_format=settings.log_format)
        require_database(
            settings.data,
            settings.db or None,
            f"a worker joins a service that is there: start that first, with `tirgemm serve --data {settings.data}`",
        )
        # The server ends the worker that it started.
        marker = settings.damage_marker if parent is None else None

        def is_to_be_repaired() -> bool:
            return marker is not None and is_repair_due(marker)

        if is_to_be_repaired():
            raise DamagedDatabase(f"the database in {settings.data} was found to be damaged: {_REPAIRS}")
        require_devices(settings)
        require_alive_file(settings.alive_file)
        wait_s = SUPERVISED_WAIT_SECONDS if parent is not None else 0.0
        with (
            traces_of(settings, "tirgemm-worker"),
            ProcessLock(settings.worker_lock, "the worker's place on this machine", wait_s=wait_s, for_all=True),
            open_database(settings.data, settings.db or None, DATABASE_SECONDS) as database,
        ):
            store = LayeredStore(database)
            signer = Signer.load_or_create(settings.signing_key)
            fleet = open_fleet(settings, store, signer)
            limit = Budget(settings.max_trials, settings.max_seconds)

            def new_heartbeat() -> Heartbeat:
                return Heartbeat(settings.hang_seconds, lambda: os._exit(HUNG))

            def has_another_key() -> bool:
                try:
                    return Signer.load(settings.signing_key).public != signer.public
                except (InvalidRequest, OSError):  # one that cannot be read now is no other one
                    return False

            runner = Worker(
                JobQueue(database),
                store,
                fleet,
                lease_s=settings.lease_seconds,
                limit=limit,
                new_heartbeat=new_heartbeat,
                alive_file=settings.alive_file,
            )
            on_termination(runner.stop)
            switch_often()  # the searches of all devices share it
            if parent is None:
                _announce(runner.name, [device.key for device in runner.devices], as_json=as_json)
            try:
                with (
                    ConditionWatch("damage watch", is_to_be_repaired, runner.stop) as watch,
                    ConditionWatch("signing key watch", has_another_key, runner.stop) as key_watch,
                ):
                    runner.run()
            finally:
                fleet.close()
            if watch.seen:
                raise DamagedDatabase(f"database {database.place} is damaged: {_REPAIRS}")
            if key_watch.seen:
                raise InvalidRequest(
                    f"{settings.signing_key} is another key than this worker signs with; start it again"
                )
    except TirgemmError as error:
        typer.echo(
            json.dumps({"error": error.code, "detail": str(error)}) if as_json else f"tirgemm worker: {error}", err=True
        )
        raise typer.Exit(2) from error


def _announce(name: str, keys: list[str], *, as_json: bool) -> None:
    typer.echo(json.dumps({"worker": name, "devices": keys}) if as_json else f"worker {name} serves {', '.join(keys)}")


def _main() -> None:
    """Run as the supervisor runs it. Everything is closed when the command returns: the native libraries that are still
    being loaded by then take seconds to tear down, if they survive it, and nothing is left for them to do."""
    collect_seldom()
    try:
        typer.run(worker)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


if __name__ == "__main__":
    _main()
