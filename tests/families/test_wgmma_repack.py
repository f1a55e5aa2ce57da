"""The copy of operands that TMA cannot load: its extents, its bits, its loads, its machine code.

The CUDA source that NVRTC gets is run by g++, thread by thread, with every load held against the operand's bounds.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.repack_alone import repack_alone
from tirgemm.errors import InvalidGemm
from tirgemm.expr import evaluate
from tirgemm.families.common.aligned_copy import MAX_COPY_BYTES, AlignedCopy
from tirgemm.families.wgmma.planning.repacking import (
    REPACK_THREADS,
    REPACK_WORDS,
    all_turns,
    copies,
    repack_grid,
    repacked,
    turns_of,
)
from tirgemm.gemm import Gemm, Operand
from tirgemm.launch import Launch, Pointer, Size, Workspace
from tirgemm.tuning.build import cuda
from tirgemm.tuning.driver.nvrtc import compile_source

_OPERANDS: tuple[Operand, ...] = ("a", "b")
_POISON = 0xFFFF
_GUARD = 64
# CUDA as g++ takes it. A load is counted by its width, and refused outside the operands or off its alignment.
_HEADER = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
using std::max; using std::min;
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Index { int x = 0, y = 0, z = 0; };
static Index threadIdx, blockIdx;
static const char *begins[2], *ends[2];
static long long refused, words, elements;
template <class T> T __shfl_sync(unsigned, T value, int, int) { return value; }
template <class T> T __ldg(const T* from) {
  const char* at = (const char*)from;
  bool inside = false;
  for (int i = 0; i < 2; i++) inside |= at >= begins[i] && at + sizeof(T) <= ends[i];
  if (!inside || (uintptr_t)at % sizeof(T)) { refused++; return T{}; }
  (sizeof(T) == 16 ? words : elements)++;
  return *from;
}
"""
_ENTRY = r"""
extern "C" void copy(int blocks, int threads, const char** bounds, void** arguments, long long* counts) {
  for (int i = 0; i < 2; i++) { begins[i] = bounds[2 * i]; ends[i] = bounds[2 * i + 1]; }
  refused = words = elements = 0;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) SYMBOL(PASSED);
  counts[0] = refused; counts[1] = words; counts[2] = elements;
}
"""


@dataclass(frozen=True)
class Counts:
    refused: int
    words: int
    elements: int


@dataclass(frozen=True)
class Built:
    gemm: Gemm
    items: tuple[AlignedCopy, ...]
    launch: Launch
    source: str


def built(text: str, units: int = 132) -> Built:
    gemm = Gemm.parse(text)
    items = copies(gemm)
    program = repack_alone(gemm, items, units, tuple(Workspace(item.name, item.nbytes) for item in items))
    host, source = cuda.lower(program, "sm_90a")
    return Built(gemm, items, cuda.checked_launch(program, host), source)


# -- on the CPU ------------------------------------------------------------------------------------


class Emulated:
    """The kernel of ``built`` as a function of the CPU."""

    def __init__(self, made: Built, folder: Path, mutate: Callable[[str], str] = lambda text: text) -> None:
        self.built = made
        (self.kernel,) = made.launch.kernels
        symbol = self.kernel.symbol
        signature = re.search(rf"{symbol}\(([^)]*)\) \{{", made.source)
        assert signature is not None
        types = [param.rsplit(" ", 1)[0].replace("__restrict__", "").strip() for param in signature[1].split(",")]
        passed = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
        device = mutate(made.source[made.source.index("__forceinline__ __device__ void") :])
        device = re.sub(r"asm volatile\(.*?\);", "", device)
        entry = _ENTRY.replace("SYMBOL", symbol).replace("PASSED", passed)
        (folder / "kernel.cc").write_text(f"{_HEADER}\n{device}\n{entry}")
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-o", "kernel.so", "kernel.cc"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:2000]
        self.library = ctypes.CDLL(str(folder / "kernel.so"))

    def run(self, m: int, phase: int) -> Counts:
        """Copy random bits, the bases ``phase`` elements behind 16 bytes; AssertionError where a bit differs."""
        gemm = self.built.gemm
        sources = {operand: source(gemm.span(operand, m), phase) for operand in _OPERANDS}
        targets = {item.name: target(evaluate(item.elements, m)) for item in self.built.items}
        pointers = {name: view.ctypes.data for name, view in (sources | targets).items()}
        before = {name: view.copy() for name, view in sources.items() if view.size < 2**24}
        counts = self._call(m, pointers, [sources[item.operand] for item in self.built.items])
        for name, view in before.items():
            assert np.array_equal(sources[name], view)
        for item in self.built.items:
            check_copy(item, m, sources[item.operand], targets[item.name])
        return counts

    def _call(self, m: int, pointers: dict[str, int], sources: list[np.ndarray]) -> Counts:
        values: list[ctypes.c_void_p | ctypes.c_int | ctypes.c_longlong] = []
        for param in self.kernel.params:
            if isinstance(param, Pointer):
                values.append(ctypes.c_void_p(pointers[param.name]))
            else:
                assert isinstance(param, Size)
                kind = ctypes.c_int if param.dtype == "i32" else ctypes.c_longlong
                values.append(kind(evaluate(param.value, m)))
        slots = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        ends = [address for view in sources for address in (view.ctypes.data, view.ctypes.data + view.nbytes)]
        bounds = (ctypes.c_void_p * 4)(*ends)
        counts = (ctypes.c_longlong * 3)()
        self.library.copy(evaluate(self.kernel.grid[0], m), REPACK_THREADS, bounds, slots, counts)
        return Counts(*counts)


def source(elements: int, phase: int) -> np.ndarray:
    """Random bits other than the poison; where there are too many, at the ends alone."""
    raw = np.zeros(elements + 16, np.uint16)
    start = (-raw.ctypes.data % 16) // 2 + phase
    view = raw[start : start + elements]
    random = np.random.default_rng(elements + phase)
    for part in (view,) if elements < 2**24 else (view[:1000], view[-1000:]):
        part[...] = random.integers(0, _POISON, part.size, np.uint16)
    return view


def target(elements: int) -> np.ndarray:
    """Poison with 16-byte alignment, between guards of it."""
    raw = np.full(elements + 2 * _GUARD + 8, _POISON, np.uint16)
    start = (-raw.ctypes.data % 16) // 2 + _GUARD
    return raw[start : start + elements]


def check_copy(item: AlignedCopy, m: int, original: np.ndarray, copy: np.ndarray) -> None:
    rows, columns, ld, stride, source_ld, source_stride = (
        evaluate(dim, m) for dim in (item.rows, item.columns, item.ld, item.stride, item.source_ld, item.source_stride)
    )
    shape = (item.batch, rows, columns)
    expected = np.lib.stride_tricks.as_strided(original, shape, (2 * source_stride, 2 * source_ld, 2))
    actual = np.lib.stride_tricks.as_strided(copy, shape, (2 * stride, 2 * ld, 2))
    assert np.array_equal(actual, expected), f"{item.operand}: the copy differs"
    width = 8 * evaluate(item.row_words, m)
    words = np.lib.stride_tricks.as_strided(copy, (item.batch, rows, width), (2 * stride, 2 * ld, 2))
    assert not (words == _POISON).any(), f"{item.operand}: not all of the copy is written"
    assert copy.base is not None
    left = copy.base.size - words.size
    assert int((copy.base == _POISON).sum()) == left, f"{item.operand}: written outside the copy's words"


def phases(gemm: Gemm) -> Iterator[int]:
    return iter(range(0, 8, min(8, gemm.align // 2)))


# Text, values of m.
CASES = [
    ("1x1x1:f16:nt", (1,)),
    ("1x1x1:bf16:tn:align=2", (1,)),
    ("7x5x3:f16:tn:align=2", (7,)),
    ("33x65x129:f16:nt", (33,)),
    ("129x33x8:bf16:nn:align=2", (129,)),
    ("131x257x1:f16:nt:align=4", (131,)),
    ("300x100x301:f16:nt:align=2", (300,)),
    ("257x301x130:f16:nn:align=4", (257,)),
    ("257x260x132:f16:nt:align=8", (257,)),
    ("64x64x132:f16:nt", (64,)),
    ("64x72x130:f16:nt", (64,)),
    ("40x41x43:f16:nt:batch=5", (40,)),
    ("16x17x19:bf16:tt:batch=7:align=2", (16,)),
    ("24x40x64:f16:nt:batch=3:stride_a=1541:stride_b=2564", (24,)),
    ("31x30x64:f16:nn:lda=77:ldb=35:batch=2:stride_a=5000:align=2", (31,)),
    ("1..300x24x100:f16:tn", (1, 2, 7, 8, 9, 255, 300)),
    ("1..90x25x61:f16:nt:align=2", (1, 8, 90)),
    ("1..70x16x33:bf16:tn:batch=3:align=4", (1, 31, 32, 70)),
    ("1..70x16x33:bf16:tn:lda=75:batch=3:stride_a=2600", (1, 70)),
    ("1..50x16x33:f16:nt:batch=2:stride_a=1700", (1, 49, 50)),
]


@pytest.mark.parametrize(("text", "sizes"), CASES, ids=[text for text, _ in CASES])
def test_copy_has_every_bit_and_no_load_reaches_outside(text: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    # Few units, so that blocks take several turns.
    emulated = Emulated(built(text, units=1), tmp_path)
    for m in sizes:
        for phase in phases(emulated.built.gemm):
            counts = emulated.run(m, phase)
            assert counts.refused == 0
            # Only aligned words across an operand's ends are loaded by elements: two, which two words of the copy need.
            assert counts.elements <= 4 * 8 * len(emulated.built.items)


@pytest.mark.parametrize("m", ["2", "1..2"])
def test_offsets_beyond_32_bits_reach_the_last_row(m: str, tmp_path: Path) -> None:
    made = built(f"{m}x16x9:f16:nt:lda={2**31 - 1}")
    assert "int64_t" in made.source
    counts = Emulated(made, tmp_path).run(2, 0)
    assert counts.refused == 0


def test_a_bound_that_is_off_is_noticed(tmp_path: Path) -> None:
    made = built("33x65x129:f16:nt", units=1)
    span = made.gemm.span("a")
    assert f"<= {span}" in made.source

    def mutate(text: str) -> str:
        return text.replace(f"<= {span}", f"<= {span + 7}")

    with pytest.raises(AssertionError, match="a: the copy differs"):
        Emulated(made, tmp_path, mutate).run(33, 0)


def test_a_shift_that_is_off_is_noticed(tmp_path: Path) -> None:
    made = built("33x65x129:f16:nt", units=1)
    assert "& 1) * 16" in made.source

    def mutate(text: str) -> str:
        return text.replace("& 1) * 16", "& 1) * 8")

    with pytest.raises(AssertionError, match="a: the copy differs"):
        Emulated(made, tmp_path, mutate).run(33, 0)


# -- machine code ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "4096x4096x4097:f16:nt",
        "4097x4097x4096:f16:tn:align=2",
        "1..8192x1025x4096:f16:tn:batch=3:align=8",
        f"4x16x9:f16:nt:lda={2**31 - 1}",
    ],
)
def test_kernel_loads_and_stores_16_bytes_and_does_not_spill(text: str, tmp_path: Path) -> None:
    made = built(text)
    cubin = compile_source(made.source, "sm_90a")
    (resources,) = cubin.resources.values()
    assert resources.spill_bytes == 0
    assert resources.stack_bytes == 0
    assert resources.shared_bytes == 0
    code = disassembled(cubin.data, tmp_path)
    wide = re.findall(r"\b(LDG|STG)\.E\.128\b", code)
    turn = ["LDG"] * 2 * REPACK_WORDS + ["STG"] * REPACK_WORDS
    # All loads of a turn before its first store; the items' turns in either order.
    assert wide == turn * len(made.items)
    # griddepcontrol.launch_dependents.
    assert code.count("PREEXIT") == 1


def disassembled(cubin: bytes, folder: Path) -> str:
    nvidia = pytest.importorskip("nvidia")
    actual = [path for root in nvidia.__path__ for path in Path(root).glob("cu*/bin/nvdisasm")]
    if not actual:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    (folder / "kernel.cubin").write_bytes(cubin)
    command = [str(actual[0]), "-c", str(folder / "kernel.cubin")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# -- facts -----------------------------------------------------------------------------------------


def test_what_tma_can_load_is_left_where_it_is() -> None:
    assert copies(Gemm.parse("4096x4096x4096:f16:nt")) == ()
    assert copies(Gemm.parse("1..64x4096x4104:f16:nt:lda=4200:batch=2")) == ()
    assert [item.operand for item in copies(Gemm.parse("4097x4096x4096:f16:tn"))] == ["a"]
    assert [item.operand for item in copies(Gemm.parse("4096x4097x4096:f16:nn"))] == ["b"]
    # Rows are aligned; the base or the matrices are not.
    assert len(copies(Gemm.parse("4096x4096x4096:f16:nt:align=8"))) == 2
    assert [item.operand for item in copies(Gemm.parse("8x8x8:f16:nt:batch=2:stride_a=65"))] == ["a"]


@pytest.mark.parametrize(
    ("text", "vector"),
    [
        ("8x8x9:f16:nt", 1),
        ("8x8x10:f16:nt", 2),
        ("8x8x12:f16:nt", 4),
        ("8x8x12:f16:nt:align=4", 2),
        ("8x8x16:f16:nt:align=8", 4),
        ("8x8x16:f16:nt:align=2", 1),
        ("8x8x12:f16:nt:batch=2:stride_a=97", 1),
        ("1..8x8x12:f16:tn", 1),
    ],
)
def test_vector_divides_base_rows_and_matrices(text: str, vector: int) -> None:
    item = repacked(Gemm.parse(text), "a")
    assert item is not None
    assert item.vector == vector


def test_copies_have_rows_of_whole_lines() -> None:
    item = repacked(Gemm.parse("1..8192x1024x4097:f16:tn:batch=3"), "a")
    assert item is not None
    for m in (1, 7, 8, 9, 8191, 8192):
        ld = -(-m // 64) * 64
        assert evaluate(item.ld, m) == ld
        assert evaluate(item.stride, m) == 4097 * ld
        assert evaluate(item.elements, m) == 3 * 4097 * ld
        assert evaluate(item.nbytes, m) == 2 * evaluate(item.elements, m)
        assert evaluate(item.words, m) == 3 * 4097 * -(-m // 8)
        assert evaluate(item.span, m) == 3 * 4097 * m
    assert item.rows_even
    narrow = repacked(Gemm.parse("100x64x33:f16:nt"), "a")
    assert narrow is not None
    assert (narrow.ld, narrow.dense) == (40, True)
    assert (item.name, item.base, item.vector) == ("a_packed", 8, 1)


def test_every_turn_has_its_words_and_the_grid_is_no_more() -> None:
    items = copies(Gemm.parse("4096x4096x4097:f16:nt"))
    words = 4096 * 513
    assert [turns_of(item) for item in items] == [-(-words // (REPACK_THREADS * REPACK_WORDS))] * 2
    assert repack_grid(items, 132) == 528
    assert repack_grid(copies(Gemm.parse("1x1x1:f16:nt")), 132) == all_turns(copies(Gemm.parse("1x1x1:f16:nt"))) == 2


def test_a_copy_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidGemm, match=f"a copy of A .* takes 17180917760 bytes; the limit is {MAX_COPY_BYTES}"):
        repacked(Gemm.parse("8192x8x1048633:f16:nt"), "a")
