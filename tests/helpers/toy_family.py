"""A small family for the tests of the search: a blocked kernel whose speed an analytic simulator gives.

``simulated_us`` is no measurement: it is a made-up machine with waves, tile quantisation, a memory roof, a latency
that stages hide, bank conflicts of unpadded tiles and a register cliff, so that the knobs interact as they do on real
ones. ``Toy.predict_us`` knows only its roofs, so there is something left to learn.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache

from tirgemm.config import Config, Knob, Space
from tirgemm.device import Device, Limits
from tirgemm.errors import Unsupported
from tirgemm.families.base import Program, Rule, rejected, require_valid
from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.tuning.records import Candidate, SampleSet, Status

DEVICE = Device(
    kind="cuda",
    arch="sm_90a",
    model="Simulated",
    units=132,
    memory_bytes=2**36,
    clock_mhz=1755,
    peak_gbps=4000.0,
    peak_tflops=(("f16", 60.0), ("f32", 30.0)),
    limits=Limits(
        shared_per_block=232448,
        shared_per_sm=233472,
        shared_reserved_per_block=1024,
        registers_per_sm=65536,
        registers_per_thread=255,
        threads_per_block=1024,
        threads_per_sm=2048,
        blocks_per_sm=32,
        l2_bytes=2**25,
    ),
)


def _shared(gemm: Gemm, config: Config) -> int:
    row = config["block_k"] + (8 if config["layout"] == "padded" else 0)
    return int((config["block_m"] + config["block_n"]) * row * config["stages"] * DTYPE_BYTES[gemm.dtype])


def _threads(config: Config) -> int:
    return int(config["block_m"] // config["thread_m"] * (config["block_n"] // config["thread_n"]))


def _shared_rule(gemm: Gemm, config: Config, device: Device) -> str | None:
    need, limit = _shared(gemm, config), device.limits.shared_per_block
    return (
        f"stages={config['stages']} need {need} bytes of shared memory; a block has {limit}" if need > limit else None
    )


def _threads_rule(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    threads = _threads(config)
    return None if 32 <= threads <= 1024 else f"{threads} threads a block; it must be from 32 to 1024"


class Toy:
    """Implements the family protocol; ``instantiate`` is never reached by these tests."""

    def __init__(self, name: str = "toy", knobs: tuple[Knob, ...] | None = None) -> None:
        self.name = name
        self.knobs = knobs or (
            Knob("block_m", (64, 16, 32, 128, 256)),
            Knob("block_n", (64, 16, 32, 128, 256)),
            Knob("block_k", (32, 8, 16, 64)),
            Knob("thread_m", (4, 1, 2, 8, 16)),
            Knob("thread_n", (4, 1, 2, 8, 16)),
            Knob("stages", (1, 2, 3, 4)),
            Knob("layout", ("plain", "padded")),
            Knob("unroll", (False, True)),
        )

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (Rule("threads", _threads_rule), Rule("shared_memory", _shared_rule))

    def supports(self, gemm: Gemm, device: Device) -> str | None:  # noqa: ARG002
        return None if gemm.acc == "f32" else f"{self.name} sums in f32, not {gemm.acc}"

    def space(self, gemm: Gemm, device: Device) -> Space:  # noqa: ARG002
        return Space(self.name, self.knobs)

    def default(self, gemm: Gemm, device: Device, regime: str) -> Config:  # noqa: ARG002
        return Config(self.name, tuple((k.name, k.choices[0]) for k in self.knobs))

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: str) -> float:  # noqa: ARG002
        return _roof_us(gemm, config, device)

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        require_valid(self, gemm, config, device)
        raise Unsupported(f"{self.name} is searched by its predicted times: it has no kernel of {gemm}")


def _roof_us(gemm: Gemm, config: Config, device: Device) -> float:
    m, n, k = gemm.m_max, gemm.n, gemm.k
    blocks = math.ceil(m / config["block_m"]) * math.ceil(n / config["block_n"]) * gemm.batch
    waves = math.ceil(blocks / device.units)
    tile_flops = 2 * config["block_m"] * config["block_n"] * math.ceil(k / config["block_k"]) * config["block_k"]
    math_us: float = waves * tile_flops / (dict(device.peak_tflops)["f16"] * 1e6 / device.units)
    bytes_ = blocks * k * (config["block_m"] + config["block_n"]) * DTYPE_BYTES[gemm.dtype]
    memory_us: float = bytes_ / (device.peak_gbps * 3e3)
    return max(math_us, memory_us) + 3.0


def simulated_us(gemm: Gemm, config: Config, device: Device = DEVICE) -> float:
    """The simulator's time of ``config``, with a reproducible 1 % of noise."""
    threads, per_thread = _threads(config), config["thread_m"] * config["thread_n"]
    registers = 24 + per_thread * (1.3 if config["unroll"] else 1.1) + 2 * (config["thread_m"] + config["thread_n"])
    resident = max(
        1, min(2048 // threads, int(65536 / (threads * min(registers, 255))), 233472 // (_shared(gemm, config) + 1024))
    )
    hidden = min(1.0, (resident * threads / 2048 + 0.12 * config["stages"]) * (0.6 + 0.1 * math.log2(per_thread)))
    intensity = per_thread / (config["thread_m"] + config["thread_n"])
    issue = intensity / (intensity + 1.2)
    conflicts = 1.35 if config["layout"] == "plain" and config["block_k"] >= 32 else 1.04
    spills = 1.0 + max(0.0, registers - 168) / 60
    loop = 1.0 + (0.10 if not config["unroll"] else 0.0) + 2.0 / config["block_k"]
    noise = int.from_bytes(hashlib.sha256(f"{gemm}{config}".encode()).digest()[:4], "big") / 2**32
    body = _roof_us(gemm, config, device) - 3.0
    us: float = body * conflicts * spills * loop / (hidden * issue) + 3.0
    return us * (0.99 + 0.02 * noise)


def measured(gemm: Gemm, config: Config, us: float | None = None) -> Candidate:
    """The record of ``config`` as the simulator times it."""
    samples = (SampleSet((simulated_us(gemm, config) if us is None else us,)),)
    return Candidate(gemm, DEVICE.key, "sustained", config, Status.MEASURED, sample_sets=samples)


@cache
def valid_configs(family: Toy, gemm: Gemm) -> tuple[Config, ...]:
    """Every config that passes the rules."""
    return tuple(config for config in family.space(gemm, DEVICE) if rejected(family, gemm, config, DEVICE) is None)
