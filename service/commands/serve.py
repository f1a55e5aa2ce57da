"""``tirgemm serve``: the HTTP service, with a worker beside it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tirgemm._interpreter import collect_seldom
from tirgemm.service.commands import service_options as options


def serve(
    data: options.DataFolder = None,
    db: options.DatabaseUrl = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 is any free one.")] = None,
    server_processes: Annotated[
        int | None, typer.Option("--server-processes", help="Processes that answer requests; 1 by default.")
    ] = None,
    worker: Annotated[
        bool | None, typer.Option("--worker/--no-worker", help="Whether to run a worker beside the server.")
    ] = None,
    devices: options.Devices = None,
    engine: options.EngineName = None,
    address: options.RayAddress = None,
    processes: options.BuildProcesses = None,
    lock_dir: options.LockFolder = None,
    lease_seconds: options.LeaseSeconds = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Listen elsewhere than on loopback without any API key.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON object.")] = False,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Serve kernels over HTTP until stopped. Options not given come from TIRGEMM_* variables.

    Exits with 2 where the data folder or the port is in use, a device is not here, or a setting is wrong.
    """
    arguments = options.setting_arguments(locals())
    from tirgemm._terminal.unused_options import require_unused
    from tirgemm.errors import TirgemmError
    from tirgemm.service.jobs.alive_file import require_alive_file
    from tirgemm.service.jobs.data_lock import require_lock_file
    from tirgemm.service.jobs.fleets import require_devices
    from tirgemm.service.log_lines import log_to_stderr
    from tirgemm.service.server.process import run_server
    from tirgemm.service.settings import Settings

    def announce(info: dict[str, Any]) -> None:
        typer.echo(json.dumps(info) if as_json else f"tirgemm serves on {info['url']} from {info['data']}")

    try:
        settings = Settings.load(**arguments)
        log_to_stderr(verbose=verbose, log_format=settings.log_format)
        if settings.worker:
            # Refused now rather than by one worker after the other.
            require_devices(settings)
            require_lock_file(settings.worker_lock)
            require_alive_file(settings.alive_file)
        else:
            require_unused(
                "no worker is run beside the server",
                ("--devices", devices),
                ("--engine", engine),
                ("--address", address),
                ("--processes", processes),
            )
        run_server(settings, announce)
    except TirgemmError as error:
        typer.echo(
            json.dumps({"error": error.code, "detail": str(error)}) if as_json else f"tirgemm serve: {error}", err=True
        )
        raise typer.Exit(2) from error


if __name__ == "__main__":
    collect_seldom()
    typer.run(serve)
