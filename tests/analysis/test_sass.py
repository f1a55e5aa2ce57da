"""Machine code as values: what is parsed is what the compiler made, on real cubins and on written text."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import prod

import pytest

from tirgemm.analysis.sass.disassembler import disassembly
from tirgemm.analysis.sass.memory_access import Address, MemoryAccess, parse_address
from tirgemm.analysis.sass.program import Function, disassemble, parse
from tirgemm.analysis.sass.trip_counts import trip_counts
from tirgemm.errors import AnalysisFailed
from tirgemm.expr import evaluate
from tirgemm.families import family_named
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.driver.nvrtc import compile_source

H200 = named_device("sm_90a")
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a")


@lru_cache(maxsize=8)
def built(family: str, text: str, arch: str = "sm_90a") -> Binary:
    gemm, device = Gemm.parse(text), named_device(arch)
    return build(gemm, family_named(family).default(gemm, device, "sustained"), device)


@lru_cache(maxsize=8)
def code(family: str, text: str, arch: str = "sm_90a") -> tuple[Function, ...]:
    return disassemble(built(family, text, arch).data)


def accesses(function: Function, *opcodes: str) -> Counter[str]:
    return Counter(i.name for i in function.memory if i.opcode in opcodes)


# One of every access that the families write, as PTX where C++ has no words for it.
ACCESSES = r"""
extern "C" __global__ void all(const float4* a, float4* b, int* count) {
  extern __shared__ float4 s[];
  unsigned at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(a + threadIdx.x));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at + 4096), "l"(a + threadIdx.x));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at + 8192), "l"(a + threadIdx.x));
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;");
  __syncthreads();
  unsigned r[7];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[4]), "=r"(r[5]) : "r"(at + 64));
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[6]) : "r"(at + 128));
  float4 v = s[threadIdx.x * 7 % 32];
  ((unsigned short*)s)[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
  ((float2*)s)[threadIdx.x + 64] = make_float2(r[4] + r[5], r[6]);
  atomicAdd(count + threadIdx.x, 1);
  atomicAdd((int*)s + threadIdx.x, (int)v.x);
  __syncthreads();
  b[threadIdx.x] = v;
  b[threadIdx.x + 32] = s[31 - threadIdx.x];
}
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_every_kind_of_access_is_told_with_space_and_width(arch: str) -> None:
    (function,) = disassemble(compile_source(ACCESSES, arch).data)
    assert function.arch == arch
    assert function.unknown == ()
    copies = [i.memory for i in function.memory if i.opcode == "LDGSTS"]
    assert [(c.width, c.address.offset if c.address else None) for c in copies if c] == [
        (16, 0),
        (8, 4096),
        (4, 8192),
    ]
    assert all(c and c.kind == "copy" and c.space == "shared" and c.source for c in copies)
    matrices = sorted(
        (m.matrices, m.transposed, m.width) for i in function.memory if i.opcode == "LDSM" and (m := i.memory)
    )
    assert matrices == [(1, False, 4), (2, False, 8), (4, True, 16)]
    others = {
        (m.kind, m.space, m.width)
        for i in function.memory
        if i.opcode not in ("LDSM", "LDGSTS") and (m := i.memory) and m.space in ("shared", "global")
    }
    assert others == {
        ("load", "shared", 16),
        ("store", "shared", 2),
        ("store", "shared", 8),
        ("atomic", "shared", 4),
        ("atomic", "global", 4),
        ("store", "global", 16),
    }


def test_main_loop_of_simt_is_one_loop_with_the_wide_loads() -> None:
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    (function,) = disassemble(build(gemm, ladder.config("warp_tile", gemm, H200), H200).data)
    (loop,) = function.loops
    inside = Counter(i.name for i in function.executed if i.loops == (loop.index,))
    assert inside["LDS.128"] * 16 == inside["FFMA"] > 0
    outside = sum(i.name == "FFMA" for i in function.executed) - inside["FFMA"]
    # 512 steps of 8 along k, of which the last may stand behind the loop, make every product of the thread once.
    turns = (4096**3 // (256 * 1024) - outside) / inside["FFMA"]
    assert turns in (511, 512)
    mix = function.mix({loop.index: turns})
    assert mix["LDS.128"] * 16 == mix["FFMA"]
    assert function.units({loop.index: turns})["fp32"] >= mix["FFMA"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("family", ["wmma", "mma"])
def test_tensor_core_kernels_copy_asynchronously_and_load_matrices(family: str, arch: str) -> None:
    gemm, device = Gemm.parse("1024x1024x512:f16:nt"), named_device(arch)
    binary = build(gemm, family_named(family).default(gemm, device, "sustained"), device)
    (launch,), (function,) = binary.launch.kernels, disassemble(binary.data)
    assert function.unknown == ()
    copies = [i.memory for i in function.memory if i.opcode == "LDGSTS"]
    assert copies
    assert all(m and m.width == 16 for m in copies)
    assert {m.width for i in function.memory if i.opcode == "LDSM" and (m := i.memory)} == {16}
    mix = function.mix(trip_counts(function))
    products = sum(count for name, count in mix.items() if name.startswith("HMMA.16816"))
    warps = prod(launch.block) // 32 * prod(evaluate(extent, 1) for extent in launch.grid)
    assert products * warps * 16 * 8 * 16 == 1024 * 1024 * 512


def test_mix_without_trip_counts_is_what_stands_in_the_code() -> None:
    (function,) = code("simt", "1024x1024x1024:f16:nt")
    assert function.mix() == Counter(i.name for i in function.executed)
    with pytest.raises(AnalysisFailed, match=r"the loop at 0x\w+ \(number 0\) has no trip count"):
        function.mix({})


def test_loops_of_wgmma_nest_by_role() -> None:
    function = next(f for f in code("wgmma", "4096x4096x4096:f16:nt") if "gemm" in f.name)
    assert function.unknown == ()
    (steps,) = {i.loops for i in function.executed if i.opcode == "HGMMA" and len(i.loops) > 1}
    tiles, k = (function.loops[index] for index in steps)
    assert k.blocks < tiles.blocks
    assert k.depth == 2
    loads = {i.loops[:2] for i in function.memory if i.opcode == "UTMALDG"}
    assert len(loads) == 1
    assert loads != {steps}, "the producer's loops are not the consumers'"
    stores = {i.loops for i in function.memory if i.opcode == "STSM"}
    assert stores == {(tiles.index,)}
    # Loops that wait for a barrier need no trip count; all others do.
    waiting = [loop for loop in function.loops if function.waits(loop)]
    assert waiting
    assert not any(
        i.opcode in ("HGMMA", "UTMALDG") for loop in waiting for i in function.executed if i.block in loop.blocks
    )
    given = {
        loop.index: 2.0 for loop in function.loops if not function.waits(loop) and not function.is_elect_loop(loop)
    }
    (product,) = {i.name for i in function.executed if i.opcode == "HGMMA"}
    assert function.mix(given)[product] > function.mix()[product] > 0


def test_wgmma_reads_shared_memory_by_descriptor_and_tma_moves_tiles() -> None:
    function = next(f for f in code("wgmma", "4096x4096x4096:f16:nt") if "gemm" in f.name)
    wgmma = next(i.memory for i in function.memory if i.opcode == "HGMMA")
    assert wgmma
    assert (wgmma.kind, wgmma.space, wgmma.width) == ("matrix", "shared", 0)
    assert wgmma.address == Address(())
    tma = [i.memory for i in function.memory if i.opcode in ("UTMALDG", "UTMASTG")]
    assert {(m.kind, m.space) for m in tma if m} == {("bulk", "shared")}
    assert staged_store(function) == ("store", "shared", 16, 4, False)


def staged_store(function: Function) -> tuple[str, str, int, int, bool]:
    """How the first ``stmatrix`` of a function stores: kind, space, bytes of a lane, matrices, transposed."""
    store = next(i.memory for i in function.memory if i.opcode == "STSM")
    assert isinstance(store, MemoryAccess)
    return store.kind, store.space, store.width, store.matrices, store.transposed


def test_swapped_operands_are_stored_transposed() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    default = family_named("wgmma").default(gemm, H200, "sustained")
    swapped = build(gemm, default.with_(swap=1 - default["swap"]), H200)
    function = next(f for f in disassemble(swapped.data) if "gemm" in f.name)
    assert staged_store(function) == ("store", "shared", 16, 4, True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_older_architectures_are_read_too(arch: str) -> None:
    for function in code("simt", "200x264x96:f16:nt", arch):
        assert function.unknown == ()
        assert accesses(function, "LDG", "LDGSTS")
        assert accesses(function, "LDS")
        assert accesses(function, "STG")
        assert all(block.reachable for block in function.blocks if block.index == 0)


def test_subroutine_and_indexed_array_are_told() -> None:
    source = """
    extern "C" __global__ void k(long long* a, long long n, const int* at) {
      float v[32];
      for (int i = 0; i < 32; ++i) v[i] = i * a[i];
      for (long long i = 0; i < n; ++i) { a[i] = a[i] / n; v[at[i] & 31] += 1; }
      for (int i = 0; i < 32; ++i) a[i] += v[i];
    }"""
    (function,) = disassemble(compile_source(source, "sm_90a").data)
    assert [i for i in function.executed if i.opcode == "CALL"], "the division of 64-bit integers is a subroutine"
    local = [i for i in function.memory if i.memory and i.memory.space == "local"]
    assert local
    assert not any(i.spill for i in local)
    assert any(i.loops for i in local)


# -- written text ----------------------------------------------------------------------------------


def listing(*lines: str) -> str:
    return '\t.target\tsm_90a\n\t.section\t.text.k,"ax",@progbits\nk:\n.text.k:\n' + "\n".join(lines) + "\n"


def at(address: int, words: str) -> str:
    return f"        /*{address:04x}*/                   {words} ;"


def test_unknown_opcode_is_reported_by_name() -> None:
    (function,) = parse(
        listing(at(0, "MOV R0, RZ"), at(16, "FROBNICATE.128 R0, [R2]"), at(32, "TEX R0, R2"), at(48, "EXIT"))
    )
    assert function.unknown == ("FROBNICATE", "TEX"), "texture loads are memory that is not modelled"
    assert function.units()["unknown"] == 1


def test_line_that_is_no_instruction_is_an_error() -> None:
    with pytest.raises(AnalysisFailed, match=r"k: .*not an instruction that this analysis can read"):
        parse(listing(at(0, "?? R0, R1"), at(16, "EXIT")))


def test_jump_to_a_label_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(AnalysisFailed, match=r"k: the code jumps to \.L_x_9, which it does not define"):
        parse(listing(at(0, "BRA `(.L_x_9)"), at(16, "EXIT")))


def test_indexed_jump_without_targets_is_an_error() -> None:
    with pytest.raises(AnalysisFailed, match=r"the jump at 0x0 \(BRX R2"):
        parse(listing(at(0, "BRX R2 -0x10"), at(16, "EXIT")))


def test_indexed_jump_goes_where_its_targets_say() -> None:
    (function,) = parse(
        listing(
            at(0, 'BRX R2 -0x10 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)'),
            ".L_x_1:",
            at(16, "EXIT"),
            ".L_x_2:",
            at(32, "EXIT"),
            at(48, "NOP"),
        )
    )
    assert [block.successors for block in function.blocks] == [(1, 2), (), (), ()]
    assert [block.reachable for block in function.blocks] == [True, True, True, False]


def test_instruction_that_never_runs_is_not_counted() -> None:
    (function,) = parse(listing("        /*0000*/              @!PT LDS RZ, [RZ] ;", at(16, "EXIT")))
    assert function.memory == ()
    assert function.mix() == {"EXIT": 1}


def test_nested_loops_are_told_apart() -> None:
    (function,) = parse(
        listing(
            at(0, "MOV R0, RZ"),
            ".L_x_0:",
            at(16, "MOV R1, RZ"),
            ".L_x_1:",
            at(32, "LDS R2, [R1]"),
            "        /*0030*/               @P0 BRA `(.L_x_1) ;",
            at(64, "STS [R1], R2"),
            "        /*0050*/              @!P1 BRA `(.L_x_0) ;",
            at(96, "EXIT"),
        )
    )
    outer, inner = function.loops
    assert inner.blocks < outer.blocks
    assert (outer.depth, inner.depth) == (1, 2)
    load, store = function.memory
    assert load.loops == (outer.index, inner.index)
    assert store.loops == (outer.index,)
    assert function.mix({outer.index: 3, inner.index: 5}) == {"MOV": 4, "LDS": 15, "BRA": 18, "STS": 3, "EXIT": 1}


def test_an_instruction_that_a_jump_goes_past_is_conditional() -> None:
    """Before, in and behind a loop; the loop's own jump back, and a turn that leaves it early, are no condition."""
    (function,) = parse(
        listing(
            at(0x00, "LDS R0, [R8]"),
            at(0x10, "@P0 BRA `(.L_x_0)"),
            at(0x20, "LDS R1, [R8+0x4]"),
            ".L_x_0:",
            at(0x30, "@!P3 LDS R2, [R8+0x8]"),
            ".L_x_1:",
            at(0x40, "LDS R3, [R8+0xc]"),
            at(0x50, "@P4 BRA `(.L_x_3)"),
            at(0x60, "@P1 BRA `(.L_x_2)"),
            at(0x70, "LDS R4, [R8+0x10]"),
            ".L_x_2:",
            at(0x80, "LDS R5, [R8+0x14]"),
            at(0x90, "@P2 BRA `(.L_x_1)"),
            ".L_x_3:",
            at(0xA0, "LDS R6, [R8+0x18]"),
            at(0xB0, "EXIT"),
            ".L_x_4:",
            at(0xC0, "BRA `(.L_x_4)"),
        )
    )
    conditional = {i.operands[0] for i in function.memory if function.is_conditional(i)}
    assert conditional == {"R1", "R2", "R4"}


def test_jump_into_the_middle_of_a_loop_makes_no_loop() -> None:
    (function,) = parse(
        listing(
            "        /*0000*/               @P0 BRA `(.L_x_1) ;",
            ".L_x_0:",
            at(16, "NOP"),
            ".L_x_1:",
            at(32, "NOP"),
            "        /*0030*/               @P1 BRA `(.L_x_0) ;",
            at(64, "EXIT"),
        )
    )
    assert function.loops == ()


def test_join_that_is_elsewhere_is_followed() -> None:
    """A BSYNC goes where its BSSY says; here that is not the next instruction."""
    (function,) = parse(
        listing(
            at(0, "BSSY B0, `(.L_x_1)"),
            at(16, "BSYNC B0"),
            at(32, "NOP"),
            ".L_x_1:",
            at(48, "EXIT"),
        )
    )
    assert [block.reachable for block in function.blocks] == [True, False, True]


@pytest.mark.parametrize(
    ("operand", "address"),
    [
        ("[R8+UR5+0xfa0]", Address(("R8", "UR5"), 0xFA0)),
        ("desc[UR6][R2.64+-0x10]", Address(("R2",), -16)),
        ("[R5+URZ+0x38058]", Address(("R5",), 0x38058)),
        ("[RZ]", Address(())),
        ("[0x40]", Address((), 0x40)),
        ("[R3.X4+0x10]", Address(("R3.X4",), 16)),
        ("[R2.U32+UR4]", Address(("R2", "UR4"))),
        ("gdesc[UR8]", Address(())),
        ("c[0x0][0x210]", Address((), 0x210)),
        ("cx[UR4][R3+0x8]", Address(("R3",), 8)),
        ("R8", None),
    ],
)
def test_addresses_are_registers_and_an_offset(operand: str, address: Address | None) -> None:
    assert parse_address(operand) == address


def test_what_is_no_cubin_is_refused_in_the_disassemblers_words() -> None:
    with pytest.raises(AnalysisFailed, match="nvdisasm does not read 7 bytes as a cubin"):
        disassembly(b"nothing")
