"""Trip counts out of machine code: what they weigh is what the problem has; what is not constant has none."""

from __future__ import annotations

from math import prod

import pytest

from tirgemm import expr
from tirgemm.analysis.sass.opcode_mix import opcode_mix
from tirgemm.analysis.sass.program import disassemble, parse
from tirgemm.analysis.sass.trip_counts import trip_counts
from tirgemm.families import FAMILIES
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.driver.nvrtc import compile_source


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("rung", ["naive", "tile_2d", "double_buffer"])
def test_weighted_mix_makes_every_product_once(rung: str, arch: str) -> None:
    gemm, device = Gemm.parse("4096x4096x1024:f32:nn"), named_device(arch)
    binary = build(gemm, ladder.config(rung, gemm, device), device)
    (launch,) = binary.launch.kernels
    (function,) = disassemble(binary.data)
    counts = trip_counts(function)
    assert set(counts) == {loop.index for loop in function.loops}
    threads = prod(launch.block) * prod(expr.evaluate(extent, 1) for extent in launch.grid)
    assert function.mix(counts)["FFMA"] * threads == 4096 * 4096 * 1024


def test_loops_that_arguments_or_blocks_end_have_no_count() -> None:
    source = """
    extern "C" __global__ void k(float* a, int n) {
      float x = a[threadIdx.x];
      #pragma unroll 1
      for (int i = 0; i < 37; i++) { x = x * x + a[i]; __syncthreads(); }
      #pragma unroll 1
      for (int i = 0; i < n; i++) { x = x * x + a[2 * i]; __syncthreads(); }
      #pragma unroll 1
      for (int i = blockIdx.x; i < 77; i++) { x = x * x + a[3 * i]; __syncthreads(); }
      a[threadIdx.x] = x;
    }"""
    (function,) = disassemble(compile_source(source, "sm_90a").data)
    assert len(function.loops) == 3
    assert list(trip_counts(function).values()) == [37]


def loop(*words: str) -> dict[int, int]:
    """The counts of one listing; a word that ends in a colon is a label, one that begins with @ has a predicate."""
    lines, address = ['\t.target\tsm_90a\n\t.section\t.text.k,"ax",@progbits\n'], 0
    for word in words:
        if word.endswith(":"):
            lines.append(f"{word}\n")
        else:
            lines.append(f"        /*{address:04x}*/   {word} ;\n")
            address += 16
    (function,) = parse("".join(lines))
    return trip_counts(function)


START, TOP, BACK, END = "MOV R0, RZ", ".L_x_0:", "@P0 BRA `(.L_x_0)", "EXIT"
STEP, TEST = "IADD3 R0, R0, 0x1, RZ", "ISETP.NE.AND P0, PT, R0, 0x10, PT"


@pytest.mark.parametrize(
    ("words", "turns"),
    [
        ((START, TOP, STEP, TEST, BACK, END), 16),
        ((START, TOP, TEST, STEP, BACK, END), 17),  # the test sees the counter before its step
        (("MOV R0, 0x4", TOP, STEP, TEST, BACK, END), 12),
        ((START, TOP, "VIADD R0, R0, 0x4", TEST, BACK, END), 4),
        ((START, TOP, STEP, "ISETP.GT.AND P0, PT, R0, 0x10, PT", "@!P0 BRA `(.L_x_0)", END), 17),
        (("MOV R0, 0x10", TOP, "IADD3 R0, R0, -0x1, RZ", "ISETP.GE.AND P0, PT, R0, RZ, PT", BACK, END), 17),
        (("MOV R0, 0xfffffff0", TOP, STEP, "ISETP.LT.AND P0, PT, R0, RZ, PT", BACK, END), 16),
        (("MOV R0, 0x10", TOP, "IADD3 R0, R0, -0x1, RZ", "ISETP.LT.U32.AND P0, PT, R0, 0x20, PT", BACK, END), 17),
        ((START, TOP, STEP, TEST, "@!P0 BRA `(.L_x_1)", "BRA `(.L_x_0)", ".L_x_1:", END), 16),
        ((START, TOP, STEP, STEP, TEST, BACK, END), 8),
        # The counter's register holds something else for a while, and the compiler knows how often the loop turns.
        (
            (
                START,
                TOP,
                STEP,
                "ISETP.GE.AND P0, PT, R0, 0x2, PT",
                "FFMA R0, R4, R5, R6",
                "HFMA2.MMA R0, -RZ, RZ, 0, 5.9604644775390625e-08",
                "@!P0 BRA `(.L_x_0)",
                END,
            ),
            2,
        ),
        # The way out is inside, and the counter's second value a constant: the last turn ends at the test.
        (
            (
                START,
                TOP,
                STEP,
                "ISETP.GE.U32.AND P0, PT, R0, 0x2, PT",
                "MOV R0, 0x1",
                "@P0 BRA `(.L_x_1)",
                "FFMA R8, R4, R5, R6",
                "BRA `(.L_x_0)",
                ".L_x_1:",
                END,
            ),
            2,
        ),
        (("CS2R R0, SRZ", TOP, STEP, TEST, BACK, END), 16),
        (("CS2R R4, SRZ", TOP, "IADD3 R5, R5, 0x1, RZ", "ISETP.NE.AND P0, PT, R5, 0x10, PT", BACK, END), 16),
        (
            (
                "UMOV UR4, URZ",
                TOP,
                "UIADD3 UR4, UR4, 0x1, URZ",
                "UISETP.NE.AND UP0, UPT, UR4, 0x10, UPT",
                "PLOP3.LUT P0, PT, PT, PT, UP0, 0x80, 0x0",
                BACK,
                END,
            ),
            16,
        ),
    ],
)
def test_counter_that_starts_steps_and_ends_at_constants_is_followed(words: tuple[str, ...], turns: int) -> None:
    assert loop(*words) == {0: turns}


@pytest.mark.parametrize(
    "words",
    [
        ("LDG.E R0, [R2.64]", TOP, STEP, TEST, BACK, END),  # starts at what memory holds
        ("MOV R0, c[0x0][0x28]", TOP, STEP, TEST, BACK, END),
        (START, "LDS.128 R0, [R4]", TOP, STEP, TEST, BACK, END),
        (START, "@P1 MOV R0, 0x3", TOP, STEP, TEST, BACK, END),
        (START, TOP, "@P1 IADD3 R0, R0, 0x1, RZ", TEST, BACK, END),
        (START, TOP, "IADD3 R0, R0, R1, RZ", TEST, BACK, END),
        (START, TOP, STEP, ".L_x_2:", STEP, TEST, BACK, "@P2 BRA `(.L_x_2)", END),  # two blocks set it
        (START, TOP, STEP, ".L_x_2:", STEP, "@P2 BRA `(.L_x_2)", TEST, BACK, END),  # one of them in a loop of its own
        (START, TOP, STEP, "ISETP.NE.AND P0, PT, R0, R1, PT", BACK, END),
        (START, TOP, STEP, "ISETP.NE.AND P0, PT, R0, 0x10, P1", BACK, END),
        (START, TOP, STEP, "@P1 ISETP.NE.AND P0, PT, R0, 0x10, PT", BACK, END),
        (START, TOP, STEP, TEST, "@P1 BRA `(.L_x_1)", BACK, ".L_x_1:", END),  # a second way out
        (START, TOP, "VIADD R0, R0, 0x3", "ISETP.NE.AND P0, PT, R0, -0x1, PT", "BRA `(.L_x_0)"),  # no way out
        (START, TOP, STEP, TEST, "FFMA R0, R4, R5, R6", BACK, END),
        (START, TOP, STEP, TEST, "LDS.64 R0, [R4]", BACK, END),
        (START, TOP, STEP, TEST, "LOP3.LUT P0, R4, R5, R6, RZ, 0xc0, !PT", BACK, END),
    ],
)
def test_counter_that_anything_else_decides_has_no_count(words: tuple[str, ...]) -> None:
    assert loop(*words) == {}


@pytest.mark.parametrize(
    ("family", "text", "opcode", "flops"),
    [
        # Multiply-adds of a warp: 32 lanes each; HMMA of 16x8x16.
        ("simt", "1024x1024x512:f32:nt", "FFMA", 2 * 32),
        ("wmma", "1024x1024x512:f16:nt", "HMMA.16816.F32", 2 * 16 * 8 * 16),
        ("mma", "1024x1024x512:f16:nt", "HMMA.16816.F32", 2 * 16 * 8 * 16),
    ],
)
def test_the_mix_as_run_does_the_products_arithmetic(family: str, text: str, opcode: str, flops: int) -> None:
    gemm, device = Gemm.parse(text), named_device("sm_80")
    config = FAMILIES[family].default(gemm, device, "sustained").with_(split=1) if family != "simt" else None
    binary = build(gemm, config or FAMILIES[family].default(gemm, device, "sustained"), device)
    (launch,) = binary.launch.kernels
    (function,) = disassemble(binary.data)
    mix = opcode_mix(function)
    assert not mix.once
    warps = prod(launch.block) // 32 * prod(expr.evaluate(extent, 1) for extent in launch.grid)
    assert dict(mix.executed_opcodes)[opcode] * warps * flops == 2 * 1024 * 1024 * 512
    assert mix.executed == sum(dict(mix.executed_units).values()) > mix.instructions


def test_a_loop_over_a_blocks_tiles_counts_once_and_is_named() -> None:
    gemm, device = Gemm.parse("4096x4096x4096:f16:nt"), named_device("sm_90a")
    default = FAMILIES["wgmma"].default(gemm, device, "sustained")
    config = default.with_(tile_m=128, tile_n=128, tile_k=64, schedule="pingpong", cluster_m=1, cluster_n=1)
    binary = build(gemm, config, device)
    (function,) = disassemble(binary.data)
    mix = opcode_mix(function)
    assert mix.once
    steps = 4096 // 64
    assert steps in dict(mix.turns).values()
    # A warpgroup's tile of 128 x 128 by instructions of 64 x 128 x 16.
    runs = sum(number for name, number in mix.executed_opcodes if name.startswith("HGMMA"))
    assert runs * 64 * 128 * 16 == 128 * 128 * 4096
