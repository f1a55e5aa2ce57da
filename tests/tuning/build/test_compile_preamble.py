"""TVM's preamble loses the C++ libraries' headers where nothing needs them, and the instructions stay what they
were."""

from __future__ import annotations

import struct

import pytest

from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.preamble import without_libraries
from tirgemm.tuning.driver.nvrtc import compile_source

_H200 = named_device("sm_90a")
_LIBRARY_HEADERS = ("#include <cuda/", "#include <cooperative_groups")
_CASES = [
    ("simt", "77x96x72:f16:nt:bias:act=gelu"),
    ("simt", "1..300x95x71:bf16:nn:alpha:beta"),
    ("simt", "33x40x48:f32:tn:act=silu"),
    ("wgmma", "4096x4096x4096:f16:nt"),
    ("wgmma", "1..64x576x7168:f16:nt:batch=2:alpha:beta:bias:out=f32"),
    ("wgmma", "2000x4097x4104:bf16:nt:beta:act=gelu"),
    ("mma", "1000x1000x520:f16:nn:bias"),
    ("wmma", "1000x1000x520:f16:tn:beta"),
]


@pytest.fixture
def as_tvm_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "without_libraries", lambda source: source)


def _source(family: str, text: str) -> str:
    gemm = Gemm.parse(text)
    config = FAMILIES[family].default(gemm, _H200, "sustained")
    return cuda.lower(FAMILIES[family].instantiate(gemm, config, _H200), _H200.arch)[1]


@pytest.mark.parametrize(("family", "text"), _CASES)
@pytest.mark.usefixtures("as_tvm_writes")
def test_instructions_and_resources_are_those_of_tvms_own_source(family: str, text: str) -> None:
    written = _source(family, text)
    lean = without_libraries(written)
    assert any(header in written for header in _LIBRARY_HEADERS)
    assert not any(header in lean for header in _LIBRARY_HEADERS)
    before, after = compile_source(written, _H200.arch), compile_source(lean, _H200.arch)
    assert before.resources == after.resources
    assert _opcodes(before.data) == _opcodes(after.data)


@pytest.mark.parametrize("family", ["simt", "wmma", "mma", "wgmma"])
def test_lowered_source_includes_no_library(family: str) -> None:
    assert not any(header in _source(family, "64x64x64:f16:nt") for header in _LIBRARY_HEADERS)


@pytest.mark.parametrize(
    "use",
    [
        'static_assert(std::is_same<int, int>::value, "");',
        "__device__ cuda::std::uint32_t x;",
        "__device__ void f() { cooperative_groups::this_grid().sync(); }",
        "__device__ void f() { cg::this_grid().sync(); }",
        "__device__ uintptr_t x;",
        "__device__ uint_fast16_t x;",
        "__device__ int x = INT32_MAX;",
        "__device__ unsigned x = UINT32_C(1);",
    ],
)
@pytest.mark.usefixtures("as_tvm_writes")
def test_source_that_uses_a_library_keeps_its_headers(use: str) -> None:
    written = f"{_source('wgmma', '64x64x64:f16:nt')}\n{use}\n"
    assert without_libraries(written) == written


@pytest.mark.usefixtures("as_tvm_writes")
def test_headers_of_another_wording_are_left_alone() -> None:
    written = _source("wgmma", "64x64x64:f16:nt").replace("using cuda::std::is_same;", "using cuda::std::is_same ;")
    assert without_libraries(written) == written


def _opcodes(cubin: bytes) -> dict[str, list[int]]:
    """The opcodes of every kernel in order. Not the operands: ptxas may read the indices of a thread in another
    order."""
    # Of the 16 bytes of an instruction the lowest 12 bits.
    return {
        name: [int.from_bytes(code[i : i + 2], "little") & 0xFFF for i in range(0, len(code), 16)]
        for name, code in _machine_code(cubin).items()
    }


def _machine_code(cubin: bytes) -> dict[str, bytes]:
    """The .text sections of an ELF64 file, by name."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count)]
    actual = {}
    for name_at, _, _, _, offset, length in headers:
        start = headers[names][4] + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(".text"):
            actual[name] = cubin[offset : offset + length]
    return actual
