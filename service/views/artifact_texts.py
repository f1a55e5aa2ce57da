"""The texts of an artifact: its sources as recorded, and what a compiler or a disassembler makes of the rest."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tirgemm.artifact import Package
from tirgemm.errors import AnalysisFailed, InvalidRequest, UntrustedArtifact
from tirgemm.service.views.artifact_file import OpenedArtifact

# What is recorded, by the member that holds it; what is made, by the device kind that has it.
RECORDED = {"script": "module.py", "cuda": "kernel.cu", "llvm": "kernel.ll"}
MADE = {"ptx": "cuda", "sass": "cuda", "asm": "cpu"}
NAMES = {
    "script": "TVMScript",
    "cuda": "CUDA source",
    "ptx": "PTX",
    "sass": "machine code of the GPU",
    "llvm": "LLVM IR",
    "asm": "machine code of the CPU",
}
_SECONDS = 60


@dataclass(frozen=True)
class Text:
    """A text, and of one that the artifact does not hold how it was made."""

    text: str
    made: str = ""


def kinds(package: Package) -> tuple[str, ...]:
    """The texts that there are of an artifact."""
    held = [kind for kind, member in RECORDED.items() if member in package.sources]
    made = [kind for kind, device in MADE.items() if device == package.manifest.device.kind]
    return tuple(kind for kind in NAMES if kind in (*held, *made))


def text_of(opened: OpenedArtifact, kind: str) -> Text:
    """The text of that kind.

    Raises InvalidRequest for one that such an artifact does not have, UntrustedArtifact where making it would give a
    tool bytes of a key that is not trusted, MissingExtra or InvalidRequest without the tool, BuildFailed,
    AnalysisFailed.
    """
    package = opened.package
    if kind not in kinds(package):
        device = package.manifest.device
        has = ", ".join(f"--{each} ({NAMES[each]})" for each in kinds(package))
        raise InvalidRequest(
            f"{opened.where} is of a {device.kind} kernel for {device.arch}: it has no {NAMES[kind]}, but {has}"
        )
    if kind in RECORDED:
        return Text(package.sources[RECORDED[kind]])
    if not opened.trusted:
        raise UntrustedArtifact(
            f"{NAMES[kind]} is made by a tool from bytes that {package.key} signed, which is not trusted here; what "
            f"the artifact holds as text is shown all the same, this with --trust {package.key}"
        )
    return {"ptx": _ptx, "sass": _sass, "asm": _asm}[kind](package)


def _ptx(package: Package) -> Text:
    from tirgemm.tuning.driver.nvrtc import compile_ptx, nvrtc_version

    manifest = package.manifest
    if "kernel.cu" not in package.sources:
        raise InvalidRequest("the artifact holds no CUDA source, from which PTX is made")
    text = compile_ptx(package.sources["kernel.cu"], manifest.flags)
    return Text(
        text,
        f"made here from kernel.cu by NVRTC {nvrtc_version()} with the artifact's flags, for the virtual architecture "
        f"of {manifest.device.arch}; the artifact holds machine code, no PTX",
    )


def _sass(package: Package) -> Text:
    from tirgemm.analysis.sass.disassembler import disassembly

    return Text(disassembly(package.binary), "kernel.cubin, which is what runs, disassembled by nvdisasm")


def _asm(package: Package) -> Text:
    tool = shutil.which("objdump") or shutil.which("llvm-objdump")
    if tool is None:
        raise InvalidRequest("disassembling a CPU kernel needs objdump (binutils or LLVM), which is not on the PATH")
    with tempfile.TemporaryDirectory(prefix="tirgemm-asm-") as folder:
        file = Path(folder) / "kernel.so"
        file.write_bytes(package.binary)
        command = [tool, "--disassemble", "--no-show-raw-insn", str(file)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_SECONDS, errors="replace", cwd=folder
            )
        except subprocess.TimeoutExpired as error:
            raise AnalysisFailed(f"{Path(tool).name} takes longer than {_SECONDS:g} s to read kernel.so") from error
    if done.returncode:
        raise AnalysisFailed(f"{Path(tool).name} does not read kernel.so: {done.stderr.strip()[-400:]}")
    lines = done.stdout.splitlines()
    kept = [line for line in lines if folder not in line]
    return Text("\n".join(kept).strip("\n") + "\n", f"kernel.so, which is what runs, disassembled by {Path(tool).name}")
