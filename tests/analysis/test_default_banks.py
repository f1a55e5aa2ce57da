"""Every family's default config, with its machine code: nothing that is not counted, and no conflict where none is
claimed.

What each family claims of shared memory stands here; the store and the load of a tile are claimed separately.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.analysis.memory_accesses import memory_of
from tests.helpers.named_config import named_config
from tirgemm.analysis.memory_traffic import AccessReport, KernelAnalysis
from tirgemm.config import Value
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device

# What a family's default claims to be free of conflicts: loads of fragments, and what stores tiles and outputs.
CLAIMS: dict[str, frozenset[str]] = {
    "simt": frozenset({"load"}),
    "wmma": frozenset({"ldmatrix", "load", "store"}),
    "mma": frozenset({"ldmatrix", "copy", "load", "store"}),
    "wgmma": frozenset({"stmatrix", "load", "store"}),
}
# Sizes that are multiples of no tile, layouts that turn an operand, an epilogue that reads.
PROBLEMS = {
    "simt": ("1023x1021x515:f32:nn", "2048x2048x512:f32:nt"),
    "wmma": ("2048x2048x512:f16:nt", "1000x1000x520:f16:tn:beta"),
    "mma": ("2048x2048x512:f16:nt", "1000x1000x520:f16:nn:bias"),
    "wgmma": ("2048x2048x512:f16:nt", "1000x1000x520:bf16:nn:bias"),
}
_CASES = [(family, text) for family, texts in PROBLEMS.items() for text in texts]
# Where cp.async past L1 has no conflicts whatever the layout, and where it is taken for a store.
_ARCHITECTURES = [(family, text, "sm_90a") for family, text in _CASES] + [
    (family, text, "sm_80") for family, text in _CASES if family != "wgmma"
]


def analyses(
    family: str, text: str, changes: tuple[tuple[str, Value], ...] = (), arch: str = "sm_90a"
) -> tuple[KernelAnalysis, ...]:
    return _analysed(family, text, changes, arch)


@lru_cache(maxsize=32)
def _analysed(family: str, text: str, changes: tuple[tuple[str, Value], ...], arch: str) -> tuple[KernelAnalysis, ...]:
    gemm, device = Gemm.parse(text), named_device(arch)
    config = FAMILIES[family].default(gemm, device, "sustained").with_(**dict(changes))
    return memory_of(gemm, config, device)


def broken(family: str, kernels: tuple[KernelAnalysis, ...]) -> list[AccessReport]:
    """The shared accesses that conflict although their family claims that they do not."""
    return [
        access
        for kernel in kernels
        for access in kernel.accesses
        if access.space == "shared" and access.op in CLAIMS[family] and access.conflicts
    ]


@pytest.mark.parametrize(("family", "text", "arch"), _ARCHITECTURES)
def test_claims_of_no_conflicts_hold(family: str, text: str, arch: str) -> None:
    assert broken(family, analyses(family, text, arch=arch)) == []


@pytest.mark.parametrize(("family", "text"), _CASES)
def test_every_access_is_counted_and_found_in_the_machine_code(family: str, text: str) -> None:
    for kernel in analyses(family, text):
        assert kernel.compiled
        assert [str(u) for u in kernel.unknown] == []
        assert all(access.code for access in kernel.accesses)
        assert not any(access.sampled for access in kernel.accesses)


@pytest.mark.parametrize(
    ("text", "knobs", "width"),
    [
        ("2048x2048x512:f16:nt:out=f32", "tile_m=128 tile_n=128 stages=4", 8),
        ("1000x1000x520:bf16:nn:out=f32:bias", "tile_m=128 tile_n=40 stages=4", 8),
        ("1000x1000x520:f16:nt:out=f32:act=gelu", "tile_m=128 tile_n=16 stages=4", 8),
        ("5000x1000x520:f16:nt:out=f32", "tile_m=256 tile_n=152 stages=4", 8),
        ("1000x1000x520:f16:nt:out=f32", "tile_m=64 tile_n=8 stages=4", 8),
        ("2048x2048x512:f16:nt:out=f32", "tile_m=128 tile_n=128 stages=4 swap=1", 4),
        ("1000x1000x520:bf16:nn:out=f32:beta", "tile_m=128 tile_n=48 stages=4 swap=1", 4),
        ("1000x1000x520:bf16:nn:out=f32", "tile_m=128 tile_n=8 stages=4 swap=1", 4),
    ],
)
def test_outputs_of_four_bytes_are_staged_without_conflicts(text: str, knobs: str, width: int) -> None:
    gemm, device = Gemm.parse(text), named_device("sm_90a")
    kernels = memory_of(gemm, named_config(FAMILIES["wgmma"], gemm, device, f"{knobs} epilogue=tma"), device)
    assert broken("wgmma", kernels) == []
    staged = [a for kernel in kernels for a in kernel.accesses if (a.space, a.op) == ("shared", "store")]
    assert {a.width for a in staged} == {width}
    assert all(a.code for a in staged)
    assert not any(kernel.unknown for kernel in kernels)


@pytest.mark.parametrize(
    ("family", "text", "changes"),
    [
        ("wmma", "2048x2048x512:f16:nt", (("pad", 0),)),
        ("mma", "2048x2048x512:f16:nt", (("shared", "none"),)),
    ],
)
def test_a_layout_that_conflicts_breaks_its_familys_claim(
    family: str, text: str, changes: tuple[tuple[str, Value], ...]
) -> None:
    actual = broken(family, analyses(family, text, changes))
    assert any(access.op == "ldmatrix" for access in actual)
    assert all(access.example is not None for access in actual)


def test_the_articles_padding_frees_loads_and_not_stores() -> None:
    """8 halves of padding in rows of 32, copied row by row: what the padding article found on its 3090."""
    (kernel,) = analyses("wmma", "2048x2048x512:f16:nt", (("tile_k", 32), ("pad", 8)), "sm_86")
    assert kernel.totals["shared_loads"].conflicts == 0
    assert kernel.totals["shared_copies"].conflicts == kernel.totals["shared_copies"].wavefronts // 2 > 0
