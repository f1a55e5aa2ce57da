"""Memory accesses of inline-source functions, read from the PTX in them."""

from __future__ import annotations

import pytest

from tirgemm.analysis.ir.inline_source import InlineAccess, InlineFunction, Term, function

_TO, _FROM = Term(0), Term(1)
_HEAD = "__forceinline__ __device__ void f"


def read(parameters: str, body: str) -> InlineFunction:
    actual = function("f", f"{_HEAD}({parameters}) {{\n{body}\n}}\n")
    assert actual is not None
    return actual


@pytest.mark.parametrize(
    ("body", "instruction"),
    [
        (
            "unsigned at = __cvta_generic_to_shared(from);\nasm "
            'volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 '
            '{%0, %1, %2, %3}, [%4];"\n : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));',
            InlineAccess("ldmatrix", "shared", 16, _FROM, matrices=4, transposed=True),
        ),
        (
            'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: '
            '"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));',
            InlineAccess("copy", "shared", 16, _TO, _FROM),
        ),
        (
            'asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;"\n"" :: "r"(at), "l"(from), '
            '"r"(count));\n'
            "unsigned at = __cvta_generic_to_shared(to);",
            InlineAccess("copy", "shared", 4, _TO, _FROM, Term(2)),
        ),
        (
            "int size = count ? 8 : 0; const void* source = count ? from : to;\n"
            'asm("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(source), "r"(size));',
            InlineAccess(
                "copy",
                "shared",
                8,
                _TO,
                Term(choice=(Term(2), _FROM, _TO)),
                Term(choice=(Term(2), Term(number=8), Term())),
            ),
        ),
        (
            'asm volatile("st.global.v4.b32 [%0], {%1, %1, %1, %1};" :: "l"(to), "r"(count) : "memory");',
            InlineAccess("store", "global", 16, _TO),
        ),
        ('asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from));', InlineAccess("load", "shared", 2, _FROM)),
    ],
)
def test_an_instruction_is_read_with_its_operands(body: str, instruction: InlineAccess) -> None:
    assert read("void* to, const void* from, int count", body) == InlineFunction((instruction,))


def test_plain_accesses_are_read() -> None:
    actual = read("void* to, const void* from", "*(float2*)to = *(const float2*)from;")
    assert actual.instructions == (InlineAccess("store", "", 8, _TO), InlineAccess("load", "", 8, _FROM))
    actual = read("void* to, unsigned x", "*reinterpret_cast<uint4*>(to) = make_uint4(x, x, x, x);")
    assert actual.instructions == (InlineAccess("store", "", 16, _TO),)
    assert read("void* to", "*(matrix*)to = 0;").unknown == ("*(matrix*)to",)


def test_instructions_without_addresses_touch_nothing() -> None:
    assert read("int x", 'asm volatile("" : "+r"(x)); asm volatile("bar.sync 0;");') == InlineFunction(())


@pytest.mark.parametrize(
    "line",
    [
        "red.async.shared::cluster [%0], %1;",
        "st.shared.b32 [%0+16], %1;",
        "cp.async.cg.shared.global [%0], [%1], 16, %7;",
    ],
)
def test_what_is_not_understood_is_named(line: str) -> None:
    actual = read("void* to, int x", f'asm volatile("{line}" :: "r"(to), "r"(x));')
    assert actual.unknown == (line.split(maxsplit=1)[0],)


def test_a_function_that_is_not_there_is_none() -> None:
    assert function("g", f"{_HEAD}(void* to) {{ }}") is None
