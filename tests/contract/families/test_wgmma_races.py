"""Kernels of wgmma on a model of sm_90a, from the very source that is compiled: right in whatever order PTX allows, and
wrong where a barrier, a wait or a fence that they need is taken away."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from tests.contract.families.emulation import check_exact
from tests.helpers.wgmma_paths import TMA_KNOBS
from tirgemm.bench import results
from tirgemm.config import Config, Value
from tirgemm.errors import InvalidConfig
from tirgemm.families.wgmma.planning.names import WORDS, unknown_word
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.families.wgmma.program import program
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from tirgemm.tuning.build import cuda
from verification import alterations, cases, emulated
from verification.emulator.operands import KernelCall
from verification.emulator.wgmma_on_cpu import Forbidden, Kernels, NotEmulated, Stuck, translated
from verification.smaller import smaller
from verification.switched import NUMBER, switched

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the model compiles with g++")

_RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "cpu" / "wgmma.emulated.json.gz"
_DEVICE = named_device("sm_90a")
# So few that a block computes several tiles.
_SMS = 2
_KNOBS: dict[str, Value] = TMA_KNOBS | {"tile_m": 64, "tile_n": 16, "stages": 3, "group": 1}
# Every schedule, way to load, to store and to share; rows, columns and k end inside a tile.
_CASES: dict[str, dict[str, Value]] = {
    "200x40x456:f16:nt": {},
    "200x264x328:bf16:tn:out=f32:bias": {"tile_m": 128, "tile_n": 128, "epilogue": "direct"},
    "136x104x520:f16:tt:acc=f16:batch=2": {"tile_n": 32, "schedule": "pingpong", "group": 2, "order": "n"},
    "200x72x520:bf16:nn:bias": {"tile_n": 32, "swap": 1, "epilogue": "staged"},
    "1..264x104x520:f16:nt:alpha": {"cluster_m": 2, "stages": 4, "schedule": "pingpong", "eviction": "first"},
    "130x136x392:bf16:tt:lda=136": {"cluster_n": 2, "tile_n": 32, "tile_m": 128, "epilogue": "staged"},
    "200x40x450:f16:nt:beta": {"load": "copy", "epilogue": "staged"},
    "70x44x452:bf16:tn:lda=72:align=8": {"load": "copy", "epilogue": "direct", "swap": 1},
    "77x43x331:f16:nt:align=2": {"load": "repack", "epilogue": "staged"},
    "77x45x127:f16:nt": {"load": "copy", "epilogue": "staged"},
    "1..69x41x126:bf16:tn:bias:lda=75": {"load": "copy", "epilogue": "direct", "swap": 1},
    "75x45x100:f16:tt:batch=2": {"load": "copy", "epilogue": "staged"},
    # Rows of D at multiples of 2, 4, 8 and 16 bytes, in chunks of 64 columns and of fewer, the last one ragged.
    "130x203x72:f16:nt:bias": {"tile_n": 80, "epilogue": "staged"},
    "130x203x72:bf16:nt:align=2:ldd=205:batch=2": {"load": "copy", "tile_n": 32, "epilogue": "staged"},
    "130x202x72:f16:nt:bias": {"tile_m": 128, "tile_n": 96, "epilogue": "staged"},
    "130x204x72:f16:nt:align=8:ldd=212": {"load": "repack", "tile_n": 64, "epilogue": "staged"},
    "130x200x72:f16:nt:batch=2": {"tile_n": 64, "epilogue": "staged"},
    "130x200x72:bf16:nt:beta": {"tile_n": 24, "epilogue": "staged"},
    "1..130x203x72:bf16:nt": {"tile_n": 8, "swap": 1, "epilogue": "staged"},
    "200x193x72:f16:nt:beta": {"tile_n": 64, "swap": 1, "schedule": "pingpong", "epilogue": "staged"},
    "100x40x1100:bf16:nn:ldb=40:lda=1104": {"split": 4, "epilogue": "direct", "tile_m": 128},
    "1..70x48x1096:f16:nt:bias": {"split": 3},
    "1..120x40x456:f16:nt": {"tile_m": 128, "tile_n": 24},
    "1..64x72x520:bf16:nt:batch=2:bias": {"tile_n": 64, "swap": 1, "schedule": "pingpong"},
    "70x44x1096:f16:nt:bias": {"split": 5, "reduction": "kernel", "epilogue": "direct"},
    # Larger clusters, some of whose blocks load rows of a slab that are no multiple of eight; one operand copied.
    "500x40x330:f16:nt:ldb=336:beta": {"cluster_m": 4, "tile_n": 24, "load": "copy", "epilogue": "staged"},
    "264x104x520:bf16:tn": {"cluster_m": 2, "cluster_n": 2, "tile_n": 32, "stages": 4, "schedule": "pingpong"},
    "1..500x90x200:f16:nt:bias": {"cluster_m": 4, "cluster_n": 2, "tile_n": 24},
    "100x300x456:f16:nt:beta:batch=2": {"cluster_m": 2, "cluster_n": 4, "tile_n": 40, "swap": 1},
    # Slabs that reach beyond their tile; tiles, and blocks' parts of them, that lie outside in part or altogether.
    "200x104x456:f16:nn": {"tile_n": 40, "cluster_m": 2},
    "72x200x520:bf16:tt:bias": {"tile_n": 24, "swap": 1},
    "180x72x456:f16:nt": {"tile_n": 40, "cluster_m": 2, "schedule": "pingpong"},
    "150x100x520:bf16:nt:batch=2": {"tile_n": 40, "cluster_n": 2, "tile_m": 128},
    "1..150x104x456:f16:tn:lda=152": {"tile_n": 56, "swap": 1, "epilogue": "staged"},
    "200x104x200:f16:nn": {"tile_n": 8},
    # Chunks of 32 columns, where the stages leave no room for 64; the last one begins inside the one before.
    "300x152x328:f16:nt": {"tile_m": 256, "tile_n": 152, "stages": 4},
    "152x300x328:bf16:tt:bias": {"tile_m": 256, "tile_n": 144, "stages": 4, "swap": 1},
    # D of four bytes, in chunks of 32 columns and of fewer; transposed, in two boxes a chunk.
    "200x264x328:f16:tn:out=f32:bias": {"tile_m": 128, "tile_n": 128},
    "136x104x520:f16:tt:out=f32:batch=2:ldd=112:alpha": {"tile_n": 72, "schedule": "pingpong"},
    "200x100x328:f16:nn:ldb=104:out=f32:beta:bias:ldc=104": {"tile_n": 48, "cluster_m": 2, "stages": 4},
    "1..264x104x520:f16:nt:out=f32": {"tile_n": 40, "cluster_n": 2, "tile_m": 128},
    "200x40x456:bf16:nt:out=f32": {"tile_n": 8},
    "300x152x328:f16:nt:out=f32": {"tile_m": 256, "tile_n": 152, "stages": 4},
    "70x48x1096:f16:nt:out=f32:bias": {"split": 3, "tile_n": 24},
    "200x40x4104:f16:nt:out=f32:acc=f16:invariant": {"split": 4, "reduction": "block", "schedule": "pingpong"},
    "200x76x520:bf16:nn:ldb=80:out=f32:beta": {"tile_n": 48, "swap": 1, "schedule": "pingpong"},
    "152x300x328:bf16:tt:out=f32:bias": {"tile_m": 256, "tile_n": 144, "stages": 4, "swap": 1},
    "1..70x36x456:f16:nt:out=f32:batch=2:alpha": {"tile_n": 8, "swap": 1},
    # In ping-pong a tile of one step: a consumer may have passed its turn before some of its warps begin.
    "64x320x64:bf16:nt": {"tile_n": 40, "schedule": "pingpong"},
    "500x72x328:bf16:nn": {"cluster_m": 4, "tile_m": 128, "tile_n": 48, "epilogue": "direct"},
    "200x40x4104:f16:nt:acc=f16:invariant": {"split": 4, "reduction": "block", "schedule": "pingpong"},
    "200x40x4160:bf16:tn:out=f32:bias:invariant": {
        "split": 4,
        "reduction": "block",
        "cluster_n": 2,
        "tile_m": 128,
        "epilogue": "direct",
    },
}
# Without which the same is still said: either of two fences makes the barriers known, the last arrivals nobody waits
# for.
_START = ("fence.mbarrier_init.release.cluster removed", "fence.proxy.async.shared::cta removed")
_RELEASE = "barrier.cluster.arrive.release.aligned weakened"
_LAST = "mbarrier.arrive.shared.b64 removed"
# The same of one problem alone.
_READ = "cp.async.bulk.wait_group.read"
_OF_ONE_PROBLEM = {
    # A consumer stores no more chunks than it has buffers: none is written a second time.
    *(("1..7x40x1032:bf16:nn", f"{_READ} 1 {what}") for what in ("removed", "weakened")),
    # The last chunk of every consumer's last tile lies outside D, or its last two: none reads them.
    ("1..1290x1160x712:f16:tt:lda=1290", f"{_READ} 0 weakened"),
    *(("1100x1160x520:bf16:tt:invariant", f"{_READ} 0 {what}") for what in ("removed", "weakened")),
}
# D of four bytes, rounded after every step of its epilogue.
_ROUNDED: dict[str, dict[str, Value]] = {
    "200x264x328:bf16:tn:out=f32": {"tile_m": 128, "tile_n": 128},
    "136x104x520:f16:tt:out=f32:bias:act=gelu:batch=2": {"tile_n": 72, "schedule": "pingpong"},
    "200x100x328:f16:nn:ldb=104:out=f32:alpha:beta:bias:act=silu": {"tile_n": 48, "cluster_m": 2, "stages": 4},
    "1..264x76x456:bf16:nt:out=f32:bias:act=gelu:ldd=80": {"tile_n": 40, "swap": 1},
}
_MUTANTS: dict[str, tuple[dict[str, Value], dict[str, tuple[str, ...]]]] = {
    "264x112x456:f16:nt": ({"tile_n": 80}, {"start": _START}),
    "200x104x520:bf16:tt": ({"schedule": "pingpong", "tile_n": 32}, {"start": _START}),
    "200x104x328:bf16:tt:out=f32": ({"schedule": "pingpong", "tile_n": 80}, {"start": _START}),
    "200x72x328:f16:nt:out=f32": ({"tile_n": 80, "swap": 1}, {"start": _START}),
    "260x104x520:f16:nn": (
        {"cluster_m": 2, "tile_n": 32, "epilogue": "direct"},
        {"start": (*_START, _RELEASE), "epilogue": (_RELEASE,)},
    ),
    "264x60x328:f16:nt": (
        {"cluster_m": 2, "cluster_n": 2, "tile_n": 32, "epilogue": "direct"},
        {"start": (*_START, _RELEASE), "epilogue": (_RELEASE,)},
    ),
    "200x41x450:f16:nt": ({"load": "copy", "epilogue": "staged"}, {"start": _START}),
    "200x72x450:f16:nt": ({"load": "copy", "tile_n": 64, "epilogue": "staged"}, {"start": _START}),
    "72x24x840:f16:nt:beta": (
        {"split": 3, "tile_m": 128, "epilogue": "direct"},
        {
            "start": (*_START, _RELEASE),
            "producer": ("barrier.cluster removed", _RELEASE),
            "epilogue": (_LAST, _RELEASE),
        },
    ),
    "77x43x331:f16:nt:align=2": (
        {"load": "repack", "epilogue": "direct"},
        {"start": (*_START, "griddepcontrol.launch_dependents removed")},
    ),
}


def _source(gemm: Gemm, changes: dict[str, Value]) -> tuple[str, Launch]:
    # Without the rules, which mind that small problems keep few SMs busy.
    made = program(plan(gemm, Config("wgmma", tuple((_KNOBS | changes).items())), _SMS))
    host, source = cuda.lower(made, _DEVICE.arch)
    return source, cuda.checked_launch(made, host)


@pytest.mark.parametrize("text", _CASES)
def test_result_is_exact_whatever_happens_late(text: str, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    source, launch = _source(gemm, _CASES[text])
    with Kernels(source, launch, tmp_path) as kernels:
        check_exact(kernels, KernelCall.integers(gemm, gemm.m_max, seed=3))
        if gemm.m_max != gemm.m:
            check_exact(kernels, KernelCall.integers(gemm, 33, seed=4))


@pytest.mark.parametrize("text", _ROUNDED)
def test_outputs_of_four_bytes_are_within_the_bound(text: str, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    source, launch = _source(gemm, _ROUNDED[text])
    with Kernels(source, launch, tmp_path) as kernels:
        for m in {gemm.m_max, 33 if gemm.m_max != gemm.m else gemm.m_max}:
            case = KernelCall.random(gemm, m, seed=8)
            case.check(kernels(case, 5))


@pytest.mark.parametrize("text", _MUTANTS)
def test_every_mutant_shows_but_those_that_say_the_same(text: str, tmp_path: Path) -> None:
    changes, alike = _MUTANTS[text]
    gemm = Gemm.parse(text)
    source, launch = _source(gemm, changes)
    mutants = alterations.mutants(source)
    case = KernelCall.integers(gemm, gemm.m_max, seed=5)
    missed = set()
    with Kernels(switched(source, [mutant.alteration for mutant in mutants]), launch, tmp_path) as kernels:
        number = ctypes.c_int.in_dll(ctypes.CDLL(str(tmp_path / "kernel.so")), NUMBER)
        check_exact(kernels, case)
        for number.value, mutant in enumerate(mutants, 1):
            try:
                check_exact(kernels, case, range(24))
            except AssertionError:
                continue
            missed.add((mutant.where.split(": ")[1], mutant.what))
    assert missed == {(where, what) for where, words in alike.items() for what in words}


# Of the mutants above that say the same, those that do for the sake of another instruction.
_EITHER: tuple[tuple[str, dict[str, Value], tuple[str, str]], ...] = (
    ("64x16x200:f16:nt", {}, _START),
    ("128x16x200:f16:nt", {"cluster_m": 2}, (_START[0], _RELEASE)),
)


@pytest.mark.parametrize(("text", "changes", "both"), _EITHER, ids=[" and ".join(both) for _, _, both in _EITHER])
def test_without_either_of_two_it_shows(
    text: str, changes: dict[str, Value], both: tuple[str, str], tmp_path: Path
) -> None:
    gemm = Gemm.parse(text)
    source, launch = _source(gemm, changes)
    mutants = alterations.mutants(source)
    chosen = [next(mutant.alteration for mutant in mutants if mutant.what == what) for what in both]
    case = KernelCall.integers(gemm, gemm.m_max, seed=7)
    text = alterations.altered(source, "+".join(chosen))
    with Kernels(text, launch, tmp_path) as kernels, pytest.raises(AssertionError):
        check_exact(kernels, case)


def test_what_is_left_undefined_and_what_stops_are_told_apart(tmp_path: Path) -> None:
    gemm = Gemm.parse("64x16x200:f16:nt")
    source, launch = _source(gemm, {})
    mutants = [
        mutant for mutant in alterations.mutants(source) if "cta_sync" in mutant.what or "expect_tx" in mutant.what
    ]
    case = KernelCall.integers(gemm, 64, seed=6)
    for mutant, error in zip(mutants, (Forbidden, Stuck), strict=True):
        folder = tmp_path / error.__name__
        folder.mkdir()
        with Kernels(alterations.altered(source, mutant.alteration), launch, folder) as kernels, pytest.raises(error):
            check_exact(kernels, case)


def test_rows_that_begin_between_units_of_sixteen_bytes_are_forbidden(tmp_path: Path) -> None:
    gemm = Gemm.parse("64x16x200:f16:nt")
    source, launch = _source(gemm, {})
    shifted = source.replace("(step * 64)", "(step * 64 + 4)")
    assert shifted != source
    case = KernelCall.integers(gemm, 64, seed=6)
    with Kernels(shifted, launch, tmp_path) as kernels, pytest.raises(Forbidden, match="no multiple of 16 bytes"):
        check_exact(kernels, case)


def test_a_source_with_an_unknown_instruction_is_refused() -> None:
    source, _ = _source(Gemm.parse("64x16x200:f16:nt"), {})
    with pytest.raises(NotEmulated, match="another"):
        translated(source.replace("fence.proxy.async", "another.instruction"))
    with pytest.raises(NotEmulated, match="plain store"):
        translated(source + "  ((half*)_ptr)[3] = x;\n")


def test_the_command_runs_wgmma_on_smaller_problems_without_empty_parts() -> None:
    gemm = Gemm.parse("1..7x40x4104:bf16:tt:out=f32:batch=2:lda=8")
    knobs = _KNOBS | {"tile_n": 8, "stages": 2, "split": 10, "reduction": "kernel", "epilogue": "direct"}
    case = cases.Case(gemm, Config("wgmma", tuple(knobs.items())))
    first, *_, last = smaller(case, _DEVICE)
    assert (first.n, last) == (24, gemm)
    with pytest.raises(InvalidConfig, match="one is empty"):
        emulated.EMULATORS["wgmma"].program(first, case)
    assert emulated.EMULATORS["wgmma"].program(last, case).launch.kernels


def test_committed_rows_miss_only_mutants_that_say_the_same() -> None:
    # Of configs that the family still has: others are of knobs' values that were removed since.
    rows = [
        row
        for row in results.load(_RESULTS)["rows"]
        if not any(unknown_word(knob, row["config"][knob]) for knob in WORDS)
    ]
    assert len(rows) > 150
    missed = {
        (row["where"].split(": ")[1], row["what"])
        for row in rows
        if row["status"] == "not caught" and (row["gemm"], row["what"]) not in _OF_ONE_PROBLEM
    }
    assert missed <= {
        *(("start", what) for what in (*_START, _RELEASE, "griddepcontrol.launch_dependents removed")),
        ("producer", "barrier.cluster removed"),
        ("producer", _RELEASE),
        # The consumers' barrier of a split in a cluster, where there is one consumer; what one warp writes and reads.
        *(("epilogue", what) for what in (_LAST, _RELEASE, "bar.sync removed")),
    }
    assert {row["status"] for row in rows if not row["mutant"]} == {"passed"}
