"""``tirgemm export``: one kernel as one shared library, without tirgemm at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm.cli import ArtifactPath, DataOption, TrustOption, artifact_trust


def export(
    kernel: ArtifactPath,
    out: Annotated[Path, typer.Argument(metavar="OUT.so", help="The library to write.")],
    trust: TrustOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """Write a kernel as a single-file library: `tvm_ffi.load_module("OUT.so")["main"](a, b, d)`."""
    from tirgemm._terminal.output_file import require_other_file
    from tirgemm.artifact import export as write
    from tirgemm.artifact import read

    require_other_file(out, "OUT.so", kernel, "the artifact")
    trusted = artifact_trust(trust, data)
    manifest = read(kernel, trusted).manifest
    write(kernel, out, trusted)
    document: dict[str, Any] = {"file": str(out), "bytes": out.stat().st_size, "gemm": str(manifest.gemm)}
    console.emit(
        as_json, document, lambda: console.out.print(f"{out}: {document['bytes']} bytes, {manifest.gemm}, symbol main")
    )
