"""The config without tuning, and the time that an analytic model gives a config. Pure; well under a millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.expr import evaluate
from tirgemm.families.wgmma.alignment import loaded_by_tma
from tirgemm.families.wgmma.plan import CLUSTER, COOPERATIVE, NORMAL, PINGPONG, REPACK, TMA, Plan, plan
from tirgemm.families.wgmma.rules import RULES
from tirgemm.families.wgmma.space import TILES_N, epilogues, loads
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand

# tile_m, tile_n, tile_k, schedule, cluster_m. Where the model calls two equal, the earlier is taken.
_SHAPES = (
    (128, 256, 64, COOPERATIVE, 2), (128, 128, 64, PINGPONG, 2), (128, 192, 64, PINGPONG, 2), (256, 128, 64, COOPERATIVE, 1),
    (256, 192, 64, COOPERATIVE, 1), (128, 160, 64, PINGPONG, 2), (128, 224, 64, COOPERATIVE, 2), (128, 192, 64, COOPERATIVE, 2),
    (192, 160, 64, COOPERATIVE, 1), (192, 128, 64, COOPERATIVE, 1), (128, 256, 64, COOPERATIVE, 1), (128, 160, 64, COOPERATIVE, 1),
    (128, 128, 64, COOPERATIVE, 1), (128, 96, 64, COOPERATIVE, 1), (128, 64, 64, COOPERATIVE, 1), (128, 64, 128, COOPERATIVE, 1),
    (64, 256, 64, COOPERATIVE, 1), (64, 192, 64, COOPERATIVE, 1), (64, 128, 128, COOPERATIVE, 1), (64, 96, 128, COOPERATIVE, 1),
    (64, 64, 128, COOPERATIVE, 1), (64, 32, 128, COOPERATIVE, 1), (64, 16, 128, COOPERATIVE, 1), (128, 32, 128, COOPERATIVE, 1),
)  # fmt: skip
_SPLITS = (2, 3, 4, 5, 6, 7, 8)
_MOST_SWAPPED = 128
_MOST_STAGES = 8
# Of as many stages, full, empty and in turns.
_BARRIER_BYTES = 8 * (2 * _MOST_STAGES + 2)

_OPERANDS: tuple[Operand, ...] = ("a", "b")

# Microseconds: a launch, the way to the first wgmma, the second kernel of a split.
_LAUNCH_US, _FILL_US, _REDUCE_US, _GATHER_US, _STREAM_US = 2.0, 1.0, 2.0, 0.5, 2.0
# Clocks from a TMA load to its bytes, bytes a clock from L2 to one SM, and shares of nominal rates that are reached.
_LATENCY, _L2_BYTES = 1200.0, 56.0
_MEMORY_SHARE, _TENSOR_SHARE = 0.9, 0.92
# Blocks of a cluster -> the share of SMs that clusters of so many reach, as an H200's driver counts them.
_CLUSTERED = {3: 0.89, 4: 0.91, 5: 0.84, 6: 0.78, 7: 0.8, 8: 0.91}
# A copy of an operand takes this and a share of bandwidth.
_REPACK_US, _REPACK_SHARE = 1.0, 0.6
# L2 bandwidth over the memory's, and bytes a clock that an SM stores when its tile is done.
_L2_FACTOR, _STORE_BYTES = 2.2, 24.0
# Long sustained work is capped in power, so in clock: there energy counts, and sharing and overlap save some of it.
_CAPPED_FROM_US, _CAPPED_CLOCK = 30.0, 0.76
_PINGPONG_ENERGY, _CLUSTER_ENERGY = 0.97, 0.985
# Where the clock is high, ping-pong's order costs more than its overlap gives.
_PINGPONG_ISOLATED = 1.06


def default(gemm: Gemm, device: Device, regime: str) -> Config:
    """The best-predicted of a list of shapes and splits that passes every rule."""
    found = [(_predict(cut, device, regime), number, cut) for number, cut in enumerate(_candidates(gemm, device))]
    for _, _, cut in sorted(found, key=lambda entry: entry[:2]):
        config = cut.config
        if all(rule.check(gemm, config, device) is None for rule in RULES):
            return config
    raise Unsupported(f"wgmma has no default for {gemm} on {device.name}: every shape of its list breaks a rule")


def predict_us(gemm: Gemm, config: Config, device: Device, regime: str) -> float:
    """A rough time: the longest of tensor cores, loads of an SM, L2 and memory over the waves; then what is not hidden."""
    return _predict(plan(gemm, config, device.units), device, regime)


def _predict(cut: Plan, device: Device, regime: str) -> float:
    gemm, cluster, split = cut.gemm, cut.cluster, cut.split
    clock = (device.clock_mhz or 1700) * 1.0
    bandwidth = (device.peak_gbps or 3000.0) * 1e3 * _MEMORY_SHARE
    tiles = evaluate(cut.tiles_m, gemm.m_max) * evaluate(cut.tiles_n, gemm.m_max) * cut.slices
    if cut.in_memory:
        tiles *= split
    slots = max(1, int(cut.slots * _CLUSTERED.get(cluster, 1.0)) // cluster)
    waves = tiles / slots if cut.stream else -(-tiles // slots)
    steps = waves * cut.split_steps * cut.resident

    # A wgmma reads A and B from shared memory, 128 bytes a clock; narrow ones wait for that.
    mma = max(cut.tile_n / 2, 16 + cut.tile_n / 4) / _TENSOR_SHARE
    compute = steps * mma * (cut.tile_m // 64) * (cut.tile_k // 16) / clock
    rows = min(cut.tile_m, -(-cut.most_rows // 8) * 8)
    stage = 2 * cut.tile_k * (rows / cut.cluster_n + cut.tile_n / cut.cluster_m)
    loads = steps * max(stage / _L2_BYTES, _LATENCY / ((cut.stages - 1) * cut.resident)) / clock
    stored = 4 if cut.partials else DTYPE_BYTES[gemm.out] * (4 if cut.epilogue != TMA else 1)
    store = (1 if cut.pingpong else waves) * rows * cut.tile_n * stored / _STORE_BYTES / clock
    if regime == "isolated":
        compute *= _PINGPONG_ISOLATED if cut.pingpong else 1.0
    elif compute > _CAPPED_FROM_US:
        saved = (_PINGPONG_ENERGY if cut.pingpong else 1.0) * (_CLUSTER_ENERGY if cluster > 1 else 1.0)
        compute *= saved / _CAPPED_CLOCK

    through_l2 = tiles * cluster * cut.split_steps * stage / (bandwidth * _L2_FACTOR)
    moved = max(max(compute, loads) + store, gemm.nbytes / bandwidth, through_l2)
    return _LAUNCH_US + _FILL_US + moved + _beside(cut, clock, bandwidth)


def _beside(cut: Plan, clock: float, bandwidth: float) -> float:
    """What adding parts and copying operands takes, in microseconds."""
    gemm, spent = cut.gemm, 0.0
    if cut.partials:
        spent += _REDUCE_US + 8 * cut.split * gemm.batch * gemm.m_max * gemm.n / (bandwidth * _L2_FACTOR)
    if cut.in_cluster:
        spent += _GATHER_US + cut.split * cut.tile_m * cut.tile_n * 4 / cut.reducers / _L2_BYTES / clock
    if cut.handed_over:
        spent += _STREAM_US + (max(2, cut.split) - 1) * cut.tile_m * cut.tile_n * 8 / _L2_BYTES / clock
    for operand in _OPERANDS:
        if cut.load == REPACK and not loaded_by_tma(gemm, operand):
            spent += _REPACK_US + 4 * gemm.span(operand) / (bandwidth * _REPACK_SHARE)
    return spent


def _candidates(gemm: Gemm, device: Device) -> Iterator[Plan]:
    for tile_m, tile_n, widest_k, schedule, cluster_m in _SHAPES:
        yield from _cuts(gemm, device, 0, tile_m, tile_n, widest_k, schedule, cluster_m)
    if gemm.m_max <= _MOST_SWAPPED:
        tile_n = next(n for n in TILES_N if n >= gemm.m_max and (n % 16 == 0 or not gemm.trans_a))
        for tile_m in (64, 128):
            yield from _cuts(gemm, device, 1, tile_m, tile_n, 128, COOPERATIVE, 1)


def _cuts(
    gemm: Gemm, device: Device, swap: int, tile_m: int, tile_n: int, widest_k: int, schedule: str, cluster_m: int
) -> Iterator[Plan]:
    high, wide = (gemm.n, gemm.m_max) if swap else (gemm.m_max, gemm.n)
    tile_k = 64 if gemm.k <= 64 else widest_k
    if (tile_m > 64 and high <= tile_m // 2) or (tile_n > 16 and wide <= tile_n // 2):
        return
    tiles_m = -(-high // tile_m)
    tiles = tiles_m * -(-wide // tile_n) * gemm.batch
    shared = cluster_m if tiles_m > 1 else 1
    steps = -(-gemm.k // tile_k)
    group = next((g for g in (8, 4) if tiles_m >= g), 1)
    splits = [s for s in _SPLITS if shared == 1 and tiles * s <= device.units and steps >= 4 * s]
    splits = splits if tile_m < 256 else []
    # Of the splits only the one that uses most SMs.
    for split in (1, *splits[-1:]):
        cut = Plan(gemm, device.units, tile_m, tile_n, tile_k, 2, schedule, 1, shared, 1, swap, split, CLUSTER, loads(gemm)[0],
                   epilogues(gemm)[0], "m", group, 2, NORMAL)  # fmt: skip
        yield replace(cut, stages=_stages(cut, device, tiles))


def _stages(cut: Plan, device: Device, tiles: int) -> int:
    """As many as fit and are of use."""
    fixed = cut.staging_bytes + cut.slack_bytes + _BARRIER_BYTES
    fit = (device.limits.shared_per_block - fixed) // cut.stage_bytes
    useful = cut.split_steps * (1 if cut.split > 1 else -(-tiles // device.units))
    return max(2, min(_MOST_STAGES, fit, useful))
