"""CUDA source that uses WMMA without the toolkit's ``mma.h``, which the CUDA wheels do not bring.

TVM writes ``nvcuda::wmma`` calls on fragments of 16x16x16. What a source uses of them is defined here by the PTX
instructions that they stand for (PTX ISA, "Warp-level Matrix Instructions: wmma"); shared memory is where fragments are
loaded from and stored to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_INCLUDE = "#include <mma.h>\n"
_FACTOR = re.compile(r"fragment<nvcuda::wmma::matrix_([ab]), 16, 16, 16, (\w+), nvcuda::wmma::(row|col)_major>")
_SUM = re.compile(r"fragment<nvcuda::wmma::accumulator, 16, 16, 16, (\w+)>")
_ANY = re.compile(r"fragment<nvcuda::wmma::")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A fragment's elements: PTX's name, registers of a thread, their C type and constraint."""

    name: str
    registers: int
    word: str
    constraint: str


_FACTORS = {"half": _Kind("f16", 8, "unsigned", "r"), "nv_bfloat16": _Kind("bf16", 4, "unsigned", "r")}
_SUMS = {"float": _Kind("f32", 8, "float", "f"), "half": _Kind("f16", 4, "unsigned", "r")}
_TYPES = {("f16", "f32"): "f32.f32", ("f16", "f16"): "f16.f16", ("bf16", "f32"): "f32.bf16.bf16.f32"}

_HEAD = """\
namespace nvcuda { namespace wmma {
struct row_major; struct col_major; struct matrix_a; struct matrix_b; struct accumulator;
enum layout_t { mem_row_major, mem_col_major };
template <typename Use, int m, int n, int k, typename T, typename Layout = void> struct fragment;
"""
_TAIL = "}}\n"
_INLINE = "__forceinline__ __device__ void"


def with_fragments(source: str) -> str:
    """``source``, which TVM wrote, with what it uses of ``mma.h``; as it was where it uses none, or more than is
    known."""
    if _INCLUDE not in source:
        return source
    factors = sorted(set(_FACTOR.findall(source)))
    sums = sorted(set(_SUM.findall(source)))
    known = len(_FACTOR.findall(source)) + len(_SUM.findall(source)) == len(_ANY.findall(source))
    if not known or any(dtype not in _FACTORS for _, dtype, _ in factors) or any(dtype not in _SUMS for dtype in sums):
        return source
    return source.replace(_INCLUDE, _definitions(factors, sums))


def _definitions(factors: list[tuple[str, str, str]], sums: list[str]) -> str:
    parts = [_HEAD]
    for use, dtype, layout in factors:
        kind = _FACTORS[dtype]
        name = _factor(use, dtype, layout)
        parts.append(f"template <> struct {name} {{ {kind.word} x[{kind.registers}]; }};\n")
        parts.append(_load(name, use, dtype, layout, kind))
    for dtype in sums:
        kind = _SUMS[dtype]
        name = f"fragment<accumulator, 16, 16, 16, {dtype}>"
        parts.append(f"template <> struct {name} {{ {kind.word} x[{kind.registers}]; }};\n")
        zeros = " ".join(f"f.x[{i}] = 0;" for i in range(kind.registers))
        parts.append(
            f"// Zero: the one value that TVM fills with here.\n{_INLINE} fill_fragment({name}& f, float) {{ {zeros} "
            f"}}\n"
        )
        parts.append(_store(name, dtype, kind))
        for a in (f for f in factors if f[0] == "a"):
            for b in (f for f in factors if f[0] == "b" and f[1] == a[1]):
                if (_FACTORS[a[1]].name, kind.name) in _TYPES:
                    parts.append(_multiply(name, kind, a, b))
    return "".join([*parts, _TAIL])


def _factor(use: str, dtype: str, layout: str) -> str:
    return f"fragment<matrix_{use}, 16, 16, 16, {dtype}, {layout}_major>"


def _load(name: str, use: str, dtype: str, layout: str, kind: _Kind) -> str:
    n = kind.registers
    return (
        f"{_INLINE} load_matrix_sync({name}& f, const {dtype}* p, unsigned ld) {{\n"
        f'  asm volatile("wmma.load.{use}.sync.aligned.{layout}.m16n16k16.shared.{kind.name} {_places(0, n)}, '
        f'[%{n}], %{n + 1};"\n'
        f'    : {_operands("f", kind, "=")} : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(ld) : "memory");\n}}\n'
    )


def _store(name: str, dtype: str, kind: _Kind) -> str:
    n = kind.registers
    return (
        f"{_INLINE} store_matrix_sync({dtype}* p, const {name}& f, unsigned ld, layout_t) {{\n"
        f'  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.{kind.name} [%{n}], {_places(0, n)}, '
        f'%{n + 1};"\n'
        f'    : : {_operands("f", kind)}, "r"((unsigned)__cvta_generic_to_shared(p)), "r"(ld) : "memory");\n}}\n'
    )


def _multiply(name: str, kind: _Kind, a: tuple[str, str, str], b: tuple[str, str, str]) -> str:
    factor = _FACTORS[a[1]]
    types = _TYPES[factor.name, kind.name]
    n, f = kind.registers, factor.registers
    places = ", ".join((_places(0, n), _places(n, f), _places(n + f, f), _places(n + 2 * f, n)))
    given = ", ".join((_operands("a", factor), _operands("b", factor), _operands("c", kind)))
    return (
        f"{_INLINE} mma_sync({name}& d, const {_factor(*a)}& a, const {_factor(*b)}& b, const {name}& c) {{\n"
        f'  asm volatile("wmma.mma.sync.aligned.{a[2]}.{b[2]}.m16n16k16.{types} {places};"\n'
        f"    : {_operands('d', kind, '=')} : {given});\n}}\n"
    )


def _places(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{i}" for i in range(first, first + count)) + "}"


def _operands(fragment: str, kind: _Kind, kind_of_use: str = "") -> str:
    return ", ".join(f'"{kind_of_use}{kind.constraint}"({fragment}.x[{i}])' for i in range(kind.registers))
