"""The simt family beyond its contract: defaults everywhere, what the machine code holds, what each knob changes."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirgemm import Config, expr
from tirgemm.config import Value
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.families.common.alignment import access_width, store_width
from tirgemm.families.simt.loads import loads_per_fma
from tirgemm.families.simt.tiling import READS, grid, tiling
from tirgemm.gemm import ACTIVATIONS, LAYOUTS, Gemm, Range, Regime
from tirgemm.hardware import ARCHITECTURES, named_device, occupancy
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.search.neighbourhood import adapted

_SIMT = FAMILIES["simt"]
_H200 = named_device("sm_90a")

_SIZES = st.one_of(st.integers(1, 300), st.sampled_from([1023, 4096, 4097, 16384, 20000]))


@st.composite
def _gemms(draw: st.DrawFn) -> Gemm:
    low, high = sorted((draw(_SIZES), draw(_SIZES)))
    rows: list[int | Range] = [low, Range(low, high)]
    return Gemm(
        m=draw(st.sampled_from(rows)),
        n=draw(_SIZES),
        k=draw(_SIZES),
        dtype=draw(st.sampled_from(["f16", "bf16", "f32"])),
        layout=draw(st.sampled_from(LAYOUTS)),
        batch=draw(st.sampled_from([1, 3, 4096])),
        align=draw(st.sampled_from([4, 16])),
        beta=draw(st.booleans()),
        act=draw(st.sampled_from(ACTIVATIONS)),
    )


@settings(max_examples=80, deadline=None)
@given(gemm=_gemms(), arch=st.sampled_from(sorted(ARCHITECTURES)), regime=st.sampled_from(["sustained", "isolated"]))
def test_every_problem_has_a_valid_default(gemm: Gemm, arch: str, regime: Regime) -> None:
    device = named_device(arch)
    assert _SIMT.supports(gemm, device) is None
    config = _SIMT.default(gemm, device, regime)
    _SIMT.space(gemm, device).check(config)
    assert rejected(_SIMT, gemm, config, device) is None
    assert _SIMT.predict_us(gemm, config, device, regime) > 0


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("64x64x64:f16:nn", (8, 8, 4)),
        ("64x64x64:f32:nn", (4, 4, 4)),
        ("64x64x66:f16:nn", (2, 8, 4)),  # rows of A of 66
        ("64x64x66:f16:nt", (2, 2, 4)),
        ("66x64x64:f16:tn", (2, 8, 4)),  # rows of A along m
        ("64x64x64:f16:nn:align=4", (2, 2, 2)),
        ("64x64x64:f16:nn:lda=68", (4, 8, 4)),
        ("64x64x64:f16:nn:batch=2:stride_a=4098", (2, 8, 4)),
        ("1..64x64x64:f16:nn", (8, 8, 4)),
        ("1..64x64x64:f16:tn", (1, 8, 4)),  # rows of A as long as m
        ("1..64x64x64:f16:nn:batch=3", (8, 8, 4)),  # matrices of m rows of 64
        ("64x64x64:f16:nn:beta:ldc=65", (8, 8, 1)),
        ("64x63x64:f32:nt", (4, 4, 1)),
    ],
)
def test_accesses_are_as_wide_as_alignment_and_rows_allow(text: str, widths: tuple[int, int, int]) -> None:
    gemm = Gemm.parse(text)
    assert (access_width(gemm, "a"), access_width(gemm, "b"), store_width(gemm)) == widths


def test_problems_beyond_the_grid_are_unsupported_with_the_reason() -> None:
    assert "blocks" in str(_SIMT.supports(Gemm.parse("1x1x1:f16:batch=2147483647").with_(n=200), _H200))
    assert "batch is 70000" in str(_SIMT.supports(Gemm.parse("1..9x8x8:batch=70000"), _H200))
    assert "sm_75" in str(_SIMT.supports(Gemm.parse("8x8x8"), _H200.with_(arch="sm_75")))


def test_grid_of_a_range_is_an_expression_in_m() -> None:
    gemm = Gemm.parse("1..1000x512x64:f16:batch=5")
    config = _SIMT.default(gemm, _H200, "sustained")
    x, y, z = grid(gemm, tiling(gemm, config))
    assert (y, z) == (512 // config["block_n"] // config["raster"], 5)
    for m in (1, config["block_m"], config["block_m"] + 1, 1000):
        assert expr.evaluate(x, m) == -(-m // config["block_m"]) * config["raster"]


def test_every_knob_changes_the_kernel() -> None:
    """A knob that changes nothing would only repeat measurements."""
    gemm = Gemm.parse("2048x2048x512:f32:nt")
    base = _SIMT.default(gemm, _H200, "sustained").with_(
        block_m=64,
        block_n=64,
        block_k=16,
        thread_m=8,
        thread_n=4,
        unroll=8,
        pipeline="register",
        resident=0,
        lane_order="row",
        barriers=2,
    )
    bare = base.with_(vector=1, pad=0, pipeline="none")
    twice = base.with_(pipeline="double")
    changes: dict[str, Value] = {
        "block_m": 32,
        "block_n": 32,
        "block_k": 32,
        "thread_m": 4,
        "thread_n": 8,
        "lanes_n": 4,
        "piece": 2,
        "vector": 2,
        "pad": 8,
        "unroll": 16,
        "pipeline": "double",
        "raster": 4,
        "resident": 2,
        "lane_order": "z",
        "grid": "plane",
    }
    assert {*changes, "reads", "barriers"} == {knob.name for knob in _SIMT.space(gemm, _H200).knobs}
    configs = [base, *(base.with_(**{name: value}) for name, value in changes.items() if base[name] != value)]
    configs += [bare.with_(reads=reads) for reads in READS]
    configs += [twice.with_(barriers=barriers) for barriers in (1, 2)]
    configs = list(dict.fromkeys(configs))
    assert len(configs) == 1 + len(changes) + len(READS) + 1  # pipeline=double is among them twice
    sources = {cuda.lower(_SIMT.instantiate(gemm, config, _H200), "sm_90a")[1] for config in configs}
    assert len(sources) == len(configs)


def test_a_config_from_before_a_knob_is_the_one_with_its_first_choice() -> None:
    """Configs of searches and results files from before reads, lane_order, grid and barriers mean what they meant."""
    gemm = Gemm.parse("1024x1024x1024:f32:nn")
    added = ("reads", "lane_order", "grid", "barriers")
    knobs = _SIMT.default(gemm, _H200, "sustained").knobs
    old = Config("simt", tuple((name, value) for name, value in knobs if name not in added))
    space = _SIMT.space(gemm, _H200)
    new = adapted(old, space)
    space.check(new)
    assert {name: new[name] for name, _ in old.knobs} == dict(old.knobs)
    assert tuple(new[name] for name in added) == ("fragments", "row", "line", 2)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_default_compiles_for_every_architecture_without_spills(arch: str) -> None:
    device = named_device(arch)
    for text in ("1024x2048x512:f32:nn", "1..8192x1000x1000:f16:nt:beta:bias:act=gelu"):
        gemm = Gemm.parse(text)
        binary = build(gemm, _SIMT.default(gemm, device, "sustained"), device)
        assert binary.resources["spill_bytes"] == 0
        assert binary.resources["stack_bytes"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "60000x60000x4104:f16:nn",
        # The tensors' own elements are counted in 32 bits; whole tiles of one of them are not.
        "200x4000x4096:f16:nt:ldd=9000000",
        "200x4000x4096:f32:nt:beta:ldc=9000000",
        "100x20000000x72:bf16:nt",
    ],
)
def test_offsets_beyond_32_bits_compile(text: str) -> None:
    gemm, device = Gemm.parse(text), named_device("sm_90a")
    config = _SIMT.default(gemm, device, "sustained")
    assert config["vector"] <= 4
    binary = build(gemm, config, device)
    assert binary.resources["spill_bytes"] == 0
    assert "(int64_t)" in binary.sources["kernel.cu"]


@pytest.mark.parametrize(
    "text", ["33x64x64:bf16:nt:batch=2:stride_d=2146043888", "1000x100x33:f32:tn:batch=3:stride_b=1040541200"]
)
def test_a_batch_of_which_one_more_matrix_would_be_beyond_32_bits_compiles(text: str) -> None:
    gemm, device = Gemm.parse(text), named_device("sm_90a")
    binary = build(gemm, _SIMT.default(gemm, device, "sustained"), device)
    assert binary.resources["spill_bytes"] == 0


@pytest.mark.parametrize("text", ["128x8x32:f32:nt:ldd=9000000:lda={}", "1..128x128x32:f32:nt:ldb={}"])
def test_asynchronous_copies_of_operands_beyond_2_gib_are_refused(text: str) -> None:
    """Their offsets in bytes overflow: an emulated kernel read before its A."""
    within, beyond = (Gemm.parse(text.format(ld)) for ld in (2**22 - 1, 2**22))
    config = _SIMT.default(within, _H200, "sustained")
    for pipeline in ("async2", "async3", "async4"):
        assert rejected(_SIMT, within, config.with_(pipeline=pipeline), _H200) is None
        name, reason = rejected(_SIMT, beyond, config.with_(pipeline=pipeline), _H200) or ("", "")
        assert name == "offsets"
        assert f"reach {2**31 + 128} bytes into their operands; the copies of pipeline={pipeline} count" in reason
        assert str(2**31 - 1) in reason
    assert rejected(_SIMT, beyond, config, _H200) is None


def test_asynchronous_copies_count_no_matrix_behind_the_last_of_a_batch() -> None:
    gemm = Gemm.parse("16384x256x24576:f16:nt:batch=2")
    config = _SIMT.default(gemm, _H200, "sustained")
    assert rejected(_SIMT, gemm, config.with_(pipeline="async2"), _H200) is None
    name, _ = rejected(_SIMT, gemm.with_(batch=3), config.with_(pipeline="async2"), _H200) or ("", "")
    assert name == "offsets"


@pytest.mark.parametrize("seed", range(6))
def test_random_configs_compile_as_the_launch_says(seed: int) -> None:
    rng = random.Random(seed)
    gemm = Gemm.parse(("200x264x96:f32:nt", "1..200x136x200:bf16:tn:bias", "136x200x72:f16:nn:acc=f16:beta")[seed % 3])
    device = named_device(rng.choice(sorted(ARCHITECTURES)))
    space = _SIMT.space(gemm, device)
    while True:
        config = space.at(rng.randrange(space.size))
        if rejected(_SIMT, gemm, config, device) is None:
            break
    binary = build(gemm, config, device)
    if not config["resident"]:
        assert binary.resources["spill_bytes"] == 0, config


@pytest.mark.parametrize("pad", [0, 4, 8])
def test_padded_tiles_take_the_shared_memory_that_the_launch_says(pad: int) -> None:
    """Rows as short as the pad too: the lowered size is held against the launch's."""
    gemm = Gemm.parse("31x33x65:f16:nt")
    config = _SIMT.default(gemm, _H200, "sustained").with_(
        block_m=8,
        block_n=16,
        block_k=32,
        thread_m=1,
        thread_n=1,
        lanes_n=16,
        piece=1,
        pad=pad,
        pipeline="double",
        raster=1,
    )
    program = _SIMT.instantiate(gemm, config, _H200)
    host, _ = cuda.lower(program, "sm_90a")
    assert cuda.checked_launch(program, host).kernels[0].shared_bytes == 2 * 32 * (8 + 16 + 2 * pad) * 4


@pytest.mark.parametrize("barriers", [1, 2])
def test_fragments_of_halves_are_read_no_wider_than_padded_rows_are_aligned(barriers: int) -> None:
    """Rows of 256 + 4 halves are 8 bytes aligned: an access of 16 would be taken apart into calls with too many
    words."""
    gemm = Gemm.parse("300x200x1000:f16:nt:acc=f16")
    config = (
        _SIMT.space(gemm, _H200)
        .at(0)
        .with_(
            block_m=256,
            block_n=64,
            thread_m=16,
            thread_n=8,
            piece=16,
            vector=2,
            pad=4,
            pipeline="double",
            barriers=barriers,
        )
    )
    widths = {pad: tiling(gemm, config.with_(pad=pad)).fragment_widths for pad in (0, 4, 8)}
    assert widths == {0: (8, 8), 4: (4, 4), 8: (8, 8)}
    build(gemm, config, _H200)


def test_registers_are_not_bounded_where_no_loop_over_k_is_left() -> None:
    """With a bound of 255 that it does not need this kernel took them all and spilled 24 bytes; without, it takes
    79."""
    text = "1308..2500x1000x16:bf16:nt:act=gelu:batch=3:lda=19:ldb=19:ldd=1008:align=8:alpha:beta"
    gemm = Gemm.parse(text)
    free = (
        _SIMT.space(gemm, _H200)
        .at(0)
        .with_(
            block_m=32,
            block_n=32,
            thread_m=16,
            thread_n=2,
            lanes_n=16,
            piece=16,
            pipeline="double",
            raster=4,
            lane_order="z",
        )
    )
    config = free.with_(resident=2)
    refusal = rejected(_SIMT, gemm, config, _H200)
    assert refusal is not None
    assert refusal[0] == "resident"
    assert "320 registers with the sums, where resident=2 leaves 255" in refusal[1]
    assert build(gemm, free, _H200).resources["spill_bytes"] == 0
    for text in (
        "1308..2500x1000x24:bf16:nt:beta",  # a loop is left
        "1308..2500x1000x16:bf16:nt",  # neither C nor a bias is read
    ):
        assert rejected(_SIMT, Gemm.parse(text), config, _H200) is None


@pytest.mark.parametrize("vector", [1, 2])
def test_halves_that_are_loaded_one_at_a_time_count_as_a_register_each(vector: int) -> None:
    """With a bound of 128 registers, which the estimate allowed, the kernel of single halves spilled 312 bytes."""
    gemm = Gemm.parse("6000x2304x72:f16:tt:acc=f16")
    config = (
        _SIMT.space(gemm, _H200)
        .at(0)
        .with_(
            block_m=256,
            block_n=128,
            block_k=32,
            thread_m=8,
            thread_n=16,
            lanes_n=4,
            piece=8,
            vector=vector,
            pad=8,
            unroll=8,
            pipeline="double",
            resident=1,
            barriers=1,
        )
    )
    real = build(gemm, config, _H200).resources["registers"]
    assert 0.9 * real <= tiling(gemm, config).registers <= 1.4 * real
    refusal = rejected(_SIMT, gemm, config.with_(resident=2), _H200)
    assert (refusal[0] if refusal else None) == ("resident" if vector == 1 else None)


def test_registers_are_estimated_close_enough_to_prune_by() -> None:
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    base = _SIMT.default(gemm, _H200, "sustained").with_(
        block_m=128,
        block_n=128,
        block_k=8,
        thread_m=8,
        thread_n=8,
        unroll=8,
        pipeline="register",
        barriers=2,
        resident=0,
    )
    for shape in ({}, {"block_n": 256, "thread_n": 16, "resident": 1}, {"block_m": 64, "block_n": 64, "thread_n": 4}):
        config = base.with_(**shape)
        real = build(gemm, config, _H200).resources["registers"]
        assert 0.9 * real <= tiling(gemm, config).registers <= 1.4 * real


def _main_loop(cubin: bytes, folder: Path) -> Counter[str]:
    """The opcodes of the loop with the most FMAs, from the disassembled cubin."""
    wheel = next(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/cu*/bin/cuobjdump"), None)
    tool = shutil.which("cuobjdump") or wheel
    if tool is None:
        pytest.skip("cuobjdump is missing: pip install nvidia-cuda-cuobjdump")
    (folder / "kernel.cubin").write_bytes(cubin)
    command = [str(tool), "-sass", "kernel.cubin"]
    text = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    code = [(int(at, 16), words) for at, words in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(.*?);", text)]
    loops = []
    for at, words in code:
        back = re.match(r"BRA.*?0x([0-9a-f]+)", words)
        if back and int(back[1], 16) < at:
            loops.append(Counter(w.split()[0] for a, w in code if int(back[1], 16) <= a <= at))
    return max(loops, key=lambda loop: loop["FFMA"])


@pytest.mark.parametrize(("text", "share"), [("4096x4096x4096:f32:nn", 0.93), ("4096x4096x4096:f16:nt", 0.91)])
def test_main_loop_is_mostly_fmas_from_wide_loads(text: str, share: float, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    config = _SIMT.default(gemm, _H200, "sustained")
    binary, cut = build(gemm, config, _H200), tiling(gemm, config)
    loop = _main_loop(binary.data, tmp_path)
    fmas = config["thread_m"] * config["thread_n"] * cut.block_k
    assert loop["FFMA"] == fmas
    assert loop["FFMA"] / loop.total() > share
    loads = loads_per_fma(cut)
    assert loop["LDS.128"] == fmas * loads.shared_instructions
    assert not loop["LDS"]
    assert sum(n for name, n in loop.items() if name.startswith("LDG.E.")) == fmas * loads.global_instructions
    assert loop["BAR.SYNC.DEFER_BLOCKING"] == config["barriers"]
    assert not binary.resources["spill_bytes"]
    warps = cut.threads // 32 * occupancy(_H200.limits, cut.threads, binary.resources["registers"], cut.shared_bytes)
    assert warps >= 8, "each scheduler has another warp while one waits"


def test_main_loop_of_halves_converts_once_an_element(tmp_path: Path) -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nn")
    config = _SIMT.default(gemm, _H200, "sustained")
    source = cuda.lower(_SIMT.instantiate(gemm, config, _H200), "sm_90a")[1]
    binary, cut = build(gemm, config, _H200), tiling(gemm, config)
    assert binary.sources["kernel.cu"] == source
    loop = _main_loop(binary.data, tmp_path)
    elements = (cut.block_m + cut.block_n) * cut.block_k // cut.threads
    # Of the tiles' elements each thread converts its share, where fragments would be many times as many.
    assert sum(count for name, count in loop.items() if name.startswith("HADD2")) == elements
