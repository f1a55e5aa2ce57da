"""The rungs of the ladder: right on the CPU, right in any order of threads, and compiled for every architecture."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import pytest

from tests.computed_once import computed_once
from tests.contract.families import gpu_on_cpu
from tests.contract.families.emulation import emulate
from tirgemm.config import Config
from tirgemm.families import FAMILIES
from tirgemm.families.base import Program
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.tuning.build import cuda
from verification.emulator.operands import KernelCall

_SIMT = FAMILIES["simt"]
# Few SMs: small problems must not be told that their blocks are too few.
_SMALL = named_device("sm_90a").with_(units=1)
_NAMES = [rung.name for rung in ladder.RUNGS]


def _program(name: str, gemm: Gemm) -> Program:
    return _SIMT.instantiate(gemm, ladder.config(name, gemm, _SMALL), _SMALL)


# k ends inside a step; the blocks' edges lie inside rows and columns; four and one elements wide.
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("text", ["131x260x76:f32:nn:alpha:beta", "137x129x45:f16:nn"])
def test_every_rung_means_the_problem(name: str, text: str) -> None:
    gemm = Gemm.parse(text)
    case = KernelCall.random(gemm, gemm.m_max, seed=1)
    case.check(gpu_on_cpu.run(_program(name, gemm), case))


@pytest.mark.parametrize("name", ["naive", "inner_product", "register_cache", "combined"])
@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
def test_tiles_lie_as_their_operands_in_every_layout(name: str, layout: str) -> None:
    gemm = Gemm.parse(f"130x132x36:f32:{layout}:beta:act=relu")
    case = KernelCall.random(gemm, gemm.m_max, seed=1)
    case.check(gpu_on_cpu.run(_program(name, gemm), case))


@pytest.mark.parametrize("name", _NAMES)
def test_no_rung_depends_on_the_order_of_threads(name: str, tmp_path: Path) -> None:
    gemm = Gemm.parse("66x132x76:f32:nn:alpha:beta")
    program = _program(name, gemm)
    host, source = cuda.lower(program, _SMALL.arch)
    case = KernelCall.random(gemm, gemm.m_max, seed=2)
    case.check(emulate(source, cuda.checked_launch(program, host), case, tmp_path, orders=(0, 1, 6)))


# The problems of both dtypes that rungs are compiled for.
_LARGE = ("4096x4096x4096:f32:nn:alpha:beta", "4096x4096x4096:f16:nn")


def _large_source(name: str, text: str, arch: str) -> str:
    gemm, device = Gemm.parse(text), named_device(arch)
    program = _SIMT.instantiate(gemm, ladder.config(name, gemm, device), device)
    host, source = cuda.lower(program, arch)
    cuda.checked_launch(program, host)
    return source


@cache
def _large_sources(text: str) -> dict[tuple[str, Config], str]:
    """The sources of all rungs, by the configs that they have on some architecture, of which most have one."""

    def lowered() -> dict[tuple[str, Config], str]:
        sources: dict[tuple[str, Config], str] = {}
        for name, arch in product(_NAMES, sorted(ARCHITECTURES)):
            key = name, ladder.config(name, Gemm.parse(text), named_device(arch))
            if key not in sources:
                sources[key] = _large_source(name, text, arch)
        return sources

    return computed_once(f"ladder-{_LARGE.index(text)}", lowered)


def _large_config(name: str, text: str, arch: str) -> Config:
    return ladder.config(name, Gemm.parse(text), named_device(arch))


@pytest.mark.parametrize("text", _LARGE)
def test_adjacent_rungs_differ_in_lowered_code(text: str) -> None:
    lowered = {name: _large_sources(text)[name, _large_config(name, text, "sm_90a")] for name in _NAMES}
    same = [rung.name for rung in ladder.RUNGS if rung.parent and lowered[rung.name] == lowered[rung.parent]]
    assert not same


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_the_same_config_has_the_same_source_for_every_architecture(arch: str) -> None:
    for name, text in (("combined", _LARGE[0]), ("register_cache", _LARGE[1])):
        assert _large_source(name, text, arch) == _large_sources(text)[name, _large_config(name, text, arch)]


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_every_rung_compiles_without_spills(arch: str) -> None:
    """Every pair of rung, architecture and dtype, not every triple: dtypes take turns from rung to rung, and from
    architecture to architecture. What a spill comes from is the rung's tile, the registers of an architecture's
    compiler, or what a dtype converts, and each meets each."""
    first = sorted(ARCHITECTURES).index(arch)
    spilled = {}
    for number, name in enumerate(_NAMES):
        text = _LARGE[(first + number) % 2]
        source = _large_sources(text)[name, _large_config(name, text, arch)]
        _, cubin = cuda.compile_lowered(source, arch)
        spilled[name] = sum(kernel.spill_bytes for kernel in cubin.resources.values())
    assert spilled == dict.fromkeys(_NAMES, 0)


# -- one barrier a step ------------------------------------------------------------------------------


def _with_one_barrier(text: str, pipeline: str, order: str = "z") -> Program:
    gemm = Gemm.parse(text)
    config = _SIMT.default(gemm, _SMALL, "sustained").with_(pipeline=pipeline, barriers=1, lane_order=order)
    return _SIMT.instantiate(gemm, config, _SMALL)


@pytest.mark.parametrize("text", ["9x68x76:f32:nn:beta", "1..37x31x45:f32:nt:alpha", "40x33x129:f32:tn"])
@pytest.mark.parametrize("pipeline", ["double", "async2", "async3", "async4"])
def test_one_barrier_a_step_is_enough(text: str, pipeline: str, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    program = _with_one_barrier(text, pipeline)
    host, source = cuda.lower(program, _SMALL.arch)
    case = KernelCall.random(gemm, gemm.m_max, seed=3)
    case.check(emulate(source, cuda.checked_launch(program, host), case, tmp_path))


def _step(source: str) -> str:
    """The text of the pipelined loop."""
    start = source.index("for (int v = 0")
    return source[start : source.index("\n  }\n", start)]


@pytest.mark.parametrize("pipeline", ["double", "async2", "async3", "async4"])
def test_a_step_has_the_barriers_that_its_knob_says(pipeline: str) -> None:
    one = _with_one_barrier("128x256x512:f32:nn", pipeline)
    assert _step(cuda.lower(one, _SMALL.arch)[1]).count("__syncthreads()") == 1
    gemm = Gemm.parse("128x256x512:f32:nn")
    two = _SIMT.default(gemm, _SMALL, "sustained").with_(pipeline=pipeline, barriers=2)
    source = cuda.lower(_SIMT.instantiate(gemm, two, _SMALL), _SMALL.arch)[1]
    assert _step(source).count("__syncthreads()") == 2


@pytest.mark.parametrize("pipeline", ["double", "async3"])
def test_the_one_barrier_is_needed(pipeline: str, tmp_path: Path) -> None:
    gemm = Gemm.parse("16x68x256:f32:nn")
    program = _with_one_barrier(str(gemm), pipeline)
    host, source = cuda.lower(program, _SMALL.arch)
    step = _step(source)
    mutant = source.replace(step, step.replace("__syncthreads();", ""))
    assert mutant != source
    case = KernelCall.random(gemm, 16, seed=4)
    with pytest.raises(AssertionError):
        case.check(emulate(mutant, cuda.checked_launch(program, host), case, tmp_path))
