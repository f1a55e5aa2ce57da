"""Machine code that ``explain`` reads: that which building the config gives, the artifact's own, or none and why."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tirgemm.analysis.explanation import AS_WRITTEN, Explanation, MachineCode, explain_launch
from tirgemm.artifact import Package
from tirgemm.errors import MissingExtra
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.report_text import sections
from tirgemm.tuning.build.compile import compile_program
from tirgemm.tuning.driver import nvrtc
from tirgemm.tuning.explain import chosen, explain

SMALL = Gemm.parse("129x67x31:f16:nt")
A100 = named_device("sm_80")
CONFIG = chosen(SMALL, A100, "simt", "resident=4")


def explained(**options: Any) -> Explanation:
    return explain(SMALL, CONFIG, A100, **options)


def test_as_written_says_so_and_names_what_it_lacks() -> None:
    explanation = explained(compiled=False)
    assert (explanation.compiled, explanation.code) == (False, AS_WRITTEN)
    assert [each.name for each in explanation.unknown] == ["roofline", "occupancy and waves"]
    assert (explanation.main.occupancy, explanation.main.opcodes, explanation.main.resources) == (None, None, None)
    titles = [part.title for part in sections(Report(explanation))]
    assert "Shared memory" in titles
    assert "Opcodes" not in titles
    assert "Not in these figures" in titles


def test_without_a_compiler_it_is_as_written_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> Any:
        raise MissingExtra("compiling for a GPU needs NVRTC: pip install 'tirgemm[cuda]'")

    monkeypatch.setattr("tirgemm.tuning.build.cuda.compile_source", absent)
    explanation = explained()
    assert not explanation.compiled
    assert "machine code: compiling for a GPU needs NVRTC" in str(explanation.unknown[0])
    assert explanation.code == AS_WRITTEN


def test_without_a_disassembler_it_is_as_written_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: bytes) -> Any:
        raise MissingExtra("reading machine code needs nvdisasm")

    monkeypatch.setattr("tirgemm.analysis.explanation.disassemble", absent)
    explanation = explained()
    assert not explanation.compiled
    assert "machine code: reading machine code needs nvdisasm" in map(str, explanation.unknown)


def test_what_spills_is_explained_as_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building tries looser bounds then. Where an artifact has what that gives, its code is read."""
    read: list[bytes] = []

    def spilling(source: str, arch: str) -> nvrtc.Cubin:
        cubin = nvrtc.compile_source(source, arch)
        bound = re.search(r"__launch_bounds__\(\d+, (\d+)\)", source)
        spilled = 8 if bound and int(bound[1]) > 1 else 0
        resources = {name: replace(each, spill_store_bytes=spilled) for name, each in cubin.resources.items()}
        return replace(cubin, resources=resources)

    def noted(module: Any, launch: Any, subject: Any, code: MachineCode, measured: Any) -> Explanation:
        assert code.cubin is not None
        read.append(code.cubin)
        return explain_launch(module, launch, subject, code, measured)

    monkeypatch.setattr("tirgemm.tuning.explain.explain_launch", noted)
    program = family_named("simt").instantiate(SMALL, CONFIG, A100)
    bound = compile_program(program, A100)
    monkeypatch.setattr("tirgemm.tuning.build.cuda.compile_source", spilling)
    built = compile_program(program, A100)
    assert built.data != bound.data
    assert explained().code == "compiled here"
    assert read == [built.data]
    served = cast(Package, SimpleNamespace(sources=built.sources, binary=built.data))
    assert explained(package=served).code == "the machine code that is served"
    earlier = cast(Package, SimpleNamespace(sources={"kernel.cu": "// by another version"}, binary=b""))
    assert explained(package=earlier).code.startswith("compiled here: this version of tirgemm writes")
    assert read == [built.data] * 3
