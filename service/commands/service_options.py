"""Options that ``tirgemm serve`` and ``tirgemm worker`` have in common; what is not given comes from TIRGEMM_*."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tirgemm._terminal.folder_option import data_folder, folder_of_locks

DataFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data", metavar="PATH", parser=data_folder, help="Folder of the database, the blobs and the key."),
]
DatabaseUrl: TypeAlias = Annotated[
    str | None, typer.Option("--db", help="Database URL; SQLite in the data folder by default.")
]
Devices: TypeAlias = Annotated[
    str | None, typer.Option("--devices", help="Devices to serve side by side: names with commas, or all.")
]
EngineName: TypeAlias = Annotated[
    str | None, typer.Option("--engine", help="local or ray: on this host, or on the nodes of a Ray cluster.")
]
RayAddress: TypeAlias = Annotated[
    str | None, typer.Option("--address", help="HOST:PORT of the Ray cluster; 127.0.0.1:6379 by default.")
]
BuildProcesses: TypeAlias = Annotated[int | None, typer.Option("--processes", help="Build processes of all devices.")]
LockFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--lock-dir", metavar="PATH", parser=folder_of_locks, help="Folder of the host-wide device locks."),
]
LeaseSeconds: TypeAlias = Annotated[
    float | None, typer.Option("--lease-seconds", help="Silence after which a worker's job is taken over.")
]
LogFormat: TypeAlias = Annotated[
    str | None, typer.Option("--log-format", help="text or json: how stderr has what is logged.")
]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Log what libraries say, too.")]


def setting_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's arguments that are settings of the service, by their names."""
    from tirgemm.service.settings import Settings

    return {name: value for name, value in arguments.items() if name in Settings.model_fields}
