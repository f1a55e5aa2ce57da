"""The knobs of the x86 family and their choices for one problem, simplest first."""

from __future__ import annotations

from tirgemm.config import Knob, Space, Value, up_to
from tirgemm.device import Device
from tirgemm.families.x86.layout import CHUNK
from tirgemm.gemm import Gemm

TILE_M = (1, 2, 4, 6, 8, 9, 12, 14, 16, 24, 28)
VECTORS = (1, 2, 3, 4)
UNROLL = (1, 2, 4, 8)
BLOCKS = (64, 128, 256, 512, 1024)
BLOCK_K = (256, 512, 1024)
# Below this many floating-point operations waking a second thread may cost more than it saves.
_SMALL_FLOPS = 2**28
_MEANINGS = {
    "tile_m": "rows of a register tile",
    "vectors": "vectors that a register tile is wide",
    "lanes": "columns in a vector",
    "pack_a": "whether A is first copied into fp32 panels",
    "pack_b": "whether B is first copied into fp32 panels",
    "unroll": "steps of k that are written out",
    "block_m": "rows of D in a task",
    "block_n": "columns of D in a task",
    "block_k": "elements of k that a task takes at a time (0: all)",
    "order": "a panel of B stays while the rows of A pass (rows), or the reverse (columns)",
    "threads": "the most threads that the launcher takes (0: all)",
}


def has_avx512(device: Device) -> bool:
    return {"avx512f", "avx512vl"} <= set(device.features)


def registers(device: Device) -> int:
    """Vector registers of any width that code for ``device`` may use."""
    return 32 if has_avx512(device) else 16


def space(gemm: Gemm, device: Device) -> Space:
    """Every knob with its choices."""
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("tile_m", up_to(gemm.m_max, tuple(t for t in TILE_M if t + 2 <= registers(device)))),
        ("vectors", up_to(-(-gemm.n // 8), VECTORS)),
        ("lanes", (16, 8) if has_avx512(device) else (8,)),
        ("pack_a", (True, False) if _direct_a(gemm) else (True,)),
        ("pack_b", (True, False) if _direct_b(gemm) else (True,)),
        ("unroll", UNROLL),
        ("block_m", up_to(gemm.m_max, BLOCKS)),
        ("block_n", up_to(gemm.n, BLOCKS)),
        ("block_k", (usual_block_k(gemm),) if gemm.invariant else (0, *(k for k in BLOCK_K if k < gemm.k))),
        ("order", ("rows", "columns")),
        ("threads", (0, 1) if device.units > 1 and gemm.flops < _SMALL_FLOPS else (0,)),
    )
    return Space("x86", tuple(Knob(name, choices, _MEANINGS[name]) for name, choices in knobs))


def padded_elements(gemm: Gemm, device: Device) -> int:
    """Elements of the largest operand, padded to whole register tiles and chunks of k, in the config that pads most."""
    choices = {knob.name: knob.choices for knob in space(gemm, device).knobs}
    rows = max(_whole(gemm.m_max, int(tile_m)) for tile_m in choices["tile_m"])
    columns = max(_whole(gemm.n, int(v) * int(lanes)) for v in choices["vectors"] for lanes in choices["lanes"])
    depth = _whole(gemm.k, CHUNK)
    return gemm.batch * max(rows * depth, columns * depth, rows * columns)


def _whole(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def usual_block_k(gemm: Gemm) -> int:
    """How much of k a register tile sums up by default, of k alone (0: all): what every kernel of an invariant problem
    does."""
    return BLOCK_K[-1] if gemm.k > 2 * BLOCK_K[-1] else 0


def _direct_a(gemm: Gemm) -> bool:
    """Whether A can be read where it lies: whole chunks of k only."""
    return gemm.k % CHUNK == 0


def _direct_b(gemm: Gemm) -> bool:
    """Whether B can be read where it lies: whole chunks of k and, where its rows run along n, whole vectors."""
    return gemm.k % CHUNK == 0 and (gemm.trans_b or gemm.n % 8 == 0)
