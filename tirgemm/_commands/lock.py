"""``tirgemm lock``: the very artifacts that a deployment uses, written down with their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.progress_view import console_view
from tirgemm._terminal.tables import Table
from tirgemm.cli import URL
from tirgemm.events import Phase
from tirgemm.progress import ProgressTracker, role_description


def lock(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model file: the problems, in TOML.")],
    url: Annotated[str, typer.Option(help="The service.")] = URL,
    out: Annotated[
        Path | None, typer.Option("--output", "--out", "-o", help="The lock file; default: FILE with .lock behind.")
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Take the default kernels as soon as they are there: wait for no tuning.")
    ] = False,
    effort: Annotated[str | None, typer.Option(help="How far the searches go.")] = None,
    as_json: Json = False,
) -> None:
    """Write down the artifacts of the problems that FILE lists, tuned if need be, with their hashes.

    Each is fetched, checked and kept in the cache. `tirgemm get --locked` then takes exactly those.
    """
    from dataclasses import asdict

    from tirgemm._client.lock_file import LockFile, locked_of
    from tirgemm._client.model_file import ModelFile
    from tirgemm._client.service_documents import KERNEL, checked
    from tirgemm._terminal.output_file import check_output, require_other_file
    from tirgemm.artifact import read
    from tirgemm.client import Client

    model = ModelFile.read(file)
    target = out or file.with_name(f"{file.name}.lock")
    check_output(target, "--output" if out else "the lock file")
    require_other_file(target, "--output", file, "the model file")
    kernels = {}
    with Client(url) as client:
        # All of them at once, so that the service works on them side by side.
        client.submit_batch(list(model.kernels.values()), device=model.device, regime=model.regime, effort=effort)
        for name, gemm in model.kernels.items():
            tracker = ProgressTracker(f"{name}: {gemm}", phase=Phase.QUEUED)
            with console_view(tracker, console.err, quiet=as_json) as view:
                document = client.document(
                    gemm,
                    device=model.device,
                    regime=model.regime,
                    wait="fallback" if default else True,
                    effort=effort,
                    on_event=view,
                )
                checked(document, KERNEL, client.url)
                data = client.package(document, gemm, device=document["device"]["key"], regime=model.regime)
            kernels[name] = locked_of(read(data, client.trust), model.regime, document["role"])
    LockFile(kernels).write(target)

    def show() -> None:
        table = Table("name", "problem", "role", "device", "artifact")
        for name, kernel in kernels.items():
            table.add_row(name, kernel.gemm, role_description(kernel.role), kernel.device, kernel.artifact_sha256[:16])
        console.out.print(table)
        console.out.print(f"{target}: {len(kernels)} kernels")

    document = {name: asdict(kernel) for name, kernel in kernels.items()}
    console.emit(as_json, {"file": str(target), "kernels": document}, show)
