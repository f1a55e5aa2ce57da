"""Machine code of two rungs side by side: equal, reordered, or different; and its main loop."""

from __future__ import annotations

from functools import cache

import pytest

from tirgemm.bench.machine_code import DIFFERENT, EQUAL, REORDERED, Code, machine_code
from tirgemm.families.simt import ladder
from tirgemm.families.simt.loads import loads_per_fma
from tirgemm.families.simt.tiling import tiling
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.compile import build

GEMM, H200 = Gemm.parse("4096x4096x4096:f32:nn"), named_device("sm_90a")


@cache
def code(name: str) -> Code:
    return machine_code(build(GEMM, ladder.config(name, GEMM, H200), H200).data)


def made_up(*text: str, loop: tuple[tuple[str, int], ...] = ()) -> Code:
    return Code(tuple(f"{16 * at:04x}: {line}" for at, line in enumerate(text)), loop)


def test_equal_is_instruction_for_instruction() -> None:
    one = made_up("FFMA R0, R1, R2, R0", "LDS.128 R4, [R8+0x200]", "@P0 BRA 0x10")
    assert one.beside(made_up("FFMA R0, R1, R2, R0", "LDS.128 R4, [R8+0x200]", "@P0 BRA 0x10")) == EQUAL
    assert one.beside(made_up("LDS.128 R12, [R3+0x200]", "FFMA R5, R6, R7, R5", "@P1 BRA 0x10")) == REORDERED
    assert one.beside(made_up("FFMA R0, R1, R2, R0", "LDS.128 R4, [R8+0x210]", "@P0 BRA 0x10")) == DIFFERENT
    assert one.beside(made_up("FFMA R0, R1, R2, R0", "LDS R4, [R8+0x200]", "@P0 BRA 0x10")) == DIFFERENT


def test_loads_and_share_are_of_the_main_loop() -> None:
    one = made_up("x", loop=(("BRA", 1), ("FFMA", 8), ("LDG.E.128.CONSTANT", 1), ("LDGSTS.E", 1), ("LDS.128", 2)))
    assert one.fmas == 8
    assert one.fma_share == 8 / 13
    assert (one.loads_per_fma("LDS"), one.loads_per_fma("LDG")) == (0.25, 0.25)
    assert made_up("x", loop=()).fma_share == 0


@pytest.mark.parametrize("name", ["naive", "coalesced", "float4", "zorder", "combined"])
def test_what_is_written_in_wide_accesses_is_what_is_compiled(name: str) -> None:
    """Where nothing is left to merge, the loop's loads for an FMA are those of the tiling."""
    written = loads_per_fma(tiling(GEMM, ladder.config(name, GEMM, H200)))
    assert code(name).loads_per_fma("LDS") == written.shared_instructions
    assert code(name).loads_per_fma("LDG") == written.global_instructions


def test_the_compiler_loads_less_where_the_rung_loads_one_at_a_time() -> None:
    for name in ("shared_block", "inner_product", "tile_1d", "tile_2d", "register_cache"):
        written = loads_per_fma(tiling(GEMM, ladder.config(name, GEMM, H200)))
        assert code(name).loads_per_fma("LDS") < written.shared_instructions, name


def test_rungs_that_move_addresses_have_code_of_their_own() -> None:
    assert code("pad_store").beside(code("float4")) == DIFFERENT
    assert code("float4").beside(code("float4")) == EQUAL


def test_the_compiler_does_of_its_own_what_register_cache_does_by_hand() -> None:
    """As docs/ladder.md tells it; another NVRTC may do otherwise, and then the page must too."""
    assert code("register_cache").beside(code("tile_2d")) == REORDERED
    assert code("inner_product").beside(code("tile_2d")) == DIFFERENT
