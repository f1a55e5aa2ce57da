"""``tirgemm show``: what an artifact is and who signed it, or one of its texts; nothing of it is run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.plain_text import plain
from tirgemm._terminal.tables import Fields, Table
from tirgemm.cli import TrustOption, trust_of
from tirgemm.progress import role_name
from tirgemm.service.commands.tune import Data, Url
from tirgemm.service.views.search_summary_text import search_summary_text
from tirgemm.service.views.timing_tables import member_table, timing_table

if TYPE_CHECKING:
    from tirgemm.service.views.artifact_file import OpenedArtifact


def show(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="A .tirgemm file, or a kernel's id or hash.")],
    script: Annotated[bool, typer.Option("--script", help="Print its TVMScript, alone.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="Print its CUDA source, alone.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print its PTX, which NVRTC makes here, alone.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print its GPU machine code by nvdisasm, alone.")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="Print its LLVM IR (CPU kernels), alone.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="Print its CPU machine code by objdump, alone.")] = False,
    trust: TrustOption = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Show what an artifact is, who signed it and how fast it was; or one of its texts. Nothing of it is run."""
    from tirgemm.errors import InvalidRequest
    from tirgemm.service.views.artifact_file import open_artifact
    from tirgemm.service.views.artifact_texts import kinds, text_of

    chosen = {"script": script, "cuda": cuda, "ptx": ptx, "sass": sass, "llvm": llvm, "asm": asm}
    wanted = [kind for kind, asked in chosen.items() if asked]
    if len(wanted) > 1:
        raise InvalidRequest(f"--{' and --'.join(wanted)} are given; show prints one text at a time")
    opened = open_artifact(artifact, data, db, trust_of(trust, data))
    if not wanted:
        console.emit(as_json, _document(opened, kinds(opened.package)), lambda: _show(opened, kinds(opened.package)))
        return
    text = text_of(opened, wanted[0])
    document = {
        "kind": wanted[0],
        "made": text.made,
        "text": text.text,
        "kernel_sha256": opened.package.manifest.kernel_sha256,
    }
    if text.made and not as_json:
        console.err.print(text.made, markup=False, soft_wrap=True, style="dim")
    console.emit(as_json, document, lambda: _write(text.text))


def _write(text: str) -> None:
    """The text as it is; to a terminal without what would steer it."""
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
    if not text.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()


def _document(opened: OpenedArtifact, texts: tuple[str, ...]) -> dict[str, Any]:
    package = opened.package
    return {
        "from": opened.where,
        "sha256": package.sha256,
        "signer": package.key,
        "trusted": opened.trusted,
        "role": opened.record.role if opened.record else None,
        "portable": opened.record.portable if opened.record else None,
        "id": opened.record.id if opened.record else None,
        "texts": list(texts),
        "members": _members(opened),
        "manifest": package.manifest.to_json(),
    }


def _members(opened: OpenedArtifact) -> list[dict[str, Any]]:
    package = opened.package
    return [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in package.files]


def _show(opened: OpenedArtifact, texts: tuple[str, ...]) -> None:
    manifest, record = opened.package.manifest, opened.record
    search, role = manifest.timings.search, ""
    if record:
        role = f"{role_name(record.role, portable=record.portable)}, {record.regime}, made {record.created_at}"
    fields = [
        ("problem", str(manifest.gemm)),
        ("device", f"{manifest.device.model}, {manifest.device.arch}"),
        ("family", manifest.config.family),
        ("config", ", ".join(f"{name}={value}" for name, value in manifest.config.knobs)),
        ("role", role),
        ("signed by", opened.signature),
        ("certificate", manifest.certificate_fault or _certificate(manifest.certificate or {})),
        ("chosen", manifest.timings.reason),
        ("trials", search_summary_text(search, search.trials) if search else ""),
        ("launches", "; ".join(_launches(opened))),
        ("built by", f"tirgemm {manifest.tirgemm}, {' '.join(manifest.flags)}"),
        ("kernel", manifest.kernel_sha256),
        ("artifact", opened.package.sha256),
    ]
    console.out.print(plain(opened.where), style="bold")
    console.out.print(Fields(fields, indent=2))
    timings = timing_table(manifest.timings, manifest.gemm.flops, indent=2, samples=True)
    if timings.rows:
        console.out.print()
        console.out.print(timings)
    if manifest.timings.members:
        console.out.print()
        console.out.print(member_table(manifest.timings.members, indent=2))
    table = Table("holds", ">bytes", "SHA-256", indent=2)
    for member in _members(opened):
        table.add_row(member["name"], f"{member['bytes']:,}", member["sha256"])
    console.out.print()
    console.out.print(table)
    console.out.print()
    console.out.print(f"Texts of it: {', '.join(f'--{kind}' for kind in texts)}.")


def _certificate(certificate: dict[str, Any]) -> str:
    """What a certificate without a fault says."""
    tests = certificate["tests"]
    errors = [test["error"] for test in tests if isinstance(test.get("error"), float)]
    worst = f", the largest error {max(errors):.3g} of its bound" if errors else ""
    at = f", {certificate['at']}" if certificate.get("at") else ""
    return f"passed {len(tests)} tests against {certificate.get('reference', '?')}{worst}{at}"


def _launches(opened: OpenedArtifact) -> list[str]:
    """Every kernel in order: its extents and what it takes of an SM."""
    from tirgemm import expr
    from tirgemm.analysis.sass.cubin import kernels
    from tirgemm.errors import AnalysisFailed

    manifest = opened.package.manifest
    registers: dict[str, int] = {}
    if manifest.binary_format == "cubin":
        try:
            registers = {kernel.name: kernel.registers for kernel in kernels(opened.package.binary)}
        except AnalysisFailed:
            registers = {}
    launches = []
    for kernel in manifest.launch.kernels:
        grid = " x ".join(expr.text(extent) for extent in kernel.grid)
        words = f"{kernel.symbol} on {grid} blocks"
        if manifest.device.kind == "cuda":
            words += f" of {kernel.block[0] * kernel.block[1] * kernel.block[2]} threads"
            words += f", {kernel.shared_bytes:,} bytes of dynamic shared memory" if kernel.shared_bytes else ""
            words += f", {registers[kernel.symbol]} registers a thread" if kernel.symbol in registers else ""
        launches.append(words)
    return launches
