"""Figures of an artifact's machine code: its size, what its kernels take of an SM, its instructions by kind."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tirgemm.artifact import Package
from tirgemm.errors import AnalysisFailed, InvalidRequest, MissingExtra
from tirgemm.launch import KernelLaunch
from tirgemm.service.views.artifact_file import OpenedArtifact
from tirgemm.service.views.artifact_texts import text_of

Counts = tuple[tuple[str, int], ...]

# Of x86, by the mnemonic; the first that fits counts.
_X86 = (
    ("multiply and add", r"v?(fn?m(add|sub)|dp|mul|add|sub)\w*[ps][sdh]|vdpbf16ps"),
    ("conversion", r"v?cvt|vpmov[sz]x"),
    ("vector move and load", r"v(mov|broadcast|pbroadcast|insert|extract|perm|shuf|unpck|blend|gather|scatter)"),
    ("other vector", r"v[a-z]"),
    ("prefetch", r"prefetch"),
    ("control", r"j[a-z]+|call|ret|loop|nop|endbr|hlt|ud2"),
)
_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(?:data16\s+|cs\s+|lock\s+|rep\w*\s+)*([a-z][\w.]*)")


@dataclass(frozen=True)
class CodeFigures:
    """``figures``: names with what is said of each, in order; ``units``: instructions by the kind of unit or work, in
    all and in the main ``loop``; ``opcodes``: instructions by name.

    ``missing`` is why figures of the code are lacking, empty where none are.
    """

    nbytes: int
    figures: tuple[tuple[str, int], ...] = ()
    instructions: int | None = None
    units: Counts = ()
    loop: Counts = ()
    opcodes: Counts = ()
    missing: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.nbytes,
            **dict(self.figures),
            "instructions": self.instructions,
            "units": dict(self.units),
            "main_loop_units": dict(self.loop),
            "missing": self.missing or None,
        }


def code_figures(opened: OpenedArtifact) -> CodeFigures:
    """The figures of the kernel that multiplies (GPU), or of the whole library (CPU); what no tool here reads is
    missing."""
    package = opened.package
    nbytes = len(package.binary)
    try:
        if package.manifest.device.kind == "cpu":
            return _x86(opened, nbytes)
        declared = _declared(package)
        return _sass(package, nbytes) if opened.trusted else CodeFigures(nbytes, declared, missing=_untrusted(package))
    except (MissingExtra, InvalidRequest, AnalysisFailed) as error:
        known = (
            _declared(package)
            if package.manifest.device.kind == "cuda" and not isinstance(error, AnalysisFailed)
            else ()
        )
        return CodeFigures(nbytes, known, missing=str(error))


def _untrusted(package: Package) -> str:
    return f"nothing of {package.key} is disassembled, for it is not trusted here"


def _declared(package: Package) -> tuple[tuple[str, int], ...]:
    """What the cubin says without a disassembler, of the kernel that comes last where there are several."""
    from tirgemm.analysis.sass.cubin import kernels

    launches = package.manifest.launch.kernels
    declared = {kernel.name: kernel for kernel in kernels(package.binary)}
    if not launches or launches[-1].symbol not in declared:
        return ()
    launch = launches[-1]
    kernel = declared[launch.symbol]
    return (("registers a thread", kernel.registers), *_shared(launch, kernel.shared_bytes))


def _shared(launch: KernelLaunch, static: int) -> tuple[tuple[str, int], ...]:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    return (("bytes of shared memory a block", launch.shared_bytes + static), ("threads a block", threads))


def _sass(package: Package, nbytes: int) -> CodeFigures:
    from tirgemm.analysis.resources import occupancy_of, resources_of
    from tirgemm.analysis.sass.opcode_mix import opcode_mix
    from tirgemm.analysis.sass.program import disassemble

    functions = {function.name: function for function in disassemble(package.binary)}
    resources = resources_of(package.binary, tuple(functions.values()))
    launches = [kernel for kernel in package.manifest.launch.kernels if kernel.symbol in functions]
    if not launches:
        raise AnalysisFailed("the cubin has no code of the kernels that are launched")
    mixes = {kernel.symbol: opcode_mix(functions[kernel.symbol]) for kernel in launches}
    main = max(launches, key=lambda kernel: _arithmetic(mixes[kernel.symbol].units))
    taken, mix = resources[main.symbol], mixes[main.symbol]
    occupancy = occupancy_of(main, taken, package.manifest.device)
    figures = (
        ("registers a thread", taken.registers),
        ("bytes of spills a thread", taken.spill_bytes),
        *_shared(main, taken.shared_bytes),
        ("blocks an SM", occupancy.blocks),
        ("warps an SM", occupancy.warps),
        ("kernels", len(package.manifest.launch.kernels)),
    )
    opcodes = Counter(instruction.name for instruction in functions[main.symbol].executed)
    return CodeFigures(nbytes, figures, mix.instructions, mix.units, mix.loop_units, tuple(opcodes.most_common()))


def _arithmetic(units: Counts) -> int:
    return sum(
        number * (100 if unit == "tensor" else 1) for unit, number in units if unit in ("tensor", "fp32", "fp16")
    )


def _x86(opened: OpenedArtifact, nbytes: int) -> CodeFigures:
    if not opened.trusted:
        return CodeFigures(nbytes, missing=_untrusted(opened.package))
    lines = map(_LINE.match, text_of(opened, "asm").text.splitlines())
    names = Counter(line[1] for line in lines if line is not None)
    counts: Counter[str] = Counter()
    for name, count in names.items():
        counts[_kind(name)] += count
    figures = (("kernels", len(opened.package.manifest.launch.kernels)),)
    return CodeFigures(nbytes, figures, counts.total(), tuple(counts.most_common()), (), tuple(names.most_common()))


def _kind(mnemonic: str) -> str:
    return next((kind for kind, words in _X86 if re.match(words, mnemonic)), "other")
