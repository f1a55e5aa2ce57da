"""WMMA kernels compile for every architecture: each layout by each way to load, without a spill, as their rules
predict."""

from __future__ import annotations

import re

import pytest

from tests.helpers.named_config import named_config
from tirgemm.families.base import rejected
from tirgemm.families.wmma import Wmma
from tirgemm.families.wmma.space import tiling
from tirgemm.families.wmma.tile import WmmaTiling
from tirgemm.gemm import LAYOUTS, Gemm
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.build.wmma_source import with_fragments
from tirgemm.tuning.driver.nvrtc import Cubin, compile_source

FAMILY = Wmma()
ARCHS = tuple(ARCHITECTURES)
# Rows of both operands by the widest copy that suits them: 16, 8 and 4 bytes; at 2 they are copied to aligned rows.
PATHS = {
    16: "4000x4000x1000:{dtype}:{layout}",
    8: "4004x4004x1004:{dtype}:{layout}:lda=4004:ldb=4004",
    4: "4002x4006x1002:{dtype}:{layout}",
    2: "4001x4003x1005:{dtype}:{layout}",
}
TILES = (
    "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=3 registers=2 pad=8",
    "tile_m=128 tile_n=128 tile_k=64 warps_m=2 warps_n=2 stages=2 registers=1 pad=0",
    "tile_m=64 tile_n=64 tile_k=32 warps_m=2 warps_n=1 stages=4 registers=2 pad=16",
    "tile_m=64 tile_n=128 tile_k=16 warps_m=1 warps_n=4 stages=4 registers=1 pad=8",
)
EXTRAS = ("", ":beta:bias:act=gelu:alpha", ":batch=2:out=f32", ":acc=f16")


def built(gemm: Gemm, knobs: str, arch: str) -> tuple[WmmaTiling, str, Cubin]:
    device = named_device(arch)
    config = named_config(FAMILY, gemm, device, knobs)
    program = FAMILY.instantiate(gemm, config, device)
    host, source = cuda.lower(program, arch)
    cuda.checked_launch(program, host)  # shared memory, grids and parameters are as lowered
    return tiling(gemm, config), source, compile_source(source, arch)


def squares() -> list[tuple[str, str, str]]:
    """Every layout by every path, architectures, tiles and epilogues dealt out so that each meets each."""
    actual = []
    for i, layout in enumerate(LAYOUTS):
        for j, (width, problem) in enumerate(PATHS.items()):
            extra = EXTRAS[(i + 2 * j) % len(EXTRAS)]
            dtype = "bf16" if (i + j) % 3 == 0 and "acc" not in extra else "f16"
            load = " load=repack" if width == 2 else ""
            text = problem.format(dtype=dtype, layout=layout) + extra
            actual.append((text, TILES[(i + j) % len(TILES)] + load, ARCHS[(i - j) % len(ARCHS)]))
    return actual


def test_every_architecture_meets_every_layout_and_way_to_load() -> None:
    cases = squares()
    assert {(Gemm.parse(text).layout, arch) for text, _, arch in cases} == {(t, a) for t in LAYOUTS for a in ARCHS}
    widths = {
        (tiling(g := Gemm.parse(text), named_config(FAMILY, g, named_device(arch), knobs)).a.width, arch)
        for text, knobs, arch in cases
    }
    assert widths == {(width, arch) for width in (8, 4, 2) for arch in ARCHS}
    assert {knobs.removesuffix(" load=repack") for _, knobs, _ in cases} == set(TILES)


@pytest.mark.parametrize(("text", "knobs", "arch"), squares(), ids=[f"{t} {a}" for t, _, a in squares()])
def test_path_compiles_without_spills(text: str, knobs: str, arch: str) -> None:
    cut, source, cubin = built(Gemm.parse(text), knobs, arch)
    for symbol, resources in cubin.resources.items():
        assert (resources.spill_bytes, resources.stack_bytes) == (0, 0), symbol
    kernel = cubin.resources["wmma_gemm_kernel"]
    assert kernel.shared_bytes == 0
    assert kernel.registers * cut.threads <= named_device(arch).limits.registers_per_sm
    body = source[source.rindex("wmma_gemm_kernel(") :]
    # Everything of a step is written out: loads and products of each 16 of k, once before the loop where they run
    # ahead.
    m, n, depth = cut.fragments_m, cut.fragments_n, cut.tile_k // 16
    assert body.count("wmma::mma_sync(") == m * n * depth
    assert body.count("wmma::load_matrix_sync(") == (m + n) * (depth + cut.sets - 1)
    assert body.count("wmma::store_matrix_sync(") == m * n
    # What the last products were made from is overwritten by the sums: every warp must be done with it.
    between = body[body.rindex("wmma::mma_sync(") : body.index("wmma::store_matrix_sync(")]
    assert "__syncthreads();" in between
    # One barrier for a step.
    loop = body[: body.rindex("wmma::mma_sync(")]
    assert loop.count("__syncthreads();") == (2 if cut.sets == 2 else 1)


def test_a_source_defines_the_fragments_that_it_uses_and_no_others() -> None:
    _, source, _ = built(Gemm.parse("2048x2048x256:bf16:tn"), TILES[2], "sm_80")
    assert "mma.h" not in source
    assert set(re.findall(r"wmma\.\w+(?:\.\w+)*\.m16n16k16\.[\w.]+", source)) == {
        "wmma.load.a.sync.aligned.col.m16n16k16.shared.bf16",
        "wmma.load.b.sync.aligned.row.m16n16k16.shared.bf16",
        "wmma.mma.sync.aligned.col.row.m16n16k16.f32.bf16.bf16.f32",
        "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32",
    }


@pytest.mark.parametrize(
    "use",
    [
        "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 32, 8, 16, half, nvcuda::wmma::row_major> a;",
        "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, signed char, nvcuda::wmma::row_major> a;",
        "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, int> c;",
    ],
)
def test_fragments_that_are_not_known_here_are_left_to_the_toolkit(use: str) -> None:
    source = f"#include <mma.h>\nvoid kernel() {{ {use} }}\n"
    assert with_fragments(source) == source
    assert with_fragments(use) == use


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "knobs", [*TILES, "tile_m=128 tile_n=256 tile_k=64 warps_m=2 warps_n=4 stages=3 registers=2 pad=16"]
)
def test_shared_memory_is_what_the_tiles_take(layout: str, knobs: str) -> None:
    gemm, device = Gemm.parse(f"8192x8192x1024:f16:{layout}"), named_device("sm_90a")
    config = named_config(FAMILY, gemm, device, knobs)
    cut = tiling(gemm, config)
    pad = config["pad"]
    rows_a = cut.tile_m * (cut.tile_k + pad) if layout[0] == "n" else cut.tile_k * (cut.tile_m + pad)
    rows_b = cut.tile_n * (cut.tile_k + pad) if layout[1] == "t" else cut.tile_k * (cut.tile_n + pad)
    assert cut.shared_bytes >= 2 * cut.stages * (rows_a + rows_b)
    program = FAMILY.instantiate(gemm, config, device)
    cuda.checked_launch(program, cuda.lower(program, device.arch)[0])


@pytest.mark.parametrize(
    ("knobs", "rule"),
    [
        ({"warps_n": 4, "tile_n": 32}, "warps"),
        ({"registers": 2, "tile_k": 16}, "fragments"),
        ({"warps_m": 1, "warps_n": 1}, "registers"),
        ({"stages": 4, "tile_k": 64, "tile_m": 256, "warps_m": 4}, "shared"),
        ({"split": 2}, "filled"),
    ],
)
def test_rules_say_what_cannot_work_or_win(knobs: dict[str, int], rule: str) -> None:
    gemm, device = Gemm.parse("8192x8192x8192:f16:nt"), named_device("sm_90a")
    config = FAMILY.default(gemm, device, "sustained").with_(**knobs)
    refusal = rejected(FAMILY, gemm, config, device)
    assert refusal is not None
    assert refusal[0] == rule
    assert str(next(iter(knobs.values()))) in refusal[1] or rule in ("registers", "shared")


def test_default_for_large_problems_is_the_articles_tile_with_padded_rows_in_longer_steps() -> None:
    """An H200 took 0.69 of the time with k in steps of 64 (4096^3, nt: ``tuning_db/shipped``)."""
    for size in (4096, 8192):
        gemm = Gemm.parse(f"{size}x{size}x{size}:f16:nt")
        config = FAMILY.default(gemm, named_device("sm_90a"), "sustained")
        assert [config[name] for name in ("tile_m", "tile_n", "tile_k", "pad", "split")] == [128, 256, 64, 8, 1]


@pytest.mark.parametrize(
    "text",
    [
        "1..60000x60000x4104:f16:tn:batch=2:beta",
        "1..300000000x1x3:f16:nn",
        "16x4x7:f16:nt:batch=3:stride_b=40000000",
    ],
)
def test_offsets_beyond_32_bits_compile(text: str) -> None:
    """Of the operands, only of the copy of A whose rows of 3 become rows of 8, or of the matrices of B that the threads
    of the repack kernel's last block count on to."""
    gemm, device = Gemm.parse(text), named_device("sm_90a")
    binary = build(gemm, FAMILY.default(gemm, device, "sustained"), device)
    assert binary.resources["spill_bytes"] == 0
    assert "(int64_t)" in binary.sources["kernel.cu"]
