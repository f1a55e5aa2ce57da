"""The config without tuning, and the time that an analytic model gives a config. Pure; well under a millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families.wgmma.names import CLUSTER, COOPERATIVE, NORMAL, PINGPONG
from tirgemm.families.wgmma.plan import Plan, plan
from tirgemm.families.wgmma.rules import RULES
from tirgemm.families.wgmma.space import TILES_N, epilogues, loads
from tirgemm.gemm import Gemm

from tirgemm.families.wgmma.estimate import estimate_us

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


def default(gemm: Gemm, device: Device, regime: str) -> Config:
    """The best-predicted of a list of shapes and splits that passes every rule."""
    found = [(estimate_us(cut, device, regime), number, cut) for number, cut in enumerate(_candidates(gemm, device))]
    for _, _, cut in sorted(found, key=lambda entry: entry[:2]):
        config = cut.config
        if all(rule.check(gemm, config, device) is None for rule in RULES):
            return config
    raise Unsupported(f"wgmma has no default for {gemm} on {device.name}: every shape of its list breaks a rule")


def predict_us(gemm: Gemm, config: Config, device: Device, regime: str) -> float:
    """The time that the analytic model gives a config."""
    return estimate_us(plan(gemm, config, device.units), device, regime)


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
