"""Time stamps in wgmma kernels: none where nobody asks for them, and no wgmma run by itself where somebody does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.wgmma_paths import TMA_KNOBS
from tirgemm.bench import results
from tirgemm.config import Config, Value
from tirgemm.errors import InvalidRequest
from tirgemm.families.base import WithTimeline
from tirgemm.families.common.ring_buffer import HEADER_WORDS, SPAN_WORDS, TIMELINE, RingBuffer
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Pointer
from tirgemm.tuning.build import cuda
from tirgemm.tuning.driver.nvrtc import compile_source
from verification import sources

_EVIDENCE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "cpu" / "wgmma.emulated.json.gz"
_FAMILY = Wgmma()
_H200 = named_device("sm_90a")
# Each schedule, with the accumulators of large tiles; a tile whose operand is copied; sums added in a cluster.
_COMPILED: dict[str, dict[str, Value]] = {
    "4096x4096x4096:f16:nt": {"schedule": "pingpong", "stages": 6},
    "8192x8192x8192:f16:nt": {"tile_m": 256, "stages": 3},
    "1024x2048x1020:bf16:nt": {"tile_m": 64, "tile_n": 64, "load": "copy", "epilogue": "direct"},
    "64x1536x8192:f16:nt": {"tile_m": 64, "tile_n": 64, "split": 4, "group": 1},
    "4096x576x7168:f16:nt:invariant": {"tile_n": 144, "stages": 5, "split": 4, "reduction": "block"},
}


def test_kernels_without_time_stamps_have_the_source_that_was_recorded_before_there_were_any() -> None:
    rows = sources.kernels(results.load(_EVIDENCE)["rows"])
    assert len({row["source_sha256"] for row in rows}) >= 8
    assert [reason for _, reason in sources.stale("wgmma", "emulated", rows)] == []


@pytest.mark.parametrize("text", _COMPILED)
def test_time_stamps_leave_the_kernel_fast(text: str) -> None:
    gemm, config = Gemm.parse(text), Config("wgmma", tuple((TMA_KNOBS | _COMPILED[text]).items()))
    assert isinstance(_FAMILY, WithTimeline)
    timed = _FAMILY.timed_program(gemm, config, _H200, 4096)
    plain = _FAMILY.instantiate(gemm, config, _H200)
    host, source = cuda.lower(timed.program, _H200.arch)
    launch = cuda.checked_launch(timed.program, host)
    _, without = cuda.lower(plain, _H200.arch)
    assert "%clock" in source
    assert "%clock" not in without
    cubin, before = compile_source(source, _H200.arch), compile_source(without, _H200.arch)
    assert not cubin.serialised
    resources = cubin.resources[f"{timed.symbol}_kernel"]
    assert resources.spill_bytes == 0
    # As many blocks fit an SM as without.
    assert resources.registers == before.resources[f"{timed.symbol}_kernel"].registers
    assert launch.tensors == (*plain.launch.tensors, timed.ring.tensor)
    assert Pointer(TIMELINE) in launch.kernels[0].params
    assert timed.blocks == launch.kernels[0].grid[0]


def test_a_range_of_m_has_room_for_the_most_blocks_of_any() -> None:
    gemm = Gemm.parse("1..8192x4096x4096:f16:nt")
    timed = _FAMILY.timed_program(gemm, _FAMILY.default(gemm, _H200, "sustained"), _H200, 64)
    assert timed.ring.blocks >= _H200.units
    assert timed.ring.words == timed.ring.blocks * len(timed.ring.roles) * (HEADER_WORDS + SPAN_WORDS * 64)


@pytest.mark.parametrize("slots", [0, 1, 3, 100])
def test_slots_are_a_power_of_two(slots: int) -> None:
    with pytest.raises(InvalidRequest, match=f"at least 2, not {slots}"):
        RingBuffer(1, ("producer",), {"tile": ""}, slots)


def test_ring_buffers_have_a_limit() -> None:
    with pytest.raises(InvalidRequest, match="the limit is 2147483648"):
        RingBuffer(1000, ("producer",), {"tile": ""}, 2**18)
